import { hash } from 'node:crypto'
import xxhash from 'xxhash-wasm'

/** Stands for a text: two different texts never have the same. To be compared and kept, not to be shown. */
export type Hash = string & { readonly __brand: 'Hash' }

/** xxh64, in a fifth of the time of sha256. The same in every process, as several may share what is remembered. */
const xxh = await xxhash().catch((cause: unknown) => {
  throw new Error('Governor needs WebAssembly: start Node without --jitless.', { cause })
})

/** Bytes hashed at a time: xxhash-wasm keeps the memory that it once took, three bytes a character of a text. */
const PIECE = 131_072

function xxh64(bytes: Uint8Array): bigint {
  if (bytes.length <= PIECE) return xxh.h64Raw(bytes)
  const state = xxh.create64()
  for (let at = 0; at < bytes.length; at += PIECE) state.update(bytes.subarray(at, at + PIECE))
  return state.digest()
}

/** One text of a list, written so that no two different lists are the same text. */
export function lengthPrefixed(part: string): string {
  return `${part.length}:${part}`
}

/**
 * Hashes bytes as they stand in a request, a whole body included: xxh64 in base 36. At most 13 characters, so that it never equals
 * the hash of a text.
 */
export function hashOfBytes(bytes: Uint8Array): Hash {
  return xxh64(bytes).toString(36) as Hash
}

/**
 * Hashes a text that is compared with others of its session and is no secret: xxh64 in 16 hex digits. Of a million texts, two
 * have the same hash once in 37 million cases.
 */
export function hashOfText(text: string): Hash {
  if (text.length <= PIECE) return xxh.h64ToString(text) as Hash
  return xxh64(Buffer.from(text)).toString(16).padStart(16, '0') as Hash
}

function listOf(parts: readonly string[]): string {
  let list = ''
  for (const part of parts) list += lengthPrefixed(part)
  return list
}

/** Hashes several texts as a list: no two different lists give the same hash. Source: sha256, as it may be a secret's. */
export function hashOf(...parts: readonly string[]): Hash {
  return hash('sha256', listOf(parts), 'base64url') as Hash
}

/** A name made of several texts, for people and headers: 128 bits of their hash in hex. */
export function nameOf(...parts: readonly string[]): string {
  return hash('sha256', listOf(parts), 'hex').slice(0, 32)
}
