/** The one decision: what becomes of a request. */
import {
  type Amounts,
  exhausted,
  type LimitName,
  type Meter,
  type MeterName,
  metersOf,
  pressureOf,
  type Thresholds,
  type Tier,
} from './budget.ts'
import type { LoopFinding } from './loop-guard.ts'
import { fill, type NoticeTexts, noticeFor } from './notice.ts'
import type { Position } from './session.ts'
import { type FinalAnswer, type Limit, reasonOf } from './terminal.ts'

/** Where in a request a notice is put. */
export type Channel = 'auto' | 'tool_result' | 'system' | 'user'

export interface BudgetPolicy {
  readonly enabled: boolean
  /** 0 is no limit. */
  readonly run: Amounts
  readonly session: Amounts
  readonly thresholds: Thresholds
  readonly channel: Channel
  /** The limits of a run that are stated once in the system text. */
  readonly announce: readonly LimitName[]
  /** `stagnating`: a run that does something new is not cautioned. Warnings are given all the same. */
  readonly cautionWhen: 'always' | 'stagnating'
  /** A warning that was ignored comes back as a message of its own. */
  readonly escalate: boolean
  /** Globs of tools that are no longer offered once the warning tier is reached. */
  readonly dropTools: readonly string[]
  readonly texts: NoticeTexts
}

export type Verdict =
  | { readonly kind: 'allow'; readonly announcement?: string }
  | {
      readonly kind: 'warn'
      /** Unset where the notice is about a loop alone. */
      readonly tier?: Exclude<Tier, 'none'>
      /** What the tier is about. */
      readonly meter?: MeterName
      readonly notice: string
      readonly channel: Channel
      /** Globs of tools that the model is not offered this time. */
      readonly dropTools: readonly string[]
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

/** The budget in words: the same in every request of a run, whatever becomes of it. */
function announcementOf({ announce, run, texts }: BudgetPolicy): { readonly announcement?: string } {
  if (announce.length === 0) return {}
  const stated = announce.filter((name) => run[name] > 0)
  const said = stated.map((name) => fill(texts.announce, { name, used: 0, max: run[name] }))
  return stated.length === 0 ? {} : { announcement: said.join('\n') }
}

/** Was the run ended by the limit that it has reached now? One that was raised since may be reached again. */
function isSameLimit({ terminal }: FinalAnswer, meter: Meter<LimitName>): boolean {
  return terminal.terminal_reason === reasonOf(meter.name) && terminal.budget_max === meter.max
}

function pressureOn(
  position: Position,
  policy: BudgetPolicy,
  meters: readonly Meter[],
  contextWindow: number,
) {
  const { contextTokens: used = 0, isStagnating } = position
  const context: Meter = { name: 'context', used, max: contextWindow }
  const pressure = pressureOf([...meters, context], policy.thresholds)
  if (!pressure || pressure.tier === 'none') return undefined
  const { tier, meter } = pressure
  return tier === 'caution' && policy.cautionWhen === 'stagnating' && !isStagnating
    ? undefined
    : { tier, meter }
}

/** `loop`: the one that the model is to be told about. `contextWindow`: in tokens; 0 where it is not known. */
export function decide(
  position: Position,
  policy: BudgetPolicy,
  loop?: LoopFinding,
  contextWindow = 0,
): Verdict {
  if (position.ended?.terminal.terminal_reason === 'loop_guard') {
    return { kind: 'repeat', answer: position.ended }
  }
  const told = [position.guarded?.told, loop?.notice].filter((text) => text !== undefined)
  const warn = { kind: 'warn', channel: policy.channel, dropTools: [] } as const
  const warning: Verdict = told.length > 0 ? { ...warn, notice: told.join('\n\n') } : { kind: 'allow' }
  if (!policy.enabled) return warning
  const meters = [...metersOf(position.run, policy.run), ...metersOf(position.session, policy.session)]
  const spent = exhausted(meters)
  if (spent && position.ended && isSameLimit(position.ended, spent)) {
    return { kind: 'repeat', answer: position.ended }
  }
  const announcement = announcementOf(policy)
  if (spent) {
    return {
      kind: 'stop',
      limit: { meter: spent },
      notice: fill(policy.texts.stop, spent),
      fallback: fill(policy.texts.fallback, spent),
      ...announcement,
    }
  }
  const pressure = pressureOn(position, policy, meters, contextWindow)
  const notice = pressure && noticeFor(pressure.tier, pressure.meter, policy.texts, policy.thresholds.style)
  if (!notice) return { ...warning, ...announcement }
  const isLast = pressure.tier === 'warning'
  return {
    ...warn,
    tier: pressure.tier,
    meter: pressure.meter.name,
    notice: [...told, notice].join('\n\n'),
    ...(isLast && policy.escalate && position.wasIgnored ? { channel: 'user' } : {}),
    ...(isLast ? { dropTools: policy.dropTools } : {}),
    ...announcement,
  }
}
