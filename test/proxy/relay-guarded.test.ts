/** Guarded requests with the verdict `allow`: Governor reads and counts them, and sends the client's exact bytes. */
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import fc from 'fast-check'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import {
  type Answering,
  closeRaw,
  connect,
  endToEnd,
  fieldOf,
  listenAnswering,
  openGovernor,
  type Wire,
} from '../support/raw.ts'

let upstream: Answering
let governor: { url: string; close(): Promise<void> }
let client: Wire

beforeAll(async () => {
  upstream = await listenAnswering()
  governor = await openGovernor(upstream.url)
  client = connect(governor.url)
})
afterAll(() => closeRaw(governor, upstream))
beforeEach(() => {
  upstream.requests.length = 0
})

/** Sends a body and returns the request that arrived, and the verdict. */
async function passed(body: Buffer, fields: readonly string[] = []) {
  upstream.requests.length = 0
  const head = ['POST /v1/chat/completions HTTP/1.1', 'Host: a', ...fields, `Content-Length: ${body.length}`]
  client.write(Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`, 'latin1'), body]))
  const answer = await client.message()
  expect(upstream.requests).toHaveLength(1)
  const [request] = upstream.requests
  if (!request) throw new Error('nothing arrived')
  return { request, decision: fieldOf(answer, 'x-governor-verdict') }
}

const TOOLS = '"tools":[{"type":"function","function":{"name":"f"}}]'
const MESSAGES = '"messages":[{"role":"user","content":"hi"}]'
const latin1 = (text: string) => Buffer.from(text, 'latin1')

describe('a body that is a conversation with tools arrives byte for byte:', () => {
  it.each<[string, string | Buffer]>([
    ['numbers that JavaScript has not', `{"n":9007199254740993,"x":1.0,"e":1E+2,"z":-0,${MESSAGES},${TOOLS}}`],
    ['a key twice', `{"model":"a","model":"b",${MESSAGES},"user":"1","user":"2",${TOOLS}}`],
    ['escapes', `{"\\u006dodel":"\\u0061\\/\\uD83E\\uDDF5",${MESSAGES},"s":"\\ud800",${TOOLS}}`],
    ['white space and line ends', ` \r\n\t{ "model" : "m" ,\r\n\r\n ${MESSAGES} ,\n\t${TOOLS}\r\n} \r\n\r\n`],
    ['keys like __proto__', `{"__proto__":{"a":1},"constructor":null,${MESSAGES},${TOOLS}}`],
    ['characters of four bytes', `{"messages":[{"role":"user","content":"🧵日é\u2028"}],${TOOLS}}`],
    ['very deep values', `{${MESSAGES},${TOOLS},"deep":${'['.repeat(5_000)}${']'.repeat(5_000)}}`],
    ['a large text', `{"messages":[{"role":"user","content":"${'long '.repeat(200_000)}"}],${TOOLS}}`],
    ['unknown fields everywhere', `{${MESSAGES},${TOOLS},"x":{"y":[null,true]},"tool_choice":"auto"}`],
  ])('%s', async (_, body) => {
    const bytes = Buffer.from(body)
    const { request, decision } = await passed(bytes, ['Content-Type: application/json; charset=utf-8', 'x-b: 1'])
    expect(decision).toBe('allow')
    expect(request.body.equals(bytes)).toBe(true)
    expect(request.fields).toContain(`content-length: ${bytes.length}`)
    expect(endToEnd(request)).toEqual(['Content-Type: application/json; charset=utf-8', 'x-b: 1'])
  })

  it.each([
    ['gzip', gzipSync(`{${MESSAGES},${TOOLS}}`)],
    ['X-GZIP', gzipSync(`{${MESSAGES},${TOOLS}}`)],
    ['br', brotliCompressSync(`{${MESSAGES},${TOOLS}}`)],
    ['deflate', deflateSync(`{${MESSAGES},${TOOLS}}`)],
    ['identity', Buffer.from(`{${MESSAGES},${TOOLS}}`)],
  ])('compressed with %s', async (encoding, bytes) => {
    const { request, decision } = await passed(bytes, [`Content-Encoding: ${encoding}`])
    expect(decision).toBe('allow')
    expect(request.body.equals(bytes)).toBe(true)
    expect(endToEnd(request)).toEqual([`Content-Encoding: ${encoding}`])
  })

  it('sent in chunks', async () => {
    const body = `{${MESSAGES},${TOOLS}}`
    const [one, two] = [body.slice(0, 7), body.slice(7)]
    client.write('POST /v1/chat/completions?x=%20 HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n')
    client.write(`7\r\n${one}\r\n${two.length.toString(16)}\r\n${two}\r\n0\r\n\r\n`)
    const answer = await client.message()
    expect(fieldOf(answer, 'x-governor-verdict')).toBe('allow')
    expect(upstream.requests[0]?.line).toBe('POST /v1/chat/completions?x=%20 HTTP/1.1')
    expect(upstream.requests[0]?.body.toString()).toBe(body)
  })
})

describe('a body that cannot be evaluated arrives byte for byte:', () => {
  it.each<[string, Buffer, string[]]>([
    ['a byte order mark first', Buffer.from(`\ufeff{${MESSAGES},${TOOLS}}`), []],
    ['no tools', Buffer.from(`{"model":"m",${MESSAGES}}`), []],
    ['not JSON at all', Buffer.from('model=m&messages=hi'), []],
    ['cut off', Buffer.from(`{${MESSAGES},${TOOLS}`), []],
    ['two values', Buffer.from(`{${MESSAGES},${TOOLS}}{}`), []],
    ['comments and a trailing comma', Buffer.from(`{/* c */${MESSAGES},${TOOLS},}`), []],
    ['single quotes', Buffer.from("{'messages':[]}"), []],
    ['NaN', Buffer.from(`{"temperature":NaN,${MESSAGES},${TOOLS}}`), []],
    ['a list', Buffer.from('[1,2]'), []],
    ['null', Buffer.from('null'), []],
    ['a text', Buffer.from('"text"'), []],
    ['white space', Buffer.from(' \r\n '), []],
    ['nothing', Buffer.alloc(0), []],
    ['bytes that are no UTF-8', latin1(`{"messages":[{"role":"user","content":"\xff\xfe\xe9"}],${TOOLS}}`), []],
    ['UTF-16', Buffer.from(`\ufeff{${MESSAGES},${TOOLS}}`, 'utf16le'), []],
    ['messages that are none', Buffer.from(`{"messages":"hi",${TOOLS}}`), []],
    ['messages of every odd kind', Buffer.from(`{"messages":[null,1,"x",[],{"role":7}],${TOOLS}}`), []],
    ['tools that are none', Buffer.from(`{${MESSAGES},"tools":{"a":1}}`), []],
    ['zero bytes', Buffer.alloc(100), []],
    ['gzip that is none', Buffer.from(`{${MESSAGES},${TOOLS}}`), ['Content-Encoding: gzip']],
    ['gzip cut off', gzipSync(`{${MESSAGES},${TOOLS}}`).subarray(0, 30), ['Content-Encoding: gzip']],
    ['a coding nobody knows', Buffer.from('\x01\x02'), ['Content-Encoding: x-odd']],
    ['two codings', gzipSync(gzipSync(`{${MESSAGES},${TOOLS}}`)), ['Content-Encoding: gzip, gzip']],
    ['gzip of far too much', gzipSync(Buffer.alloc(70 * 1024 * 1024)), ['Content-Encoding: gzip']],
  ])('%s', async (_, bytes, fields) => {
    const { request } = await passed(bytes, fields)
    expect(request.body.equals(bytes)).toBe(true)
    expect(endToEnd(request)).toEqual(fields)
  })

  it('one that is larger than server.max_guarded_body', async () => {
    const small = await openGovernor(upstream.url, {}, { max_guarded_body: '1kb' })
    const other = connect(small.url)
    const body = `{"messages":[{"role":"user","content":"${'x'.repeat(100_000)}"}],${TOOLS}}`
    other.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${body.length}\r\n\r\n${body}`)
    await other.message()
    expect(upstream.requests[0]?.body.toString()).toBe(body)
    other.socket.destroy()
    await small.close()
  })
})

describe('the body of a request to a guarded path', () => {
  const space = fc.string({ unit: fc.constantFrom(' ', '\t', '\n', '\r'), maxLength: 3 })
  const number = fc.constantFrom('1.0', '-0', '9007199254740993', '1E5', '0.1e-7', '12345678901234567890.5')
  const value = fc.oneof(fc.json({ maxDepth: 3 }), number)
  const text = fc.string({ unit: 'binary' }).map((content) => JSON.stringify(content))

  it('arrives byte for byte under the verdict allow, for any JSON', async () => {
    const fields = fc.array(fc.tuple(fc.string({ minLength: 1 }), value), { maxLength: 6 })
    await fc.assert(
      fc.asyncProperty(text, fields, fc.nat(6), space, async (content, extra, place, gap) => {
        const known = [`"messages":${gap}[{"role":"user",${gap}"content":${content}}]`, TOOLS]
        const rest = extra.map(([name, json]) => `${JSON.stringify(`x_${name}`)}${gap}:${gap}${json}`)
        const members = [...rest.slice(0, place), ...known, ...rest.slice(place)]
        const bytes = Buffer.from(`${gap}{${members.join(`${gap},${gap}`)}}${gap}`)
        const { request, decision } = await passed(bytes)
        expect(decision).toBe('allow')
        expect(request.body.equals(bytes)).toBe(true)
      }),
      { numRuns: 60 },
    )
  })

  it('arrives byte for byte, for any bytes', async () => {
    await fc.assert(
      fc.asyncProperty(fc.oneof(fc.uint8Array({ maxLength: 200 }), value.map(Buffer.from)), async (given) => {
        const bytes = Buffer.from(given)
        expect((await passed(bytes)).request.body.equals(bytes)).toBe(true)
      }),
      { numRuns: 60 },
    )
  })
})
