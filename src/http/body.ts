/** Reads request bodies whole, up to a limit, or passes them on as streams; undoes content codings. */
import type { IncomingMessage } from 'node:http'
import { Readable, type Transform } from 'node:stream'
import zlib from 'node:zlib'
import { type Lease, REQUESTS_PART } from './buffer-budget.ts'
import { headerOf, type RawHeaders } from './headers.ts'

/** The client left before its request was complete. */
export class ClientGone extends Error {
  override readonly name = 'ClientGone'
}

/** Returns true if a request has a body (RFC 9112, section 6). */
export function hasBody(headers: RawHeaders): boolean {
  const length = headerOf(headers, 'content-length')
  return headerOf(headers, 'transfer-encoding') !== undefined || (length !== undefined && Number(length) > 0)
}

/**
 * Returns the body as a stream, after the chunks in `first`. The transport may destroy it without closing the client's
 * connection, on which an error must still be sent. It holds no chunk while the transport can't take one.
 */
export function streamOf(request: IncomingMessage, first: readonly Buffer[] = []): Readable {
  const body = new Readable({ highWaterMark: 1, read: () => void request.resume() })
  for (const chunk of first) body.push(chunk)
  const take = (chunk: Buffer) => {
    if (!body.push(chunk)) request.pause()
  }
  request.pause()
  request.on('data', take)
  request.once('end', () => body.push(null))
  request.once('error', (error) => body.destroy(error))
  request.once('close', () => {
    if (!request.complete) body.destroy(new ClientGone('the client left in the middle of its request'))
  })
  body.on('error', () => undefined)
  body.on('pause', () => request.pause())
  body.on('resume', () => request.resume())
  // The rest that the upstream did not read is dropped; else a client that sends all before it reads would hang.
  body.once('close', () => {
    request.off('data', take)
    request.resume()
  })
  return body
}

/** Bodies up to so many bytes mostly arrive in one chunk. */
const ONE_PIECE = 65_536

/** Why a body is not read or not decoded. */
export type Unread = 'body_too_large' | 'no_room' | 'unknown_encoding' | 'unreadable_body'

/** A whole body; or why there is none, with a stream of all of it. */
export type ReadBody =
  | { readonly kind: 'whole'; readonly bytes: Buffer }
  | { readonly kind: 'rest'; readonly why: Unread; readonly stream: Readable }

/**
 * Reads a body of at most `max` bytes for which `lease` has room. Any other body is returned as a stream of all its bytes,
 * including those that were read. An announced length is taken at once: else many large bodies that arrive together would
 * each get a part of the room, and none would be read whole.
 * @throws {ClientGone}
 */
export function readBody(request: IncomingMessage, max: number, lease: Lease): Promise<ReadBody> {
  return new Promise((resolve, reject) => {
    const announced = Number(headerOf(request.rawHeaders, 'content-length') ?? 0)
    const unread =
      announced > max ? 'body_too_large' : lease.grow(announced, REQUESTS_PART) ? undefined : 'no_room'
    if (unread) {
      resolve({ kind: 'rest', why: unread, stream: streamOf(request) })
      return
    }
    // Bodies of known length are copied into one buffer, and their chunks are not kept.
    const whole = announced > ONE_PIECE ? Buffer.allocUnsafeSlow(announced) : undefined
    const chunks: Buffer[] = []
    let length = 0
    let isOver = false
    const leave = (why: Unread) => {
      isOver = true
      request.off('data', take)
      request.pause()
      resolve({ kind: 'rest', why, stream: streamOf(request, chunks) })
    }
    const take = (chunk: Buffer) => {
      if (whole) chunk.copy(whole, length)
      else chunks.push(chunk)
      length += chunk.length
      if (length > max) leave('body_too_large')
      else if (length > announced && !lease.grow(chunk.length, REQUESTS_PART)) leave('no_room')
    }
    request.on('data', take)
    // Starts reading now and not in the next tick, so that the first bytes are taken as soon as they arrive.
    request.read(0)
    request.on('end', () => {
      if (isOver) return
      isOver = true
      const [only] = chunks
      const bytes = chunks.length === 1 && only ? only : (whole ?? Buffer.concat(chunks, length))
      resolve({ kind: 'whole', bytes })
    })
    // `close` always comes; `error` comes only if there is a listener for it.
    request.on('close', () => {
      if (isOver) return
      isOver = true
      reject(new ClientGone('the client left in the middle of its request'))
    })
  })
}

/** Bytes of a decoder's chunks. */
const CHUNK = 65_536

/** Returns `undefined` before Node 22.15, which has no zstd. */
function zstdDecoder(): Transform | undefined {
  const create: unknown = Reflect.get(zlib, 'createZstdDecompress')
  return typeof create === 'function' ? (create as typeof zlib.createGunzip)({ chunkSize: CHUNK }) : undefined
}

/** A stream that undoes a content coding. */
export type Decoder = Transform

/**
 * Returns a stream that undoes a content coding (RFC 9110, section 8.4); `undefined` for an unknown one. `flushes`: each
 * chunk gives all that it holds, as a stream of events needs it.
 */
export function decoderFor(encoding: string, flushes = false): Decoder | undefined {
  const flush = flushes ? zlib.constants.Z_SYNC_FLUSH : zlib.constants.Z_NO_FLUSH
  switch (encoding) {
    case 'gzip':
    case 'x-gzip':
      return zlib.createGunzip({ flush, chunkSize: CHUNK })
    case 'deflate':
      return zlib.createInflate({ flush, chunkSize: CHUNK })
    case 'br':
      return zlib.createBrotliDecompress({ chunkSize: CHUNK })
    case 'zstd':
      return zstdDecoder()
    default:
      return undefined
  }
}

/** More bytes than this are decoded into one buffer, so that they are not in memory twice. */
const IN_PIECES = 1_048_576

/** Returns a buffer of `max` bytes that begins with the pieces; the system allocates only pages that are written. */
function inOnePiece(pieces: readonly Buffer[], max: number): Buffer {
  const whole = Buffer.allocUnsafeSlow(max)
  let end = 0
  for (const piece of pieces) end += piece.copy(whole, end)
  return whole
}

/** Returns a body without its content coding; or why not, also if it is longer than `max` bytes. Stops decoding there. */
export async function unpacked(
  bytes: Buffer,
  encoding: string | undefined,
  max: number,
  lease?: Lease,
): Promise<Buffer | Unread> {
  const name = encoding?.trim().toLowerCase() || 'identity'
  if (name === 'identity') return bytes
  const decoder = decoderFor(name)
  if (!decoder) return 'unknown_encoding'
  const pieces: Buffer[] = []
  let whole: Buffer | undefined
  let length = 0
  const keep = (chunk: Buffer): void => {
    whole ??= length > IN_PIECES ? inOnePiece(pieces, max) : undefined
    if (whole) chunk.copy(whole, length - chunk.length)
    else pieces.push(chunk)
  }
  decoder.end(bytes)
  try {
    for await (const chunk of decoder as AsyncIterable<Buffer>) {
      length += chunk.length
      if (length > max) return 'body_too_large'
      if (lease && !lease.grow(chunk.length)) return 'no_room'
      keep(chunk)
    }
  } catch {
    return 'unreadable_body'
  }
  return whole ? whole.subarray(0, length) : Buffer.concat(pieces, length)
}

/** Returns the same, or `undefined` for any reason. */
export async function decoded(
  bytes: Buffer,
  encoding: string | undefined,
  max: number,
  lease?: Lease,
): Promise<Buffer | undefined> {
  const plain = await unpacked(bytes, encoding, max, lease)
  return Buffer.isBuffer(plain) ? plain : undefined
}

/** Decodes synchronously, at most `max` bytes. Returns as much of a truncated body as can be decoded; `undefined` on failure. */
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
