/** Request lines and header fields that no honest client sends, over plain TCP. */
import fc from 'fast-check'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import {
  type Answering,
  closeRaw,
  connect,
  fieldOf,
  listenAnswering,
  type Message,
  openGovernor,
} from '../support/raw.ts'

/** The provider whose address a client's path may begin with, and one that it may not reach by any other path. */
let guarded: Answering
let other: Answering
let governor: { url: string; close(): Promise<void> }

/** More runs take longer and find more. */
const RUNS = Number(process.env['HOSTILE_RUNS'] ?? 250)

const FROM_UPSTREAM = 'HTTP/1.1 200 OK\r\nx-from: upstream\r\nContent-Length: 2\r\n\r\nok'

beforeAll(async () => {
  guarded = await listenAnswering()
  other = await listenAnswering()
  guarded.reply = FROM_UPSTREAM
  other.reply = FROM_UPSTREAM
  governor = await openGovernor(guarded.url, {
    upstreams: {
      openai: { url: `${guarded.url}/team/v1` },
      anthropic: { url: `${guarded.url}/team` },
      other: { url: `${other.url}/deep/er` },
    },
    // What is never completed ends soon.
    timeouts: { client_idle: '250ms' },
  })
})
afterAll(() => closeRaw(governor, guarded, other))
beforeEach(() => {
  guarded.requests.length = 0
  other.requests.length = 0
})

/** All responses on a connection, and whether it ended in the middle of one. */
async function responses(bytes: Buffer): Promise<Message[]> {
  const client = connect(governor.url)
  client.write(bytes)
  const all: Message[] = []
  for (;;) {
    const message = await client.message()
    if (message.line === '') break
    all.push(message)
  }
  client.socket.destroy()
  return all
}
const latin1 = (text: string) => Buffer.from(text, 'latin1')
const isFromUpstream = (message: Message) => fieldOf(message, 'x-from') !== undefined

/** Sends an honest request: after whatever came before it, it is answered. */
async function expectAlive() {
  const [answer] = await responses(latin1('GET /v1/models HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n'))
  expect(answer?.line).toBe('HTTP/1.1 200 OK')
}

/** The path as a server sees it that decodes and resolves as much as any does. */
function resolved(path: string): string {
  const [beforeQuery = ''] = path.split('?')
  let decoded = beforeQuery
  for (let at = 0; at < 8; at++)
    decoded = decoded.replace(/%(25|2e|2f|5c)/gi, (_, hex) => String.fromCharCode(Number.parseInt(hex, 16)))
  const kept: string[] = []
  for (const segment of decoded.replaceAll('\\', '/').split('/')) {
    if (segment === '..') kept.pop()
    else if (segment !== '.' && segment !== '') kept.push(segment)
  }
  return `/${kept.join('/')}`
}

const HOP_BY_HOP =
  /^(?:connection|keep-alive|proxy-connection|te|transfer-encoding|upgrade|proxy-authorization|expect):/i

function expectOneHonestRequest({ fields }: Message, upstream: Answering) {
  expect(fields.filter((field) => /^host:/i.test(field))).toEqual([`host: 127.0.0.1:${upstream.port}`])
  expect(fields.filter((field) => /^x-governor-/i.test(field))).toEqual([])
  const lengths = fields.filter((field) => /^content-length:/i.test(field))
  const codings = fields.filter((field) => /^transfer-encoding:/i.test(field))
  expect(lengths.length + codings.length).toBeLessThanOrEqual(1)
  const hops = fields.filter((field) => HOP_BY_HOP.test(field))
  expect(
    hops.filter((field) => !/^(?:connection: ?keep-alive|transfer-encoding: ?chunked|te: ?trailers)$/i.test(field)),
  ).toEqual([])
}

function expectOrderly(answers: readonly Message[]) {
  for (const answer of answers) {
    expect(answer.line).toMatch(/^HTTP\/1\.1 \d{3} /)
    expect(answer.isComplete).toBe(true)
    if (isFromUpstream(answer)) continue
    // What Governor itself answers is never its own fault; a client that expects `100 Continue` gets it.
    expect(answer.line).toMatch(/^HTTP\/1\.1 (?:100|200|204|308|4\d\d|501) /)
    if (fieldOf(answer, 'content-type')?.startsWith('application/json'))
      expect(() => JSON.parse(answer.body.toString())).not.toThrow()
  }
  const arrived = [...guarded.requests, ...other.requests]
  // What follows a request that closes its connection may be refused before the answer came.
  expect(arrived.length).toBeLessThanOrEqual(1)
  expect(arrived.length).toBeGreaterThanOrEqual(answers.filter(isFromUpstream).length)
  for (const request of guarded.requests) {
    expectOneHonestRequest(request, guarded)
    expect(resolved(request.line.split(' ')[1] ?? '')).toMatch(/^\/team(?:\/|$)/)
  }
  for (const request of other.requests) {
    expectOneHonestRequest(request, other)
    expect(resolved(request.line.split(' ')[1] ?? '')).toMatch(/^\/deep\/er(?:\/|$)/)
  }
}

const method = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.constantFrom('GET', 'POST', 'PUT', 'DELETE', 'OPTIONS', 'PATCH', 'TRACE', 'PROPFIND'),
  },
  { weight: 1, arbitrary: fc.constantFrom('CONNECT', 'PRI', 'get', 'G\tET', 'GET\u0000', 'ÿ', '') },
)
const piece = fc.oneof(
  fc.constantFrom(
    ...['..', '.', '...', '', '%2e%2e', '%252e.', '.%2E', '%c0%ae%c0%ae', '..;', '..;a=b', '%00', '\u0000'],
    ...['%2f', '%5c', '\\', '..\\', '..%2f', '%252f..', ';', '#', '#/..', '?', '?/../..', '%3f', '%23', '@', ':80'],
    ...['v1', 'other', 'openai', 'anthropic', 'OTHER', 'o%74her', 'team', 'deep', 'chat', 'completions', 'models'],
    ...['governor', 'health', 'metrics', '%', '%zz', '\u007f', '\t', '\u000b', '\u00e9', '127.0.0.1', 'evil.example'],
    ...['__proto__', 'constructor', 'toString'],
  ),
  fc.string({ maxLength: 5 }),
)
const path = fc.array(piece, { maxLength: 8 }).map((pieces) => `/${pieces.join('/')}`)
const target = fc.oneof(
  { weight: 6, arbitrary: path },
  { weight: 1, arbitrary: path.map((rest) => `/${rest}`) },
  {
    weight: 3,
    arbitrary: fc
      .tuple(
        fc.constantFrom('http', 'HTTPS', 'ftp', 'file', 'javascript', 'ws', 'http+unix'),
        fc.constantFrom('evil.example', '127.0.0.1:1', 'u:p@evil', '[::1]:80', '', 'a\\b', 'a?b', 'a#b'),
        path,
      )
      .map(([scheme, host, rest]) => `${scheme}://${host}${rest}`),
  },
  {
    weight: 1,
    arbitrary: fc.constantFrom(
      '*',
      'evil.example:443',
      '?x',
      '#x',
      '',
      'v1/models',
      '\\\\evil\\x',
      'http:/x',
      'http:x',
      '//',
      '/\\evil.example/x',
    ),
  },
)

describe('whatever its request line asks for', () => {
  it('a client gets one orderly answer, and its request arrives only below the path of the upstream that it names', async () => {
    await fc.assert(
      fc.asyncProperty(
        method,
        target,
        fc.constantFrom('1.1', '1.1', '1.1', '1.0', '2.0', '0.9', '9.9'),
        async (name, asked, version) => {
          guarded.requests.length = 0
          other.requests.length = 0
          const answers = await responses(
            latin1(`${name} ${asked} HTTP/${version}\r\nHost: a\r\nConnection: close\r\n\r\n`),
          )
          expect(answers.length).toBeLessThanOrEqual(1)
          expectOrderly(answers)
          await expectAlive()
        },
      ),
      { numRuns: RUNS },
    )
  })
})

const fieldName = fc.constantFrom(
  ...[
    'Content-Length',
    'content-length ',
    'Content_Length',
    'Transfer-Encoding',
    'transfer-encoding',
    ' Transfer-Encoding',
  ],
  ...[
    'Connection',
    'Host',
    'TE',
    'Trailer',
    'Upgrade',
    'Expect',
    'Keep-Alive',
    'Proxy-Connection',
    'Proxy-Authorization',
  ],
  ...[
    'x-governor-session',
    'X-Governor-Verdict',
    'x-governor-max-iterations',
    'X-A',
    'x-a',
    '__proto__',
    'constructor',
    'Cookie',
  ],
  ...['Authorization', 'x-api-key', 'anthropic-version', 'Content-Encoding', 'X\u0000', '', ':', 'x y', 'x\ty'],
)
const fieldValue = fc.oneof(
  fc.constantFrom(
    ...['0', '3', '03', '+3', '-1', '3, 3', '3,4', '0x3', '3 3', '99999999999999999999', '1e1', '', ' ', '\t'],
    ...[
      'chunked',
      'Chunked',
      'identity',
      'chunked, identity',
      'gzip, chunked',
      'chunked;q=1',
      '\u000bchunked',
      'xchunked',
      'chunked\u0000',
    ],
    ...[
      'close',
      'keep-alive',
      'x-a',
      'content-length',
      'close, transfer-encoding, host',
      'upgrade',
      'h2c',
      'websocket',
      '100-continue',
    ],
    ...[
      'a\r\nX-Injected: 1',
      'a\nX-Injected: 1',
      'a\rX-Injected: 1',
      'a\r\n folded',
      'a\r\n\tfolded',
      'a\u0000b',
      '\u00e9',
      'a\u007f',
    ],
    ...['__proto__', 'trailers', 'a, b'],
  ),
  fc.string({ maxLength: 8 }),
)
const field = fc.tuple(
  fieldName,
  fc.constantFrom(': ', ':', ' : ', ':\t'),
  fieldValue,
  fc.constantFrom('\r\n', '\r\n', '\r\n', '\r\n', '\n', '\r'),
)
const body = fc.constantFrom(
  '',
  'abc',
  '3\r\nabc\r\n0\r\n\r\n',
  '0\r\n\r\n',
  '3\nabc\n0\n\n',
  '3;a="\r\n"\r\nabc\r\n0\r\n\r\n',
  '3 \r\nabc\r\n0\r\nX-Trailer: 1\r\nContent-Length: 5\r\n\r\n',
  '0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n',
  'abcGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n',
  'ffffffffffffffff\r\nabc',
  '-1\r\nabc\r\n0\r\n\r\n',
  '0x3\r\nabc\r\n0\r\n\r\n',
)

describe('whatever its fields say', () => {
  it('a request is passed on as exactly one request, or refused', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.constantFrom('GET', 'POST', 'PUT'),
        fc.constantFrom('/v1/files', '/v1/chat/completions', '/other/x'),
        fc.array(field, { maxLength: 6 }),
        body,
        async (name, asked, fields, rest) => {
          guarded.requests.length = 0
          other.requests.length = 0
          const text = fields.map((parts) => parts.join('')).join('')
          const answers = await responses(
            latin1(`${name} ${asked} HTTP/1.1\r\nHost: a\r\n${text}Connection: close\r\n\r\n${rest}`),
          )
          expectOrderly(answers)
          // `Connection: close` ends with the first; only bytes that are no request may be refused after it.
          const accepted = answers.filter(({ line }) => !/^HTTP\/1\.1 (?:100|4\d\d) /.test(line))
          expect(accepted.length).toBeLessThanOrEqual(1)
          for (const { line } of [...guarded.requests, ...other.requests]) expect(line).not.toContain('smuggled')
          await expectAlive()
        },
      ),
      { numRuns: RUNS },
    )
  })
})

describe('a body in a transfer coding other than chunks', () => {
  it.each([
    ['/v1/files', 'Transfer-Encoding: gzip, chunked'],
    ['/v1/chat/completions', 'Transfer-Encoding: gzip, chunked'],
    ['/v1/messages', 'Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked'],
  ])('to %s is refused, as the upstream could not know of it: %s', async (target, coding) => {
    const client = connect(governor.url)
    for (let at = 0; at < 2; at++) {
      client.write(`POST ${target} HTTP/1.1\r\nHost: a\r\n${coding}\r\n\r\n3\r\nabc\r\n0\r\n\r\n`)
      const answer = await client.message()
      expect(answer.line).toBe('HTTP/1.1 501 Not Implemented')
      expect(JSON.parse(answer.body.toString())).toMatchObject({
        error: { message: expect.stringContaining('Content-Encoding') },
      })
    }
    expect(guarded.requests).toEqual([])
    client.socket.destroy()
  })
})

describe('a request that breaks a limit or the rules of HTTP', () => {
  it.each<[string, string, string]>([
    ['a target of 66,000 bytes', '431 Request Header Fields Too Large', `GET /${'a'.repeat(66_000)} HTTP/1.1\r\n`],
    [
      'a field of two megabytes',
      '431 Request Header Fields Too Large',
      `GET / HTTP/1.1\r\nHost: a\r\nX-A: ${'a'.repeat(2_000_000)}`,
    ],
    [
      'a hundred thousand fields',
      '431 Request Header Fields Too Large',
      `GET / HTTP/1.1\r\nHost: a\r\n${'A: b\r\n'.repeat(100_000)}`,
    ],
    [
      'trailers of 66,000 bytes',
      '431 Request Header Fields Too Large',
      `POST /v1/x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ${'a'.repeat(66_000)}`,
    ],
    [
      'two framings of one body',
      '400 Bad Request',
      'POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n',
    ],
    [
      'two lengths',
      '400 Bad Request',
      'POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n',
    ],
    ['no HTTP at all', '400 Bad Request', '\u0016\u0003\u0001\u0002\u0000\u0001'],
    [
      'a chunk whose size is none',
      '400 Bad Request',
      'POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n',
    ],
  ])('is refused with an error that says why: %s', async (_, line, bytes) => {
    const client = connect(governor.url)
    client.write(bytes)
    const answer = await client.message()
    expect(answer.line).toBe(`HTTP/1.1 ${line}`)
    expect(fieldOf(answer, 'connection')).toBe('close')
    expect(JSON.parse(answer.body.toString())).toMatchObject({
      error: {
        type: 'invalid_request_error',
        code: line.startsWith('431') ? 'headers_too_large' : 'malformed_request',
        message: expect.stringContaining(line.startsWith('431') ? '65536 bytes' : 'HTTP/1.1'),
      },
    })
    await client.closed
    await expectAlive()
  })

  it('may have 60,000 bytes of target and fields', async () => {
    const [answer] = await responses(
      latin1(
        `GET /v1/${'a'.repeat(30_000)} HTTP/1.1\r\nHost: a\r\n${'A: b\r\n'.repeat(4_000)}Connection: close\r\n\r\n`,
      ),
    )
    expect(answer?.line).toBe('HTTP/1.1 200 OK')
    expect(guarded.requests[0]?.fields.filter((one) => one === 'A: b')).toHaveLength(4_000)
  })
})
