/** The one decision: what becomes of a request. */

import type { Amounts, LimitName, Meter, MeterName } from './budget/meters.ts'
import { fill, type NoticeTexts, noticeFor } from './budget/notice.ts'
import {
  addMeters,
  exhausted,
  isExhausted,
  isLastCall,
  isStatementDue,
  pressureOf,
  type Thresholds,
  type Tier,
} from './budget/tiers.ts'
import type { LoopFinding } from './loop/escalation.ts'
import type { RunState } from './session/session.ts'
import { type FinalAnswer, type Limit, reasonOf } from './terminal.ts'

/** Where in a request a notice is put. */
export type Channel = 'auto' | 'tool_result' | 'system' | 'user'

export interface BudgetPolicy {
  readonly enabled: boolean
  /** 0 is no limit. */
  readonly run: Amounts
  readonly session: Amounts
  readonly thresholds: Thresholds
  /** Style tracker: iterations between two statements, from 1. */
  readonly trackerEvery: number
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

export type Decision =
  | { readonly kind: 'allow'; readonly announcement?: string | undefined }
  | {
      readonly kind: 'warn'
      /** Unset where the notice is about a loop alone, or neutral. */
      readonly tier?: Exclude<Tier, 'none'> | undefined
      /** What the notice names; unset where it is about a loop alone. */
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
const ALLOWED: Decision = { kind: 'allow' }

const NO_TOOLS: readonly string[] = []

/** The budget in words: the same in every request of a run, whatever becomes of it. */
function announcementOf({ announce, run, texts, thresholds }: BudgetPolicy): string | undefined {
  if (announce.length === 0) return undefined
  const stated = announce.filter((name) => run[name] > 0)
  const text = thresholds.style === 'tracker' ? texts.trackerBegin : texts.announce
  const said = stated.map((name) => fill(text, { name, used: 0, max: run[name] }))
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

/** One sentence about the budget or the context window, before it is known where it goes. */
interface BudgetNotice {
  /** Unset where it is neutral. */
  readonly tier?: Exclude<Tier, 'none'>
  readonly meter: MeterName
  readonly notice: string
  readonly dropsTools: boolean
}

/** The caution or warning that is due; `undefined` where none is. */
function tierNotice(
  { isStagnating }: RunState,
  policy: BudgetPolicy,
  meters: readonly Meter[],
): BudgetNotice | undefined {
  const pressure = pressureOf(meters, policy.thresholds)
  if (!pressure || pressure.tier === 'none') return undefined
  const { tier, meter } = pressure
  if (tier === 'caution' && policy.cautionWhen === 'stagnating' && !isStagnating) return undefined
  const notice = noticeFor(tier, meter, policy.texts, policy.thresholds.style)
  return notice === undefined
    ? undefined
    : { tier, meter: meter.name, notice, dropsTools: tier === 'warning' }
}

/**
 * What a tracker says: the last call always; else how full the context window is, or what is used of the budget, where
 * `mayState` allows it.
 */
function trackerNotice(
  runState: RunState,
  policy: BudgetPolicy,
  limits: readonly Meter[],
  context: readonly Meter[],
  mayState: boolean,
): BudgetNotice | undefined {
  const { texts, thresholds, trackerEvery, dropTools } = policy
  const last = limits.find(isLastCall)
  if (last) return { tier: 'warning', meter: last.name, notice: texts.trackerLast, dropsTools: true }
  const nearFull = mayState ? tierNotice(runState, policy, context) : undefined
  if (nearFull) return nearFull
  const pressure = pressureOf(limits, thresholds)
  if (!pressure) return undefined
  const { tier, meter } = pressure
  // Tools that are gone must stay gone: the same list in every request that follows.
  const dropsTools = tier === 'warning' && dropTools.length > 0
  const isDue = dropsTools || (mayState && isStatementDue(meter, runState.iteration, trackerEvery))
  return isDue ? { meter: meter.name, notice: fill(texts.tracker, meter), dropsTools } : undefined
}

/** Two paragraphs, or the one that there is. */
function paragraphs(first: string | undefined, second: string | undefined): string | undefined {
  if (first === undefined || second === undefined) return first ?? second
  return `${first}\n\n${second}`
}

/**
 * `loop`: the one that the model is to be told about. `contextWindow`: in tokens; 0 where it is not known. `mayState`:
 * a neutral statement that the next request will not show again costs the model neither its reasoning nor its cache.
 */
export function decide(
  runState: RunState,
  policy: BudgetPolicy,
  loop?: LoopFinding,
  contextWindow = 0,
  mayState = true,
): Decision {
  const { finalAnswer: ended } = runState
  // What frameworks ask once more for, to have the answer in their form; the recorded text would be of no use to them.
  if (ended && runState.isLate) return ALLOWED
  if (ended?.terminal.terminal_reason === 'loop_guard') return { kind: 'repeat', answer: ended }
  const told = paragraphs(runState.loopState?.currentNotice, loop?.notice)
  if (!policy.enabled) return allowing(told, policy.channel, undefined)
  const meters: Meter[] = []
  addMeters(meters, runState.run, policy.run)
  addMeters(meters, runState.session, policy.session)
  const spent = exhausted(meters)
  // A call is not kept: who lost it is answered anew.
  const isLost = ended?.isCall && runState.isRetry
  if (spent && ended && !isLost && isStillReached(ended, meters)) return { kind: 'repeat', answer: ended }
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
  const context: Meter[] =
    contextWindow > 0 ? [{ name: 'context', used: runState.contextTokens ?? 0, max: contextWindow }] : []
  const said =
    policy.thresholds.style === 'tracker'
      ? trackerNotice(runState, policy, meters, context, mayState)
      : tierNotice(runState, policy, context.length === 0 ? meters : [...meters, ...context])
  if (!said) return allowing(told, policy.channel, announcement)
  const { tier, meter, notice, dropsTools } = said
  return {
    kind: 'warn',
    tier,
    meter,
    notice: paragraphs(told, notice) ?? notice,
    channel: tier === 'warning' && policy.escalate && runState.wasIgnored ? 'user' : policy.channel,
    dropTools: dropsTools ? policy.dropTools : NO_TOOLS,
    announcement,
  }
}

/** Where the budget has nothing to say. `told`: about a loop. */
function allowing(told: string | undefined, channel: Channel, announcement: string | undefined): Decision {
  if (told !== undefined) return { kind: 'warn', notice: told, channel, dropTools: NO_TOOLS, announcement }
  return announcement === undefined ? ALLOWED : { kind: 'allow', announcement }
}
