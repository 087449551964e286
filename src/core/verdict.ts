/** The one decision: what becomes of a request. */
import { exhausted, type Meter, type MeterName, pressureOf, type Thresholds, type Tier } from './budget.ts'
import type { LoopFinding } from './loop-guard.ts'
import { fill, type NoticeTexts, noticeFor } from './notice.ts'
import type { Position } from './session.ts'
import { type FinalAnswer, type Limit, reasonOf } from './terminal.ts'

/** Where in a request a notice is put. */
export type Channel = 'auto' | 'tool_result' | 'system' | 'user'

export interface BudgetPolicy {
  readonly enabled: boolean
  /** Per run; 0 is no limit. */
  readonly maxIterations: number
  readonly maxToolCalls: number
  readonly thresholds: Thresholds
  readonly channel: Channel
  /** The meters whose limits are stated once in the system text. */
  readonly announce: readonly MeterName[]
  readonly texts: NoticeTexts
}

export type Verdict =
  | { readonly kind: 'allow'; readonly announcement?: string }
  | {
      readonly kind: 'warn'
      /** Unset where the notice is about a loop alone. */
      readonly tier?: Exclude<Tier, 'none'>
      readonly notice: string
      readonly announcement?: string
    }
  | {
      readonly kind: 'stop'
      readonly limit: Limit
      readonly notice: string
      readonly fallback: string
      readonly announcement?: string
    }
  | { readonly kind: 'repeat'; readonly answer: FinalAnswer }

/** The limits in force and how much of each is used. */
export function metersOf(position: Pick<Position, 'iteration' | 'toolCalls'>, policy: BudgetPolicy): Meter[] {
  const meters: Meter[] = [
    { name: 'iterations', used: position.iteration, max: policy.maxIterations },
    { name: 'tool_calls', used: position.toolCalls, max: policy.maxToolCalls },
  ]
  return meters.filter((meter) => meter.max > 0)
}

/** The budget in words: the same in every request of a run, whatever becomes of it. */
function announcementOf(meters: readonly Meter[], policy: BudgetPolicy): { readonly announcement?: string } {
  const stated = meters.filter((meter) => policy.announce.includes(meter.name))
  if (stated.length === 0) return {}
  return { announcement: stated.map((meter) => fill(policy.texts.announce, meter)).join('\n') }
}

/** Was the run ended by the limit that it has reached now? One that was raised since may be reached again. */
function isSameLimit({ terminal }: FinalAnswer, meter: Meter): boolean {
  return terminal.terminal_reason === reasonOf(meter.name) && terminal.budget_max === meter.max
}

/** `loop`: the one that the model is to be told about. */
export function decide(position: Position, policy: BudgetPolicy, loop?: LoopFinding): Verdict {
  if (position.ended?.terminal.terminal_reason === 'loop_guard') {
    return { kind: 'repeat', answer: position.ended }
  }
  const told = [position.guarded?.told, loop?.notice].filter((text) => text !== undefined)
  const warning: Verdict = told.length > 0 ? { kind: 'warn', notice: told.join('\n\n') } : { kind: 'allow' }
  if (!policy.enabled) return warning
  const meters = metersOf(position, policy)
  const spent = exhausted(meters)
  if (spent && position.ended && isSameLimit(position.ended, spent)) {
    return { kind: 'repeat', answer: position.ended }
  }
  const announcement = announcementOf(meters, policy)
  if (spent) {
    return {
      kind: 'stop',
      limit: { meter: spent },
      notice: fill(policy.texts.stop, spent),
      fallback: fill(policy.texts.fallback, spent),
      ...announcement,
    }
  }
  const pressure = pressureOf(meters, policy.thresholds)
  if (!pressure || pressure.tier === 'none') return { ...warning, ...announcement }
  const notice = noticeFor(pressure.tier, pressure.meter, policy.texts)
  return notice
    ? { kind: 'warn', tier: pressure.tier, notice: [...told, notice].join('\n\n'), ...announcement }
    : { ...warning, ...announcement }
}
