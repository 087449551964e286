/**
 * A session as operators see it. Pure: it depends on the stored session and the time only. The keys are part of the
 * public contract. No field contains an argument, a prompt or a result; clients and models choose the names of
 * tools, models and threads.
 */
import { type Amounts, LIMITS, type LimitName, METERS, type Meter } from '../../core/budget/meters.ts'
import type { BaseContext, EffectiveContext } from '../../core/context-window.ts'
import { currentLoop } from '../../core/loop/escalation.ts'
import { PATTERNS } from '../../core/loop/patterns.ts'
import { limitsInForce } from '../../core/operator/operator.ts'
import type { Question } from '../../core/operator/operator-settings.ts'
import { openQuestion } from '../../core/operator/question.ts'
import { type IterationRecord, MAX_ITERATIONS_KEPT, type RunRecord } from '../../core/operator/session-record.ts'
import { clockOf, endOf, lastTime, quietEnd, recordOf, spentBy, terminalIn } from '../../core/session/run-end.ts'
import { type Run, type Session, type Thread, usedBy, usedIn } from '../../core/session/session.ts'
import { type CostGap, gapOfSum } from '../../core/usage.ts'
import type { RunView, SessionDetail, SessionRow } from './schema.ts'
import { groupOf } from './words.ts'

/** Milliseconds without a request after which an agent counts as idle. */
const IDLE_AFTER = 600_000
/** Share of a limit from which a run counts as near the limit. */
const NEAR = 0.8
/** Spend per minute and pace are computed over so many milliseconds. */
const PACE_WINDOW = 300_000
const MINUTE = 60_000
/** The fewest minutes from which a median is computed. */
const LEAST_MINUTES = 3
const SPARK = 30

type SessionState = SessionRow['state']
type RiskReason = NonNullable<SessionRow['risk_by']>
type LoopView = NonNullable<SessionRow['loop']>
type QuestionView = NonNullable<SessionRow['asking']>
type MeterView = SessionDetail['meters'][number]
type ThreadView = SessionDetail['threads'][number]
type IterationView = SessionDetail['iterations'][number]
type ContextView = SessionDetail['contexts'][number]
/** Without what the stored session does not know. */
type Row = Omit<SessionRow, 'id'>
type Detail = Omit<SessionDetail, 'id' | 'transcript'>
type CostView = Pick<SessionRow, 'cost_usd' | 'price_known' | 'cost_estimated'>

const iso = (milliseconds: number) => new Date(milliseconds).toISOString()

/** Returns the loop in which a thread is; `null` if it is in none. */
function loopOf({ loopState, run }: Thread): LoopView | null {
  if (!loopState || terminalIn(run)) return null
  const { finding, isWarned, memory } = loopState
  const current = currentLoop(memory)
  const loop = finding ?? current ?? memory.blockedLoop
  if (!loop) return null
  const { pattern } = loop
  const { span } = PATTERNS[pattern]
  const count = Math.max(loop.count, current?.pattern === pattern ? current.count : 0)
  // The tools of the newest calls, as many as the pattern has.
  const newest = () => [...new Set(memory.history.window.slice(-span).map(({ tool }) => tool))]
  return {
    pattern,
    tools: finding?.tools ?? newest(),
    count,
    warnings: finding ? finding.warnings - (isWarned ? 0 : 1) : (memory.levels[pattern] ?? 0),
    blocked: memory.blockedLoop !== undefined,
    since: Math.max(1, usedBy(run, 0).iterations - span * count),
  }
}

/**
 * Returns a meter of a run that has reached its limit, where the last answer before may have used more: it shows no
 * more than the limit, as the end that the client gets.
 */
function atMost(meter: Meter<LimitName>): Meter<LimitName> {
  const { used, max } = meter
  return max > 0 && used > max ? { ...meter, used: max } : meter
}

function metersOf(used: Amounts, limits: Amounts | undefined, isReached: boolean): readonly Meter<LimitName>[] {
  const meters = LIMITS.map((name) => ({ name, used: used[name], max: limits?.[name] ?? 0 }))
  return isReached ? meters.map(atMost) : meters
}

/** Limits of the session as a whole are those that its newest request had. */
function sessionMeters(session: Session, now: number): readonly Meter<LimitName>[] {
  const { threads, operator } = session
  const used = usedIn(session, Math.max(0, ...threads.map(({ run }) => clockOf(run, now))))
  const configured = threads.at(-1)?.run.limits?.session
  const limits = configured && { ...configured, ...operator?.extended }
  const isReached = threads.some((thread) => terminalIn(thread.run) || openQuestion(session, thread, now))
  return metersOf(used, limits, isReached)
}

/** Returns meters as they are shown: a cost of which nothing is known is no number. */
function meterViews(meters: readonly Meter<LimitName>[], gap: CostGap | undefined): readonly MeterView[] {
  if (gap === undefined) return meters
  return meters.map((meter) => (meter.name === 'cost' ? { ...meter, used: knownCost(meter.used, gap) } : meter))
}

const knownCost = (cost: number, gap: CostGap | undefined) => (gap === 'partial' && cost === 0 ? null : money(cost))

/** Returns a cost as it is shown. */
export function costView(cost: number, gap: CostGap | undefined): CostView {
  return {
    cost_usd: knownCost(cost, gap),
    price_known: gap === undefined,
    cost_estimated: gap === 'estimate',
  }
}

const shareOf = ({ used, max }: Meter) => (max > 0 ? used / max : 0)

function nearest(meters: readonly Meter<LimitName>[]): Meter<LimitName> | undefined {
  let first: Meter<LimitName> | undefined
  for (const meter of meters) if (shareOf(meter) > (first ? shareOf(first) : 0)) first = meter
  return first
}

/** An agent of a session: a thread with the values that are computed from it once. */
interface Agent {
  readonly thread: Thread
  readonly state: SessionState
  readonly loop: LoopView | null
  readonly question: Question | undefined
  readonly meters: readonly Meter<LimitName>[]
  /** The meter that is nearest to its limit, including the limits of the session; unset if there is no limit. */
  readonly nearest: Meter<LimitName> | undefined
  /** The used share of that limit. */
  readonly share: number
  /** An operator has asked for its end: its next request gets the last answer. */
  readonly isStopping: boolean
}

function stateOf(run: Run, loop: LoopView | null, share: number, now: number): SessionState {
  if (terminalIn(run)) return 'stopped'
  const end = quietEnd(run, now)
  if (end) return end
  if (run.isAnswered) return 'answered'
  if (now - lastTime(run) >= IDLE_AFTER) return 'idle'
  if (loop) return 'going_round'
  return share >= NEAR ? 'near_limit' : 'working'
}

function agentsOf(session: Session, now: number): readonly Agent[] {
  const ofSession = sessionMeters(session, now)
  return session.threads.map((thread) => {
    const { run } = thread
    const loop = loopOf(thread)
    const question = openQuestion(session, thread, now)
    // An operator may have changed the limits since the newest request.
    const limits = run.limits && limitsInForce(run.limits, session, thread, run).run
    const isReached = question !== undefined || terminalIn(run) !== undefined
    const meters = metersOf(spentBy(run, now), limits, isReached)
    const first = nearest([...meters, ...ofSession])
    const share = first ? shareOf(first) : 0
    const state = question ? 'asking' : stateOf(run, loop, share, now)
    const isStopping = run.operator?.isStopAsked === true && !run.finalAnswer
    return { thread, state, loop, question, meters, nearest: first, share, isStopping }
  })
}

/** States of agents that are at work, the one that needs attention first. */
const AT_WORK: readonly SessionState[] = ['asking', 'going_round', 'near_limit', 'working', 'answered']

/** Returns the agent at work that needs attention most, which stands for its session; else the last one used. */
function leaderOf(agents: readonly Agent[]): Agent | undefined {
  for (const state of AT_WORK) {
    const found = agents.filter((one) => one.state === state)
    if (found.length > 0) return found.reduce((a, b) => (a.share > b.share ? a : b))
  }
  return agents.at(-1)
}

/**
 * Compares the spend of the last minute with the median minute before it, in dollars, or in tokens if no price is
 * known: 0 if it is not larger, towards 1 as it grows.
 */
function spendRisk(iterations: readonly IterationRecord[], now: number): number {
  if (!iterations.some(({ at }) => now - at < MINUTE)) return 0
  const hasPrices = iterations.some(({ cost }) => cost > 0)
  const minutes = new Map<number, number>()
  for (const one of iterations) {
    const minute = Math.floor((now - one.at) / MINUTE)
    minutes.set(minute, (minutes.get(minute) ?? 0) + (hasPrices ? one.cost : one.input + one.output))
  }
  const newest = minutes.get(0) ?? 0
  minutes.delete(0)
  const before = [...minutes.values()].sort((a, b) => a - b)
  const median = before[Math.floor(before.length / 2)] ?? 0
  if (before.length < LEAST_MINUTES || median === 0 || newest <= median) return 0
  return 1 - median / newest
}

/**
 * Returns the largest of: the used share of any limit, how serious the loop is, and how fast the session spends
 * compared with its median.
 */
function riskOf(
  agents: readonly Agent[],
  iterations: readonly IterationRecord[],
  now: number,
): Pick<SessionRow, 'risk' | 'risk_by'> {
  let risk = 0
  let risk_by: RiskReason | null = null
  const consider = (by: RiskReason, much: number) => {
    if (much <= risk) return
    risk = Math.min(1, much)
    risk_by = by
  }
  const present = agents.filter(({ state }) => AT_WORK.includes(state) || state === 'idle')
  for (const { nearest: first, loop } of present) {
    if (first) consider(first.name, shareOf(first))
    if (loop) consider('loop', loop.blocked ? 0.95 : Math.min(0.9, 0.6 + 0.1 * loop.warnings))
  }
  if (present.length > 0) consider('spend', spendRisk(iterations, now))
  return { risk: Math.round(risk * 1_000) / 1_000, risk_by }
}

/** Returns since when the kept iterations tell the pace of a session: for five minutes, or less if so many came. */
function paceSince(iterations: readonly IterationRecord[], startedAt: number, now: number): number {
  const first = iterations.length < MAX_ITERATIONS_KEPT ? undefined : iterations[0]
  return Math.max(startedAt, now - PACE_WINDOW, first?.at ?? 0)
}

/** Returns the seconds until an agent reaches a limit at the pace of the last five minutes; `null`: it reaches none. */
function secondsToLimit(leader: Agent | undefined, iterations: readonly IterationRecord[], now: number): number | null {
  if (!leader || !AT_WORK.includes(leader.state)) return null
  const { number, run } = leader.thread
  const since = paceSince(iterations, run.startedAt, now)
  const newest = iterations.filter((one) => one.thread === number && one.at >= since)
  const seconds = Math.max(1, (now - since) / 1_000)
  const pace = (name: LimitName) => {
    const { usedByIteration: used } = METERS[name].limit
    return used ? newest.reduce((total, one) => total + used(one), 0) / seconds : 1
  }
  const times = leader.meters
    .filter(({ max }) => max > 0)
    .map(({ name, used, max }) => Math.max(0, max - used) / pace(name))
    .filter(Number.isFinite)
  return times.length === 0 ? null : Math.round(Math.min(...times))
}

/** Returns US dollars; `null` if no price is known. */
function spendPerMinute(iterations: readonly IterationRecord[], startedAt: number, now: number): number | null {
  let cost = 0
  let gap: CostGap | undefined
  const since = paceSince(iterations, startedAt, now)
  for (const one of iterations) {
    if (one.at < since) continue
    cost += one.cost
    gap = gapOfSum(gap, one.costGap)
  }
  // What a session spends in its first seconds is no pace; what so many iterations spend is one.
  const least = iterations.length < MAX_ITERATIONS_KEPT ? MINUTE : 1_000
  return knownCost((cost * MINUTE) / Math.max(least, now - since), gap)
}

const money = (dollars: number) => Math.round(dollars * 1e6) / 1e6

/** Returns why the newest request of a thread that is over failed; `null` if it did not. */
function lastError(thread: Thread | undefined, iterations: readonly IterationRecord[]): string | null {
  const newest = iterations.findLast((one) => one.thread === thread?.number)
  if (!newest || newest.status === 200) return null
  if (newest.overflow) return 'overflow'
  return newest.status === 0 ? 'no answer' : `error ${newest.status}`
}

function questionView(question: Question | undefined, now: number): QuestionView | null {
  if (!question) return null
  const { meter: limit, max, until } = question
  return { limit, max, until: iso(until), seconds_left: Math.ceil((until - now) / 1_000) }
}

function rowFrom(session: Session, agents: readonly Agent[], now: number): Row {
  const { totals, record } = session
  const leader = leaderOf(agents)
  const run = leader?.thread.run
  const terminal = run && terminalIn(run)
  const iterations = record?.iterations ?? []
  const used = usedIn(session, now)
  const startedAt = totals?.startedAt ?? now
  const lastAt = session.threads.reduce((last, thread) => Math.max(last, thread.run.askedAt), startedAt)
  const steps = leader?.meters.find(({ name }) => name === 'iterations')
  return {
    name: record?.name ?? null,
    state: leader?.state ?? 'idle',
    ...riskOf(agents, iterations, now),
    stopping: agents.some(({ isStopping }) => isStopping),
    terminal_state: (run && endOf(run, now)) ?? null,
    terminal_reason: terminal?.terminal_reason ?? null,
    last_error: lastError(leader?.thread, iterations),
    client: run?.agent ?? null,
    model: run?.model ?? null,
    upstream: run?.upstream ?? null,
    started_at: iso(startedAt),
    last_at: iso(lastAt),
    iteration: steps?.used ?? 0,
    max_iterations: steps?.max ?? 0,
    total_iterations: used.iterations,
    tool_calls: used.tool_calls,
    tokens: used.tokens,
    ...costView(used.cost, session.usage?.costGap),
    cost_usd_per_minute: leader && groupOf(leader) === 3 ? null : spendPerMinute(iterations, startedAt, now),
    seconds_to_limit: secondsToLimit(leader, iterations, now),
    tokens_per_iteration: iterations.slice(-SPARK).map(({ input, output }) => input + output),
    agents: {
      alive: agents.filter((agent) => groupOf(agent) < 2).length,
      total: Math.max(agents.length, record?.threads ?? 0),
    },
    last_tool: iterations.findLast(({ tools }) => tools.length > 0)?.tools.at(-1) ?? null,
    loop: leader?.loop ?? null,
    asking: questionView(leader?.question, now),
    overflows: iterations.filter(({ overflow }) => overflow !== undefined).length,
  }
}

/** Returns a session as a list shows it. */
export function rowOf(session: Session, now: number): Row {
  return rowFrom(session, agentsOf(session, now), now)
}

function threadView(
  { thread, state, loop, question, meters, isStopping }: Agent,
  { threads, operator }: Session,
  now: number,
): ThreadView {
  const { run, name, number = 0 } = thread
  const steps = meters.find((meter) => meter.name === 'iterations')
  return {
    thread: number,
    // A named agent works for the one without a name, if the session has it.
    parent: name === '' ? null : (threads.find((other) => other.name === '')?.number ?? null),
    name: name === '' ? null : name,
    state,
    stopping: isStopping,
    model: run.model ?? null,
    upstream: run.upstream ?? null,
    started_at: iso(run.startedAt),
    last_at: iso(run.askedAt),
    iteration: steps?.used ?? 0,
    max_iterations: steps?.max ?? 0,
    meters: meterViews(meters, run.usage?.costGap),
    loop,
    asking: questionView(question, now),
    terminal: terminalIn(run) ?? null,
    loop_guard_mode: thread.operator?.loopMode ?? operator?.loopMode ?? null,
  }
}

function iterationView(one: IterationRecord): IterationView {
  return {
    thread: one.thread,
    iteration: one.iteration,
    at: iso(one.at),
    duration_ms: one.durationMs,
    status: one.status,
    verdict: one.verdict,
    tier: one.tier ?? null,
    loop: one.loop ?? null,
    overflow: one.overflow ?? null,
    said: one.said ?? null,
    tools: one.tools,
    usage: { input: one.input, output: one.output, ...costView(one.cost, one.costGap) },
  }
}

function runView(run: RunRecord): RunView {
  return {
    thread: run.thread,
    started_at: iso(run.startedAt),
    ended_at: iso(run.endedAt),
    iterations: run.iterations,
    tool_calls: run.toolCalls,
    tokens: run.tokens,
    ...costView(run.cost, run.costGap),
    model: run.model ?? null,
    agent: run.agent ?? null,
    state: run.state ?? null,
    terminal: run.terminal ?? null,
  }
}

/** Bytes of a final answer that are shown. */
const MAX_ANSWER = 65_536

/** Returns the part of a final answer that is shown. `isCut`: `text` is not all of it. */
export function answerView(text: string, isCut = false): SessionDetail['final_answer'] {
  const { read } = new TextEncoder().encodeInto(text, new Uint8Array(MAX_ANSWER))
  return { text: text.slice(0, read), truncated: isCut || read < text.length }
}

/** Returns the known context window of a model that a session uses. */
export type ContextOf = (
  session: Session,
  upstream: string,
  model: string,
) => { readonly base: BaseContext; readonly effective: EffectiveContext } | undefined

function contextViews(session: Session, contextOf: ContextOf): readonly ContextView[] {
  const views = new Map<string, ContextView>()
  for (const { run, context } of session.threads) {
    const { upstream, model } = run
    if (upstream === undefined || model === undefined) continue
    const known = contextOf(session, upstream, model)
    if (!known) continue
    const { base, effective } = known
    views.set(`${upstream} ${model}`, {
      upstream,
      model,
      base: base.tokens ?? null,
      source: base.source,
      effective: effective.tokens ?? null,
      used: context?.tokens ?? null,
      reason: effective.reason ?? null,
      until: effective.until === undefined ? null : iso(effective.until),
    })
  }
  return [...views.values()]
}

/** Returns all details of one session. */
export function detailOf(session: Session, now: number, contextOf: ContextOf): Detail {
  const agents = agentsOf(session, now)
  const over = session.threads.findLast(({ run }) => terminalIn(run))?.run
  const current = agents.map(({ thread: { run, number = 0 }, state, meters }): RunView => {
    const end = endOf(run, now)
    const iterations = meters.find(({ name }) => name === 'iterations')?.used ?? 0
    return { ...runView(recordOf(run, number, end)), iterations, ended_at: null, state: end ?? state }
  })
  return {
    ...rowFrom(session, agents, now),
    threads: agents.map((one) => threadView(one, session, now)),
    runs: [...(session.record?.runs ?? []).map(runView), ...current],
    iterations: (session.record?.iterations ?? []).map(iterationView),
    minutes: (session.record?.minutes ?? []).map(({ at, tokens, cost, costGap }) => ({
      at: iso(at),
      tokens,
      ...costView(cost, costGap),
    })),
    meters: meterViews(sessionMeters(session, now), session.usage?.costGap),
    contexts: contextViews(session, contextOf),
    terminal: (over && terminalIn(over)) ?? null,
    final_answer: over?.finalAnswer ? answerView(over.finalAnswer.text) : null,
    warnings: { acknowledged: session.totals?.acknowledged ?? 0, ignored: session.totals?.ignored ?? 0 },
  }
}
