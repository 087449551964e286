import { expect, it, onTestFinished, vi } from 'vitest'
import type { Link, Store } from '../../src/store/store.ts'
import { afterStep, callModel, runAgent, START } from '../support/agent.ts'
import { startBalancer } from '../support/balancer.ts'
import { type Running, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { type ChatMessage, type Provider, runaway, type Script, startProvider } from '../support/provider.ts'
import { openReplica, type Redis, startRedis, startWire } from '../support/redis.ts'
import { callResponses, type Item, runResponses } from '../support/responses-agent.ts'
import { repeatsUntilBlocked } from '../support/scripts.ts'
import { createStore, listAll } from '../support/stores.ts'

type Tree = { [key: string]: unknown }

interface Cluster {
  readonly provider: Provider
  readonly redis: Redis
  readonly replicas: readonly Running[]
  /** The tokens of all answers in all sessions, as they are stored in Redis. */
  tokens(): Promise<number>
}

/** Four replicas on one Redis. */
async function startCluster(script: Script, config: Tree, timeout = '5s'): Promise<Cluster> {
  const provider = await startProvider(script)
  onTestFinished(() => provider.close())
  const redis = await startRedis()
  const store = { store: 'redis', redis: { url: redis.url, timeout } }
  const replicas = await Promise.all(
    Array.from({ length: 4 }, () => startGovernor(provider.url, { ...store, ...config })),
  )
  const reader = await openReplica(redis.url, { prefix: 'governor:' })
  return {
    provider,
    redis,
    replicas,
    async tokens() {
      const sums = (await listAll(reader.store)).map(({ session: { counts } }) => {
        const { input = 0, output = 0 } = counts
        return input + output
      })
      return sums.reduce((sum, tokens) => sum + tokens, 0)
    },
  }
}

const urlOf = (running: Running | undefined) => running?.url ?? ''

/** Something that waits until a test opens it. */
function createGate() {
  let open = () => {}
  const isOpen = new Promise<void>((resolve) => {
    open = resolve
  })
  return { isOpen, open: () => open() }
}

/** A step of one agent whose calls run side by side: each request shows the task and one result. */
function stepOf(number: number): ChatMessage[] {
  const id = `call_${number}`
  const call = { id, type: 'function', function: { name: 'search', arguments: `{"query":"${number}"}` } }
  const made = { role: 'assistant', content: null, tool_calls: [call] }
  return [...START, made, { role: 'tool', tool_call_id: id, content: `result ${number}` }]
}

/** Tokens that one answer of the scripted provider takes. */
const PER_ANSWER = 110

const headers = { 'x-governor-session': 'one', 'thread-id': 'one' }

it('a request that was to be stopped gets the answer that another replica got meanwhile', async () => {
  const provider = await startProvider(() => ({ text: 'This is what I found so far.' }))
  onTestFinished(() => provider.close())
  const store = createStore()
  const held = createGate()
  const gate = createGate()
  // Its request is evaluated, and comes to ask for the last answer only when the gate is open.
  const slow: Store = {
    ...store,
    async updateValue(kind, key, change) {
      if (kind.name === 'stop_claims') {
        held.open()
        await gate.isOpen
      }
      return store.updateValue(kind, key, change)
    },
  }
  const config = { budget: { max_iterations: 1 } }
  const first = await startGovernor(provider.url, config, { store })
  const second = await startGovernor(provider.url, config, { store: slow })
  const late = callModel(second.url, stepOf(1), { headers })
  await held.isOpen
  const early = await callModel(first.url, stepOf(1), { headers })
  gate.open()
  const answers = [early, await late]
  expect(answers.map(({ governor }) => governor?.['has_final_answer'])).toEqual([true, true])
  expect(provider.requests).toHaveLength(1)
})

it.each([
  ['shows it', false],
  ['names it', true],
])(
  'the first answer of a session is counted once where the next request %s before what it used is known',
  async (...[, isNamed]) => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const store = createStore()
    const gate = createGate()
    // The client gets the end of an answer before its usage is read, and may be at another replica at once.
    const slow: Store = {
      ...store,
      async updateValue(kind, key, change) {
        const { value } = change(kind.empty)
        const { begun } = Object(value) as Partial<Link>
        if (begun?.counts.input) await gate.isOpen
        return store.updateValue(kind, key, change)
      },
    }
    const first = await startGovernor(provider.url, {}, { store: slow })
    const second = await startGovernor(provider.url, {}, { store })
    if (isNamed) {
      const { response, calls } = await callResponses(first.url, { input: 'Go.' })
      const results = calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'nothing' }))
      await callResponses(second.url, { input: results, previous_response_id: response['id'] })
    } else {
      const step = await callModel(first.url, START)
      await callModel(second.url, afterStep(START, step))
    }
    gate.open()
    const sums = async () => (await listAll(store)).map(({ session: { counts } }) => [counts.iterations, counts.output])
    await expect.poll(sums).toEqual([[2, 20]])
  },
)

describeWith('redis-server', 'a session in Redis', () => {
  it('takes at most 6.5 KB after 100 iterations, and no more after 200', async () => {
    const { replicas, redis } = await startCluster(runaway(), { budget: { max_iterations: 1_000 } })
    const url = urlOf(replicas[0])
    const sizeAfter = async (messages: readonly ChatMessage[], max: number) => {
      const run = await runAgent(url, messages, { headers, max })
      expect(run.steps).toHaveLength(max)
      const [key = ''] = (await redis.command('KEYS', 'governor:s:*')) as string[]
      return { size: Number(await redis.command('HSTRLEN', key, 'd')), messages: run.messages }
    }
    const first = await sizeAfter(START, 100)
    const second = await sizeAfter(first.messages, 100)
    expect(first.size).toBeGreaterThan(1_000)
    expect(first.size).toBeLessThan(6.5 * 1_024)
    // Only numbers have more digits.
    expect(second.size).toBeLessThan(first.size + 128)
  })
})

describeWith('redis-server', 'what a request of an agent with two calls in each answer asks of Redis', () => {
  it('is who got one of them where its replica gave it both, and who got either elsewhere', async () => {
    const calls = [1, 2].map((query) => ({ name: 'search', arguments: { query } }))
    const provider = await startProvider(() => ({ calls }))
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    let looked = 0
    const wire = await startWire(redis.port)
    wire.onRequest((bytes) => {
      looked += bytes.match(/HMGET\r\n\$\d+\r\n\S+ relayed\}/g)?.length ?? 0
      return 'passed'
    })
    const config = { store: 'redis', redis: { url: wire.url, timeout: '5s' } }
    const [first, second] = [await startGovernor(provider.url, config), await startGovernor(provider.url, config)]
    let messages: ChatMessage[] = [...START]
    const numbers: number[] = []
    for (const { url } of [first, first, first, second, second]) {
      looked = 0
      const step = await callModel(url, messages)
      messages = afterStep(messages, step)
      numbers.push(looked)
    }
    expect(numbers).toEqual([0, 1, 1, 2, 1])
    // A client may drop the newest of the calls, which the replica knows nothing of then.
    const [last, ...others] = messages.toReversed()
    expect(last?.role).toBe('tool')
    const dropped = others.toReversed().map(({ tool_calls, ...message }) => ({
      ...message,
      ...(tool_calls && { tool_calls: tool_calls.slice(0, 1) }),
    }))
    const shown = dropped.filter(({ role, tool_call_id }) => role !== 'tool' || tool_call_id?.endsWith('_0'))
    const step = await callModel(second.url, shown)
    expect(step.headers.get('x-governor-iteration')).toBe('6/300')
  })
})

describeWith('redis-server', 'requests that reach a limit at several replicas at once', () => {
  it('ask for one last answer together, and each for itself if that fails', async () => {
    let fails = true
    const asked = createGate()
    const gate = createGate()
    const script: Script = async () => {
      asked.open()
      await gate.isOpen
      if (!fails) return { text: 'This is what I found so far.' }
      fails = false
      return { status: 529, body: { error: { message: 'busy' } } }
    }
    const { replicas, provider } = await startCluster(script, { budget: { max_iterations: 1 } })
    const all = Array.from({ length: 12 }, (_, at) => callModel(urlOf(replicas[at % 4]), stepOf(1), { headers }))
    await asked.isOpen
    gate.open()
    const answers = await Promise.all(all)
    expect(answers.filter(({ status }) => status === 529)).toHaveLength(1)
    expect(answers.filter(({ governor }) => governor?.['has_final_answer'] === true)).toHaveLength(11)
    expect(provider.requests.length).toBeLessThanOrEqual(12)
  })
})

describeWith('redis-server', 'four replicas behind a balancer', () => {
  describeWith('nginx', 'nginx', () => {
    it('count each of 256 concurrent requests of one session exactly once', async () => {
      const { replicas, tokens, provider } = await startCluster(runaway(), {
        budget: { max_iterations: 1_000 },
      })
      const url = await startBalancer(replicas.map(urlOf))
      const numbers = Array.from({ length: 256 }, (_, at) => at)
      const steps = await Promise.all(numbers.map((at) => callModel(url, stepOf(at), { headers })))
      const iterations = steps.map((step) => Number(step.headers.get('x-governor-iteration')?.split('/')[0]))
      expect(iterations.toSorted((a, b) => a - b)).toEqual(numbers.map((at) => at + 2))
      for (const { events } of replicas) expect(events.filter(({ kind }) => kind === 'request_ended')).toHaveLength(64)
      expect(provider.requests).toHaveLength(256)
      await vi.waitFor(async () => expect(await tokens()).toBe(256 * PER_ANSWER), 20_000)
    })

    it('allow no more requests than one budget has, however many come at once', async () => {
      const { replicas, provider } = await startCluster(runaway(), { budget: { max_iterations: 50 } })
      const url = await startBalancer(replicas.map(urlOf))
      const requests = Array.from({ length: 128 }, (_, at) => callModel(url, stepOf(at), { headers }))
      const steps = await Promise.all(requests)
      expect(steps.filter(({ status }) => status !== 200)).toEqual([])
      // The first of them is the second iteration, as its transcript shows one.
      expect(steps.filter(({ finish }) => finish === 'tool_calls')).toHaveLength(49)
      const asked = provider.requests.filter(({ json }) => json.tools && json.tool_choice !== 'none')
      expect(asked).toHaveLength(49)
      const states = steps.flatMap(({ governor }) => governor?.['terminal_reason'] ?? [])
      expect(states).toEqual(Array.from({ length: 79 }, () => 'max_iterations'))
    })

    it('stop each of 150 sessions at its limit, and count the usage of each', async () => {
      const { replicas, provider, tokens } = await startCluster(runaway(), { budget: { max_iterations: 2 } })
      const url = await startBalancer(replicas.map(urlOf))
      const waiting = Array.from({ length: 150 }, (_, at) => `Task ${at}: find out everything.`)
      const agent = async (): Promise<void> => {
        for (let content = waiting.pop(); content !== undefined; content = waiting.pop()) {
          const { steps } = await runAgent(url, [{ role: 'user', content }])
          const iterations = steps.map((step) => step.headers.get('x-governor-iteration'))
          expect(iterations).toEqual(['1/2', '2/2', '2/2'])
          expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations' })
        }
      }
      await Promise.all(Array.from({ length: 64 }, agent))
      expect(provider.requests).toHaveLength(450)
      await vi.waitFor(async () => expect(await tokens()).toBe(450 * PER_ANSWER), 20_000)
    })

    it.each([false, true])('continue a response of another replica (stream: %s)', async (stream) => {
      const { replicas } = await startCluster(runaway(), { budget: { max_iterations: 6 } })
      const url = await startBalancer(replicas.map(urlOf))
      const { steps } = await runResponses(url, 'Go.', { stateful: true, stream })
      const iterations = steps.map((step) => step.headers.get('x-governor-iteration'))
      expect(iterations).toEqual(['1/6', '2/6', '3/6', '4/6', '5/6', '6/6', '6/6'])
      for (const { events } of replicas) expect(events.filter(({ kind }) => kind === 'request_ended')).not.toEqual([])
    })
  })

  it.each([1, 2, 3])(
    'follow an agent that is at another replica at once and sends its whole history in each request of %i',
    async (every) => {
      const call = { name: 'search', arguments: { query: 'the same' } }
      const { replicas } = await startCluster(
        repeatsUntilBlocked({ calls: [call] }, () => ({ text: 'Done.' })),
        {},
      )
      const named = { 'x-governor-session': 'one' }
      const items: Item[] = [{ role: 'user', content: 'Go.' }]
      const seen: string[] = []
      let [previous, results]: [unknown, readonly Item[]] = [undefined, []]
      while (seen.length < 7) {
        const isWhole = seen.length % every === 0
        const body = isWhole ? { input: items } : { input: results, previous_response_id: previous }
        const step = await callResponses(urlOf(replicas[seen.length % 4]), body, { headers: named })
        seen.push(`${step.headers.get('x-governor-iteration')} ${step.headers.get('x-governor-verdict')}`)
        previous = step.response['id']
        results = step.calls.map(({ call_id }) => ({
          type: 'function_call_output',
          call_id,
          output: 'found nothing new',
        }))
        items.push(...(step.response['output'] as Item[]), ...results)
      }
      const verdicts = ['allow', 'allow', 'allow', 'warn', 'allow', 'warn', 'block']
      expect(seen).toEqual(verdicts.map((verdict, at) => `${at + 1}/300 ${verdict}`))
    },
  )

  it('repeat the last answer of a run that another replica stopped, without asking the provider', async () => {
    const { replicas, provider } = await startCluster(runaway(), { budget: { max_iterations: 2 } })
    const [first, ...others] = replicas
    const { messages, steps } = await runAgent(urlOf(first), START, { headers })
    const asked = provider.requests.length
    for (const other of others) {
      const again = await callModel(other.url, messages.slice(0, -1), { headers })
      expect(again.message.content).toBe(steps.at(-1)?.message.content)
      // What a compacted history leaves of it.
      const short = await callModel(other.url, [...START, ...messages.slice(-3, -1)], { headers })
      expect(short.governor).toMatchObject({ terminal_reason: 'max_iterations' })
    }
    expect(provider.requests).toHaveLength(asked)
  })

  it('share what a compacted history no longer shows', async () => {
    const { replicas } = await startCluster(runaway(), { budget: { max_iterations: 10 } })
    let messages: ChatMessage[] = [...START]
    for (let at = 0; at < 6; at++) {
      const step = await callModel(urlOf(replicas[at % 4]), messages, { headers })
      expect(step.headers.get('x-governor-iteration')).toBe(`${at + 1}/10`)
      // Only the newest step is kept.
      messages = [...START, ...afterStep([], step)]
    }
  })

  it.each<[string, (redis: Redis) => unknown, (redis: Redis) => unknown]>([
    ['hangs', (redis) => redis.freeze(), (redis) => redis.thaw()],
    ['is gone', (redis) => redis.kill(), (redis) => redis.restart()],
  ])('fail no request while Redis %s, report it, and use Redis again afterwards', async (_, fail, mend) => {
    const { replicas, redis } = await startCluster(runaway(), { budget: { max_iterations: 8 } }, '1s')
    const metricsOf = async ({ url }: Running) => (await fetch(`${url}/metrics`)).text()
    const readyOf = async ({ url }: Running) => {
      const response = await fetch(`${url}/ready`)
      return [response.status, await response.json()]
    }
    const ok = [200, { status: 'ready', store: { kind: 'redis', status: 'ok' } }]
    const degraded = [200, { status: 'ready', store: { kind: 'redis', status: 'degraded' } }]
    for (const replica of replicas) expect(await readyOf(replica)).toEqual(ok)
    let messages: ChatMessage[] = [...START]
    for (let at = 0; at < 12; at++) {
      if (at === 3) await fail(redis)
      const step = await callModel(urlOf(replicas[at % 4]), messages, { headers })
      expect(step.status).toBe(200)
      expect(step.headers.get('x-governor-iteration')).toBe(`${Math.min(at + 1, 8)}/8`)
      if (at >= 8) expect(step.governor).toMatchObject({ terminal_reason: 'max_iterations' })
      else messages = afterStep(messages, step)
    }
    for (const replica of replicas) {
      expect(await readyOf(replica)).toEqual(degraded)
      const text = await metricsOf(replica)
      expect(text).toContain('governor_store_up 0')
      expect(text).toMatch(/governor_failed_open_total\{reason="store",guard="none"\} [1-9]/)
      expect(replica.logs.filter((line) => line.includes('store not reached'))).toHaveLength(1)
    }
    const isBack = replicas.map(({ events, until }) => {
      const before = events.length
      return until((event) => event.kind === 'store_changed' && event.isUp && events.indexOf(event) >= before)
    })
    await mend(redis)
    await Promise.all(isBack)
    for (const replica of replicas) {
      expect(await readyOf(replica)).toEqual(ok)
      const text = await metricsOf(replica)
      expect(text).toContain('governor_store_up 1')
      expect(text).toMatch(/governor_store_seconds_count [1-9]/)
    }
  })

  it('count all usage of the time without Redis', async () => {
    const cluster = await startCluster(runaway(), { budget: { max_iterations: 100 } }, '1s')
    const { replicas, redis, provider, tokens } = cluster
    let messages: ChatMessage[] = [...START]
    for (let at = 0; at < 12; at++) {
      if (at === 4) redis.freeze()
      if (at === 8) redis.thaw()
      const step = await callModel(urlOf(replicas[at % 4]), messages, { headers })
      messages = afterStep(messages, step)
    }
    expect(provider.requests).toHaveLength(12)
    await vi.waitFor(async () => expect(await tokens()).toBe(12 * PER_ANSWER), 20_000)
  })
})

describeWith('redis-server', 'a session that a newer version of Governor has stored', () => {
  it('is left as it is by an older one, which counts the run by its transcript and loses no request', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const config = { store: 'redis', redis: { url: redis.url, timeout: '5s' }, budget: { max_iterations: 4 } }
    const named = { headers: { 'x-governor-session': 'one' } }
    const first = await startGovernor(provider.url, config)
    const { messages } = await runAgent(first.url, START, { ...named, max: 2 })
    await first.governor.close()
    const [name = ''] = (await redis.command('KEYS', 'governor:s:*')) as string[]
    await redis.command('HSET', name, 's', '99')
    const stored = await redis.command('HGETALL', name)
    const older = await startGovernor(provider.url, config)
    const { steps } = await runAgent(older.url, messages, { ...named, max: 5 })
    expect(steps.map(({ status }) => status)).toEqual([200, 200, 200])
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration'))).toEqual(['3/4', '4/4', '4/4'])
    expect(older.events).toContainEqual(expect.objectContaining({ kind: 'failed_open', reason: 'store' }))
    expect(await redis.command('HGETALL', name)).toEqual(stored)
  })
})
