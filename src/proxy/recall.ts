/**
 * Remembers the conversations that went by, so that the same messages are not read again with every request.
 *
 * Agents send their whole conversation each time. The last body of each is kept, and the next one is compared with it:
 * comparing a megabyte takes 0.03 ms where hashing it takes 0.6 ms and reading it 0.9 ms, and it can't mistake one for
 * another. What is kept here can be lost at any time and costs but time.
 */
import { crc32 } from 'node:zlib'
import { LRUCache } from 'lru-cache'
import { boundary, type Conversation } from '../core/conversation.ts'
import { hashOf } from '../core/hash.ts'
import { nothingRead, type Reading, readOn, recalled } from '../core/reading.ts'
import type { ScaffoldRegistry } from '../core/scaffolding.ts'
import type { DialectRequest, IndexedList, Recall as RecallList } from '../dialect/dialect.ts'
import type { Span } from '../json/scan.ts'

/** A place between two messages, and what is known of all before it. */
interface Mark {
  readonly reading: Reading
  /** From the start of the list to the end of the last message before it, in bytes. */
  readonly length: number
  /** Of these bytes. */
  readonly checksum: number
}

interface Remembered {
  readonly list: IndexedList
  readonly preface: Span | undefined
  /**
   * Where reading can go on, the later ones last. Clients append, but some change the end of what they sent before
   * (cache marks that move along): the mark before the last is for those.
   */
  readonly marks: readonly Mark[]
}

/** How many messages before the end the earlier mark is, at least. */
const BACK = 8

/** A body that takes more than this share of the memory is not worth it. */
const MAX_SHARE = 0.25

/** A body of fewer bytes is read faster than it is looked up, and what is kept for long keeps the collector busy. */
const WORTHWHILE = 16_384

/** What a message costs besides its bytes, roughly. */
const BYTES_PER_ITEM = 96

/** A request's conversation while it is read. */
export interface Recollection {
  /** For the dialect that reads the body; unset where that is not worthwhile. */
  readonly recall: RecallList | undefined
  /** Reads all messages but the last, from where they are new, and keeps that for the next request. */
  read(request: Pick<DialectRequest, 'list' | 'conversation' | 'preface'>): ReadConversation
}

export interface ReadConversation {
  readonly reading: Reading
  /** Stands for the bytes of the whole body: the same again is a retry. */
  readonly fingerprint: string
}

export interface Recall {
  /** `owner`: conversations are compared with those of the same owner only. `length`: of the body, in bytes. */
  begin(owner: string, length: number): Recollection
}

function lengthOf({ list, items }: IndexedList, count: number): number {
  const last = items[count - 1]
  return last ? last.end - list.start : 0
}

/** The last mark up to which both lists are the same bytes. */
function commonMarks({ list, marks }: Remembered, body: Buffer, start: number): readonly Mark[] {
  const from = list.list.start
  let same = 0
  for (const [at, mark] of marks.entries()) {
    const differs = body.compare(
      list.json,
      from + same,
      from + mark.length,
      start + same,
      Math.min(start + mark.length, body.length),
    )
    if (differs !== 0) return marks.slice(0, at)
    same = mark.length
  }
  return marks
}

/** Is the system text the one of the remembered conversation? What surrounds it may change from request to request. */
function isSameSystem(
  { list, preface: known }: Remembered,
  { json }: IndexedList,
  preface: Span | undefined,
  conversation: Conversation,
  reading: Reading,
): boolean {
  if (!known && !preface) return true
  const isSame =
    known && preface && json.compare(list.json, known.start, known.end, preface.start, preface.end) === 0
  return isSame || hashOf(conversation.systemText()) === reading.system
}

/** Goes on from one mark to the next. */
function markAt(list: IndexedList, from: Mark | undefined, reading: Reading): Mark {
  const { start } = list.list
  const length = lengthOf(list, reading.length)
  const added = list.json.subarray(start + (from?.length ?? 0), start + length)
  return { reading, length, checksum: crc32(added, from?.checksum ?? 0) }
}

/**
 * Checksums of what is before, in and after the list. With the length they are enough to tell the few bodies apart that
 * they are compared with: the newest of one run.
 */
function fingerprintOf({ json, list }: IndexedList, { length, checksum }: Mark): string {
  const before = crc32(json.subarray(0, list.start))
  const inside = crc32(json.subarray(list.start + length, list.end), checksum)
  const after = crc32(json.subarray(list.end))
  return [json.length, before, inside, after].map((number) => number.toString(36)).join('-')
}

/** Reads everything and keeps nothing. */
function forgetful(registry: ScaffoldRegistry): Recollection {
  return {
    recall: undefined,
    read({ list, conversation }) {
      const nothing = nothingRead(conversation)
      const reading = readOn(nothing, conversation, boundary(conversation, conversation.length - 1), registry)
      return { reading, fingerprint: fingerprintOf(list, { reading: nothing, length: 0, checksum: 0 }) }
    },
  }
}

/** `maxBytes`: what all that is remembered may take. `worthwhile`: bodies of fewer bytes are not. */
export function createRecall(registry: ScaffoldRegistry, maxBytes: number, worthwhile = WORTHWHILE): Recall {
  const conversations = new LRUCache<string, Remembered>({
    maxSize: maxBytes,
    maxEntrySize: maxBytes * MAX_SHARE,
    sizeCalculation: ({ list }) => list.json.length + list.items.length * BYTES_PER_ITEM,
  })
  return {
    begin(owner, length) {
      if (length < worthwhile) return forgetful(registry)
      let key: string | undefined
      let remembered: Remembered | undefined
      let common: readonly Mark[] = []
      let start = -1
      return {
        recall(body, head) {
          start = head.start
          common = []
          // Only finds what to compare with: two conversations of one checksum cost time, nothing else.
          key = `${owner}:${head.end - head.start}:${crc32(body.subarray(head.start, head.end))}`
          remembered = conversations.get(key)
          if (!remembered) return undefined
          common = commonMarks(remembered, body, head.start)
          const last = common.at(-1)
          return last && { index: remembered.list, count: last.reading.length }
        },
        read({ list, conversation, preface }) {
          // Where a body has two lists, the one that does not count may have been the one recalled.
          if (list.list.start !== start) {
            key = undefined
            common = []
          }
          const [first] = common
          if (remembered && first && !isSameSystem(remembered, list, preface, conversation, first.reading)) {
            common = []
          }
          const settled = boundary(conversation, Math.max(0, conversation.length - 1))
          const known = common.findLast((mark) => mark.reading.length <= settled)
          const from = known ? recalled(known.reading) : nothingRead(conversation)
          const isFar = settled - from.length > BACK
          const earlier = isFar
            ? markAt(
                list,
                known,
                readOn(from, conversation, boundary(conversation, settled - BACK), registry),
              )
            : common[0]
          const reading = readOn(isFar && earlier ? earlier.reading : from, conversation, settled, registry)
          const latest = markAt(list, isFar ? earlier : known, reading)
          if (key !== undefined) {
            const marks = earlier && earlier.length < latest.length ? [earlier, latest] : [latest]
            conversations.set(key, { list, preface, marks })
          }
          return { reading, fingerprint: fingerprintOf(list, latest) }
        },
      }
    },
  }
}
