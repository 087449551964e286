/** Runs a recorded conversation through the loop guard, by the same code that guards live ones. */

import type { Conversation } from '../../core/conversation.ts'
import type { HarnessRegistry } from '../../core/harness/match.ts'
import type { Hash } from '../../core/hash.ts'
import { blockCalls } from '../../core/loop/escalation.ts'
import { afterNotice, INITIAL_LOOP_STATE, observeMessage } from '../../core/loop/loop-state.ts'
import type { LoopPolicy, Pattern } from '../../core/loop/patterns.ts'
import { userText } from '../../core/transcript.ts'

/** One action that the loop guard would have taken. The keys are part of the public contract. */
export interface LoopAction {
  /** The id of the conversation, or its file and line. */
  readonly id: string
  /** 0-based number of the call in its conversation after whose result the guard would have acted. */
  readonly call_index: number
  readonly verdict: 'warn' | 'block' | 'stop'
  readonly pattern: Pattern
  readonly tool: string
}

/** Returns the actions that the loop guard would have taken in a conversation, in order. */
export function loopActionsIn(id: string, conversation: Conversation, policy: LoopPolicy, registry: HarnessRegistry) {
  conversation.work?.takeAnyTime()
  const actions: LoopAction[] = []
  const reader = { conversation, policy, callsByIndex: new Map() }
  let loopState = INITIAL_LOOP_STATE
  let hasEnded = false
  /** Calls before the current message. */
  let callCount = 0
  for (let index = 0; index < conversation.length; index++) {
    if (userText(conversation, index, registry) !== undefined) hasEnded = false
    const calls = conversation.calls(index)
    const first = callCount
    callCount += calls.length
    // After a stop nothing would have happened until a human speaks.
    if (hasEnded) continue
    // Blocked calls would never have reached the agent.
    const blockedCalls = new Set<Hash>()
    if (calls.length > 0) {
      const decision = blockCalls(loopState.memory, calls, policy, String(index), false, 0)
      loopState = { ...loopState, memory: decision.memory }
      hasEnded = decision.endsRun
      for (const [at, block] of decision.blocked.entries()) {
        if (!block || blockedCalls.has(block.call)) continue
        blockedCalls.add(block.call)
        const verdict = hasEnded ? 'stop' : 'block'
        actions.push({ id, call_index: first + at, verdict, pattern: block.pattern, tool: block.tool })
      }
    }
    loopState = observeMessage(loopState, reader, registry, index, { leftOut: blockedCalls })
    const { finding } = loopState
    if (!finding || calls.length === 0) continue
    loopState = afterNotice(loopState)
    const at = calls.findIndex((call) => call.id === finding.id)
    const call_index = first + Math.max(at, 0)
    actions.push({ id, call_index, verdict: 'warn', pattern: finding.pattern, tool: finding.tools.at(-1) ?? '' })
  }
  return actions
}
