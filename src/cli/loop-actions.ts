/** What the loop guard would have done to a recorded conversation, by the code that guards live ones. */

import type { Conversation } from '../core/conversation.ts'
import type { HarnessRegistry } from '../core/harness/match.ts'
import type { Hash } from '../core/hash.ts'
import { callHash } from '../core/loop/call-hash.ts'
import type { LoopPolicy } from '../core/loop/escalation.ts'
import { decideBlocks, INITIAL_LOOP_STATE, observeMessage } from '../core/loop/observe.ts'
import type { Pattern } from '../core/loop/patterns.ts'
import { createCallReader } from '../core/loop/transcript-calls.ts'
import { userText } from '../core/session/transcript.ts'

/** One thing that the guard would have done. The keys are part of the public contract. */
export interface Judged {
  /** Number of the call in its conversation, from 0, after whose result it would have been done. */
  readonly call_index: number
  readonly verdict: 'warn' | 'block' | 'stop'
  readonly pattern: Pattern
  readonly tool: string
}

/** What the guard would have done to a conversation, in order. */
export function judge(conversation: Conversation, policy: LoopPolicy, registry: HarnessRegistry): Judged[] {
  const judged: Judged[] = []
  const looking = createCallReader(conversation, policy)
  let loopState = INITIAL_LOOP_STATE
  let hasEnded = false
  /** Calls before the message. */
  let made = 0
  for (let index = 0; index < conversation.length; index++) {
    if (userText(conversation, index, registry) !== undefined) hasEnded = false
    const calls = conversation.calls(index)
    const first = made
    made += calls.length
    // What follows a stop would not have happened, until a human speaks.
    if (hasEnded) continue
    // Calls that would have been refused never reach the agent.
    const left = new Set<Hash>()
    if (calls.length > 0) {
      const { loopState: next, decision: refused } = decideBlocks(
        loopState,
        calls,
        policy,
        String(index),
        false,
        0,
      )
      loopState = next
      hasEnded = refused.endsRun
      for (const [at, { name: tool, arguments: text }] of calls.entries()) {
        const refusal = refused.blocked[at]
        const call = callHash(tool, text)
        if (!refusal || left.has(call)) continue
        left.add(call)
        const verdict = hasEnded ? 'stop' : 'block'
        judged.push({ call_index: first + at, verdict, pattern: refusal.pattern, tool })
      }
    }
    loopState = observeMessage(loopState, looking, registry, index, { isLeftOut: (call) => left.has(call) })
    const { finding } = loopState
    if (!finding || calls.length === 0) continue
    const at = calls.findIndex(({ id }) => id === finding.id)
    const call_index = first + Math.max(at, 0)
    judged.push({ call_index, verdict: 'warn', pattern: finding.pattern, tool: finding.tools.at(-1) ?? '' })
  }
  return judged
}
