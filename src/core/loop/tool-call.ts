/**
 * Tool calls before their results. Where the provider keeps the conversation, a later request brings the results
 * without the calls, so Governor remembers what it needs of a call from the response.
 */
import type { ToolCall } from '../conversation.ts'
import { type Hash, hashOf } from '../hash.ts'
import { STEPS_PER_CALL, type Work } from '../work.ts'
import { callHash } from './call-hash.ts'
import { MAX_CALLS, type ToolCallRecord } from './call-history.ts'
import { changes, waits, wordsOf } from './call-words.ts'
import { isExempt, type LoopPolicy } from './policy.ts'

/** All that is known of a call before its result. */
export type CallSignature = Pick<ToolCallRecord, 'tool' | 'call' | 'isPoll' | 'isChange'>

/** Returns the signature of a call as the model wrote it; `work` counts the hashing. Throws `TooMuchToRead`. */
export function signatureOf(
  { name: tool, arguments: text }: Pick<ToolCall, 'name' | 'arguments'>,
  work?: Work,
): CallSignature {
  work?.spend(2 * STEPS_PER_CALL)
  const words = wordsOf(tool, text)
  return { tool, call: callHash(tool, text, work), isPoll: waits(words), isChange: changes(words) }
}

/** Returns the hash of several calls or ids, in any order. */
export function hashOfAll(hashes: Iterable<string>): Hash {
  return hashOf(...[...hashes].sort())
}

/** Returns one signature for all calls of a response, if they are too many to be compared one by one. */
export function batchOf(calls: readonly CallSignature[]): CallSignature | undefined {
  const hashes = new Set(calls.map(({ call }) => call))
  if (hashes.size <= MAX_CALLS) return undefined
  const tool = [...new Set(calls.map((call) => call.tool))].join(', ')
  return { tool, call: hashOfAll(hashes), isPoll: waits(wordsOf(tool, '')), isChange: false }
}

/** A call without its arguments, or all calls of a response. */
export interface PendingCall extends CallSignature {
  /** Of all calls of a response, the hash of their ids. */
  readonly id: string
  /** The provider's id of the call, by which a later request may refer to it. */
  readonly item?: string
}

/** The most calls that are remembered, the newest: a window of responses that call several tools each. */
const MAX_PENDING = 64

/** Returns the calls of a response whose results are to come without them. */
export function pendingCallsOf(calls: readonly ToolCall[], policy: LoopPolicy): readonly PendingCall[] {
  const withItem = (item: string | undefined) => (item === undefined ? {} : { item })
  const made = calls
    .filter(({ id }) => id !== '')
    .map((call): PendingCall => ({ ...signatureOf(call), id: call.id, ...withItem(call.item) }))
  const batch = batchOf(made.filter(({ tool }) => !isExempt(tool, policy)))
  if (!batch) return made
  const items = made.flatMap(({ item }) => item ?? [])
  return [{ ...batch, id: hashOfAll(made.map(({ id }) => id)), ...withItem(hashOfAll(items)) }]
}

/** Returns the pending calls with those of a response; the same response again adds nothing. */
export function addPendingCalls(
  known: readonly PendingCall[],
  calls: readonly PendingCall[],
): readonly PendingCall[] {
  const fresh = calls.filter(({ id }) => !known.some((call) => call.id === id))
  return fresh.length === 0 ? known : [...known, ...fresh].slice(-MAX_PENDING)
}
