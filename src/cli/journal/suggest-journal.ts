/**
 * The part of `governor suggest` that reads the journal: limits of runs, sessions and periods, with what they would
 * have ended.
 */
import { type AnyLimitName, amountIn, LIMITS, METERS, TIME_LIMITS } from '../../core/budget/meters.ts'
import { type Calendar, TIME_SCOPES } from '../../core/budget/scopes.ts'
import { RATE_LIMITS } from '../../core/budget/velocity.ts'
import { add, COUNTERS, type CounterRow, type Counts, NO_COUNTS } from '../../core/counters.ts'
import { textOf } from '../../core/json-object.ts'
import { namesOf, tableBy } from '../../core/names.ts'
import { MINUTE_MS } from '../../core/operator/session-record.ts'
import { type Line, numberIn } from '../../telemetry/usage-sums.ts'
import { counted } from '../terminal-text.ts'
import { journalLines } from './report.ts'

/** Fewer runs, sessions or periods than this say too little about those to come. */
export const LEAST = { run: 30, session: 30, hour: 24, day: 7, week: 4, month: 3 } as const
type Unit = keyof typeof LEAST

/** What one run, session or period has used by meter; `steps`: which session used what, one after the other. */
interface Sample {
  readonly used: (name: AnyLimitName) => number
  readonly steps?: readonly Step[]
}
interface Step {
  readonly session: string
  readonly counts: Counts
}

/**
 * A limit by its keys in the configuration: the 95th percentile of what was used, twice that, and what each would have
 * ended.
 */
interface Suggestion {
  readonly limit: string
  readonly unit: Unit
  readonly of: number
  readonly p95: number
  readonly twice_p95: number
  readonly ended: { readonly p95: number; readonly twice_p95: number }
}

function countsIn(line: Line): Counts {
  return tableBy(namesOf(COUNTERS), (name) => {
    const { journal }: CounterRow = COUNTERS[name]
    return journal === undefined ? 0 : numberIn(line, journal)
  })
}

const sampleOf = (counts: Counts): Sample => ({ used: (name) => amountIn(counts, name) ?? 0 })

/** All that the journal knows of one session. */
interface SessionUse {
  counts: Counts
  /** The most that it used in a minute, on average over a run or an hour. */
  rate: Partial<Record<AnyLimitName, number>>
  depth: number
  readonly threads: Set<number>
  /** When an agent beside the main one began (1) and ended (-1) to use something. */
  readonly spans: [at: number, step: 1 | -1][]
}

function noteSession(sessions: Map<string, SessionUse>, id: string, line: Line, counts: Counts): void {
  const use = sessions.get(id) ?? { counts: NO_COUNTS, rate: {}, depth: 0, threads: new Set(), spans: [] }
  sessions.set(id, use)
  use.counts = add(use.counts, counts)
  use.depth = Math.max(use.depth, numberIn(line, 'depth'))
  const thread = numberIn(line, 'thread')
  if (thread > 0) use.threads.add(thread)
  const [from, to] = [Date.parse(textOf(line['since'])), Date.parse(line.time)]
  // A line that somebody wrote by hand may lack its times.
  if (!(from <= to)) return
  if (thread > 1) use.spans.push([from, 1], [to, -1])
  const minutes = Math.max(1, (to - from) / MINUTE_MS)
  for (const name of RATE_LIMITS)
    use.rate[name] = Math.max(use.rate[name] ?? 0, (amountIn(counts, name) ?? 0) / minutes)
}

/** Returns how many agents were at work at once, at most. */
function mostAtOnce({ spans }: SessionUse): number {
  let [now, most] = [0, 0]
  for (const [, step] of spans.toSorted(([a, x], [b, y]) => a - b || y - x)) {
    now += step
    most = Math.max(most, now)
  }
  return most
}

async function readJournal(path: string, calendar: Calendar) {
  const runs: Sample[] = []
  const open = new Map<string, Counts>()
  const sessions = new Map<string, SessionUse>()
  const periods = tableBy(TIME_SCOPES, () => new Map<string, Step[]>())
  for await (const line of journalLines(path)) {
    const counts = countsIn(line)
    const id = textOf(line['id']) || textOf(line['session'])
    for (const scope of TIME_SCOPES) {
      const { name } = calendar.periodOf(scope, Date.parse(line.time))
      const steps = periods[scope].get(name) ?? []
      steps.push({ session: id || `${name} without a name`, counts })
      periods[scope].set(name, steps)
    }
    if (id === '') continue
    noteSession(sessions, id, line, counts)
    const run = `${id} ${numberIn(line, 'thread')}`
    const used = add((!counts.runs && open.get(run)) || NO_COUNTS, counts)
    if (line['end'] === 'completed') runs.push(sampleOf(used))
    if (textOf(line['end']) === '') open.set(run, used)
    else open.delete(run)
  }
  return { runs, sessions: [...sessions.values()], periods }
}

/** Returns how many runs or sessions a limit would have ended: those that used more once it was reached. */
function endedBy(name: AnyLimitName, limit: number, samples: readonly Sample[]): number {
  const ended = new Set<string | Sample>()
  for (const sample of samples) {
    if (!sample.steps && sample.used(name) > limit) ended.add(sample)
    let sum = 0
    for (const { session, counts } of sample.steps ?? []) {
      const amount = amountIn(counts, name) ?? 0
      if (sum >= limit && amount > 0) ended.add(session)
      sum += amount
    }
  }
  return ended.size
}

/** Rounds up to what a limit counts in; money to cents. */
export function roundedUp(name: AnyLimitName, value: number): number {
  return name === 'cost' ? Math.ceil(value * 100 - 1e-6) / 100 : Math.ceil(value - 1e-9)
}

function suggestion(unit: Unit, limit: string, name: AnyLimitName, samples: readonly Sample[]): Suggestion[] {
  const of = samples.length
  const used = samples.map((sample) => sample.used(name)).sort((a, b) => a - b)
  const p95 = roundedUp(name, used[Math.ceil(of * 0.95) - 1] ?? 0)
  // 0 would be no limit.
  if (of < LEAST[unit] || p95 === 0) return []
  const twice_p95 = roundedUp(name, 2 * p95)
  const ended = { p95: endedBy(name, p95, samples), twice_p95: endedBy(name, twice_p95, samples) }
  return [{ limit, unit, of, p95, twice_p95, ended }]
}

/** Returns the limits that a journal suggests; none where it knows too little. */
export async function suggestFromJournal(path: string, calendar: Calendar): Promise<readonly Suggestion[]> {
  const { runs, sessions, periods } = await readJournal(path, calendar)
  const all = (unit: Unit, section: string, names: readonly AnyLimitName[], samples: readonly Sample[]) =>
    names.flatMap((name) => {
      const { setting } = METERS[name].limit
      const isOutside = section === 'run' && name === 'iterations'
      return suggestion(unit, isOutside ? setting : `${section}.${setting}`, name, samples)
    })
  const trees = [
    ['max_agents', ({ threads }: SessionUse) => Math.max(0, threads.size - 1)],
    ['max_concurrent_agents', mostAtOnce],
    ['max_depth', ({ depth }: SessionUse) => depth],
  ] as const
  return [
    ...all('run', 'run', LIMITS, runs),
    ...all(
      'session',
      'session',
      LIMITS,
      sessions.map(({ counts }) => sampleOf(counts)),
    ),
    ...trees.flatMap(([setting, countOf]) => {
      const samples = sessions.map((session) => ({ used: () => countOf(session) }))
      return suggestion('session', `session.${setting}`, 'iterations', samples)
    }),
    ...all(
      'session',
      'velocity',
      RATE_LIMITS,
      sessions.map(({ rate }) => ({ used: (name) => rate[name] ?? 0 })),
    ),
    ...TIME_SCOPES.flatMap((scope) => {
      const samples = [...periods[scope].values()].map((steps) => {
        return { ...sampleOf(steps.reduce((sum, { counts }) => add(sum, counts), NO_COUNTS)), steps }
      })
      return all(scope, scope, TIME_LIMITS, samples)
    }),
  ]
}

/** Returns limits as a part of a configuration, twice p95 each, with what they and p95 would have ended. */
export function journalText(suggestions: readonly Suggestion[]): string {
  if (suggestions.length === 0) return ''
  const lines = ['', '# 2 × p95 of the journal; beside it what that and p95 would have ended', 'budget:']
  let section = ''
  for (const { limit, unit, of, p95, twice_p95, ended } of suggestions) {
    const [key, before = ''] = limit.split('.').toReversed()
    if (before !== section) lines.push(`  ${before}:`)
    section = before
    const isOfTime = unit !== 'run' && unit !== 'session'
    const [source, all] = isOfTime ? [` in ${counted(of, unit)}`, ''] : ['', ` of ${of}`]
    const setting = `${before ? '    ' : '  '}${key}: ${twice_p95}`.padEnd(34)
    lines.push(
      `${setting} # ${counted(ended.twice_p95, isOfTime ? 'session' : unit)}${source}; p95 ${p95}: ${ended.p95}${all}`,
    )
  }
  return `${lines.join('\n')}\n`
}
