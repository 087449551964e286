/** An upstream's response as something to read from, for the few that Governor rewrites. */
import { PassThrough, type Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import zlib from 'node:zlib'
import { decoderFor } from '../http/body.ts'
import type { Lease } from '../http/buffer-budget.ts'
import { contentEncoding, withHeaders } from '../http/headers.ts'
import type { Failure, Flow, Head, UpstreamCall } from '../http/upstream.ts'
import type { ResponseObserver } from '../usage/observe.ts'
import type { Exchange } from './begin-exchange.ts'

/** The upstream did not answer, or broke off. */
export class UpstreamFailed extends Error {
  override readonly name = 'UpstreamFailed'
  readonly failure: Failure
  constructor(failure: Failure) {
    super(failure.message, { cause: failure.cause })
    this.failure = failure
  }
}

export interface UpstreamResponse {
  readonly head: Head
  /** The body as it came; reading throws {UpstreamFailed} when the response breaks off. */
  readonly body: Readable
}

/**
 * Calls the upstream and waits for its response headers. `tapFor` says what looks at the response besides.
 * @throws {UpstreamFailed}
 */
export function open(
  exchange: Exchange,
  call: UpstreamCall,
  tapFor?: (head: Head) => ResponseObserver | undefined,
): Promise<UpstreamResponse> {
  return new Promise((resolve, reject) => {
    const body = new PassThrough()
    let flow: Flow | undefined
    let observer: ResponseObserver | undefined
    // A response that breaks off while nobody reads it is not a crash.
    body.on('error', () => undefined)
    body.on('drain', () => flow?.resume())
    const callOff = exchange.call(call, {
      start(head, started) {
        flow = started
        observer = tapFor?.(head)
        resolve({ head, body })
      },
      data(chunk) {
        observer?.take(chunk)
        if (!body.write(chunk)) flow?.pause()
      },
      end() {
        body.end()
        observer?.end()
      },
      fail(failure) {
        observer?.end()
        const error = new UpstreamFailed(failure)
        if (flow) body.destroy(error)
        else reject(error)
      },
    })
    // Whoever stops reading does not want the rest.
    body.once('close', callOff)
  })
}

/** The body without its content coding, to be called once; `undefined` where that is one Governor does not know. */
export function plainBody({ head, body }: UpstreamResponse): AsyncIterable<Buffer> | undefined {
  const encoding = contentEncoding(head.headers)
  if (encoding === 'identity') return body
  const decoder = decoderFor(encoding, zlib.constants.Z_SYNC_FLUSH)
  if (!decoder) return undefined
  const plain = new PassThrough()
  pipeline(body, decoder, plain).catch((error: Error) => plain.destroy(error))
  return plain
}

/** Asks for a response without a content coding, which would have to be undone before anything can be read or changed. */
export function withoutCompression(call: UpstreamCall): UpstreamCall {
  return { ...call, headers: withHeaders(call.headers, { 'accept-encoding': 'identity' }) }
}

/** The beginning of a body, and what is left where that was not all. */
export interface Beginning {
  readonly bytes: Buffer
  readonly rest: AsyncIterable<Buffer> | undefined
}

/** Reads a body of at most `max` bytes whole, where `lease` has room for it; of any other, little more than that. */
export async function readUpTo(body: AsyncIterable<Buffer>, max: number, lease: Lease): Promise<Beginning> {
  const iterator = body[Symbol.asyncIterator]()
  const chunks: Buffer[] = []
  let length = 0
  for (;;) {
    const { done, value } = await iterator.next()
    if (done) return { bytes: Buffer.concat(chunks, length), rest: undefined }
    chunks.push(value)
    length += value.length
    if (length > max || !(await lease.grow(value.length)))
      return { bytes: Buffer.concat(chunks, length), rest: { [Symbol.asyncIterator]: () => iterator } }
  }
}
