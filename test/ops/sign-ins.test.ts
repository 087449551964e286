/** The cookie of the live page: who may use it, how long, and how many there are. */
import { IncomingMessage } from 'node:http'
import { Socket } from 'node:net'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createSignIns } from '../../src/ops/sign-ins.ts'
import { ask } from '../support/admin.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'

const TOKEN = 'an-operators-token'
const bearer = { authorization: `Bearer ${TOKEN}` }
const OWN = { 'sec-fetch-site': 'same-origin' }

async function signedIn(ops: object = {}) {
  const { url } = await startBoth(runaway(), { ops: { admin_token: TOKEN, trust_loopback: false, ...ops } })
  const reply = await ask(url, '/governor/sign-in', { method: 'POST', headers: { ...bearer, ...OWN } })
  const [set = ''] = reply.headers['set-cookie'] ?? []
  return { url, set, cookie: set.split(';')[0] ?? '' }
}

const GUARDED = [
  ['GET', '/governor/sessions'],
  ['GET', '/governor/openapi.json'],
  ['GET', '/governor/budget'],
  ['POST', '/governor/pause'],
  ['POST', '/governor/resume'],
  ['POST', '/governor/sign-in'],
  ['POST', '/governor/sign-out'],
] as const

async function statuses(url: string, headers: Readonly<Record<string, string>>) {
  const found = new Set<number>()
  for (const [method, path] of GUARDED.slice(0, -1)) found.add((await ask(url, path, { method, headers })).status)
  return [...found]
}

describe('the cookie of a sign-in', () => {
  it('has a random id, the port in its name, and is for scripts and other sites out of reach', async () => {
    const { url, set } = await signedIn()
    const name = `governor-${new URL(url).port}`
    expect(set).toMatch(new RegExp(`^${name}=[\\w-]{32}; Path=/governor; HttpOnly; SameSite=Strict$`))
    const again = await ask(url, '/governor/sign-in', { method: 'POST', headers: { ...bearer, ...OWN } })
    expect(again.headers['set-cookie']).not.toEqual([set])
    const tls = { ...bearer, ...OWN, 'x-forwarded-proto': 'https' }
    const secure = await ask(url, '/governor/sign-in', { method: 'POST', headers: tls })
    expect(secure.headers['set-cookie']?.[0]).toMatch(/; Secure$/)
  })

  it.each([
    ['the page itself', () => OWN],
    ['the page itself behind a proxy with TLS', () => ({ ...OWN, host: 'inner', origin: 'https://governor.example' })],
    ['the page in an older browser', (url: string) => ({ origin: url })],
  ])('is accepted from %s', async (_, headersOf) => {
    const { url, cookie } = await signedIn()
    expect(await statuses(url, { cookie, ...headersOf(url) })).toEqual([200])
  })

  it.each([
    ['a request without any of these headers', {}],
    ['a page of another site', { 'sec-fetch-site': 'cross-site', origin: 'https://evil.example' }],
    ['a page of another port', { 'sec-fetch-site': 'same-site', origin: 'http://127.0.0.1:1' }],
    ['a page of another port in an older browser', { origin: 'http://127.0.0.1:1' }],
    ['a link or an address that is typed', { 'sec-fetch-site': 'none' }],
    ['a sandboxed page', { origin: 'null' }],
    ['a page of another port that asks for an image', { 'sec-fetch-site': 'same-site', 'sec-fetch-dest': 'image' }],
    [
      'a WebSocket of a page of another port',
      {
        origin: 'http://127.0.0.1:1',
        connection: 'Upgrade',
        upgrade: 'websocket',
        'sec-websocket-key': 'YWJjZGVmZ2hpamtsbW5vcA==',
        'sec-websocket-version': '13',
      },
    ],
  ])('is refused from %s, for reading and events as well', async (_, headers) => {
    const { url, cookie } = await signedIn()
    expect(await statuses(url, { cookie, ...headers })).toEqual([401])
    expect((await ask(url, '/governor/events', { headers: { cookie, ...headers } })).status).toBe(401)
    const out = await ask(url, '/governor/sign-out', { method: 'POST', headers: { cookie, ...headers } })
    expect(out.status).toBe(401)
    expect(await statuses(url, { cookie, ...OWN })).toEqual([200])
  })

  it('is given to nobody without the token, and where browsers do not say which page asks', async () => {
    const { url } = await signedIn()
    const post = (headers: Readonly<Record<string, string>>) =>
      ask(url, '/governor/sign-in', { method: 'POST', headers })
    expect((await post(OWN)).headers['set-cookie']).toBeUndefined()
    expect((await post({ ...OWN, authorization: 'Bearer wrong' })).status).toBe(401)
    expect(await post(bearer)).toMatchObject({ status: 200, json: { signed_in: false } })
    expect((await post(bearer)).headers['set-cookie']).toBeUndefined()
  })

  it('of any other text, another Governor or another name means nothing', async () => {
    const { url, cookie } = await signedIn()
    const other = await signedIn()
    const id = cookie.split('=')[1] ?? ''
    for (const one of [`${cookie}x`, cookie.slice(0, -1), `governor-1=${id}`, other.cookie, `x=${id}`])
      expect(await statuses(url, { cookie: one, ...OWN }), one).toEqual([401])
    await fc.assert(
      fc.asyncProperty(fc.base64String({ maxLength: 60 }), async (text) => {
        const headers = { cookie: `${cookie.split('=')[0]}=${text}`, ...OWN }
        expect((await ask(url, '/governor/sessions', { headers })).status).toBe(401)
      }),
      { numRuns: 20 },
    )
    const planted = { cookie: `a=b; ${cookie.split('=')[0]}=planted; ${cookie}`, ...OWN }
    expect(await statuses(url, planted)).toEqual([200])
  })

  it('does nothing more after a sign-out: its event stream ends, too', async () => {
    const { url, cookie } = await signedIn()
    const headers = { cookie, ...OWN }
    const stream = await fetch(`${url}/governor/events`, { headers })
    expect(stream.status).toBe(200)
    const out = await ask(url, '/governor/sign-out', { method: 'POST', headers })
    expect(out.headers['set-cookie']?.[0]).toContain('=; Path=/governor; HttpOnly; SameSite=Strict; Max-Age=0')
    expect(await statuses(url, headers)).toEqual([401])
    for await (const _ of stream.body ?? []);
  })
})

describe('sign-ins', () => {
  const request = (headers: Readonly<Record<string, string>>) => {
    const message = new IncomingMessage(new Socket())
    return Object.assign(message, { headers })
  }
  const begun = (signIns: ReturnType<typeof createSignIns>, token = TOKEN) => {
    const cookie = signIns.begin(request(OWN), token)?.split(';')[0] ?? ''
    return request({ ...OWN, cookie })
  }

  it('end after twelve hours, and with the token that they were made with', () => {
    let now = 0
    const signIns = createSignIns(() => now)
    const browser = begun(signIns)
    const holds = signIns.of(browser, TOKEN)
    expect(holds?.()).toBe(true)
    expect(signIns.of(browser, 'another-token')).toBeUndefined()
    now = 12 * 3_600_000 - 1
    expect(signIns.of(browser, TOKEN)).toBeDefined()
    now++
    expect([signIns.of(browser, TOKEN), holds?.()]).toEqual([undefined, false])
  })

  it('are a hundred at most: one more signs the oldest out', () => {
    const signIns = createSignIns(() => 0)
    const browsers = Array.from({ length: 105 }, () => begun(signIns))
    const kept = browsers.map((browser) => signIns.of(browser, TOKEN) !== undefined)
    expect(kept).toEqual(browsers.map((_, at) => at >= 5))
  })
})
