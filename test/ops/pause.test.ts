/** One switch: an operator pauses agents and resumes them. */
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import { withPause } from '../../src/core/operator/pause.ts'
import { createPauses } from '../../src/store/pauses.ts'
import type { Store } from '../../src/store/store.ts'
import { ask, firstSession, listed } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { startProcess } from '../support/process.ts'
import { describeWith } from '../support/programs.ts'
import { type Answer, runaway, startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { createStore } from '../support/stores.ts'
import { captureTerminal } from '../support/terminal.ts'
import { WAYS } from '../support/ways.ts'

const named = (name: string) => ({ headers: { 'x-governor-session': name } })
const set = (url: string, action: 'pause' | 'resume', body?: object, headers = {}) =>
  ask(url, `/governor/${action}`, { method: 'POST', body, headers })
const PAUSED = { terminal_state: 'stopped', terminal_reason: 'paused', has_final_answer: false }

function folder(): string {
  const made = mkdtempSync(join(tmpdir(), 'governor-pause-'))
  onTestFinished(() => rmSync(made, { recursive: true, force: true }))
  return made
}

async function called(url: string, ...args: readonly string[]) {
  const terminal = captureTerminal()
  const code = await run([...args, '--url', url], terminal)
  return { code, printed: terminal.printed, complaints: terminal.complaints }
}

describe('an agent that is paused while its request waits', () => {
  it('for an operator who says nothing gets the end state, and its run is not over', async () => {
    let goOn = () => {}
    const isPaused = new Promise<void>((resolve) => (goOn = resolve))
    const config = { budget: { max_iterations: 2 }, stop: { mode: 'ask', ask_timeout: '50ms' } }
    const { url, provider, until } = await startBoth(runaway(), config, { delay: () => isPaused })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    const held = callModel(url, messages, named('one'))
    await until(({ kind }) => kind === 'operator_asked')
    await set(url, 'pause')
    goOn()
    expect((await held).governor).toMatchObject(PAUSED)
    expect(provider.requests).toHaveLength(2)
    expect(await listed(url)).toMatchObject([{ iteration: 2, terminal_state: null }])
  })

  it.each([true, false])('for others in flight gets the end state, and holds nothing (tools: %s)', async (hasTools) => {
    let answer = (_: Answer) => {}
    const answered = new Promise<Answer>((resolve) => (answer = resolve))
    const day = { max_iterations: 1 }
    const options = { budget: { day }, stop: { ask_timeout: '10m' } }
    const { url, provider, events } = await startBoth(() => answered, options)
    const first = callModel(url, START)
    await expect.poll(() => provider.requests.length, { timeout: 20_000 }).toBe(1)
    const body = hasTools ? {} : { tools: undefined }
    const waiting = callModel(url, [{ role: 'user', content: 'Another task.' }], { body })
    await expect.poll(() => events.filter(({ kind }) => kind === 'request_began').length).toBe(2)
    await set(url, 'pause')
    await ask(url, '/governor/budget', { method: 'PATCH', body: { scope: 'day', max_iterations: 2 } })
    expect((await waiting).governor).toMatchObject(PAUSED)
    answer({ text: 'It is 42.' })
    await first
    expect(provider.requests).toHaveLength(1)
    const used = async () => (await ask(url, '/governor/budget')).json
    await expect.poll(used).toMatchObject({ budget: [{ used: { iterations: 1 }, reserved: { iterations: 0 } }] })
  })
})

describe.each(WAYS)('a paused agent ($way)', ({ script, run: runWay }) => {
  it.each([false, true])('gets the end state in a 200, and the model is not asked (stream: %s)', async (stream) => {
    const { url, provider } = await startBoth(script, { budget: { max_iterations: 4 } })
    await set(url, 'pause')
    const steps = await runWay(url, stream)
    expect(steps).toHaveLength(1)
    expect(steps[0]?.governor).toMatchObject(PAUSED)
    expect(steps[0]?.headers.get('x-governor-terminal-reason')).toBe('paused')
    expect(steps[0]?.headers.get('x-governor-verdict')).toBe('stop')
    expect(provider.requests).toHaveLength(0)
    expect(await listed(url)).toEqual([])
    await set(url, 'resume')
    const after = await runWay(url, stream)
    expect(after.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations', budget_used: 4 })
  })
})

const ASIDES = [
  { path: '/v1/chat/completions', body: { messages: [{ role: 'user', content: 'A title?' }] } },
  { path: '/v1/messages', body: { messages: [{ role: 'user', content: 'A title?' }], max_tokens: 9 } },
  { path: '/v1/responses', body: { input: 'A title?' } },
]

it.each(ASIDES)('a request of a paused agent without tools is not sent either ($path)', async ({ path, body }) => {
  const { url, provider } = await startBoth(() => ({ text: 'A title' }))
  await set(url, 'pause')
  for (const headers of [{}, { 'x-governor-session': 's' }]) {
    const reply = await ask(url, path, { method: 'POST', headers, body: { model: 'm', ...body } })
    expect(reply.status).toBe(200)
    expect(reply.json).toMatchObject({ governor: PAUSED })
  }
  expect(provider.requests).toHaveLength(0)
})

describe('a run that is paused in its middle', () => {
  it('goes on with its count once it is resumed, and nothing of the pause is recorded', async () => {
    const { url, provider } = await startBoth(
      runaway(),
      { budget: { max_iterations: 5 } },
      { now: () => 1_760_000_000_000 },
    )
    const { messages } = await runAgent(url, START, { ...named('one'), max: 3 })
    const before = await firstSession(url)
    await set(url, 'pause', { session: 'one' })
    for (let time = 0; time < 3; time++) {
      const step = await callModel(url, messages, named('one'))
      expect(step.governor).toMatchObject({ ...PAUSED, budget_used: 3, budget_max: 5, session: 'one' })
      expect(step.headers.get('x-governor-iteration')).toBe('3/5')
    }
    expect(await firstSession(url)).toEqual({ ...before, paused: true })
    await set(url, 'resume', { session: 'one' })
    const { steps } = await runAgent(url, messages, named('one'))
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration'))).toEqual(['4/5', '5/5', '5/5'])
    expect(provider.requests).toHaveLength(6)
  })

  it('says the text of the configuration, and is paused although Governor only observes', async () => {
    const { url } = await startBoth(runaway(), { mode: 'observe', stop: { paused_text: 'Paused at {used}.' } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    await set(url, 'pause')
    expect((await callModel(url, messages, named('one'))).message.content).toBe('Paused at 2.')
  })
})

describe('a pause', () => {
  it('holds for one session, one upstream, or all', async () => {
    const { url, provider } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 1 })
    const isPaused = async (session: string) => (await callModel(url, START, named(session))).governor !== undefined
    expect((await set(url, 'pause', { session: 'one', reason: 'too fast' })).json).toMatchObject({
      paused: [{ session: (await firstSession(url)).id, upstream: null, reason: 'too fast', until: null, hold: false }],
    })
    expect([await isPaused('one'), await isPaused('two')]).toEqual([true, false])
    await set(url, 'pause', { upstream: 'anthropic' })
    expect(await isPaused('two')).toBe(false)
    await set(url, 'pause', { upstream: 'openai' })
    expect(await isPaused('two')).toBe(true)
    expect((await set(url, 'resume', { upstream: 'openai' })).json).toMatchObject({
      paused: [{ reason: 'too fast' }, { upstream: 'anthropic' }],
    })
    expect([await isPaused('one'), await isPaused('two')]).toEqual([true, false])
    expect((await set(url, 'resume')).json).toEqual({ paused: [] })
    expect(await isPaused('one')).toBe(false)
    expect(provider.requests).toHaveLength(5)
  })

  it('ends by itself after its time', async () => {
    let time = 1_760_000_000_000
    const { url } = await startBoth(runaway(), {}, { now: () => time })
    const { json } = await set(url, 'pause', { for: '30m' })
    expect(json).toMatchObject({ paused: [{ until: new Date(time + 1_800_000).toISOString() }] })
    time += 1_799_999
    expect((await callModel(url, START)).governor).toMatchObject(PAUSED)
    time += 1
    expect((await callModel(url, START)).governor).toBeUndefined()
    expect((await ask(url, '/governor/pause')).json).toEqual({ paused: [] })
  })

  it('finds room among 100 others where it takes the place of one, or where they are over', async () => {
    let time = 1_760_000_000_000
    const { url } = await startBoth(runaway(), {}, { now: () => time })
    const names = Array.from({ length: 101 }, (_, at) => `s${at}`)
    await Promise.all(names.map((name) => callModel(url, START, named(name))))
    const statuses: number[] = []
    for (const session of names) statuses.push((await set(url, 'pause', { session, for: '30m' })).status)
    expect(statuses).toEqual([...Array.from({ length: 100 }, () => 200), 409])
    expect((await set(url, 'pause', { session: 's7', for: '10m' })).status).toBe(200)
    time += 1_800_000
    expect((await set(url, 'pause')).json).toMatchObject({ paused: [{ session: null, until: null }] })
  })

  it.each([
    [{ upstream: 'nowhere' }, 404, 'unknown_upstream'],
    [{ session: 'nobody' }, 404, 'unknown_session'],
    [{ key: 'nobody' }, 404, 'unknown_key'],
    [{ for: 'soon' }, 400, 'invalid_request'],
    [{ sesion: 'one' }, 400, 'invalid_request'],
  ])('of %j is refused, and nothing is paused', async (body, status, code) => {
    const { url } = await startBoth(runaway())
    const reply = await set(url, 'pause', body)
    expect([reply.status, (reply.json as { error: { code: string } }).error.code]).toEqual([status, code])
    expect((await ask(url, '/governor/pause')).json).toEqual({ paused: [] })
  })

  it.each([{ upstream: 'nowhere' }, { key: 'nobody' }, { upstream: 'openai' }, { session: 'one' }])(
    'that holds for no one is not resumed (%j), and neither log nor metrics say that it was',
    async (scope) => {
      const { url, logs } = await startBoth(runaway())
      await callModel(url, START, named('one'))
      await set(url, 'pause', { upstream: 'anthropic' })
      const reply = await set(url, 'resume', scope)
      expect([reply.status, reply.json]).toMatchObject([404, { error: { code: 'unknown_pause' } }])
      expect(logs.join('')).not.toContain('operator resumed agents')
      const flags = Object.entries(scope).flatMap(([name, value]) => [`--${name}`, value])
      expect(await called(url, 'resume', ...flags)).toMatchObject({
        code: 1,
        printed: '',
        complaints: expect.stringContaining('There is no such pause'),
      })
      expect((await ask(url, '/governor/pause')).json).toMatchObject({ paused: [{ upstream: 'anthropic' }] })
    },
  )

  it('of a session that is forgotten is resumed by what the command shows of its id', async () => {
    const { url } = await startBoth(runaway(), { sessions: { max: 1 } })
    await callModel(url, START, named('one'))
    const { printed } = await called(url, 'pause', '--session', 'one')
    await set(url, 'pause', { upstream: 'anthropic' })
    await callModel(url, START, named('two'))
    expect((await listed(url)).map(({ name }) => name)).toEqual(['two'])
    const [, shown = ''] = /session (s[\w-]+)/.exec(printed) ?? []
    expect(await called(url, 'resume', '--session', shown)).toMatchObject({
      complaints: '',
      printed: expect.stringMatching(/^PAUSED: upstream anthropic, since \d\d:\d\d\n$/),
    })
  })

  it('that is over cannot be resumed, and to resume all of them is no fault where there are none', async () => {
    let time = 1_760_000_000_000
    const { url } = await startBoth(runaway(), {}, { now: () => time })
    await set(url, 'pause', { upstream: 'openai', for: '30m' })
    time += 1_800_000
    expect((await set(url, 'resume', { upstream: 'openai' })).status).toBe(404)
    expect(await set(url, 'resume', {})).toMatchObject({ status: 200, json: { paused: [] } })
  })

  it.each(['{"model":', JSON.stringify({ model: 'm', padding: 'x'.repeat(70_000) })])(
    'answers a guarded request that cannot be read with 503 and a time to wait',
    async (body) => {
      const { url, provider } = await startBoth(() => ({ body: { choices: [] } }), {
        server: { max_guarded_body: '64kb' },
      })
      await set(url, 'pause', { for: '5m' })
      const reply = await fetch(`${url}/v1/chat/completions`, { method: 'POST', body })
      expect(reply.status).toBe(503)
      expect(Number(reply.headers.get('retry-after'))).toBe(60)
      expect(await reply.json()).toMatchObject({ error: { code: 'paused' } })
      expect(provider.requests).toHaveLength(0)
      await set(url, 'resume')
      await (await fetch(`${url}/v1/chat/completions`, { method: 'POST', body })).text()
      expect(provider.requests).toHaveLength(1)
    },
  )

  it('leaves what is not guarded alone', async () => {
    const { url, provider } = await startBoth(() => ({ body: {} }))
    await set(url, 'pause')
    expect((await fetch(`${url}/v1/embeddings`, { method: 'POST', body: '{}' })).status).toBe(200)
    expect(provider.requests).toHaveLength(1)
  })
})

describe('a pause with hold', () => {
  it('lets requests wait, without a byte, and go on once it is resumed', async () => {
    const { url, provider, until } = await startBoth(runaway(), { stop: { ask_timeout: '10m' } })
    const { messages } = await runAgent(url, START, { ...named('one'), max: 2 })
    await set(url, 'pause', { hold: true })
    const answer = callModel(url, messages, named('one'))
    await until(({ kind }) => kind === 'pauses_changed')
    expect(provider.requests).toHaveLength(2)
    await set(url, 'resume')
    expect((await answer).headers.get('x-governor-iteration')).toBe('3/300')
    expect((await answer).governor).toBeUndefined()
    expect(provider.requests).toHaveLength(3)
  })

  it('gives them the end after stop.ask_timeout, or once another pause holds nothing', async () => {
    const both = await startBoth(runaway(), { stop: { ask_timeout: '50ms' } })
    await set(both.url, 'pause', { hold: true })
    expect((await callModel(both.url, START)).governor).toMatchObject(PAUSED)
    const long = await startBoth(runaway(), { stop: { ask_timeout: '10m' } })
    await set(long.url, 'pause', { hold: true })
    const answer = callModel(long.url, START)
    await long.until(({ kind }) => kind === 'request_began')
    await set(long.url, 'pause', { upstream: 'openai' })
    expect((await answer).governor).toMatchObject(PAUSED)
    expect(long.provider.requests).toHaveLength(0)
  })

  it('ends the wait of a client that leaves, and of a Governor that ends', async () => {
    const both = await startBoth(runaway(), { stop: { ask_timeout: '10m' } })
    await set(both.url, 'pause', { hold: true })
    const leaving = new AbortController()
    const left = callModel(both.url, START, { signal: leaving.signal })
    await both.until(({ kind }) => kind === 'request_began')
    leaving.abort()
    await expect(left).rejects.toThrow()
    await both.until((event) => event.kind === 'request_ended' && event.outcome === 'client_gone')
    const other = callModel(both.url, START)
    const first = both.events.find(({ kind }) => kind === 'request_began')
    await both.until((event) => event.kind === 'request_began' && event !== first)
    const drained = both.governor.drain()
    expect((await other).governor).toMatchObject(PAUSED)
    expect(await drained).toBe(true)
    expect(both.provider.requests).toHaveLength(0)
  })
})

describe('what is paused', () => {
  it('is said in rows, summary, /ready, metrics, log and on the command line', async () => {
    const { url, logs } = await startBoth(runaway())
    await runAgent(url, START, { ...named('one'), max: 1 })
    expect((await ask(url, '/ready')).json).toEqual({ status: 'ready', store: { kind: 'memory', status: 'ok' } })
    const paused = await called(url, 'pause', '--session', 'one', '--for', '30m', '--reason', 'too fast')
    expect(paused).toMatchObject({ code: 0, complaints: '' })
    expect(paused.printed).toMatch(/^PAUSED: session s.{8}, since \d\d:\d\d, until \d\d:\d\d: too fast\n$/)
    expect((await ask(url, '/ready')).json).toMatchObject({ paused: 'part' })
    expect((await listed(url))[0]).toMatchObject({ paused: true })
    await called(url, 'pause')
    expect((await ask(url, '/ready')).json).toMatchObject({ paused: 'all' })
    const { printed } = await called(url, 'sessions')
    expect(printed).toMatch(/^PAUSED: session .+\nPAUSED: all agents, since .+\nSESSION/)
    expect(printed).toMatch(/one +paused /)
    expect((await called(url, 'top')).printed).toContain('paused')
    await callModel(url, START, named('one'))
    const metrics = (await ask(url, '/metrics')).text
    expect(metrics).toContain('governor_pauses 2')
    expect(metrics).toContain('governor_paused_requests_total{outcome="answered"} 1')
    expect(metrics).toContain('governor_operator_actions_total{action="pause"} 2')
    const log = logs.join('')
    expect(log).toContain('operator paused agents')
    expect(log).toContain('"reason":"too fast"')
    expect((await called(url, 'resume')).printed).toBe('nothing is paused\n')
    expect((await ask(url, '/metrics')).text).toContain('governor_pauses 0')
  })
})

describe('with an admin token', () => {
  it('this machine may look without it, but pauses, resumes and steers nothing', async () => {
    const { url } = await startBoth(runaway(), { ops: { admin_token: 'secret-token' } })
    const { id } = await runAgent(url, START, { ...named('one'), max: 1 }).then(() => firstSession(url))
    for (const path of ['/governor/pause', '/governor/resume', `/governor/sessions/${id}/extend`, '/governor/none'])
      expect((await ask(url, path, { method: 'POST', body: {} })).status, path).toBe(401)
    expect((await ask(url, `/governor/sessions/${id}/budget`, { method: 'PATCH', body: {} })).status).toBe(401)
    expect((await ask(url, '/governor/pause')).json).toEqual({ paused: [] })
    const token = { authorization: 'Bearer secret-token' }
    expect((await set(url, 'pause', {}, token)).status).toBe(200)
    expect((await callModel(url, START)).governor).toMatchObject(PAUSED)
  })
})

describe('a pause survives', () => {
  it('a kill, as it is in a file beside the journal that only its user can read', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const place = folder()
    const config = { usage: { journal: join(place, 'usage.jsonl') } }
    const first = await startProcess(provider.url, config)
    await set(first.url, 'pause', { reason: 'night' })
    const other = await startProcess(provider.url, config)
    first.child.kill('SIGKILL')
    await first.exitCode
    expect((await callModel(other.url, START)).governor).toMatchObject(PAUSED)
    await set(other.url, 'resume')
    other.child.kill('SIGKILL')
    await other.exitCode
    const last = await startProcess(provider.url, config)
    expect((await callModel(last.url, START)).governor).toBeUndefined()
    expect(JSON.parse(readFileSync(join(place, 'pauses.json'), 'utf8'))).toEqual({ version: 1, pauses: [] })
    expect(readdirSync(place).filter((name) => name !== 'usage.jsonl')).toEqual(['pauses.json'])
  })

  it('a restart also where another version has written fields that this one does not know', async () => {
    const stateFolder = folder()
    const pauseFile = join(stateFolder, 'pauses.json')
    writeFileSync(pauseFile, JSON.stringify({ version: 9, more: 1, pauses: [{ since: 5, colour: 'red' }, 7] }))
    const { url } = await startBoth(runaway(), {}, { stateFolder })
    expect((await callModel(url, START)).governor).toMatchObject(PAUSED)
  })

  it.each(['', '{"pauses":', '[]', '{"version":1}'])('no file that holds none (%j): it is set aside', async (text) => {
    const stateFolder = folder()
    const pauseFile = join(stateFolder, 'pauses.json')
    writeFileSync(pauseFile, text)
    const { url, logs } = await startBoth(runaway(), {}, { stateFolder })
    expect((await callModel(url, START)).governor).toBeUndefined()
    expect(readFileSync(`${pauseFile}.unreadable`, 'utf8')).toBe(text)
    expect(logs.filter((line) => line.includes('.unreadable'))).toHaveLength(1)
    await set(url, 'pause')
    expect(JSON.parse(readFileSync(pauseFile, 'utf8')).pauses).toHaveLength(1)
  })

  it('all of them, however many processes set one at once', async () => {
    const file = join(folder(), 'pauses.json')
    const upstreams = Array.from({ length: 24 }, (_, at) => `u${at}`)
    const failed = (problem: string) => expect.fail(problem)
    const made = upstreams.map((upstream) => {
      const pauses = createPauses({ store: createStore(1), kept: { file }, changed: () => undefined, failed })
      return pauses.change((before) => withPause(before, { upstream, since: 1 }))
    })
    await Promise.all(made)
    const { pauses } = JSON.parse(readFileSync(file, 'utf8')) as { pauses: readonly { upstream: string }[] }
    expect(pauses.map(({ upstream }) => upstream).sort()).toEqual(upstreams.toSorted())
  })

  it.each([
    ['while it is written', false],
    ['and says so after it was written', true],
  ])('a look that finds what was there before, %s', async (_, isLate) => {
    const store = createStore(1)
    let written = () => {}
    let isHeld = false
    let answer = () => {}
    const answered = new Promise<void>((resolve) => (answer = resolve))
    let looks = 0
    const slow: Store = {
      ...store,
      async value(kind, key) {
        const value = await store.value(kind, key)
        looks++
        if (isHeld && isLate) await answered
        return value
      },
      async updateValue(kind, key, change) {
        if (isHeld) await new Promise<void>((resolve) => (written = resolve))
        return store.updateValue(kind, key, change)
      },
    }
    const seen: number[] = []
    const changed = (now: readonly unknown[]) => seen.push(now.length)
    const pauses = createPauses({ store: slow, kept: 'store', changed, failed: (problem) => expect.fail(problem) })
    await pauses.open()
    onTestFinished(() => pauses.close())
    await pauses.change((before) => withPause(before, { since: 1 }))
    await pauses.change(() => [])
    isHeld = true
    const looked = looks
    const paused = pauses.change((before) => withPause(before, { since: 2 }))
    await expect.poll(() => looks).toBeGreaterThan(looked + 1)
    written()
    await paused
    answer()
    // A look that began after that one.
    const seenThen = looks
    await expect.poll(() => looks).toBeGreaterThan(seenThen)
    expect(seen).toEqual([1, 0, 1])
  })

  it('in memory alone where its file cannot be written, which is said once', async () => {
    const place = folder()
    writeFileSync(join(place, 'file'), '')
    const { url, logs } = await startBoth(runaway(), {}, { stateFolder: join(place, 'file') })
    await set(url, 'pause')
    await set(url, 'pause', { upstream: 'openai' })
    expect((await callModel(url, START)).governor).toMatchObject(PAUSED)
    expect(logs.filter((line) => line.includes('pauses are kept in memory alone'))).toHaveLength(1)
  })

  it('a file that could not be written, and can be when another one is set or ended', async () => {
    const stateFolder = join(folder(), 'file')
    writeFileSync(stateFolder, '')
    const { url } = await startBoth(runaway(), {}, { stateFolder })
    for (const upstream of ['openai', 'gemini']) await set(url, 'pause', { upstream })
    rmSync(stateFolder)
    mkdirSync(stateFolder)
    await set(url, 'pause', { upstream: 'anthropic' })
    await set(url, 'resume', { upstream: 'gemini' })
    expect((await callModel(url, START)).governor).toMatchObject(PAUSED)
    const { url: other } = await startBoth(runaway(), {}, { stateFolder })
    const paused = (await ask(other, '/governor/pause')).json
    expect(paused).toMatchObject({ paused: [{ upstream: 'openai' }, { upstream: 'anthropic' }] })
  })
})

describeWith('redis-server', 'a pause with several replicas', () => {
  it('holds on all of them when the operator has the reply, and after they are all started anew', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const another = () =>
      startGovernor(provider.url, { store: 'redis', redis: { url: redis.url, timeout: '5s' }, sessions: { ttl: '1s' } })
    const [one, two] = [await another(), await another()]
    await set(one.url, 'pause')
    expect((await callModel(two.url, START)).governor).toMatchObject(PAUSED)
    await one.governor.close()
    await two.governor.close()
    const three = await another()
    expect((await callModel(three.url, START)).governor).toMatchObject(PAUSED)
    const four = await another()
    await set(three.url, 'resume')
    expect((await callModel(four.url, START)).governor).toBeUndefined()
  })

  it('that is set while Redis fails holds on all of them, beside an earlier one, after Redis has lost both', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const another = () => startGovernor(provider.url, { store: 'redis', redis: { url: redis.url } })
    const both = [await another(), await another()]
    await set(both[0]?.url ?? '', 'pause', { upstream: 'anthropic' })
    await redis.kill()
    for (const { until } of both) await until((event) => event.kind === 'store_changed' && !event.isUp)
    await set(both[1]?.url ?? '', 'pause', { upstream: 'openai' })
    await redis.restart()
    for (const { url } of both) {
      const paused = async () => (await ask(url, '/governor/pause')).json
      await expect.poll(paused, { timeout: 10_000 }).toMatchObject({ paused: [{}, {}] })
    }
  })

  it('holds while Redis fails, also on one that did not set it, and after Redis has lost it', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const another = () => startGovernor(provider.url, { store: 'redis', redis: { url: redis.url } })
    const [one, two] = [await another(), await another()]
    await set(one.url, 'pause')
    await redis.kill()
    await two.until((event) => event.kind === 'store_changed' && !event.isUp)
    await redis.restart()
    const three = await another()
    const paused = async () => (await ask(three.url, '/governor/pause')).json
    await expect.poll(paused, { timeout: 10_000 }).toMatchObject({ paused: [{}] })
    for (const { url, events } of [one, two]) {
      expect((await callModel(url, START)).governor).toMatchObject(PAUSED)
      expect(events.filter(({ kind }) => kind === 'pauses_changed')).toMatchObject([{ pauses: 1 }])
    }
    await set(two.url, 'resume')
    for (const { url } of [one, two, three]) expect((await callModel(url, START)).governor).toBeUndefined()
    expect(provider.requests).toHaveLength(3)
  })
})
