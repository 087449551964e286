import { hash } from 'node:crypto'

/** A 128-bit content hash in hex: enough that two different texts never meet, short enough to keep many. */
export type Hash = string & { readonly __brand: 'Hash' }

/** Hashes several texts as a list: no two different lists give the same hash. Source: sha256, cut to 16 bytes. */
export function hashOf(...parts: readonly string[]): Hash {
  let list = ''
  for (const part of parts) list += `${part.length}:${part}`
  return hash('sha256', list, 'hex').slice(0, 32) as Hash
}
