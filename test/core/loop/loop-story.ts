/** Runs written call by call: `ls=a` is the call `ls` with the result a, `edit!=ok` one that changes something. */

import { checkConfig } from '../../../src/config/load.ts'
import { policiesOf } from '../../../src/config/policies.ts'
import { hashOf } from '../../../src/core/hash.ts'
import {
  humanSpoke,
  type LoopCall,
  type LoopFinding,
  type LoopMemory,
  NO_LOOP,
  observeStep,
  warningSent,
} from '../../../src/core/loop/escalation.ts'
import type { LoopPolicy } from '../../../src/core/loop/patterns.ts'
import { callHash } from '../../../src/core/loop/tool-call.ts'

export function policyWith(settings: Readonly<Record<string, unknown>> = {}): LoopPolicy {
  return policiesOf(checkConfig({ loop_guard: settings }, 'test')).loop.settings
}

export const POLICY = policyWith()

/**
 * `name=result`; a `!` behind the name is a change, a `?` a wait, and a `.` says that its result is terse. What follows a
 * `~` in the result is masked; `name=?result` is a result that is unknown.
 */
export function callOf(text: string, at = 0): LoopCall {
  const [made = '', result = ''] = text.split('=')
  const tool = made.replace(/[!?.]$/, '')
  return {
    at,
    tool,
    call: callHash(tool, ''),
    resultHash: result.startsWith('?') ? '' : hashOf(result),
    maskedHash: hashOf(result.replace(/^\?|~.*/g, '')),
    isPoll: made.endsWith('?'),
    isChange: made.endsWith('!'),
    isTerse: made.endsWith('.'),
  }
}

/** Responses separated by spaces, the calls of one by `+`; `HUMAN` is a human message, `AGAIN` one in the same words. */
export function stepsOf(story: string): (readonly LoopCall[] | 'HUMAN' | 'AGAIN')[] {
  let index = 0
  return story
    .trim()
    .split(/\s+/)
    .map((step) => (step === 'HUMAN' || step === 'AGAIN' ? step : step.split('+').map((call) => callOf(call, index++))))
}

export interface Told {
  readonly memory: LoopMemory
  readonly findings: readonly LoopFinding[]
  /** `index:pattern` of each finding; calls are counted from 0. */
  readonly found: readonly string[]
}

/** Returns a run whose model gets every notice. `every`: the time between two responses, in milliseconds; unset if it is not known. */
export function tell(story: string, policy: LoopPolicy = POLICY, from: LoopMemory = NO_LOOP, every?: number): Told {
  let memory = from
  let now = 0
  const findings: LoopFinding[] = []
  for (const step of stepsOf(story)) {
    if (step === 'HUMAN' || step === 'AGAIN') {
      memory = humanSpoke(memory, step === 'AGAIN')
      continue
    }
    now += every ?? 0
    const seen = observeStep(memory, step, policy, every === undefined ? undefined : now)
    memory = seen.memory
    if (!seen.finding) continue
    findings.push(seen.finding)
    memory = warningSent(memory, seen.finding)
  }
  return { memory, findings, found: findings.map(({ at, pattern }) => `${at}:${pattern}`) }
}
