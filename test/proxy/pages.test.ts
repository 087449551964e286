/** What web pages may do to a Governor that holds a key: nothing, unless the configuration says so. */
import OpenAI from 'openai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { startProvider } from '../support/provider.ts'
import { connect, fieldOf, startRaw } from '../support/raw.ts'

const ASK = JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'spend' }], tools: [{}] })

/** Sends a request as a page's browser would, and returns its answer and how many requests the provider got. */
async function asked(fields: readonly string[], server: object = {}, path = '/v1/chat/completions', method = 'POST') {
  const provider = await startProvider(() => ({ text: 'Yes.' }))
  onTestFinished(() => provider.close())
  const { url, events, until } = await startGovernor(provider.url, {
    server,
    upstreams: {
      openai: { url: provider.url, api_key: 'sk-own' },
      anthropic: { url: provider.url, headers: { 'x-api-key': 'sk-own' } },
      open: { url: provider.url },
    },
  })
  const client = connect(url)
  const head = [`${method} ${path} HTTP/1.1`, 'Content-Type: text/plain', `Content-Length: ${ASK.length}`, ...fields]
  client.write(`${head.join('\r\n')}\r\n\r\n${ASK}`)
  const answer = await client.message()
  client.socket.destroy()
  await until(({ kind }) => kind === 'request_ended')
  const { outcome } = events.find((event) => event.kind === 'request_ended') ?? {}
  return { line: answer.line, body: answer.body.toString(), calls: provider.requests.length, outcome }
}

const LOCAL = 'Host: 127.0.0.1:8787'

describe('a web page of another origin', () => {
  it.each([
    ...['https://evil.example', 'http://localhost:3000', 'null', 'chrome-extension://abc', 'http://127.0.0.1:1'],
  ])('cannot spend a key that Governor holds: %s', async (origin) => {
    const { line, body, calls, outcome } = await asked([LOCAL, `Origin: ${origin}`])
    expect(line).toBe('HTTP/1.1 403 Forbidden')
    expect(JSON.parse(body)).toEqual({
      error: {
        type: 'invalid_request_error',
        code: 'origin_not_allowed',
        param: null,
        message: expect.stringMatching(/server\.allowed_origins/),
      },
    })
    expect(body).toContain(origin)
    expect(calls).toBe(0)
    expect(outcome).toBe('refused')
  })

  it("is refused with an Anthropic error on Anthropic's path", async () => {
    const { line, body } = await asked([LOCAL, 'Origin: https://evil.example'], {}, '/v1/messages')
    expect(line).toBe('HTTP/1.1 403 Forbidden')
    expect(JSON.parse(body)).toEqual({
      type: 'error',
      error: { type: 'permission_error', message: expect.stringMatching(/server\.allowed_origins/) },
    })
  })

  it.each([
    ['https://app.example', ['https://app.example']],
    ['https://APP.example', ['https://app.example']],
    ['http://localhost:3000', ['http://localhost:*']],
    ['null', ['null']],
    ['vscode-webview://1a2b', ['https://app.example', 'vscode-webview://*']],
  ])('of the origin %s is accepted when server.allowed_origins is %j', async (origin, allowed) => {
    const { line, calls } = await asked([LOCAL, `Origin: ${origin}`], { allowed_origins: allowed })
    expect(line).toBe('HTTP/1.1 200 OK')
    expect(calls).toBe(1)
  })

  it('reaches an upstream for which it sends its own key', async () => {
    const fields = ['Host: rebound.example', 'Origin: https://app.example', 'Authorization: Bearer sk-client']
    const { line, calls } = await asked(fields, {}, '/open/v1/chat/completions')
    expect(line).toBe('HTTP/1.1 200 OK')
    expect(calls).toBe(1)
  })
})

describe.each([
  ['GET', '/v1/models'],
  ['POST', '/v1/chat/completions'],
  ['GET', '/anthropic/v1/x'],
  ['DELETE', '/v1/files/1'],
])('a request of a browser without an origin: %s %s', (method, path) => {
  it.each(['cross-site', 'same-site'])(
    'cannot spend a key that Governor holds from a page that is %s',
    async (site) => {
      const { line, body, calls } = await asked([LOCAL, `Sec-Fetch-Site: ${site}`], {}, path, method)
      expect(line).toBe('HTTP/1.1 403 Forbidden')
      expect(body).toMatch(/server\.allowed_origins/)
      expect(calls).toBe(0)
    },
  )

  it.each(['same-origin', 'none'])('is accepted from Governor itself or from a person: %s', async (site) => {
    expect((await asked([LOCAL, `Sec-Fetch-Site: ${site}`], {}, path, method)).line).toBe('HTTP/1.1 200 OK')
  })

  it('is accepted from a page of an allowed origin', async () => {
    const fields = [LOCAL, 'Origin: https://app.example', 'Sec-Fetch-Site: cross-site']
    const server = { allowed_origins: ['https://app.example'] }
    expect((await asked(fields, server, path, method)).line).toBe('HTTP/1.1 200 OK')
  })
})

describe('a host name that now resolves to a Governor on loopback (DNS rebinding)', () => {
  it.each(['rebound.example:8787', 'localhost.evil.example', '127.0.0.1.evil.example', 'a b', '192.168.1.5'])(
    'cannot spend a key that Governor holds: %s',
    async (host) => {
      const { line, body, calls } = await asked([`Host: ${host}`, `Origin: http://${host}`])
      expect(line).toBe('HTTP/1.1 403 Forbidden')
      expect(JSON.parse(body)).toMatchObject({
        error: { code: 'host_not_allowed', message: expect.stringMatching(/server\.allowed_hosts/) },
      })
      expect(calls).toBe(0)
    },
  )

  it.each([
    ['localhost:8787', {}],
    ['LOCALHOST', {}],
    ['app.localhost:8787', {}],
    ['[::1]:8787', {}],
    ['127.0.0.2', {}],
    ['governor.internal:80', { allowed_hosts: ['*.internal'] }],
    // Compose: other containers reach it by its service name.
    ['governor:8787', { host: '0.0.0.0' }],
  ])('is not assumed for the host %s with server settings %j', async (host, server) => {
    const { line, calls } = await asked([`Host: ${host}`], server)
    expect(line).toBe('HTTP/1.1 200 OK')
    expect(calls).toBe(1)
  })
})

it('a page of Governor’s own address is accepted, but not a page of a name that only resolves to it', async () => {
  const own = await asked(['Host: localhost:8787', 'Origin: http://localhost:8787'])
  expect(own.line).toBe('HTTP/1.1 200 OK')
  const rebound = ['Host: rebound.example:8787', 'Origin: http://rebound.example:8787']
  expect((await asked(rebound, { host: '0.0.0.0' })).line).toBe('HTTP/1.1 403 Forbidden')
})

it('a valid access key replaces the checks of origin and host', async () => {
  const fields = ['Host: any.example', 'Origin: https://any.example']
  const server = { access_keys: ['mine'] }
  expect((await asked([...fields, 'Authorization: Bearer mine'], server)).line).toBe('HTTP/1.1 200 OK')
  expect((await asked([...fields, 'Authorization: Bearer other'], server)).line).toBe('HTTP/1.1 401 Unauthorized')
})

it('a WebSocket of a web page cannot spend a key that Governor holds', async () => {
  const upstream = await startRaw()
  const { url } = await startGovernor(upstream.url, {
    upstreams: { openai: { url: upstream.url, api_key: 'sk-own' } },
  })
  for (const fields of [[LOCAL, 'Origin: https://evil.example'], ['Host: rebound.example']]) {
    const client = connect(url)
    const wishes = ['Connection: Upgrade', 'Upgrade: websocket', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==']
    client.write(`${['GET /v1/realtime HTTP/1.1', ...fields, ...wishes].join('\r\n')}\r\n\r\n`)
    const answer = await client.message()
    expect(answer.line).toBe('HTTP/1.1 403 Forbidden')
    expect(fieldOf(answer, 'content-type')).toBe('application/json')
    expect(answer.body.toString()).toMatch(/server\.allowed_(?:origins|hosts)/)
    await client.closed
  }
})

it('a request of the openai package is not mistaken for one of a web page', async () => {
  const provider = await startProvider(() => ({ text: 'Hello.' }))
  onTestFinished(() => provider.close())
  const { url } = await startGovernor(provider.url, {
    upstreams: { openai: { url: provider.url, api_key: 'sk-own' } },
  })
  const client = new OpenAI({ apiKey: 'none', baseURL: `${url}/v1`, maxRetries: 0 })
  const { choices } = await client.chat.completions.create({
    model: 'm',
    messages: [{ role: 'user', content: 'Hi' }],
  })
  expect(choices[0]?.message.content).toBe('Hello.')
})
