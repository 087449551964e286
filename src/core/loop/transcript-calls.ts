/** The calls of a transcript with what came of them, each read once however often it is asked for. */

import type { Conversation, ToolCall } from '../conversation.ts'
import type { Hash } from '../hash.ts'
import { STEPS_PER_CALL, STEPS_PER_VALUE } from '../work.ts'
import { callHash } from './call-hash.ts'
import { type CallSignature, type LoopPolicy, signatureOf } from './escalation.ts'
import { type PendingCall, pendingCallOf, withExemption } from './pending-calls.ts'
import { appendImages, appendResults, type TranscriptResult } from './tool-result.ts'

/** Of a transcript that nothing is known of, so many messages are looked at: a window of calls and results, and some more. */
export const MAX_UNKNOWN = 24

/** The results that stand after an assistant message, or, after -1, those that the input begins with. */
export function resultsAfter(conversation: Conversation, index: number): readonly TranscriptResult[] {
  const found: TranscriptResult[] = []
  for (let at = index + 1; at < conversation.length && conversation.role(at) !== 'assistant'; at++) {
    conversation.work?.spend(STEPS_PER_VALUE)
    appendResults(found, conversation, at)
    appendImages(found, conversation, at)
  }
  return found
}

/** Of so few results a call's own is found without a map. */
const FEW = 8

/** Finds results by the ids of their calls; where one id has several, the last. */
function resultFinder(results: readonly TranscriptResult[]): (id: string) => TranscriptResult | undefined {
  if (results.length <= FEW) return (id) => results.findLast(({ callId }) => callId === id)
  const byId = new Map(results.map((result) => [result.callId, result]))
  return (id) => byId.get(id)
}

/** A call in the transcript, and its result if there is one. */
export interface TranscriptCall {
  readonly id: string
  readonly signature: CallSignature
  readonly result: TranscriptResult | undefined
}

export function callsAt(
  conversation: Conversation,
  index: number,
  policy: LoopPolicy,
  known: readonly PendingCall[] = [],
): TranscriptCall[] {
  const resultOf = resultFinder(resultsAfter(conversation, index))
  const called: TranscriptCall[] = []
  for (const call of conversation.calls(index)) {
    const meant = pendingCallOf(known, call)
    if (meant)
      called.push({ id: meant.id, signature: withExemption(policy, meant), result: resultOf(meant.id) })
    // Of a reference that leads nowhere nothing can be said.
    else if (call.name !== '' || call.item === undefined)
      called.push({ id: call.id, signature: newCall(conversation, call, policy), result: resultOf(call.id) })
  }
  return called
}

function newCall({ work }: Conversation, call: ToolCall, policy: LoopPolicy): CallSignature {
  work?.spend(STEPS_PER_CALL)
  return signatureOf(call, policy, callHash(call.name, call.arguments, work))
}

/** A conversation that is gone through back and forth: what stands in it is read once. */
export interface CallReader {
  readonly conversation: Conversation
  readonly policy: LoopPolicy
  /** Those that are all in the transcript. */
  callsAt(index: number): readonly TranscriptCall[]
}

export function createCallReader(conversation: Conversation, policy: LoopPolicy): CallReader {
  const known = new Map<number, readonly TranscriptCall[]>()
  return {
    conversation,
    policy,
    callsAt(index) {
      const called = known.get(index) ?? callsAt(conversation, index, policy)
      known.set(index, called)
      return called
    },
  }
}

/** The newest result of a call before a message that passes `isIt`, as far back as loops are looked for. */
export function resultBefore(
  { conversation, callsAt }: CallReader,
  index: number,
  call: Hash,
  isIt: (result: TranscriptResult) => boolean,
): TranscriptResult | undefined {
  // Where responses come in parts there are some more of them.
  const reach = MAX_UNKNOWN * (conversation.hasParts ? 2 : 1)
  for (let at = index - 1; at >= Math.max(0, index - reach); at--) {
    if (conversation.role(at) !== 'assistant') continue
    const same = callsAt(at).find(
      ({ signature, result }) => signature.call === call && result !== undefined && isIt(result),
    )
    if (same) return same.result
  }
  return undefined
}
