/** `governor top`: the sessions at risk, live, with keys to inspect, extend and stop one. */
import { setTimeout as pause } from 'node:timers/promises'
import type { Terminal } from './command.ts'
import { fitted, headLine, rowLine, sessionLines, sessionTable, wrapped } from './session-table.ts'
import {
  ClientError,
  createSessionsClient,
  type Detail,
  INCOMPLETE,
  type Row,
  type SessionsClient,
} from './sessions-client.ts'

const REFRESH_MS = 1_000
/** Rows that are requested: those with the highest risk. */
const MOST_ROWS = '200'

const ORDERS = {
  risk: () => 0,
  cost: (a: Row, b: Row) => (b.cost_usd ?? 0) - (a.cost_usd ?? 0),
  iteration: (a: Row, b: Row) => b.iteration - a.iteration,
  newest: (a: Row, b: Row) => (a.last_at < b.last_at ? 1 : -1),
} as const
type Order = keyof typeof ORDERS
const ORDER_NAMES = Object.keys(ORDERS) as readonly Order[]

/** An action that waits for its confirmation. */
interface Question {
  readonly action: 'stop' | 'extend'
  readonly id: string
}

/** What is on the screen. */
interface Screen {
  rows: readonly Row[]
  /** There are sessions with less risk that are not shown. */
  hasMore: boolean
  order: Order
  /** Id of the selected session. */
  selected: string | undefined
  detail: Detail | undefined
  question: Question | undefined
  /** What became of the newest key. */
  message: string
  /** Why the newest look at the sessions failed. */
  problem: string
}

const EMPTY_SCREEN: Readonly<Screen> = {
  rows: [],
  hasMore: false,
  order: 'risk',
  selected: undefined,
  detail: undefined,
  question: undefined,
  message: '',
  problem: '',
}

function selectedRow({ rows, selected }: Screen): Row | undefined {
  return rows.find(({ id }) => id === selected) ?? rows[0]
}

const HELP = 'q quit · ↑↓ select · s sort · i inspect · e extend 25% · x stop'

function footer({ question, message, problem, order, hasMore }: Screen): string {
  if (question?.action === 'stop')
    return `stop ${question.id.slice(0, 9)}? its next request gets its last answer (y/n)`
  if (question) return `extend ${question.id.slice(0, 9)} by 25%? (y/n)`
  return message || problem || `${HELP} · by ${order}${hasMore ? ` of ${MOST_ROWS}` : ''}`
}

const LEAST_ITERATIONS = 5

/** One session in `room` lines: as many of its newest iterations as fit, and the beginning of its answer. */
function detailLines(detail: Detail, columns: number, room: number): readonly string[] {
  const { facts, iterations, answer } = sessionLines(detail, columns)
  const said = answer.flatMap((line) => wrapped(line, columns))
  const left = room - facts.length - 1
  const shown = Math.max(LEAST_ITERATIONS, left - (said.length > 0 ? said.length + 1 : 0))
  return [...facts, '', ...iterations.slice(-shown), ...(said.length > 0 ? ['', ...said] : [])].slice(0, room)
}

/** Returns the lines of a screen; the selected row is marked by an arrow, so that no colour is needed. */
function screenLines(screen: Screen, columns: number, lines: number): readonly string[] {
  const last = fitted(footer(screen), columns).trimEnd()
  if (screen.detail) return [...detailLines(screen.detail, columns, lines - 1), last]
  const chosen = selectedRow(screen)
  const room = Math.max(1, lines - 2)
  const at = chosen ? screen.rows.indexOf(chosen) : -1
  const start = Math.max(0, at - room + 1)
  const shown = screen.rows.slice(start, start + room)
  const body =
    shown.length === 0
      ? ['  no sessions yet: point an agent at Governor']
      : shown.map((row) => `${row === chosen ? '>' : ' '} ${rowLine(row, columns - 2)}`)
  return [`  ${headLine(columns - 2)}`, ...body, last]
}

/** Does something that Governor may refuse; returns why it did, or ''. */
async function attempted(act: () => Promise<void>): Promise<string> {
  try {
    await act()
    return ''
  } catch (error) {
    if (!(error instanceof ClientError)) throw error
    return `! ${error.message}`
  }
}

async function refresh(client: SessionsClient, screen: Screen): Promise<void> {
  let isComplete = true
  const problem = await attempted(async () => {
    const { sessions, next, complete } = await client.list({ limit: MOST_ROWS })
    screen.rows = sessions.toSorted(ORDERS[screen.order])
    screen.hasMore = next !== null
    isComplete = complete
    const { detail } = screen
    if (!detail) return
    const newer = await client.session(detail.id)
    // A key may have closed it, or opened another one.
    if (screen.detail?.id === newer.id) screen.detail = newer
  })
  screen.problem = problem || (isComplete ? '' : `! ${INCOMPLETE}`)
}

/** Does what was confirmed; returns what became of it. */
async function answer(client: SessionsClient, { action, id }: Question): Promise<string> {
  const short = id.slice(0, 9)
  if (action === 'extend') {
    const { max_iterations: max } = await client.extend(id, '25%')
    return `${short}: extended${max > 0 ? ` to ${max} iterations` : ''}`
  }
  const { stopping } = await client.stop(id)
  return stopping ? `${short}: its next request is the last` : `${short} had ended already`
}

const ARROWS: Readonly<Record<string, number>> = {
  k: -1,
  j: 1,
  '\u001b[A': -1,
  '\u001b[B': 1,
  // In a terminal's application mode.
  '\u001bOA': -1,
  '\u001bOB': 1,
}

async function pressYesOrNo(client: SessionsClient, screen: Screen, question: Question, key: string) {
  screen.question = undefined
  if (key !== 'y' && key !== 'Y') return
  const failure = await attempted(async () => {
    screen.message = await answer(client, question)
  })
  screen.message ||= failure
  await refresh(client, screen)
}

/** Does what a key asks for. */
async function press(client: SessionsClient, screen: Screen, key: string): Promise<void> {
  const { question } = screen
  screen.message = ''
  if (question) return pressYesOrNo(client, screen, question, key)
  const id = screen.detail?.id ?? selectedRow(screen)?.id
  const by = Object.hasOwn(ARROWS, key) ? ARROWS[key] : undefined
  if (by !== undefined) {
    const chosen = selectedRow(screen)
    const at = (chosen ? screen.rows.indexOf(chosen) : 0) + by
    screen.selected = screen.rows[Math.min(screen.rows.length - 1, Math.max(0, at))]?.id
  } else if (key === '\u001b' || (key === 'i' && screen.detail)) screen.detail = undefined
  else if ((key === 'i' || key === '\r') && id !== undefined)
    screen.message = await attempted(async () => {
      screen.detail = await client.session(id)
    })
  else if (key === 'e' && id !== undefined) screen.question = { action: 'extend', id }
  else if (key === 'x' && id !== undefined) screen.question = { action: 'stop', id }
  else if (key === 's') {
    screen.order = ORDER_NAMES[(ORDER_NAMES.indexOf(screen.order) + 1) % ORDER_NAMES.length] ?? 'risk'
    await refresh(client, screen)
  }
}

/** Several keys may come at once: those that were held down, or pasted. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: keys begin with one
const KEYS = /\u001b(?:\[[\d;]*[A-Za-z~]|O[A-Z])|[\s\S]/gu

function draw(terminal: Terminal, screen: Screen): void {
  const lines = screenLines(screen, terminal.columns?.() ?? 80, terminal.rows?.() ?? 24)
  // Writes from the top, and clears the rest of each line and everything below the last one.
  terminal.out(`\u001b[H${lines.map((line) => `${line}\u001b[K`).join('\r\n')}\u001b[J`)
}

/** Calls back with keys one by one, each after what the one before does; `q` and Ctrl-C end all at once. */
function watchKeys(
  terminal: Terminal,
  screen: Screen,
  quit: AbortController,
  act: (key: string) => Promise<void>,
): () => Promise<void> {
  let keys = Promise.resolve()
  const end = terminal.onKey?.((text) => {
    for (const [key] of text.matchAll(KEYS)) {
      if (key === '\u0003' || (key === 'q' && !screen.question)) quit.abort()
      else keys = keys.then(() => (quit.signal.aborted ? undefined : act(key)))
    }
    // A fault; it is thrown when the keys end.
    keys.catch(() => quit.abort())
  })
  return async () => {
    end?.()
    await keys
  }
}

async function live(url: string | undefined, terminal: Terminal): Promise<void> {
  const screen: Screen = { ...EMPTY_SCREEN }
  const quit = new AbortController()
  for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) terminal.onSignal(name, () => quit.abort())
  const client = createSessionsClient(url, terminal.env, quit.signal)
  const endKeys = watchKeys(terminal, screen, quit, async (key) => {
    await press(client, screen, key)
    if (!quit.signal.aborted) draw(terminal, screen)
  })
  // Uses the alternate screen, so that the terminal shows its earlier content afterwards.
  terminal.out('\u001b[?1049h\u001b[?25l')
  try {
    while (!quit.signal.aborted) {
      const began = performance.now()
      await refresh(client, screen)
      if (quit.signal.aborted) return
      draw(terminal, screen)
      // A list of very many sessions is asked for less often: it takes at most a tenth of the time.
      const rest = Math.max(REFRESH_MS, 9 * (performance.now() - began))
      await pause(rest, undefined, { signal: quit.signal }).catch(() => undefined)
    }
  } finally {
    terminal.out('\u001b[?25h\u001b[?1049l')
    await endKeys()
  }
}

/** Shows sessions until q is pressed; once if the output is no terminal. Throws `ClientError` at the start. */
export async function top(url: string | undefined, terminal: Terminal): Promise<void> {
  const { sessions } = await createSessionsClient(url, terminal.env).list({ limit: MOST_ROWS })
  if (terminal.isInteractive && terminal.onKey) await live(url, terminal)
  else terminal.out(sessionTable(sessions, terminal.columns?.() ?? 80))
}
