/** Decides how Governor handles a request. */

import {
  fill,
  isLastCall,
  isStatementDue,
  type NoticeTexts,
  noticeFor,
  pressureOf,
  type Thresholds,
  type Tier,
} from './budget/budget-notices.ts'
import type { ScopeLimits } from './budget/ledger.ts'
import {
  type AnyLimitName,
  costLimit,
  isExhausted,
  LIMITS,
  type LimitName,
  type LimitPair,
  type Meter,
  metersOf,
  NO_LIMITS,
  type TimeMeter,
} from './budget/meters.ts'
import type { Calendar } from './budget/scopes.ts'
import type { Velocity } from './budget/velocity.ts'
import { isStagnating } from './loop/call-history.ts'
import type { LoopFinding } from './loop/escalation.ts'
import type { Run, RunState } from './session/session.ts'
import type { StormReply } from './storm.ts'
import { type FinalAnswer, type GuardEnd, instantOf, type Limit, REASONS, reasonOf } from './terminal.ts'

/** Where in a request a notice is put. */
export type Channel = 'auto' | 'tool_result' | 'system' | 'user'

/** The budget of one request, and how the model is informed about it. */
export interface BudgetPolicy extends LimitPair {
  readonly enabled: boolean
  /** The limits of scopes of time; none while the budget is disabled. */
  readonly scopes: readonly ScopeLimits[]
  /** Unset without a limit on the rate, and while the budget is disabled. */
  readonly velocity?: Velocity | undefined
  /** Made when it is first asked for: the data of time zones take tens of milliseconds. */
  readonly calendar: () => Calendar
  readonly thresholds: Thresholds
  /** Style tracker: iterations between two statements, from 1. */
  readonly trackerEvery: number
  readonly channel: Channel
  /** The limits of a run that are announced in the system text, if this request begins it. */
  readonly announce: readonly LimitName[]
  /** `stagnating`: a run that brings anything new gets no caution, but still gets warnings. */
  readonly cautionWhen: 'always' | 'stagnating'
  /** A warning that was ignored is repeated as a separate message. */
  readonly escalate: boolean
  /** Globs of the tools that are no longer offered from the warning tier on. */
  readonly dropTools: readonly string[]
  /** Limits of the tree of agents, without the main one; 0 is no limit. */
  readonly agents: { readonly total: number; readonly concurrent: number; readonly depth: number }
  /** Globs of the tools that start agents. */
  readonly spawnTools: readonly string[]
  /** What a limit on cost makes of a model whose price is not known. */
  readonly unknownPrice: 'warn' | 'estimate' | 'refuse'
  readonly texts: NoticeTexts
}

/** What Governor says to the model in one request. */
export interface Speech {
  /** Unset if there is only an announcement. */
  readonly notice: string | undefined
  /** Unset if the notice is neutral, or only about a loop. */
  readonly tier: Exclude<Tier, 'none'> | undefined
  /** The meter that the notice names; unset if it is only about a loop. */
  readonly meter: Meter | undefined
  readonly channel: Channel
  readonly dropTools: readonly string[]
  /** The budget in words, for the system text: the same in every request of a run. */
  readonly announcement: string | undefined
}

/**
 * How Governor handles a request. `verdict` is the value of `x-governor-verdict` and of the metrics.
 * `speech`: the texts for the model; a `wait` does not ask the model, and a `self_stop` sends only its announcement.
 */
export type Decision =
  /** The request goes upstream. `filter_calls`: calls in the response may be blocked. */
  | {
      readonly kind: 'allow' | 'warn' | 'filter_calls'
      readonly verdict: 'allow' | 'warn'
      readonly speech: Speech | undefined
      /** The run was over and resumes, because its limit was raised. */
      readonly resumesRun: boolean
      /** The verdict that the request would have got if Governor did more than observe. */
      readonly observed?: 'warn' | 'stop' | 'slow' | undefined
      /** The limit on the rate for which the request waits first. */
      readonly slowedBy?: Meter<AnyLimitName> | undefined
    }
  /** A limit is reached: the model is asked for its final answer. */
  | {
      readonly kind: 'stop'
      readonly verdict: 'stop'
      readonly speech: Speech
      readonly limit: Limit
      readonly fallback: string
      /**
       * Why the model is not asked: its price is not known, or a limit of a scope of time is reached before the run
       * begins.
       */
      readonly unsent?: 'unpriced' | 'closed'
      /** The loop that ends the run. */
      readonly loop?: GuardEnd['loop']
    }
  /** The agent reached a limit of its own and asks for its final answer. */
  | {
      readonly kind: 'self_stop'
      readonly verdict: 'allow'
      readonly speech: Speech | undefined
      readonly limit: Limit
    }
  /** The run is over: the client gets its recorded answer again. */
  | {
      readonly kind: 'replay'
      readonly verdict: 'stop'
      readonly speech: undefined
      readonly answer: FinalAnswer
    }
  /** The provider gave many errors in a row: the client gets the newest of them and a time to wait. */
  | {
      readonly kind: 'wait'
      readonly verdict: 'allow' | 'warn' | 'stop'
      readonly speech: Speech | undefined
      readonly storm: StormReply
    }

const ALLOWED: Decision = { kind: 'allow', verdict: 'allow', speech: undefined, resumesRun: false }

function announcementOf({ texts, thresholds }: BudgetPolicy, { announced = NO_LIMITS }: Run): string | undefined {
  const text = thresholds.style === 'tracker' ? texts.trackerBegin : texts.announce
  const lines: string[] = []
  for (const name of LIMITS) if (announced[name] > 0) lines.push(fill(text, { name, used: 0, max: announced[name] }))
  return lines.length === 0 ? undefined : lines.join('\n')
}

/** A notice about the budget or the context window. */
interface BudgetNotice {
  /** Unset if the notice is neutral. */
  readonly tier?: Exclude<Tier, 'none'>
  readonly meter: Meter
  readonly notice: string
  readonly dropsTools: boolean
}

function tierNotice(runState: RunState, policy: BudgetPolicy, meters: readonly Meter[]): BudgetNotice | undefined {
  const pressure = pressureOf(meters, policy.thresholds)
  if (!pressure || pressure.tier === 'none') return undefined
  const { tier, meter } = pressure
  const { loopState } = runState.thread
  if (tier === 'caution' && policy.cautionWhen === 'stagnating')
    if (!loopState || !isStagnating(loopState.memory.history)) return undefined
  const notice = noticeFor(tier, meter, policy.texts, policy.thresholds.style)
  return { tier, meter, notice, dropsTools: tier === 'warning' }
}

/** Returns the notice of a tracker: always for the last call; with `mayState` also of what is filled or used. */
function trackerNotice(
  runState: RunState,
  policy: BudgetPolicy,
  limits: readonly Meter[],
  context: readonly Meter[],
  mayState: boolean,
): BudgetNotice | undefined {
  const { texts, thresholds, trackerEvery, dropTools } = policy
  const last = limits.find(isLastCall)
  if (last) return { tier: 'warning', meter: last, notice: texts.trackerLast, dropsTools: true }
  const nearFull = mayState ? tierNotice(runState, policy, context) : undefined
  if (nearFull) return nearFull
  const pressure = pressureOf(limits, thresholds)
  if (!pressure) return undefined
  const { tier, meter } = pressure
  // Tools that were dropped stay dropped: every request that follows has the same list.
  const dropsTools = tier === 'warning' && dropTools.length > 0
  const isDue = dropsTools || (mayState && isStatementDue(meter, runState.iteration, trackerEvery))
  return isDue ? { meter, notice: fill(texts.tracker, meter), dropsTools } : undefined
}

/** The meters of scopes of time, and of the rate. */
export interface TimeMeters {
  readonly enforced: readonly TimeMeter[]
  readonly observed: readonly TimeMeter[]
  /** Of a rate that slows. */
  readonly slowing?: readonly TimeMeter[]
}

/** The facts on which a decision depends. */
export interface DecisionInput {
  readonly runState: RunState
  readonly policy: BudgetPolicy
  /** The loop about which the model gets a notice. */
  readonly loop?: LoopFinding | undefined
  readonly contextWindow?: number | undefined
  /** A statement that the next request does not repeat costs neither reasoning nor the prompt cache. */
  readonly mayState?: boolean | undefined
  readonly isUnpriced?: boolean | undefined
  readonly asksForSummary?: boolean | undefined
  readonly mayBlock?: boolean | undefined
  readonly guardEnd?: GuardEnd | undefined
  /**
   * The meters of scopes of time and of the rate: those that may end the run, that slow it, and that are only observed.
   */
  readonly time?: TimeMeters | undefined
}

/** Returns the decision on a request. */
export function decide(input: DecisionInput): Decision {
  const { runState, policy } = input
  const { finalAnswer: ended } = runState
  // A framework asks once more to get the answer in its own form; it cannot use the recorded text.
  if (ended && runState.asksForOtherForm) return proceed(input, undefined)
  if (ended && !REASONS[ended.terminal.terminal_reason].mayResume) return replay(ended)
  const max = policy.enabled ? policy.run.iterations : 0
  const made = { name: 'iterations', used: Math.max(0, runState.iteration - 1), max } as const
  if (runState.run.operator?.isStopAsked)
    return stop(input, { meter: made, reason: 'operator' }, policy.texts.operatorFallback)
  if (input.guardEnd && !ended) {
    const { guard: reason, askText, fallback, loop } = input.guardEnd
    return { ...stop(input, { meter: made, reason }, '', undefined, askText), fallback, loop }
  }
  const refused = input.isUnpriced && policy.unknownPrice === 'refuse' ? costLimit(policy) : undefined
  if (refused !== undefined) {
    const meter = { name: 'cost', used: runState.used.cost, max: refused } as const
    return ended ? replay(ended) : stop(input, { meter }, policy.texts.unpriced, 'unpriced')
  }
  // An access key has limits of its own.
  if (!policy.enabled) return atLimit(input, []) ?? proceed(input, speechOf(input, []))
  const ofRuns = metersOfRuns(input)
  const end = atLimit(input, ofRuns)
  if (end) return end
  const { enforced = [], observed = [], slowing = [] } = input.time ?? {}
  // A run under way is no new one.
  const ofTime = enforced.filter(({ name }) => name !== 'runs')
  const decision = proceed(input, speechOf(input, [...ofRuns, ...ofTime]))
  if (!('resumesRun' in decision)) return decision
  const slowedBy = slowing.find(isExhausted)
  const hit = observed.find(isExhausted)
  if (!hit) return slowedBy ? { ...decision, slowedBy } : decision
  return { ...decision, slowedBy, observed: hit.scope === 'minute' && policy.velocity?.slows ? 'slow' : 'stop' }
}

function metersOfRuns({ runState, policy }: DecisionInput): Meter<LimitName>[] {
  return [...metersOf(runState.used, policy.run), ...metersOf(runState.usedBySession, policy.session, 'session')]
}

/** Returns the end of a run that has reached a limit; `undefined` if it has reached none. */
function atLimit(input: DecisionInput, ofRuns: readonly Meter<LimitName>[]): Decision | undefined {
  const { runState, policy, time } = input
  const { finalAnswer: ended } = runState
  const enforced = time?.enforced ?? []
  // Nothing has come of the run yet, so that there is nothing to sum up.
  const isFirst = runState.iteration === 1
  let spent: Meter<AnyLimitName> | undefined
  let isRaised = true
  for (const meter of [...ofRuns, ...enforced]) {
    const { terminal_reason, budget_max, scope, resets_at } = ended?.terminal ?? {}
    const isSameScope = scope === (meter.scope ?? 'run')
    // Governor's own text says when to come again.
    const isAgain = isFirst && meter.time !== undefined && resets_at !== instantOf(meter.time)
    // A limit that was lowered meanwhile asks for no other answer.
    const isAsHigh = budget_max !== undefined && budget_max >= meter.max
    const hasEnded = terminal_reason === reasonOf({ meter }) && isAsHigh && isSameScope && !isAgain
    // The rate falls while an ended run is silent; only its user lets it go on.
    if (!isExhausted(meter) && !(hasEnded && scope === 'minute' && !isFirst)) continue
    spent ??= meter
    if (hasEnded) isRaised = false
  }
  // An answer that is a call is not replayed: a client that lost it gets a new answer.
  const isLost = ended?.isCall && runState.isRetry
  if (spent && ended && !isLost && !isRaised) return replay(ended)
  const closed = isFirst ? enforced.find(isExhausted) : undefined
  if (closed) return stop(input, { meter: closed }, closedText(policy, closed), 'closed')
  return spent && stop(input, { meter: spent }, policy.texts.fallback)
}

/** Returns the template of what stands for the answer where a limit of a scope of time, or on the rate, is reached. */
export function closedText({ texts }: BudgetPolicy, { scope }: Meter): string {
  return scope === 'minute' ? texts.tooFast : texts.closed
}

/** Returns the decision on a request if Governor only observes: it is forwarded, and the model gets no text. */
export function observeOnly(decision: Decision): Decision {
  if (decision.kind === 'stop' && REASONS[reasonOf(decision.limit)].isCommand) return decision
  if (decision.kind === 'replay' && REASONS[decision.answer.terminal.terminal_reason].isCommand) return decision
  const { kind, verdict } = decision
  const resumesRun = kind === 'replay' || ('resumesRun' in decision && decision.resumesRun)
  const isSlowed = 'slowedBy' in decision && decision.slowedBy !== undefined
  const observed = isSlowed ? 'slow' : verdict === 'allow' ? undefined : verdict
  if (observed === undefined && !resumesRun) return ALLOWED
  return { kind: 'allow', verdict: 'allow', speech: undefined, resumesRun, observed }
}

/**
 * Returns the decision in a storm of errors: the client waits, unless it gets a recorded answer or an operator stops
 * it.
 */
export function decideInStorm(decision: Decision, storm: StormReply): Decision {
  if (decision.kind === 'replay') return decision
  if (decision.kind === 'stop' && REASONS[reasonOf(decision.limit)].isCommand) return decision
  return { kind: 'wait', verdict: decision.verdict, speech: decision.speech, storm }
}

/**
 * Decides after a fault in the budget: the model still gets notices about loops, a run that is over stays over, and a
 * limit that was reached stays reached.
 */
export function decideWithoutBudget(input: DecisionInput): Decision {
  const { runState, policy } = input
  if (runState.finalAnswer) return replay(runState.finalAnswer)
  const decision = decide({ ...input, policy: { ...policy, enabled: false } })
  return (decision.kind !== 'stop' && policy.enabled && atLimit(input, metersOfRuns(input))) || decision
}

function replay(answer: FinalAnswer): Decision {
  return { kind: 'replay', verdict: 'stop', speech: undefined, answer }
}

/**
 * Asks for a final answer, unless that has to stay `unsent`. `askText`, `fallback`: templates of the request and of the
 * answer in its place.
 */
function stop(
  { policy, asksForSummary, runState }: DecisionInput,
  limit: Limit,
  fallback: string,
  unsent: 'unpriced' | 'closed' | undefined = undefined,
  askText = policy.texts[limit.meter.time ? 'stopAtLimit' : (REASONS[reasonOf(limit)].text ?? 'stop')],
) {
  const { channel, enabled } = policy
  const notice = asksForSummary || unsent ? undefined : fill(askText, limit.meter)
  const announcement = enabled && !unsent ? announcementOf(policy, runState.run) : undefined
  const speech: Speech = { notice, tier: undefined, meter: undefined, channel, dropTools: [], announcement }
  const stopped = { kind: 'stop', verdict: 'stop', speech, limit, fallback: fill(fallback, limit.meter) } as const
  return unsent ? { ...stopped, unsent } : stopped
}

function proceed(input: DecisionInput, speech: Speech | undefined): Decision {
  const { runState, policy, asksForSummary, mayBlock } = input
  const { finalAnswer, asksForOtherForm, iteration } = runState
  // An agent that asks for its final answer itself is not warned.
  const verdict = speech?.notice === undefined || asksForSummary ? 'allow' : 'warn'
  if (asksForSummary) {
    const meter = { name: 'iterations', used: iteration, max: policy.run.iterations } as const
    return { kind: 'self_stop', verdict: 'allow', speech, limit: { meter } }
  }
  const resumesRun = finalAnswer !== undefined && !asksForOtherForm
  const kind = mayBlock && !asksForOtherForm ? 'filter_calls' : verdict
  return kind === 'allow' && !speech && !resumesRun ? ALLOWED : { kind, verdict, speech, resumesRun }
}

/** Returns the texts for the model if no limit is reached. `meters`: of the budget; none while it is disabled. */
function speechOf(input: DecisionInput, meters: readonly Meter[]): Speech | undefined {
  const { runState, policy, loop, contextWindow = 0, mayState = true } = input
  const { channel, enabled, thresholds, escalate, dropTools } = policy
  const announcement = enabled ? announcementOf(policy, runState.run) : undefined
  const { blockNotice } = runState.thread
  const used = runState.contextTokens ?? 0
  const context: Meter[] = contextWindow > 0 ? [{ name: 'context', used, max: contextWindow }] : []
  const due = !enabled
    ? undefined
    : thresholds.style === 'tracker'
      ? trackerNotice(runState, policy, meters, context, mayState)
      : tierNotice(runState, policy, [...meters, ...context])
  // About calls that were blocked in the newest response, about the loop that was found now, and about the budget.
  const notices: string[] = []
  for (const text of [blockNotice?.isDue && blockNotice.text, loop?.notice, due?.notice])
    if (text !== undefined) notices.push(text)
  if (notices.length === 0 && announcement === undefined) return undefined
  return {
    notice: notices.length === 0 ? undefined : notices.join('\n\n'),
    tier: due?.tier,
    meter: due?.meter,
    channel: due?.tier === 'warning' && escalate && runState.run.wasIgnored ? 'user' : channel,
    dropTools: due?.dropsTools ? dropTools : [],
    announcement,
  }
}
