/** Responses whose bytes are not in the content coding that their head names: the client gets them as they are. */
import { setImmediate } from 'node:timers/promises'
import zlib from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { events, message } from '../support/messages.ts'
import { type ChatBody, chunks, completion, serve } from '../support/provider.ts'
import { rawRequest } from '../support/raw-reply.ts'
import { eventTexts, responseEvents, responseObject } from '../support/responses.ts'

type Compress = (bytes: Buffer) => Buffer

const compressZstd = Reflect.get(zlib, 'zstdCompressSync') as Compress | undefined
const brotli: Compress = (bytes) => zlib.brotliCompressSync(bytes)

/** Node has zstd since 22.15; before, it is one more coding that nobody can read. */
const CODINGS: readonly (readonly [string, Compress])[] = [
  ['identity', (bytes) => bytes],
  ['gzip', zlib.gzipSync],
  ['deflate', zlib.deflateSync],
  ['deflate', zlib.deflateRawSync],
  ['br', brotli],
  ['zstd', compressZstd ?? brotli],
  ['gzip, br', (bytes) => brotli(zlib.gzipSync(bytes))],
  ['x-odd', zlib.gzipSync],
]

/** Changes bytes; `at`: a place in them, from 0 to 1. */
type Corruption = (bytes: Buffer, at: number) => Buffer

function withByte(bytes: Buffer, place: number): Buffer {
  const changed = Buffer.from(bytes)
  const byte = changed.at(place)
  if (byte !== undefined) changed.writeUInt8(byte ^ 0xff, place < 0 ? changed.length + place : place)
  return changed
}

const CORRUPTIONS: Readonly<Record<string, Corruption>> = {
  none: (bytes) => bytes,
  'a wrong checksum': (bytes) => withByte(bytes, -8),
  'a wrong last byte': (bytes) => withByte(bytes, -1),
  'a wrong byte': (bytes, at) => withByte(bytes, Math.floor(at * (bytes.length - 1))),
  'bytes after the end': (bytes) => Buffer.concat([bytes, Buffer.from('{"id":"more"}')]),
  'the body twice': (bytes) => Buffer.concat([bytes, bytes]),
  'zeros after the end': (bytes) => Buffer.concat([bytes, Buffer.alloc(100_000)]),
  'an early end': (bytes, at) => bytes.subarray(0, Math.floor(at * bytes.length)),
  'no bytes': () => Buffer.alloc(0),
}

const ASKED = { model: 'm', messages: [{ role: 'user', content: 'Go.' }], tools: [] } satisfies ChatBody
const ANSWER = { text: `${'So it is. '.repeat(40)}`, calls: [{ name: 'search', arguments: { query: 'it' } }] }
const TOOL = { name: 'search', description: 'Finds.' }
const INPUT_SCHEMA = { input_schema: { type: 'object' } }

/** For each API: its path, the fields of a request that the provider keeps or not, and its answers. */
const DIALECTS = {
  chat: {
    path: '/v1/chat/completions',
    body: (isStored: boolean) => ({ ...ASKED, store: isStored, tools: [{ type: 'function', function: TOOL }] }),
    answer: (streams: boolean) =>
      streams ? chunks(ASKED, ANSWER, 1).join('') : JSON.stringify(completion(ASKED, ANSWER, 1)),
  },
  responses: {
    path: '/v1/responses',
    body: (isStored: boolean) => ({
      model: 'm',
      input: 'Go.',
      store: isStored,
      tools: [{ type: 'function', ...TOOL }],
    }),
    answer: (streams: boolean) => {
      const whole = responseObject(ASKED, ANSWER, 1)
      return streams ? eventTexts(responseEvents(whole)).join('') : JSON.stringify(whole)
    },
  },
  messages: {
    path: '/v1/messages',
    body: (isStored: boolean) => ({
      ...ASKED,
      max_tokens: 100,
      tools: [{ ...TOOL, ...INPUT_SCHEMA }],
      ...(isStored ? { thread: { type: 'create' } } : {}),
    }),
    answer: (streams: boolean) =>
      streams ? events(ASKED, ANSWER, 1).join('') : JSON.stringify(message(ASKED, ANSWER, 1)),
  },
} as const

type Name = keyof typeof DIALECTS

interface Reply {
  readonly coding: string
  readonly streams: boolean
  readonly pieces: readonly Buffer[]
}

/** Governor in front of a provider that sends what the newest reply says, piece by piece. */
async function startReplies() {
  let reply: Reply
  const upstream = await serve(async (request, response) => {
    const { coding, streams, pieces } = reply
    for await (const _ of request);
    response.writeHead(200, {
      'content-type': streams ? 'text/event-stream' : 'application/json',
      ...(coding === 'identity' ? {} : { 'content-encoding': coding }),
    })
    response.flushHeaders()
    for (const piece of pieces) {
      response.write(piece)
      await setImmediate()
    }
    response.end()
  })
  onTestFinished(() => upstream.close())
  const { url } = await startGovernor(upstream.url, { loop_guard: { enabled: false } })
  return async (name: Name, isStored: boolean, now: Reply) => {
    reply = now
    const { path, body } = DIALECTS[name]
    return await rawRequest(url + path, JSON.stringify({ ...body(isStored), stream: now.streams }))
  }
}

function inPieces(bytes: Buffer, count: number): Buffer[] {
  const size = Math.ceil(bytes.length / count) || 1
  const pieces: Buffer[] = []
  for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.subarray(at, at + size))
  return pieces
}

const NAMES = Object.keys(DIALECTS) as Name[]
const BOTH = [true, false]
const WAYS = NAMES.flatMap((name) =>
  BOTH.flatMap((streams) => BOTH.map((isStored) => ({ name, streams, isStored }))),
).map((way, number) => ({ ...way, number }))

describe.each(WAYS)('the client of $name (streamed: $streams, kept by the provider: $isStored)', (way) => {
  const { name, streams, isStored, number } = way
  const plain = Buffer.from(DIALECTS[name].answer(streams))

  it('gets every byte and the end of a response in any coding with any fault', async () => {
    const send = await startReplies()
    // A third of all combinations: the twelve ways take turns, so that each coding meets each fault in four of them.
    for (const [of, [coding, compress]] of CODINGS.entries())
      for (const [at, [fault, corrupt]] of Object.entries(CORRUPTIONS).entries()) {
        if ((of + at + number) % 3 !== 0) continue
        const bytes = corrupt(compress(plain), 0.5)
        const { status, body } = await send(name, isStored, { coding, streams, pieces: inPieces(bytes, 2) })
        expect([coding, fault, status, body.equals(bytes)]).toEqual([coding, fault, 200, true])
      }
  })

  it('gets every byte and the end of a response that another coding is named for, cut or wrong anywhere', async () => {
    const send = await startReplies()
    const coding = fc.constantFrom(...CODINGS)
    const fault = fc.constantFrom(...Object.values(CORRUPTIONS))
    const place = fc.double({ min: 0, max: 1, noNaN: true })
    const property = fc.asyncProperty(
      coding,
      coding,
      fault,
      fault,
      place,
      fc.integer({ min: 1, max: 4 }),
      async ([, compress], [named], one, other, at, count) => {
        const bytes = other(one(compress(plain), at), 1 - at)
        const { body } = await send(name, isStored, { coding: named, streams, pieces: inPieces(bytes, count) })
        expect(body.equals(bytes)).toBe(true)
      },
    )
    await fc.assert(property, { numRuns: 10 })
  })
})
