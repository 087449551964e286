import { hash } from 'node:crypto'

/** Stands for a text: two different texts never have the same. To be compared and kept, not to be shown. */
export type Hash = string & { readonly __brand: 'Hash' }

/** One text of a list, written so that no two different lists are the same text. */
export function listed(part: string): string {
  return `${part.length}:${part}`
}

/**
 * Hashes bytes, which takes half of what it takes to hash them as a text. Written with its padding, which a text's hash
 * never has: the two are never the same.
 */
export function hashOfBytes(bytes: Uint8Array): Hash {
  return hash('sha256', bytes, 'base64') as Hash
}

/** Hashes a text. Source: sha256. Not cut short: V8 would keep the whole beside what was cut from it. */
export function hashOfText(text: string): Hash {
  return hash('sha256', text, 'base64url') as Hash
}

function listOf(parts: readonly string[]): string {
  let list = ''
  for (const part of parts) list += listed(part)
  return list
}

/** Hashes several texts as a list: no two different lists give the same hash. */
export function hashOf(...parts: readonly string[]): Hash {
  return hashOfText(listOf(parts))
}

/** A name made of several texts, for people and headers: 128 bits of their hash in hex. */
export function nameOf(...parts: readonly string[]): string {
  return hash('sha256', listOf(parts), 'hex').slice(0, 32)
}
