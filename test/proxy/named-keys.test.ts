/** Access keys with a name: who has used what, and which models a key allows. */
import { hash } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { describe, expect, it, onTestFinished } from 'vitest'
import { run } from '../../src/cli/cli.ts'
import { checkConfig } from '../../src/config/load.ts'
import { ask, firstSession, listed } from '../support/admin.ts'
import { callModel, runAgent, START, TOOLS } from '../support/agent.ts'
import { startGovernor } from '../support/governor.ts'
import { launch } from '../support/process.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'
import { captureTerminal } from '../support/terminal.ts'

const sha256 = (text: string) => hash('sha256', text, 'hex')
const KEYS = [
  { name: 'anna', key: 'key-of-anna', models: ['gpt-*'] },
  { name: 'bob', key_sha256: sha256('key-of-bob').toUpperCase() },
  { name: 'anna', key: 'new-key-of-anna' },
  'shared-key',
]
const keyed = (key: string) => ({ authorization: `Bearer ${key}` })

function temporaryFolder(): string {
  const made = mkdtempSync(join(tmpdir(), 'governor-keys-'))
  onTestFinished(() => rmSync(made, { recursive: true, force: true }))
  return made
}

async function started(script: Script = runaway(), config: Record<string, unknown> = {}) {
  const provider = await startProvider(script)
  onTestFinished(() => provider.close())
  const held = { url: provider.url, api_key: 'sk-own' }
  const running = await startGovernor(provider.url, {
    server: { access_keys: KEYS },
    upstreams: { openai: held, anthropic: held, free: { url: provider.url } },
    models: [{ model: '*', price: { input: 1_000, output: 1_000 } }],
    ...config,
  })
  return { ...running, provider }
}

describe('a named key', () => {
  it.each(['key-of-anna', 'key-of-bob', 'new-key-of-anna', 'shared-key'])(
    'is accepted, and never goes upstream: %s',
    async (key) => {
      const { url, provider, logs } = await started()
      expect((await callModel(url, START, { headers: keyed(key) })).status).toBe(200)
      // An upstream whose key the client has: nobody else may see an access key there.
      await callModel(`${url}/free`, START, { headers: keyed(key) })
      expect(provider.requests).toHaveLength(2)
      expect(JSON.stringify(provider.requests.map(({ rawHeaders }) => rawHeaders))).not.toContain(key)
      expect(logs.join('')).not.toContain(key)
    },
  )

  it('is refused with 401 where it is not known', async () => {
    const { url, provider } = await started()
    for (const key of ['key-of-eve', sha256('key-of-bob')])
      expect((await callModel(url, START, { headers: keyed(key) })).status).toBe(401)
    expect(provider.requests).toHaveLength(0)
  })

  it('names who has used what: in rows, log, metrics and report; two keys of one name are one', async () => {
    const journal = join(temporaryFolder(), 'usage.jsonl')
    const { url, governor, logs } = await started(runaway(), { usage: { journal } })
    for (const [session, key] of [
      ['a', 'key-of-anna'],
      ['b', 'new-key-of-anna'],
      ['c', 'key-of-bob'],
      ['d', 'shared-key'],
    ] as const)
      await callModel(url, START, { headers: { ...keyed(key), 'x-governor-session': session } })
    expect((await listed(url, '?sort=newest')).map(({ name, key }) => `${name} ${key}`).sort()).toEqual([
      ...['a anna', 'b anna', 'c bob', 'd null'],
    ])
    expect((await listed(url, '?key=anna')).map(({ name }) => name).sort()).toEqual(['a', 'b'])
    expect((await listed(url, '?q=bob')).map(({ name }) => name)).toEqual(['c'])
    const { text } = await ask(url, '/metrics')
    expect(text).toContain('governor_key_requests_total{key="anna",status="200"} 2')
    expect(text).toContain('governor_key_tokens_total{key="bob"} 110')
    expect(text).toContain('governor_key_cost_usd_total{key="anna"} 0.22')
    expect(logs.filter((line) => line.includes('"key":"anna"'))).toHaveLength(2)
    await governor.close()
    const terminal = captureTerminal()
    expect(await run(['report', '--by', 'key', '--journal', journal, '--json'], terminal)).toBe(0)
    const lines = terminal.printed
      .trimEnd()
      .split('\n')
      .map((line) => JSON.parse(line))
    expect(Object.fromEntries(lines.map(({ key, cost_usd }) => [key, cost_usd]))).toEqual({
      ...{ anna: 0.22, bob: 0.11, 'without a name': 0.11 },
    })
  })

  it('can be paused by its name', async () => {
    const { url } = await started()
    await ask(url, '/governor/pause', { method: 'POST', body: { key: 'anna' } })
    for (const [key, isPaused] of [
      ['key-of-anna', true],
      ['new-key-of-anna', true],
      ['key-of-bob', false],
    ] as const)
      expect((await callModel(url, START, { headers: keyed(key) })).governor !== undefined, key).toBe(isPaused)
  })
})

const BODIES = [
  { path: '/v1/chat/completions', body: { messages: START, tools: TOOLS }, type: 'invalid_request_error' },
  {
    path: '/v1/chat/completions',
    body: { messages: [{ role: 'user', content: 'A title?' }] },
    type: 'invalid_request_error',
  },
  { path: '/v1/responses', body: { input: 'Go.' }, type: 'invalid_request_error' },
  {
    path: '/v1/messages',
    body: { messages: [{ role: 'user', content: 'Go.' }], max_tokens: 9 },
    type: 'permission_error',
  },
  { path: '/v1/messages/count_tokens', body: { messages: [] }, type: 'permission_error' },
  {
    path: '/v1/publishers/anthropic/models/count-tokens:rawPredict',
    body: { messages: [] },
    type: 'invalid_request_error',
  },
  { path: '/v1/embeddings', body: { input: 'x' }, type: 'invalid_request_error' },
]

describe.each(BODIES)('a key that allows some models, at $path', ({ path, body, type }) => {
  it.each([false, true])(
    'gets 403 with the name of any other model, in the shape of the API (stream: %s)',
    async (stream) => {
      const { url, provider } = await started(() => ({ body: { id: 'x' } }))
      const post = (model: string) =>
        ask(url, path, { method: 'POST', headers: keyed('key-of-anna'), body: { model, stream, ...body } })
      const { status, json } = await post('claude-opus')
      expect(status).toBe(403)
      expect(json).toMatchObject({ error: { type, message: expect.stringContaining('the model claude-opus') } })
      expect(provider.requests).toHaveLength(0)
      expect((await post('gpt-test')).status).toBe(200)
      expect(provider.requests).toHaveLength(1)
    },
  )
})

describe('a key that allows some models', () => {
  it.each(['{"model":', 'no JSON', '{}', JSON.stringify({ model: 'gpt-test', padding: 'x'.repeat(70_000) })])(
    'gets 403 where the model cannot be read',
    async (body) => {
      const { url, provider } = await started(runaway(), {
        server: { access_keys: KEYS, max_guarded_body: '64kb' },
      })
      for (const path of ['/v1/chat/completions', '/v1/embeddings']) {
        const reply = await fetch(url + path, { method: 'POST', headers: keyed('key-of-anna'), body })
        expect(reply.status).toBe(403)
        expect(await reply.json()).toMatchObject({ error: { code: 'model_not_allowed' } })
      }
      expect(provider.requests).toHaveLength(0)
    },
  )

  it.each([
    ...['/openai/v1beta/models/claude-opus:embedContent', '/openai/v1beta/models/claude-opus%3Apredict/'],
    '/openai/v1beta/models/gpt-test:predict/../claude-opus:batchGenerateContent%20',
    '/openai/v1beta/models/gpt-test:predict%2F..%2fclaude-opus:countTokens/.',
    ...['', '/', '%2f'].map((end) => `/v1/publishers/anthropic//models/claude-opus:rawPredict${end}`),
  ])('gets 403 for the model in the path %s, whatever model the body names', async (path) => {
    const { url, provider } = await started(() => ({ body: {} }))
    const post = (target: string) =>
      ask(url, target, { method: 'POST', headers: keyed('key-of-anna'), body: { model: 'gpt-test' } })
    const { status, json } = await post(path)
    expect(status).toBe(403)
    expect(json).toMatchObject({ error: { message: expect.stringContaining('the model claude-opus') } })
    expect(provider.requests).toHaveLength(0)
    expect((await post(path.replaceAll('claude-opus', 'gpt-test'))).status).toBe(200)
  })

  it.each([
    '/v1/publishers/anthropic/models/gpt-test%5C..%5Cclaude-opus:rawPredict',
    '/openai/v1beta/models/gpt-test%5C..%5Cclaude-opus:generateContent',
  ])('gets 403 for a model behind a backslash, which servers may take for a slash: %s', async (path) => {
    const { url, provider } = await started(() => ({ body: {} }))
    const body = { messages: START, contents: [{ role: 'user', parts: [{ text: 'x' }] }], max_tokens: 9 }
    expect((await ask(url, path, { method: 'POST', headers: keyed('key-of-anna'), body })).status).toBe(403)
    expect(provider.requests).toHaveLength(0)
  })

  const BODIES_THERE = [{ model: 'gpt-test' }, { model: 'opus' }, {}, 'no object'] as const
  it.each(['chat/completions', 'responses', 'embeddings', 'images/generations'])(
    'calls the deployment in the path of Azure, whatever model the body names (%s)',
    async (operation) => {
      const { url, provider } = await started(() => ({ body: {} }))
      const post = (path: string, given: object | string) => {
        const body = typeof given === 'string' ? given : { input: 'x', messages: START, tools: TOOLS, ...given }
        return ask(url, `${path}/${operation}?api-version=1`, { method: 'POST', headers: keyed('key-of-anna'), body })
      }
      for (const body of BODIES_THERE)
        expect(await post('/openai/deployments/opus', body)).toMatchObject({
          status: 403,
          json: { error: { message: expect.stringContaining('the model opus') } },
        })
      for (const path of ['/OpenAI/Deployments/opus', '/x/../openai/deployments/opus', '/openai\\deployments\\opus'])
        expect([403, 404]).toContain((await post(path, { model: 'gpt-test' })).status)
      for (const path of ['/openai/deployments/gpt-test/../opus', '/openai/deployments%2Fopus'])
        expect((await post(path, { model: 'gpt-test' })).status).toBe(403)
      expect(provider.requests).toHaveLength(0)
      for (const body of BODIES_THERE) expect((await post('/openai/deployments/gpt-test', body)).status).toBe(200)
      expect(provider.requests).toHaveLength(4)
    },
  )

  it('still reads lists of models, and opens no connection whose model is not known', async () => {
    const { url } = await started(runaway(), { server: { access_keys: KEYS, websocket: 'tunnel' } })
    expect((await fetch(`${url}/v1/models`, { headers: keyed('key-of-anna') })).status).toBe(200)
    const upgrade = { connection: 'upgrade', upgrade: 'websocket' }
    const { status } = await ask(url, '/v1/responses', { headers: { ...keyed('key-of-anna'), ...upgrade } })
    expect(status).toBe(403)
  })
})

describe('SIGHUP', () => {
  it('adds keys and revokes them, without a word about a restart', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const file = join(temporaryFolder(), 'governor.yaml')
    const write = (access_keys: readonly unknown[]) => {
      const openai = { url: provider.url, api_key: 'sk-own' }
      writeFileSync(file, JSON.stringify({ server: { port: 0, access_keys }, upstreams: { openai } }))
    }
    write([{ name: 'anna', key: 'old-key' }])
    const governor = launch(['--config', file])
    const url = String((await governor.line('listening'))['address'])
    const statusOf = async (key: string) => (await callModel(url, START, { headers: keyed(key) })).status
    expect([await statusOf('old-key'), await statusOf('new-key')]).toEqual([200, 401])
    write([{ name: 'anna', key: 'new-key' }])
    governor.child.kill('SIGHUP')
    await governor.line('policies reloaded')
    expect([await statusOf('old-key'), await statusOf('new-key')]).toEqual([401, 200])
    expect(governor.log.join('')).not.toContain('these keys have changed')
  })
})

describe('the configuration', () => {
  const check = (access_keys: unknown) => () => checkConfig({ server: { access_keys } }, 'file')

  it.each([
    [['one', 'one'], 'server.access_keys.1'],
    [['one', { name: 'a', key: 'one' }], 'server.access_keys.1'],
    [[{ name: 'a', key: 'one' }, 'two', { name: 'b', key_sha256: sha256('one') }], 'server.access_keys.2'],
    [[{ name: 'a', key: 'one', key_sha256: sha256('one') }], 'server.access_keys.0'],
    [[{ name: 'a' }], 'server.access_keys.0'],
    [[{ name: 'a b', key: 'one' }], 'server.access_keys.0'],
    [[{ name: 'a', key: 'one', modles: [] }], 'server.access_keys.0'],
  ])('refuses %j with its path, and shows no key', (keys, path) => {
    expect(check(keys)).toThrow(path)
    expect(check(keys)).not.toThrow(/"one"|found one/)
  })

  it('allows two keys of one name, for a rotation', () => {
    expect(
      check([
        { name: 'a', key: 'one' },
        { name: 'a', key: 'two' },
      ]),
    ).not.toThrow()
  })
})

it('a session keeps the name of the key of its newest request', async () => {
  const { url } = await started()
  await callModel(url, START, { headers: { ...keyed('key-of-bob'), 'x-governor-session': 's' } })
  expect((await firstSession(url)).key).toBe('bob')
})

describe('the budget of a named key', () => {
  const OWN = [
    { name: 'anna', key: 'key-of-anna', budget: { day: { max_iterations: 2 } } },
    { name: 'bob', key: 'key-of-bob' },
    { name: 'anna', key: 'new-key-of-anna' },
  ]
  const say = (url: string, key: string, text: string) =>
    callModel(url, [{ role: 'user', content: text }], { headers: keyed(key) })

  it('ends what goes beyond it, whichever key of the name is sent, in place of the limit of each key', async () => {
    const budget = { day: { per: 'key', max_iterations: 1 } }
    const { url, provider } = await started(() => ({ text: 'It is 42.' }), { server: { access_keys: OWN }, budget })
    expect((await say(url, 'key-of-anna', 'one')).governor).toBeUndefined()
    expect((await say(url, 'new-key-of-anna', 'two')).governor).toBeUndefined()
    const ended = await say(url, 'key-of-anna', 'three')
    expect(ended.governor).toMatchObject({ terminal_reason: 'max_iterations', scope: 'day', budget_max: 2 })
    expect((await say(url, 'key-of-bob', 'one')).governor).toBeUndefined()
    expect((await say(url, 'key-of-bob', 'two')).governor).toMatchObject({ scope: 'day', budget_max: 1 })
    expect(provider.requests).toHaveLength(3)
    const rows = (await ask(url, '/governor/budget')).json as { budget: readonly object[] }
    expect(rows.budget).toMatchObject([
      { scope: 'day', per: 'key', subject: 'bob', used: { iterations: 1 }, max: { iterations: 1 } },
      { scope: 'day', per: 'key', subject: 'anna', used: { iterations: 2 }, max: { iterations: 2 } },
    ])
  })

  it('holds for the steps of an agent, too, where budget.enabled is false', async () => {
    const budget = { enabled: false, max_iterations: 1 }
    const { url, provider } = await started(runaway(), { server: { access_keys: OWN }, budget })
    const { steps } = await runAgent(url, START, { headers: keyed('key-of-anna'), max: 5 })
    expect(steps.map(({ governor }) => governor?.['scope'])).toEqual([undefined, undefined, 'day'])
    expect((await say(url, 'key-of-anna', 'Go on.')).governor).toMatchObject({ scope: 'day', has_final_answer: false })
    expect(provider.requests).toHaveLength(3)
    expect(JSON.stringify(provider.requests.map(({ json }) => json))).not.toContain('[BUDGET')
    await runAgent(url, START, { headers: keyed('key-of-bob'), max: 5 })
    expect(provider.requests).toHaveLength(8)
  })

  it.each([true, false])('refuses a model without a price if asked to, with budget.enabled: %j', async (enabled) => {
    const access_keys = [{ name: 'anna', key: 'key-of-anna', budget: { day: { max_cost_usd: 1 } } }]
    const budget = { enabled, unknown_price: 'refuse' }
    const { url, provider } = await started(runaway(), { server: { access_keys }, budget, models: [] })
    const { governor } = await callModel(url, START, { headers: keyed('key-of-anna') })
    expect(governor).toMatchObject({ terminal_reason: 'max_cost', has_final_answer: false })
    expect(provider.requests).toHaveLength(0)
  })

  it('is raised by an operator for its name alone', async () => {
    const { url } = await started(() => ({ text: 'It is 42.' }), { server: { access_keys: OWN } })
    for (const text of ['one', 'two']) await say(url, 'key-of-anna', text)
    const body = { scope: 'day', subject: 'anna', max_iterations: 3 }
    expect(await ask(url, '/governor/budget', { method: 'PATCH', body })).toMatchObject({ status: 200 })
    expect((await say(url, 'key-of-anna', 'three')).governor).toBeUndefined()
    expect((await say(url, 'key-of-anna', 'four')).governor).toMatchObject({ budget_max: 3 })
    const other = await ask(url, '/governor/budget', { method: 'PATCH', body: { ...body, subject: 'bob' } })
    expect(other).toMatchObject({ status: 404, json: { error: { code: 'unknown_limit' } } })
  })

  it.each([
    [{ day: {} }, /server\.access_keys\.0.*sets no limit/],
    [{ day: { max_iterations: 1, per: 'model' } }, /server\.access_keys\.0.*unknown key/],
    [{ year: { max_iterations: 1 } }, /server\.access_keys\.0.*unknown key/],
  ])('says what is wrong with it, and where: %j', (budget, message) => {
    const access_keys = [{ name: 'anna', key: 'key-of-anna', budget }]
    expect(() => checkConfig({ server: { access_keys } }, 'test')).toThrow(message)
  })

  it('is one for all keys of a name, in any order of its limits', () => {
    const check = (...budgets: readonly object[]) => {
      const access_keys = budgets.map((budget, at) => ({ name: 'anna', key: `key-${at}-of-anna`, budget }))
      return () => checkConfig({ server: { access_keys } }, 'test')
    }
    const day = { max_iterations: 2 }
    expect(check({ day, hour: { max_runs: 1 } }, { hour: { max_runs: 1 }, day })).not.toThrow()
    expect(check({ day }, { day: { max_iterations: 3 } })).toThrow(
      /server\.access_keys\.1\.budget: .*not that of the other key of anna: expected one budget for a name/,
    )
  })
})
