/** Sends changes of sessions to open pages as server-sent events. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { subscribeToChanges } from '../../store/changes.ts'
import type { SessionKey, Store } from '../../store/store.ts'

/** Pages that may be open at once. */
const MAX_STREAMS = 64
/** Bytes that may wait for a page that does not read; with more, its stream ends, and it reconnects. */
const MAX_WAITING = 4_194_304
/** A page that reconnects within so many changes gets those that it missed. */
const MAX_MISSED = 2_000
/** Milliseconds between two pings. */
const PING_MS = 5_000
/** Sessions that are shown at a time; other requests have their turn in between. */
const CHUNK = 50

interface Change {
  readonly number: number
  readonly key: SessionKey
}

/** One page that is open. */
export interface EventStream {
  readonly response: ServerResponse
  /** True where it may see the names that clients chose for their sessions. */
  readonly hasNames: boolean
}

/** Returns the text of a `session` event's data; `undefined` where the session is gone. */
export type ShowSession = (key: SessionKey, hasNames: boolean) => Promise<string | undefined>

export interface SessionEvents {
  /** Sends changes until the client leaves; resolves to false if too many pages are open. */
  open(request: IncomingMessage, stream: EventStream): Promise<boolean>
  close(): void
}

interface State {
  readonly show: ShowSession
  readonly streams: Set<EventStream>
  /** Identifies this process in event ids: the numbers of other processes mean nothing here. */
  readonly origin: string
  last: number
  missed: Change[]
  end: Promise<() => Promise<void>> | undefined
  timer: NodeJS.Timeout | undefined
}

function write({ response }: EventStream, text: string): void {
  if (response.writableLength > MAX_WAITING) response.destroy()
  else response.write(text)
}

const idLine = ({ origin }: State, number: number) => `id: ${origin}-${number}\n`

async function textOf(state: State, changes: readonly Change[], hasNames: boolean): Promise<string> {
  let text = ''
  for (const { number, key } of changes) {
    const data = await state.show(key, hasNames)
    if (data !== undefined) text += `${idLine(state, number)}event: session\ndata: ${data}\n\n`
  }
  return text
}

/** Shows changed sessions to pages. Each session is read once for all pages that may see the same of it. */
async function sendChanges(state: State, changes: readonly Change[], streams: ReadonlySet<EventStream>): Promise<void> {
  for (let at = 0; at < changes.length; at += CHUNK) {
    const chunk = changes.slice(at, at + CHUNK)
    for (const hasNames of [true, false]) {
      const pages = [...streams].filter((stream) => stream.hasNames === hasNames)
      const text = pages.length === 0 ? '' : await textOf(state, chunk, hasNames)
      if (text !== '') for (const page of pages) write(page, text)
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

async function begin(state: State, request: IncomingMessage, stream: EventStream): Promise<void> {
  stream.response.writeHead(200, {
    'content-type': 'text/event-stream',
    'cache-control': 'no-store',
    'x-accel-buffering': 'no',
  })
  const given = request.headers['last-event-id']
  const missed = missedSince(state, typeof given === 'string' ? given : undefined)
  // A page that gets `reload` loads the whole list, like a new page.
  const word = missed ? 'ready' : 'reload'
  write(
    stream,
    `retry: 1000\n${idLine(state, missed?.[0] ? missed[0].number - 1 : state.last)}event: ${word}\ndata: {}\n\n`,
  )
  const newest = new Map((missed ?? []).map((one) => [one.key, one]))
  await sendChanges(state, [...newest.values()], new Set([stream]))
}

/** Creates the event streams. `failed` is called if the store can't be read. */
export function createSessionEvents(
  store: Store,
  show: ShowSession,
  origin: string,
  failed: (error: unknown) => void,
): SessionEvents {
  const state: State = {
    show,
    streams: new Set(),
    origin,
    last: 0,
    missed: [],
    end: undefined,
    timer: undefined,
  }
  const ping = () => {
    for (const stream of state.streams) write(stream, `${idLine(state, state.last)}event: ping\ndata: {}\n\n`)
  }
  const listen = () => {
    state.timer ??= setInterval(ping, PING_MS).unref()
    // Continues after the last page has left, so that a page that reconnects gets what it missed.
    state.end ??= subscribeToChanges(store, (keys) => {
      const changes = keys.map((key) => ({ number: ++state.last, key }))
      state.missed = [...state.missed, ...changes].slice(-MAX_MISSED)
      sendChanges(state, changes, state.streams).catch(failed)
    })
    return state.end
  }
  return {
    async open(request, stream) {
      if (state.streams.size >= MAX_STREAMS) return false
      await listen().catch((error: unknown) => {
        state.end = undefined
        throw error
      })
      state.streams.add(stream)
      stream.response.once('close', () => state.streams.delete(stream))
      await begin(state, request, stream)
      return true
    },
    close() {
      clearInterval(state.timer)
      for (const { response } of state.streams) response.destroy()
      state.end?.then((end) => end()).catch(() => undefined)
    },
  }
}
