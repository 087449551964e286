/** Upgrades that are not guarded: WebSockets refused where they would hide a session, passed through elsewhere; all others ignored. */
import { randomBytes } from 'node:crypto'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { closeClients, connect, endToEnd, fieldOf, listenRaw, openGovernor, type RawUpstream } from '../support/raw.ts'

let upstream: RawUpstream
let governor: { url: string; close(): Promise<void> }
let open: { url: string; close(): Promise<void> }

beforeAll(async () => {
  upstream = await listenRaw()
  const upstreams = {
    openai: { url: upstream.url },
    anthropic: { url: upstream.url },
    gemini: { url: upstream.url },
    keyed: { url: `${upstream.url}/p/v1`, api_key: 'sk-own' },
    gateway: { url: upstream.url, headers: { 'CF-AIG-Authorization': 'Bearer own' } },
    absent: { url: 'http://127.0.0.1:1' },
  }
  governor = await openGovernor(upstream.url, { upstreams }, { websocket: 'refuse' })
  open = await openGovernor(upstream.url, { upstreams }, { websocket: 'tunnel', access_keys: ['mine'] })
})
afterAll(async () => {
  closeClients()
  await governor.close()
  await open.close()
  await upstream.close()
})

const KEY = 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=='
const upgrade = (target: string, more = '') =>
  `GET ${target} HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n${KEY}\r\n${more}\r\n`
const SWITCH =
  'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nsec-WebSocket-Accept: x\r\n\r\n'

async function tunnel(url = governor.url, target = '/v1/realtime?model=gpt-realtime') {
  const client = connect(url)
  client.write(upgrade(target, 'Authorization: Bearer mine\r\n'))
  const wire = await upstream.accept()
  const request = await wire.message()
  return { client, wire, request }
}

describe('a WebSocket on a guarded path, where none is guarded', () => {
  it.each([
    ...['/v1/responses', '/v1/responses?x=1', '/openai/v1/responses', '/keyed/responses', '/v1/chat/completions'],
    'http://api.example/v1/responses',
  ])('%s is answered with 426 and the advice to use HTTP', async (target) => {
    const client = connect(governor.url)
    client.write(upgrade(target))
    const answer = await client.message()
    expect(answer.line).toBe('HTTP/1.1 426 Upgrade Required')
    expect(fieldOf(answer, 'upgrade')).toBe('HTTP/1.1')
    expect(JSON.parse(answer.body.toString())).toMatchObject({
      error: { code: 'upgrade_required', param: null },
    })
    await client.closed
  })

  it('passes through if the configuration allows it', async () => {
    const { client, wire, request } = await tunnel(open.url, '/v1/responses')
    expect(request.line).toBe('GET /v1/responses HTTP/1.1')
    wire.write(SWITCH)
    expect((await client.message()).line).toBe('HTTP/1.1 101 Switching Protocols')
    client.socket.destroy()
    await wire.rest()
  })
})

describe('a CONNECT request', () => {
  it('is refused with the setting to use instead', async () => {
    const client = connect(governor.url)
    client.write('CONNECT api.openai.com:443 HTTP/1.1\r\nHost: api.openai.com:443\r\n\r\n')
    const answer = await client.message()
    expect(answer.line).toBe('HTTP/1.1 501 Not Implemented')
    expect(answer.body.toString()).toContain('set OPENAI_BASE_URL or ANTHROPIC_BASE_URL to it')
    await client.closed
  })
})

describe('a WebSocket on another path', () => {
  it('passes through, byte for byte in both directions', async () => {
    const { client, wire, request } = await tunnel()
    expect(request.line).toBe('GET /v1/realtime?model=gpt-realtime HTTP/1.1')
    expect(fieldOf(request, 'host')).toBe(`127.0.0.1:${upstream.port}`)
    expect(fieldOf(request, 'connection')).toBe('Upgrade')
    expect(endToEnd(request)).toEqual(['Upgrade: websocket', KEY, 'Authorization: Bearer mine'])
    wire.write(`${SWITCH}early`)
    expect((await client.until('\r\n\r\n')).toString()).toBe(SWITCH)
    expect((await client.take(5)).toString()).toBe('early')
    for (const bytes of [Buffer.of(0x81, 0), Buffer.of(0, 255, 13, 10), randomBytes(1_000_000)]) {
      client.write(bytes)
      expect((await wire.take(bytes.length)).equals(bytes)).toBe(true)
      wire.write(bytes)
      expect((await client.take(bytes.length)).equals(bytes)).toBe(true)
    }
    wire.socket.destroy()
    await client.rest()
  })

  it.each([
    ['accepted', '101 Grüße'],
    ['refused', '401 Grüße'],
  ])('that is %s gives the client every byte of the head of that answer', async (_, status) => {
    const { client, wire } = await tunnel()
    wire.write(`HTTP/1.1 ${status}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nX-Name: é\xff Ã©\r\n\r\n`)
    const { line, fields } = await client.message(true)
    expect(line).toBe(`HTTP/1.1 ${status}`)
    expect(fields).toContain('X-Name: é\xff Ã©')
    for (const { socket } of [client, wire]) socket.destroy()
  })

  it('that announces trailers passes through without that field', async () => {
    const client = connect(governor.url)
    client.write(upgrade('/v1/realtime', 'Trailer: x\r\n'))
    const wire = await upstream.accept()
    expect(fieldOf(await wire.message(), 'trailer')).toBeUndefined()
    for (const { socket } of [client, wire]) socket.destroy()
  })

  it('carries the bytes that the client sent before the answer', async () => {
    const client = connect(governor.url)
    client.write(`${upgrade('/v1/realtime')}early`)
    const wire = await upstream.accept()
    await wire.message()
    wire.write(SWITCH)
    expect((await wire.take(5)).toString()).toBe('early')
    client.socket.destroy()
    await wire.rest()
  })

  it.each([
    ['client leaves', 'client', 'destroy'],
    ['client is torn down', 'client', 'resetAndDestroy'],
    ['upstream leaves', 'wire', 'destroy'],
    ['upstream is torn down', 'wire', 'resetAndDestroy'],
  ] as const)('ends on both sides when the %s', async (_, who, how) => {
    const pair = await tunnel()
    pair.wire.write(SWITCH)
    await pair.client.message()
    pair[who].socket[how]()
    await (who === 'client' ? pair.wire : pair.client).rest()
    pair.wire.socket.destroy()
  })

  it('ends at the upstream when the client leaves before the answer', async () => {
    const { client, wire } = await tunnel()
    client.socket.destroy()
    await wire.rest()
    wire.socket.destroy()
  })

  it('gets the key of its upstream, if its client may use it', async () => {
    const { client, wire, request } = await tunnel(open.url, '/keyed/v1/realtime')
    expect(request.line).toBe('GET /p/v1/realtime HTTP/1.1')
    expect(fieldOf(request, 'authorization')).toBe('Bearer sk-own')
    for (const { socket } of [client, wire]) socket.destroy()
    const stranger = connect(open.url)
    stranger.write(upgrade('/keyed/v1/realtime', 'Authorization: Bearer other\r\n'))
    expect((await stranger.message()).line).toBe('HTTP/1.1 401 Unauthorized')
  })

  it('gets the key that Governor holds in a header, if its client may use it', async () => {
    const { client, wire, request } = await tunnel(open.url, '/gateway/v1/realtime')
    expect(fieldOf(request, 'cf-aig-authorization')).toBe('Bearer own')
    expect(fieldOf(request, 'authorization')).toBeUndefined()
    for (const { socket } of [client, wire]) socket.destroy()
    const stranger = connect(open.url)
    stranger.write(upgrade('/gateway/v1/realtime', 'Authorization: Bearer other\r\n'))
    expect((await stranger.message()).line).toBe('HTTP/1.1 401 Unauthorized')
  })

  it('gets no x-governor- fields from the upstream', async () => {
    const theirs = 'X-Governor-Session: theirs\r\nX-B: 1\r\n\r\n'
    for (const head of [
      'HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n',
      'HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n',
    ]) {
      const { client, wire } = await tunnel()
      wire.write(head + theirs)
      const { fields } = await client.message()
      expect(fields).toContain('X-B: 1')
      expect(fields.join()).not.toContain('theirs')
      for (const { socket } of [client, wire]) socket.destroy()
    }
  })

  it('is rejected if its dot segments would leave the path of its upstream', async () => {
    const client = connect(open.url)
    client.write(upgrade('/keyed/v1/%2e%2e/../realtime', 'Authorization: Bearer mine\r\n'))
    const answer = await client.message()
    expect(answer.line).toBe('HTTP/1.1 400 Bad Request')
    expect(JSON.parse(answer.body.toString())).toMatchObject({ error: { code: 'invalid_path' } })
    await client.closed
  })

  it.each([
    ['with a length', 'Content-Length: 4\r\n\r\nno!\n'],
    ['in chunks', 'Transfer-Encoding: chunked\r\n\r\n2\r\nno\r\n2\r\n!\n\r\n0\r\n\r\n'],
  ])("gets the upstream's own refusal: %s", async (_, rest) => {
    const { client, wire } = await tunnel()
    wire.write(`HTTP/1.1 403 Forbidden here\r\nx-B: 1\r\nset-cookie: a\r\nset-cookie: b\r\n${rest}`)
    const answer = await client.message()
    expect(answer.line).toBe('HTTP/1.1 403 Forbidden here')
    expect(endToEnd(answer)).toEqual(['x-B: 1', 'set-cookie: a', 'set-cookie: b'])
    expect(answer.body.toString()).toBe('no!\n')
    await client.closed
    wire.socket.destroy()
  })

  it('breaks off for the client if the upstream’s refusal breaks off', async () => {
    const { client, wire } = await tunnel()
    wire.write('HTTP/1.1 403 Forbidden\r\nContent-Length: 8\r\n\r\npart')
    await client.until('part')
    wire.socket.destroy()
    expect((await client.rest()).toString()).toBe('')
    await client.closed
  })

  it('gets a 502 if its upstream closes without an answer or cannot be reached', async () => {
    const { client, wire } = await tunnel()
    wire.socket.destroy()
    expect((await client.message()).line).toBe('HTTP/1.1 502 Bad Gateway')
    const other = connect(governor.url)
    other.write(upgrade('/absent/v1/realtime'))
    const answer = await other.message()
    expect(answer.line).toBe('HTTP/1.1 502 Bad Gateway')
    expect(answer.body.toString()).not.toContain('127.0.0.1')
  })

  it('is logged with the address of an upstream that cannot be reached', async () => {
    const { url, logs } = await startGovernor('http://127.0.0.1:1')
    const client = connect(url)
    client.write(upgrade('/v1/realtime'))
    await client.message()
    client.socket.destroy()
    expect(JSON.parse(logs[0] ?? '')).toMatchObject({
      upstream: 'openai',
      failure: 'upstream_unreachable',
      detail: expect.stringContaining('at http://127.0.0.1:1: connection refused'),
    })
  })
})

describe('a request for any other upgrade is served without the upgrade:', () => {
  const ASK = '{"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}'
  const H2C = 'Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n'

  it.each([
    ['a guarded POST', 'POST /v1/chat/completions', `Content-Length: ${ASK.length}\r\n\r\n${ASK}`, ASK],
    ['a POST in chunks', 'POST /v1/files', 'Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n', 'abc'],
    ['a GET', 'GET /v1/models', '\r\n', ''],
  ])('%s', async (_, start, rest, body) => {
    const client = connect(governor.url)
    client.write(`${start} HTTP/1.1\r\nHost: a\r\nx-B: caf\xe9\r\n${H2C}X: 1\r\nX: 2\r\n${rest}`)
    const wire = await upstream.accept()
    const request = await wire.message()
    expect(request.line).toBe(`${start} HTTP/1.1`)
    expect(endToEnd(request)).toEqual(['x-B: caf\xe9', 'X: 1', 'X: 2'])
    expect(request.body.toString()).toBe(body)
    wire.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
    expect((await client.message()).body.toString()).toBe('ok')
    // The connection still serves requests.
    client.write('GET /v1/next HTTP/1.1\r\nHost: a\r\n\r\n')
    expect((await wire.message()).line).toBe('GET /v1/next HTTP/1.1')
    for (const { socket } of [client, wire]) socket.destroy()
  })

  it('a POST whose body comes later', async () => {
    const client = connect(governor.url)
    client.write(`POST /v1/files HTTP/1.1\r\nHost: a\r\n${H2C}Content-Length: 8\r\n\r\n`)
    client.write('part')
    const wire = await upstream.accept()
    await wire.until('part')
    client.write('rest')
    expect((await wire.take(4)).toString()).toBe('rest')
    for (const { socket } of [client, wire]) socket.destroy()
  })
})
