/** The API of what agents used, out of the journal: by day, and by model, client, key, session or tool. */

import type { FastifyInstance } from 'fastify'
import { LRUCache } from 'lru-cache'
import * as z from 'zod'
import { namesOf, tableBy } from '../core/names.ts'
import { ignore } from '../core/thrown.ts'
import type { Journal } from '../telemetry/journal.ts'
import {
  addLine,
  addTo,
  csvOf,
  GROUPINGS,
  type Group,
  type Grouping,
  inReadingOrder,
  type Line,
  linesInJournal,
  NO_SUMS,
  partsIn,
  plain,
  SUM_NAMES,
  sinceOf,
} from '../telemetry/usage-sums.ts'
import { problem, RequestProblem } from './problem.ts'
import { validated } from './sessions/session-in.ts'

/** Groups that a reply names; what the others used is added up. */
const MOST_ROWS = 100
/** Groups that are told apart: with more, the later ones count as one. */
const MOST_GROUPS = 50_000
/** The name of that one. */
const OTHERS = 'others'
/** Milliseconds for which a reply is good, and how many are kept. */
const KEPT_MS = 5_000
const MOST_KEPT = 8
/** Lines after which other requests have their turn. */
const CHUNK = 1_000

/** Where the journal is, and what of it is not written yet. */
export interface UsageSource extends Pick<Journal, 'settled' | 'unwritten'> {
  readonly path: string
}

const names = namesOf(GROUPINGS)
export const usageQuery = z.strictObject({
  by: z.enum(names).default('day'),
  since: z
    .string()
    .refine((text) => sinceOf(text, 0) !== undefined, 'expected a day such as 2026-11-01, or how long ago: 12h, 30d')
    .default('30d'),
  format: z.enum(['json', 'csv']).default('json').describe('csv: all groups, as a file for a spreadsheet.'),
})
type Query = z.output<typeof usageQuery>

const amount = z.number().min(0)
const sums = z.strictObject({ ...tableBy(SUM_NAMES, () => amount), price_known: z.boolean() })
const day = sums.extend({ day: z.string().describe('Of the place where Governor runs.') })
const row = sums
  .extend(tableBy(names, () => z.string().optional()))
  .extend({ days: z.array(z.strictObject({ day: z.string(), cost_usd: amount, tokens: amount })) })

export const usageReply = z
  .strictObject({
    by: z.enum(names),
    since: z.iso.datetime(),
    days: z.array(day).describe('Those in which something was used, the oldest first.'),
    usage: z
      .array(row)
      .describe(`What each used, under the name of the grouping: the dearest ${MOST_ROWS}; of days all.`),
    others: sums.extend({ groups: amount }).nullable().describe('What all others used together.'),
    total: sums,
  })
  .meta({ id: 'Usage' })

/** What agents used, as the API shows it. */
export type UsageView = z.output<typeof usageReply>

interface GroupByDay extends Group {
  readonly days: Map<string, { cost_usd: number; tokens: number }>
}

/** Adds up the lines since a time. `seesNames`: sessions stand under the names that clients gave them. */
async function usageSince(lines: AsyncIterable<Line>, by: Grouping, from: number, seesNames: boolean) {
  const groups = new Map<string, GroupByDay>()
  const days = new Map<string, Group>()
  const total = { ...NO_SUMS }
  let read = 0
  for await (const line of lines) {
    if (++read % CHUNK === 0) await new Promise((resolve) => setImmediate(resolve))
    if (Date.parse(line.time) < from) continue
    const at = GROUPINGS.day(line)
    addLine(total, line)
    addTo(days, { cells: [at], ...NO_SUMS }, line)
    const named = seesNames ? line : { ...line, session: null }
    for (const [asked, part] of partsIn(named, by, GROUPINGS[by])) {
      const key = groups.has(asked) || groups.size < MOST_GROUPS ? asked : OTHERS
      const used = { ...NO_SUMS }
      addLine(used, part)
      const split = addTo(groups, { cells: [key], ...NO_SUMS, days: new Map() }, used).days
      const { cost_usd, tokens } = split.get(at) ?? { cost_usd: 0, tokens: 0 }
      split.set(at, { cost_usd: cost_usd + used.cost_usd, tokens: tokens + used.input + used.output })
    }
  }
  return { rows: inReadingOrder(by, groups), days: inReadingOrder('day', days), total }
}

function viewOf({ rows, days, total }: Awaited<ReturnType<typeof usageSince>>, by: Grouping, since: number): UsageView {
  const shown = by === 'day' ? rows : rows.slice(0, MOST_ROWS)
  const rest = { ...NO_SUMS, groups: rows.length - shown.length }
  for (const group of rows.slice(shown.length)) addLine(rest, group)
  const usage = shown.map(({ cells: [name], days: ofDays, ...group }) => {
    const split = [...ofDays].map(([at, { cost_usd, tokens }]) => plain({ day: at, cost_usd, tokens }))
    return { [by]: name, ...plain(group), days: split }
  })
  return {
    by,
    since: new Date(since).toISOString(),
    days: days.map(({ cells: [name], ...group }) => ({ day: name, ...plain(group) })),
    usage,
    others: rest.groups > 0 ? plain(rest) : null,
    total: plain(total),
  }
}

/** Adds the route. One reading of the journal is under way at a time; `source`: unset where no journal is kept. */
export function usageRoutes(app: FastifyInstance, source: UsageSource | undefined, now: () => number): void {
  const kept = new LRUCache<string, Promise<string>>({ max: MOST_KEPT, ttl: KEPT_MS, perf: { now } })
  let last: Promise<unknown> = Promise.resolve()
  const read = async ({ path, settled, unwritten }: UsageSource, { by, since, format }: Query, seesNames: boolean) => {
    const from = sinceOf(since, now()) ?? 0
    await settled()
    const found = await usageSince(linesInJournal(path, unwritten), by, from, seesNames)
    return format === 'csv' ? csvOf([by], found.rows) : JSON.stringify(viewOf(found, by, from))
  }
  app.get('/governor/usage', async ({ query: given, admin }, reply) => {
    const query = validated(usageQuery, given, 'query')
    if (!source) throw problem('journal_off')
    const key = JSON.stringify([query, admin.seesNames])
    const begin = () => read(source, query, admin.seesNames)
    const text = kept.get(key) ?? last.then(begin, begin)
    last = text.catch(ignore)
    if (query.format === 'json') kept.set(key, text)
    const body = await text.catch((error: Error) => {
      kept.delete(key)
      throw new RequestProblem(409, 'journal_unreadable', `The journal can't be read: ${error.message}`)
    })
    return reply.type(query.format === 'csv' ? 'text/csv; charset=utf-8' : 'application/json').send(body)
  })
}
