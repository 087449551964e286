/** A provider that never obeys a limit, whatever the bytes of its responses are. */
import type { ServerResponse } from 'node:http'
import {
  brotliCompressSync,
  brotliDecompressSync,
  constants,
  deflateSync,
  gunzipSync,
  gzipSync,
  inflateSync,
} from 'node:zlib'
import fc from 'fast-check'
import { request as send } from 'undici'
import { expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { serve } from '../support/provider.ts'
import { anthropic, chat, responses } from '../support/stopped.ts'

const MAX = 2
const CALLS = [{ id: 'call_r', name: 'read_it', arguments: { i: 1 } }]
const CALLED = '"read_it"'

type Frames = readonly string[]
/** How a body differs from what the API specifies. */
const FRAMINGS: Readonly<Record<string, (frames: Frames) => string>> = {
  'as specified': (frames) => frames.join(''),
  'lines that end in CR LF': (frames) => frames.join('').replaceAll('\n', '\r\n'),
  'a byte order mark': (frames) => `\ufeff${frames.join('')}`,
  'blank lines first': (frames) => `\n\n\r\n${frames.join('')}`,
  'a comment first': (frames) => `: hello\n\n${frames.join('')}`,
  'a number that JSON does not have': (frames) =>
    frames.join('').replaceAll(/"(index|created|created_at|sequence_number)":\d+/g, '"score":NaN,$&'),
  'single quotes': (frames) => frames.join('').replaceAll('{"', "{'"),
  'no data fields': (frames) => frames.map((frame) => `${frame.replace(/^[^{]*/, '').trim()}\n`).join(''),
  'another last event': (frames) => frames.join('').replaceAll('response.completed', 'response.done'),
  'an error at the end': (frames) =>
    `${frames.join('')}event: error\ndata: {"type":"error","error":{"message":"Lost"}}\n\n`,
  'an error beside the call': (frames) =>
    frames.join('').replace('"choices":', '"error":{"message":"Lost"},"choices":'),
  'the end first': (frames) => [...frames].reverse().join(''),
}

const CODINGS: Readonly<Record<string, readonly [stated: string | undefined, encode: (bytes: Buffer) => Buffer]>> = {
  none: [undefined, (bytes) => bytes],
  gzip: ['gzip', gzipSync],
  brotli: ['br', brotliCompressSync],
  deflate: ['deflate', deflateSync],
  'stated, and not used': ['gzip', (bytes) => bytes],
  'used, and not stated': [undefined, gzipSync],
  unknown: ['acme', (bytes) => bytes],
}

const anyResponse = fc.record({
  status: fc.constantFrom(200, 200, 201, 202, 203, 206, 226),
  type: fc.constantFrom(
    'text/event-stream',
    'application/json',
    'text/plain; charset=utf-8',
    'application/x-ndjson',
    undefined,
  ),
  isStream: fc.boolean(),
  framing: fc.constantFrom(...Object.keys(FRAMINGS)),
  coding: fc.constantFrom('none', 'none', 'none', ...Object.keys(CODINGS)),
  /** How much of the body is sent, and whether the connection breaks off then. */
  sent: fc.oneof(fc.constant(1), fc.double({ min: 0, max: 1, noNaN: true })),
  breaksOff: fc.boolean(),
})
type AnyResponse = typeof anyResponse extends fc.Arbitrary<infer Value> ? Value : never

/** Sends what a response is made of. */
function answer(
  api: (typeof APIS)[number],
  { status, type, isStream, framing, coding, sent, breaksOff }: AnyResponse,
  response: ServerResponse,
) {
  const frames = isStream ? api.frames({ calls: CALLS }) : [JSON.stringify(api.whole({ calls: CALLS }))]
  const [stated, encode] = CODINGS[coding] ?? [undefined, (bytes: Buffer) => bytes]
  const bytes = encode(Buffer.from((FRAMINGS[framing] ?? String)(frames)))
  response.writeHead(status, {
    ...(type ? { 'content-type': type } : {}),
    ...(stated ? { 'content-encoding': stated } : {}),
  })
  const part = bytes.subarray(0, Math.ceil(bytes.length * sent))
  if (sent === 1 || !breaksOff) return response.end(part)
  return response.write(part, () => response.destroy())
}

const APIS = [
  {
    ...chat,
    /** What the history has after so many calls. */
    body: (calls: number) => ({
      messages: [
        { role: 'user', content: 'Go.' },
        ...Array.from({ length: calls }, (_, at) => [
          {
            role: 'assistant',
            content: null,
            tool_calls: [{ id: `c${at}`, type: 'function', function: { name: 'read', arguments: `{"i":${at}}` } }],
          },
          { role: 'tool', tool_call_id: `c${at}`, content: `found ${at}` },
        ]).flat(),
      ],
      tools: [{ type: 'function', function: { name: 'read', parameters: { type: 'object' } } }],
    }),
  },
  {
    ...anthropic,
    body: (calls: number) => ({
      max_tokens: 9,
      messages: [
        { role: 'user', content: 'Go.' },
        ...Array.from({ length: calls }, (_, at) => [
          { role: 'assistant', content: [{ type: 'tool_use', id: `t${at}`, name: 'read', input: { i: at } }] },
          { role: 'user', content: [{ type: 'tool_result', tool_use_id: `t${at}`, content: `found ${at}` }] },
        ]).flat(),
      ],
      tools: [{ name: 'read', input_schema: { type: 'object' } }],
    }),
  },
  {
    ...responses,
    body: (calls: number) => ({
      store: false,
      input: [
        { role: 'user', content: 'Go.' },
        ...Array.from({ length: calls }, (_, at) => [
          { type: 'function_call', call_id: `f${at}`, name: 'read', arguments: `{"i":${at}}` },
          { type: 'function_call_output', call_id: `f${at}`, output: `found ${at}` },
        ]).flat(),
      ],
      tools: [{ type: 'function', name: 'read', parameters: { type: 'object' } }],
    }),
  },
]

/** Returns what came of a body, also before a connection broke off. */
async function bytesOf(body: AsyncIterable<Buffer>): Promise<Buffer> {
  const pieces: Buffer[] = []
  try {
    for await (const piece of body) pieces.push(piece)
  } catch {
    // A client reads the beginning of such a body as well.
  }
  return Buffer.concat(pieces)
}

const UNFINISHED = { finishFlush: constants.Z_SYNC_FLUSH }
/** How a client may read a body, whatever its headers state. */
const READERS: readonly ((bytes: Buffer) => Buffer)[] = [
  (bytes) => bytes,
  (bytes) => gunzipSync(bytes, UNFINISHED),
  (bytes) => inflateSync(bytes, UNFINISHED),
  (bytes) => brotliDecompressSync(bytes, { finishFlush: constants.BROTLI_OPERATION_FLUSH }),
]

/** Returns a body as text; an empty one where it is not in that coding. */
function textBy(read: (bytes: Buffer) => Buffer, bytes: Buffer): string {
  try {
    return read(bytes).toString('latin1')
  } catch {
    return ''
  }
}

it.each(APIS)(
  'for any bytes of a provider that never obeys, at most two responses with calls come after the limit ($name)',
  async (api) => {
    let current: AnyResponse | undefined
    const upstream = await serve((request, response) => {
      request.resume().on('end', () => current && answer(api, current, response))
    })
    onTestFinished(() => upstream.close())
    const { url } = await startGovernor(upstream.url, {
      budget: { max_iterations: MAX },
      loop_guard: { enabled: false },
    })
    let session = 0
    await fc.assert(
      fc.asyncProperty(anyResponse, fc.boolean(), async (made, asksForStream) => {
        current = made
        session++
        let withCalls = 0
        for (let request = 0; request < MAX + 4; request++) {
          const got = await send(`${url}${api.path}`, {
            method: 'POST',
            headers: {
              authorization: 'Bearer k',
              'anthropic-version': '2023-06-01',
              'x-governor-session': `s${session}`,
            },
            body: JSON.stringify({ model: 'm', ...api.body(request), ...(asksForStream ? { stream: true } : {}) }),
          })
            .then(({ body }) => bytesOf(body))
            .catch(() => Buffer.alloc(0))
          if (READERS.some((read) => textBy(read, got).includes(CALLED))) withCalls++
        }
        expect(withCalls).toBeLessThanOrEqual(MAX + 2)
      }),
      { seed: 38, numRuns: 40 },
    )
  },
  60_000,
)
