/** What the page knows, and what changes it: the list, one session, the connection. */
import type { SessionDetail, SessionPage, SessionRow, Transcript } from '../../ops/sessions/api-schema.ts'
import { type GROUP_NAMES, groupOf, labelOf, type ORDERS, stateOf } from '../../ops/sessions/labels.ts'
import {
  type ActionName,
  AnswerError,
  act,
  askJson,
  follow,
  hangUp,
  RefusedError,
  type StreamEvent,
  sign,
  steerAll,
  UnreachableError,
  type Visit,
  visitWith,
} from './requests.ts'

/** Rows that one request loads, and that are added at a time. */
export const PAGE_ROWS = 200
/** The fewest milliseconds between two loads of a list that changes, and of one that only time changes. */
const LOAD_MS = 1_500
const RELOAD_MS = 60_000
/** Milliseconds without a sign of life after which the page says so. */
const STALE_MS = 12_000
/** And after which it connects anew: a network that was away may have left its connections without an end. */
const DEAD_MS = 20_000

interface Shown {
  rows: ReadonlyMap<string, SessionRow>
  /** Ids and groups of the rows that are shown, and of those that are shown once no pointer holds the rows. */
  places: readonly Place[]
  nextPlaces: readonly Place[]
  page: Omit<SessionPage, 'sessions'> | undefined
  detail: SessionDetail | undefined
  transcript: Transcript | undefined
  said: string
}

const NOTHING: Shown = {
  rows: new Map(),
  places: [],
  nextPlaces: [],
  page: undefined,
  detail: undefined,
  transcript: undefined,
  said: '',
}

interface Place {
  readonly id: string
  /** Empty where groups do not stay apart. */
  readonly group: ReturnType<typeof groupOf> | ''
}

/** Returns a part of an address as text; where it is not encoded, as a name with `%` that somebody typed, as it is. */
function decoded(part: string): string {
  try {
    return decodeURIComponent(part)
  } catch {
    return part
  }
}

/** What the page's address says: the page *Usage*, or the id or the name of a session; empty: none. */
function placeNow(): { readonly view: string; readonly selected: string } {
  const [, view] = /^#\/(usage(?:\/.*)?)$/.exec(location.hash) ?? []
  return view ? { view, selected: '' } : { view: '', selected: decoded(location.hash.replace(/^#\/?/, '')) }
}

function createStore(draw: () => void) {
  const visit = visitWith('')
  return {
    ...NOTHING,
    /** Draws the page; `change` calls it in the next frame, once for all changes before that. */
    draw,
    isScheduled: false,
    visit,
    hasAccess: true,
    /** Why nothing, or nothing new, is shown. */
    problem: '',
    /** The stream of events: not open yet, open, or cut and tried again. */
    link: 'opening' as 'opening' | 'open' | 'cut',
    lastId: '',
    lastHeard: 0,
    /** When the stream was asked for. */
    calledAt: 0,
    sort: 'risk' as keyof typeof ORDERS,
    /** Empty: as the order begins by itself. */
    direction: '' as '' | 'asc' | 'desc',
    group: '' as '' | keyof typeof GROUP_NAMES,
    q: '',
    wanted: PAGE_ROWS,
    isHeld: false,
    /** What is being loaded; `asked`: something has asked for it since that began. */
    loads: new Map<'list' | 'detail', 'asked' | 'busy'>(),
    /** A session has changed since the list was asked for. */
    isStale: false,
    /** When a list that is stale may be loaded again. */
    loadAt: 0,
    /** When the session beside the list was loaded. */
    detailAt: 0,
    ...placeNow(),
    /** What a key has asked to do, and with which session, until that stands beside the list. */
    asked: undefined as { readonly action: 'stop' | 'extend'; readonly of: string } | undefined,
    /** How often a limit of time was raised: what shows limits asks again. */
    raised: 0,
    /** The keys are shown. */
    isHelping: false,
    announced: new Set<string>(),
  }
}

export type Store = ReturnType<typeof createStore>

/** Returns how the page stands with Governor. */
export function connectionOf({ hasAccess, link, page, lastHeard }: Store): { text: string; isLost: boolean } {
  if (!hasAccess) return { text: 'not signed in', isLost: false }
  if (link === 'cut') return { text: 'disconnected: trying again', isLost: true }
  const silence = performance.now() - lastHeard
  if (link === 'open' && silence > STALE_MS)
    return { text: `last event ${Math.round(silence / 1_000)} s ago`, isLost: true }
  return { text: link === 'open' && page ? 'live' : 'loading…', isLost: false }
}

/** Changes what the page knows, and draws it in the next frame. */
export function change(store: Store, by: Partial<Store> = {}): void {
  Object.assign(store, by)
  if (store.isScheduled) return
  store.isScheduled = true
  requestAnimationFrame(() => {
    store.isScheduled = false
    store.draw()
  })
}

/** Shows why something failed. Where Governor refuses the token, only the form to sign in is shown from then on. */
function fail(store: Store, { token, over }: Visit, error: unknown, place: 'problem' | 'said' | ''): void {
  if (over.signal.aborted) return
  if (error instanceof RefusedError) {
    over.abort()
    change(store, { ...NOTHING, hasAccess: false, problem: token ? 'Governor does not know this token.' : '' })
    return
  }
  const isSilent = error instanceof Error && error.name === 'AbortError'
  const message = isSilent ? 'no answer came' : error instanceof Error ? error.message : String(error)
  const isWhole = error instanceof UnreachableError || (error instanceof AnswerError && error.status < 500)
  if (place)
    change(
      store,
      place === 'said' ? { said: message } : { problem: isWhole ? message : `Governor can't be reached: ${message}` },
    )
}

/** Returns why something failed that is shown by itself; signs out where Governor refuses the token. */
export function failed(store: Store, error: unknown): string {
  fail(store, store.visit, error, '')
  return error instanceof Error ? error.message : String(error)
}

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

async function loadList(store: Store): Promise<void> {
  const { visit } = store
  const began = performance.now()
  store.isStale = false
  try {
    const query = new URLSearchParams({ limit: String(PAGE_ROWS), sort: store.sort, q: store.q })
    for (const name of ['group', 'direction'] as const) if (store[name]) query.set(name, store[name])
    const isGrouped = store.sort === 'risk'
    const rows = new Map<string, SessionRow>()
    let page: SessionPage
    do {
      page = await askJson(visit, `sessions?${query}`)
      for (const row of page.sessions) rows.set(row.id, row)
      query.set('cursor', page.next ?? '')
    } while (page.next !== null && rows.size < store.wanted)
    const nextPlaces: Place[] = []
    for (const row of rows.values()) {
      announce(store, row)
      nextPlaces.push({ id: row.id, group: isGrouped ? groupOf(row) : '' })
    }
    // Rows that a pointer is over keep their places, and those that are gone stay as they were.
    const isHeld = store.isHeld && store.places.length > 0
    const shown = isHeld ? { rows: new Map([...store.rows, ...rows]) } : { rows, places: nextPlaces }
    if (!visit.over.signal.aborted) change(store, { ...shown, nextPlaces, page, problem: '' })
  } catch (error) {
    store.isStale = true
    fail(store, visit, error, 'problem')
  }
  // A list of very many sessions is loaded less often: that takes at most a tenth of the time.
  const now = performance.now()
  store.loadAt = now + Math.max(LOAD_MS, 9 * (now - began))
}

async function loadDetail(store: Store): Promise<void> {
  const { visit, selected: id } = store
  if (!id || !store.hasAccess) return
  try {
    // The id, or the name that its client gave it.
    const path = `sessions/${encodeURIComponent(id)}`
    const detail = await askJson<SessionDetail>(visit, path)
    const transcript = detail.transcript ? await askJson<Transcript>(visit, `${path}/transcript`) : undefined
    // Why it could not be loaded is over once it is there.
    const said = store.detail ? store.said : ''
    if (id === store.selected && !visit.over.signal.aborted) change(store, { detail, transcript, said })
  } catch (error) {
    const isGone = error instanceof AnswerError && error.status === 404
    if (isGone && id === store.selected) change(store, { detail: undefined, transcript: undefined })
    // What was there is still to be read; the head says that it may be old.
    fail(store, visit, error, id === store.selected && !store.detail ? 'said' : '')
  }
  store.detailAt = performance.now()
}

/** Loads the list or the detail. If something asks for it while it loads, it is loaded once more afterwards. */
async function reload(store: Store, what: 'list' | 'detail'): Promise<void> {
  const { loads } = store
  const isBusy = loads.has(what)
  loads.set(what, 'asked')
  if (isBusy) return
  while (loads.get(what) === 'asked') {
    loads.set(what, 'busy')
    await (what === 'list' ? loadList(store) : loadDetail(store))
  }
  loads.delete(what)
}

function receive(store: Store, { id, event, data = '' }: StreamEvent): void {
  change(store, { lastId: id ?? store.lastId, lastHeard: performance.now(), link: 'open' })
  // Something has changed for all, or the stream has begun anew: nobody knows what was missed.
  if (event === 'reload' || event === 'ready') {
    reload(store, 'list')
    reload(store, 'detail')
  }
  if (event !== 'session') return
  const row: SessionRow = JSON.parse(data)
  announce(store, row)
  store.isStale = true
  if (store.rows.has(row.id)) store.rows = new Map(store.rows).set(row.id, row)
  const { selected, detail } = store
  // A session that is not known yet may begin under the name in the address.
  if (selected && [row.id, row.name].includes(selected)) reload(store, 'detail')
  else if (row.id === detail?.id) reload(store, 'detail')
}

async function followAll(store: Store): Promise<void> {
  const { visit } = store
  const { signal } = visit.over
  let wait = 500
  while (!signal.aborted) {
    store.calledAt = performance.now()
    try {
      await follow(visit, store.lastId, (event) => {
        wait = 500
        if (!signal.aborted) receive(store, event)
      })
    } catch (error) {
      fail(store, visit, error, 'problem')
    }
    if (signal.aborted) return
    change(store, { link: 'cut' })
    await new Promise((resolve) => setTimeout(resolve, wait))
    wait = Math.min(10_000, wait * 2)
  }
}

/** Once a second: what only time changes. */
function tick(store: Store): void {
  const { detail } = store
  if (!store.hasAccess) return
  let isCounting = connectionOf(store).isLost
  for (const one of detail ? [detail, ...store.rows.values()] : store.rows.values()) {
    if (!one.asking) continue
    isCounting = true
    // A question whose time is over may end without an event, as its client has left.
    if (Date.parse(one.asking.until) >= Date.now()) continue
    if (one === detail) reload(store, 'detail')
    else store.isStale = true
  }
  const now = performance.now()
  const { visit, lastHeard, calledAt } = store
  if (now - Math.max(lastHeard, calledAt) > DEAD_MS) {
    store.calledAt = now
    hangUp(visit)
  }
  // The title counts on where the page is hidden.
  const isDue = store.isStale ? now >= store.loadAt : !document.hidden && now >= store.loadAt + RELOAD_MS
  if (store.link === 'open' && isDue && !store.loads.has('list')) reload(store, 'list')
  const isOld = store.selected !== '' && !document.hidden && now >= store.detailAt + RELOAD_MS
  if (store.link === 'open' && isOld && !store.loads.has('detail')) reload(store, 'detail')
  if (isCounting) change(store)
}

/** Begins to follow Governor with a token; without one, as a browser that is signed in, or as this machine. */
export function signIn(store: Store, token: string): void {
  const visit = visitWith(token)
  // Where that fails, the requests that follow say why.
  if (token) sign(visit, 'in').catch(() => undefined)
  change(store, { visit, hasAccess: true, problem: '', link: 'opening', lastId: '' })
  followAll(store)
  reload(store, 'detail')
}

/** Ends what the token and the cookie allow, here and in other tabs. */
export async function signOut(store: Store): Promise<void> {
  const { visit } = store
  await sign(visit, 'out').catch(() => undefined)
  visit.over.abort()
  change(store, NOTHING)
  signIn(store, '')
}

export function show(store: Store, by: Partial<Pick<Store, 'sort' | 'direction' | 'group' | 'q' | 'wanted'>>): void {
  change(store, { wanted: PAGE_ROWS, ...by, isHeld: false })
  reload(store, 'list')
}

/** Keeps rows at their places while a pointer is over them. */
export function hold(store: Store, isHeld: boolean): void {
  if (store.isHeld !== isHeld) change(store, isHeld ? { isHeld } : { isHeld, places: store.nextPlaces })
}

/** Does something to the shown session, and says what became of it. */
export async function steer(
  store: Store,
  action: ActionName,
  body: object,
  done: (after: SessionDetail) => string,
): Promise<void> {
  const { visit } = store
  const id = store.detail?.id ?? store.selected
  try {
    const detail = await act(visit, id, action, body)
    if (store.detail?.id === id && !visit.over.signal.aborted) change(store, { detail, said: done(detail) })
  } catch (error) {
    fail(store, visit, error, 'said')
  }
}

/** Pauses or resumes agents, or raises a limit of time; the list shows what holds then. */
export async function setForAll(store: Store, action: 'pause' | 'resume' | 'budget', body: object = {}): Promise<void> {
  const { visit } = store
  try {
    await steerAll(visit, action, body)
    if (action === 'budget') change(store, { raised: store.raised + 1 })
    if (!visit.over.signal.aborted) await Promise.all([reload(store, 'list'), reload(store, 'detail')])
  } catch (error) {
    fail(store, visit, error, 'problem')
  }
}

/** Asks to stop or to extend the session whose row has the focus, or else the one beside the list. */
export function askFor(store: Store, action: 'stop' | 'extend'): void {
  const row = document.activeElement?.closest<HTMLAnchorElement>('#list a')
  if (row) location.hash = row.hash
  const of = placeNow().selected
  if (of) change(store, { asked: { action, of } })
}

/** Gives the focus to the row that links to a session. */
export function focusRow(link: string, options?: FocusOptions): void {
  const links = document.querySelectorAll<HTMLAnchorElement>('#list a')
  for (const one of links) if (one.hash === link) one.focus(options)
}

/** Creates the page's knowledge, and begins to follow Governor. */
export function openStore(draw: (store: Store) => void): Store {
  const store: Store = createStore(() => draw(store))
  addEventListener('hashchange', () => {
    const { selected, view } = placeNow()
    const closed = store.detail?.id ?? store.selected
    // Who goes elsewhere asks no more.
    if (store.asked?.of !== selected) store.asked = undefined
    if (selected === store.selected) return change(store, { view })
    change(store, { view, selected, detail: undefined, transcript: undefined, said: '' })
    // Who closes a session goes on at its row.
    if (selected === '') focusRow(`#${closed}`)
    reload(store, 'detail')
  })
  setInterval(() => tick(store), 1_000)
  signIn(store, '')
  return store
}
