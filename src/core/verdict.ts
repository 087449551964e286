/** The one decision: what becomes of a request. */
import { exhausted, type Meter, pressureOf, type Thresholds, type Tier } from './budget.ts'
import { fill, type NoticeTexts, noticeFor } from './notice.ts'
import type { Position } from './session.ts'
import type { FinalAnswer, Limit } from './terminal.ts'

/** Where in a request a notice is put. */
export type Channel = 'auto' | 'tool_result' | 'system' | 'user'

export interface BudgetPolicy {
  readonly enabled: boolean
  /** Per run; 0 is no limit. */
  readonly maxIterations: number
  readonly maxToolCalls: number
  readonly thresholds: Thresholds
  readonly channel: Channel
  /** State the budget once in the system text. */
  readonly announce: boolean
  readonly texts: NoticeTexts
}

export type Verdict =
  | { readonly kind: 'allow'; readonly announcement?: string }
  | {
      readonly kind: 'warn'
      readonly tier: Exclude<Tier, 'none'>
      readonly notice: string
      readonly announcement?: string
    }
  | { readonly kind: 'stop'; readonly limit: Limit; readonly notice: string; readonly fallback: string }
  | { readonly kind: 'repeat'; readonly answer: FinalAnswer }

/** The limits in force and how much of each is used. */
export function metersOf(position: Pick<Position, 'iteration' | 'toolCalls'>, policy: BudgetPolicy): Meter[] {
  const meters: Meter[] = [
    { name: 'iterations', used: position.iteration, max: policy.maxIterations },
    { name: 'tool_calls', used: position.toolCalls, max: policy.maxToolCalls },
  ]
  return meters.filter((meter) => meter.max > 0)
}

export function decide(position: Position, policy: BudgetPolicy): Verdict {
  if (!policy.enabled) return { kind: 'allow' }
  const meters = metersOf(position, policy)
  const spent = exhausted(meters)
  if (spent && position.ended) return { kind: 'repeat', answer: position.ended }
  if (spent) {
    return {
      kind: 'stop',
      limit: { meter: spent },
      notice: fill(policy.texts.stop, spent),
      fallback: fill(policy.texts.fallback, spent),
    }
  }
  const [budget] = meters
  const announcement = policy.announce && budget ? { announcement: fill(policy.texts.announce, budget) } : {}
  const pressure = pressureOf(meters, policy.thresholds)
  if (!pressure || pressure.tier === 'none') return { kind: 'allow', ...announcement }
  const notice = noticeFor(pressure.tier, pressure.meter, policy.texts)
  return notice
    ? { kind: 'warn', tier: pressure.tier, notice, ...announcement }
    : { kind: 'allow', ...announcement }
}
