/**
 * Calls that only a response told of. Where a provider keeps the conversation, a request brings the results and not the
 * calls they belong to; what is needed of those is remembered from the response.
 */
import type { ToolCall, ToolResult } from '../conversation.ts'
import type { Work } from '../work.ts'
import { type CallSignature, type LoopCall, type LoopPolicy, loopCall, signatureOf } from './escalation.ts'

/** A call without its arguments: its name among others, and what was read in them. */
export interface PendingCall extends Omit<CallSignature, 'isExempt'> {
  readonly id: string
  /** The provider's name for it, by which a later request may refer to it. */
  readonly item?: string
}

/** So many of the newest are remembered: those of a window of responses that call several tools each. */
const MAX_PENDING = 64

/** Takes in what a response called; the same response again adds nothing. */
export function addPendingCalls(
  known: readonly PendingCall[],
  calls: readonly ToolCall[],
  policy: LoopPolicy,
): readonly PendingCall[] {
  const fresh = calls
    .filter(({ id }) => id !== '' && !known.some((one) => one.id === id))
    .map((call): PendingCall => {
      const { isExempt: _exempt, ...made } = signatureOf(call, policy)
      return { id: call.id, ...made, ...(call.item === undefined ? {} : { item: call.item }) }
    })
  return fresh.length === 0 ? known : [...known, ...fresh].slice(-MAX_PENDING)
}

/** A call that is only referred to, as its response told of it. */
export function pendingCallOf(known: readonly PendingCall[], call: ToolCall): PendingCall | undefined {
  return call.name === '' ? known.find(({ item }) => item !== undefined && item === call.item) : undefined
}

/** Puts results together with the calls they answer; those of calls that nobody told of are left out. */
export function answeredCalls(
  known: readonly PendingCall[],
  results: readonly ToolResult[],
  policy: LoopPolicy,
  work?: Work,
): LoopCall[] {
  return results.flatMap(({ callId, text }) => {
    const call = known.find(({ id }) => id === callId)
    const read = call && loopCall(callId, withExemption(policy, call), text, policy, work)
    return read ? [read] : []
  })
}

/** What is exempt is the policy's to say, which may have changed since. */
export function withExemption(
  policy: LoopPolicy,
  { tool, call, isPoll, isChange }: PendingCall,
): CallSignature {
  const { isExempt } = signatureOf({ name: tool, arguments: '' }, policy, call)
  return { tool, call, isPoll, isChange, isExempt }
}
