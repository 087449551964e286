/** Either side may close its connection at any time: then the other side is closed too, and nothing is sent twice. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { closeRaw, connect, listenRaw, openGovernor, type RawUpstream, startRaw, type Wire } from '../support/raw.ts'

let upstream: RawUpstream
let governor: { url: string; close(): Promise<void> }

beforeAll(async () => {
  upstream = await listenRaw()
  governor = await openGovernor(upstream.url)
})
afterAll(() => closeRaw(governor, upstream))

const ASK = JSON.stringify({
  model: 'm',
  stream: true,
  messages: [{ role: 'user', content: 'hi' }],
  tools: [{ type: 'function', function: { name: 'f' } }],
})
const GUARDED = `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${ASK.length}\r\n\r\n${ASK}`
const POST = 'POST /v1/embeddings HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}'
const GET = 'GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n'
const ALL = [
  ['a guarded POST', GUARDED],
  ['a POST elsewhere', POST],
  ['a GET', GET],
] as const

const SSE =
  'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n'

async function ask(request: string): Promise<{ client: Wire; wire: Wire }> {
  const client = connect(governor.url)
  client.write(request)
  const wire = await upstream.accept()
  expect((await wire.message()).isComplete).toBe(true)
  return { client, wire }
}

describe.each(ALL)('%s', (_, request) => {
  it.each([
    ['leaves', (client: Wire) => client.socket.destroy()],
    ['ends its side', (client: Wire) => client.socket.end()],
    ['is torn down', (client: Wire) => client.socket.resetAndDestroy()],
  ])('is aborted at the upstream when the client %s before the first byte', async (_, act) => {
    const { client, wire } = await ask(request)
    act(client)
    // No time limit is at work here: only the client's leaving ends this connection.
    expect(await wire.rest()).toHaveLength(0)
    wire.socket.destroy()
  })

  it('is aborted at the upstream when the client leaves in the middle of the stream', async () => {
    const { client, wire } = await ask(request)
    wire.write(SSE)
    await client.until('data: 1\n\n')
    client.socket.destroy()
    expect(await wire.rest()).toHaveLength(0)
    wire.socket.destroy()
  })

  it('is aborted at the upstream when the client leaves between the headers and the first event', async () => {
    const { client, wire } = await ask(request)
    wire.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n')
    await client.until('\r\n\r\n')
    client.socket.destroy()
    expect(await wire.rest()).toHaveLength(0)
    wire.socket.destroy()
  })

  it.each([
    ['chunks', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n'],
    ['half a chunk', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nFF\r\npart'],
    ['half of its length', 'HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\npart'],
    ['an error in chunks', 'HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n'],
  ])('ends as an error and not as an answer when the upstream dies after %s', async (_, part) => {
    for (const die of [(wire: Wire) => wire.socket.end(), (wire: Wire) => wire.socket.resetAndDestroy()]) {
      const { client, wire } = await ask(request)
      wire.write(part)
      const head = (await client.until('\r\n\r\n')).toString()
      const begun = (await client.until('part')).toString()
      expect(begun).toContain('part')
      die(wire)
      const rest = (await client.rest()).toString()
      expect(rest).not.toContain('0\r\n\r\n')
      if (/content-length/i.test(head)) expect(rest).toBe('')
      await client.closed
      wire.socket.destroy()
    }
  })

  it.each([
    ['an error', 'HTTP/1.1 400 Bad Request\r\nContent-Length: 99\r\n\r\n{"error"', '{"error"'],
    ['an answer', 'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n', 'part'],
    ['the head of an answer', 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n', ''],
  ])('passes on the beginning of %s that breaks off at once', async (_, part, body) => {
    const { client, wire } = await ask(request)
    wire.write(part)
    wire.socket.end()
    const line = part.slice(0, part.indexOf('\r\n'))
    const got = (await client.rest()).toString()
    expect(got.startsWith(line)).toBe(true)
    expect(got).toContain(`\r\n\r\n${/chunked/.test(got) && body !== '' ? `4\r\n${body}` : body}`)
    expect(got).not.toContain('0\r\n\r\n')
    wire.socket.destroy()
  })

  it.each([
    ['with nothing', ''],
    ['with half a head', 'HTTP/1.1 200 OK\r\nX: '],
    ['after an informational response', 'HTTP/1.1 103 Early Hints\r\n\r\n'],
  ])('is answered with 502 and never sent twice when the connection dies %s', async (_, part) => {
    const { client, wire } = await ask(request)
    if (part !== '') wire.write(part)
    wire.socket.end()
    let answer = await client.message()
    if (answer.line.includes('103')) answer = await client.message()
    expect(answer.line).toBe('HTTP/1.1 502 Bad Gateway')
    expect(answer.isComplete).toBe(true)
    // The next thing that any upstream connection brings is the next request.
    const next = connect(governor.url)
    next.write('GET /v1/marker HTTP/1.1\r\nHost: a\r\n\r\n')
    const fresh = await upstream.accept()
    expect((await fresh.message()).line).toBe('GET /v1/marker HTTP/1.1')
    for (const { socket } of [client, next, wire, fresh]) socket.destroy()
  })
})

it('a POST whose reused connection dies is not sent twice', async () => {
  const own = await startRaw()
  const { url } = await startGovernor(own.url)
  const client = connect(url)
  client.write(POST)
  const wire = await own.accept()
  await wire.message()
  wire.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n')
  await client.message()
  client.write(GUARDED)
  expect((await wire.message()).body.toString()).toBe(ASK)
  wire.socket.resetAndDestroy()
  expect((await client.message()).line).toBe('HTTP/1.1 502 Bad Gateway')
  client.write(GET)
  const fresh = await own.accept()
  expect((await fresh.message()).line).toBe('GET /v1/models HTTP/1.1')
})

it('an upload is aborted at the upstream when the client leaves in the middle of it', async () => {
  for (const framing of ['Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n', 'Content-Length: 8\r\n\r\npart']) {
    const client = connect(governor.url)
    client.write(`POST /v1/files HTTP/1.1\r\nHost: a\r\n${framing}`)
    const wire = await upstream.accept()
    await wire.until('part')
    client.socket.destroy()
    expect((await wire.rest()).toString()).not.toContain('0\r\n\r\n')
    wire.socket.destroy()
  }
})

it('a guarded upload never reaches the upstream when the client leaves in the middle of it', async () => {
  const gone = connect(governor.url)
  gone.write(GUARDED.slice(0, -5))
  gone.socket.end()
  await gone.closed
  const { client, wire } = await ask(GET)
  for (const { socket } of [client, wire]) socket.destroy()
})

it('an upload whose upstream dies is answered with 502, and its remaining bytes are still read', async () => {
  const client = connect(governor.url)
  const size = 2 * 1024 * 1024
  client.write(`POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: ${size}\r\n\r\npart`)
  const wire = await upstream.accept()
  await wire.until('part')
  wire.socket.resetAndDestroy()
  expect((await client.message()).line).toBe('HTTP/1.1 502 Bad Gateway')
  client.write(Buffer.alloc(size - 'part'.length))
  client.write(GET)
  const next = await upstream.accept()
  expect((await next.message()).line).toBe('GET /v1/models HTTP/1.1')
  for (const { socket } of [client, next]) socket.destroy()
})

it('pipelined requests that still wait for their turn are aborted at the upstream when the client leaves', async () => {
  const { url, governor: own } = await startGovernor(upstream.url)
  const client = connect(url)
  const wires: Wire[] = []
  client.write(GET + POST + GUARDED)
  for (let at = 0; at < 3; at++) {
    const wire = await upstream.accept()
    await wire.message()
    wires.push(wire)
  }
  client.socket.destroy()
  for (const wire of wires) {
    expect(await wire.rest()).toHaveLength(0)
    wire.socket.destroy()
  }
  // None of them counts as running, which would keep the process from exiting.
  expect(await own.drain()).toBe(true)
})

it('pipelined requests are logged once each, when they are answered', async () => {
  const running = await startGovernor(upstream.url)
  const client = connect(running.url)
  client.write(GET.repeat(12))
  for (let at = 0; at < 12; at++) {
    const wire = await upstream.accept()
    await wire.message()
    wire.write('HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
    wire.socket.end()
  }
  for (let at = 0; at < 12; at++) expect((await client.message()).line).toBe('HTTP/1.1 200 OK')
  client.socket.destroy()
  expect(await running.governor.drain()).toBe(true)
  const ended = running.events.flatMap((event) => (event.kind === 'request_ended' ? [event.outcome] : []))
  expect(ended).toEqual(Array(12).fill('completed'))
})

it.each([
  ['what is no request', ''],
  ['what is no request, after a request that waits for its turn,', GET],
])('%s closes the connection and never appears inside the current response', async (_, waiting) => {
  const { client, wire } = await ask(POST)
  wire.write(SSE)
  await client.until('data: 1\n\n')
  client.write(waiting)
  const other = waiting === '' ? undefined : await upstream.accept()
  client.write('no request at all\r\n\r\n')
  expect((await client.rest()).toString().trim()).toBe('')
  expect(await wire.rest()).toHaveLength(0)
  wire.socket.destroy()
  other?.socket.destroy()
})

it('bytes that are not an HTTP request get a 400 when no response is being sent', async () => {
  const client = connect(governor.url)
  client.write('no request at all\r\n\r\n')
  expect((await client.message()).line).toBe('HTTP/1.1 400 Bad Request')
  client.socket.destroy()
})

it('requests that still run at the end of the drain time are logged as drained, not as an upstream failure', async () => {
  const {
    url,
    governor: own,
    events,
    logs,
  } = await startGovernor(upstream.url, {
    server: { drain_timeout: '50ms' },
  })
  const clients: Wire[] = []
  for (const [, request] of ALL) {
    const [silent, streaming] = [connect(url), connect(url)]
    silent.write(request)
    await (await upstream.accept()).message()
    streaming.write(request)
    const wire = await upstream.accept()
    await wire.message()
    wire.write(SSE)
    await streaming.until('data: 1\n\n')
    clients.push(silent, streaming)
  }
  expect(await own.drain()).toBe(false)
  const ended = events.flatMap((event) => (event.kind === 'request_ended' ? [event.outcome] : []))
  expect(ended).toEqual(Array(clients.length).fill('drained'))
  expect(logs.join('')).not.toContain('upstream_failed')
  for (const client of clients) expect((await client.rest()).toString()).not.toContain('HTTP/1.1 502')
})
