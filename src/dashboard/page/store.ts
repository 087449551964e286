/** What the page knows, and what changes it: the list, one session, the connection. */
import { groupOf, labelOf, stateOf } from '../../ops/sessions/words.ts'
import {
  follow,
  listOf,
  RefusedError,
  type SessionDetail,
  type SessionPage,
  type SessionRow,
  type StreamEvent,
  sessionOf,
  type Transcript,
  transcriptOf,
  type Visit,
} from './api.ts'

/** Rows that one request loads, and that are added at a time. */
export const PAGE_ROWS = 200
/** The fewest milliseconds between two loads of a list that changes, and of one that only time changes. */
const LOAD_MS = 1_500
const RELOAD_MS = 60_000
/** Milliseconds without a sign of life after which the page says so. */
const STALE_MS = 12_000

/** A session's place in the list. */
interface Place {
  readonly id: string
  readonly group: number
}

/** What the page knows. */
export interface Store {
  /** Draws all of it; called at most once for each frame. */
  readonly draw: () => void
  isScheduled: boolean
  visit: Visit
  hasAccess: boolean
  /** Why nothing, or nothing new, is shown. */
  problem: string
  connection: string
  isLost: boolean
  isConnected: boolean
  lastId: string
  lastHeard: number
  sort: string
  q: string
  /** Rows that are asked for. */
  wanted: number
  rows: ReadonlyMap<string, SessionRow>
  /** What is shown, and what is shown once no pointer holds the rows. */
  places: readonly Place[]
  nextPlaces: readonly Place[]
  isHeld: boolean
  page: Omit<SessionPage, 'sessions'> | undefined
  isLoading: boolean
  /** What is asked for has changed since the load began. */
  isAskedAgain: boolean
  /** A session has changed since then. */
  isStale: boolean
  loadAt: number
  /** Id or name of a session; empty: none. */
  selected: string
  detail: SessionDetail | undefined
  transcript: Transcript | undefined
  isDetailLoading: boolean
  isDetailStale: boolean
  /** What became of the newest action. */
  said: string
  /** Questions that were announced. */
  readonly announced: Set<string>
}

const NOTHING = {
  rows: new Map(),
  places: [],
  nextPlaces: [],
  page: undefined,
  detail: undefined,
  transcript: undefined,
  said: '',
} satisfies Partial<Store>

const newVisit = (token = ''): Visit => ({ token, over: new AbortController() })

/** Draws in the next frame. */
export function schedule(store: Store): void {
  if (store.isScheduled) return
  store.isScheduled = true
  requestAnimationFrame(() => {
    store.isScheduled = false
    store.draw()
  })
}

/** Changes what is drawn. */
export function change(store: Store, by: Partial<Store>): void {
  Object.assign(store, by)
  schedule(store)
}

/** Shows the form to sign in and nothing else, until somebody does. */
function signOut(store: Store, { token, over }: Visit): void {
  if (over.signal.aborted) return
  over.abort()
  const problem = token ? 'Governor does not know this token.' : ''
  change(store, { ...NOTHING, hasAccess: false, isConnected: false, problem, connection: 'not signed in' })
}

/** Does something with Governor. What comes after the end of the visit changes nothing. */
async function attempt(
  store: Store,
  work: (visit: Visit) => Promise<Partial<Store>>,
  failed: (message: string) => Partial<Store>,
): Promise<void> {
  const { visit } = store
  try {
    const after = await work(visit)
    if (!visit.over.signal.aborted) change(store, after)
  } catch (error) {
    if (error instanceof RefusedError) signOut(store, visit)
    else if (!visit.over.signal.aborted) change(store, failed(error instanceof Error ? error.message : String(error)))
  }
}

const unreachable = (message: string) => ({ problem: `Governor can't be reached: ${message}` })

/** Tells a person who looks elsewhere of a question, once. */
function announce({ announced }: Store, row: SessionRow): void {
  const question = `${row.id} ${row.asking?.limit} ${row.asking?.max}`
  if (!row.asking || announced.has(question)) return
  announced.add(question)
  if (!document.hidden || !('Notification' in window) || Notification.permission !== 'granted') return
  const body = 'Its request waits: extend or stop the run, or it is stopped.'
  const note = new Notification(`${labelOf(row)} ${stateOf(row).text}`, { body, tag: row.id })
  note.onclick = () => {
    window.focus()
    location.hash = row.id
  }
}

/** Rows that a pointer is over keep their places, and those that are gone stay as they were. */
function placed(store: Store, rows: ReadonlyMap<string, SessionRow>): Partial<Store> {
  const nextPlaces = [...rows.values()].map((row) => ({ id: row.id, group: groupOf(row) }))
  if (!store.isHeld || store.places.length === 0) return { rows, nextPlaces, places: nextPlaces }
  return { rows: new Map([...store.rows, ...rows]), nextPlaces }
}

async function load(store: Store): Promise<void> {
  if (store.isLoading) {
    store.isAskedAgain = true
    return
  }
  const began = performance.now()
  change(store, { isLoading: true, isStale: false, isAskedAgain: false })
  await attempt(
    store,
    async (visit) => {
      const query = { limit: String(PAGE_ROWS), sort: store.sort, q: store.q }
      const rows = new Map<string, SessionRow>()
      let page = await listOf(visit, query)
      for (;;) {
        for (const row of page.sessions) rows.set(row.id, row)
        if (page.next === null || rows.size >= store.wanted) break
        page = await listOf(visit, { ...query, cursor: page.next })
      }
      for (const row of rows.values()) announce(store, row)
      const connection = store.isConnected ? 'live' : store.connection
      return { ...placed(store, rows), page, problem: '', connection }
    },
    unreachable,
  )
  // A list of very many sessions is loaded less often: that takes at most a tenth of the time.
  const now = performance.now()
  change(store, { isLoading: false, loadAt: now + Math.max(LOAD_MS, 9 * (now - began)) })
  if (store.isAskedAgain) return load(store)
}

async function loadDetail(store: Store): Promise<void> {
  const id = store.selected
  if (!id || !store.hasAccess) return
  if (store.isDetailLoading) {
    store.isDetailStale = true
    return
  }
  store.isDetailLoading = true
  await attempt(
    store,
    async (visit) => {
      const detail = await sessionOf(visit, id)
      const transcript = detail.transcript ? await transcriptOf(visit, id) : undefined
      return id === store.selected ? { detail, transcript } : {}
    },
    (said) => (id === store.selected ? { said } : {}),
  )
  store.isDetailLoading = false
  if (!store.isDetailStale) return
  store.isDetailStale = false
  return loadDetail(store)
}

function take(store: Store, { id, event, data = '' }: StreamEvent): void {
  const known = { lastId: id ?? store.lastId, lastHeard: performance.now() }
  change(store, { ...known, isConnected: true, connection: store.page ? 'live' : 'loading…', isLost: false })
  if (event === 'reload') load(store)
  if (event !== 'session') return
  const row: SessionRow = JSON.parse(data)
  announce(store, row)
  store.isStale = true
  if (store.rows.has(row.id)) store.rows = new Map(store.rows).set(row.id, row)
  if (row.id === store.selected || row.id === store.detail?.id) loadDetail(store)
}

async function run(store: Store): Promise<void> {
  const { signal } = store.visit.over
  let wait = 500
  while (!signal.aborted) {
    await attempt(
      store,
      async (visit) => {
        await follow(visit, store.lastId, (event) => {
          wait = 500
          if (!signal.aborted) take(store, event)
        })
        return {}
      },
      unreachable,
    )
    if (signal.aborted) return
    change(store, { isConnected: false, connection: 'disconnected: trying again', isLost: true })
    await new Promise((resolve) => setTimeout(resolve, wait))
    wait = Math.min(10_000, wait * 2)
  }
}

const isOver = ({ asking }: Pick<SessionRow, 'asking'>) => asking !== null && Date.parse(asking.until) < Date.now()

/** Once a second: what only time changes. */
function tick(store: Store): void {
  if (!store.hasAccess) return
  const now = performance.now()
  const silence = now - store.lastHeard
  if (store.isConnected && silence > STALE_MS)
    change(store, { connection: `last event ${Math.round(silence / 1_000)} s ago`, isLost: true })
  const rows = [...store.rows.values()]
  // A question whose time is over may end without an event, as its client has left.
  if (rows.some(isOver)) store.isStale = true
  if (store.detail && isOver(store.detail)) loadDetail(store)
  // The title counts on where the page is hidden.
  const isDue = store.isStale ? now >= store.loadAt : !document.hidden && now >= store.loadAt + RELOAD_MS
  if (store.isConnected && isDue && !store.isLoading) load(store)
  if (rows.some(({ asking }) => asking) || store.detail?.asking) schedule(store)
}

/** Begins to follow Governor with a token; without one, as this machine. */
export function signIn(store: Store, token: string): void {
  change(store, { visit: newVisit(token), hasAccess: true, problem: '', connection: 'loading…', lastId: '' })
  run(store)
  loadDetail(store)
}

/** Changes what the list shows. */
export function show(store: Store, by: Partial<Pick<Store, 'sort' | 'q' | 'wanted'>>): void {
  change(store, { wanted: PAGE_ROWS, ...by, isHeld: false })
  load(store)
}

/** Keeps rows at their places while a pointer is over them. */
export function hold(store: Store, isHeld: boolean): void {
  if (store.isHeld !== isHeld) change(store, isHeld ? { isHeld } : { isHeld, places: store.nextPlaces })
}

/** Shows one session beside the list; an empty id closes it. */
export function select(store: Store, selected: string): void {
  if (selected === store.selected) return
  change(store, { selected, detail: undefined, transcript: undefined, said: '' })
  loadDetail(store)
}

/** Does something to the shown session, and says what became of it. */
export function steer(
  store: Store,
  done: string,
  work: (visit: Visit, id: string) => Promise<SessionDetail>,
): Promise<void> {
  const id = store.detail?.id ?? store.selected
  return attempt(
    store,
    async (visit) => {
      const detail = await work(visit, id)
      return store.detail?.id === id ? { detail, said: done } : {}
    },
    (said) => ({ said }),
  )
}

/** Creates the page's knowledge, and begins to follow Governor. */
export function openStore(draw: (store: Store) => void): Store {
  const store: Store = {
    ...NOTHING,
    draw: () => draw(store),
    isScheduled: false,
    visit: newVisit(),
    hasAccess: true,
    problem: '',
    connection: 'loading…',
    isLost: false,
    isConnected: false,
    lastId: '',
    lastHeard: 0,
    sort: 'risk',
    q: '',
    wanted: PAGE_ROWS,
    isHeld: false,
    isLoading: false,
    isAskedAgain: false,
    isStale: false,
    loadAt: 0,
    selected: decodeURIComponent(location.hash.slice(1)),
    isDetailLoading: false,
    isDetailStale: false,
    announced: new Set(),
  }
  addEventListener('hashchange', () => select(store, decodeURIComponent(location.hash.slice(1))))
  setInterval(() => tick(store), 1_000)
  signIn(store, '')
  schedule(store)
  return store
}
