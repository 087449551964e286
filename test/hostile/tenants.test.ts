/** Two tenants on one Governor: each gets what it would get alone, whatever the other does. */
import { once } from 'node:events'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import fc from 'fast-check'
import { afterAll, beforeAll, expect, it } from 'vitest'
import { ask } from '../support/admin.ts'
import { TOOLS } from '../support/agent.ts'
import { startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { type Answer, type ChatBody, completion } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { responseObject } from '../support/responses.ts'
import { TOOL } from '../support/responses-agent.ts'

/** More runs take longer and find more. */
const RUNS = Number(process.env['HOSTILE_RUNS'] ?? 8)

const TENANTS = ['ann', 'bob'] as const
type Tenant = (typeof TENANTS)[number]

/** One request of a tenant. */
interface Action {
  readonly tenant: Tenant
  readonly api: 'chat' | 'responses'
  /** The name of the session, which both tenants use; empty: none is sent. */
  readonly session: '' | 'shared' | '__proto__'
  /** Responses: the response that is continued. */
  readonly continues: 'own' | 'other' | 'none'
}

const action = fc.record({
  tenant: fc.constantFrom(...TENANTS),
  api: fc.constantFrom('chat' as const, 'responses' as const),
  session: fc.constantFrom('' as const, 'shared' as const, '__proto__' as const),
  continues: fc.constantFrom('own' as const, 'own' as const, 'other' as const, 'none' as const),
})

/** Requests of each credential so far: all that a tenant gets depends on its own alone. */
const counts = new Map<string, number>()
let provider: http.Server
let upstream = ''

/** Tells who asked, in its text, its calls and its ids; answers every fifth time, and else calls a tool. */
function answerOf(who: Tenant, number: number, mayCall: boolean): Answer {
  if (!mayCall || number % 5 === 0) return { text: `This is for ${who}, number ${number}.` }
  return { calls: [{ id: `call_${who}_${number}`, name: 'search', arguments: { query: `of ${who}` } }] }
}

beforeAll(async () => {
  provider = http.createServer(async (request, response) => {
    const parts: Buffer[] = []
    for await (const part of request) parts.push(part as Buffer)
    const json = JSON.parse(Buffer.concat(parts).toString()) as ChatBody
    const key = request.headers.authorization ?? ''
    const number = (counts.get(key) ?? 0) + 1
    counts.set(key, number)
    const who = TENANTS.find((name) => key.includes(name)) ?? 'ann'
    const answer = answerOf(who, number, json.tools !== undefined && json.tool_choice !== 'none')
    const reply =
      json.messages === undefined
        ? { ...responseObject(json, answer, number), id: `resp_${who}_${number}` }
        : completion(json, answer, number)
    response.writeHead(200, { 'content-type': 'application/json' }).end(JSON.stringify(reply))
  })
  await once(provider.listen(0, '127.0.0.1'), 'listening')
  upstream = `http://127.0.0.1:${(provider.address() as AddressInfo).port}`
})
afterAll(() => {
  provider.closeAllConnections()
  provider.close()
})

interface Item {
  readonly type?: string
  readonly call_id?: string
}
interface ReplyBody {
  readonly id?: string
  readonly output?: readonly Item[]
  readonly choices?: readonly {
    readonly message: { readonly tool_calls?: readonly { readonly id: string }[] }
  }[]
  readonly governor?: Record<string, unknown>
}

/** What a tenant's client remembers between its requests. */
interface Client {
  readonly histories: Map<string, unknown[]>
  readonly last: Map<string, ReplyBody>
}

function bodyOf({ tenant, api, session, continues }: Action, { histories, last }: Client): object {
  const place = `${api} ${session}`
  if (api === 'chat') {
    const history = histories.get(place) ?? [{ role: 'user', content: 'Find it.' }]
    histories.set(place, history)
    return { model: 'm', tools: TOOLS, messages: history }
  }
  const other = TENANTS.find((name) => name !== tenant)
  const before = continues === 'other' ? `resp_${other}_2` : continues === 'own' ? last.get(place)?.id : undefined
  const calls = (last.get(place)?.output ?? []).filter(({ type }) => type === 'function_call')
  const results = calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'found' }))
  const input = before && results.length > 0 ? results : 'Find it.'
  return { model: 'm', tools: [TOOL], input, ...(before ? { previous_response_id: before } : {}) }
}

function remember({ api, session, continues }: Action, { histories, last }: Client, reply: ReplyBody) {
  // An answer that ended the run is lost on the way now and then, and asked for again.
  if (reply.governor && continues !== 'own') return
  const place = `${api} ${session}`
  last.set(place, reply)
  const message = reply.choices?.[0]?.message
  if (!message) return
  const results = (message.tool_calls ?? []).map(({ id }) => ({
    role: 'tool',
    tool_call_id: id,
    content: 'found',
  }))
  const next = results.length > 0 ? results : [{ role: 'user', content: 'Go on.' }]
  histories.get(place)?.push(message, ...next)
}

const SHOWN = ['iteration', 'verdict', 'tier', 'loop', 'terminal-state', 'terminal-reason']

/** Without what differs between two runs: ids that Governor made, the second they were made in, and names that are hashes. */
function comparable(seen: object): unknown {
  const text = JSON.stringify(seen, (key, value) => (key === 'session' || /^created/.test(key) ? undefined : value))
  return JSON.parse(text.replace(/(?<=[a-z][-_])[0-9a-f]{24,}/g, '#'))
}

/** All that a tenant gets of its requests, in order. `keys`: the credential of each tenant. */
async function run(url: string, actions: readonly Action[], keys: Readonly<Record<Tenant, string>>) {
  const clients = new Map(TENANTS.map((name) => [name, { histories: new Map(), last: new Map() } as Client]))
  const got: { tenant: Tenant; seen: unknown }[] = []
  for (const one of actions) {
    const client = clients.get(one.tenant) as Client
    const response = await fetch(`${url}/v1/${one.api === 'chat' ? 'chat/completions' : 'responses'}`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        authorization: `Bearer ${keys[one.tenant]}`,
        ...(one.session === '' ? {} : { 'x-governor-session': one.session }),
      },
      body: JSON.stringify(bodyOf(one, client)),
    })
    const reply = (await response.json()) as ReplyBody
    remember(one, client, reply)
    const headers = SHOWN.map((name) => response.headers.get(`x-governor-${name}`))
    got.push({ tenant: one.tenant, seen: comparable({ status: response.status, headers, reply }) })
  }
  return got
}

const CONFIG = { budget: { max_iterations: 2 } }

/** Compares both tenants on one Governor with each alone; every run has keys of its own. */
async function expectApart(url: string) {
  let runs = 0
  let stops = 0
  await fc.assert(
    fc.asyncProperty(fc.array(action, { minLength: 12, maxLength: 30 }), async (actions) => {
      runs++
      const both = await run(url, actions, { ann: `ann-both-${runs}`, bob: `bob-both-${runs}` })
      for (const name of TENANTS) {
        const own = actions.filter(({ tenant }) => tenant === name)
        const alone = await run(url, own, { ann: `ann-alone-${runs}`, bob: `bob-alone-${runs}` })
        const mine = both.filter(({ tenant }) => tenant === name)
        expect(mine).toEqual(alone)
        expect(JSON.stringify(mine.map(({ seen }) => seen))).not.toContain(
          `for ${TENANTS.find((other) => other !== name)}`,
        )
        stops += mine.filter(({ seen }) => JSON.stringify(seen).includes('tool_limit_reached')).length
      }
    }),
    { numRuns: RUNS },
  )
  // Runs ended, and their answers were repeated.
  expect(stops).toBeGreaterThan(0)
}

it('nothing that one tenant does changes what another gets, with sessions of the same names, continued responses and repeated answers', async () => {
  const { url } = await startGovernor(upstream, CONFIG)
  await expectApart(url)
})

/** Every place for a credential, as it is added to the headers or to the query of a request. */
const PLACES: Readonly<Record<string, (key: string) => { headers?: Record<string, string>; query?: string }>> = {
  authorization: (key) => ({ headers: { authorization: `Bearer ${key}` } }),
  'x-api-key': (key) => ({ headers: { 'x-api-key': key } }),
  'api-key': (key) => ({ headers: { 'api-key': key } }),
  'x-goog-api-key': (key) => ({ headers: { 'x-goog-api-key': key } }),
  '?key': (key) => ({ query: `?key=${key}` }),
  '?key after another': (key) => ({ query: `?alt=sse&key=${key}` }),
  '?api-key': (key) => ({ query: `?api-key=${key}` }),
  '?access_token': (key) => ({ query: `?access_token=${key}` }),
}

it.each(Object.keys(PLACES))('two credentials in %s are two tenants, and one is one', async (place) => {
  const { url } = await startGovernor(upstream)
  for (const key of ['ann', 'bob', 'ann']) {
    const { headers = {}, query = '' } = PLACES[place]?.(key) ?? {}
    const response = await fetch(`${url}/v1/chat/completions${query}`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-governor-session': 'shared', ...headers },
      body: JSON.stringify({ model: 'm', tools: TOOLS, messages: [{ role: 'user', content: 'Find it.' }] }),
    })
    await response.arrayBuffer()
  }
  const { json } = await ask(url, '/governor/sessions')
  const ids = (json as { sessions: { id: string }[] }).sessions.map(({ id }) => id.split('.')[1])
  expect(new Set(ids).size).toBe(2)
  expect(ids).toHaveLength(2)
})

describeWith(['redis-server', 'valkey-server'], 'sessions in Redis', () => {
  it('nothing that one tenant does changes what another gets', async () => {
    const redis = await startRedis()
    const { url } = await startGovernor(upstream, {
      ...CONFIG,
      store: 'redis',
      redis: { url: redis.url, timeout: '5s' },
    })
    await expectApart(url)
  })
})
