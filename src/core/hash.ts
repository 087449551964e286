import { hash } from 'node:crypto'
import xxhash from 'xxhash-wasm'

/** A hash that stands for a text or bytes, to be compared and stored, not to be shown. */
export type Hash = string & { readonly __brand: 'Hash' }

/** Returns a text that was made out of hashes as a hash. */
export function branded(text: string): Hash {
  return text as Hash
}

/** xxh64 takes a fifth of the time of sha256. It is the same in every process, because processes may share a store. */
const xxh = await xxhash().catch((cause: unknown) => {
  throw new Error('Governor needs WebAssembly: start Node without --jitless.', { cause })
})

/** Bytes hashed at a time: xxhash-wasm never gives memory back, and takes three bytes for each character of a text. */
const PIECE = 131_072

function xxh64(bytes: Uint8Array): bigint {
  if (bytes.length <= PIECE) return xxh.h64Raw(bytes)
  const state = xxh.create64()
  for (let at = 0; at < bytes.length; at += PIECE) state.update(bytes.subarray(at, at + PIECE))
  return state.digest()
}

/** Returns an entry of a list of texts with its length before it, so that no two lists give the same joined text. */
export function lengthPrefixed(part: string): string {
  return `${part.length}:${part}`
}

/** Hashes bytes of a request: xxh64 in base 36, at most 13 characters, so that it never equals the hash of a text. */
export function hashOfBytes(bytes: Uint8Array): Hash {
  return branded(xxh64(bytes).toString(36))
}

/** Bytes between two places at which a body's hash is taken. */
export const BLOCK = 8_192

/** The hashes of a body. */
export type BodyHashes = Readonly<ReturnType<typeof hashBody>>

/**
 * Hashes a body in one pass: all of it, as `hashOfBytes` writes it, and its first block, its first two blocks, and so
 * on. Equal bytes have equal hashes only under one `scope`, whose name others need not know.
 */
export function hashBody(bytes: Uint8Array, scope: string) {
  const seed = xxh.h64(scope)
  const prefixes: bigint[] = []
  // At once, as most of the time of a short body is that of the state.
  if (bytes.length < BLOCK) return { whole: branded(xxh.h64Raw(bytes, seed).toString(36)), prefixes }
  const state = xxh.create64(seed)
  let at = 0
  for (; at + BLOCK <= bytes.length; at += BLOCK) {
    state.update(bytes.subarray(at, at + BLOCK))
    prefixes.push(state.digest())
  }
  state.update(bytes.subarray(at))
  return { whole: branded(state.digest().toString(36)), prefixes }
}

/**
 * Hashes a text that is compared within one session and is no secret: xxh64 in 16 hex digits. Among a million texts,
 * the chance that two have the same hash is 1 in 37 million.
 */
export function hashOfText(text: string): Hash {
  if (text.length <= PIECE) return branded(xxh.h64ToString(text))
  return branded(xxh64(Buffer.from(text)).toString(16).padStart(16, '0'))
}

/** Returns a long text without its middle, for which a hash of all of it stands. */
export function withoutMiddle(beginning: string, all: Hash, end: string): string {
  return `${beginning} [… ${all} …] ${end}`
}

/** True if a text looks like one without its middle. */
export function lacksMiddle(text: string): boolean {
  return / \[… [0-9a-z]{1,13} …\] /.test(text)
}

/** Hashes a list of texts, with sha256 because they may be secrets: different lists give different hashes. */
export function hashOf(...parts: readonly string[]): Hash {
  return branded(hash('sha256', parts.map(lengthPrefixed).join(''), 'base64url'))
}

/** Returns the SHA-256 of a text in 64 hex digits, as other programs write it. */
export function sha256Of(text: string): string {
  return hash('sha256', text, 'hex')
}

/** Returns an id made of several texts, for people and headers: 128 bits of their sha256 in hex. */
export function nameOf(...parts: readonly string[]): string {
  return hash('sha256', parts.map(lengthPrefixed).join(''), 'hex').slice(0, 32)
}
