/** Promise: only an operator reads and steers sessions, and nothing that is sent to Governor's own paths reaches an upstream. */
import fc from 'fast-check'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { ask } from '../support/admin.ts'
import { type Answering, closeRaw, connect, fieldOf, listenAnswering, openGovernor } from '../support/raw.ts'

const RUNS = Number(process.env['HOSTILE_RUNS'] ?? 300)
const TOKEN = 'an-operators-token'
const bearer = { authorization: `Bearer ${TOKEN}` }
const ID = 'sabc.0123456789abcdef'

let upstream: Answering
let governor: Awaited<ReturnType<typeof openGovernor>>

beforeAll(async () => {
  upstream = await listenAnswering()
  upstream.reply = 'HTTP/1.1 200 OK\r\nx-from: upstream\r\nContent-Length: 2\r\n\r\nok'
  const ops = { admin_token: TOKEN, trust_loopback: false }
  governor = await openGovernor(upstream.url, { ops }, { websocket: 'tunnel' })
})
afterAll(() => closeRaw(governor, upstream))
beforeEach(() => {
  upstream.requests.length = 0
})

/** Every route of Governor's own, and who may use it. */
const ROUTES: Readonly<Record<string, 'everyone' | 'operator'>> = {
  'GET /health': 'everyone',
  'GET /ready': 'everyone',
  'GET /metrics': 'operator',
  'GET /governor': 'everyone',
  'GET /governor/': 'operator',
  'GET /governor/page.js': 'everyone',
  'GET /governor/page.css': 'everyone',
  'GET /governor/openapi.json': 'operator',
  'GET /governor/events': 'operator',
  'GET /governor/sessions': 'operator',
  'GET /governor/sessions/:id': 'operator',
  'GET /governor/sessions/:id/transcript': 'operator',
  'POST /governor/sessions/:id/stop': 'operator',
  'POST /governor/sessions/:id/reset': 'operator',
  'POST /governor/sessions/:id/extend': 'operator',
  'PATCH /governor/sessions/:id/budget': 'operator',
  'PATCH /governor/sessions/:id/loop-guard': 'operator',
  'GET /governor/budget': 'operator',
  'GET /governor/usage': 'operator',
  'PATCH /governor/budget': 'operator',
  'GET /governor/pause': 'operator',
  'POST /governor/pause': 'operator',
  'POST /governor/resume': 'operator',
  'POST /governor/sign-in': 'operator',
  'POST /governor/sign-out': 'operator',
  'GET /governor/*': 'operator',
}
const entries = Object.entries(ROUTES).map(([route, who]) => {
  const [method = '', path = ''] = route.split(' ')
  return { route, method, who, path: path.replace(':id', ID).replace('*', 'sessions/%') }
})
const PATHS = [...new Set(entries.map(({ path }) => path))]

describe("Governor's own routes", () => {
  it('all have an entry here', () => {
    // Every method has the route for what there is not, and every route for GET has one for HEAD.
    const served = [...governor.routes].filter((route) => !/^HEAD |^(?!GET )\w+ \/governor\/\*$/.test(route))
    expect(served.sort()).toEqual(Object.keys(ROUTES).sort())
  })

  it.each(entries.filter(({ who }) => who === 'operator'))(
    '$route answers only a request with the token',
    async ({ method, path }) => {
      const wrong = [
        {},
        { authorization: 'Bearer wrong' },
        { authorization: `Basic ${TOKEN}` },
        { 'x-api-key': TOKEN },
        { cookie: `token=${TOKEN}` },
      ]
      for (const headers of wrong) {
        const { status, text } = await ask(governor.url, path, { method, headers })
        expect(status).toBe(401)
        if (path !== '/governor/') expect(JSON.parse(text)).toMatchObject({ error: { code: 'unauthorized' } })
      }
      const client = connect(governor.url)
      client.write(`${method} ${path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${TOKEN}\r\n\r\n`)
      expect((await client.until('\r\n\r\n')).toString()).not.toMatch(/^HTTP\/1.1 401/)
      client.socket.destroy()
    },
  )

  it('answer what they do not serve with one shape of error', async () => {
    const wrong = ['/governor/sessions/%', '/governor/%zz', '/governor/nothing', '/health/x', '//governor/sessions']
    const headers = { ...bearer, 'content-length': '7' }
    for (const path of wrong) {
      for (const method of ['GET', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'TRACE', 'PROPFIND']) {
        const { status, json } = await ask(governor.url, path, { method, headers, body: { a: 1 } })
        expect([status, json], `${method} ${path}`).toEqual([
          expect.toBeOneOf([400, 404]),
          { error: { type: expect.any(String), code: expect.any(String), message: expect.any(String) } },
        ])
      }
    }
  })
})

/** Ways to write a path that some server takes for the same. */
const SPELLINGS: Readonly<Record<string, (path: string) => string>> = {
  'as it is': (path) => path,
  'in capitals': (path) => path.toUpperCase(),
  'with one capital': (path) => path.replace(/^\/./, (start) => start.toUpperCase()),
  'after another slash': (path) => `/${path}`,
  'after many slashes': (path) => `////${path}`,
  'after a dot segment': (path) => `/.${path}`,
  'after an escaped dot segment': (path) => `/%2e${path}`,
  'behind another folder': (path) => `/v1/..${path}`,
  'behind the name of an upstream': (path) => `/openai/%2E%2e${path}`,
  'behind escaped slashes': (path) => `/a%2fb/../..${path}`,
  'behind slashes that are escaped twice': (path) => `/v1%252f..%252f..${path}`,
  'with an escaped first letter': (path) => path.replace(/^\/(.)/, (_, one) => `/%${one.charCodeAt(0).toString(16)}`),
  'with a letter that is escaped twice': (path) =>
    path.replace(/^\/(.)/, (_, one) => `/%25${one.charCodeAt(0).toString(16)}`),
  'with escaped slashes': (path) => `/${path.slice(1).replaceAll('/', '%2f')}`,
  'with backslashes': (path) => path.replaceAll('/', '\\').replace('\\', '/'),
  'with escaped backslashes': (path) => `/${path.slice(1).replaceAll('/', '%5C')}`,
  'after an escaped slash': (path) => `/%2F${path.slice(1)}`,
  'with a parameter in its first segment': (path) => path.replace(/^\/\w+/, '$&;x=1'),
  'with a query': (path) => `${path}?/v1/chat/completions`,
  'in an absolute target': (path) => `http://any.example${path}`,
  'in an absolute target, after another slash': (path) => `http://any.example/${path}`,
}

const METHODS = ['GET', 'HEAD', 'POST', 'PUT', 'PATCH', 'DELETE', 'OPTIONS', 'TRACE', 'PROPFIND', 'MKCOL']
const UPGRADES: Readonly<Record<string, string>> = {
  'no upgrade': '',
  'a WebSocket': 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n',
  h2c: 'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: A\r\n',
}

/** Sends a request with the token and returns the head of the answer; the upstream must not have got anything. */
async function expectKept(method: string, target: string, upgrade: string): Promise<void> {
  const client = connect(governor.url)
  client.write(`${method} ${target} HTTP/1.1\r\nHost: a\r\n${upgrade}Authorization: Bearer ${TOKEN}\r\n\r\n`)
  const head = (await client.until('\r\n\r\n')).toString('latin1')
  client.socket.destroy()
  const what = `${method} ${target}`
  expect(fieldOf({ fields: head.split('\r\n') }, 'x-from'), what).toBeUndefined()
  expect(head, what).toMatch(/^HTTP\/1\.1 [234]/)
  expect(upstream.requests, what).toEqual([])
}

describe.each(Object.entries(UPGRADES))("a request to one of Governor's own paths with %s", (_, upgrade) => {
  it.each(Object.keys(SPELLINGS))('never reaches an upstream, whatever its method: a path %s', async (name) => {
    for (const path of PATHS)
      for (const method of METHODS) await expectKept(method, SPELLINGS[name]?.(path) ?? path, upgrade)
  })
})

/** The first segment of a path for a server that decodes and resolves as much as any does. */
function firstResolved(path: string): string {
  let decoded = path
  for (let at = 0; at < 8; at++)
    decoded = decoded.replace(/%([0-9a-f]{2})/gi, (_, hex) => String.fromCharCode(Number.parseInt(hex, 16)))
  const kept: string[] = []
  for (const segment of decoded.replaceAll('\\', '/').split('/')) {
    if (segment === '..') kept.pop()
    else if (segment !== '.' && segment !== '') kept.push(segment)
  }
  return (kept[0] ?? '').toLowerCase()
}

it("no path that a server may resolve to one of Governor's own reaches an upstream", async () => {
  const reserved = ['governor', 'health', 'ready', 'metrics']
  const segment = fc.constantFrom(
    ...['governor', 'Health', '%72eady', 'METRIC%53', 'v1', 'x', '..', '.', '', '%2e', '%2E.', '%252e%252e'],
  )
  const separator = fc.constantFrom('/', '/', '/', '//', '%2f', '%252F', '\\', '%5c')
  const path = fc
    .array(fc.tuple(separator, segment), { minLength: 1, maxLength: 6 })
    .map((parts) => `/${parts.flat().join('').replace(/^\//, '')}`)
    .filter((text) => reserved.includes(firstResolved(text)))
  await fc.assert(
    fc.asyncProperty(
      path,
      fc.constantFrom(...METHODS),
      fc.constantFrom(...Object.values(UPGRADES)),
      async (target, method, upgrade) => {
        upstream.requests.length = 0
        await expectKept(method, target, upgrade)
      },
    ),
    { numRuns: RUNS },
  )
})

it.each(['/v1/models', '/v1/governor', '/openai/health', '/x/metrics?governor', '/v1/a%2fb', '/v1/x:y', '/governors'])(
  '%s is no path of Governor’s own and is relayed as it is',
  async (path) => {
    const { headers } = await ask(governor.url, path)
    expect(headers['x-from']).toBe('upstream')
    expect(upstream.requests[0]?.line).toBe(`GET ${path} HTTP/1.1`)
  },
)
