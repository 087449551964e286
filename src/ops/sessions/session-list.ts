/** Lists sessions by risk, in pages. */
import * as z from 'zod'
import { globMatches } from '../../core/glob.ts'
import { idOf, idsNamed } from '../../store/session-id.ts'
import type { Store } from '../../store/store.ts'
import type { ListQuery, SessionPage, SessionRow } from './schema.ts'
import { rowOf } from './view.ts'

/** Sessions that are read at a time; other requests have their turn in between. */
const CHUNK = 250
/** Milliseconds for which all pages of a list come from one snapshot of all sessions. */
const SNAPSHOT_MS = 30_000
const MAX_SNAPSHOTS = 4

interface Snapshot {
  readonly id: string
  readonly takenAt: number
  readonly rows: readonly SessionRow[]
  /** False if some sessions could not be read. */
  readonly complete: boolean
}

export interface SessionList {
  /** A page of sessions, the one with the highest risk first; `undefined` if the cursor is invalid. */
  page(query: ListQuery): Promise<SessionPage | undefined>
}

type Filter = Omit<ListQuery, 'limit' | 'cursor'>

function passes(row: SessionRow, { state, model, upstream, id }: Filter): boolean {
  if (state !== undefined && row.state !== state) return false
  if (model !== undefined && !globMatches(model, row.model ?? '')) return false
  if (upstream !== undefined && row.upstream !== upstream) return false
  return id === undefined || row.id.startsWith(id)
}

/** What the order of a list depends on. */
type Place = Pick<SessionRow, 'risk' | 'last_at' | 'id'>

function byRisk(a: Place, b: Place): number {
  return b.risk - a.risk || byTime(a, b)
}

function byTime(a: Place, b: Place): number {
  if (a.last_at !== b.last_at) return a.last_at < b.last_at ? 1 : -1
  return a.id < b.id ? -1 : 1
}

/** Returns the rows of all sessions that match a filter, sorted. */
async function collect(
  store: Store,
  filter: Filter,
  now: number,
): Promise<Pick<Snapshot, 'rows' | 'complete'>> {
  const rows: SessionRow[] = []
  const { name } = filter
  let complete = true
  let read = 0
  const ids = name === undefined ? undefined : idsNamed(name)
  for await (const { key, session } of store.all(ids, () => {
    complete = false
  })) {
    const row = { id: idOf(key), ...rowOf(session, now) }
    if (passes(row, filter)) rows.push(row)
    if (++read % CHUNK === 0) await new Promise((resolve) => setImmediate(resolve))
  }
  return { rows: rows.sort(name === undefined ? byRisk : byTime), complete }
}

/**
 * Where a page begins: in a snapshot, or after a session (its risk, its last time and its id) if the snapshot no
 * longer exists.
 */
const cursorShape = z.tuple([z.string(), z.number(), z.number(), z.string(), z.string()])
type Cursor = z.output<typeof cursorShape>

function cursorOf(text: string): Cursor | undefined {
  try {
    return cursorShape.safeParse(JSON.parse(Buffer.from(text, 'base64url').toString())).data
  } catch {
    return undefined
  }
}

/** Creates a list of the sessions in a store. `newId` returns names for its snapshots. */
export function createSessionList(store: Store, now: () => number, newId: () => string): SessionList {
  let snapshots: readonly Snapshot[] = []

  let last: Promise<unknown> = Promise.resolve()
  const waiting = new Map<string, Promise<Snapshot>>()

  /** One list is collected at a time, so that several do not hold up other requests; one that waits is shared. */
  const take = (filter: Filter): Promise<Snapshot> => {
    const name = JSON.stringify(filter)
    const shared = waiting.get(name)
    if (shared) return shared
    const collected = last
      .catch(() => undefined)
      .then(async () => {
        waiting.delete(name)
        const takenAt = now()
        return { id: newId(), takenAt, ...(await collect(store, filter, takenAt)) }
      })
    last = collected
    waiting.set(name, collected)
    return collected
  }

  /** Returns the snapshot that contains a page, and the index at which the page begins. */
  const placeOf = async (filter: Filter, cursor: Cursor | undefined): Promise<[Snapshot, number]> => {
    if (!cursor) return [await take(filter), 0]
    const [name, begin, risk, last_at, id] = cursor
    const known = snapshots.find((one) => one.id === name)
    if (known) return [known, begin]
    // The snapshot is another replica's, or too old: continues after the last session of the page before.
    const fresh = await take(filter)
    const order = filter.name === undefined ? byRisk : byTime
    const start = fresh.rows.findIndex((row) => order({ risk, last_at, id }, row) < 0 && row.id !== id)
    return [fresh, start === -1 ? fresh.rows.length : start]
  }

  return {
    async page({ limit, cursor: text, ...filter }) {
      const cursor = text === undefined ? undefined : cursorOf(text)
      if (text !== undefined && !cursor) return undefined
      snapshots = snapshots.filter((one) => now() - one.takenAt < SNAPSHOT_MS)
      const [snapshot, start] = await placeOf(filter, cursor)
      const { complete } = snapshot
      const sessions = snapshot.rows.slice(start, start + limit)
      const last = sessions.at(-1)
      if (!last || start + limit >= snapshot.rows.length) return { sessions, next: null, complete }
      // The one that was used last is first: lists that nobody pages through do not push it out.
      snapshots = [snapshot, ...snapshots.filter((one) => one !== snapshot)].slice(0, MAX_SNAPSHOTS)
      const following: Cursor = [snapshot.id, start + limit, last.risk, last.last_at, last.id]
      return { sessions, next: Buffer.from(JSON.stringify(following)).toString('base64url'), complete }
    },
  }
}
