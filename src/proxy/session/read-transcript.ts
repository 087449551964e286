/**
 * Reads long conversations without keeping other requests waiting, and remembers where the messages of recent requests
 * are, as an agent sends its last request again and adds to it.
 */
import { setImmediate } from 'node:timers/promises'
import { LRUCache } from 'lru-cache'
import type { Conversation } from '../../core/conversation/conversation.ts'
import {
  advance,
  assistantHash,
  EMPTY_TRANSCRIPT,
  lastMessage,
  type TranscriptState,
} from '../../core/conversation/transcript.ts'
import type { HarnessRegistry } from '../../core/harness/match.ts'
import { BLOCK, type BodyHashes, type Hash, hashOfBytes } from '../../core/hash.ts'
import { systemHash } from '../../core/session/request-facts.ts'
import type { DialectRequest, IndexedList } from '../../dialect/dialect.ts'
import { type KnownItems, restOf } from '../../json/list.ts'
import { type Member, member } from '../../json/scan.ts'

/** What is known of all requests that begin with the same bytes: offsets, counts and hashes, but no text. */
interface KnownBeginning extends KnownItems {
  /** The state after the messages that end within these bytes. */
  readonly transcript: TranscriptState
}

/** What is known of requests that begin with the same whole blocks. */
interface KnownPrefix extends KnownBeginning {
  /**
   * What is known of the newest of them up to the `end` of its list: all but what its prefix says as well. `hash`: of
   * the bytes from its last whole block on.
   */
  newest: (Pick<KnownBeginning, 'items' | 'rest' | 'transcript'> & { readonly end: number; hash: Hash }) | undefined
}

/** By the hash of the bytes. */
export type KnownPrefixes = LRUCache<bigint, KnownPrefix>

const MAX_BYTES = 32 * 1_048_576
/** So that no single conversation takes the place of many others. */
const MAX_PREFIX_BYTES = 1_048_576
/** Memory in bytes for an item, a hash, a field, what else the newest request adds, and the rest of a prefix. */
const SIZES = { item: 128, hash: 56, field: 200, newest: 4_000, rest: 10_000 }

function sizeOfFields(fields: readonly Member[]): number {
  return fields.reduce((size, { key }) => size + SIZES.field + 2 * key.length, 0)
}

function sizeOf({ fields, items, rest, transcript }: KnownPrefix): number {
  const { userMessageHashes, resultBytes } = transcript
  const size = SIZES.rest + (items.length + resultBytes.length) * SIZES.item + userMessageHashes.length * SIZES.hash
  return size + sizeOfFields(fields) + sizeOfFields(rest.fields)
}

/** Returns an empty memory of prefixes, which forgets those that were not used for longest. */
export function createKnownPrefixes(): KnownPrefixes {
  return new LRUCache({ maxSize: MAX_BYTES, maxEntrySize: MAX_PREFIX_BYTES, sizeCalculation: sizeOf })
}

/** Returns what is known of the longest beginning of a body; `undefined` if nothing is. */
export function longestKnown(known: KnownPrefixes, { prefixes }: BodyHashes, json: Buffer): KnownBeginning | undefined {
  const place = prefixes.findLastIndex((prefix) => known.has(prefix))
  const hash = prefixes[place]
  const prefix = hash === undefined ? undefined : known.get(hash)
  const newest = prefix?.newest
  if (!newest || hashOfBytes(json.subarray((place + 1) * BLOCK, newest.end)) !== newest.hash) return prefix
  const { fields, at } = prefix
  return { fields, at, items: newest.items, rest: newest.rest, transcript: newest.transcript }
}

/** A request of which something is remembered. */
interface Long {
  readonly index: IndexedList
  readonly prefixes: KnownPrefixes
  /** The whole blocks of its body that end before the last item of its list does: how many, and their hash. */
  readonly blocks: number
  readonly hash: bigint
  readonly rest: KnownItems['rest']
}

/** Returns a request with what is remembered of it; `undefined` if its list ends in the first block. */
function longOf(index: IndexedList, { hashes, known, prefixes }: Beginning): Long | undefined {
  const blocks = Math.floor((index.items.at(-1)?.end ?? 0) / BLOCK)
  const hash = hashes.prefixes[blocks - 1]
  if (hash === undefined) return undefined
  return { index, prefixes, blocks, hash, rest: (index.hasKnownRest && known?.rest) || restOf(index) }
}

/** Returns the longest beginning with whole items of a request's list; `undefined` if that is known. */
function newPrefix({ index, prefixes, blocks, hash, rest }: Long) {
  const { fields, list, items } = index
  if (prefixes.has(hash)) return undefined
  const count = items.findLastIndex(({ end }) => end <= blocks * BLOCK) + 1
  const listField = fields.findIndex(({ value }) => value.start === list.start)
  const at = fields[listField]?.start
  if (count === 0 || at === undefined) return undefined
  return { fields: fields.slice(0, listField), at, items: items.slice(0, count), rest }
}

/** Yields wherever other requests should have their turn: without such a place a request waits for nothing. */
type Turns<Result = void> = Generator<void, Result, undefined>

/** Decodes the message at `index` with all of its parts. */
function* prepareWhole(conversation: Conversation, index: number): Turns {
  let at = index
  do {
    yield* conversation.prepare?.(at) ?? []
    at++
  } while (at < conversation.length && conversation.role(at) === 'part')
}

/** Decodes what is read of a conversation whatever is known of its session, apart from its newest answers. */
function* prepareAll(conversation: Conversation, known: TranscriptState): Turns {
  let hasAnswer = known.assistantMessages.length > 0
  const isSystemKnown = known.system !== undefined
  if (!isSystemKnown) yield* conversation.prepare?.(-1) ?? []
  for (let index = 0; index < conversation.length; index++) {
    const role = conversation.role(index)
    if (index < known.length && (isSystemKnown || role !== 'system')) continue
    if (role === 'user' || role === 'system') yield* conversation.prepare?.(index) ?? []
    else if (role === 'assistant' && !hasAnswer) {
      hasAnswer = true
      yield* prepareWhole(conversation, index)
    }
  }
}

/** The hashes of a request's body, what is known of its beginning, and where to remember more of it. */
interface Beginning {
  readonly hashes: BodyHashes
  readonly known: KnownBeginning | undefined
  readonly prefixes: KnownPrefixes
}

/**
 * Remembers all of a request whose whole blocks are known, but for its last message, after which `transcript` is not
 * yet.
 */
function noteNewest({ index, prefixes, blocks, hash, rest }: Long, transcript: TranscriptState): void {
  const { json, items } = index
  const prefix = prefixes.peek(hash)
  if (!prefix || prefix.items[0]?.start !== items[0]?.start) return
  const end = items.at(-1)?.end ?? 0
  const size = (items.length - prefix.items.length) * SIZES.item + sizeOfFields(rest.fields)
  if (size > SIZES.newest) return
  prefix.newest = { items, rest, transcript, end, hash: hashOfBytes(json.subarray(blocks * BLOCK, end)) }
}

/** Reads on to `length` messages. */
function* readOn(
  from: TranscriptState,
  conversation: Conversation,
  length: number,
  registry: HarnessRegistry,
): Turns<TranscriptState> {
  let state = from
  while (state.length < length) {
    if (conversation.work?.isDue) yield
    const newest = state.assistantMessages.at(-1)
    // Its calls name the tools of the results after it.
    if (newest && conversation.resultCount(state.length) > 0) yield* prepareWhole(conversation, newest.index)
    state = advance(state, conversation, length, registry, true)
  }
  return state
}

/** Returns the bytes of the fields with system text, as a text. */
function systemFieldsOf({ json, fields }: IndexedList, names: readonly string[] = []): string {
  let text = ''
  for (const name of names) {
    const value = member(fields, name)?.value
    text += value ? `${hashOfBytes(json.subarray(value.start, value.end))} ` : ' '
  }
  return text
}

/** Returns the state after what is known of a request. `fields`: those with system text. */
function knownState(
  { conversation, index }: DialectRequest,
  known: KnownBeginning | undefined,
  fields: string,
): TranscriptState {
  // If the key of the list is there twice, another list may count than the known one.
  if (!index || !known || index.items[0] !== known.items[0]) return EMPTY_TRANSCRIPT
  const { transcript, items } = known
  let end = 0
  while (end < items.length && conversation.role(end) === 'system') end++
  // System text stands in fields, and in the messages before any other.
  const isEqual = transcript.system?.fields === fields && end < items.length
  return isEqual ? transcript : { ...transcript, system: undefined }
}

function* read(
  asked: DialectRequest,
  registry: HarnessRegistry,
  beginning: Beginning | undefined,
): Turns<TranscriptState> {
  const { conversation, index } = asked
  // Nothing is known of short requests, nor remembered.
  const fields = index && index.json.length >= BLOCK ? systemFieldsOf(index, asked.systemFields) : ''
  let state = knownState(asked, beginning?.known, fields)
  // The index of the request took its time as well.
  if (conversation.work?.isDue) yield
  yield* prepareAll(conversation, state)
  if (state.system === undefined) state = { ...state, system: { hash: systemHash(conversation), fields } }
  const long = index && beginning && longOf(index, beginning)
  const prefix = long && newPrefix(long)
  if (prefix) {
    // The last message may have more parts in a later request.
    state = yield* readOn(state, conversation, lastMessage(conversation, prefix.items.length), registry)
    long.prefixes.set(long.hash, { transcript: state, newest: undefined, ...prefix })
  }
  const length = lastMessage(conversation)
  state = yield* readOn(state, conversation, length, registry)
  if (long) noteNewest(long, state)
  const newest = state.assistantMessages.at(-1)
  for (const step of state.assistantMessages) {
    // The calls of the newest are read again.
    if (step.hash !== undefined && step !== newest) continue
    yield* prepareWhole(conversation, step.index)
    assistantHash(step, conversation)
  }
  if (length < conversation.length) yield* prepareWhole(conversation, length)
  if (conversation.work?.isDue) yield
  return state
}

/**
 * Reads all messages of a request but the last, and lets other requests have a turn wherever that is due, also within a
 * large message. What is known of the request's beginning is not read again.
 */
export async function readInTurns(
  asked: DialectRequest,
  registry: HarnessRegistry,
  beginning?: Beginning,
): Promise<TranscriptState> {
  const turns = read(asked, registry, beginning)
  for (;;) {
    const { done, value } = turns.next()
    if (done) return value
    await setImmediate()
    asked.conversation.work?.paused()
  }
}
