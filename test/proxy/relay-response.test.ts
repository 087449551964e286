/** The bytes that reach the client of a response that is not rewritten. */
import { brotliCompressSync, gzipSync } from 'node:zlib'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import {
  type Answering,
  closeRaw,
  connect,
  endToEnd,
  fieldOf,
  listenAnswering,
  openGovernor,
  startRaw,
  type Wire,
} from '../support/raw.ts'

let upstream: Answering
let governor: { url: string; close(): Promise<void> }

beforeAll(async () => {
  upstream = await listenAnswering()
  governor = await openGovernor(upstream.url)
})
afterAll(() => closeRaw(governor, upstream))
beforeEach(() => {
  upstream.requests.length = 0
  upstream.closes = false
})

const GET = 'GET /v1/x HTTP/1.1\r\nHost: a\r\n\r\n'

/** Lets the upstream reply with bytes and returns what the client gets of them. */
async function got(reply: string | Buffer, request = GET) {
  upstream.reply = reply
  const client = connect(governor.url)
  client.write(request)
  const message = await client.message(request.startsWith('HEAD'))
  client.socket.destroy()
  return message
}

describe('the status line', () => {
  it.each([
    ...['200 OK', '201 Created', '202 Accepted', '203 Whatever', '206 Partial Content', '207 Multi-Status'],
    ...['300 Multiple Choices', '301 Moved Permanently', '307 Temporary Redirect', '400 Bad Request', '401 No'],
    ...['402 Payment Required', '404 ', '408 Request Timeout', '413 Too Large', '418 I am a teapot', '425 Too Early'],
    ...['429 Slow down, please!', '451 Gone', '500 Oh no', '502 Bad', '503 Busy', '520 Web Server', '524 A Timeout'],
    ...['529 Overloaded', '599 X', '600 Beyond', '999 Request denied', '200 \tTabs\t in', '200 caf\xc3\xa9'],
  ])('%s arrives unchanged', async (line) => {
    const message = await got(`HTTP/1.1 ${line}\r\nX: 1\r\nContent-Length: 2\r\n\r\nok`)
    expect(message.line).toBe(`HTTP/1.1 ${line}`)
    expect(endToEnd(message)).toEqual(['X: 1'])
    expect(message.body.toString()).toBe('ok')
  })

  it('of an HTTP/1.0 upstream arrives with its body, which ends with the connection', async () => {
    upstream.closes = true
    const message = await got('HTTP/1.0 200 Fine\r\nX: 1\r\n\r\nall of it')
    expect(message.line).toBe('HTTP/1.1 200 Fine')
    expect(endToEnd(message)).toEqual(['X: 1'])
    expect(message).toMatchObject({ body: Buffer.from('all of it'), isComplete: true })
  })
})

describe('the response headers', () => {
  it.each<[string, string[], string[]]>([
    ['keep case, order and duplicates', ['x-b: 1', 'X-A: 2', 'X-b: 3'], ['x-b: 1', 'X-A: 2', 'X-b: 3']],
    [
      'keep every cookie',
      ['Set-Cookie: a=1', 'set-cookie: b=2; Path=/'],
      ['Set-Cookie: a=1', 'set-cookie: b=2; Path=/'],
    ],
    [
      'keep a date, and have none otherwise',
      ['Date: Mon, 01 Jan 2024 00:00:00 GMT'],
      ['Date: Mon, 01 Jan 2024 00:00:00 GMT'],
    ],
    ['are none when there are none', [], []],
    ['keep Latin-1 and UTF-8 bytes', ['X-L: caf\xe9', 'X-U: caf\xc3\xa9'], ['X-L: caf\xe9', 'X-U: caf\xc3\xa9']],
    ['keep empty values and underscores', ['x_y:', 'X-Z: 1'], ['x_y: ', 'X-Z: 1']],
    [
      'keep rate limits and request ids',
      ['x-ratelimit-remaining: 1', 'request-id: r', 'retry-after-ms: 5'],
      ['x-ratelimit-remaining: 1', 'request-id: r', 'retry-after-ms: 5'],
    ],
    ['keep Server and Via', ['Server: x', 'Via: 1.1 y', 'CF-RAY: z'], ['Server: x', 'Via: 1.1 y', 'CF-RAY: z']],
    [
      'keep Location and challenges',
      ['Location: /a?b#c', 'WWW-Authenticate: Bearer'],
      ['Location: /a?b#c', 'WWW-Authenticate: Bearer'],
    ],
    ['keep names of object properties', ['__proto__: 1', 'constructor: 2'], ['__proto__: 1', 'constructor: 2']],
    ['lose those that Connection names', ['Connection: close, X-Gone', 'X-Gone: 1', 'X-Stays: 2'], ['X-Stays: 2']],
    [
      'lose Keep-Alive, Upgrade and Proxy- fields',
      ['Keep-Alive: timeout=9', 'Upgrade: h2c', 'Proxy-Authenticate: x', 'Proxy-Connection: x'],
      [],
    ],
    [
      'keep 200 fields',
      Array.from({ length: 200 }, (_, at) => `X-${at}: ${at}`),
      Array.from({ length: 200 }, (_, at) => `X-${at}: ${at}`),
    ],
    ['keep one of 30,000 bytes', [`X-Big: ${'y'.repeat(30_000)}`], [`X-Big: ${'y'.repeat(30_000)}`]],
    ['keep x-governor-like names of the upstream', ['X-Governors: 1'], ['X-Governors: 1']],
  ])('%s', async (_, given, kept) => {
    const fields = given.map((field) => `${field}\r\n`).join('')
    const message = await got(`HTTP/1.1 200 OK\r\n${fields}Content-Length: 2\r\n\r\nok`)
    expect(endToEnd(message)).toEqual(kept)
    expect(message.body.toString()).toBe('ok')
    expect(fieldOf(message, 'content-length')).toBe('2')
  })
})

describe('a response without a body', () => {
  it.each([
    ['204', 'HTTP/1.1 204 No Content\r\nX: 1\r\n\r\n', GET, undefined],
    ['204 with a length of 0', 'HTTP/1.1 204 No Content\r\nX: 1\r\nContent-Length: 0\r\n\r\n', GET, '0'],
    ['304', 'HTTP/1.1 304 Not Modified\r\nX: 1\r\n\r\n', GET, undefined],
    [
      '304 that states the length of the whole',
      'HTTP/1.1 304 Not Modified\r\nX: 1\r\nContent-Length: 500\r\n\r\n',
      GET,
      '500',
    ],
    ['HEAD', 'HTTP/1.1 200 OK\r\nX: 1\r\n\r\n', GET.replace('GET', 'HEAD'), undefined],
    [
      'HEAD that states a length',
      'HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: 500\r\n\r\n',
      GET.replace('GET', 'HEAD'),
      '500',
    ],
    [
      'HEAD that would have chunks and trailers',
      'HTTP/1.1 200 OK\r\nX: 1\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n',
      GET.replace('GET', 'HEAD'),
      undefined,
    ],
    ['a length of 0', 'HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: 0\r\n\r\n', GET, '0'],
  ])('stays without a body: %s', async (_, reply, request, length) => {
    upstream.reply = reply
    const client = connect(governor.url)
    client.write(request + GET.replace('/v1/x', '/v1/next'))
    const message = await client.message(request.startsWith('HEAD'))
    expect(message.line).toBe(reply.slice(0, reply.indexOf('\r')))
    expect(endToEnd(message)).toEqual(['X: 1'])
    expect(fieldOf(message, 'content-length')).toBe(length)
    expect(fieldOf(message, 'transfer-encoding')).toBeUndefined()
    // No byte is between it and the next response.
    expect((await client.until('\r\n')).toString()).toBe(`${message.line}\r\n`)
    client.socket.destroy()
  })
})

describe('the response body', () => {
  const text = Buffer.from('{"text":"naïve 日本 🧵"}\n'.repeat(50))
  it.each([
    ['gzip', gzipSync(text)],
    ['br', brotliCompressSync(text)],
    ['zstd', Buffer.from('28b52ffd0400690000deadbeef', 'hex')],
    ['identity', text],
    ['x-unheard-of', Buffer.from([0, 255, 13, 10, 13, 10, 0, 128])],
  ])('in %s is not decompressed', async (encoding, bytes) => {
    const head = `HTTP/1.1 200 OK\r\nContent-Encoding: ${encoding}\r\nContent-Length: ${bytes.length}\r\n\r\n`
    const message = await got(Buffer.concat([Buffer.from(head), bytes]))
    expect(endToEnd(message)).toEqual([`Content-Encoding: ${encoding}`])
    expect(message.body.equals(bytes)).toBe(true)
  })

  it('in chunks arrives in chunks, with the trailers that were announced', async () => {
    const message = await got(
      'HTTP/1.1 200 OK\r\nTrailer: X-Sum, x-b\r\nTransfer-Encoding: chunked\r\n\r\n3;e=1\r\nabc\r\nA\r\n0123456789\r\n0\r\nX-Sum: 1\r\nx-b: caf\xe9\r\nX-Sum: 2\r\n\r\n',
    )
    expect(fieldOf(message, 'transfer-encoding')).toBe('chunked')
    expect(endToEnd(message)).toEqual(['Trailer: X-Sum, x-b'])
    expect(message.body.toString()).toBe('abc0123456789')
    expect(message.trailers).toEqual(['X-Sum: 1', 'x-b: caf\xe9', 'X-Sum: 2'])
    expect(message.isComplete).toBe(true)
  })

  it('keeps trailers that were not announced', async () => {
    const message = await got('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n')
    expect(message).toMatchObject({ trailers: ['X-Sum: 1'], isComplete: true })
  })

  it('with trailers reaches an HTTP/1.0 client without them', async () => {
    const message = await got(
      'HTTP/1.1 200 OK\r\nX: 1\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\nX-Sum: 1\r\n\r\n',
      'GET /v1/x HTTP/1.0\r\n\r\n',
    )
    expect(endToEnd(message)).toEqual(['X: 1'])
    expect(fieldOf(message, 'transfer-encoding')).toBeUndefined()
    expect(message.body.toString()).toBe('a')
  })

  it('without a length ends when the upstream closes the connection', async () => {
    upstream.closes = true
    const message = await got('HTTP/1.1 200 OK\r\nX: 1\r\n\r\nall of it')
    expect(message).toMatchObject({ body: Buffer.from('all of it'), isComplete: true })
  })
})

describe('an informational response', () => {
  it('arrives before the final response, with all its fields', async () => {
    upstream.reply =
      'HTTP/1.1 103 Early Hints\r\nLink: </a>; rel=preload\r\nlink: <b>; odd\r\nX-H: 1\r\n\r\n' +
      'HTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n' +
      'HTTP/1.1 200 OK\r\nX: 1\r\nContent-Length: 2\r\n\r\nok'
    const client = connect(governor.url)
    client.write(GET)
    const messages = [await client.message(), await client.message(), await client.message(), await client.message()]
    expect(messages.map(({ line }) => line)).toEqual([
      'HTTP/1.1 103 Early Hints',
      'HTTP/1.1 102 Processing',
      'HTTP/1.1 103 Early Hints',
      'HTTP/1.1 200 OK',
    ])
    expect(messages.map(endToEnd)).toEqual([['Link: </a>; rel=preload', 'link: <b>; odd', 'X-H: 1'], [], [], ['X: 1']])
    expect(messages.at(-1)?.body.toString()).toBe('ok')
  })

  it.each([
    ['alone', ['HTTP/1.1 100 Continue\r\n\r\n']],
    ['with fields', ['HTTP/1.1 100 Continue\r\nDate: now\r\nX: 1\r\n\r\n']],
    ['without a reason', ['HTTP/1.1 100\r\n\r\n']],
    ['twice', ['HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n']],
    ['in pieces', ['H', 'TTP/1.1 1', '00 Continue\r\nX', ': 1\r\n\r', '\nHTTP/1.', '']],
    ['before others', ['HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nX: 1\r\n\r\n']],
    ['after others', ['HTTP/1.1 103 Early Hints\r\nX: 1\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n']],
  ])('100 that was not requested is ignored, %s', async (_, pieces) => {
    const own = await startRaw()
    const { url } = await startGovernor(own.url)
    const client = connect(url)
    // The second and third time on a connection that is kept.
    let wire: Wire | undefined
    for (let turn = 0; turn < 3; turn++) {
      client.write('POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nbody')
      wire ??= await own.accept()
      expect((await wire.message()).body.toString()).toBe('body')
      for (const piece of pieces) {
        // Each is sent on its own: the next waits until this one has been read.
        await new Promise((resolve) => wire?.socket.write(piece, resolve))
        await new Promise((resolve) => setImmediate(resolve))
      }
      const rest = 'HTTP/1.1 200 OK\r\nX: 2\r\nContent-Length: 29\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nend.'
      wire.write(pieces.at(-1) === '' ? rest.slice('HTTP/1.'.length) : rest)
      const early = pieces.join('').includes('103') ? await client.message() : undefined
      expect(early?.line).toBe(early && 'HTTP/1.1 103 Early Hints')
      const answer = await client.message()
      expect(answer.line).toBe('HTTP/1.1 200 OK')
      expect(answer.fields).toContain('X: 2')
      expect(answer.body.toString()).toBe('HTTP/1.1 100 Continue\r\n\r\nend.')
    }
  })

  it('100 in the middle of a body is a part of that body', async () => {
    const own = await startRaw()
    const { url } = await startGovernor(own.url)
    const client = connect(url)
    client.write(GET)
    const wire = await own.accept()
    await wire.message()
    wire.write('HTTP/1.1 200 OK\r\nContent-Length: 29\r\n\r\n')
    await client.until('\r\n\r\n')
    wire.write('HTTP/1.1 100 Continue\r\n\r\n')
    expect((await client.take(25)).toString()).toBe('HTTP/1.1 100 Continue\r\n\r\n')
    wire.write('end.')
    expect((await client.take(4)).toString()).toBe('end.')
  })

  it('does not reach an HTTP/1.0 client', async () => {
    const message = await got(
      'HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok',
      'GET /v1/x HTTP/1.0\r\n\r\n',
    )
    expect(message.line).toBe('HTTP/1.1 200 OK')
  })

  it('100 comes from Governor at once when a client expects it, and is not requested from the upstream', async () => {
    upstream.reply = 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'
    const client = connect(governor.url)
    client.write('POST /v1/x HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n')
    expect((await client.message()).line).toBe('HTTP/1.1 100 Continue')
    client.write('body')
    expect((await client.message()).line).toBe('HTTP/1.1 200 OK')
    const [request] = upstream.requests
    expect(request?.body.toString()).toBe('body')
    expect(request && endToEnd(request)).toEqual([])
  })
})

describe('an x-governor- field of an upstream', () => {
  const THEIRS = 'X-Governor-Terminal-State: theirs\r\nx-governor-overflow: theirs\r\nX-B: 1\r\n'
  const ask = JSON.stringify({
    model: 'm',
    messages: [{ role: 'user', content: 'hi' }],
    tools: [{ type: 'function', function: { name: 'f' } }],
  })
  const guarded = `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${ask.length}\r\n\r\n${ask}`
  it.each([
    ['a relayed response', '200 OK', GET],
    ['a guarded response', '200 OK', guarded],
    ['a guarded refusal', '400 Bad Request', guarded],
  ])(
    'is removed from the head, from informational responses and from the trailers of %s',
    async (_, status, request) => {
      upstream.reply =
        `HTTP/1.1 103 Early Hints\r\n${THEIRS}\r\nHTTP/1.1 ${status}\r\n${THEIRS}Trailer: x-governor-loop, X-T\r\n` +
        'Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nX-Governor-Loop: theirs\r\nX-T: 1\r\n\r\n'
      const client = connect(governor.url)
      client.write(request)
      const early = await client.message()
      const answer = await client.message()
      client.socket.destroy()
      expect(endToEnd(early)).toEqual(['X-B: 1'])
      expect(answer.line).toBe(`HTTP/1.1 ${status}`)
      expect(answer.fields).toContain('X-B: 1')
      expect(answer.fields.filter((field) => field.endsWith(': theirs'))).toEqual([])
      expect(answer.body.toString()).toBe('{}')
      expect(answer.trailers).toEqual(['X-T: 1'])
    },
  )
})

describe('a guarded response under the verdict allow', () => {
  it('keeps its bytes and fields, and gains only x-governor-*', async () => {
    const body = '{"choices":[{"message":{"content":"caf\\u00e9 日"}, "n":9007199254740993}],\r\n "x":1.0}'
    const bytes = Buffer.from(body)
    const head = `HTTP/1.1 200 Sure\r\nx-b: 1\r\nSet-Cookie: a=1\r\nSet-Cookie: b=1\r\nContent-Length: ${bytes.length}\r\n\r\n`
    const ask = JSON.stringify({
      model: 'm',
      messages: [{ role: 'user', content: 'hi' }],
      tools: [{ type: 'function', function: { name: 'f' } }],
    })
    const message = await got(
      Buffer.concat([Buffer.from(head), bytes]),
      `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${ask.length}\r\n\r\n${ask}`,
    )
    const fields = endToEnd(message)
    expect(message.line).toBe('HTTP/1.1 200 Sure')
    expect(fields.filter((field) => !field.startsWith('x-governor-'))).toEqual([
      'x-b: 1',
      'Set-Cookie: a=1',
      'Set-Cookie: b=1',
    ])
    expect(fields).toContain('x-governor-verdict: allow')
    expect(message.body.equals(bytes)).toBe(true)
  })
})
