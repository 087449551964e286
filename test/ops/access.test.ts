import { networkInterfaces } from 'node:os'
import { describe, expect, it } from 'vitest'
import { ask } from '../support/admin.ts'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'

const TOKEN = 'an-operators-token'
const bearer = (token: string) => ({ authorization: `Bearer ${token}` })

const ROUTES = [
  ['GET', '/governor/sessions'],
  ['GET', '/governor/sessions/sabc.0123456789abcdef'],
  ['POST', '/governor/sessions/sabc.0123456789abcdef/stop'],
  ['GET', '/governor/openapi.json'],
  ['GET', '/governor/nothing'],
] as const

async function started(ops: object, server: object = {}) {
  const both = await startBoth(runaway(), { ops, server })
  await runAgent(both.url, START, { max: 3, headers: { 'x-governor-session': 'a secret name' } })
  return both
}

describe('the API of sessions', () => {
  it('answers requests from loopback if no token is configured', async () => {
    const { url } = await started({})
    expect((await ask(url, '/governor/sessions')).status).toBe(200)
  })

  it('answers requests with the token, whatever their host and origin', async () => {
    const { url } = await started({ admin_token: TOKEN, trust_loopback: false })
    const headers = { ...bearer(TOKEN), host: 'governor.example', origin: 'https://evil.example' }
    expect((await ask(url, '/governor/sessions', { headers })).status).toBe(200)
  })

  it.each([
    ['a wrong token', bearer('an-operators-tokem')],
    ['an empty token', { authorization: 'Bearer ' }],
    ['another scheme', { authorization: `Basic ${TOKEN}` }],
    ['no token', {}],
  ])('answers %s with 401 and no data if loopback is not trusted', async (_, headers) => {
    const { url } = await started({ admin_token: TOKEN, trust_loopback: false })
    const replies = await Promise.all(ROUTES.map(([method, path]) => ask(url, path, { method, headers })))
    expect(replies.map(({ status }) => status)).toEqual(ROUTES.map(() => 401))
    // The same text for existing and unknown sessions.
    expect(new Set(replies.map(({ text }) => text)).size).toBe(1)
    expect(replies[0]?.headers['www-authenticate']).toBe('Bearer realm="governor"')
  })

  it('rejects a wrong token from loopback as well, and names the variable that has the right one', async () => {
    const { url } = await started({ admin_token: TOKEN })
    const { status, text } = await ask(url, '/governor/sessions', { headers: bearer('wrong') })
    expect(status).toBe(401)
    expect(text).toContain('This is not the admin token. Send that of GOVERNOR_ADMIN_TOKEN as Authorization: Bearer.')
    expect((await ask(url, '/governor/sessions')).status).toBe(200)
  })

  it.each([
    ['a foreign host, as DNS rebinding has it', { host: 'evil.example' }],
    ['a host that only begins like loopback', { host: '127.0.0.1.evil.example' }],
    ['a foreign origin', { origin: 'https://evil.example' }],
    ['an opaque origin', { origin: 'null' }],
    ['a page on another port of this machine', { origin: 'http://127.0.0.1:1' }],
    ['a cross-site request without an origin', { 'sec-fetch-site': 'cross-site' }],
    ['a page of another port without an origin', { 'sec-fetch-site': 'same-site' }],
    ['a request that a reverse proxy passed on', { 'x-forwarded-for': '203.0.113.9' }],
  ])('rejects %s without the token', async (_, headers) => {
    const { url } = await started({})
    for (const [method, path] of ROUTES) expect((await ask(url, path, { method, headers })).status, path).toBe(401)
  })

  it('answers its own page and names of loopback', async () => {
    const { url } = await started({})
    const { port } = new URL(url)
    for (const host of [`localhost:${port}`, `[::1]:${port}`, `127.0.0.1:${port}`]) {
      const headers = { host, origin: `http://${host}`, 'sec-fetch-site': 'same-origin' }
      expect((await ask(url, '/governor/sessions', { headers })).status, host).toBe(200)
    }
  })

  it('rejects other machines without the token', async () => {
    const address = Object.values(networkInterfaces())
      .flat()
      .find((one) => one && !one.internal && one.family === 'IPv4')?.address
    const { url } = await started({ admin_token: TOKEN }, { host: '0.0.0.0' })
    const there = url.replace('0.0.0.0', address ?? '127.0.0.1')
    const isHere = address === undefined
    expect((await ask(there, '/governor/sessions')).status).toBe(isHere ? 200 : 401)
    expect((await ask(there, '/governor/sessions', { headers: bearer(TOKEN) })).status).toBe(200)
  })

  it('accepts only JSON bodies, so that a form of another page cannot act', async () => {
    const { url } = await started({})
    const headers = { 'content-type': 'text/plain' }
    const reply = await ask(url, ROUTES[2][1], { method: 'POST', headers, body: {} })
    expect(reply.status).toBe(415)
    expect(reply.text).toContain('content-type: application/json')
  })

  it("shows a client's own name for a session to clients that may stop it", async () => {
    const { url } = await started({ admin_token: TOKEN })
    const { json } = await ask(url, '/governor/sessions')
    expect(json).toMatchObject({ sessions: [{ name: 'a secret name' }] })
  })

  it("shows a client's own name only with the token where ops.names says so, and does not search in it", async () => {
    const { url } = await started({ admin_token: TOKEN, names: 'token' })
    for (const query of ['q=secret', 'id=a%20sec'])
      expect((await ask(url, `/governor/sessions?${query}`)).json).toMatchObject({ total: 0 })
    const open = await ask(url, '/governor/sessions')
    expect(open.text).not.toContain('a secret name')
    const withToken = await ask(url, '/governor/sessions', { headers: bearer(TOKEN) })
    expect(withToken.json).toMatchObject({ sessions: [{ name: 'a secret name' }] })
  })
})

describe('/metrics', () => {
  it('is public if no token is configured', async () => {
    const { url } = await started({})
    expect((await ask(url, '/metrics', { headers: { host: 'governor.example' } })).status).toBe(200)
  })

  it('requires the token or loopback if a token is configured', async () => {
    const { url } = await started({ admin_token: TOKEN })
    const foreign = { host: 'governor.example' }
    expect((await ask(url, '/metrics', { headers: foreign })).status).toBe(401)
    expect((await ask(url, '/metrics', { headers: { ...foreign, ...bearer(TOKEN) } })).status).toBe(200)
    expect((await ask(url, '/metrics')).status).toBe(200)
  })

  it('is public if ops.metrics_public is true', async () => {
    const { url } = await started({ admin_token: TOKEN, metrics_public: true, trust_loopback: false })
    expect((await ask(url, '/metrics')).status).toBe(200)
    expect((await ask(url, '/governor/sessions')).status).toBe(401)
  })
})
