/**
 * How sessions are written for people, on the live page and in a terminal: one word for one thing. It is a part of the
 * page, so that it imports little at run time.
 */
import { pausedWhom } from '../../core/operator/pause.ts'
import { dollarText } from '../../core/text/dollars.ts'
import type { ListQuery, Paused, SessionDetail, SessionPage, SessionRow } from './api-schema.ts'
import { GROUP_NAMES, GROUPS, type Group, MOST_SEARCHED, STATES, type Tone } from './states.ts'

export { GROUP_NAMES, GROUPS, MOST_SEARCHED }

/** A limit that users can set. */
export type MeterName = SessionDetail['meters'][number]['name']

type LimitUse = NonNullable<SessionRow['limit']>

/** By what a list is sorted, the highest first; texts as in the alphabet. */
interface Order {
  readonly word: string
  readonly of: (row: SessionRow) => number | string
  readonly isText?: true
}

/** The orders of a list. By risk its groups stay apart. */
export const ORDERS: Readonly<Record<NonNullable<ListQuery['sort']>, Order>> = {
  risk: { word: 'By risk', of: ({ risk }) => risk },
  cost: { word: 'By cost', of: ({ cost_usd }) => cost_usd ?? -1 },
  rate: { word: 'By $/min', of: ({ cost_usd_per_minute }) => cost_usd_per_minute ?? -1 },
  iterations: { word: 'By iterations', of: ({ total_iterations }) => total_iterations },
  newest: { word: 'Newest', of: ({ started_at }) => Date.parse(started_at) },
  limit: { word: 'By limit', of: ({ limit }) => limit?.share ?? -1 },
  tokens: { word: 'By tokens', of: ({ tokens }) => tokens },
  name: { word: 'By name', of: (row) => labelOf(row).toLowerCase(), isText: true },
  client: { word: 'By client', of: ({ client }) => client ?? '', isText: true },
  key: { word: 'By key', of: ({ key }) => key ?? '', isText: true },
  model: { word: 'By model', of: ({ model }) => shortModel(model) ?? '', isText: true },
}

/** Returns the group of a session. */
export function groupOf({ state }: Pick<SessionRow, 'state'>): Group {
  return rowOf(state)[2]
}

/** Returns word, tone and group of a state; a Governor of another version may have other ones. */
function rowOf(state: string): readonly [word: string, tone: Tone, group: Group] {
  if (Object.hasOwn(STATES, state)) return STATES[state as SessionRow['state']]
  return [state.replaceAll('_', ' '), 'quiet', 'Working']
}

/** True of a session with a request in flight, or whose newest answer asks for more: a tool is executed. */
export function isAtWork(row: Pick<SessionRow, 'state'>): boolean {
  const group = groupOf(row)
  return group === 'Need you' || group === 'Working'
}

/** Returns the word for a state of a session, an agent or a run. */
export function wordOf(state: string): string {
  return rowOf(state)[0]
}

type Stateful = Pick<SessionRow, 'state'> &
  Partial<Pick<SessionRow, 'paused' | 'stopping' | 'last_error' | 'terminal_reason' | 'asking'>>

/** Returns what a session does, in a few words, and how urgent that is. */
export function stateOf(row: Stateful): { readonly text: string; readonly tone: Tone } {
  const { state, asking, terminal_reason: reason } = row
  if (row.paused && groupOf(row) !== 'Ended') return { text: 'paused', tone: 'bad' }
  if (row.stopping) return { text: 'stopping', tone: 'warn' }
  if (asking) {
    const { limit, max } = asking
    return { text: `asks: ${amount(limit, max)} → ${amount(limit, nextLimit(limit, max))}?`, tone: 'warn' }
  }
  const [word, tone] = rowOf(state)
  if (row.last_error && state === 'failed') return { text: `${word}: ${row.last_error}`, tone }
  if (state !== 'stopped' || !reason) return { text: word, tone }
  const why = reason === 'max_seconds' ? 'time' : reason.replace(/^max_|_guard$/, '').replaceAll('_', ' ')
  return { text: `${word}: ${why}`, tone }
}

/** Returns the limit that is proposed where one is reached: a quarter more. */
export function nextLimit(meter: LimitUse['meter'], limit: number): number {
  return meter === 'cost' ? Math.round(limit * 125) / 100 : Math.ceil(limit * 1.25)
}

type Cost = Pick<SessionRow, 'cost_usd' | 'price_known' | 'cost_estimated'>

/**
 * Returns `$1.20`; `≥$1.20` if a part is missing, `~$1.20` if it is estimated, `?` if nothing is known. Amounts below a
 * cent have `decimals`; with 3 of them, no amount below $100,000 has more than 7 characters.
 */
export function money(
  { cost_usd: cost, price_known: isKnown, cost_estimated: isEstimated }: Cost,
  decimals = 4,
): string {
  if (cost === null) return '?'
  const sign = isKnown ? '' : isEstimated ? '~' : '≥'
  const least = 10 ** -decimals
  if (cost > 0 && cost < least) return isKnown ? `<$${least.toFixed(decimals)}` : `${sign}$0`
  if (cost > 0 && cost < 0.01) return `${sign}$${cost.toFixed(decimals)}`
  return sign + dollarText(cost, cost < 100 ? 2 : 0)
}

/** Returns shares of a whole in whole percents that add up as the shares do: those that lose most get what is left. */
export function percents(shares: readonly number[]): readonly number[] {
  const exact = shares.map((share) => share * 100)
  let left = Math.round(exact.reduce((sum, one) => sum + one, 0))
  for (const one of exact) left -= Math.floor(one)
  const loss = (at: number) => (exact[at] ?? 0) % 1
  const raised = new Set([...exact.keys()].sort((a, b) => loss(b) - loss(a)).slice(0, left))
  return exact.map((one, at) => Math.floor(one) + Number(raised.has(at)))
}

/** Returns whose a limit of an hour, a day, a week or a month is: `all`, `key anna`, `x-team red`. */
export function whoseText({ per = 'all', subject = null }: { per?: string; subject?: string | null }): string {
  return subject === null ? 'all' : `${per.replace(/^header:/, '')} ${subject || 'without a value'}`
}

/** Returns the cost of a session by the minute; empty if it is not at work. */
export function rate(row: SessionRow, decimals?: number): string {
  if (!isAtWork(row)) return ''
  return money({ ...row, cost_usd: row.cost_usd_per_minute }, decimals)
}

/** Returns `950`, `5.1k`, `61k`, `2.1M`. */
export function compact(count: number): string {
  if (count < 1_000) return String(Math.round(count))
  const [shown, unit] = count < 999_500 ? [count / 1_000, 'k'] : [count / 1_000_000, 'M']
  return `${shown < 9.95 ? shown.toFixed(1) : Math.round(shown)}${unit}`
}

/** Returns `45 s`, `12 min`, `3 h`, `2 d`. */
export function span(seconds: number): string {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`
  if (seconds < 5_400) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)} h` : `${Math.round(seconds / 86_400)} d`
}

/** Returns the time until then, as `span` does. */
export function spanUntil(time: string): string {
  return span((Date.parse(time) - Date.now()) / 1_000)
}

/** Returns an amount of a meter as people write it: `$1.05`, `61k`, `11 min`, `15`. */
export function amount(meter: LimitUse['meter'], used: number | null): string {
  if (used === null) return '?'
  if (meter === 'cost') return money({ cost_usd: used, price_known: true, cost_estimated: false })
  if (meter === 'seconds') return span(used)
  return meter.endsWith('tokens') ? compact(used) : String(Math.ceil(used))
}

/** The shares of a limit from which it is nearly used: those at which, by default, the model reads of it. */
const CAUTION = 0.7
const WARNING = 0.9

/** Returns the tone of a limit: `share` of it is used. */
export function toneOf(share: number): Tone {
  return share >= WARNING ? 'bad' : share >= CAUTION ? 'warn' : 'good'
}

/**
 * Returns the limit that counts, `$1.88 of $2.00`; without one, the iterations. `between`: the words in place of `of`;
 * `room`: characters; in less than it needs, the share stands in place of what is used, so that no number is cut.
 */
export function limitText({ limit, iteration }: SessionRow, between = ' of ', room = Number.POSITIVE_INFINITY): string {
  if (!limit) return String(iteration)
  const max = amount(limit.meter, limit.max)
  const text = amount(limit.meter, limit.used) + between + max
  const share = `${Math.round(limit.share * 100)}%`
  const shorter = [text.replace(/ |\.00$/g, ''), share + between + max, share]
  return text.length > room ? (shorter.find((one) => one.length <= room) ?? share) : text
}

/**
 * Returns what the limit counts and whose it is, as far as its numbers do not say it; empty for iterations of a run.
 */
export function limitNote({ limit }: Pick<SessionRow, 'limit'>): string {
  if (!limit) return ''
  const { meter, scope } = limit
  return [meter === 'iterations' && scope === 'run' ? '' : unitOf(meter), scopeText(scope)].filter(Boolean).join(', ')
}

/** Returns a limit as people read it: `$2.00`, `300 iterations`, `5 min`. */
export function limitOf(meter: LimitUse['meter'], max: number): string {
  return [amount(meter, max), unitOf(meter)].filter(Boolean).join(' ')
}

/** Returns what a number counts; empty where a sign or a unit of time stands at it. */
function unitOf(meter: LimitUse['meter']): string {
  return meter === 'cost' || meter === 'seconds' ? '' : meter.replaceAll('_', ' ')
}

/** Returns `today`, `this week`, `per minute`; empty for a run. */
export function scopeText(scope: LimitUse['scope']): string {
  if (scope === 'run') return ''
  return scope === 'day' ? 'today' : scope === 'minute' ? 'per minute' : `this ${scope}`
}

/** Returns hours and minutes, here. */
export function clock(time: string): string {
  return new Date(time).toLocaleTimeString('en-GB', { hour: '2-digit', minute: '2-digit' })
}

/** Returns hours and minutes, here; after their date, if that is another day than today. */
export function moment(time: string): string {
  const day = (at: Date) => at.toLocaleDateString('sv')
  const at = new Date(time)
  return day(at) === day(new Date()) ? clock(time) : `${day(at)} ${clock(time)}`
}

/** Returns a time of day with its seconds, where this runs. */
export function clockSeconds(time: string): string {
  return new Date(time).toLocaleTimeString('en-GB')
}

/** Returns a model's name without its maker and its date. */
export function shortModel(model: string | null): string | null {
  return model === null ? null : model.replace(/^.*\/|^claude-/g, '').replace(/-\d{4}-?\d\d-?\d\d$/, '')
}

const ID = /^[\da-f-]{16,}$/i
/** A name that a program has made, such as `ses_e04bfed86fferxG8mGERx3BUGe`. */
const MADE = /^[a-z]{1,8}_\w{16,}$/i

/**
 * Returns the name that a client gave its session, if people can read it: a label says more than a name that a program
 * made.
 */
export function saidName({ name, label }: Pick<SessionRow, 'name' | 'label'>): string | null {
  return name === null || name === '' || ID.test(name) || (label && MADE.test(name)) ? null : name
}

/**
 * Returns what people call a session: its client's name for it; else client, what it is about or its model, and begin.
 */
export function labelOf(row: SessionRow): string {
  const { label, client, model, started_at: at } = row
  return saidName(row) ?? [client ?? 'agent', label ?? shortModel(model), clock(at)].filter(Boolean).join(' · ')
}

/** Returns in a few words what a session is about now: its loop, or its newest tool. */
export function doing({ loop, asking, last_tool: tool }: SessionRow): string {
  if (asking) return `waits ${spanUntil(asking.until)}`
  if (!loop) return tool ?? ''
  const tools = loop.tools.join(' + ') || tool || loop.pattern
  return `${tools} ×${loop.count}${loop.blocked ? ', blocked' : ''}`
}

/**
 * Returns `PAUSED: all agents, since 14:02, until 14:32: the reason`; times of another day have their date. A session
 * is named by the beginning of its id.
 */
export function pausedText({ session, key, upstream, since, until, reason }: Paused['paused'][number]): string {
  const whom = pausedWhom({ session: session?.slice(0, 9), key, upstream })
  const end = until === null ? '' : `, until ${moment(until)}`
  return `PAUSED: ${whom}, since ${moment(since)}${end}${reason === null ? '' : `: ${reason}`}`
}

/** What a head line says where Governor only observes. */
export const OBSERVES = 'observes only: stops and blocks nothing'

/** Returns the numbers of a head line, each with its unit. `isAlert`: a person is needed. */
export function headParts({ at_work, need_you, per_minute, today, limits }: NonNullable<SessionPage['summary']>) {
  const parts: HeadPart[] = [
    { value: String(at_work), unit: ' at work', isAlert: false },
    { value: money(per_minute), unit: '/min', isAlert: false },
  ]
  if (need_you > 0)
    parts.push({ value: String(need_you), unit: ` need${need_you === 1 ? 's' : ''} you`, isAlert: true })
  if (!limits.some(({ scope, meter }) => scope === 'day' && meter === 'cost'))
    parts.push({ value: money(today), unit: ' today', isAlert: false })
  for (const limit of limits) {
    const { meter, scope, used, max, share } = limit
    const unit = [`of ${amount(meter, max)}`, unitOf(meter), scopeText(scope)].filter(Boolean).join(' ')
    parts.push({ value: amount(meter, used), unit: ` ${unit}`, isAlert: share >= WARNING, limit })
  }
  return parts
}

/** A number of a head line, and what stands after it; `limit`: the limit of a scope of time that it is of. */
interface HeadPart {
  readonly value: string
  readonly unit: string
  readonly isAlert: boolean
  readonly limit?: NonNullable<SessionPage['summary']>['limits'][number]
}

/** Returns `7 at work · $2.91/min · 2 need you · $41.20 today`. */
export function headText(summary: NonNullable<SessionPage['summary']>): string {
  const parts = headParts(summary).map(({ value, unit }) => value + unit)
  const [paused] = summary.paused
  if (paused) parts.unshift(pausedText(paused))
  return parts.join(' · ')
}
