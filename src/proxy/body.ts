/** Request bodies: read whole up to a bound, or passed on as they come. */
import type { IncomingMessage } from 'node:http'
import { PassThrough, type Readable } from 'node:stream'
import { promisify } from 'node:util'
import zlib from 'node:zlib'
import { headerOf, type RawHeaders } from './headers.ts'

/** The client left before its request was complete. */
export class ClientGone extends Error {
  override readonly name = 'ClientGone'
}

/** Does a request carry a body at all? RFC 9112, section 6. */
export function hasBody(headers: RawHeaders): boolean {
  const length = headerOf(headers, 'content-length')
  return headerOf(headers, 'transfer-encoding') !== undefined || (length !== undefined && Number(length) > 0)
}

/**
 * The body as a stream that the transport may destroy without taking the client's connection with it, as an error
 * reply must still go out on that.
 */
export function streamOf(request: IncomingMessage, first: readonly Buffer[] = []): Readable {
  const body = new PassThrough()
  for (const chunk of first) body.write(chunk)
  request.once('error', (error) => body.destroy(error))
  request.once('close', () => {
    if (!request.complete) body.destroy(new ClientGone('the client left in the middle of its request'))
  })
  body.on('error', () => undefined)
  request.pipe(body)
  // What the upstream did not wait for is read and dropped; else a client that sends before it reads would hang.
  body.once('close', () => request.resume())
  return body
}

/** Bodies up to this many bytes come in one piece, mostly. */
const ONE_PIECE = 65_536

/** Room for a body whose length is known, so that its pieces are copied once and need not be kept until the last. */
function wholeFor(headers: RawHeaders, max: number): Buffer | undefined {
  const length = Number(headerOf(headers, 'content-length') ?? 0)
  return length > ONE_PIECE && length <= max ? Buffer.allocUnsafeSlow(length) : undefined
}

export type ReadBody =
  | { readonly kind: 'whole'; readonly bytes: Buffer }
  | { readonly kind: 'rest'; readonly stream: Readable }

/**
 * Reads a body of at most `max` bytes. A larger one comes back as a stream of all of it, what was read included.
 * @throws {ClientGone}
 */
export function readBody(request: IncomingMessage, max: number): Promise<ReadBody> {
  return new Promise((resolve, reject) => {
    const whole = wholeFor(request.rawHeaders, max)
    const chunks: Buffer[] = []
    let length = 0
    let isOver = false
    const take = (chunk: Buffer) => {
      if (whole) chunk.copy(whole, length)
      else chunks.push(chunk)
      length += chunk.length
      if (length <= max) return
      isOver = true
      request.off('data', take)
      request.pause()
      resolve({ kind: 'rest', stream: streamOf(request, chunks) })
    }
    request.on('data', take)
    // Whoever asks before the bytes come gets them as they come: kept until the next tick, they hold the connection back.
    request.read(0)
    request.on('end', () => {
      if (isOver) return
      isOver = true
      const [only] = chunks
      const bytes = chunks.length === 1 && only ? only : (whole ?? Buffer.concat(chunks, length))
      resolve({ kind: 'whole', bytes })
    })
    // Comes in any case; an error before it only where somebody waits for one.
    request.on('close', () => {
      if (!isOver) reject(new ClientGone('the client left in the middle of its request'))
    })
  })
}

type Decompress = (bytes: Buffer, options: { maxOutputLength: number }) => Promise<Buffer>

function decompressor(encoding: string): Decompress | undefined {
  switch (encoding) {
    case 'gzip':
    case 'x-gzip':
      return promisify(zlib.gunzip) as Decompress
    case 'deflate':
      return promisify(zlib.inflate) as Decompress
    case 'br':
      return promisify(zlib.brotliDecompress) as Decompress
    case 'zstd': {
      // Node has it from 22.15 on.
      const zstd: unknown = Reflect.get(zlib, 'zstdDecompress')
      return typeof zstd === 'function' ? (promisify(zstd as typeof zlib.gunzip) as Decompress) : undefined
    }
    default:
      return undefined
  }
}

/**
 * A body without its content coding (RFC 9110, section 8.4), at most `max` bytes of it; `undefined` where the coding
 * is unknown, the bytes are not in it, or there are more.
 */
export async function decoded(
  bytes: Buffer,
  encoding: string | undefined,
  max: number,
): Promise<Buffer | undefined> {
  const name = encoding?.trim().toLowerCase() || 'identity'
  if (name === 'identity') return bytes
  const decompress = decompressor(name)
  try {
    return await decompress?.(bytes, { maxOutputLength: max })
  } catch {
    return undefined
  }
}

/** A body without its content coding, at once, at most `max` bytes of it; what broke off is undone as far as it came. */
export function decodedAtOnce(bytes: Buffer, encoding: string, max: number): Buffer | undefined {
  const { Z_SYNC_FLUSH, BROTLI_OPERATION_FLUSH } = zlib.constants
  const options = { maxOutputLength: max, finishFlush: Z_SYNC_FLUSH }
  try {
    switch (encoding) {
      case 'gzip':
      case 'x-gzip':
        return zlib.gunzipSync(bytes, options)
      case 'deflate':
        return zlib.inflateSync(bytes, options)
      case 'br':
        return zlib.brotliDecompressSync(bytes, { ...options, finishFlush: BROTLI_OPERATION_FLUSH })
      default:
        return undefined
    }
  } catch {
    return undefined
  }
}
