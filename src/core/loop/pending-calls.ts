/**
 * Calls whose results a later request brings without the calls themselves, as the provider keeps the conversation.
 * Governor remembers what it needs of such a call from the response.
 */
import type { ToolCall } from '../conversation.ts'
import type { Work } from '../work.ts'
import { type CallSignature, type LoopCall, type LoopPolicy, loopCall, signatureOf } from './escalation.ts'
import type { TranscriptResult } from './tool-result.ts'

/** A call without its arguments: its hash, and what was read in the arguments. */
export interface PendingCall extends Omit<CallSignature, 'isExempt'> {
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
  const fresh = calls
    .filter(({ id }) => id !== '' && !pending.some((call) => call.id === id))
    .map((call): PendingCall => {
      const { isExempt: _exempt, ...signature } = signatureOf(call, policy)
      return { id: call.id, ...signature, ...(call.item === undefined ? {} : { item: call.item }) }
    })
  return fresh.length === 0 ? pending : [...pending, ...fresh].slice(-MAX_PENDING)
}

/** Returns the pending call that a request refers to by id only; `undefined` for a call that is there in full, or unknown. */
export function pendingCallOf(pending: readonly PendingCall[], call: ToolCall): PendingCall | undefined {
  return call.name === '' ? pending.find(({ item }) => item !== undefined && item === call.item) : undefined
}

/**
 * Returns the calls that `results` answer, each with its result. Results of unknown calls and of exempt tools are left
 * out. Throws `TooMuchToRead`.
 */
export function answeredCalls(
  pending: readonly PendingCall[],
  results: readonly TranscriptResult[],
  policy: LoopPolicy,
  work?: Work,
): LoopCall[] {
  return results.flatMap(({ callId, text }) => {
    const call = pending.find(({ id }) => id === callId)
    const answered = call && loopCall(callId, withExemption(policy, call), text(), policy, work)
    return answered ? [answered] : []
  })
}

/** Returns the signature of a pending call. The current policy decides whether it is exempt: it may have changed since. */
export function withExemption(
  policy: LoopPolicy,
  { tool, call, isPoll, isChange }: PendingCall,
): CallSignature {
  const { isExempt } = signatureOf({ name: tool, arguments: '' }, policy, call)
  return { tool, call, isPoll, isChange, isExempt }
}
