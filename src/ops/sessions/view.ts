/**
 * A session as operators see it. Pure: it depends on the stored session, the time and the viewer only. The keys are
 * part of the public contract. No field but those of the transcript contains an argument, a prompt or a result; clients
 * and models choose the names of tools, models and threads.
 */
import type { SubjectLimits, TimeAmounts } from '../../core/budget/ledger.ts'
import { type Amounts, amountsOf, LIMITS, METERS, TIME_LIMITS } from '../../core/budget/meters.ts'
import type { TimeScope } from '../../core/budget/scopes.ts'
import { ratesOf } from '../../core/budget/velocity.ts'
import { OTHER } from '../../core/by-name.ts'
import type { BaseContext, EffectiveContext } from '../../core/context-window.ts'
import type { TranscriptEntry } from '../../core/conversation/kept-transcript.ts'
import { add, type Counts, costGapOf, NO_COUNTS, tokensIn } from '../../core/counters.ts'
import { currentLoop } from '../../core/loop/escalation.ts'
import { PATTERNS } from '../../core/loop/patterns.ts'
import { openQuestion } from '../../core/operator/operator.ts'
import { type Pause, pauseOf } from '../../core/operator/pause.ts'
import {
  type IterationRecord,
  MAX_ITERATIONS_KEPT,
  MINUTE_MS,
  type RunRecord,
} from '../../core/operator/session-record.ts'
import { clockOf, endOf, lastTime, quietEnd, recordOf, terminalIn, usedUntilEnd } from '../../core/session/run.ts'
import {
  countsSinceReset,
  limitsInForce,
  loopModeInForce,
  type Run,
  type Session,
  type Thread,
  usedSinceReset,
} from '../../core/session/session.ts'
import type { Terminal } from '../../core/terminal.ts'
import { idOf, type ListedSession, type SessionKey } from '../../store/store.ts'
import type { RunView, SessionDetail, SessionRow, Transcript } from './api-schema.ts'
import { isAtWork } from './labels.ts'

/** Milliseconds without a request after which an agent counts as idle. */
export const IDLE_AFTER = 600_000
const NEAR = 0.8
/** Spend per minute and pace are computed over so many milliseconds. */
const PACE_WINDOW = 300_000
/** The fewest minutes from which a median is computed. */
const LEAST_MINUTES = 3
/** How many of the newest iterations a list shows the tokens of. */
const SPARK = 30
const MAX_ANSWER = 65_536

/** Who looks at a session, and when. */
export interface Viewer {
  /** Milliseconds since the epoch. */
  readonly now: number
  /** The names that clients chose are shown. */
  readonly seesNames: boolean
  /** What operators have paused. */
  readonly pauses?: readonly Pause[] | undefined
  /** Returns what is used of limits of scopes of time now; the default knows of none. */
  readonly usedOf?: UsedOf | undefined
}

/** What is used of limits of a scope of time, and the limits in force; `start`: when the period began. */
export interface TimeUse {
  readonly used: TimeAmounts
  readonly limits: TimeAmounts
  readonly start: number
}
export type UsedOf = (limits: SubjectLimits) => TimeUse | undefined

type SessionState = SessionRow['state']
type MeterView = SessionDetail['meters'][number]

const iso = (milliseconds: number) => new Date(milliseconds).toISOString()
const inMillionths = (amount: number) => Math.round(amount * 1e6) / 1e6

/** Returns US dollars, in millionths; `null` if nothing is known of them. */
export function costView(counts: Counts) {
  const { cost = 0 } = counts
  const gap = costGapOf(counts)
  const cost_usd = gap === 'partial' && cost === 0 ? null : inMillionths(cost)
  return { cost_usd, price_known: gap === undefined, cost_estimated: gap === 'estimate' }
}

/** Returns the part of a final answer that is shown. `isCut`: `text` is not all of it. */
export function answerView(text: string, isCut = false): SessionDetail['final_answer'] {
  const { read } = new TextEncoder().encodeInto(text, new Uint8Array(MAX_ANSWER))
  return { text: text.slice(0, read), truncated: isCut || read < text.length }
}

/** Returns what the client got at the end of a run. It contains the client's name for the session. */
function terminalView(terminal: Terminal | undefined, key: SessionKey, { seesNames }: Viewer): RunView['terminal'] {
  if (!terminal) return null
  return seesNames ? terminal : { ...terminal, session: idOf(key) }
}

function loopOf({ loopState, run }: Thread): SessionRow['loop'] {
  if (!loopState || terminalIn(run)) return null
  const { finding, isWarned, memory } = loopState
  const current = currentLoop(memory)
  const loop = finding ?? current ?? memory.blockedLoop
  if (!loop) return null
  const { pattern } = loop
  const { span = 1 } = PATTERNS[pattern]
  const count = Math.max(loop.count, current?.pattern === pattern ? current.count : 0)
  // The tools of the newest calls, as many as the pattern has.
  const tools = new Set<string>()
  for (const { tool } of memory.history.window.slice(-span)) tools.add(tool)
  return {
    pattern,
    tools: finding?.tools ?? [...tools],
    count,
    warnings: finding ? finding.warnings - (isWarned ? 0 : 1) : (memory.levels[pattern] ?? 0),
    blocked: memory.blockedLoop !== undefined,
    since: Math.max(1, (countsSinceReset(run).iterations ?? 0) - span * count),
  }
}

/**
 * Returns all meters as they are shown. `isReached`: the run is at its limit, and shows no more than that, as the end
 * that the client gets; its last answer may have used more.
 */
function metersOf(used: Amounts, limits: Amounts | undefined, counts: Counts, isReached: boolean) {
  return LIMITS.map((name): MeterView => {
    const max = limits?.[name] ?? 0
    const shown = isReached && max > 0 ? Math.min(used[name], max) : used[name]
    return { name, used: name === 'cost' ? costView({ ...counts, cost: shown }).cost_usd : shown, max }
  })
}

/** A limit in force, and what is used of it. */
type LimitUse = NonNullable<SessionRow['limit']>

function useOf<Meter extends LimitUse['meter']>(
  scope: LimitUse['scope'],
  meter: Meter,
  used: number | null,
  max: number,
): LimitUse & { readonly meter: Meter } {
  return { meter, scope, used, max, share: Math.round(((used ?? 0) / max) * 1_000) / 1_000 }
}

/** Returns the limits that meters have; a meter without a limit has none. */
function limitsOf(scope: 'run' | 'session', meters: readonly MeterView[]) {
  return meters.filter(({ max }) => max > 0).map(({ name, used, max }) => useOf(scope, name, used, max))
}

/** Returns the limits of a scope of time, and what is used of them. */
export function timeUses(scope: TimeScope, { used, limits }: Omit<TimeUse, 'start'>): LimitUse[] {
  const limited = TIME_LIMITS.filter((name) => limits[name] > 0)
  return limited.map((name) => useOf(scope, name, inMillionths(used[name]), limits[name]))
}

/**
 * Returns the limits of scopes of time of a run, in the periods that it counts in: those of now while it is at work,
 * else only those of its newest request.
 */
function timeLimitsOf({ timeLimits = [], askedAt }: Run, isRunning: boolean, usedOf: UsedOf | undefined): LimitUse[] {
  return timeLimits.flatMap((one) => {
    const use = usedOf?.(one)
    return use && (isRunning || askedAt >= use.start) ? timeUses(one.rule.scope, use) : []
  })
}

/** Returns the limits on the rate of a session, and its rate in the minutes before `now`. */
function rateUses(session: Session, { velocity }: Run, now: number): LimitUse[] {
  const rates = velocity ? ratesOf(velocity, session, now, false) : []
  return rates.map(({ name, used, max }) => useOf('minute', name, inMillionths(used), max))
}

/** Returns the limit that counts: the one with the largest share used, the first of equal ones. */
export function nearestOf<Use extends LimitUse>(limits: readonly Use[]): Use | null {
  let nearest: Use | null = null
  for (const limit of limits) if (!nearest || limit.share > nearest.share) nearest = limit
  return nearest
}

/** Limits of the session as a whole are those that its newest request had. */
function sessionMeters(session: Session, now: number): readonly MeterView[] {
  const { threads, operator, counts } = session
  let until = 0
  let isReached = false
  for (const thread of threads) {
    until = Math.max(until, clockOf(thread.run, now))
    isReached ||= terminalIn(thread.run) !== undefined || openQuestion(session, thread, now) !== undefined
  }
  const configured = threads.at(-1)?.run.limits?.session
  const limits = configured && { ...configured, ...operator?.extended }
  return metersOf(usedSinceReset(session, until), limits, counts, isReached)
}

/** Returns an agent of a session. `meters`: those of the session, whose limits may be nearer than those of its run. */
function agentOf(session: Session, thread: Thread, meters: readonly MeterView[], { now, usedOf }: Viewer) {
  const { run } = thread
  const newest = session.record?.iterations.findLast((one) => one.thread === thread.number)
  const loop = loopOf(thread)
  const question = openQuestion(session, thread, now)
  const terminal = terminalIn(run)
  // An operator may have changed the limits since the newest request.
  const inForce = run.limits && limitsInForce(run.limits, session, thread, run).run
  const runMeters = metersOf(usedUntilEnd(run, now), inForce, run.counts, (question ?? terminal) !== undefined)
  const limits = [...limitsOf('run', runMeters), ...limitsOf('session', meters)]
  const share = nearestOf(limits)?.share ?? 0
  let state: SessionState = share >= NEAR ? 'near_limit' : 'working'
  if (question) state = 'asking'
  else if (terminal) state = 'stopped'
  else if ((run.slowedUntil ?? 0) > now) state = 'slowed'
  else if (run.failedAs) state = errorOf(newest) ? 'failed' : 'idle'
  else if (run.isAnswered) state = quietEnd(run, now) ? 'completed' : 'answered'
  else if (now - lastTime(run) >= IDLE_AFTER) state = 'idle'
  else if (loop) state = 'going_round'
  let asking: SessionRow['asking'] = null
  if (question) {
    const { meter: limit, max, until } = question
    asking = { limit, max, until: iso(until), seconds_left: Math.ceil((until - now) / 1_000) }
  }
  const { model = null, upstream = null } = run
  const steps = runMeters.find(({ name }) => name === 'iterations')
  const { used: iteration, max: max_iterations = 0 } = steps ?? {}
  return {
    thread,
    limits,
    timeLimits: [...timeLimitsOf(run, AT_WORK.includes(state), usedOf), ...rateUses(session, run, now)],
    share,
    meters: runMeters,
    newest,
    /** An operator has asked for its end: its next request gets the last answer. What is over has no next one. */
    isStopping: run.operator?.isStopAsked === true && !run.finalAnswer && state !== 'completed',
    /** What its session shows if it is the agent that needs attention most. */
    shown: { state, model, upstream, iteration: iteration ?? 0, max_iterations, loop, asking },
  }
}
type Agent = ReturnType<typeof agentOf>

/** Returns the limits of an agent; of a run that a limit has ended, that one. A rate falls once the run is over. */
function countingLimits({ thread, limits, timeLimits }: Agent): readonly LimitUse[] {
  const all = [...limits, ...timeLimits]
  const end = terminalIn(thread.run)
  if (!end || end.scope === 'minute') return all
  const ended = all.filter(
    ({ meter, scope }) => scope === end.scope && METERS[meter].limit.reason === end.terminal_reason,
  )
  return ended.length > 0 ? ended : all
}

/** What a session shows that has no agent. */
const NO_AGENT = {
  state: 'idle',
  model: null,
  upstream: null,
  iteration: 0,
  max_iterations: 0,
  loop: null,
  asking: null,
} as const satisfies Agent['shown']

/** States of agents that are at work, the one that needs attention first. */
const AT_WORK: readonly SessionState[] = ['asking', 'going_round', 'slowed', 'near_limit', 'working']
/** States of agents that may go on. */
const ALIVE: readonly SessionState[] = [...AT_WORK, 'answered', 'idle']

/**
 * Returns the agent that stands for its session: the one at work that needs attention most; else the last one used of
 * those that failed or answered, else of all.
 */
function leaderOf(agents: readonly Agent[]): Agent | undefined {
  let leader: Agent | undefined
  for (const state of AT_WORK) {
    for (const one of agents) if (one.shown.state === state && one.share >= (leader?.share ?? 0)) leader = one
    if (leader) return leader
  }
  return agents.findLast(({ shown: { state } }) => state === 'failed' || state === 'answered') ?? agents.at(-1)
}

/**
 * Compares the spend of the last minute with the median minute before it, in dollars, or in tokens if no price is
 * known: 0 if it is not larger, towards 1 as it grows.
 */
function spendRisk(iterations: readonly IterationRecord[], now: number): number {
  const hasPrices = iterations.some(({ counts }) => counts.cost)
  const minutes = new Map<number, number>()
  for (const { at, counts } of iterations) {
    const minute = Math.floor((now - at) / MINUTE_MS)
    minutes.set(minute, (minutes.get(minute) ?? 0) + (hasPrices ? (counts.cost ?? 0) : tokensIn(counts)))
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
function riskOf(agents: readonly Agent[], iterations: readonly IterationRecord[], now: number) {
  const risks: [by: SessionRow['risk_by'], much: number][] = []
  for (const { limits, shown } of agents) {
    const { state, loop } = shown
    const nearest = nearestOf(limits)
    if (!ALIVE.includes(state)) continue
    risks.push([nearest?.meter ?? null, nearest?.share ?? 0])
    if (loop) risks.push(['loop', loop.blocked ? 0.95 : Math.min(0.9, 0.6 + 0.1 * loop.warnings)])
  }
  if (risks.length > 0) risks.push(['spend', spendRisk(iterations, now)])
  let risk = 0
  let risk_by: SessionRow['risk_by'] = null
  for (const [by, much] of risks) {
    if (much <= risk) continue
    risk = Math.min(1, much)
    risk_by = by
  }
  return { risk: Math.round(risk * 1_000) / 1_000, risk_by }
}

/** Returns since when the kept iterations tell the pace of a session: for five minutes, or less if so many came. */
function paceSince(iterations: readonly IterationRecord[], startedAt: number, now: number): number {
  const first = iterations.length < MAX_ITERATIONS_KEPT ? undefined : iterations[0]
  return Math.max(startedAt, now - PACE_WINDOW, first?.at ?? 0)
}

/** Returns the seconds until an agent reaches a limit at the pace of five minutes; `null`: it has none, or is there. */
function secondsToLimit(leader: Agent | undefined, iterations: readonly IterationRecord[], now: number): number | null {
  if (!leader || !AT_WORK.includes(leader.shown.state)) return null
  const { number, run } = leader.thread
  const since = paceSince(iterations, run.startedAt, now)
  const seconds = Math.max(1, (now - since) / 1_000)
  let counts = NO_COUNTS
  for (const { thread, at, tools, counts: made } of iterations)
    if (thread === number && at >= since) counts = add(counts, { ...made, iterations: 1, tool_calls: tools.length })
  const usedSince = amountsOf(counts, seconds)
  let least = Number.POSITIVE_INFINITY
  for (const { name, used, max } of leader.meters)
    if (max > 0 && usedSince[name] > 0)
      least = Math.min(least, (Math.max(0, max - (used ?? 0)) * seconds) / usedSince[name])
  return Number.isFinite(least) && least > 0 ? Math.round(least) : null
}

/** Returns US dollars; `null` if no price is known. */
function spendPerMinute(iterations: readonly IterationRecord[], startedAt: number, now: number): number | null {
  let counts = NO_COUNTS
  const since = paceSince(iterations, startedAt, now)
  for (const one of iterations) if (one.at >= since) counts = add(counts, one.counts)
  // What a session spends in its first seconds is no pace; what so many iterations spend is one.
  const least = iterations.length < MAX_ITERATIONS_KEPT ? MINUTE_MS : 1_000
  const { cost = 0 } = counts
  return costView({ ...counts, cost: (cost * MINUTE_MS) / Math.max(least, now - since) }).cost_usd
}

/** Returns the error that the client got for a request; `null` if it got none, or left. */
function errorOf(newest: IterationRecord | undefined): SessionRow['error'] {
  if (!newest || newest.status === 200) return null
  const { status, code = null } = newest.error ?? { status: newest.status }
  return { status, code }
}

/** Returns why a request failed, in a few words. */
function reasonOf({ status, overflow }: IterationRecord): string {
  if (overflow) return 'overflow'
  return status === 0 ? 'no answer' : `error ${status}`
}

function overviewOf({ key, session }: ListedSession, viewer: Viewer) {
  const { now, seesNames, pauses = [] } = viewer
  const { threads, counts, startedAt = now, record } = session
  const { name = null, iterations = [], threads: known = 0 } = record ?? {}
  const meters = sessionMeters(session, now)
  const agents = threads.map((thread) => agentOf(session, thread, meters, viewer))
  const leader = leaderOf(agents)
  const { shown = NO_AGENT, thread, newest } = leader ?? {}
  const working = agents.filter((one) => isAtWork(one.shown))
  // Where nobody is at work, the run that stands for the session.
  const counting = working.length > 0 || !leader ? working : [leader]
  const { iterations: total_iterations, tool_calls, tokens, cost } = usedSinceReset(session, now)
  const row: SessionRow = {
    id: idOf(key),
    name: seesNames ? name : null,
    label: (seesNames && record?.label) || null,
    ...shown,
    limit: nearestOf(counting.flatMap(countingLimits)),
    ...riskOf(agents, iterations, now),
    stopping: agents.some(({ isStopping }) => isStopping),
    paused:
      pauseOf(pauses, { session: idOf(key), key: thread?.run.key, upstream: shown.upstream ?? undefined }, now) !==
      undefined,
    terminal_state: (thread && endOf(thread.run, now)) ?? null,
    terminal_reason: (thread && terminalIn(thread.run)?.terminal_reason) ?? null,
    error: shown.state === 'failed' ? errorOf(newest) : null,
    last_error: newest && errorOf(newest) ? reasonOf(newest) : null,
    client: thread?.run.agent ?? null,
    key: thread?.run.key ?? null,
    started_at: iso(startedAt),
    last_at: iso(Math.max(startedAt, ...threads.map(({ run }) => run.askedAt))),
    total_iterations,
    tool_calls,
    tokens,
    ...costView({ ...counts, cost }),
    cost_usd_per_minute: leader && !isAtWork(shown) ? null : spendPerMinute(iterations, startedAt, now),
    seconds_to_limit: secondsToLimit(leader, iterations, now),
    tokens_per_iteration: iterations.slice(-SPARK).map(({ counts }) => tokensIn(counts)),
    agents: { alive: working.length, total: Math.max(agents.length, known) },
    last_tool: iterations.findLast(({ tools }) => tools.length > 0)?.tools.at(-1) ?? null,
    overflows: iterations.filter(({ overflow }) => overflow).length,
    unguarded: session.gaps ?? [],
  }
  return { row, agents, meters, iterations }
}

export function rowOf(session: ListedSession, viewer: Viewer): SessionRow {
  return overviewOf(session, viewer).row
}

function iterationView(one: IterationRecord): SessionDetail['iterations'][number] {
  const { thread, iteration, status, verdict, tools, tier = null, loop = null, overflow = null, said = null } = one
  const times = { at: iso(one.at), duration_ms: one.durationMs }
  const { input = 0, output = 0 } = one.counts
  const usage = { input, output, ...costView(one.counts) }
  return { thread, iteration, ...times, status, verdict, tier, loop, overflow, said, tools, usage }
}

function runView(run: RunRecord, key: SessionKey, viewer: Viewer): RunView {
  const { thread, counts, model = null, agent = null, state = null } = run
  const { iterations, tool_calls, tokens } = amountsOf(counts, 0)
  const times = { started_at: iso(run.startedAt), ended_at: iso(run.endedAt) }
  const terminal = terminalView(run.terminal, key, viewer)
  return { thread, ...times, iterations, tool_calls, tokens, ...costView(counts), model, agent, state, terminal }
}

export type ContextOf = (
  session: Session,
  upstream: string,
  model: string,
) => { readonly base: BaseContext; readonly effective: EffectiveContext } | undefined

function contextViews(session: Session, contextOf: ContextOf): SessionDetail['contexts'] {
  const views = new Map<string, SessionDetail['contexts'][number]>()
  for (const { run, context } of session.threads) {
    const { upstream, model } = run
    if (upstream === undefined || model === undefined) continue
    const known = contextOf(session, upstream, model)
    if (!known) continue
    const { tokens: base = null, source } = known.base
    const { tokens: effective = null, reason = null, until } = known.effective
    const times = { until: until === undefined ? null : iso(until) }
    const used = context?.tokens ?? null
    views.set(`${upstream} ${model}`, { upstream, model, base, source, effective, used, reason, ...times })
  }
  return [...views.values()]
}

/** Returns entries with those first that cost most, or have the most input where no price is known. */
function dearestFirst<Entry extends { readonly cost_usd: number | null; readonly input: number }>(entries: Entry[]) {
  return entries.sort((a, b) => (b.cost_usd ?? 0) - (a.cost_usd ?? 0) || b.input - a.input)
}

/** Returns what a session used by agent, model and tool. */
function costsOf({ counts, parts }: Session): SessionDetail['costs'] {
  const { agents = [], models = [], tools = [] } = parts ?? {}
  const used = (amount: Counts) => ({ input: amount.input ?? 0, output: amount.output ?? 0, ...costView(amount) })
  const { input: all = 0, unpriced_answers = 0, estimated_prices = 0 } = counts
  const gap = { unpriced_answers, estimated_prices }
  const byTool = tools.map(({ name: tool, amount }) => ({ tool, ...used({ ...amount, ...gap }) }))
  let [input, cost] = [all, counts.cost ?? 0]
  for (const one of byTool) {
    input -= one.input
    cost -= one.cost_usd ?? 0
  }
  const rest = { tool: null, ...used({ ...counts, input: Math.max(0, input), cost: Math.max(0, cost) }) }
  return {
    agents: dearestFirst(
      agents.map(({ name, amount }) => ({ thread: name === OTHER ? null : Number(name), ...used(amount) })),
    ),
    models: dearestFirst(models.map(({ name, amount }) => ({ model: name || 'unknown', ...used(amount) }))),
    tools: [...dearestFirst(byTool), rest].map(({ output: _, ...one }) => {
      return { ...one, share: all > 0 ? Math.min(1, one.input / all) : 0 }
    }),
  }
}

/** Returns all of a session but its transcript. */
export function detailOf(
  listed: ListedSession,
  viewer: Viewer,
  contextOf: ContextOf,
): Omit<SessionDetail, 'transcript'> {
  const { key, session } = listed
  const { row, agents, meters, iterations } = overviewOf(listed, viewer)
  const { counts, record } = session
  // A named agent works for the one without a name, if the session has it.
  const main = session.threads.find(({ name }) => name === '')?.number ?? null
  const threads: SessionDetail['threads'][number][] = []
  const runs = (record?.runs ?? []).map((run) => runView(run, key, viewer))
  let over: Run | undefined
  for (const { thread, shown, meters, isStopping } of agents) {
    const { run, name, number } = thread
    const terminal = terminalView(terminalIn(run), key, viewer)
    if (terminal) over = run
    threads.push({
      ...shown,
      thread: number,
      parent: name === '' ? null : main,
      name: viewer.seesNames && name !== '' ? name : null,
      stopping: isStopping,
      started_at: iso(run.startedAt),
      last_at: iso(run.askedAt),
      meters,
      terminal,
      loop_guard_mode: loopModeInForce(session, thread) ?? null,
    })
    const end = endOf(run, viewer.now)
    const current = runView(recordOf(run, number, end), key, viewer)
    runs.push({ ...current, iterations: shown.iteration, ended_at: null, state: end ?? shown.state })
  }
  return {
    ...row,
    threads,
    runs,
    iterations: iterations.map(iterationView),
    minutes: (record?.minutes ?? []).map((one) => ({
      at: iso(one.at),
      tokens: tokensIn(one.counts),
      ...costView(one.counts),
    })),
    meters,
    costs: costsOf(session),
    contexts: contextViews(session, contextOf),
    terminal: terminalView(over && terminalIn(over), key, viewer),
    final_answer: over?.finalAnswer ? answerView(over.finalAnswer.text) : null,
    warnings: { acknowledged: counts.acknowledged ?? 0, ignored: counts.ignored ?? 0 },
  }
}

/**
 * Returns what is shown of the transcript of a session. A run is completed if its last answer called no tool, and a
 * user spoke after it or nothing came for five minutes: text alone completes nothing.
 */
export function transcriptOf(
  { key, session }: ListedSession,
  entries: readonly TranscriptEntry[],
  viewer: Viewer,
): Transcript {
  const shown: Transcript['entries'][number][] = []
  const following = new Map<number, TranscriptEntry>()
  for (const entry of entries.toReversed()) {
    const { thread, role, text, truncated = false, callsNothing } = entry
    const next = following.get(thread)
    following.set(thread, entry)
    const at = iso(entry.at)
    const terminal = terminalView(entry.terminal, key, viewer)
    let terminal_state: string | null = terminal?.terminal_state ?? null
    if (!terminal && role === 'assistant' && callsNothing) {
      const last = next ? undefined : session.threads.find(({ number }) => number === thread)
      const isCompleted = next ? next.role === 'user' : last && endOf(last.run, viewer.now) === 'completed'
      if (isCompleted) terminal_state = 'completed'
    }
    shown.push({ thread, role, text, truncated, at, terminal_state, terminal })
  }
  return { id: idOf(key), entries: shown.reverse(), truncated: (entries[0]?.number ?? 1) > 1 }
}
