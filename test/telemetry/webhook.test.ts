/** What a receiver of webhooks gets, over real sockets, verified by the library of the standard. */
import { createServer, type IncomingHttpHeaders } from 'node:http'
import type { AddressInfo } from 'node:net'
import fc from 'fast-check'
import { Webhook } from 'standardwebhooks'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { ProxyEvent, WebhookOutcome, WebhookTopic } from '../../src/telemetry/event.ts'
import { createWebhook, type WebhookOptions } from '../../src/telemetry/webhook.ts'
import { ask } from '../support/admin.ts'
import { afterStep, callModel, runAgent, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { type ChatMessage, runaway, startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'

const SECRET = 'a secret of the receiver'

interface Received {
  readonly headers: IncomingHttpHeaders
  readonly body: string
}

type Body = Record<string, unknown>

/** Starts a receiver for the current test; `answer` gives the status of each request, from 1. */
async function startReceiver(answer: (number: number, body: Body) => number | 'hang' = () => 204) {
  const received: Received[] = []
  const waiting = new Set<() => void>()
  let [open, most] = [0, 0]
  const server = createServer(async (request, response) => {
    most = Math.max(most, ++open)
    response.on('close', () => open--)
    let body = ''
    for await (const chunk of request) body += chunk
    received.push({ headers: request.headers, body })
    const status = answer(received.length, JSON.parse(body) as Body)
    if (status !== 'hang') response.writeHead(status, { location: '/elsewhere' }).end()
    for (const look of waiting) look()
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  onTestFinished(() => {
    server.closeAllConnections()
    server.close()
  })
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}/hook`,
    received,
    /** How many messages were under way at the same time. */
    most: () => most,
    /** Resolves with the received messages once there are so many. */
    until: (count: number) =>
      new Promise<readonly Received[]>((resolve) => {
        const look = () => {
          if (received.length >= count) resolve(received)
        }
        waiting.add(look)
        look()
      }),
  }
}

/** A question to an operator, open until `until`; `apiId` makes it another session. */
const question = (apiId: string, until: number): ProxyEvent => ({
  kind: 'operator_asked',
  session: 'one',
  apiId,
  meter: 'iterations',
  used: 2,
  max: 2,
  seconds: 20,
  until,
})

const STOPPED: ProxyEvent = { kind: 'stopped', reason: 'max_iterations', by: 'model', session: 'one' }

/**
 * A webhook for the current test, which waits a millisecond between attempts, and the outcomes that it reported. On a
 * machine that stands still no attempt is given up before the receiver sees it.
 */
function startWebhook(url: string, options: Partial<WebhookOptions> = {}) {
  const outcomes: ProxyEvent[] = []
  const webhook = createWebhook(
    { url, secret: SECRET, on: ['stopped', 'error_storm', 'asking', 'near_limit', 'unknown_price'] },
    {
      now: Date.now,
      newId: () => String(Math.random()),
      pageOf: (id) => `http://governor.example/governor/#${id}`,
      isFirst: async () => true,
      emit: (event) => outcomes.push(event),
      backOff: [1, 1],
      timeout: 600_000,
      ...options,
    },
  )
  onTestFinished(() => webhook.close())
  return { webhook, outcomes }
}

const body = ({ body: text }: Received) => JSON.parse(text) as Body

const sent = (topic: WebhookTopic, outcome: WebhookOutcome) => ({ kind: 'webhook_sent', topic, outcome })

describeWith('redis-server', 'the webhooks of two replicas on one Redis', () => {
  it('report once that a run nears its limit, whichever replica each of its requests goes to', async () => {
    const { url: hook, until } = await startReceiver()
    const { url: redis } = await startRedis()
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const start = () =>
      startGovernor(provider.url, {
        store: 'redis',
        redis: { url: redis, timeout: '5s' },
        budget: { max_iterations: 10 },
        loop_guard: { enabled: false },
        events: { webhook: { url: hook, secret: SECRET } },
      })
    const replicas = [await start(), await start()]
    let messages: readonly ChatMessage[] = START
    for (let at = 0; at < 11; at++) {
      const step = await callModel(replicas[at % 2]?.url ?? '', messages, {
        headers: { 'x-governor-session': 'one' },
      })
      messages = afterStep(messages, step)
    }
    const sentTypes = (await until(3)).map((message) => `${body(message)['type']} ${body(message)['tier']}`)
    expect(sentTypes.toSorted()).toEqual(['near_limit caution', 'near_limit warning', 'stopped undefined'])
  })
})

describe('a webhook', () => {
  it('reports once that a run nears its limit and once that it is stopped, with signatures that the standard’s library accepts', async () => {
    const { url: hook, until } = await startReceiver()
    const { url, until: untilEvent } = await startBoth(
      ({ json }) =>
        json.tool_choice === 'none'
          ? { text: 'All I know.' }
          : { calls: [{ name: 'search', arguments: `{"query":"${Math.random()}"}` }] },
      { budget: { max_iterations: 6 }, events: { webhook: { url: hook, secret: SECRET } } },
    )
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' } })
    const messages = await until(3)
    for (const { headers, body: text } of messages)
      new Webhook(Buffer.from(SECRET).toString('base64')).verify(text, headers as Record<string, string>)
    expect(messages.map(body)).toEqual([
      expect.objectContaining({ type: 'near_limit', session: 'one', tier: 'caution', scope: 'run' }),
      expect.objectContaining({ type: 'near_limit', session: 'one', tier: 'warning', meter: 'iterations' }),
      expect.objectContaining({
        type: 'stopped',
        session: 'one',
        reason: 'max_iterations',
        text: expect.stringContaining('one'),
      }),
    ])
    await untilEvent(({ kind }) => kind === 'webhook_sent')
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toMatch(/governor_webhook_messages_total\{topic="near_limit",outcome="delivered"\} [12]/)
  })

  it('says of each limit of a day that it is nearly used, and once more where an operator has raised it', async () => {
    const { url: hook, until } = await startReceiver()
    const { url } = await startBoth(
      runaway(),
      {
        models: [{ model: '*', price: { input: 90, output: 100 } }],
        budget: { day: { max_cost_usd: 0.2, max_iterations: 16 } },
        events: { webhook: { url: hook, secret: SECRET, on: ['near_limit'] } },
      },
      { now: () => Date.parse('2026-11-27T12:00:00Z') },
    )
    const told = async (count: number) =>
      (await until(count)).map(body).map(({ meter, max, share }) => `${meter} ${max} ${share}`)
    await runAgent(url, START, { max: 16 })
    expect((await told(3)).toSorted()).toEqual(['cost 0.2 0.75', 'iterations 16 0.75', 'iterations 16 0.95'])
    await ask(url, '/governor/budget', { method: 'PATCH', body: { scope: 'day', max_iterations: 26 } })
    await runAgent(url, [{ role: 'user', content: 'Another task.' }], { max: 4 })
    expect((await told(5)).slice(3).toSorted()).toEqual(['cost 0.2 0.95', 'iterations 26 0.75'])
  })

  it('says once for all sessions, and not for each, that a limit of a day is nearly used', async () => {
    const { url: hook, until } = await startReceiver()
    const { url, events } = await startBoth(
      runaway(),
      {
        budget: { time_zone: 'UTC', day: { max_iterations: 12 } },
        events: { webhook: { url: hook, secret: SECRET, on: ['near_limit', 'stopped'] } },
      },
      { now: () => Date.parse('2026-11-27T12:00:00Z') },
    )
    for (let at = 1; at <= 4; at++)
      await runAgent(url, START, { headers: { 'x-governor-session': `agent ${at}` }, max: at === 4 ? 4 : 3 })
    const cautions = events.filter((event) => event.kind === 'request_ended' && event.tier !== undefined)
    expect(new Set(cautions.map((event) => 'session' in event && event.session)).size).toBeGreaterThan(2)
    const texts = (await until(3)).map((message) => body(message)['text'])
    expect(texts.toSorted()).toEqual([
      '75 % of a limit is used: 9 of 12 iterations today. It begins anew at 2026-11-28T00:00:00.000Z.',
      '95 % of a limit is used: 12 of 12 iterations today. It begins anew at 2026-11-28T00:00:00.000Z.',
      expect.stringMatching(/^Governor stopped a run of session agent 4/),
    ])
  })

  it('names the session of a request that was too large, once', async () => {
    const { url: hook, until, received } = await startReceiver()
    const message =
      "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens."
    const { url } = await startBoth(
      () => ({ status: 400, body: { error: { message, code: 'context_length_exceeded' } } }),
      { events: { webhook: { url: hook, secret: SECRET, on: ['overflow'] } } },
    )
    for (const name of ['one', 'one', 'two']) await callModel(url, START, { headers: { 'x-governor-session': name } })
    await until(2)
    const messages = received.map((one) => body(one))
    expect(messages).toMatchObject([
      { type: 'overflow', session: 'one', upstream: 'openai', recovery: 'shrink_context' },
      { type: 'overflow', session: 'two', upstream: 'openai', recovery: 'shrink_context' },
    ])
  })

  it('writes names of clients and models into its sentence so that a chat shows them and does no more', async () => {
    const { url: hook, until } = await startReceiver()
    const { webhook } = startWebhook(hook)
    const session = `<!channel>\u202e\u0000&${'x'.repeat(10_240)}`
    webhook.record({ kind: 'stopped', reason: 'operator', by: 'model', session })
    const [first] = await until(1)
    const { text } = body(first ?? { headers: {}, body: '{}' })
    expect(text).toMatch(/^Governor stopped a run of session ·!channel····x{51}: operator\.$/)
  })

  it('tells once of a run that waits for an operator', async () => {
    const { url: hook, until } = await startReceiver()
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 2 },
      stop: { mode: 'ask', ask_timeout: '1s' },
      events: { webhook: { url: hook, secret: SECRET, on: ['asking', 'stopped'] } },
    })
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' } })
    expect((await until(2)).map(body)).toMatchObject([
      { type: 'asking', session: 'one', meter: 'iterations', used: 2, max: 2, seconds: 1 },
      { type: 'stopped', session: 'one', reason: 'max_iterations' },
    ])
  })

  it('reports a blocked call even if the block ends the run', async () => {
    const { url: hook, until } = await startReceiver()
    const { url } = await startBoth(
      ({ json }) =>
        json.tool_choice === 'none'
          ? { text: 'All I know.' }
          : { calls: [{ name: 'search', arguments: '{"query":"the same"}' }] },
      { events: { webhook: { url: hook, secret: SECRET, on: ['loop_blocked', 'stopped'] } } },
    )
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' } })
    expect((await until(2)).map(body)).toEqual([
      expect.objectContaining({ type: 'loop_blocked', session: 'one', loop: 'repetition', tool: 'search' }),
      expect.objectContaining({ type: 'stopped', session: 'one', reason: 'loop_guard' }),
    ])
  })

  it.each(['slack', 'discord'] as const)(
    'is one line and a link in the form of %s, without a secret, and calls nobody and hides no link by a name',
    async (format) => {
      const { url: hook, until } = await startReceiver()
      const { url } = await startBoth(runaway(), {
        budget: { max_iterations: 1 },
        ops: { url: 'https://governor.example' },
        events: { webhook: { url: hook, format, on: ['stopped'] } },
      })
      const name = '<!channel> @everyone [a bill](https://evil.example)'
      await runAgent(url, START, { headers: { 'x-governor-session': name } })
      const [message] = await until(1)
      const { text, content, ...rest } = body(message as Received)
      const said = String(format === 'slack' ? text : content)
      expect(said).not.toContain('\n')
      expect(said).toContain('Governor stopped a run')
      expect(said).not.toContain('<!channel>')
      expect(said).toMatch(
        format === 'slack'
          ? /<https:\/\/governor\.example\/governor\/#s\S+\|Open it>$/
          : / https:\/\/governor\.example\/governor\/#s\S+$/,
      )
      if (format === 'discord') expect(said).not.toMatch(/[^\\]\[/)
      expect(rest).toEqual(format === 'discord' ? { allowed_mentions: { parse: [] } } : {})
      expect(message?.headers['webhook-signature']).toBeUndefined()
    },
  )

  it('reports a refused agent and a pause, and the log has a line of each', async () => {
    const { url: hook, until } = await startReceiver()
    const { url, logs } = await startBoth(
      ({ json }) => {
        if (json.messages.some(({ role }) => role === 'tool')) return { text: 'Done.' }
        return { calls: ['one', 'two'].map((prompt) => ({ name: 'Task', arguments: { prompt } })) }
      },
      { budget: { session: { max_agents: 1 } }, events: { webhook: { url: hook, secret: SECRET } } },
    )
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' } })
    await fetch(`${url}/governor/pause`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: '{}',
    })
    expect((await until(2)).map(body)).toEqual([
      expect.objectContaining({ type: 'loop_blocked', session: 'one', loop: 'max_agents', tool: 'Task' }),
      expect.objectContaining({ type: 'paused', action: 'pause' }),
    ])
    await expect.poll(() => logs.join(''), { timeout: 20_000 }).toMatch(/"call blocked"[\s\S]*"operator paused agents"/)
  })

  it('contains no prompt, no tool argument and no key', async () => {
    const { url: hook, until } = await startReceiver()
    const { url } = await startBoth(
      ({ json }) =>
        json.tool_choice === 'none'
          ? { text: 'All I know.' }
          : { calls: [{ name: 'search', arguments: '{"query":"an argument"}' }] },
      { budget: { max_iterations: 2 }, events: { webhook: { url: hook, secret: SECRET } } },
    )
    await runAgent(url, [{ role: 'user', content: 'a prompt' }], {
      headers: { 'x-governor-session': 'one', authorization: 'Bearer a-key' },
    })
    const texts = (await until(2)).map(({ body: text }) => text).join('\n')
    expect(texts).not.toMatch(/an argument|a prompt|a-key/)
  })

  it('repeats a message with the same id until the receiver accepts it', async () => {
    const { url, until } = await startReceiver((number) => (number < 3 ? 500 : 200))
    const { webhook } = startWebhook(url)
    webhook.record(STOPPED)
    const ids = (await until(3)).map(({ headers }) => headers['webhook-id'])
    expect(new Set(ids).size).toBe(1)
  })

  it('gives up a message after its last attempt, and logs that', async () => {
    const { url, received, until } = await startReceiver((_, { session }) => (session === 'one' ? 302 : 200))
    const { webhook, outcomes } = startWebhook(url)
    webhook.record(STOPPED)
    webhook.record({ ...STOPPED, session: 'two' })
    await until(4)
    expect(received.map((one) => body(one)['session']).sort()).toEqual(['one', 'one', 'one', 'two'])
    await expect.poll(() => outcomes).toContainEqual(sent('stopped', 'failed'))
  })

  it('sends one message per subject, and none about topics that are not configured', async () => {
    const { url, received, until } = await startReceiver()
    const { webhook } = startWebhook(url)
    webhook.record({ kind: 'failed_open', reason: 'store' })
    webhook.record(STOPPED)
    webhook.record(STOPPED)
    webhook.record({ kind: 'storm_answered', upstream: 'openai', status: 529 })
    await until(2)
    expect(received.map((one) => body(one)['type']).sort()).toEqual(['error_storm', 'stopped'])
  })

  it('drops messages when a thousand are waiting, and counts them', async () => {
    const { url } = await startReceiver(() => 'hang')
    const { webhook, outcomes } = startWebhook(url)
    for (let at = 0; at < 1_100; at++) webhook.record({ ...STOPPED, session: String(at) })
    expect(outcomes).toHaveLength(100)
    expect(outcomes[0]).toEqual(sent('stopped', 'dropped'))
  })

  it('sends the next messages while the receiver does not answer one, eight at the same time', async () => {
    const { url, most } = await startReceiver((_, { session }) => (session === 'one' ? 204 : 'hang'))
    // On a machine that stands still an attempt is given up before the receiver sees it: there are many.
    const { webhook, outcomes } = startWebhook(url, { backOff: Array.from({ length: 25 }, () => 10), timeout: 2_000 })
    for (let at = 0; at < 12; at++) webhook.record({ ...STOPPED, session: `hangs ${at}` })
    webhook.record(STOPPED)
    const patience = { timeout: 40_000 }
    await expect.poll(() => outcomes, patience).toEqual([sent('stopped', 'delivered')])
    await expect.poll(most, patience).toBeGreaterThanOrEqual(8)
    // A receiver may see the next message before the end of the one that was given up.
    expect(most()).toBeLessThan(12)
  })

  it('sends any question at once, whatever other messages and questions the receiver refuses or does not answer', async () => {
    const trouble = fc.array(fc.constantFrom('refused', 'hanging', 'a question'), { maxLength: 40 })
    await fc.assert(
      fc.asyncProperty(trouble, async (before) => {
        const { url, received, until } = await startReceiver((_, { session_id: id }) =>
          id === 'hanging' ? 'hang' : id === 'refused' ? 500 : 204,
        )
        const { webhook } = startWebhook(url, { backOff: [600_000] })
        const hour = Date.now() + 3_600_000
        for (const [at, one] of before.entries())
          webhook.record(
            one === 'a question' ? question('refused', hour + at) : { ...STOPPED, session: String(at), apiId: one },
          )
        webhook.record(question('the last', hour))
        const questions = before.filter((one) => one === 'a question').length + 1
        await until(questions)
        await expect.poll(() => received.filter((one) => body(one)['type'] === 'asking').length).toBe(questions)
      }),
      { numRuns: 20 },
    )
  })

  it('drops a question whose time is over, before its first attempt and before each further one', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url, received, until } = await startReceiver((number) => {
      if (number === 8) time.now += 30_000
      return 500
    })
    const { webhook, outcomes } = startWebhook(url, { now: () => time.now })
    for (let at = 0; at < 40; at++) webhook.record(question(String(at), time.now + 20_000 + at))
    await until(8)
    await expect.poll(() => outcomes.length).toBe(40)
    expect(new Set(outcomes.map((one) => JSON.stringify(one)))).toEqual(
      new Set([JSON.stringify(sent('asking', 'dropped'))]),
    )
    expect(received.length).toBeLessThan(40)
  })

  it('asks again in a later run of the session that reaches the same limit', async () => {
    const { url, until } = await startReceiver()
    const { webhook } = startWebhook(url)
    webhook.record(question('s1', Date.now() + 20_000))
    webhook.record(question('s1', Date.now() + 90_000))
    expect(await until(2)).toHaveLength(2)
  })

  it('tells two tenants apart that use one name for their sessions, and reports each', async () => {
    const { url: hook, until } = await startReceiver()
    const { url } = await startBoth(runaway(), {
      budget: { max_iterations: 1 },
      events: { webhook: { url: hook, secret: SECRET, on: ['stopped'] } },
    })
    for (const key of ['one', 'two'])
      await runAgent(url, START, {
        headers: { 'x-governor-session': 'build', authorization: `Bearer ${key}` },
      })
    const messages = (await until(2)).map(body)
    expect(messages.map(({ session }) => session)).toEqual(['build', 'build'])
    const { sessions } = (await (await fetch(`${url}/governor/sessions`)).json()) as {
      sessions: { id: string }[]
    }
    expect(messages.map(({ session_id: id }) => id).sort()).toEqual(sessions.map(({ id }) => id).sort())
  })

  it.each(['warn', 'estimate', 'refuse'] as const)(
    'reports once that the price of a model is not known where a limit on cost is set to %s',
    async (handling) => {
      const { url, received, until } = await startReceiver()
      const { webhook } = startWebhook(url)
      const of = { kind: 'unpriced_model', upstream: 'openai', model: '<!channel>' } as const
      for (const how of [undefined, handling, handling]) webhook.record({ ...of, handling: how })
      webhook.record(STOPPED)
      const [first] = (await until(2)).map(body)
      expect(first).toMatchObject({ type: 'unknown_price', upstream: 'openai', unknown_price: handling })
      expect(first?.['text']).toContain('price of model ·!channel· at openai is not known')
      expect(received).toHaveLength(2)
    },
  )

  it.each([
    ['user:password', 'user:password'],
    ['user:p%40ss%20word', 'user:p@ss word'],
    ['user:50%', 'user:50%'],
    ['user', 'user:'],
  ])('sends %s of its address as basic authentication', async (given, expected) => {
    const { url, until } = await startReceiver()
    const { webhook } = startWebhook(url.replace('//', `//${given}@`))
    webhook.record(STOPPED)
    const [message] = await until(1)
    expect(message?.headers.authorization).toBe(`Basic ${Buffer.from(expected).toString('base64')}`)
  })

  it.each([
    ['iterations', 7, 10, '7 of 10'],
    ['tool_calls', 6, 8, '6 of 8'],
    ['tokens', 1_400_000, 2_000_000, '1.4M of 2M'],
    ['cost', 4.6, 5, '$4.60 of $5.00'],
    ['seconds', 280.4, 300, '280s of 300s'],
    ['context', 110_000, 128_000, '110k of 128k'],
  ] as const)('says how much of the limit on %s is used, and not of another', async (name, used, max, place) => {
    const { url, until } = await startReceiver()
    const { webhook } = startWebhook(url)
    const request = {
      upstream: 'openai',
      dialect: 'chat',
      method: 'POST',
      path: '/',
      status: 200,
      totalMs: 1,
    }
    webhook.record({
      kind: 'request_ended',
      outcome: 'completed',
      ...request,
      session: 'one',
      iteration: 6,
      maxIterations: 300,
      verdict: 'warn',
      tier: 'caution',
      meter: { name, used, max },
    })
    const [message] = (await until(1)).map(body)
    expect(message).toMatchObject({ meter: name, used, max, iteration: 6, max_iterations: 300 })
    expect(message?.['text']).toContain(`limit of ${name.replace('_', ' ')} (caution): ${place}.`)
  })

  it('ends at once with Governor, even while a receiver does not answer', async () => {
    const { url, until } = await startReceiver(() => 'hang')
    const outcome = new Promise<ProxyEvent>((resolve) => {
      const { webhook } = startWebhook(url, { emit: resolve, backOff: [600_000] })
      webhook.record(STOPPED)
      until(1).then(() => webhook.close())
    })
    expect(await outcome).toMatchObject({ outcome: 'dropped' })
  })
})

it('fifty messages that wait for their next attempt cause no warning about listeners', async () => {
  const warnings: Error[] = []
  const note = (warning: Error) => void warnings.push(warning)
  process.on('warning', note)
  onTestFinished(() => void process.off('warning', note))
  const receiver = await startReceiver(() => 500)
  const { webhook } = startWebhook(receiver.url, { backOff: [600_000] })
  for (let at = 0; at < 50; at++) webhook.record(question(`s${at}`, Date.now() + 3_600_000))
  await receiver.until(50)
  // A warning comes in the next tick.
  await new Promise((resolve) => setImmediate(resolve))
  expect(warnings).toEqual([])
})
