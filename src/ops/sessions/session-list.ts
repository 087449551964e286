/** Lists sessions, those that need a person first, in pages. */
import * as z from 'zod'
import { globMatches } from '../../core/glob.ts'
import { type CostGap, gapOfSum } from '../../core/usage.ts'
import { idOf, idsNamed, type ListedSession, type Store } from '../../store/store.ts'
import type { ListQuery, SessionPage, SessionRow } from './schema.ts'
import { costView, rowOf } from './view.ts'
import { groupOf } from './words.ts'

/** Sessions that are read at a time; other requests have their turn in between. */
const CHUNK = 250
/** Milliseconds for which all pages of a list come from one snapshot of all sessions. */
const SNAPSHOT_MS = 30_000
const MAX_SNAPSHOTS = 4

type Summary = NonNullable<SessionPage['summary']>
type Filter = Omit<ListQuery, 'limit' | 'cursor'> & { readonly hasNames: boolean }

interface Snapshot {
  readonly id: string
  readonly takenAt: number
  readonly hasNames: boolean
  readonly rows: readonly SessionRow[]
  readonly summary: Omit<Summary, 'today'> | null
  /** False if some sessions could not be read. */
  readonly complete: boolean
}

/** Returns a session as a list shows it. `hasNames`: with the names that clients chose. */
export function shownRow({ key, session }: ListedSession, now: number, hasNames: boolean): SessionRow {
  const row = { id: idOf(key), ...rowOf(session, now) }
  return hasNames ? row : { ...row, name: null }
}

function passes(row: SessionRow, { state, model, upstream, id, q }: Filter): boolean {
  if (state !== undefined && row.state !== state) return false
  if (model !== undefined && !globMatches(model, row.model ?? '')) return false
  if (upstream !== undefined && row.upstream !== upstream) return false
  // As the API calls it, as its client does, and as headers name a session that its client does not.
  if (id !== undefined && ![row.id, row.id.slice(1), row.name ?? ''].some((one) => one.startsWith(id))) return false
  if (!q) return true
  const text = [row.name, row.client, row.model, row.upstream, row.id].join(' ').toLowerCase()
  return q.split(' ').every((word) => text.includes(word.toLowerCase()))
}

/** What a list is sorted by, ascending: group of the state, amount, when it came last (both negative), id. */
type Place = readonly [group: number, amount: number, at: number, id: string]

const AMOUNTS = {
  risk: ({ risk }) => risk,
  cost: ({ cost_usd: cost }) => cost ?? -1,
  rate: ({ cost_usd_per_minute: rate }) => rate ?? -1,
  iterations: ({ total_iterations: iterations }) => iterations,
  newest: ({ started_at: at }) => Date.parse(at),
} as const satisfies Readonly<Record<NonNullable<ListQuery['sort']>, (row: SessionRow) => number>>

/** Returns the place of a session. By name, the newest comes first, whatever its state. */
function placeIn(row: SessionRow, { name, sort }: Filter): Place {
  const at = -Date.parse(row.last_at)
  if (name !== undefined && !sort) return [0, 0, at, row.id]
  return [groupOf(row), -AMOUNTS[sort ?? 'risk'](row), at, row.id]
}

function inOrder(a: Place, b: Place): number {
  return a[0] - b[0] || a[1] - b[1] || a[2] - b[2] || Number(a[3] > b[3]) - Number(a[3] < b[3])
}

/** Returns the numbers of a head line. */
function summaryOf(rows: readonly SessionRow[]): Snapshot['summary'] {
  let [at_work, need_you, asking, cost] = [0, 0, 0, 0]
  let gap: CostGap | undefined
  for (const row of rows) {
    const { cost_usd_per_minute: rate, price_known, cost_estimated } = row
    const group = groupOf(row)
    if (group < 2) at_work++
    if (group === 0) need_you++
    if (row.state === 'asking') asking++
    cost += rate ?? 0
    if (!price_known) gap = gapOfSum(gap, cost_estimated ? 'estimate' : 'partial')
  }
  return { sessions: rows.length, at_work, need_you, asking, per_minute: costView(cost, gap) }
}

/** Reads all sessions, and returns those that match a filter, sorted. */
async function takeSnapshot(store: Store, filter: Filter, id: string, takenAt: number): Promise<Snapshot> {
  const { name, hasNames } = filter
  const ids = name === undefined ? undefined : idsNamed(name)
  const rows: SessionRow[] = []
  let complete = true
  const missed = () => {
    complete = false
  }
  for await (const one of store.all(ids, missed)) {
    rows.push(shownRow(one, takenAt, hasNames))
    if (rows.length % CHUNK === 0) await new Promise((resolve) => setImmediate(resolve))
  }
  const shown = rows.filter((row) => passes(row, filter)).map((row) => ({ row, place: placeIn(row, filter) }))
  shown.sort((a, b) => inOrder(a.place, b.place))
  const summary = ids ? null : summaryOf(rows)
  return { id, takenAt, hasNames, rows: shown.map(({ row }) => row), summary, complete }
}

/** Where a page begins: after a place, in a snapshot; in a new one if that no longer exists. */
const cursorShape = z.tuple([z.string(), z.tuple([z.number(), z.number(), z.number(), z.string()])])
type Cursor = z.output<typeof cursorShape>

function cursorOf(text: string): Cursor | undefined {
  try {
    return cursorShape.safeParse(JSON.parse(Buffer.from(text, 'base64url').toString())).data
  } catch {
    return undefined
  }
}

/** Returns a page of sessions; `undefined` if the cursor is invalid. */
export type SessionList = (query: ListQuery, hasNames: boolean) => Promise<SessionPage | undefined>

/** Creates a list of a store's sessions. `newId` names its snapshots; `today`: what all sessions have cost today. */
export function createSessionList(
  store: Store,
  now: () => number,
  newId: () => string,
  today: () => Promise<Summary['today']>,
): SessionList {
  let snapshots: readonly Snapshot[] = []
  let last: Promise<unknown> = Promise.resolve()
  const waiting = new Map<string, Promise<Snapshot>>()
  /** Takes one snapshot at a time, and one for all that ask for the same meanwhile. */
  const take = (filter: Filter): Promise<Snapshot> => {
    const name = JSON.stringify(filter)
    const shared = waiting.get(name)
    if (shared) return shared
    const taken = last
      .catch(() => undefined)
      .then(() => {
        waiting.delete(name)
        return takeSnapshot(store, filter, newId(), now())
      })
    last = taken
    waiting.set(name, taken)
    return taken
  }
  return async ({ limit, cursor: text, ...query }, hasNames) => {
    const filter: Filter = { ...query, hasNames }
    const cursor = text === undefined ? undefined : cursorOf(text)
    if (text !== undefined && !cursor) return undefined
    const [id, place] = cursor ?? []
    snapshots = snapshots.filter((one) => now() - one.takenAt < SNAPSHOT_MS)
    const snapshot = snapshots.find((one) => one.id === id && one.hasNames === hasNames) ?? (await take(filter))
    const { complete, summary, rows } = snapshot
    const after = place ? rows.findIndex((row) => inOrder(place, placeIn(row, filter)) < 0) : 0
    const start = after === -1 ? rows.length : after
    const sessions = rows.slice(start, start + limit)
    const lastRow = sessions.at(-1)
    let next: string | null = null
    if (lastRow && start + limit < rows.length) {
      // The one that was used last is first: lists that nobody pages through do not push it out.
      snapshots = [snapshot, ...snapshots.filter((one) => one !== snapshot)].slice(0, MAX_SNAPSHOTS)
      const following: Cursor = [snapshot.id, [...placeIn(lastRow, filter)]]
      next = Buffer.from(JSON.stringify(following)).toString('base64url')
    }
    return { sessions, next, total: rows.length, summary: summary && { ...summary, today: await today() }, complete }
  }
}
