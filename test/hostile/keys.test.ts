/** Promise: access keys and the admin token go to nobody, and an upstream's key goes to that upstream alone. */
import fc from 'fast-check'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { type Answering, closeRaw, connect, listenAnswering, type Message, openGovernor } from '../support/raw.ts'

const RUNS = Number(process.env['HOSTILE_RUNS'] ?? 150)
const ACCESS = 'gk-an-access-key/of+a=team'
const SHORT = 'team-1'
const TOKEN = 'an-operators-token'
const SECRETS = [ACCESS, SHORT, TOKEN]

let upstream: Answering
let governor: Awaited<ReturnType<typeof openGovernor>>

beforeAll(async () => {
  upstream = await listenAnswering()
  const { url } = upstream
  governor = await openGovernor(
    url,
    {
      upstreams: {
        openai: { url },
        anthropic: { url: `${url}/deep`, api_key: 'held-anthropic' },
        keyed: { url, api_key: 'held-keyed' },
        gateway: { url, headers: { 'X-Api-Key': 'held-gateway' } },
        free: { url },
      },
      ops: { admin_token: TOKEN },
    },
    { access_keys: [ACCESS, SHORT], websocket: 'tunnel' },
  )
})
afterAll(() => closeRaw(governor, upstream))
beforeEach(() => {
  upstream.requests.length = 0
})

/** Every way to an upstream, by how it is chosen and by the key that Governor holds for it. */
const ROUTES: Readonly<Record<string, { readonly path: string; readonly held?: string }>> = {
  'the default': { path: '/v1/chat/completions' },
  'the default, an unknown path': { path: '/some/path.html' },
  'the default, a path of the root': { path: '/' },
  'the default by an absolute target': { path: 'http://any.example/v1/responses' },
  'the built-in one of Anthropic': { path: '/v1/messages', held: 'held-anthropic' },
  'a named one with a key': { path: '/keyed/v1/responses', held: 'held-keyed' },
  'a named one with a key, an unknown path': { path: '/keyed/v1/files', held: 'held-keyed' },
  'a named one with a key in a header': { path: '/gateway/v1/models', held: 'held-gateway' },
  'a named one without a key': { path: '/free/v1/chat/completions' },
  'a named one without a key, an unknown path': { path: '/free/x' },
}

/** Every kind of request. */
const METHODS: Readonly<Record<string, readonly string[]>> = {
  POST: ['Content-Type: application/json', 'Content-Length: 2'],
  GET: [],
  PUT: ['Content-Length: 2'],
  HEAD: [],
  OPTIONS: [],
  DELETE: [],
  'GET as a WebSocket': ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: a'],
  'POST as h2c': ['Connection: Upgrade, HTTP2-Settings', 'Upgrade: h2c', 'HTTP2-Settings: A', 'Content-Length: 2'],
}

const base64 = (text: string) => Buffer.from(text).toString('base64')
const escaped = (text: string) => text.replace(/./g, (one) => `%${one.charCodeAt(0).toString(16)}`)

/** Every place for a key in a request: header fields, or a parameter of the query. */
const PLACES: Readonly<Record<string, (key: string) => string>> = {
  'as a bearer token': (key) => `Authorization: Bearer ${key}`,
  'alone in Authorization': (key) => `authorization: ${key}`,
  'as a password': (key) => `Authorization: Basic ${base64(`user:${key}`)}`,
  'as a user': (key) => `Authorization: basic  ${base64(`${key}:`)}`,
  'in x-api-key': (key) => `x-api-key: ${key}`,
  'in api-key': (key) => `Api-Key: ${key}`,
  'in x-goog-api-key': (key) => `X-Goog-Api-Key: ${key}`,
  'in a cookie': (key) => `Cookie: a=b; session=${key}; c=d`,
  'escaped in a cookie': (key) => `Cookie: session=${escaped(key)}`,
  'in an unknown field': (key) => `X-Whatever: ${key}`,
  'among several values': (key) => `X-Api-Key: sk-client, ${key}, other`,
  'in the second of two fields': (key) => `X-Api-Key: sk-client\r\nX-Api-Key: ${key}`,
  'in a subprotocol': (key) => `Sec-WebSocket-Protocol: realtime, openai-insecure-api-key.${key}`,
  'in a Referer': (key) => `Referer: http://a/?key=${encodeURIComponent(key)}`,
  'in the query as key': (key) => `?key=${encodeURIComponent(key)}`,
  'in the query as it is': (key) => `?a=1&x=${key}&b=2`,
  'in the query, escaped': (key) => `?${escaped(key)}`,
  'in the query, escaped twice': (key) => `?api-key=${escaped(key).replaceAll('%', '%25')}&b`,
  'in the query as the name of a parameter': (key) => `?${encodeURIComponent(key)}=1`,
}

/** Sends one request with the values in places, and returns what the upstream got, if it got something. */
async function sent(path: string, kind: string, given: readonly string[]): Promise<Message | undefined> {
  upstream.requests.length = 0
  const [method = ''] = kind.split(' ')
  const query = given
    .filter((one) => one.startsWith('?'))
    .map((one) => one.slice(1))
    .join('&')
  const fields = [...(METHODS[kind] ?? []), ...given.filter((one) => !one.startsWith('?'))]
  const client = connect(governor.url)
  const target = query === '' ? path : `${path}?${query}`
  const body = fields.some((field) => field.startsWith('Content-Length')) ? '{}' : ''
  client.write([`${method} ${target} HTTP/1.1`, 'Host: localhost', ...fields, '', body].join('\r\n'))
  await client.message(method === 'HEAD')
  client.socket.destroy()
  return upstream.requests[0]
}

/** All that an upstream may read from a head: the bytes, without percent-encoding, and passwords. */
function readable({ line, fields }: Message): string {
  const text = [line, ...fields].join('\n')
  let plain = text
  for (let at = 0; at < 4; at++)
    plain = plain.replace(/%([0-9a-f]{2})/gi, (_, hex) => String.fromCharCode(Number.parseInt(hex, 16)))
  const passwords = [...plain.matchAll(/basic +(\S+)/gi)].map(([, one]) => Buffer.from(one ?? '', 'base64').toString())
  return [text, plain, ...passwords].join('\n')
}

function expectNoSecret(got: Message | undefined, held: string | undefined) {
  if (!got) throw new Error('the upstream got no request')
  const text = readable(got)
  for (const secret of SECRETS) expect(text).not.toContain(secret)
  for (const key of text.match(/held-\w+/g) ?? []) expect(key).toBe(held)
  if (held) expect(text).toContain(held)
}

describe.each(Object.entries(ROUTES))('a request to %s', (_, { path, held }) => {
  it.each(Object.keys(METHODS))('%s passes no access key and no admin token on, from any place', async (kind) => {
    for (const place of Object.values(PLACES)) {
      for (const secret of SECRETS) {
        const access = held ? [`X-Api-Key: ${ACCESS}`] : []
        expectNoSecret(await sent(path, kind, [...access, place(secret)]), held)
      }
    }
  })
})

describe('a value that only Governor may know', () => {
  const word = fc.stringMatching(/^[\w.~-]{0,8}$/)
  const place = fc.constantFrom(...Object.values(PLACES))
  it('is in no head that an upstream gets, whatever stands around it and wherever it is sent', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom(...Object.values(ROUTES)),
        fc.constantFrom(...Object.keys(METHODS)),
        fc.array(fc.tuple(place, word, fc.constantFrom(ACCESS, TOKEN), word), { minLength: 1, maxLength: 4 }),
        async ({ path, held }, kind, given) => {
          const values = given.map(([put, before, secret, after]) => put(before + secret + after))
          expectNoSecret(await sent(path, kind, [`X-Api-Key: ${ACCESS}`, ...values]), held)
        },
      ),
      { numRuns: RUNS },
    )
  })

  it('leaves all other fields and parameters as they were', async () => {
    const fields = ['X-A: 1', 'X-Team: team-10', 'Authorization: Bearer sk-client', 'Cookie: a=%7e', 'x-a: %zz']
    const got = await sent('/free/v1/models', 'GET', [
      '?b=%2B&&c&key=AIza=',
      ...fields,
      `X-Key: ${SHORT}`,
      `?k=${TOKEN}`,
    ])
    expect(got?.line).toBe('GET /v1/models?b=%2B&&c&key=AIza= HTTP/1.1')
    expect(got?.fields).toEqual(expect.arrayContaining(fields))
  })

  it('opens an upstream whose key Governor holds also from the query, as Google’s clients send it', async () => {
    const got = await sent('/keyed/v1/models', 'GET', [`?key=${encodeURIComponent(ACCESS)}`])
    expect(got?.line).toBe('GET /v1/models HTTP/1.1')
    expect(await sent('/keyed/v1/models', 'GET', ['?key=other'])).toBeUndefined()
  })
})
