/** JSON and compressed bodies that no honest client sends: relayed as they came, while others are served. */
import { brotliCompressSync, constants, deflateSync, gzipSync } from 'node:zlib'
import fc from 'fast-check'
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { PLACES, SHAPES } from '../support/foreign.ts'
import { type Answering, closeRaw, connect, fieldOf, listenAnswering, openGovernor } from '../support/raw.ts'

/** More runs take longer and find more. */
const RUNS = Number(process.env['HOSTILE_RUNS'] ?? 150)

const PATHS = { chat: '/v1/chat/completions', messages: '/v1/messages', responses: '/v1/responses' } as const
const OK = 'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}'

let upstream: Answering
let governor: { url: string; close(): Promise<void> }

beforeAll(async () => {
  upstream = await listenAnswering()
  upstream.reply = OK
  governor = await openGovernor(upstream.url, { budget: { run: { max_cost_usd: 5 } } })
})
afterAll(() => closeRaw(governor, upstream))
beforeEach(() => {
  upstream.requests.length = 0
})

/** Posts a body on a connection of its own; returns the answer. */
async function post(path: string, body: Buffer, fields: readonly string[] = []) {
  const client = connect(governor.url)
  const head = [`POST ${path} HTTP/1.1`, 'Host: a', ...fields, `Content-Length: ${body.length}`]
  client.write(Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`, 'latin1'), body]))
  const answer = await client.message()
  client.socket.destroy()
  return answer
}

const NAMES = ['__proto__', 'constructor', 'prototype', 'toString', 'hasOwnProperty', 'valueOf', '__defineGetter__']

/** JSON texts, and texts that only look like JSON. */
const value = fc.oneof(
  fc.constantFrom(
    ...['1e400', '-1e400', '1E-400', '-0', '0.1e999999999', `${'9'.repeat(5_000)}`, `1.${'0'.repeat(5_000)}1`],
    ...['NaN', 'Infinity', '-Infinity', 'undefined', '01', '+1', '1.', '.5', '0x10', "'a'", 'tru', 'nulll', ''],
    ...['""', '[]', '{}', 'null', 'true', '0', '[[]]', '[null]', '{"":{}}', '[{}]', '"\\ud800"', '"\\udc00\\ud800"'],
    ...['"\\u0000"', '"\u202egnp.exe"', '"<img src=x onerror=alert(1)>"', '"\\u001b[31m"', '"\ufeff"', '"\u2028"'],
    ...[
      '{"a":1,"a":2}',
      '{"role":"user","role":"tool"}',
      '{"content":"a","content":null}',
      '[1,]',
      '{"a":1,}',
      '/**/1',
    ],
    ...NAMES.map((name) => JSON.stringify(name)),
    ...NAMES.map((name) => `{${JSON.stringify(name)}:{${JSON.stringify(name)}:{"isAdmin":true}}}`),
  ),
  fc.json({ maxDepth: 3 }),
  fc.string({ unit: 'binary' }).map((text) => JSON.stringify(text)),
  fc.tuple(fc.constantFrom(...Object.values(SHAPES)), fc.constantFrom(100, 50_000)).map(([shape, size]) => shape(size)),
)
const place = fc.constantFrom(
  ...Object.entries(PLACES).flatMap(([dialect, places]) =>
    Object.values(places).map((make) => ({ path: PATHS[dialect as keyof typeof PATHS], make })),
  ),
)

describe('a body with anything in any place', () => {
  it('arrives byte for byte, and leaves no trace in any prototype', async () => {
    const before = Object.getOwnPropertyNames(Object.prototype).length
    await fc.assert(
      fc.asyncProperty(place, value, fc.boolean(), async ({ path, make }, given, isBroken) => {
        upstream.requests.length = 0
        const text = Buffer.from(make(given))
        // Bytes that are no UTF-8, and a body that ends in the middle.
        const bytes = isBroken ? Buffer.concat([text.subarray(0, text.length - 3), Buffer.from([0xff, 0xc0])]) : text
        const answer = await post(path, bytes)
        expect(answer.line).toBe('HTTP/1.1 200 OK')
        expect(upstream.requests.map(({ body }) => body.equals(bytes))).toEqual([true])
      }),
      { numRuns: RUNS },
    )
    expect(Object.getOwnPropertyNames(Object.prototype)).toHaveLength(before)
    expect(({} as Record<string, unknown>)['isAdmin']).toBeUndefined()
  })

  it.each<[string, string]>([
    ['brackets 50,000 deep', `{"messages":${'['.repeat(50_000)}${']'.repeat(50_000)},"tools":[{}]}`],
    ['objects 50,000 deep', `{"messages":${'{"a":'.repeat(50_000)}1${'}'.repeat(50_000)},"tools":[{}]}`],
    [
      'a text of 1 MB as its model',
      `{"model":"${'m'.repeat(1_000_000)}","messages":[{"role":"user","content":"a"}],"tools":[{}]}`,
    ],
    [
      'a text of 1 MB as its session',
      `{"metadata":{"session_id":"${'\\u0000é\\n'.repeat(100_000)}"},"messages":[{"role":"user","content":"a"}],"tools":[{}]}`,
    ],
    ['100,000 keys of one name', `{${'"messages":[],'.repeat(100_000)}"tools":[{}]}`],
  ])('arrives byte for byte: %s', async (_, text) => {
    const answer = await post('/v1/chat/completions', Buffer.from(text))
    expect(answer.line).toBe('HTTP/1.1 200 OK')
    expect(upstream.requests[0]?.body.toString()).toBe(text)
  })
})

/** A body of `size` bytes that is small once it is compressed. */
const BOMB = Buffer.from(`{"messages":[{"role":"user","content":"${' '.repeat(80 * 1024 * 1024)}"}],"tools":[{}]}`)
const brotli = (bytes: Buffer) => brotliCompressSync(bytes, { params: { [constants.BROTLI_PARAM_QUALITY]: 4 } })

describe('a body that unpacks to 80 MB', () => {
  it.each<[string, (bytes: Buffer) => Buffer]>([
    ['gzip', gzipSync],
    ['deflate', deflateSync],
    ['br', brotli],
    ['gzip, gzip', (bytes) => gzipSync(gzipSync(bytes))],
    ['br, gzip', (bytes) => gzipSync(brotli(bytes))],
  ])('in %s is relayed as it came, in little memory, while others are served', async (coding, compress) => {
    const bomb = compress(BOMB)
    const before = process.memoryUsage().rss
    let peak = before
    const look = setInterval(() => {
      peak = Math.max(peak, process.memoryUsage().rss)
    }, 5)
    const bombs = Array.from({ length: 8 }, () => post('/v1/chat/completions', bomb, [`Content-Encoding: ${coding}`]))
    const others = Array.from({ length: 20 }, () =>
      post('/v1/chat/completions', Buffer.from('{"messages":[],"tools":[{}]}')),
    )
    const served = await Promise.all(others)
    const answers = await Promise.all(bombs)
    clearInterval(look)
    for (const { line } of [...served, ...answers]) expect(line).toBe('HTTP/1.1 200 OK')
    const arrived = upstream.requests.filter((request) => fieldOf(request, 'content-encoding') === coding)
    expect(arrived.map(({ body }) => body.equals(bomb))).toEqual(bombs.map(() => true))
    // Eight of them would take 640 MB; all buffers together may take server.max_buffered, 256 MB.
    expect(peak - before).toBeLessThan(450 * 1024 * 1024)
  })
})
