/**
 * The opt-in transcript of a session: what the user and the assistant said, thread by thread. Plain data and pure
 * functions, so that any store can hold it. Texts of a harness, Governor's own notices and results of tools are
 * left out.
 */

import type { HarnessRegistry } from '../harness/match.ts'
import { type Hash, hashOfText, lacksMiddle } from '../hash.ts'
import { endsInPrefill } from '../session/request-facts.ts'
import { type Terminal, withoutFooter } from '../terminal.ts'
import type { Conversation } from './conversation.ts'
import { isRealAnswer } from './real-answer.ts'
import { lastMessage, userText } from './transcript.ts'

/** Characters that are kept of one text. */
export const MAX_ENTRY_TEXT = 65_536
/** Texts of one session, and characters of all of them together; the oldest are dropped. */
export const MAX_ENTRIES = 200
export const MAX_TRANSCRIPT_TEXT = 262_144
/** How many of the newest texts of a request are read: the texts before them were kept with earlier requests. */
const MAX_READ = 64

export interface ShownText {
  readonly role: 'user' | 'assistant'
  readonly text: string
  /** It is of an assistant's message that called no tool. */
  readonly callsNothing?: true | undefined
}

export interface TranscriptEntry extends ShownText {
  /** Counts the texts of a session from 1, those included that were dropped. */
  readonly number: number
  /** The number of its thread. */
  readonly thread: number
  /** There was more of it than `MAX_ENTRY_TEXT` characters. */
  readonly truncated?: true | undefined
  /** Hash of the text without its white space: clients send answers back with other white space. */
  readonly hash: Hash
  /** When Governor saw it, in milliseconds since the epoch. */
  readonly at: number
  /** Fingerprint of the request that it answers; unset where only a later request showed it. */
  readonly request?: string | undefined
  /** Set on the answer that ended the run, if the client got a terminal state with it. */
  readonly terminal?: Terminal | undefined
}

/** How the texts of a request go with those that are kept. */
export interface ShownTexts {
  /** The number of the request's thread. */
  readonly thread: number
  /** Oldest first. */
  readonly texts: readonly ShownText[]
  /** The request contains new messages alone, as the provider keeps the history. */
  readonly isContinued: boolean
  /** The request ends in a user's message that begins a run, so that this message is new even if it was said before. */
  readonly endsInNew: boolean
}

/** Returns what was said in the newest messages of a request, oldest first. @throws {TooMuchToRead} */
export function textsOf(conversation: Conversation, registry: HarnessRegistry): readonly ShownText[] {
  const texts: ShownText[] = []
  const last = lastMessage(conversation)
  let left = MAX_TRANSCRIPT_TEXT
  let at = endsInPrefill(conversation, last) ? last - 1 : last
  for (; at >= 0 && texts.length < MAX_READ && left > 0; at--) {
    const role = conversation.role(at)
    if (role !== 'user' && role !== 'assistant') continue
    // The answer of a stopped run is kept without its footer.
    const text =
      role === 'user' ? (userText(conversation, at, registry) ?? '') : withoutFooter(joinedText(conversation.texts(at)))
    if (role === 'user' ? text.trim() === '' : !isRealAnswer(text)) continue
    const callsNothing = role === 'assistant' && conversation.callCount(at) === 0
    texts.push({ role, text, callsNothing: callsNothing || undefined })
    left -= text.length
  }
  return texts.reverse()
}

/** Joins the texts of one message, or of several responses that the client sees as one. */
export function joinedText(texts: readonly string[]): string {
  return texts.filter((text) => text !== '').join('\n\n')
}

function hashOfWords(text: string): Hash {
  return hashOfText(text.slice(0, MAX_ENTRY_TEXT).replace(/\s+/g, ''))
}

type Entries = readonly TranscriptEntry[]
type NewEntry = Omit<TranscriptEntry, 'number' | 'truncated' | 'hash'>

function entryOf({ text, ...facts }: NewEntry, number: number): TranscriptEntry {
  const isHalf = /[\ud800-\udbff]/.test(text.charAt(MAX_ENTRY_TEXT - 1))
  const kept = text.slice(0, isHalf ? MAX_ENTRY_TEXT - 1 : MAX_ENTRY_TEXT)
  const isCut = kept.length < text.length || lacksMiddle(text)
  return { ...facts, number, text: kept, hash: hashOfWords(text), truncated: isCut || undefined }
}

/** Drops the oldest texts of a transcript that is too large. */
function bounded(entries: Entries): Entries {
  let from = Math.max(0, entries.length - MAX_ENTRIES)
  let length = 0
  for (let at = entries.length - 1; at >= from; at--) {
    length += entries[at]?.text.length ?? 0
    if (length > MAX_TRANSCRIPT_TEXT) from = at + 1
  }
  return entries.slice(from)
}

type Matching = Pick<TranscriptEntry, 'role' | 'hash'>

function isSame(one: Matching | undefined, other: Matching | undefined): boolean {
  return one?.role === other?.role && one?.hash === other?.hash
}

/**
 * Returns from where on the texts of a request are new: after the longest row of texts that it shows as they were kept,
 * the newest of several. One equal text alone proves little: users say "continue", and models "Done.", many times.
 * After that row, an assistant's text at the same place is the same answer, however the client writes it; a user's text
 * is the same only if it has the same words.
 */
function startOfNew(kept: readonly Matching[], texts: readonly Matching[]): number {
  let longest = 0
  let at = 0
  let place = 0
  // The lengths of the rows that end at each of the texts and at the kept one before.
  let before: readonly number[] = []
  for (const [index, entry] of kept.entries()) {
    const lengths: number[] = []
    for (const [position, text] of texts.entries()) {
      const length = isSame(entry, text) ? (before[position - 1] ?? 0) + 1 : 0
      lengths.push(length)
      if (length === 0 || length < longest) continue
      longest = length
      at = index + 1
      place = position + 1
    }
    before = lengths
  }
  for (; longest > 0 && place < texts.length; place++) {
    const text = texts[place]
    if (text?.role === 'user') while (kept[at]?.role === 'assistant') at++
    if (text?.role === 'assistant' ? kept[at]?.role !== 'assistant' : !isSame(kept[at], text)) break
    at++
  }
  return place
}

/** Adds the texts of a request that the transcript does not hold yet. `at`: milliseconds since the epoch. */
export function withShown(entries: Entries, shown: ShownTexts, at: number): Entries {
  const { thread, texts, isContinued, endsInNew } = shown
  const kept = entries.filter((entry) => entry.thread === thread)
  const hashed = texts.map(({ role, text }) => ({ role, hash: hashOfWords(text) }))
  const start = isContinued ? 0 : startOfNew(kept, endsInNew ? hashed.slice(0, -1) : hashed)
  const all = [...entries]
  for (const text of texts.slice(start)) all.push(entryOf({ ...text, thread, at }, nextNumber(all)))
  return all.length === entries.length ? entries : bounded(all)
}

function nextNumber(entries: Entries): number {
  return (entries.at(-1)?.number ?? 0) + 1
}

/** Adds the answer to a request, in the place of the one before if the client sent its request again. */
export function withAnswerText(entries: Entries, answer: Omit<NewEntry, 'role'>): Entries {
  const { text, thread, request } = answer
  if (text.trim() === '') return entries
  const place = entries.findLastIndex((entry) => entry.thread === thread && entry.request === request)
  const entry = entryOf({ ...answer, role: 'assistant' }, entries[place]?.number ?? nextNumber(entries))
  return bounded(place === -1 ? [...entries, entry] : entries.with(place, entry))
}
