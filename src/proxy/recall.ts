/**
 * Remembers the conversations that went by, so that the same messages are not read again with every request.
 *
 * Agents send their whole conversation each time. The bytes of each are kept, and the next request is compared with
 * them: comparing a megabyte takes 0.03 ms where hashing it takes 0.25 ms and reading it 0.9 ms, and it can't mistake
 * one for another. What is kept here can be lost at any time and costs but time.
 */
import { crc32 } from 'node:zlib'
import { boundary } from '../core/conversation.ts'
import { nothingRead, type Reading, readOn, systemHashOf } from '../core/reading.ts'
import type { ScaffoldRegistry } from '../core/scaffolding.ts'
import type { DialectRequest, IndexedList, Recall as RecallList } from '../dialect/dialect.ts'
import type { KnownItems } from '../json/list.ts'
import { type Span, skipValue } from '../json/scan.ts'
import { checksum, SUM_BLOCK } from '../json/window.ts'
import { after, type Soon } from '../store/store.ts'
import { KeptBytes, SEGMENT_BYTES, Segments } from './kept-bytes.ts'
import { KnownValues, type SummedValue } from './known-values.ts'
import { readInTurns } from './read-in-turns.ts'

/** A place between two messages, and what is known of all before it. */
interface Mark {
  readonly reading: Reading
  /** From the start of the list to the end of the last message before it, in bytes. */
  readonly length: number
  /** Of as many of these bytes as are whole blocks. */
  readonly checksum: number
}

/** A conversation, as of the newest request of it. */
interface Remembered {
  readonly owner: string
  /** The list's bytes from its opening bracket to the last mark. */
  readonly bytes: KeptBytes
  /** Those of the system text where it stands outside of the list. */
  readonly preface: KeptBytes
  readonly items: readonly Span[]
  /** Where the list began that the items' offsets belong to. */
  readonly start: number
  /**
   * Where reading can go on, the later ones last. Clients append, but some change the end of what they sent before
   * (cache marks that move along): the mark before the last is for those.
   */
  readonly marks: readonly Mark[]
  /** How much of the memory it takes, in bytes. */
  readonly size: number
}

type Request = Pick<DialectRequest, 'list' | 'conversation' | 'preface'>

/** How many messages before the end the earlier mark is, at least. */
const BACK = 8

/** Spreads the bits of a checksum. */
const GOLDEN = 0x9e3779b1

/** So many bytes to the end of the first answer tell one conversation from another, mostly. */
const KEY_BYTES = 1024

/** A conversation that takes more than this share of the memory is not worth it. */
const MAX_SHARE = 0.25

/** How much of the memory is for what stands outside of conversations. */
const VALUES_SHARE = 0.125

/** A body of fewer bytes is read faster than it is looked up, and what is kept for long keeps the collector busy. */
const WORTHWHILE = 16_384

/** What a message costs besides its bytes, roughly. */
const BYTES_PER_ITEM = 96

/** A request's conversation while it is read. */
export interface Recollection {
  /** For the dialect that reads the body; unset where that is not worthwhile. */
  readonly recall: RecallList | undefined
  /** Reads all messages but the last, from where they are new, and keeps that for the next request. Of many, others have a turn in between. */
  read(request: Request): Soon<ReadConversation>
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

/** The marks up to which the list that starts there is the same bytes. */
function commonMarks({ bytes, marks }: Remembered, body: Buffer, start: number): readonly Mark[] {
  let same = 0
  for (let at = 0; at < marks.length; at++) {
    const length = marks[at]?.length ?? 0
    if (!bytes.equals(same, length, body, start + same)) return marks.slice(0, at)
    same = length
  }
  return marks
}

function isSamePreface(known: KeptBytes, { list, preface }: Request): boolean {
  const length = preface ? preface.end - preface.start : 0
  return known.length === length && (!preface || known.equals(0, length, list.json, preface.start))
}

/** So many bytes of as many as are whole blocks, after which a checksum can be gone on with. */
function wholeBlocks(length: number): number {
  return length - (length % SUM_BLOCK)
}

/** Goes on from one mark to the next. */
function markAt(list: IndexedList, from: Mark | undefined, reading: Reading): Mark {
  const { start } = list.list
  const length = lengthOf(list, reading.length)
  const sum = checksum(
    list.json,
    start + (from ? wholeBlocks(from.length) : 0),
    start + wholeBlocks(length),
    from?.checksum ?? 0,
  )
  return { reading, length, checksum: sum }
}

/** Of the bytes between two offsets, going on from `checksum`; those of values are summed already. */
function checksumOf(
  json: Buffer,
  start: number,
  end: number,
  values: readonly SummedValue[],
  from: number,
): number {
  let sum = from
  let at = start
  for (const value of values) {
    if (value.start < at || value.end > end) continue
    sum = (crc32(json.subarray(at, value.start), sum) ^ Math.imul(value.checksum, GOLDEN)) >>> 0
    at = value.end
  }
  return crc32(json.subarray(at, end), sum)
}

/**
 * Checksums of what is in the list and of what surrounds it. With the length they are enough to tell the few bodies
 * apart that they are compared with: the newest of one run.
 */
function fingerprintOf({ json, list }: IndexedList, mark: Mark, values: readonly SummedValue[]): string {
  const inside = checksum(json, list.start + wholeBlocks(mark.length), list.end, mark.checksum)
  const before = checksumOf(json, 0, list.start, values, 0)
  const outside = checksumOf(json, list.end, json.length, values, before)
  return `${json.length}-${inside}-${outside}`
}

/** Reads everything and keeps nothing. */
function forgetful(registry: ScaffoldRegistry): Recollection {
  return {
    recall: undefined,
    read({ list, conversation }) {
      const end = boundary(conversation, conversation.length - 1)
      // No more than fits into a body that is not worthwhile.
      const reading = readOn(nothingRead(conversation), conversation, end, registry)
      return { reading, fingerprint: `${list.json.length}-${crc32(list.json)}` }
    },
  }
}

/** All that is remembered, by a checksum: two conversations of one take turns, which costs time and nothing else. */
class Memory {
  readonly #maxBytes: number
  readonly #segments: Segments
  /** The one that was not needed for the longest time comes first. */
  readonly #conversations = new Map<number, Remembered>()
  #size = 0

  constructor(maxBytes: number, segments: Segments) {
    this.#maxBytes = maxBytes
    this.#segments = segments
  }

  find(key: number): Remembered | undefined {
    return this.#conversations.get(key)
  }

  /** Keeps a conversation up to its last mark. The first `common` bytes of its list are those of `known`. */
  keep(
    key: number,
    owner: string,
    known: Remembered | undefined,
    common: number,
    { list: { json, list, items }, preface }: Request,
    marks: readonly Mark[],
  ): void {
    const before = this.#conversations.get(key)
    this.#conversations.delete(key)
    this.#size -= before?.size ?? 0
    // What is kept of it may be another request's by now, of which nothing was compared.
    const same = before !== undefined && before === known ? common : 0
    const bytes = before?.bytes ?? new KeptBytes(this.#segments)
    const kept = before?.preface ?? new KeptBytes(this.#segments)
    const { start: head, end: tail } = preface ?? { start: 0, end: 0 }
    const length = marks.at(-1)?.length ?? 0
    const size =
      this.#segments.capacityFor(length) +
      this.#segments.capacityFor(tail - head) +
      items.length * BYTES_PER_ITEM
    if (size > this.#maxBytes * MAX_SHARE) {
      bytes.free()
      kept.free()
      return
    }
    this.#makeRoom(size)
    bytes.replace(same, json, list.start + same, list.start + length)
    kept.replace(0, json, head, tail)
    this.#conversations.set(key, { owner, bytes, preface: kept, items, start: list.start, marks, size })
    this.#size += size
  }

  /** Forgets the oldest until there is room for so many bytes. */
  #makeRoom(size: number): void {
    for (const [key, oldest] of this.#conversations) {
      if (this.#size + size <= this.#maxBytes) return
      this.#conversations.delete(key)
      this.#size -= oldest.size
      oldest.bytes.free()
      oldest.preface.free()
    }
  }
}

/** A request whose conversation is looked for among those remembered, and remembered in turn. */
class Attentive implements Recollection, RecallList {
  readonly recall: RecallList
  readonly #values: KnownValues
  readonly #memory: Memory
  readonly #registry: ScaffoldRegistry
  readonly #owner: string
  #key: number | undefined
  #known: Remembered | undefined
  /** The marks up to which it is the known one. */
  #common: readonly Mark[] = []
  #start = -1
  /** Large values of other fields, in order. */
  readonly #skipped: SummedValue[] = []

  constructor(memory: Memory, values: KnownValues, registry: ScaffoldRegistry, owner: string) {
    this.recall = this
    this.#values = values
    this.#memory = memory
    this.#registry = registry
    this.#owner = owner
  }

  items(body: Buffer, head: Span): KnownItems<Span> | undefined {
    this.#start = head.start
    // Only finds what to compare with: how the first answer goes, and what it answers.
    const tail = body.subarray(Math.max(head.start, head.end - KEY_BYTES), head.end)
    this.#key = crc32(tail, crc32(this.#owner)) ^ (head.end - head.start)
    const found = this.#memory.find(this.#key)
    this.#known = found?.owner === this.#owner ? found : undefined
    this.#common = this.#known ? commonMarks(this.#known, body, head.start) : []
    const last = this.#common.at(-1)
    if (!last || !this.#known) return undefined
    return { items: this.#known.items, count: last.reading.length, start: this.#known.start }
  }

  skip(body: Buffer, key: string, at: number): number {
    const known = this.#values.find(this.#owner, key, body, at)
    const end = known ? known.end : skipValue(body, at)
    const value = known ?? this.#values.add(this.#owner, key, body, at, end)
    if (value) this.#skipped.push(value)
    return end
  }

  read(request: Request): Soon<ReadConversation> {
    const { list, conversation } = request
    // Where a body has two lists, the one that does not count may have been the one recalled.
    const key = list.list.start === this.#start ? this.#key : undefined
    const common = key === undefined ? [] : this.#settledIn(key, request)
    const settled = boundary(conversation, Math.max(0, conversation.length - 1))
    const known = common.findLast((mark) => mark.reading.length <= settled)
    const from = known ? known.reading : nothingRead(conversation)
    const isFar = settled - from.length > BACK
    const far = isFar ? boundary(conversation, settled - BACK) : from.length
    return after(readInTurns(from, conversation, far, this.#registry), (reached) => {
      const earlier = isFar ? markAt(list, known, reached) : common[0]
      const reading = readOn(reached, conversation, settled, this.#registry)
      return this.#kept(request, key, reading, isFar ? earlier : known, earlier)
    })
  }

  /** Keeps a reading. `from`: the mark before it, after which its checksum goes on; `earlier`: that for those who change the end. */
  #kept(
    request: Request,
    key: number | undefined,
    reading: Reading,
    from: Mark | undefined,
    earlier: Mark | undefined,
  ): ReadConversation {
    const { list } = request
    const latest = markAt(list, from, reading)
    if (key !== undefined) {
      const marks = earlier && earlier.length < latest.length ? [earlier, latest] : [latest]
      const same = Math.min(this.#common.at(-1)?.length ?? 0, latest.length)
      this.#memory.keep(key, this.#owner, this.#known, same, request, marks)
    }
    return { reading, fingerprint: fingerprintOf(list, latest, this.#skipped) }
  }

  /** The marks that hold for the request: none where it has another system text. */
  #settledIn(key: number, request: Request): readonly Mark[] {
    const [first] = this.#common
    if (!this.#known || !first) return []
    // What is kept of it may be another request's by now.
    const isCurrent = this.#memory.find(key) === this.#known
    const isSame = isCurrent && isSamePreface(this.#known.preface, request)
    return isSame || systemHashOf(request.conversation) === first.reading.system ? this.#common : []
  }
}

/** `maxBytes`: what all that is remembered may take. `worthwhile`: bodies of fewer bytes are not. */
export function createRecall(
  registry: ScaffoldRegistry,
  maxBytes: number,
  worthwhile = WORTHWHILE,
  segmentBytes = SEGMENT_BYTES,
): Recall {
  const segments = new Segments(segmentBytes)
  const valueBytes = maxBytes * VALUES_SHARE
  const memory = new Memory(maxBytes - valueBytes, segments)
  const values = new KnownValues(segments, valueBytes)
  const forgets = forgetful(registry)
  return {
    begin: (owner, length) =>
      length < worthwhile ? forgets : new Attentive(memory, values, registry, owner),
  }
}
