/** The calls of a transcript with their results, each read once however often it is needed. */
import type { Conversation, ToolCall } from '../conversation.ts'
import type { Hash } from '../hash.ts'
import { STEPS_PER_VALUE } from '../work.ts'
import { isExempt, type LoopPolicy } from './policy.ts'
import { batchOf, type CallSignature, hashOfAll, type PendingCall, signatureOf } from './tool-call.ts'
import { appendResults, exactHash, resultWithText, type TranscriptResult } from './tool-result.ts'

/** A call in the transcript, with its result if there is one. */
export interface TranscriptCall extends CallSignature {
  readonly id: string
  readonly result: TranscriptResult | undefined
}

/** Returns the results that follow the assistant message at `index`; for -1, those that the input begins with. */
function resultsAfter(conversation: Conversation, index: number): readonly TranscriptResult[] {
  const results: TranscriptResult[] = []
  for (let at = index + 1; at < conversation.length && conversation.role(at) !== 'assistant'; at++) {
    conversation.work?.spend(STEPS_PER_VALUE)
    appendResults(results, conversation, at)
    // Some APIs allow no picture in a result, so that it follows in a message of a user.
    const last = results.at(-1)
    const pictures = last && conversation.role(at) === 'user' ? (conversation.pictures?.(at) ?? []) : []
    if (!last || pictures.length === 0) continue
    const text = [last.text(), ...pictures].join('\n')
    results[results.length - 1] = resultWithText({ callId: last.callId, text })
  }
  return results
}

/** The results by the ids of their calls; of several the last. */
const resultsById = (results: readonly TranscriptResult[]) => new Map(results.map((result) => [result.callId, result]))

/** The results of all calls of a response as one. */
function batchResult(results: readonly TranscriptResult[]): TranscriptResult {
  return resultWithText({ callId: '', text: results.map(({ text }) => text()).join('\n') })
}

/** Returns the calls that stand in the transcript as the model wrote them. */
function writtenCalls(
  { work }: Conversation,
  calls: readonly ToolCall[],
  results: readonly TranscriptResult[],
  policy: LoopPolicy,
): TranscriptCall[] {
  const resultOf = resultsById(results)
  const written = calls.flatMap((call): TranscriptCall[] => {
    if (isExempt(call.name, policy)) return []
    return [{ id: call.id, result: resultOf.get(call.id), ...signatureOf(call, work) }]
  })
  const batch = batchOf(written)
  if (!batch) return written
  const ids = new Set(written.map(({ id }) => id))
  const result = batchResult(results.filter(({ callId }) => ids.has(callId)))
  return [{ ...batch, id: calls.at(-1)?.id ?? '', result }]
}

/** Returns those of the pending calls that have one of `ids`, or all of them, each with its result. */
function pendingCalls(
  pending: readonly PendingCall[],
  by: 'id' | 'item',
  ids: readonly string[],
  results: readonly TranscriptResult[],
  policy: LoopPolicy,
): TranscriptCall[] {
  if (pending.length === 0) return []
  const resultOf = resultsById(results)
  const all = hashOfAll(ids)
  return pending
    .filter((call) => call[by] === all || ids.includes(call[by] ?? ''))
    .filter(({ tool }) => !isExempt(tool, policy))
    .map((call) => ({ ...call, result: call[by] === all ? batchResult(results) : resultOf.get(call.id) }))
}

/** Reads the calls of one conversation, each message once, in whatever order they are needed. */
export interface CallReader {
  readonly conversation: Conversation
  readonly policy: LoopPolicy
  /**
   * Returns the calls of the message at `index` with their results; for -1, the calls that the input begins with the
   * results of. Calls of exempt tools, and those that stand there by an unknown id only, are left out. More calls than
   * can be compared one by one are one call. Throws `TooMuchToRead`.
   */
  callsAt(index: number): readonly TranscriptCall[]
}

/** Creates a reader of the calls of `conversation` for the loop guard. `pending`: calls of earlier responses. */
export function createCallReader(
  conversation: Conversation,
  policy: LoopPolicy,
  pending: readonly PendingCall[] = [],
): CallReader {
  const callsByIndex = new Map<number, readonly TranscriptCall[]>()
  const read = (index: number): readonly TranscriptCall[] => {
    if (index >= 0 && conversation.callCount(index) === 0) return []
    const results = resultsAfter(conversation, index)
    if (index < 0) {
      const ids = results.map(({ callId }) => callId)
      return pendingCalls(pending, 'id', ids, results, policy)
    }
    const calls = conversation.calls(index)
    const isReference = ({ name, item }: ToolCall) => name === '' && item !== undefined
    const written = calls.filter((call) => !isReference(call))
    const items = calls.filter(isReference).flatMap(({ item }) => item ?? [])
    return [
      ...writtenCalls(conversation, written, results, policy),
      ...pendingCalls(pending, 'item', items, results, policy),
    ]
  }
  return {
    conversation,
    policy,
    callsAt(index) {
      const calls = callsByIndex.get(index) ?? read(index)
      callsByIndex.set(index, calls)
      return calls
    },
  }
}

/**
 * Returns the result of `call` that has the hash `exact`, at most so many responses before the message at `index`;
 * `undefined` if there is none, because the client has changed or removed it.
 */
export function resultBefore(
  { conversation, callsAt, policy }: CallReader,
  index: number,
  call: Hash,
  exact: Hash,
  responses: number,
): TranscriptResult | undefined {
  let left = Math.max(1, responses)
  for (let at = index - 1; at >= 0 && left > 0; at--) {
    if (conversation.role(at) !== 'assistant') continue
    const calls = callsAt(at)
    if (calls.length > 0) left--
    for (const { call: made, result } of calls)
      if (made === call && result && exactHash(result, policy.volatile) === exact) return result
  }
  return undefined
}
