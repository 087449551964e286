/** `governor top`: the sessions at risk, live, with keys to inspect, extend and stop one. */

import { setTimeout as pause } from 'node:timers/promises'
import { namesOf } from '../../core/names.ts'
import { ignore } from '../../core/thrown.ts'
import type { SessionDetail, SessionRow } from '../../ops/sessions/api-schema.ts'
import { headText, labelOf, MOST_SEARCHED, nextLimit, OBSERVES, ORDERS } from '../../ops/sessions/labels.ts'
import { type Call, CommandError, type Terminal } from '../command.ts'
import { coloured, fitted, showsColours, wrapped } from '../terminal-text.ts'
import { pausedLines } from './pause.ts'
import { NO_SESSIONS, sessionLines, sessionTable, tableLines } from './sessions.ts'
import { askSession, type Connection, connect, INCOMPLETE, listSessions, NoAnswer } from './sessions-client.ts'

const REFRESH_MS = 1_000
/** Rows that are requested: the first ones in the order of the list. */
const MOST_ROWS = '200'

const ORDER_NAMES = namesOf(ORDERS).filter((name) => !ORDERS[name].isText)

/** What waits for further keys: an action for its confirmation, a search for its words. */
type Question =
  | { readonly action: 'search'; readonly typed: string }
  | { readonly action: 'stop'; readonly row: SessionRow }
  | { readonly action: 'extend'; readonly row: SessionRow; readonly typed: string }

interface Screen {
  rows: readonly SessionRow[]
  total: number
  /** `7 at work · $2.91/min`. */
  head: string
  isPaused: boolean
  order: keyof typeof ORDERS
  /** Words that the shown sessions match. */
  search: string
  selected?: string | undefined
  detail?: SessionDetail | undefined
  question?: Question | undefined
  /** What became of the newest key. */
  message: string
  /** Why the newest look at the sessions failed. */
  problem: string
}

const START: Screen = {
  rows: [],
  total: 0,
  head: 'Governor',
  isPaused: false,
  order: 'risk',
  search: '',
  message: '',
  problem: '',
}

function selectedRow({ rows, selected }: Screen): SessionRow | undefined {
  return rows.find(({ id }) => id === selected) ?? rows[0]
}

/** With the longest order it fits into 80 columns. */
const HELP = 'q quit · ↑↓ · s sort · / search · i inspect · e extend · x stop'

/** Returns true if an extension of a session is a number of iterations, and no share of some other limit. */
const isCounted = ({ max_iterations: max, asking }: SessionRow) => max > 0 && (!asking || asking.limit === 'iterations')

/** Returns the limit of iterations that an extension has: what was typed, or a quarter more. */
function extendedTo({ row, typed }: Question & { readonly action: 'extend' }): number {
  return typed === '' ? nextLimit('iterations', row.max_iterations) : Number(typed)
}

function footer({ question, message, problem, order, search, rows, total }: Screen): string {
  if (question?.action === 'search') return `search name, client, model: ${question.typed}_`
  if (question?.action === 'stop') return `stop ${labelOf(question.row)}? its next request gets its last answer (y/n)`
  if (question) {
    const { row } = question
    if (!isCounted(row)) return `extend ${labelOf(row)} by 25%? (y/n)`
    return `extend ${labelOf(row)}: ${row.max_iterations} → ${extendedTo(question)}? (y/n, or a number)`
  }
  const shown = total > rows.length ? ` · ${rows.length} of ${total}` : ''
  const found = search === '' ? '' : ` · “${search}”`
  return message || problem || `${ORDERS[order].word.toLowerCase()}${found} · ${HELP}${shown}`
}

const LEAST_ITERATIONS = 5

/** Draws the screen; the selected row is marked by an arrow, so that no colour is needed. */
function draw(terminal: Terminal, screen: Screen): void {
  const { columns, rows } = terminal
  const hasColours = showsColours(terminal)
  const lines: string[] = []
  if (screen.detail) {
    // As many of its newest iterations as fit, and the beginning of its answer.
    const { facts, iterations, answer } = sessionLines(screen.detail, columns)
    const said: string[] = answer.length > 0 ? [''] : []
    for (const line of answer) said.push(...wrapped(line, columns))
    const shown = Math.max(LEAST_ITERATIONS, rows - 2 - facts.length - said.length)
    lines.push(...[...facts, '', ...iterations.slice(-shown), ...said].slice(0, rows - 1))
  } else {
    const chosen = selectedRow(screen)
    const room = Math.max(1, rows - 3)
    const start = Math.max(0, (chosen ? screen.rows.indexOf(chosen) : -1) - room + 1)
    const shown = screen.rows.slice(start, start + room)
    const table = tableLines(shown, columns - 2, hasColours, true)
    const colour = screen.isPaused ? 'red' : 'bold'
    lines.push(coloured(fitted(screen.head, columns).trimEnd(), colour, hasColours))
    for (const [at, line] of table.entries()) lines.push(`${at > 0 && shown[at - 1] === chosen ? '>' : ' '} ${line}`)
    if (shown.length === 0)
      lines.push(fitted(`  ${screen.search === '' ? NO_SESSIONS : 'no session matches'}`, columns).trimEnd())
  }
  lines.push(coloured(fitted(footer(screen), columns).trimEnd(), 'grey', hasColours))
  // Writes from the top, and clears the rest of each line and everything below the last one.
  terminal.out(`\u001b[H${lines.join('\u001b[K\r\n')}\u001b[K\u001b[J`)
}

/** Returns why Governor refused something. Throws what is a fault. */
function refusal(error: unknown): string {
  if (!(error instanceof CommandError)) throw error
  return `! ${error.message}`
}

async function refresh(connection: Connection, screen: Screen): Promise<void> {
  const { order: sort, search: q, detail } = screen
  try {
    const { sessions, total, summary, complete, mode } = await listSessions(connection, { limit: MOST_ROWS, sort, q })
    screen.rows = sessions
    screen.total = total
    screen.head = [mode === 'observe' ? OBSERVES : '', summary ? headText(summary) : ''].filter(Boolean).join(' · ')
    screen.isPaused = summary !== null && summary.paused.length > 0
    const newer = detail && (await askSession(connection, detail.id))
    // A key may have closed it, or opened another one.
    if (screen.detail?.id === newer?.id) screen.detail = newer
    screen.problem = complete ? '' : `! ${INCOMPLETE}`
  } catch (error) {
    screen.problem = refusal(error)
  }
}

/** The arrows come in two ways: the second is that of a terminal's application mode. */
const UP: readonly string[] = ['k', '\u001b[A', '\u001bOA']
const DOWN: readonly string[] = ['j', '\u001b[B', '\u001bOB']

function typedAfter(typed: string, key: string, allowed: RegExp): string {
  if (key === '\u007f' || key === '\b') return typed.slice(0, -1)
  return allowed.test(key) ? typed + key : typed
}

const ENTER: readonly string[] = ['\r', '\n']

/** Does what a key means while a question is open. */
async function pressAnswer(connection: Connection, screen: Screen, question: Question, key: string) {
  screen.question = undefined
  if (key === '\u001b') return
  if (question.action === 'search') {
    const typed = typedAfter(question.typed, key, /^[^\p{C}]$/u).slice(0, MOST_SEARCHED)
    screen.search = typed.trim()
    if (!ENTER.includes(key)) screen.question = { ...question, typed }
    return refresh(connection, screen)
  }
  if (question.action === 'extend' && /^[\d\b\u007f]$/.test(key) && isCounted(question.row)) {
    screen.question = { ...question, typed: typedAfter(question.typed, key, /^\d$/).slice(0, 7) }
    return
  }
  if (key !== 'y' && key !== 'Y' && !ENTER.includes(key)) return
  const { action, row } = question
  const name = labelOf(row)
  if (action === 'extend') {
    const by = isCounted(row) ? extendedTo(question) - row.max_iterations : '25%'
    if (typeof by === 'number' && by < 1) {
      screen.message = `! ${name}: the limit is ${row.max_iterations} already, give a larger one`
      return
    }
    const { max_iterations: max } = await askSession(connection, row.id, 'extend', { by })
    screen.message = `${name}: extended${max > 0 ? ` to ${max} iterations` : ''}`
  } else {
    const { stopping } = await askSession(connection, row.id, 'stop', {})
    screen.message = stopping ? `${name}: its next request is the last` : `${name} had ended already`
  }
  await refresh(connection, screen)
}

async function press(connection: Connection, screen: Screen, key: string): Promise<void> {
  const { question } = screen
  screen.message = ''
  if (question) return pressAnswer(connection, screen, question, key)
  const chosen = selectedRow(screen)
  const row = screen.detail ?? chosen
  if (UP.includes(key) || DOWN.includes(key)) {
    const at = (chosen ? screen.rows.indexOf(chosen) : 0) + (UP.includes(key) ? -1 : 1)
    screen.selected = screen.rows[Math.min(screen.rows.length - 1, Math.max(0, at))]?.id
  } else if (key === '\u001b' || (key === 'i' && screen.detail)) screen.detail = undefined
  else if ((key === 'i' || ENTER.includes(key)) && row) screen.detail = await askSession(connection, row.id)
  else if (key === 'e' && row) screen.question = { action: 'extend', row, typed: '' }
  else if (key === 'x' && row) screen.question = { action: 'stop', row }
  else if (key === '/') screen.question = { action: 'search', typed: screen.search }
  else if (key === 's') {
    screen.order = ORDER_NAMES[(ORDER_NAMES.indexOf(screen.order) + 1) % ORDER_NAMES.length] ?? 'risk'
    await refresh(connection, screen)
  }
}

/** Several keys may come at once: those that were held down, or pasted. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: keys begin with one
const KEYS = /\u001b(?:\[[\d;]*[A-Za-z~]|O[A-Z])|[\s\S]/gu

async function live(flags: Call['flags'], terminal: Terminal): Promise<void> {
  const screen: Screen = { ...START }
  const quit = new AbortController()
  for (const name of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) terminal.onSignal(name, () => quit.abort())
  const connection = connect(flags, terminal.env, quit.signal)
  // Keys act one by one, each after what the one before does; q and Ctrl-C end all at once.
  let keys = Promise.resolve()
  const act = async (key: string) => {
    if (quit.signal.aborted) return
    try {
      await press(connection, screen, key)
    } catch (error) {
      const said = refusal(error)
      // That nothing answers is true until the next look, whatever key is pressed.
      if (error instanceof NoAnswer) screen.problem = said
      else screen.message = said
    }
    if (!quit.signal.aborted) draw(terminal, screen)
  }
  const endKeys = terminal.onKey?.((text) => {
    for (const [key] of text.matchAll(KEYS)) {
      if (key === '\u0003' || (key === 'q' && !screen.question)) quit.abort()
      else keys = keys.then(() => act(key))
    }
    // A fault; it is thrown when the keys end.
    keys.catch(() => quit.abort())
  })
  // Uses the alternate screen, so that the terminal shows its earlier content afterwards.
  terminal.out('\u001b[?1049h\u001b[?25l')
  try {
    while (!quit.signal.aborted) {
      const began = performance.now()
      await refresh(connection, screen)
      if (quit.signal.aborted) return
      draw(terminal, screen)
      // A list of very many sessions is asked for less often: it takes at most a tenth of the time.
      const rest = Math.max(REFRESH_MS, 9 * (performance.now() - began))
      await pause(rest, undefined, { signal: quit.signal }).catch(ignore)
    }
  } finally {
    terminal.out('\u001b[?25h\u001b[?1049l')
    endKeys?.()
    await keys
  }
}

/** Shows sessions until q is pressed; once if the output is no terminal. Throws `CommandError` at the start. */
export async function top({ flags }: Call, terminal: Terminal): Promise<number> {
  const { sessions, summary } = await listSessions(connect(flags, terminal.env), { limit: MOST_ROWS })
  if (terminal.isInteractive && terminal.onKey) await live(flags, terminal)
  else terminal.out(pausedLines({ paused: summary?.paused ?? [] }, terminal) + sessionTable(sessions, terminal.columns))
  return 0
}
