/** Sends changes of sessions to open pages as server-sent events. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Pause } from '../../core/operator/pause.ts'
import type { SessionKey, Store } from '../../store/store.ts'
import { type BudgetSources, readUses } from '../budget.ts'
import { rowOf } from './view.ts'

/** The most pages that are open at once, and the milliseconds between two pings to them. */
const MAX_STREAMS = 64
const PING_MS = 5_000
/** Milliseconds after which a page gives its place to a new one; if it reads, it connects again and misses nothing. */
const LEAST_OPEN_MS = 10_000
/** Bytes that may wait for a page that does not read; with more, its stream ends, and it reconnects. */
const MAX_WAITING = 4_194_304
/** A page that reconnects within so many changes gets those that it missed. */
const MAX_MISSED = 2_000
/** Sessions that are shown at a time; other requests have their turn in between. */
const CHUNK = 50

interface Change {
  readonly number: number
  readonly key: SessionKey
}

/** A page that is open. `seesNames`: it may see the names that clients chose for their sessions. */
interface EventStream {
  readonly response: ServerResponse
  /** In milliseconds since the epoch. */
  readonly openedAt: number
  readonly seesNames: boolean
  /** Whether it still may read. */
  readonly holds: () => boolean
}

interface EventSources extends BudgetSources {
  readonly store: Store
  /** Returns the time in milliseconds since the epoch. */
  readonly now: () => number
  readonly newId: () => string
  readonly pauses: { readonly current: readonly Pause[] }
}

interface State {
  readonly sources: EventSources
  readonly streams: Set<EventStream>
  /** Identifies this process in event ids: the numbers of other processes mean nothing here. */
  readonly origin: string
  last: number
  missed: readonly Change[]
}

/** Ends the page that has the most to read, or was open for longest, so that another one can open. */
function makePlace({ streams, sources: { now } }: State): void {
  const [first] = [...streams].sort(
    (a, b) => b.response.writableLength - a.response.writableLength || a.openedAt - b.openedAt,
  )
  if (!first || (first.response.writableLength === 0 && now() - first.openedAt < LEAST_OPEN_MS)) return
  streams.delete(first)
  first.response.destroy()
}

function writeText({ response }: EventStream, text: string): void {
  if (response.writableLength > MAX_WAITING) response.destroy()
  else response.write(text)
}

/** Returns an event whose id names a change: a page that reconnects after it gets what came since. */
function eventText({ origin }: State, number: number, event: string, data = '{}'): string {
  return `id: ${origin}-${number}\nevent: ${event}\ndata: ${data}\n\n`
}

/** Shows changed sessions to pages. Each session is read once for all pages that may see the same of it. */
async function sendChanges(state: State, changes: readonly Change[], streams: ReadonlySet<EventStream>): Promise<void> {
  const { store, now, pauses } = state.sources
  for (let at = 0; at < changes.length; at += CHUNK) {
    for (const seesNames of [true, false]) {
      const pages = [...streams].filter((stream) => stream.seesNames === seesNames && stream.holds())
      if (pages.length === 0) continue
      let text = ''
      for (const { number, key } of changes.slice(at, at + CHUNK)) {
        const session = await store.get(key)
        if (!session) continue
        const usedOf = await readUses(state.sources, session)
        const row = rowOf({ key, session }, { now: now(), seesNames, pauses: pauses.current, usedOf })
        text += eventText(state, number, 'session', JSON.stringify(row))
      }
      if (text !== '') for (const page of pages) writeText(page, text)
    }
    await new Promise((resolve) => setImmediate(resolve))
  }
}

/** Returns the changes after the last event that a page got; `undefined` if they are no longer known. */
function missedSince({ origin, missed, last }: State, id: string | undefined): readonly Change[] | undefined {
  const [, from, number] = /^([\w-]+)-(\d+)$/.exec(id ?? '') ?? []
  if (from !== origin) return undefined
  const since = Number(number)
  const first = missed[0]?.number ?? last + 1
  return since > last || since < first - 1 ? undefined : missed.filter((change) => change.number > since)
}

/** Creates the event streams. */
export function createSessionEvents(sources: EventSources) {
  const { store, now, newId, emit } = sources
  const state: State = { sources, streams: new Set(), origin: newId(), last: 0, missed: [] }
  const failed = (error: unknown) => emit({ kind: 'ops_failed', fault: String(error).slice(0, 200) })
  let end: (() => void) | undefined
  const timer = setInterval(() => {
    for (const stream of state.streams)
      if (stream.holds()) writeText(stream, eventText(state, state.last, 'ping'))
      else stream.response.end()
  }, PING_MS).unref()
  const changed = (keys: readonly SessionKey[]) => {
    const changes = keys.map((key) => ({ number: ++state.last, key }))
    state.missed = [...state.missed, ...changes].slice(-MAX_MISSED)
    sendChanges(state, changes, state.streams).catch(failed)
  }
  return {
    /** Sends changes until the client leaves; resolves to false if too many pages are open. */
    async open({ headers }: IncomingMessage, page: Omit<EventStream, 'openedAt'>): Promise<boolean> {
      const stream = { ...page, openedAt: now() }
      if (state.streams.size >= MAX_STREAMS) makePlace(state)
      if (state.streams.size >= MAX_STREAMS) return false
      // Goes on after the last page has left, so that one that reconnects gets what it missed.
      end ??= store.subscribe(changed)
      state.streams.add(stream)
      stream.response.once('close', () => state.streams.delete(stream))
      stream.response.writeHead(200, {
        'content-type': 'text/event-stream',
        'cache-control': 'no-store',
        'x-accel-buffering': 'no',
      })
      const missed = missedSince(state, headers['last-event-id']?.toString())
      const number = missed?.[0] ? missed[0].number - 1 : state.last
      // A page that gets `reload` loads the whole list, like a new page.
      writeText(stream, `retry: 1000\n${eventText(state, number, missed ? 'ready' : 'reload')}`)
      const newest = new Map<SessionKey, Change>()
      for (const change of missed ?? []) {
        // Last, so that the ids of the events grow: a page that is cut off again goes on after the last of them.
        newest.delete(change.key)
        newest.set(change.key, change)
      }
      await sendChanges(state, [...newest.values()], new Set([stream]))
      return true
    },
    /** Has all pages load their lists again. */
    reload(): void {
      for (const stream of state.streams) writeText(stream, eventText(state, state.last, 'reload'))
    },
    close(): void {
      clearInterval(timer)
      for (const { response } of state.streams) response.destroy()
      end?.()
    },
  }
}
