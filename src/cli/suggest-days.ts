/** The part of `governor suggest` about a limit of a day, out of the journal. */
import { textOf } from '../core/json-object.ts'
import { journalLines } from './report.ts'
import { counted } from './terminal-text.ts'

/** Fewer days than this say too little about those to come. */
const LEAST_DAYS = 7

/** What was used by one session until a time of a day. */
interface Spend {
  readonly session: string
  readonly cost: number
}

const cents = (dollars: number) => Math.ceil(dollars * 100 - 1e-6) / 100

/** Returns the sessions that a limit would have ended: those that used more once it was reached on a day. */
function endedBy(limit: number, days: Iterable<readonly Spend[]>): number {
  const ended = new Set<string>()
  for (const day of days) {
    let sum = 0
    for (const { session, cost } of day) {
      if (sum >= limit) ended.add(session)
      sum += cost
    }
  }
  return ended.size
}

/** Returns limits for a day, in dollars; `undefined` where the journal knows too few days with a cost. */
export async function suggestDay(journal: string) {
  const days = new Map<string, Spend[]>()
  const sessions = new Set<string>()
  for await (const line of journalLines(journal)) {
    const cost = line['cost_usd']
    if (typeof cost !== 'number' || !(cost > 0)) continue
    const day = new Date(line.time).toLocaleDateString('sv')
    const session = textOf(line['id']) || textOf(line['session']) || `${day} without a name`
    sessions.add(session)
    days.set(day, [...(days.get(day) ?? []), { session, cost }])
  }
  if (days.size < LEAST_DAYS) return undefined
  const costs: number[] = []
  for (const day of days.values()) costs.push(day.reduce((sum, { cost }) => sum + cost, 0))
  costs.sort((a, b) => a - b)
  const p95 = cents(costs[Math.ceil(costs.length * 0.95) - 1] ?? 0)
  const limitOf = (max_cost_usd: number) => ({ max_cost_usd, ended: endedBy(max_cost_usd, days.values()) })
  return { days: days.size, sessions: sessions.size, p95: limitOf(p95), twice_p95: limitOf(cents(2 * p95)) }
}

/** Returns the limit as a part of a configuration, with what it would have ended. */
export function daySuggestion({
  days,
  sessions,
  p95,
  twice_p95: twice,
}: NonNullable<Awaited<ReturnType<typeof suggestDay>>>) {
  const of = counted(sessions, 'recorded session')
  return `
# a day, all together, of ${counted(days, 'day')}: p95 $${p95.max_cost_usd.toFixed(2)}, which would have ended ${p95.ended} of ${of}
budget:
  day:
    max_cost_usd: ${twice.max_cost_usd.toFixed(2)} # 2 × p95: would have ended ${twice.ended}
`
}
