/** Lists sessions, those that need a person first, in pages. */

import { LRUCache } from 'lru-cache'
import * as z from 'zod'
import { namesOf } from '../../core/names.ts'
import type { Pause } from '../../core/operator/pause.ts'
import { globMatches } from '../../core/text/glob.ts'
import { presentable } from '../../core/text/presentable.ts'
import { ignore } from '../../core/thrown.ts'
import { idsNamed, type RecentPlace, type Store } from '../../store/store.ts'
import type { DayCost } from '../../usage/day-cost.ts'
import { type BudgetSources, headLimits, readUses } from '../budget.ts'
import { problem } from '../problem.ts'
import type { ListQuery, SessionPage, SessionRow } from './api-schema.ts'
import { GROUP_NAMES, GROUPS, groupOf, ORDERS, stateOf } from './labels.ts'
import { pausesView } from './pauses.ts'
import { costView, IDLE_AFTER, rowOf, type TimeUse, type Viewer } from './view.ts'

/** Sessions that are read at a time; other requests have their turn in between. */
const CHUNK = 250
/** Milliseconds for which all pages of a list come from one snapshot of all sessions. */
const SNAPSHOT_MS = 30_000
const MAX_SNAPSHOTS = 4
/**
 * Of very many sessions, a list by risk sorts so many of those that were used last, and all that may be at work; the
 * others follow by their last use, each read with its page.
 */
const SORTED = 250

type Filter = Omit<ListQuery, 'limit' | 'cursor'> & Pick<Viewer, 'seesNames' | 'pauses'>

/** What a list shows beside the sessions of its store. */
interface ListSources extends BudgetSources {
  readonly store: Store
  readonly now: () => number
  /** Names snapshots. */
  readonly newId: () => string
  /** What all sessions have cost today. */
  readonly dayCost: Pick<DayCost, 'today'>
  readonly pauses: { readonly current: readonly Pause[] }
}

/** What a list is sorted by: group of the state, what its order asks for, when it came last (negative), id. */
type Place = [group: number, by: number | string, at: number, id: string]

function passes(row: SessionRow, { state, group, model, upstream, key, id, q }: Filter): boolean {
  if (group !== undefined && groupOf(row) !== GROUP_NAMES[group]) return false
  if (state !== undefined && row.state !== state) return false
  if (model !== undefined && !globMatches(model, row.model ?? '')) return false
  if (key !== undefined && row.key !== key) return false
  if (upstream !== undefined && row.upstream !== upstream) return false
  // As the API calls it, as its client does, and as headers name a session that its client does not.
  if (id !== undefined && ![row.id, row.id.slice(1), row.name ?? ''].some((one) => one.startsWith(id))) return false
  if (!q) return true
  const said = [row.state, stateOf(row).text, groupOf(row)]
  const names = [row.name, row.label, row.client, row.key, row.model, row.upstream, row.id]
  const text = [...names, ...said].join(' ').toLowerCase()
  return row.name === presentable(q) || q.split(' ').every((word) => text.includes(word.toLowerCase()))
}

/** Returns the place of a session. By name, the newest comes first, whatever its state. */
function placeIn(row: SessionRow, { name, sort }: Filter): Place {
  const at = -Date.parse(row.last_at)
  if (name !== undefined && !sort) return [0, 0, at, row.id]
  const by = ORDERS[sort ?? 'risk'].of(row)
  return [(sort ?? 'risk') === 'risk' ? GROUPS.indexOf(groupOf(row)) : 0, by, at, row.id]
}

const compared = <Value extends number | string>(a: Value, b: Value) => Number(a > b) - Number(a < b)

/** Returns how to compare two places, as `sort` does. */
function orderOf({ sort = 'risk', direction }: Filter): (a: Place, b: Place) => number {
  const sign = (direction ?? (ORDERS[sort].isText ? 'asc' : 'desc')) === 'asc' ? 1 : -1
  return (a, b) => a[0] - b[0] || sign * compared(a[1], b[1]) || a[2] - b[2] || compared(a[3], b[3])
}

/**
 * Returns the sessions that match a filter, sorted. `summary`: of all; `null` if only those of a name were read.
 * `rest`: where the sessions begin that follow unsorted, `total` of all together.
 */
async function takeSnapshot(sources: ListSources, filter: Filter, id: string) {
  const { store } = sources
  const now = sources.now()
  const { name, seesNames, pauses, sort = 'risk', direction, ...others } = filter
  const inOrder = orderOf(filter)
  const ids = name === undefined ? undefined : idsNamed(name)
  const found: { readonly row: SessionRow; readonly place: Place }[] = []
  const counts = { sessions: 0, asking: 0 }
  const groups = { need_you: 0, failed: 0, working: 0, waiting: 0, ended: 0 }
  const spend = { cost: 0, unpriced_answers: 0, estimated_prices: 0 }
  let complete = true
  const missed = () => {
    complete = false
  }
  const isPlain = sort === 'risk' && direction !== 'asc' && !ids && Object.values(others).every((value) => !value)
  const recent = isPlain ? await store.recent?.(SORTED, IDLE_AFTER).catch(ignore) : undefined
  const known = new Map<string, TimeUse>()
  for await (const one of store.all(ids, missed, recent?.keys)) {
    const row = rowOf(one, { now, seesNames, pauses, usedOf: await readUses(sources, one.session, known) })
    counts.sessions++
    for (const group of namesOf(groups)) if (groupOf(row) === GROUP_NAMES[group]) groups[group]++
    if (row.state === 'asking') counts.asking++
    spend.cost += row.cost_usd_per_minute ?? 0
    if (!row.price_known) spend[row.cost_estimated ? 'estimated_prices' : 'unpriced_answers']++
    if (passes(row, filter)) found.push({ row, place: placeIn(row, filter) })
    if (counts.sessions % CHUNK === 0) await new Promise((resolve) => setImmediate(resolve))
  }
  found.sort((a, b) => inOrder(a.place, b.place))
  const rest = recent?.next
  const total = rest ? recent.total : found.length
  if (rest) {
    groups.ended += total - counts.sessions
    counts.sessions = total
  }
  const { need_you, working } = groups
  const summary = ids ? null : { ...counts, groups, need_you, at_work: need_you + working, per_minute: costView(spend) }
  return { id, seesNames, found, inOrder, summary, complete, rest, total }
}

/** Reads so many of the sessions that follow unsorted; fewer if some have been forgotten. */
async function readRest(sources: ListSources, count: number, from: RecentPlace, viewer: Viewer) {
  const { store } = sources
  const rows: SessionRow[] = []
  const recent = await store.recent?.(count, 0, from).catch(ignore)
  let complete = recent !== undefined
  const missed = () => {
    complete = false
  }
  for await (const one of store.all(undefined, missed, recent?.keys ?? []))
    rows.push(rowOf(one, { ...viewer, usedOf: await readUses(sources, one.session) }))
  return { rows, next: recent?.next, complete }
}

type Snapshot = Awaited<ReturnType<typeof takeSnapshot>>

/** Where a page begins: in a snapshot, or a new one if that no longer exists, after a place; or in what follows it. */
const cursorShape = z.tuple([
  z.string(),
  z.tuple([z.number(), z.union([z.number(), z.string()]), z.number(), z.string()]).nullable(),
  z.tuple([z.number(), z.int().min(0)]).nullable(),
])

function cursorOf(text: string): z.output<typeof cursorShape> {
  try {
    return cursorShape.parse(JSON.parse(Buffer.from(text, 'base64url').toString()))
  } catch {
    throw problem('invalid_cursor')
  }
}

/** Creates a list of a store's sessions: a function that returns a page, and throws if its cursor is invalid. */
export function createSessionList(sources: ListSources) {
  const { now, newId, dayCost, pauses } = sources
  const snapshots = new LRUCache<string, Snapshot>({ max: MAX_SNAPSHOTS, ttl: SNAPSHOT_MS, perf: { now } })
  let last: Promise<unknown> = Promise.resolve()
  const waiting = new Map<string, Promise<Snapshot>>()
  /** Takes one snapshot at a time, and one for all that ask for the same meanwhile. */
  const take = (filter: Filter): Promise<Snapshot> => {
    const name = JSON.stringify(filter)
    const shared = waiting.get(name)
    if (shared) return shared
    const begin = () => {
      waiting.delete(name)
      return takeSnapshot(sources, filter, newId())
    }
    const taken = last.then(begin, begin)
    last = taken
    waiting.set(name, taken)
    return taken
  }
  return async (
    { limit, cursor, ...query }: ListQuery,
    seesNames: boolean,
  ): Promise<Omit<SessionPage, 'mode' | 'signed_in'>> => {
    const [id = '', after, from] = cursor === undefined ? [] : cursorOf(cursor)
    const known = snapshots.get(id)
    const snapshot =
      known?.seesNames === seesNames ? known : await take({ ...query, seesNames, pauses: pauses.current })
    const { found, inOrder, summary, total, rest } = snapshot
    const left = from ? [] : after ? found.filter(({ place }) => inOrder(after, place) < 0) : found
    const shown = left.slice(0, limit)
    const sessions = shown.map(({ row }) => row)
    let { complete } = snapshot
    let next: z.output<typeof cursorShape> | null = null
    const begin = left.length > limit ? undefined : (from ?? rest)
    if (begin) {
      const more = await readRest(sources, limit - shown.length, begin, {
        now: now(),
        seesNames,
        pauses: pauses.current,
      })
      sessions.push(...more.rows)
      complete &&= more.complete
      if (more.next) next = [snapshot.id, null, [...more.next]]
    } else if (left.length > limit) {
      next = [snapshot.id, shown.at(-1)?.place ?? null, null]
    }
    // Lists that nobody pages through push no other out.
    if (next && snapshot !== known) snapshots.set(snapshot.id, snapshot)
    const nextText = next && Buffer.from(JSON.stringify(next)).toString('base64url')
    const page = { sessions, next: nextText, total, complete }
    if (!summary) return { ...page, summary }
    const [day, limits] = await Promise.all([dayCost.today(), headLimits(sources)])
    const since = new Date(day.since).toISOString()
    const cost = { today: { ...costView(day.counts), since } }
    return { ...page, summary: { ...summary, ...cost, limits, paused: pausesView(pauses.current, now()) } }
  }
}
