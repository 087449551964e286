/**
 * A session as operators see it. Pure: it depends on the stored session and the time only. The keys are part of the
 * public contract. No field contains an argument, a prompt or a result; clients and models choose the names of
 * tools, models and threads.
 */
import { type Amounts, LIMITS, METERS } from '../../core/budget/meters.ts'
import type { BaseContext, EffectiveContext } from '../../core/context-window.ts'
import { currentLoop } from '../../core/loop/escalation.ts'
import { PATTERNS } from '../../core/loop/patterns.ts'
import { limitsInForce, loopModeInForce, openQuestion } from '../../core/operator/operator.ts'
import { type IterationRecord, MAX_ITERATIONS_KEPT, type RunRecord } from '../../core/operator/session-record.ts'
import { clockOf, endOf, lastTime, quietEnd, recordOf, spentBy, terminalIn } from '../../core/session/run.ts'
import { type Run, type Session, type Thread, usedBy, usedIn } from '../../core/session/session.ts'
import { type CostGap, gapOfSum } from '../../core/usage.ts'
import type { RunView, SessionDetail, SessionRow } from './api-schema.ts'
import { groupOf } from './labels.ts'

/** Milliseconds without a request after which an agent counts as idle. */
const IDLE_AFTER = 600_000
const NEAR = 0.8
/** Spend per minute and pace are computed over so many milliseconds. */
const PACE_WINDOW = 300_000
const MINUTE = 60_000
/** The fewest minutes from which a median is computed. */
const LEAST_MINUTES = 3
/** How many of the newest iterations a list shows the tokens of. */
const SPARK = 30
const MAX_ANSWER = 65_536

type SessionState = SessionRow['state']
type MeterView = SessionDetail['meters'][number]
type ThreadView = SessionDetail['threads'][number]
/** Without what the stored session does not know. */
type Row = Omit<SessionRow, 'id'>
type Detail = Omit<SessionDetail, 'id' | 'transcript'>

const iso = (milliseconds: number) => new Date(milliseconds).toISOString()

/** Returns US dollars, in millionths; `null` if nothing is known of them. */
function knownCost(cost: number, gap: CostGap | undefined): number | null {
  return gap === 'partial' && cost === 0 ? null : Math.round(cost * 1e6) / 1e6
}

export function costView(
  cost: number,
  gap: CostGap | undefined,
): Pick<SessionRow, 'cost_usd' | 'price_known' | 'cost_estimated'> {
  return { cost_usd: knownCost(cost, gap), price_known: gap === undefined, cost_estimated: gap === 'estimate' }
}

/** Returns the part of a final answer that is shown. `isCut`: `text` is not all of it. */
export function answerView(text: string, isCut = false): SessionDetail['final_answer'] {
  const { read } = new TextEncoder().encodeInto(text, new Uint8Array(MAX_ANSWER))
  return { text: text.slice(0, read), truncated: isCut || read < text.length }
}

function loopOf({ loopState, run }: Thread): SessionRow['loop'] {
  if (!loopState || terminalIn(run)) return null
  const { finding, isWarned, memory } = loopState
  const current = currentLoop(memory)
  const loop = finding ?? current ?? memory.blockedLoop
  if (!loop) return null
  const { pattern } = loop
  const { span } = PATTERNS[pattern]
  const count = Math.max(loop.count, current?.pattern === pattern ? current.count : 0)
  // The tools of the newest calls, as many as the pattern has.
  const newest = memory.history.window.slice(-span).map(({ tool }) => tool)
  return {
    pattern,
    tools: finding?.tools ?? [...new Set(newest)],
    count,
    warnings: finding ? finding.warnings - (isWarned ? 0 : 1) : (memory.levels[pattern] ?? 0),
    blocked: memory.blockedLoop !== undefined,
    since: Math.max(1, usedBy(run, 0).iterations - span * count),
  }
}

/**
 * Returns all meters as they are shown. `isReached`: the run is at its limit, and shows no more than that, as the end
 * that the client gets; its last answer may have used more.
 */
function metersOf(used: Amounts, limits: Amounts | undefined, gap: CostGap | undefined, isReached: boolean) {
  return LIMITS.map((name): MeterView => {
    const max = limits?.[name] ?? 0
    const shown = isReached && max > 0 ? Math.min(used[name], max) : used[name]
    return { name, used: name === 'cost' ? knownCost(shown, gap) : shown, max }
  })
}

/** Limits of the session as a whole are those that its newest request had. */
function sessionMeters(session: Session, now: number): readonly MeterView[] {
  const { threads, operator, usage } = session
  const used = usedIn(session, Math.max(0, ...threads.map(({ run }) => clockOf(run, now))))
  const configured = threads.at(-1)?.run.limits?.session
  const limits = configured && { ...configured, ...operator?.extended }
  const isReached = threads.some((thread) => terminalIn(thread.run) || openQuestion(session, thread, now))
  return metersOf(used, limits, usage?.costGap, isReached)
}

const shareOf = ({ used, max }: MeterView) => (max > 0 ? (used ?? 0) / max : 0)

function stateOf(run: Run, loop: SessionRow['loop'], share: number, now: number): SessionState {
  if (terminalIn(run)) return 'stopped'
  const end = quietEnd(run, now)
  if (end) return end
  if (run.isAnswered) return 'answered'
  if (now - lastTime(run) >= IDLE_AFTER) return 'idle'
  if (loop) return 'going_round'
  return share >= NEAR ? 'near_limit' : 'working'
}

/** Returns an agent of a session: a thread with the values that are computed from it once. */
function agentOf(session: Session, thread: Thread, ofSession: readonly MeterView[], now: number) {
  const { run } = thread
  const loop = loopOf(thread)
  const question = openQuestion(session, thread, now)
  // An operator may have changed the limits since the newest request.
  const limits = run.limits && limitsInForce(run.limits, session, thread, run).run
  const isReached = question !== undefined || terminalIn(run) !== undefined
  const meters = metersOf(spentBy(run, now), limits, run.usage?.costGap, isReached)
  const nearest = [...meters, ...ofSession].reduce((a, b) => (shareOf(b) > shareOf(a) ? b : a))
  const share = shareOf(nearest)
  const state: SessionState = question ? 'asking' : stateOf(run, loop, share, now)
  const asking: SessionRow['asking'] = question
    ? {
        limit: question.meter,
        max: question.max,
        until: iso(question.until),
        seconds_left: Math.ceil((question.until - now) / 1_000),
      }
    : null
  const steps = meters.find(({ name }) => name === 'iterations')
  return {
    thread,
    state,
    loop,
    asking,
    meters,
    iteration: steps?.used ?? 0,
    max_iterations: steps?.max ?? 0,
    /** The meter that is nearest to its limit, including the limits of the session, and the used share of it. */
    nearest: nearest.name,
    share,
    /** An operator has asked for its end: its next request gets the last answer. */
    isStopping: run.operator?.isStopAsked === true && !run.finalAnswer,
  }
}
type Agent = ReturnType<typeof agentOf>

/** States of agents that are at work, the one that needs attention first. */
const AT_WORK: readonly SessionState[] = ['asking', 'going_round', 'near_limit', 'working', 'answered']

/** Returns the agent at work that needs attention most, which stands for its session; else the last one used. */
function leaderOf(agents: readonly Agent[]): Agent | undefined {
  let leader: Agent | undefined
  for (const state of AT_WORK) {
    for (const one of agents) if (one.state === state && one.share >= (leader?.share ?? 0)) leader = one
    if (leader) return leader
  }
  return agents.at(-1)
}

/**
 * Compares the spend of the last minute with the median minute before it, in dollars, or in tokens if no price is
 * known: 0 if it is not larger, towards 1 as it grows.
 */
function spendRisk(iterations: readonly IterationRecord[], now: number): number {
  const hasPrices = iterations.some(({ cost }) => cost > 0)
  const minutes = new Map<number, number>()
  for (const { at, cost, input, output } of iterations) {
    const minute = Math.floor((now - at) / MINUTE)
    minutes.set(minute, (minutes.get(minute) ?? 0) + (hasPrices ? cost : input + output))
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
  let risk_by: SessionRow['risk_by'] = null
  const consider = (by: SessionRow['risk_by'], much: number) => {
    if (much <= risk) return
    risk = Math.min(1, much)
    risk_by = by
  }
  const present = agents.filter(({ state }) => AT_WORK.includes(state) || state === 'idle')
  for (const { nearest, share, loop } of present) {
    consider(nearest, share)
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
  let least = Number.POSITIVE_INFINITY
  for (const { name, used, max } of leader.meters) {
    if (max === 0) continue
    const { usedByIteration } = METERS[name].limit
    const pace = usedByIteration ? newest.reduce((sum, one) => sum + usedByIteration(one), 0) / seconds : 1
    if (pace > 0) least = Math.min(least, Math.max(0, max - (used ?? 0)) / pace)
  }
  return Number.isFinite(least) ? Math.round(least) : null
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

/** Returns why the newest request of a thread that is over failed; `null` if it did not. */
function lastError(thread: Thread | undefined, iterations: readonly IterationRecord[]): string | null {
  const newest = iterations.findLast((one) => one.thread === thread?.number)
  if (!newest || newest.status === 200) return null
  if (newest.overflow) return 'overflow'
  return newest.status === 0 ? 'no answer' : `error ${newest.status}`
}

function overviewOf(session: Session, now: number) {
  const { threads, totals, record } = session
  const meters = sessionMeters(session, now)
  const agents = threads.map((thread) => agentOf(session, thread, meters, now))
  const leader = leaderOf(agents)
  const run = leader?.thread.run
  const iterations = record?.iterations ?? []
  const used = usedIn(session, now)
  const startedAt = totals?.startedAt ?? now
  const row: Row = {
    name: record?.name ?? null,
    state: leader?.state ?? 'idle',
    ...riskOf(agents, iterations, now),
    stopping: agents.some(({ isStopping }) => isStopping),
    terminal_state: (run && endOf(run, now)) ?? null,
    terminal_reason: (run && terminalIn(run))?.terminal_reason ?? null,
    last_error: lastError(leader?.thread, iterations),
    client: run?.agent ?? null,
    model: run?.model ?? null,
    upstream: run?.upstream ?? null,
    started_at: iso(startedAt),
    last_at: iso(Math.max(startedAt, ...threads.map((thread) => thread.run.askedAt))),
    iteration: leader?.iteration ?? 0,
    max_iterations: leader?.max_iterations ?? 0,
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
    asking: leader?.asking ?? null,
    overflows: iterations.filter(({ overflow }) => overflow !== undefined).length,
  }
  return { row, agents, meters }
}

export function rowOf(session: Session, now: number): Row {
  return overviewOf(session, now).row
}

function threadView({ thread, isStopping, nearest, share, ...shown }: Agent, session: Session): ThreadView {
  const { run, name, number = 0 } = thread
  return {
    ...shown,
    thread: number,
    // A named agent works for the one without a name, if the session has it.
    parent: name === '' ? null : (session.threads.find((other) => other.name === '')?.number ?? null),
    name: name === '' ? null : name,
    stopping: isStopping,
    model: run.model ?? null,
    upstream: run.upstream ?? null,
    started_at: iso(run.startedAt),
    last_at: iso(run.askedAt),
    terminal: terminalIn(run) ?? null,
    loop_guard_mode: loopModeInForce(session, thread) ?? null,
  }
}

function iterationView(one: IterationRecord): SessionDetail['iterations'][number] {
  const { thread, iteration, status, verdict, tools, tier = null, loop = null, overflow = null, said = null } = one
  const at = iso(one.at)
  const duration_ms = one.durationMs
  const usage = { input: one.input, output: one.output, ...costView(one.cost, one.costGap) }
  return { thread, iteration, at, duration_ms, status, verdict, tier, loop, overflow, said, tools, usage }
}

function runView(run: RunRecord): RunView {
  const { thread, iterations, toolCalls: tool_calls, tokens, model = null, agent = null } = run
  const { state = null, terminal = null } = run
  const times = { started_at: iso(run.startedAt), ended_at: iso(run.endedAt) }
  const cost = costView(run.cost, run.costGap)
  return { thread, ...times, iterations, tool_calls, tokens, ...cost, model, agent, state, terminal }
}

export type ContextOf = (
  session: Session,
  upstream: string,
  model: string,
) => { readonly base: BaseContext; readonly effective: EffectiveContext } | undefined

function contextViews(session: Session, contextOf: ContextOf): Detail['contexts'] {
  const views = new Map<string, Detail['contexts'][number]>()
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

export function detailOf(session: Session, now: number, contextOf: ContextOf): Detail {
  const { row, agents, meters } = overviewOf(session, now)
  const { threads, totals, record } = session
  const over = threads.findLast(({ run }) => terminalIn(run))?.run
  const current = agents.map(({ thread: { run, number = 0 }, state, iteration }): RunView => {
    const end = endOf(run, now)
    return { ...runView(recordOf(run, number, end)), iterations: iteration, ended_at: null, state: end ?? state }
  })
  return {
    ...row,
    threads: agents.map((one) => threadView(one, session)),
    runs: [...(record?.runs ?? []).map(runView), ...current],
    iterations: (record?.iterations ?? []).map(iterationView),
    minutes: (record?.minutes ?? []).map(({ at, tokens, cost, costGap }) => ({
      at: iso(at),
      tokens,
      ...costView(cost, costGap),
    })),
    meters,
    contexts: contextViews(session, contextOf),
    terminal: (over && terminalIn(over)) ?? null,
    final_answer: over?.finalAnswer ? answerView(over.finalAnswer.text) : null,
    warnings: { acknowledged: totals?.acknowledged ?? 0, ignored: totals?.ignored ?? 0 },
  }
}
