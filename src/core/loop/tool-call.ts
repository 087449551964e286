/**
 * Tool calls before their results. Where the provider keeps the conversation, a later request brings the results without
 * the calls, so Governor remembers what it needs of a call from the response.
 */
import type { ToolCall } from '../conversation.ts'
import { type Hash, hashOf } from '../hash.ts'
import { callHash } from './call-hash.ts'
import { MAX_CALLS, type ToolCallRecord } from './call-history.ts'
import { changes, waits, wordsOf } from './call-words.ts'
import { isExempt, type LoopPolicy } from './policy.ts'

/** All that is known of a call before its result. */
export type CallSignature = Pick<ToolCallRecord, 'tool' | 'call' | 'isPoll' | 'isChange' | 'isBatch'>

/** Returns the signature of a call as the model wrote it. `call`: its hash, if the caller knows it already. */
export function signatureOf(
  { name: tool, arguments: text }: Pick<ToolCall, 'name' | 'arguments'>,
  call: Hash = callHash(tool, text),
): CallSignature {
  const words = wordsOf(tool, text)
  return { tool, call, isPoll: waits(words), isChange: changes(words), isBatch: false }
}

/** Returns the hash of several calls or ids, in any order. */
export function hashOfAll(hashes: Iterable<string>): Hash {
  return hashOf(...[...hashes].sort())
}

/** Returns one signature for all calls of a response, by their hashes; `undefined` if they can be compared one by one. */
export function batchOf(calls: ReadonlyMap<Hash, Pick<ToolCall, 'name'>>): CallSignature | undefined {
  if (calls.size <= MAX_CALLS) return undefined
  const tools = new Set([...calls.values()].map(({ name }) => name))
  const tool = [...tools].join(', ')
  return {
    tool,
    call: hashOfAll(calls.keys()),
    isPoll: waits(wordsOf(tool, '')),
    isChange: false,
    isBatch: true,
  }
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

/** Returns the pending calls with those of a response; the same response again adds nothing. */
export function addPendingCalls(
  pending: readonly PendingCall[],
  calls: readonly ToolCall[],
  policy: LoopPolicy,
): readonly PendingCall[] {
  const made = calls
    .filter(({ id }) => id !== '')
    .map((call): PendingCall => ({ ...signatureOf(call), id: call.id, ...itemOf(call.item) }))
  const counted = made.filter(({ tool }) => !isExempt(tool, policy))
  const batch = batchOf(new Map(counted.map(({ call, tool }) => [call, { name: tool }])))
  const items = made.flatMap(({ item }) => item ?? [])
  const all: readonly PendingCall[] = batch
    ? [{ ...batch, id: hashOfAll(made.map(({ id }) => id)), ...itemOf(hashOfAll(items)) }]
    : made
  const fresh = all.filter(({ id }) => !pending.some((call) => call.id === id))
  return fresh.length === 0 ? pending : [...pending, ...fresh].slice(-MAX_PENDING)
}

const itemOf = (item: string | undefined) => (item === undefined ? {} : { item })
