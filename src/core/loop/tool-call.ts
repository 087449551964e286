/**
 * Tool calls: equal calls have equal hashes, and a few words tell what a call does. Where the provider keeps the
 * conversation, a later request brings the results without the calls, so Governor remembers what it needs of a call
 * from the response.
 */

import { STEPS_PER_CALL, STEPS_PER_VALUE, type Work } from '../bounds/work.ts'
import type { Conversation, ToolCall } from '../conversation/conversation.ts'
import { branded, type Hash, hashOf, hashOfText } from '../hash.ts'
import { countValues, textOf } from '../json-object.ts'
import { type CallHistory, MAX_CALLS, type ToolCallRecord } from './call-history.ts'
import { isExempt, type LoopPolicy } from './patterns.ts'
import {
  COMPARED,
  exactHash,
  otherExactHash,
  type ResultHashes,
  resultsAfter,
  type TranscriptResult,
  textHashes,
} from './tool-result.ts'

/** Arguments in which a model comments on its call: another wording makes no other call. */
const COSMETIC: ReadonlySet<string> = new Set(['description', 'task_progress'])
/** The same in oh-my-pi, whose tools all have it: a few words. Elsewhere `i` is an index, or a name. */
const INTENT = 'i'
const WORDS = /^\s*\p{L}\S*\s+\p{L}/u

/** A string that is not closed goes on to the end: to look for its end from each of its quotes is not linear. */
const STRING = /"[^"\\]*(?:\\[\s\S][^"\\]*)*"?/g
const NUMBER = /-?\d[\d.eE+-]*/g

/** Returns the JSON of a value with sorted keys; without cosmetic ones of `isArguments`, where there are others. */
function sorted(value: unknown, isArguments = false): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  const members: string[] = []
  if (Array.isArray(value)) {
    for (const item of value) members.push(sorted(item))
    return `[${members.join()}]`
  }
  const keys = Object.keys(value).sort()
  const isIntent = (key: string) => key === INTENT && WORDS.test(textOf(Reflect.get(value, key)))
  const others = isArguments ? keys.filter((key) => !COSMETIC.has(key) && !isIntent(key)) : keys
  for (const key of others.length > 0 ? others : keys)
    members.push(`${JSON.stringify(key)}:${sorted(Reflect.get(value, key))}`)
  return `{${members.join()}}`
}

/**
 * Returns the arguments with the keys of every object sorted, without white space and cosmetic arguments. Text that is
 * not JSON, or is too long or too deep to be read, stays as it is. JSON with a number that would be written with other
 * digits only loses the white space around it. Throws `TooMuchToRead`.
 */
export function canonicalArguments(text: string, work?: Work): string {
  const values = countValues(text)
  if (values === undefined) return text
  work?.spend(values * STEPS_PER_VALUE)
  try {
    const value: unknown = JSON.parse(text)
    const numbers = text.replace(STRING, '').match(NUMBER) ?? []
    return numbers.every((number) => String(Number(number)) === number) ? sorted(value, true) : text.trim()
  } catch {
    return text
  }
}

/**
 * Hashes a call with the arguments as the model wrote them, JSON or not: 132 bits of sha256. Throws `TooMuchToRead`.
 */
export function callHash(tool: string, argumentsText: string, work?: Work): Hash {
  return branded(hashOf(`${tool.length}:${tool}${canonicalArguments(argumentsText, work)}`).slice(0, 22))
}

/** Characters of a call's arguments that are looked at. */
const HEAD = 300

/** Words of a call that asks how something goes, or waits for it. */
const WAITS = /(?:^|[^a-z])(?:status|poll|polling|wait|watch|tail|sleep)(?:$|[^a-z])/i

/** Words of a call that changes something that later calls may see. */
const CHANGING =
  'edit write patch apply replace insert append create add update modify delete remove move rename click type press ' +
  'submit install commit checkout rm mv cp sed tee'
/** Such words, or a redirection to a file: no arrow, no comparison, and not to /dev/null. */
const CHANGES = new RegExp(
  String.raw`(?:^|[^a-z])(?:${CHANGING.replaceAll(' ', '|')})(?:$|[^a-z])|(?<![-=<])>{1,2} ?(?!\/dev\/)[\w~$./-]`,
  'i',
)

/** All that is known of a call before its result. */
type CallSignature = Pick<ToolCallRecord, 'tool' | 'call' | 'isPoll' | 'isChange'>

/** Returns the signature of a call as the model wrote it; `work` counts the hashing. Throws `TooMuchToRead`. */
export function signatureOf(made: Pick<ToolCall, 'name' | 'arguments'>, work?: Work): CallSignature {
  const { name: tool, arguments: text } = made
  work?.spend(2 * STEPS_PER_CALL)
  // writtenSo becomes written_So.
  const name = tool.slice(0, HEAD).replace(/([a-z])([A-Z])/g, '$1_$2')
  const words = `${name} ${text.slice(0, HEAD)}`
  return { tool, call: callHash(tool, text, work), isPoll: WAITS.test(words), isChange: CHANGES.test(words) }
}

/** Returns the hash of several calls or ids, in any order. */
export function hashOfAll(hashes: Iterable<string>): Hash {
  return hashOf(...[...hashes].sort())
}

/** Returns one signature for all calls of a response, if they are too many to be compared one by one. */
function batchOf(calls: readonly CallSignature[]): CallSignature | undefined {
  const hashes = new Set<Hash>()
  const tools = new Set<string>()
  for (const { call, tool } of calls) {
    hashes.add(call)
    tools.add(tool)
  }
  if (hashes.size <= MAX_CALLS) return undefined
  const tool = [...tools].join(', ')
  return { ...signatureOf({ name: tool, arguments: '' }), call: hashOfAll(hashes), isChange: false }
}

/** A call without its arguments, or all calls of a response. */
export interface PendingCall extends CallSignature {
  /** Of all calls of a response, the hash of their ids. */
  readonly id: string
  /** The provider's id of the call, by which a later request may refer to it. */
  readonly item?: string | undefined
}

/** Returns the calls of a response whose results are to come without them. */
export function pendingCallsOf(calls: readonly ToolCall[], policy: LoopPolicy): readonly PendingCall[] {
  const made: PendingCall[] = []
  for (const call of calls) made.push({ ...signatureOf(call), id: call.id, item: call.item })
  const batch = batchOf(made.filter(({ tool }) => !isExempt(tool, policy)))
  if (!batch) return made
  return [{ ...batch, id: hashOfAll(made.map(({ id }) => id)), item: hashOfAll(made.map(({ item = '' }) => item)) }]
}

/** A call in the transcript, with its result if there is one. */
interface TranscriptCall extends CallSignature {
  /** Its place among the calls of its response. */
  readonly at: number
  readonly result: TranscriptResult | undefined
}

/** The calls of an answer, by the hashes of the newest ids; `calls`: how many it has, if more stand before these. */
export interface NewCalls {
  readonly callIds: readonly Hash[]
  readonly calls?: number | undefined
}

/** What it takes to read the calls of one conversation. */
export interface CallReader {
  readonly conversation: Conversation
  readonly policy: LoopPolicy
  /** Calls of earlier responses whose results come without them. */
  readonly pending?: readonly PendingCall[] | undefined
  /** Earlier results are not in the transcript, so that a later one can't be compared with them letter by letter. */
  isCut?: boolean
  /** The calls of this message that are new: a client may join several answers into one. */
  newCalls?: (NewCalls & { readonly index: number }) | undefined
  /** The calls that were read so far, by the index of their message. */
  readonly callsByIndex: Map<number, readonly TranscriptCall[]>
}

/**
 * Returns the calls of the message at `index` with their results; for -1, the calls that the input begins with the
 * results of. Calls of exempt tools, and those that stand there by an unknown id only, are left out. More calls than
 * can be compared one by one are one call. Each message is read once. Throws `TooMuchToRead`.
 */
export function callsAt(reader: CallReader, index: number): readonly TranscriptCall[] {
  const { conversation, callsByIndex } = reader
  const known = callsByIndex.get(index)
  if (known) return known
  const calls = index >= 0 && conversation.callCount(index) === 0 ? [] : readCalls(reader, index)
  callsByIndex.set(index, calls)
  return calls
}

/**
 * Returns the result of each call, in order: the one with its id, equal ids one after the other; then the one that
 * names its tool, in the same way. Calls and results that are left are pairs by their order, if they are equally many:
 * one side has no ids, or other ones.
 */
function pairResults(
  calls: readonly { readonly id: string; readonly name?: string }[],
  results: readonly TranscriptResult[],
) {
  const left = new Set(results)
  const paired = new Map<number, TranscriptResult>()
  for (const by of ['id', 'name'] as const) {
    if (left.size === 0) break
    const waiting = new Map<string, TranscriptResult[]>()
    for (const result of left) {
      const { callId, name } = result
      // An API that names the tool may have no ids.
      const key = by === 'name' ? name : callId
      if (key === undefined || (key === '' && name !== undefined)) continue
      const same = waiting.get(key)
      if (same) same.push(result)
      else waiting.set(key, [result])
    }
    for (const [at, { [by]: key = '' }] of calls.entries()) {
      const result = paired.has(at) ? undefined : waiting.get(key)?.shift()
      if (!result) continue
      paired.set(at, result)
      left.delete(result)
    }
  }
  const others = left.size === calls.length - paired.size ? left.values() : undefined
  return calls.map((_, at) => paired.get(at) ?? others?.next().value)
}

/** Returns which calls of a message are those of an answer. */
function newAmong(listed: readonly ToolCall[], { callIds, calls = callIds.length }: NewCalls): readonly boolean[] {
  const isKnown = listed.map(({ id }) => callIds.includes(hashOfText(id)))
  const first = isKnown.indexOf(true)
  const from = first - (calls - callIds.length)
  return isKnown.map((is, at) => is || (at >= from && at < first))
}

function readCalls(reader: CallReader, index: number): readonly TranscriptCall[] {
  const { conversation, policy, pending = [] } = reader
  const results = resultsAfter(conversation, index)
  const listed = index < 0 ? [] : conversation.calls(index)
  const isNew = reader.newCalls?.index === index ? newAmong(listed, reader.newCalls) : undefined
  const resultOf = pairResults(listed, results)
  /** What refers to calls that the provider keeps: ids of results, or the provider's ids of the calls. */
  const references: string[] = []
  if (index < 0) for (const { callId } of results) references.push(callId)
  let made: TranscriptCall[] = []
  for (const [at, call] of listed.entries()) {
    const { name, item } = call
    if (isNew?.[at] === false) continue
    if (name === '' && item !== undefined) references.push(item)
    else if (!isExempt(name, policy)) made.push({ at, result: resultOf[at], ...signatureOf(call, conversation.work) })
  }
  const batch = batchOf(made)
  if (batch) {
    const text = made.map(({ result }) => result?.text() ?? '').join('\n')
    made = [{ ...batch, at: listed.length - 1, result: { callId: '', text: () => text } }]
  }
  if (references.length === 0) return made
  const by = index < 0 ? 'id' : 'item'
  const all = hashOfAll(references)
  const text = () => results.map((result) => result.text()).join('\n')
  const known = pending.filter((call) => call[by] === all || references.includes(call[by] ?? ''))
  const resultOfKnown = pairResults(known, results)
  for (const [at, call] of known.entries())
    if (!isExempt(call.tool, policy))
      made.push({ ...call, at, result: call[by] === all ? { callId: '', text } : resultOfKnown[at] })
  return made
}

/** Returns the hashes of a result as text, and the history in which the same result, by its exact hashes, has them. */
function asTexts(history: CallHistory, call: Hash, exact: ReadonlySet<string>, texts: ResultHashes) {
  const isIt = ({ call: made, resultHash }: ToolCallRecord) => made === call && exact.has(resultHash)
  if (!history.window.some(isIt)) return { history, ...texts }
  const window = history.window.map((entry) => (isIt(entry) ? { ...entry, ...texts } : entry))
  return { history: { ...history, window }, ...texts }
}

/**
 * Returns the hashes of the result of `call` in the message at `index`, and the history in which the earlier results of
 * the call can be compared with it. Those are read in the transcript again; one that the client has changed or removed
 * counts as different. Throws `TooMuchToRead`.
 */
export function hashResult(
  reader: CallReader,
  index: number,
  history: CallHistory,
  call: Hash,
  result: TranscriptResult | undefined,
): ResultHashes & { readonly history: CallHistory } {
  const { conversation, policy } = reader
  const { volatile } = policy
  if (!result) return { history, resultHash: '', maskedHash: '' }
  const texts = () => textHashes(result.text(), volatile, conversation.work)
  const exact = exactHash(result, volatile)
  // Nothing before these results is in the transcript, so that the next one can be compared with texts alone.
  if (index < 0) return asTexts(history, call, new Set([exact, otherExactHash(result)]), texts())
  const wanted = new Set<string>()
  let responses = 0
  let isFirst = true
  for (const { call: made, resultHash, maskedHash = resultHash, step } of history.window) {
    if (made !== call) continue
    isFirst = false
    if (resultHash === exact || maskedHash === exact) {
      const isCompared = history.window.some((entry) => entry.call === call && entry.resultHash.startsWith(COMPARED))
      if (!isCompared) return { history, resultHash: exact, maskedHash }
      // It may be one of the results that were compared as text, in another form.
      return asTexts(history, call, new Set([exact]), texts())
    }
    if (resultHash === '' || resultHash.startsWith(COMPARED)) continue
    wanted.add(resultHash)
    responses = Math.max(responses, history.steps + 1 - step)
  }
  if (!reader.isCut && (isFirst || volatile === 'none')) return { history, resultHash: exact, maskedHash: exact }
  // The client has changed its API.
  const other = wanted.size > 0 ? otherExactHash(result) : ''
  if (wanted.has(other)) return asTexts(history, call, new Set([other]), texts())
  const compared = new Map<string, ResultHashes>()
  for (let at = index - 1; at >= 0 && responses > 0 && compared.size < wanted.size; at--) {
    if (conversation.role(at) !== 'assistant') continue
    const calls = callsAt(reader, at)
    if (calls.length > 0) responses--
    for (const made of calls) {
      const hash = made.call === call && made.result ? exactHash(made.result, volatile) : ''
      if (made.result && wanted.has(hash) && !compared.has(hash))
        compared.set(hash, textHashes(made.result.text(), volatile, conversation.work))
    }
  }
  if (compared.size < wanted.size) reader.isCut = true
  const window = history.window.map((entry) =>
    entry.call === call ? { ...entry, ...compared.get(entry.resultHash) } : entry,
  )
  return { history: { ...history, window }, ...texts() }
}
