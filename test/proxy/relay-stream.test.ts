/** Bodies of any size pass in both directions as they arrive: nothing is held back, and no buffer grows. */
import { randomBytes } from 'node:crypto'
import type { Socket } from 'node:net'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { closeRaw, connect, endToEnd, listenRaw, openGovernor, type RawUpstream, type Wire } from '../support/raw.ts'

let upstream: RawUpstream
let governor: { url: string; close(): Promise<void> }

beforeAll(async () => {
  upstream = await listenRaw()
  governor = await openGovernor(upstream.url)
})
afterAll(() => closeRaw(governor, upstream))

const MB = 1024 * 1024
const SSE = 'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n'
const OK = 'HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok'
const ASK = JSON.stringify({
  model: 'm',
  stream: true,
  messages: [{ role: 'user', content: 'hi' }],
  tools: [{ type: 'function', function: { name: 'f' } }],
})
const GUARDED = `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${ASK.length}\r\n\r\n${ASK}`
const UNGUARDED = 'GET /v1/events HTTP/1.1\r\nHost: a\r\n\r\n'

function chunk(text: string | Buffer): Buffer {
  const bytes = Buffer.from(text)
  return Buffer.concat([Buffer.from(`${bytes.length.toString(16)}\r\n`), bytes, Buffer.from('\r\n')])
}

/** Reads the data of the next chunk. The line end after it stays unread: a sender may send it together with the next chunk. */
async function nextChunk(wire: Wire): Promise<Buffer> {
  let line = ''
  while (line === '') line = (await wire.until('\r\n')).toString().trim()
  return wire.take(Number.parseInt(line, 16))
}

/** A connection to the upstream, after its whole request has arrived. */
async function accepted() {
  const wire = await upstream.accept()
  return { wire, request: await wire.message() }
}

function leave(...wires: Wire[]): void {
  for (const { socket } of wires) socket.destroy()
}

describe.each([
  ['on a guarded path', GUARDED],
  ['elsewhere', UNGUARDED],
])('a stream that breaks off %s', (_, request) => {
  it.each([
    ['the upstream fails', async (wire: Wire) => wire.socket.destroy()],
    ['Governor ends', (_: Wire, own: { close(): Promise<void> }) => own.close()],
  ])('never looks complete to a client, neither in chunks nor in HTTP/1.0, where %s', async (_, end) => {
    for (const version of ['1.1', '1.0']) {
      const own = await openGovernor(upstream.url)
      const client = connect(own.url)
      client.write(request.replace('HTTP/1.1', `HTTP/${version}`))
      const { wire } = await accepted()
      wire.write(Buffer.concat([Buffer.from(SSE), chunk('data: {"a":1}\n\n')]))
      const start = await client.until('{"a":1}\n\n')
      expect(start.includes('Transfer-Encoding: chunked')).toBe(version === '1.1')
      await end(wire, own)
      const rest = await client.rest()
      expect(rest.includes('0\r\n\r\n')).toBe(false)
      if (version === '1.0') expect(await client.closed).toBe('reset')
      leave(wire)
      await own.close()
    }
  })
})

describe.each([
  ['on a guarded path', GUARDED],
  ['elsewhere', UNGUARDED],
])('an event stream %s', (_, request) => {
  it('arrives headers first, and each event before the next one exists', async () => {
    const client = connect(governor.url)
    client.write(request)
    const { wire } = await accepted()
    wire.write(SSE)
    expect((await client.until('\r\n\r\n')).toString()).toContain('Content-Type: text/event-stream\r\n')
    const events = ['data: {"a":1}\n\n', ': ping\n\n', 'event: x\r\ndata: 日本\r\n\r\n', 'data: [DONE]\n\n']
    for (const event of events) {
      wire.write(chunk(event))
      expect((await nextChunk(client)).toString()).toBe(event)
    }
    wire.write('0\r\n\r\n')
    expect((await client.until('0\r\n\r\n')).toString().trim()).toBe('0')
    leave(client, wire)
  })

  it('arrives byte by byte even if a character or a frame is cut', async () => {
    const client = connect(governor.url)
    client.write(request)
    const { wire } = await accepted()
    wire.write(SSE)
    await client.until('\r\n\r\n')
    for (const byte of Buffer.from('data: é🧵\r\n\r\n')) {
      wire.write(chunk(Buffer.of(byte)))
      expect([...(await nextChunk(client))]).toEqual([byte])
    }
    leave(client, wire)
  })
})

describe('an upload', () => {
  it('in chunks reaches the upstream before the client has finished sending', async () => {
    const client = connect(governor.url)
    client.write('POST /v1/files HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n')
    const wire = await upstream.accept()
    expect((await wire.until('\r\n\r\n')).toString()).toContain('transfer-encoding: chunked\r\n')
    expect((await nextChunk(wire)).toString()).toBe('first')
    client.write('6\r\nsecond\r\n')
    expect((await nextChunk(wire)).toString()).toBe('second')
    client.write('0\r\n\r\n')
    expect((await wire.until('0\r\n\r\n')).toString().trim()).toBe('0')
    wire.write(OK)
    expect((await client.message()).body.toString()).toBe('ok')
    leave(client, wire)
  })

  it('of a known length reaches the upstream before the client has finished sending, and keeps its length', async () => {
    const client = connect(governor.url)
    client.write('PUT /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nfirst')
    const wire = await upstream.accept()
    expect((await wire.until('\r\n\r\n')).toString()).toContain('content-length: 10\r\n')
    expect((await wire.take(5)).toString()).toBe('first')
    client.write('again')
    expect((await wire.take(5)).toString()).toBe('again')
    leave(client, wire)
  })

  it('as multipart keeps its boundary and its bytes', async () => {
    const parts = [
      '--x Y\r\nContent-Disposition: form-data; name="file"; filename="é.bin"\r\n\r\n',
      '\0\xff\r\n--x\r\n\r\n--x Y--\r\ntrailing',
    ]
    const body = Buffer.from(parts.join(''), 'latin1')
    const type = 'Content-Type: multipart/form-data; boundary="x Y"'
    const client = connect(governor.url)
    client.write(`POST /v1/audio HTTP/1.1\r\nHost: a\r\n${type}\r\nContent-Length: ${body.length}\r\n\r\n`)
    client.write(body)
    const { wire, request } = await accepted()
    expect(endToEnd(request)).toEqual([type])
    expect(request.body.equals(body)).toBe(true)
    leave(client, wire)
  })

  it('can continue while the response is already being sent', async () => {
    const client = connect(governor.url)
    client.write('POST /v1/duplex HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n')
    const wire = await upstream.accept()
    await wire.until('\r\n\r\n')
    await nextChunk(wire)
    wire.write(SSE)
    await client.until('\r\n\r\n')
    for (const letter of ['b', 'c', 'd']) {
      client.write(chunk(letter))
      expect((await nextChunk(wire)).toString()).toBe(letter)
      wire.write(chunk(letter.toUpperCase()))
      expect((await nextChunk(client)).toString()).toBe(letter.toUpperCase())
    }
    leave(client, wire)
  })

  it('that is answered early can continue to its end, and the connection serves the next request', async () => {
    const client = connect(governor.url)
    client.write(`POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: ${MB}\r\n\r\nfirst`)
    const wire = await upstream.accept()
    await wire.until('first')
    wire.write('HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nno!')
    expect(await client.message()).toMatchObject({ line: 'HTTP/1.1 413 Too Large', body: Buffer.from('no!') })
    client.write(Buffer.alloc(MB - 'first'.length, 'x'))
    client.write(UNGUARDED)
    const next = await accepted()
    expect(next.request.line).toBe('GET /v1/events HTTP/1.1')
    next.wire.write(OK)
    expect((await client.message()).body.toString()).toBe('ok')
    leave(client, wire, next.wire)
  })
})

describe('a body of 30 MB', () => {
  const large = randomBytes(30 * MB)
  it.each(['POST /v1/files', 'POST /v1/chat/completions'])(
    'arrives unchanged in both directions on %s',
    async (start) => {
      const client = connect(governor.url)
      client.write(`${start} HTTP/1.1\r\nHost: a\r\nContent-Length: ${large.length}\r\n\r\n`)
      client.write(large)
      const { wire, request } = await accepted()
      expect(request.body.equals(large)).toBe(true)
      wire.write(`HTTP/1.1 200 OK\r\nContent-Length: ${large.length}\r\n\r\n`)
      wire.write(large)
      const answer = await client.message()
      expect(answer.isComplete).toBe(true)
      expect(answer.body.equals(large)).toBe(true)
      leave(client, wire)
    },
  )
})

it('300 streams can be open at once, and each gets its own events', async () => {
  const numbers = Array.from({ length: 300 }, (_, at) => at)
  const clients = numbers.map((at) => {
    const client = connect(governor.url)
    client.write(UNGUARDED.replace('events', `events/${at}`))
    return client
  })
  const streams = await Promise.all(numbers.map(accepted))
  for (const { wire, request } of streams) {
    const [, at] = /events\/(\d+)/.exec(request.line) ?? []
    wire.write(Buffer.concat([Buffer.from(SSE), chunk(`data: ${at}\n\n`)]))
  }
  const first = await Promise.all(
    clients.map(async (client) => {
      await client.until('\r\n\r\n')
      return (await nextChunk(client)).toString()
    }),
  )
  expect(first).toEqual(numbers.map((at) => `data: ${at}\n\n`))
  for (const { wire } of streams) wire.write('0\r\n\r\n')
  const ends = await Promise.all(clients.map(async (client) => (await client.until('0\r\n\r\n')).toString()))
  expect(new Set(ends)).toEqual(new Set(['\r\n0\r\n\r\n']))
  leave(...clients, ...streams.map(({ wire }) => wire))
})

describe('a slow reader', () => {
  const total = 40 * MB
  /** The bytes that the kernel's buffers of two connections may contain, with a margin. */
  const bound = 24 * MB

  /** Writes as fast as the other side takes it; returns how much it has taken so far. */
  function pump(socket: Socket): () => number {
    const piece = Buffer.alloc(MB / 4, 'x')
    let taken = 0
    let queued = 0
    const next = () => {
      if (queued === total) return
      queued += piece.length
      socket.write(piece, (error) => {
        if (error) return
        taken += piece.length
        next()
      })
    }
    next()
    return () => taken
  }

  /** Sends other requests until no bytes have moved during 20 of them in a row. */
  async function standstill(taken: () => number): Promise<number> {
    const other = connect(governor.url)
    let wire: Wire | undefined
    for (let still = 0, last = -1; still < 20; ) {
      other.write(UNGUARDED)
      wire ??= await upstream.accept()
      await wire.message()
      wire.write(OK)
      await other.message()
      still = taken() === last ? still + 1 : 0
      last = taken()
    }
    leave(other, ...(wire ? [wire] : []))
    return taken()
  }

  it('of a response slows the upstream down, and gets all of the response in the end', async () => {
    const client = connect(governor.url)
    client.socket.pause()
    client.write(GUARDED)
    const { wire } = await accepted()
    wire.write(`HTTP/1.1 200 OK\r\nContent-Length: ${total}\r\n\r\n`)
    const taken = pump(wire.socket)
    expect(await standstill(taken)).toBeLessThan(bound)
    client.socket.resume()
    await client.until('\r\n\r\n')
    expect(await client.take(total)).toHaveLength(total)
    leave(client, wire)
  })

  it('of an upload slows the client down, and gets all of the upload in the end', async () => {
    const client = connect(governor.url)
    client.write(`PUT /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: ${total}\r\n\r\n`)
    const taken = pump(client.socket)
    const wire = await upstream.accept()
    wire.socket.pause()
    expect(await standstill(taken)).toBeLessThan(bound)
    wire.socket.resume()
    await wire.until('\r\n\r\n')
    expect(await wire.take(total)).toHaveLength(total)
    leave(client, wire)
  })
})
