/** The calls of a transcript with their results, each read once however often it is needed. */

import type { Conversation, ToolCall } from '../conversation.ts'
import type { Hash } from '../hash.ts'
import { STEPS_PER_CALL, STEPS_PER_VALUE } from '../work.ts'
import { callHash } from './call-hash.ts'
import { type CallSignature, type LoopPolicy, signatureOf } from './escalation.ts'
import { type PendingCall, pendingCallOf, withExemption } from './pending-calls.ts'
import { appendImages, appendResults, type TranscriptResult } from './tool-result.ts'

/** The newest messages that are read of an unknown transcript: a window of calls and results, and some more. */
export const MAX_UNKNOWN = 24

/** Returns the results that follow the assistant message at `index`; for -1, those that the input begins with. */
export function resultsAfter(conversation: Conversation, index: number): readonly TranscriptResult[] {
  const results: TranscriptResult[] = []
  for (let at = index + 1; at < conversation.length && conversation.role(at) !== 'assistant'; at++) {
    conversation.work?.spend(STEPS_PER_VALUE)
    appendResults(results, conversation, at)
    appendImages(results, conversation, at)
  }
  return results
}

/** Among so few results a search in order is faster than a map. */
const FEW = 8

/** Returns a function that finds the result of a call by the call's id; if there are several, the last. */
function resultFinder(results: readonly TranscriptResult[]): (id: string) => TranscriptResult | undefined {
  if (results.length <= FEW) return (id) => results.findLast(({ callId }) => callId === id)
  const byId = new Map(results.map((result) => [result.callId, result]))
  return (id) => byId.get(id)
}

/** A call in the transcript, with its result if there is one. */
export interface TranscriptCall {
  readonly id: string
  readonly signature: CallSignature
  readonly result: TranscriptResult | undefined
}

/**
 * Returns the calls of the message at `index` with their results. A call that stands there by its id only is looked up
 * in `pending`, and left out if it is not known. Throws `TooMuchToRead`.
 */
export function callsAt(
  conversation: Conversation,
  index: number,
  policy: LoopPolicy,
  pending: readonly PendingCall[] = [],
): TranscriptCall[] {
  const resultOf = resultFinder(resultsAfter(conversation, index))
  const calls: TranscriptCall[] = []
  for (const call of conversation.calls(index)) {
    const known = pendingCallOf(pending, call)
    if (known)
      calls.push({ id: known.id, signature: withExemption(policy, known), result: resultOf(known.id) })
    else if (call.name !== '' || call.item === undefined)
      calls.push({
        id: call.id,
        signature: signatureAt(conversation, call, policy),
        result: resultOf(call.id),
      })
  }
  return calls
}

function signatureAt({ work }: Conversation, call: ToolCall, policy: LoopPolicy): CallSignature {
  work?.spend(STEPS_PER_CALL)
  return signatureOf(call, policy, callHash(call.name, call.arguments, work))
}

/** Reads the calls of one conversation, each message once, in whatever order they are needed. */
export interface CallReader {
  readonly conversation: Conversation
  readonly policy: LoopPolicy
  /** The calls of a message whose calls all stand in the transcript. Throws `TooMuchToRead`. */
  callsAt(index: number): readonly TranscriptCall[]
}

/** Creates a reader of the calls of `conversation` for the loop guard. */
export function createCallReader(conversation: Conversation, policy: LoopPolicy): CallReader {
  const callsByIndex = new Map<number, readonly TranscriptCall[]>()
  return {
    conversation,
    policy,
    callsAt(index) {
      const calls = callsByIndex.get(index) ?? callsAt(conversation, index, policy)
      callsByIndex.set(index, calls)
      return calls
    },
  }
}

/**
 * Returns the newest result of `call` before the message at `index` for which `matches` is true; `undefined` if the
 * messages in which loops are looked for have none.
 */
export function resultBefore(
  { conversation, callsAt }: CallReader,
  index: number,
  call: Hash,
  matches: (result: TranscriptResult) => boolean,
): TranscriptResult | undefined {
  // Responses that come in parts take more messages.
  const reach = MAX_UNKNOWN * (conversation.hasParts ? 2 : 1)
  for (let at = index - 1; at >= Math.max(0, index - reach); at--) {
    if (conversation.role(at) !== 'assistant') continue
    const match = callsAt(at).find(
      ({ signature, result }) => signature.call === call && result !== undefined && matches(result),
    )
    if (match) return match.result
  }
  return undefined
}
