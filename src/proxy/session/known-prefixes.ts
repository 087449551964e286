/** Remembers where the messages of recent requests are, as an agent sends its last request again and adds to it. */
import { LRUCache } from 'lru-cache'
import { BLOCK, type BodyHashes } from '../../core/hash.ts'
import type { TranscriptState } from '../../core/session/transcript.ts'
import type { IndexedList } from '../../dialect/dialect.ts'
import { type KnownItems, restOf } from '../../json/list.ts'

/** What is known of all requests that begin with the same bytes: offsets, counts and hashes, but no text. */
export interface KnownPrefix extends KnownItems {
  /** The state after the messages that end within these bytes. */
  readonly transcript: TranscriptState
}

/** By the hash of the bytes. */
export type KnownPrefixes = LRUCache<bigint, KnownPrefix>

const MAX_BYTES = 32 * 1_048_576
/** So that no single conversation takes the place of many others. */
const MAX_PREFIX_BYTES = 1_048_576
/** Memory in bytes for an item, a hash, a field, and for the rest of a prefix. */
const SIZES = { item: 120, hash: 48, field: 200, rest: 4_000 }

function sizeOf({ fields, items, rest, transcript }: KnownPrefix): number {
  const keys = [...fields, ...rest.fields].reduce((sum, { key }) => sum + SIZES.field + 2 * key.length, 0)
  return SIZES.rest + keys + items.length * SIZES.item + transcript.userMessageHashes.length * SIZES.hash
}

/** Returns an empty memory of prefixes, which forgets those that were not used for longest. */
export function createKnownPrefixes(): KnownPrefixes {
  return new LRUCache({ maxSize: MAX_BYTES, maxEntrySize: MAX_PREFIX_BYTES, sizeCalculation: sizeOf })
}

/** Returns what is known of the longest beginning of a body; `undefined` if nothing is. */
export function longestKnown(known: KnownPrefixes, { prefixes }: BodyHashes): KnownPrefix | undefined {
  const hash = prefixes.findLast((prefix) => known.has(prefix))
  return hash === undefined ? undefined : known.get(hash)
}

/** Returns the longest beginning with whole items of a request's list, and its hash; `undefined` if that is known. */
export function newPrefix(
  known: KnownPrefixes,
  index: IndexedList,
  { prefixes }: BodyHashes,
): (KnownItems & { readonly hash: bigint }) | undefined {
  const { fields, list, items } = index
  const blocks = Math.floor((items.at(-1)?.end ?? 0) / BLOCK)
  const hash = prefixes[blocks - 1]
  const count = items.findLastIndex(({ end }) => end <= blocks * BLOCK) + 1
  const own = fields.findIndex(({ value }) => value.start === list.start)
  const at = fields[own]?.start
  if (hash === undefined || count === 0 || at === undefined || known.has(hash)) return undefined
  return { hash, fields: fields.slice(0, own), at, items: items.slice(0, count), rest: restOf(index) }
}
