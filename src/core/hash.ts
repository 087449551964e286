import { hash } from 'node:crypto'

/** A 128-bit content hash in hex: enough that two different texts never meet, short enough to keep many. */
export type Hash = string & { readonly __brand: 'Hash' }

/** One text of a list, written so that no two different lists are the same text. */
export function listed(part: string): string {
  return `${part.length}:${part}`
}

/** Hashes a text. Source: sha256, cut to 16 bytes. */
export function hashOfText(text: string): Hash {
  return hash('sha256', text, 'hex').slice(0, 32) as Hash
}

/** Hashes several texts as a list: no two different lists give the same hash. */
export function hashOf(...parts: readonly string[]): Hash {
  let list = ''
  for (const part of parts) list += listed(part)
  return hashOfText(list)
}
