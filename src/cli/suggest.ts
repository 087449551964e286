/** `governor suggest`: limits for agents, out of what their completed runs took. */
import { tokens } from '../core/budget/amount.ts'
import { type LimitName, METERS } from '../core/budget/meters.ts'
import type { RunView } from '../ops/sessions/schema.ts'
import type { Terminal } from './command.ts'
import { fitted, jsonLine } from './session-table.ts'
import { allSessions, createSessionsClient, type SessionsClient } from './sessions-client.ts'

/** The options of the command. */
export interface SuggestOptions {
  readonly json: boolean
  readonly url: string | undefined
}

/** Fewer completed runs than this say too little about those to come. */
export const LEAST_RUNS = 30
/** Sessions that are asked for at a time. */
const AT_ONCE = 8

/** What a run takes, besides time, which says more about the provider than about the run. */
const AMOUNTS = ['iterations', 'tool_calls', 'tokens', 'cost'] as const satisfies readonly LimitName[]
type Amount = (typeof AMOUNTS)[number]

/** Amounts that half of the runs, 19 in 20 of them, and all of them did not exceed. */
export interface Spread {
  readonly p50: number
  readonly p95: number
  readonly max: number
}

/** Completed runs of one agent with one model; `null` where runs name none. */
export interface RunGroup {
  readonly agent: string | null
  readonly model: string | null
  readonly runs: number
  readonly spreads: Readonly<Record<Amount, Spread>>
}

/** Returns the smallest of the values, which are sorted, that at least this share of them does not exceed. */
function percentile(sorted: readonly number[], share: number): number {
  return sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? 0
}

/** Returns the completed runs of each agent and model, those with most runs first. */
export function groupRuns(runs: readonly RunView[]): readonly RunGroup[] {
  const groups = new Map<string, RunView[]>()
  for (const run of runs) {
    if (run.state !== 'completed') continue
    const key = JSON.stringify([run.agent, run.model])
    const group = groups.get(key)
    if (group) group.push(run)
    else groups.set(key, [run])
  }
  return [...groups.values()]
    .map((group) => {
      const amounts = group.map(({ iterations, tool_calls, tokens: used, cost_usd, price_known: isKnown }) => {
        // A cost with a missing part gives no limit.
        return { iterations, tool_calls, tokens: used, cost: isKnown ? (cost_usd ?? 0) : 0 }
      })
      const spreads = AMOUNTS.map((name) => {
        const sorted = amounts.map((amount) => amount[name]).toSorted((a, b) => a - b)
        return [name, { p50: percentile(sorted, 0.5), p95: percentile(sorted, 0.95), max: sorted.at(-1) ?? 0 }]
      })
      const [first] = group
      return {
        agent: first?.agent ?? null,
        model: first?.model ?? null,
        runs: group.length,
        spreads: Object.fromEntries(spreads) as RunGroup['spreads'],
      }
    })
    .sort((a, b) => b.runs - a.runs)
}

/** Rounds up to what the limit counts in; money to cents. */
function roundedUp(name: Amount, value: number): number {
  return name === 'cost' ? Math.ceil(value * 100 - 1e-6) / 100 : Math.ceil(value)
}

/** A limit of runs: the key in the configuration, and its value at p95 and at twice that. */
interface Suggestion {
  readonly name: Amount
  readonly key: string
  readonly p95: number
  readonly twice: number
}

/** Returns the limits for a group, none where too few runs are known; 0 would be no limit. */
export function suggestionsFor({ runs, agent, model, spreads }: RunGroup): readonly Suggestion[] {
  if (runs < LEAST_RUNS || (agent === null && model === null)) return []
  return AMOUNTS.map((name) => {
    const { p95 } = spreads[name]
    const key = METERS[name].limit.setting
    return { name, key, p95: roundedUp(name, p95), twice: roundedUp(name, 2 * p95) }
  }).filter(({ p95 }) => p95 > 0)
}

type Budget = Readonly<Record<string, number | Readonly<Record<string, number>>>>

/** Returns limits as `budget` has them in the configuration. */
function budgetOf(limits: readonly Suggestion[], at: 'p95' | 'twice'): Budget {
  const own = limits.filter(({ name }) => name === 'iterations')
  const further = limits.filter(({ name }) => name !== 'iterations')
  const entriesOf = (some: typeof limits) => Object.fromEntries(some.map((limit) => [limit.key, limit[at]]))
  return { ...entriesOf(own), run: entriesOf(further) }
}

/** Returns a group as one JSON object; `budget` is `null` where too few runs are known. */
function jsonOf(group: RunGroup): object {
  const { agent, model, runs, spreads } = group
  const limits = suggestionsFor(group)
  const { iterations, tool_calls, tokens: used, cost } = spreads
  return {
    agent,
    model,
    runs,
    iterations,
    tool_calls,
    tokens: used,
    cost_usd: cost,
    budget: limits.length === 0 ? null : { p95: budgetOf(limits, 'p95'), twice_p95: budgetOf(limits, 'twice') },
  }
}

const FORMATS: Readonly<Record<Amount, readonly [title: string, format: (value: number) => string]>> = {
  iterations: ['iterations', String],
  tool_calls: ['tool calls', String],
  tokens: ['tokens', (value) => tokens(value, 0).used],
  cost: ['cost', (value) => (value === 0 ? '-' : `$${value.toFixed(value < 0.1 ? 4 : 2)}`)],
}

/** A group as a table, each line of which is a comment in YAML. */
function tableOf(group: RunGroup, columns: number): readonly string[] {
  const { agent, model, runs, spreads } = group
  const few = runs < LEAST_RUNS ? ` (no suggestion below ${LEAST_RUNS})` : ''
  const name = `${agent ?? 'unknown agent'}, ${model ?? 'unknown model'}`
  const title = `${runs} completed run${runs === 1 ? '' : 's'}${few}`
  const line = (cells: readonly string[]) =>
    `#   ${cells.map((text, at) => (at === 0 ? text.padEnd(12) : text.padStart(10))).join('')}`
  return [
    `# ${fitted(name, Math.max(8, columns - title.length - 5)).trimEnd()}: ${title}`,
    line(['', 'p50', 'p95', 'max']),
    ...AMOUNTS.map((name) => {
      const [heading, format] = FORMATS[name]
      const { p50, p95, max } = spreads[name]
      return line([heading, format(p50), format(p95), format(max)])
    }),
  ]
}

/** A text as YAML and terminals take it: what clients chose may hold anything. */
function quoted(text: string): string {
  return JSON.stringify(text).replace(/[^\x20-\x7e]/g, (one) => `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`)
}

function overrideOf(group: RunGroup): readonly string[] {
  const limits = suggestionsFor(group)
  if (limits.length === 0) return []
  const { agent, model, runs } = group
  const match = [
    ...(model === null ? [] : [`model: ${quoted(model)}`]),
    ...(agent === null ? [] : [`header: { user-agent: ${quoted(`${agent}*`)} }`]),
  ]
  const linesOf = (indent: string, some: typeof limits) =>
    some.map(({ key, p95, twice }) => `${`${indent}${key}: ${twice}`.padEnd(34)}# p95: ${p95}`)
  const further = limits.filter(({ name }) => name !== 'iterations')
  return [
    `  # of ${runs} completed runs`,
    ...match.map((text, at) => `${at === 0 ? '  - ' : '    '}${text}`),
    '    budget:',
    ...linesOf(
      '      ',
      limits.filter(({ name }) => name === 'iterations'),
    ),
    ...(further.length > 0 ? ['      run:', ...linesOf('        ', further)] : []),
  ]
}

/** Groups as text that is a part of a configuration: the tables are comments in it. */
export function suggestionText(groups: readonly RunGroup[], columns: number): string {
  if (groups.length === 0) return '# no completed runs yet: see governor sessions\n'
  // The first override that matches counts, so that one for any agent comes last.
  const ordered = groups.toSorted((a, b) => Number(a.agent === null) - Number(b.agent === null))
  const overrides = ordered.flatMap(overrideOf)
  const head = [
    '# 2 × p95: twice what 19 of 20 completed runs took at most. A limit of p95, in',
    '# the comments, would have stopped 1 of 20 runs that came to a good end.',
    'overrides:',
  ]
  const tables = groups.flatMap((group) => [...tableOf(group, columns), '#'])
  return `${[...tables.slice(0, -1), ...(overrides.length > 0 ? ['', ...head, ...overrides] : [])].join('\n')}\n`
}

/** Returns all runs that Governor remembers. A session that is forgotten meanwhile has none. */
async function allRuns(client: SessionsClient): Promise<readonly RunView[]> {
  const left = (await allSessions(client, () => {})).map(({ id }) => id)
  const runs: RunView[] = []
  const next = async (): Promise<void> => {
    for (let id = left.pop(); id !== undefined; id = left.pop()) {
      const session = await client.find(id)
      if (session) runs.push(...session.runs)
    }
  }
  await Promise.all(Array.from({ length: AT_ONCE }, next))
  return runs
}

/** Suggests limits for each agent and model. Throws `ClientError` if Governor can't be reached or refuses. */
export async function suggest({ json, url }: SuggestOptions, terminal: Terminal): Promise<void> {
  const groups = groupRuns(await allRuns(createSessionsClient(url, terminal.env)))
  if (!json) return terminal.out(suggestionText(groups, terminal.columns?.() ?? 80))
  for (const group of groups) terminal.out(jsonLine(jsonOf(group)))
}
