/** The one decision: what becomes of a request. */
import {
  type Amounts,
  addMeters,
  exhausted,
  isExhausted,
  type LimitName,
  type Meter,
  type MeterName,
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
  | { readonly kind: 'allow'; readonly announcement?: string | undefined }
  | {
      readonly kind: 'warn'
      /** Unset where the notice is about a loop alone. */
      readonly tier?: Exclude<Tier, 'none'> | undefined
      /** What the tier is about. */
      readonly meter?: MeterName | undefined
      readonly notice: string
      readonly channel: Channel
      /** Globs of tools that the model is not offered this time. */
      readonly dropTools: readonly string[]
      readonly announcement?: string | undefined
    }
  | {
      readonly kind: 'stop'
      readonly limit: Limit
      readonly notice: string
      readonly fallback: string
      readonly announcement?: string | undefined
    }
  | { readonly kind: 'repeat'; readonly answer: FinalAnswer }

/** What nearly all requests are told. */
const ALLOWED: Verdict = { kind: 'allow' }

const NO_TOOLS: readonly string[] = []

/** The budget in words: the same in every request of a run, whatever becomes of it. */
function announcementOf({ announce, run, texts }: BudgetPolicy): string | undefined {
  if (announce.length === 0) return undefined
  const stated = announce.filter((name) => run[name] > 0)
  const said = stated.map((name) => fill(texts.announce, { name, used: 0, max: run[name] }))
  return stated.length === 0 ? undefined : said.join('\n')
}

/**
 * Is the limit that ended the run still reached, whatever other limits were reached since? One that was raised may be
 * reached again.
 */
function isStillReached({ terminal }: FinalAnswer, meters: readonly Meter[]): boolean {
  return meters.some(
    (meter) =>
      isExhausted(meter) &&
      terminal.terminal_reason === reasonOf(meter.name) &&
      terminal.budget_max === meter.max,
  )
}

/** What weighs on the run: the tier and the meter it is about; `undefined` where nothing is to be said of it. */
function pressureOn({ isStagnating }: Position, policy: BudgetPolicy, meters: readonly Meter[]) {
  const pressure = pressureOf(meters, policy.thresholds)
  if (!pressure || pressure.tier === 'none') return undefined
  const { tier, meter } = pressure
  return tier === 'caution' && policy.cautionWhen === 'stagnating' && !isStagnating
    ? undefined
    : { tier, meter }
}

/** Two paragraphs, or the one that there is. */
function paragraphs(first: string | undefined, second: string | undefined): string | undefined {
  if (first === undefined || second === undefined) return first ?? second
  return `${first}\n\n${second}`
}

/** `loop`: the one that the model is to be told about. `contextWindow`: in tokens; 0 where it is not known. */
export function decide(
  position: Position,
  policy: BudgetPolicy,
  loop?: LoopFinding,
  contextWindow = 0,
): Verdict {
  const { ended } = position
  if (ended?.terminal.terminal_reason === 'loop_guard') return { kind: 'repeat', answer: ended }
  const told = paragraphs(position.guarded?.told, loop?.notice)
  if (!policy.enabled) return allowing(told, policy.channel, undefined)
  const meters: Meter[] = []
  addMeters(meters, position.run, policy.run)
  addMeters(meters, position.session, policy.session)
  const spent = exhausted(meters)
  if (spent && ended && isStillReached(ended, meters)) return { kind: 'repeat', answer: ended }
  const announcement = announcementOf(policy)
  if (spent) {
    return {
      kind: 'stop',
      limit: { meter: spent },
      notice: fill(policy.texts.stop, spent),
      fallback: fill(policy.texts.fallback, spent),
      announcement,
    }
  }
  if (contextWindow > 0)
    meters.push({ name: 'context', used: position.contextTokens ?? 0, max: contextWindow })
  const pressure = pressureOn(position, policy, meters)
  const notice = pressure && noticeFor(pressure.tier, pressure.meter, policy.texts, policy.thresholds.style)
  if (!notice) return allowing(told, policy.channel, announcement)
  const isLast = pressure.tier === 'warning'
  return {
    kind: 'warn',
    tier: pressure.tier,
    meter: pressure.meter.name,
    notice: paragraphs(told, notice) ?? notice,
    channel: isLast && policy.escalate && position.wasIgnored ? 'user' : policy.channel,
    dropTools: isLast ? policy.dropTools : NO_TOOLS,
    announcement,
  }
}

/** Where the budget has nothing to say. `told`: about a loop. */
function allowing(told: string | undefined, channel: Channel, announcement: string | undefined): Verdict {
  if (told !== undefined) return { kind: 'warn', notice: told, channel, dropTools: NO_TOOLS, announcement }
  return announcement === undefined ? ALLOWED : { kind: 'allow', announcement }
}
