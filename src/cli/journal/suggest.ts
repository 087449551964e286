/** `governor suggest`: limits for agents, out of what their completed runs took. */

import { loadConfig } from '../../config/load.ts'
import { calendarOf } from '../../config/scopes.ts'
import { type LimitName, METERS, tokens } from '../../core/budget/meters.ts'
import { tableBy } from '../../core/names.ts'
import { dollarText } from '../../core/text/dollars.ts'
import type { RunView } from '../../ops/sessions/api-schema.ts'
import { DEFAULT_JOURNAL } from '../../telemetry/journal.ts'
import { type Call, CommandError, type Terminal } from '../command.ts'
import { allSessions, askSession, type Connection, connect } from '../sessions/sessions-client.ts'
import { counted, escaped, fitted, jsonLine } from '../terminal-text.ts'
import { journalText, LEAST, roundedUp, suggestFromJournal } from './suggest-journal.ts'

const AT_ONCE = 8

/** What a run takes, besides time, which says more about the provider than about the run. */
const AMOUNTS = ['iterations', 'tool_calls', 'tokens', 'cost'] as const satisfies readonly LimitName[]

type RunGroup = ReturnType<typeof groupRuns>[number]

/**
 * Returns the completed runs of each agent and model, those with most runs first. `spreads`: what half of the runs, 19
 * in 20, and all of them did not exceed. `limits`: at p95 and at twice that; none where too few runs are known.
 */
export function groupRuns(runs: readonly RunView[]) {
  const groups = new Map<string, RunView[]>()
  for (const run of runs) {
    if (run.state !== 'completed') continue
    const key = JSON.stringify([run.agent, run.model])
    const group = groups.get(key)
    if (group) group.push(run)
    else groups.set(key, [run])
  }
  const found = []
  for (const group of groups.values()) {
    const [{ agent, model } = { agent: null, model: null }] = group
    const isEnough = group.length >= LEAST.run && (agent !== null || model !== null)
    const limits: { readonly key: string; readonly p95: number; readonly twice: number }[] = []
    const spreads = tableBy(AMOUNTS, (name) => {
      // A cost with a missing part gives no limit.
      const costIn = (run: RunView) => (run.price_known ? (run.cost_usd ?? 0) : 0)
      const amounts = group.map((run) => (name === 'cost' ? costIn(run) : run[name])).sort((a, b) => a - b)
      const [p50 = 0, p95 = 0, max = 0] = [0.5, 0.95, 1].map((part) => amounts[Math.ceil(group.length * part) - 1])
      const key = METERS[name].limit.setting
      // 0 would be no limit.
      if (isEnough && p95 > 0) limits.push({ key, p95: roundedUp(name, p95), twice: roundedUp(name, 2 * p95) })
      return { p50, p95, max }
    })
    found.push({ agent, model, runs: group.length, spreads, limits })
  }
  return found.sort((a, b) => b.runs - a.runs)
}

/** Returns a group as one JSON object; `budget` is `null` where too few runs are known. */
function jsonOf({ spreads, limits, ...rest }: RunGroup): object {
  const { cost, ...others } = spreads
  const budgetOf = (part: 'p95' | 'twice') => {
    const { max_iterations, ...run } = Object.fromEntries(limits.map((limit) => [limit.key, limit[part]]))
    return { run, max_iterations }
  }
  const budget = limits.length === 0 ? null : { p95: budgetOf('p95'), twice_p95: budgetOf('twice') }
  return { ...rest, ...others, cost_usd: cost, budget }
}

/** Returns the lines of a table about a group. Each line is a comment in YAML. */
function tableOf({ agent, model, runs, spreads }: RunGroup, columns: number): readonly string[] {
  const few = runs < LEAST.run ? ` (no suggestion below ${LEAST.run})` : ''
  const name = `${agent ?? 'unknown agent'}, ${model ?? 'unknown model'}`
  const title = `${counted(runs, 'completed run')}${few}`
  const lines = [
    `# ${fitted(name, Math.max(8, columns - title.length - 5)).trimEnd()}: ${title}`,
    `#   ${''.padEnd(12)}       p50       p95       max`,
  ]
  for (const amount of AMOUNTS) {
    const { p50, p95, max } = spreads[amount]
    let line = `#   ${amount.replace('_', ' ').padEnd(12)}`
    for (const value of [p50, p95, max]) {
      const cost = value === 0 ? '-' : dollarText(value, value < 0.1 ? 4 : 2)
      line += (amount === 'cost' ? cost : amount === 'tokens' ? tokens(value, 0).used : String(value)).padStart(10)
    }
    lines.push(line)
  }
  return lines
}

/** A text as YAML and terminals take it: what clients chose may hold anything. */
const quoted = (text: string) => escaped(JSON.stringify(text), /[^\x20-\x7e]/g)

function overrideOf({ agent, model, runs, limits }: RunGroup): readonly string[] {
  if (limits.length === 0) return []
  const keys: string[] = []
  if (model !== null) keys.push(`model: ${quoted(model)}`)
  if (agent !== null) keys.push(`header: { user-agent: ${quoted(`${agent}*`)} }`)
  keys.push('budget:')
  // The first limit is the one on iterations, if there is one; all others stand in `run`.
  for (const { key, p95, twice } of limits) {
    const isOfRun = key !== 'max_iterations'
    if (isOfRun && !keys.includes('  run:')) keys.push('  run:')
    keys.push(`${`${isOfRun ? '    ' : '  '}${key}: ${twice}`.padEnd(30)}# p95: ${p95}`)
  }
  return [`  # of ${runs} completed runs`, `  - ${keys.join('\n    ')}`]
}

/** Groups as text that is a part of a configuration: the tables are comments in it. */
export function suggestionText(groups: readonly RunGroup[], columns: number): string {
  if (groups.length === 0) return '# no completed runs yet: see governor sessions\n'
  const lines: string[] = []
  for (const group of groups) lines.push(...tableOf(group, columns), '#')
  lines.pop()
  // The first override that matches counts, so that one for any agent comes last.
  const ordered = groups.toSorted((a, b) => Number(a.agent === null) - Number(b.agent === null))
  const overrides = ordered.flatMap(overrideOf)
  if (overrides.length > 0)
    lines.push(
      '',
      '# 2 × p95: twice what 19 of 20 completed runs took at most. A limit of p95, in',
      '# the comments, would have stopped 1 of 20 runs that came to a good end.',
      'overrides:',
      ...overrides,
    )
  return `${lines.join('\n')}\n`
}

/** Returns the runs of all sessions that the Governor at the other end remembers. */
async function rememberedRuns(connection: Connection): Promise<RunView[]> {
  const { rows } = await allSessions(connection)
  const runs: RunView[] = []
  for (let at = 0; at < rows.length; at += AT_ONCE) {
    const some = rows.slice(at, at + AT_ONCE)
    for (const asked of await Promise.allSettled(some.map(({ id }) => askSession(connection, id)))) {
      if (asked.status === 'fulfilled') runs.push(...asked.value.runs)
      // A session that was forgotten meanwhile has no runs.
      else if (!(asked.reason instanceof CommandError && asked.reason.status === 404)) throw asked.reason
    }
  }
  return runs
}

/**
 * Suggests limits for each agent and model, of a running Governor, and for all together, of the journal. Throws
 * `CommandError` if Governor refuses, or if it can't be reached and the journal knows too little.
 */
export async function suggest({ flags }: Call, terminal: Terminal): Promise<number> {
  const connection = connect(flags, terminal.env)
  const { usage, budget } = loadConfig(flags, terminal.env).config
  const ofJournal = await suggestFromJournal(usage.journal || DEFAULT_JOURNAL, calendarOf(budget.time_zone)())
  const groups = await rememberedRuns(connection)
    .then(groupRuns)
    .catch((error: unknown) => {
      const isAway = error instanceof CommandError && error.status === undefined
      if (isAway && ofJournal.length > 0) return undefined
      throw error
    })
  if (flags.json) {
    for (const group of groups ?? []) terminal.out(jsonLine(jsonOf(group)))
    for (const one of ofJournal) terminal.out(jsonLine(one))
  } else terminal.out((groups ? suggestionText(groups, terminal.columns) : '') + journalText(ofJournal))
  return 0
}
