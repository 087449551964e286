/** `governor top`: the sessions at risk, live, with keys to look at one, to extend it and to stop it. */
import { setTimeout as pause } from 'node:timers/promises'
import type { ExitCode, Terminal } from './command.ts'
import { fitted, headLine, rowLine, sessionTable, sessionText } from './session-table.ts'
import {
  ClientError,
  createSessionsClient,
  type Detail,
  type Row,
  type SessionsClient,
} from './sessions-client.ts'

const REFRESH_MS = 1_000
/** Rows that are asked for: those with the highest risk. */
const MOST_ROWS = '200'

const ORDERS = {
  risk: () => 0,
  cost: (a: Row, b: Row) => b.cost_usd - a.cost_usd,
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
export interface Screen {
  rows: readonly Row[]
  order: Order
  /** Id of the selected session. */
  selected: string | undefined
  detail: Detail | undefined
  question: Question | undefined
  message: string
}

const EMPTY_SCREEN: Readonly<Screen> = {
  rows: [],
  order: 'risk',
  selected: undefined,
  detail: undefined,
  question: undefined,
  message: '',
}

function selectedRow({ rows, selected }: Screen): Row | undefined {
  return rows.find(({ id }) => id === selected) ?? rows[0]
}

const HELP = 'q quit · ↑↓ select · s sort · i inspect · e extend 25% · x stop'

function footer({ question, message, order }: Screen): string {
  if (question?.action === 'stop')
    return `stop ${question.id.slice(0, 9)}? its next request gets its last answer (y/n)`
  if (question) return `extend ${question.id.slice(0, 9)} by 25%? (y/n)`
  return message || `${HELP} · by ${order}`
}

/** Returns the lines of a screen; the selected row is marked by an arrow, so that no colour is needed. */
function screenLines(screen: Screen, columns: number, lines: number): readonly string[] {
  const last = fitted(footer(screen), columns).trimEnd()
  if (screen.detail) {
    const text = sessionText(screen.detail, columns).split('\n')
    return [...text.slice(0, lines - 1), last]
  }
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

async function refresh(client: SessionsClient, screen: Screen): Promise<void> {
  try {
    const { sessions } = await client.list({ limit: MOST_ROWS })
    screen.rows = sessions.toSorted(ORDERS[screen.order])
    if (screen.detail) screen.detail = await client.session(screen.detail.id)
    if (screen.message.startsWith('!')) screen.message = ''
  } catch (error) {
    if (!(error instanceof ClientError)) throw error
    screen.message = `! ${error.message}`
  }
}

async function answer(client: SessionsClient, screen: Screen, { action, id }: Question): Promise<void> {
  try {
    await (action === 'stop' ? client.stop(id) : client.extend(id, '25%'))
    screen.message =
      action === 'stop' ? `${id.slice(0, 9)}: its next request is the last` : `${id.slice(0, 9)}: extended`
  } catch (error) {
    if (!(error instanceof ClientError)) throw error
    screen.message = `! ${error.message}`
  }
}

function move(screen: Screen, by: number): void {
  const chosen = selectedRow(screen)
  const at = chosen ? screen.rows.indexOf(chosen) : 0
  screen.selected = screen.rows[Math.min(screen.rows.length - 1, Math.max(0, at + by))]?.id
}

/** Does what a key asks for; returns false for the one that quits. */
export async function press(client: SessionsClient, screen: Screen, key: string): Promise<boolean> {
  const { question } = screen
  if (key === '\u0003' || (key === 'q' && !question)) return false
  screen.message = ''
  if (question) {
    screen.question = undefined
    if (key === 'y' || key === 'Y') await answer(client, screen, question)
    await refresh(client, screen)
    return true
  }
  const id = screen.detail?.id ?? selectedRow(screen)?.id
  if (key === 'k' || key === '\u001b[A') move(screen, -1)
  else if (key === 'j' || key === '\u001b[B') move(screen, 1)
  else if (key === '\u001b' || (key === 'i' && screen.detail)) screen.detail = undefined
  else if ((key === 'i' || key === '\r') && id !== undefined)
    screen.detail = await client.session(id).catch(() => undefined)
  else if (key === 'e' && id !== undefined) screen.question = { action: 'extend', id }
  else if (key === 'x' && id !== undefined) screen.question = { action: 'stop', id }
  else if (key === 's') {
    screen.order = ORDER_NAMES[(ORDER_NAMES.indexOf(screen.order) + 1) % ORDER_NAMES.length] ?? 'risk'
    await refresh(client, screen)
  }
  return true
}

function draw(terminal: Terminal, screen: Screen): void {
  const lines = screenLines(screen, terminal.columns?.() ?? 80, terminal.rows?.() ?? 24)
  // From the top; each line and what is below the last one is cleared.
  terminal.out(`\u001b[H${lines.map((line) => `${line}\u001b[K`).join('\r\n')}\u001b[J`)
}

async function live(
  client: SessionsClient,
  terminal: Terminal,
  onKey: NonNullable<Terminal['onKey']>,
): Promise<void> {
  const screen: Screen = { ...EMPTY_SCREEN }
  const quit = new AbortController()
  let keys = Promise.resolve()
  const endKeys = onKey((key) => {
    keys = keys.then(async () => {
      if (!(await press(client, screen, key))) quit.abort()
      else draw(terminal, screen)
    })
  })
  // The alternate screen, so that what was there before is there again afterwards.
  terminal.out('\u001b[?1049h\u001b[?25l')
  try {
    while (!quit.signal.aborted) {
      await refresh(client, screen)
      draw(terminal, screen)
      await pause(REFRESH_MS, undefined, { signal: quit.signal }).catch(() => undefined)
    }
  } finally {
    endKeys()
    terminal.out('\u001b[?25h\u001b[?1049l')
  }
}

/** Shows sessions until q; once, where nobody watches. Returns 1 where Governor can't be reached at first. */
export async function top(url: string | undefined, terminal: Terminal): Promise<ExitCode> {
  try {
    const client = createSessionsClient(url, terminal.env)
    const { sessions } = await client.list({ limit: MOST_ROWS })
    if (terminal.isInteractive && terminal.onKey) await live(client, terminal, terminal.onKey)
    else terminal.out(sessionTable(sessions, terminal.columns?.() ?? 80))
    return 0
  } catch (error) {
    if (!(error instanceof ClientError)) throw error
    terminal.err(`governor: ${error.message}\n`)
    return 1
  }
}
