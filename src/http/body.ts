/** Reads request bodies whole, up to a limit, or passes them on as streams; undoes content codings. */
import { Readable, type Transform } from 'node:stream'
import zlib, { type ZlibOptions } from 'node:zlib'
import type { Client } from './client.ts'
import { headerOf, type RawHeaders, valuesOf, withHeaders } from './headers.ts'
import type { UpstreamCall } from './upstream.ts'

/** The client left before its request was complete. */
export class ClientGone extends Error {
  override readonly name = 'ClientGone'
}

/** Returns true if a request has a body (RFC 9112, section 6). */
export function hasBody(headers: RawHeaders): boolean {
  const length = headerOf(headers, 'content-length')
  return headerOf(headers, 'transfer-encoding') !== undefined || (length !== undefined && Number(length) > 0)
}

/** Returns the body as a stream after `first`, which can be destroyed without closing the connection. */
export function streamOf(request: Readable, first: readonly Buffer[] = []): Readable {
  const body = new Readable({ highWaterMark: 1, read: () => void request.resume() })
  for (const chunk of first) body.push(chunk)
  const take = (chunk: Buffer) => {
    if (!body.push(chunk)) request.pause()
  }
  request.pause()
  request.on('data', take)
  request.once('end', () => body.push(null))
  // `close` always comes; `error` comes only if there is a listener for it.
  request.once('close', () => {
    if (!request.readableEnded) body.destroy(new ClientGone('the client left in the middle of its request'))
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

/** Returns the bytes of a body that goes upstream; 0 for a stream, whose length is not known. */
export function lengthOf(body: UpstreamCall['body']): number {
  if (Buffer.isBuffer(body)) return body.length
  return Array.isArray(body) ? body.reduce((sum: number, piece: Buffer) => sum + piece.length, 0) : 0
}

/** Bounds the memory of all bodies that are held at a time. Changed by leases alone. */
export interface BufferBudget {
  readonly max: number
  /** Bytes that all leases hold. */
  held: number
}

/** The bytes that one body takes from the budget. */
export interface Lease {
  /** Takes more bytes; returns false, and takes none, if that were more than a `part` (0 to 1) of the budget. */
  grow(bytes: number, part?: number): boolean
  /** Gives all bytes back, and takes none any more. May be called again. */
  readonly release: () => void
}

/** The part for bodies as they come: a quarter is left for decoded bodies and the last answers of stopped runs. */
const REQUESTS_PART = 0.75

/** Returns a lease that is released when the client's response is over, at the latest. */
export function leaseFor(budget: BufferBudget, client: Pick<Client, 'onClose'>): Lease {
  let taken = 0
  let isReleased = false
  const release = () => {
    isReleased = true
    budget.held -= taken
    taken = 0
  }
  client.onClose(release)
  return {
    grow(bytes, part = 1) {
      if (isReleased || budget.held + bytes > budget.max * part) return false
      taken += bytes
      budget.held += bytes
      return true
    },
    release,
  }
}

/** Bodies up to so many bytes mostly arrive in one chunk. */
const ONE_PIECE = 65_536

/** Why a body is not read or not decoded. */
export type Unread = 'body_too_large' | 'no_room' | 'unknown_encoding' | 'unreadable_body'

/** A body that is not read whole: a stream of all of it, and the chunks of it that were read. */
export interface UnreadBody {
  readonly stream: Readable
  readonly chunks: readonly Buffer[]
}

/** A whole body; or why it is not read. */
type ReadBody = Buffer | (UnreadBody & { readonly why: Unread })

/**
 * Reads a body of at most `max` bytes for which `lease` has room, at once for an announced length; returns any other as
 * a stream of all its bytes. @throws {ClientGone}
 */
export function readBody({ head, body: request }: Client, max: number, lease: Lease): Promise<ReadBody> {
  return new Promise((resolve, reject) => {
    const announced = Number(headerOf(head.headers, 'content-length') ?? 0)
    const unread = announced > max ? 'body_too_large' : lease.grow(announced, REQUESTS_PART) ? undefined : 'no_room'
    if (unread) return resolve({ why: unread, stream: streamOf(request), chunks: [] })
    // Bodies of known length are copied into one buffer, and their chunks are not kept.
    const whole = announced > ONE_PIECE ? Buffer.allocUnsafeSlow(announced) : undefined
    const chunks: Buffer[] = []
    let length = 0
    const finish = () => {
      const [only] = chunks
      resolve(chunks.length === 1 && only ? only : (whole ?? Buffer.concat(chunks, length)))
    }
    const take = (chunk: Buffer) => {
      if (whole) chunk.copy(whole, length)
      else chunks.push(chunk)
      length += chunk.length
      const isTooLarge = length > max
      if (!isTooLarge && (length <= announced || lease.grow(chunk.length, REQUESTS_PART))) return
      request.off('data', take).off('end', finish).pause()
      resolve({ why: isTooLarge ? 'body_too_large' : 'no_room', stream: streamOf(request, chunks), chunks })
    }
    request.on('data', take).on('end', finish)
    // Starts reading now and not in the next tick, so that the first bytes are taken as soon as they arrive.
    request.read(0)
    request.on('close', () => {
      if (!request.readableEnded) reject(new ClientGone('the client left in the middle of its request'))
    })
  })
}

/** How to undo a content coding (RFC 9110, section 8.4): with a stream, or at once. */
interface Coding {
  readonly stream: ((options: ZlibOptions) => Transform) | undefined
  readonly atOnce?: (bytes: Buffer, options: ZlibOptions) => Buffer
  /** Makes a stream give after each chunk all that it holds; unset if it does so anyway. */
  readonly flush?: number
  /** Accepts a part of a body. */
  readonly finishFlush?: number
}

const { BROTLI_OPERATION_FLUSH, Z_SYNC_FLUSH } = zlib.constants
const SYNC = { flush: Z_SYNC_FLUSH, finishFlush: Z_SYNC_FLUSH }
const GZIP: Coding = { stream: zlib.createGunzip, atOnce: zlib.gunzipSync, ...SYNC }
const BROTLI: Coding = {
  stream: zlib.createBrotliDecompress,
  atOnce: zlib.brotliDecompressSync,
  finishFlush: BROTLI_OPERATION_FLUSH,
}

const CODINGS: ReadonlyMap<string, Coding> = new Map<string, Coding>([
  ['gzip', GZIP],
  ['x-gzip', GZIP],
  ['deflate', { stream: zlib.createInflate, atOnce: zlib.inflateSync, ...SYNC }],
  ['br', BROTLI],
  // Node has it since 22.15.
  ['zstd', { stream: Reflect.get(zlib, 'createZstdDecompress'), atOnce: Reflect.get(zlib, 'zstdDecompressSync') }],
])

/** True if this process can undo a content coding. */
export function isReadable(encoding: string): boolean {
  return encoding === 'identity' || CODINGS.get(encoding)?.stream !== undefined
}

/** Returns headers without codings that this process can't read; `identity` if none is left. */
export function withReadableCodings(headers: RawHeaders): RawHeaders {
  const asked = valuesOf(headers, 'accept-encoding').flatMap((value) => value.split(','))
  const isRefused = (one: string) => /;\s*q=0(?:\.0*)?\s*$/i.test(one)
  const nameOf = (one: string) => one.replace(/;.*/s, '').trim().toLowerCase()
  const kept = asked.filter((one) => isRefused(one) || nameOf(one) === '' || isReadable(nameOf(one)))
  if (kept.length === asked.length) return headers
  return withHeaders(headers, { 'accept-encoding': kept.every(isRefused) ? 'identity' : kept.join(',').trim() })
}

/** Looks for texts in the body of a request as it passes; the result says whether one was found so far. */
export function watchFor(request: Readable, texts: readonly string[]): () => boolean {
  const longest = Math.max(...texts.map((text) => text.length))
  let before = Buffer.alloc(0)
  let isFound = false
  request.on('data', function look(chunk: Buffer) {
    const all = Buffer.concat([before, chunk])
    isFound = texts.some((text) => all.includes(text))
    before = all.subarray(1 - longest)
    if (isFound) request.off('data', look)
  })
  return () => isFound
}

/** Returns a stream that undoes a content coding, if it is known. `flushes`: each chunk gives all that it holds. */
export function decoderFor(encoding: string, flushes = false): Transform | undefined {
  const coding = CODINGS.get(encoding)
  return coding?.stream?.({ chunkSize: 65_536, flush: flushes ? coding.flush : undefined })
}

/** Content codings of one body that are undone. */
const MAX_CODINGS = 4

/**
 * Returns a body without its content codings, which `encoding` names in the order in which they were applied; or why
 * not, also for more than `max` bytes, where it stops.
 */
export async function unpacked(bytes: Buffer, encoding: string, max: number, lease?: Lease): Promise<Buffer | Unread> {
  const listed = encoding.split(',').map((one) => one.trim().toLowerCase())
  const codings = listed.filter((one) => one !== '' && one !== 'identity')
  if (codings.length > MAX_CODINGS || !codings.every(isReadable)) return 'unknown_encoding'
  let plain: Buffer | Unread = bytes
  for (const coding of codings.reverse())
    if (Buffer.isBuffer(plain)) plain = await withoutCoding(plain, coding, max, lease)
  return plain
}

async function withoutCoding(bytes: Buffer, coding: string, max: number, lease?: Lease): Promise<Buffer | Unread> {
  const decoder = decoderFor(coding)
  if (!decoder) return 'unknown_encoding'
  const pieces: Buffer[] = []
  let length = 0
  decoder.end(bytes)
  try {
    for await (const piece of decoder as AsyncIterable<Buffer>) {
      length += piece.length
      if (length > max) return 'body_too_large'
      if (lease && !lease.grow(piece.length)) return 'no_room'
      pieces.push(piece)
    }
  } catch {
    return 'unreadable_body'
  }
  return Buffer.concat(pieces, length)
}

/** Returns the same, or `undefined` for any reason. */
export async function decoded(...body: Parameters<typeof unpacked>): Promise<Buffer | undefined> {
  const plain = await unpacked(...body)
  return Buffer.isBuffer(plain) ? plain : undefined
}

/** Decodes a body to at most `max` bytes at once, also one that was cut; `undefined` on failure. */
export function decodedAtOnce(bytes: Buffer, encoding: string, max: number): Buffer | undefined {
  if (encoding === 'identity') return bytes
  const { atOnce, finishFlush } = CODINGS.get(encoding) ?? {}
  try {
    return atOnce?.(bytes, { maxOutputLength: max, finishFlush })
  } catch {
    return undefined
  }
}
