/** What a session used minute by minute, as bars. */
import type { SessionDetail } from '../../ops/sessions/api-schema.ts'
import { amount, clock } from '../../ops/sessions/labels.ts'
import { Bars, type StackedBar } from './bars.tsx'

const MINUTE = 60_000
const MOST_MINUTES = 60
/** A session that has just begun has bars as wide as others. */
const LEAST_MINUTES = 15

type Minute = SessionDetail['minutes'][number]
type Field = 'tokens' | 'cost_usd'

/** Returns a bar for each minute up to the newest, also for those in which nothing was used. */
function barsOf(minutes: readonly Minute[], field: Field): readonly StackedBar[] {
  const known = new Map(minutes.map((one) => [Date.parse(one.at), one[field] ?? 0]))
  const last = Math.max(...known.keys())
  const length = (last - Math.min(...known.keys())) / MINUTE + 1
  const shown = Math.min(MOST_MINUTES, Math.max(LEAST_MINUTES, length))
  return Array.from({ length: shown }, (_, at) => {
    const time = last - (shown - 1 - at) * MINUTE
    return { title: clock(new Date(time).toISOString()), parts: [{ amount: known.get(time) ?? 0, tone: 'tone-0' }] }
  })
}

export function Chart({ minutes, field, title }: { minutes: readonly Minute[]; field: Field; title: string }) {
  const textOf = (used: number) => amount(field === 'tokens' ? 'tokens' : 'cost', used)
  const total = minutes.reduce((sum, one) => sum + (one[field] ?? 0), 0)
  return <Bars bars={barsOf(minutes, field)} label={`${title}: ${textOf(total)} in all`} format={textOf} />
}
