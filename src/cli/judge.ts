/** What the loop guard would have done to a recorded conversation, by the code that guards live ones. */
import { canonicalCall } from '../core/call.ts'
import type { Hash } from '../core/hash.ts'
import type { Pattern } from '../core/loop.ts'
import {
  humanSpoke,
  type LoopCall,
  type LoopMemory,
  type LoopPolicy,
  loopCall,
  type MadeCall,
  madeCall,
  NO_LOOP,
  observeStep,
  refuseCalls,
} from '../core/loop-guard.ts'
import { humanText, type ScaffoldRegistry } from '../core/scaffolding.ts'
import type { Recording } from './recording.ts'

/** One thing that the guard would have done. The keys are part of the public contract. */
export interface Judged {
  /** Number of the call in its conversation, from 0, after whose result it would have been done. */
  readonly call_index: number
  readonly verdict: 'warn' | 'block' | 'stop'
  readonly pattern: Pattern
  readonly tool: string
}

/** A call of the conversation, however often it is made in it. */
interface KnownCall {
  readonly made: MadeCall
  times: number
  readonly firstResult: string | undefined
  /** Its results are not all the same, letter by letter. */
  differs: boolean
}

/** The calls of a conversation in order, equal ones as the same object. Numbers name them as well as hashes would. */
function knownCalls({ events }: Recording, policy: LoopPolicy): KnownCall[] {
  const known = new Map<string, KnownCall>()
  return events.flatMap((event) => {
    if (event.kind === 'words') return []
    return event.calls.map((call, at) => {
      const text = canonicalCall(call.name, call.arguments)
      const before = known.get(text)
      const result = event.results[at]
      if (before) {
        before.times++
        before.differs ||= result !== before.firstResult
        return before
      }
      const made = madeCall(call, policy, String(known.size) as Hash)
      const first = { made, times: 1, firstResult: result, differs: false }
      known.set(text, first)
      return first
    })
  })
}

/** What the guard would have done to a conversation, in order. */
export function judge(recording: Recording, policy: LoopPolicy, registry: ScaffoldRegistry): Judged[] {
  const calls = knownCalls(recording, policy)
  // Where no call is made twice, none is made again and again.
  if (!calls.some(({ times }) => times > 1)) return []
  const judged: Judged[] = []
  const exactly: LoopPolicy = { ...policy, volatile: 'none' }
  let memory: LoopMemory = NO_LOOP
  let index = 0
  let hasEnded = false
  for (const event of recording.events) {
    if (event.kind === 'words') {
      if (event.texts.length > 0 && humanText(event.texts, registry) === '') continue
      memory = humanSpoke(memory)
      hasEnded = false
      continue
    }
    const step = event.results.flatMap((result) => {
      const call = calls[index++]
      if (!call) return []
      // No result is ever compared with that of a call which is made once.
      const compared = call.times > 1 ? result : undefined
      const read = loopCall(String(index - 1), call.made, compared, call.differs ? policy : exactly)
      return read ? [read] : []
    })
    // What follows a stop would not have happened, until a human speaks.
    if (hasEnded) continue
    const passed = refuse(step)
    const { memory: next, finding } = observeStep(memory, passed, policy)
    memory = next
    if (!finding) continue
    const { id, pattern, tools } = finding
    judged.push({ call_index: Number(id), verdict: 'warn', pattern, tool: tools.at(-1) ?? '' })
  }
  return judged

  /** Notes the calls that would never have reached the agent; returns the others. */
  function refuse(step: readonly LoopCall[]): readonly LoopCall[] {
    const { memory: next, refusals, endsRun } = refuseCalls(memory, step, policy)
    memory = next
    hasEnded = endsRun
    const noted = new Set<Hash>()
    for (const [at, { id, call, tool }] of step.entries()) {
      const refusal = refusals[at]
      if (!refusal || noted.has(call)) continue
      noted.add(call)
      const verdict = endsRun ? 'stop' : 'block'
      judged.push({ call_index: Number(id), verdict, pattern: refusal.pattern, tool })
    }
    return step.filter((_, at) => !refusals[at])
  }
}
