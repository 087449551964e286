/** `governor sessions`, `session`, `stop` and `extend`: show what agents do as tables and text, and steer them. */
import { TIME_SCOPES } from '../../core/budget/scopes.ts'
import type { SessionDetail, SessionRow, Transcript } from '../../ops/sessions/api-schema.ts'
import {
  amount,
  clockSeconds,
  doing,
  labelOf,
  limitNote,
  limitOf,
  limitText,
  moment,
  money,
  rate,
  scopeText,
  shortModel,
  span,
  stateOf,
} from '../../ops/sessions/labels.ts'
import type { Call, Terminal } from '../command.ts'
import { type Colour, coloured, counted, fitted, jsonLine, plainLines } from '../terminal-text.ts'
import { pausedLines } from './pause.ts'
import { allSessions, askSession, connect, INCOMPLETE, idOfSession, send } from './sessions-client.ts'

const TITLES = ['SESSION', 'STATE', 'RISK', 'LIMIT', 'COST', '$/MIN', 'CLIENT', 'MODEL', 'DOING']
const NUMBERS: readonly (string | undefined)[] = ['RISK', 'LIMIT', 'COST', '$/MIN']
/** Of an amount below a cent, so that any amount fits its column. */
const DECIMALS = 3
const COLOURS = { bad: 'red', warn: 'yellow', good: 'green', quiet: 'grey' } as const

/** Returns the widths of the columns that fit; a text takes what is left, if that is enough to read. */
function widthsOf(columns: number): readonly number[] {
  const room = Math.max(0, columns - 78)
  const isWide = room >= 40
  // A state is as long as `stopped: iterations`.
  const wanted = [11 + Math.min(17, Math.max(0, room - 5)), 19, 4, 9 + Math.min(5, room), 7, 7]
  wanted.push(isWide ? 13 : 6, isWide ? 15 : 8)
  const widths: number[] = []
  let left = columns
  for (const width of wanted) {
    if (width > left) break
    widths.push(width)
    left -= width + 1
  }
  const isText = !NUMBERS.includes(TITLES[widths.length])
  if (widths.length === 0 || (isText && left > 5)) widths.push(Math.max(1, left))
  return widths
}

/** Returns the titles that fit, and a line for each session; with labels, unnamed ones by client, model and begin. */
export function tableLines(rows: readonly SessionRow[], columns: number, hasColours = false, hasLabels = false) {
  const widths = widthsOf(columns)
  const limitWidth = widths[TITLES.indexOf('LIMIT')] ?? 0
  const lineOf = (cells: readonly string[], stateColour?: Colour) => {
    const shown: string[] = []
    for (const [at, width] of widths.entries()) {
      const text = fitted(cells[at] ?? '', width)
      if (TITLES[at] === 'STATE' && stateColour) shown.push(coloured(text, stateColour, hasColours))
      else shown.push(NUMBERS.includes(TITLES[at]) ? text.trimEnd().padStart(width) : text)
    }
    return shown.join(' ').trimEnd()
  }
  const lines = [coloured(lineOf(TITLES), 'grey', hasColours)]
  for (const row of rows) {
    const { id, name } = row
    const label = labelOf(row)
    const state = stateOf(row)
    const cells = [
      // Without labels, the beginning of the name or id, which the other commands take.
      hasLabels || label === name ? label : `${name?.slice(0, 13) ?? id.slice(0, 9)} ${row.label ?? ''}`.trimEnd(),
      state.text,
      `${Math.round(row.risk * 100)}%`,
      limitText(row, '/', limitWidth),
      money(row, DECIMALS),
      rate(row, DECIMALS),
      row.client ?? '',
      shortModel(row.model) ?? '',
      doing(row),
    ]
    lines.push(lineOf(cells, COLOURS[state.tone]))
  }
  return lines
}

/** What stands in place of a table without rows. */
export const NO_SESSIONS = 'no sessions yet: point an agent at Governor'

export function sessionTable(rows: readonly SessionRow[], columns: number): string {
  if (rows.length === 0) return `${NO_SESSIONS}\n`
  return `${tableLines(rows, columns).join('\n')}\n`
}

/** Returns what was said in a session, for people. Texts stand indented under who said them. */
function transcriptText({ entries, truncated }: Transcript): string {
  if (entries.length === 0) return 'nothing was said since transcripts are kept\n'
  let said = truncated ? '[older texts were dropped]\n\n' : ''
  for (const { at, thread, role, text, truncated: isCut, terminal_state: state } of entries) {
    const end = state ? ` (ended: ${state})` : ''
    said += `${new Date(at).toLocaleDateString('sv')} ${clockSeconds(at)} agent ${thread} ${role}${end}\n`
    for (const line of plainLines(isCut ? `${text}\n[there was more]` : text)) said += `${`  ${line}`.trimEnd()}\n`
    said += '\n'
  }
  return said.slice(0, -1)
}

function iterationLine(one: SessionDetail['iterations'][number], columns: number): string {
  const head = [
    clockSeconds(one.at),
    fitted(`#${one.thread}`, 4),
    String(one.iteration).padStart(5),
    fitted(one.verdict + (one.tier ? ` ${one.tier}` : ''), 12),
    String(one.status).padStart(3),
    `${(one.duration_ms / 1_000).toFixed(1)}s`.padStart(7),
    `${one.usage.input}+${one.usage.output}`.padStart(13),
  ].join(' ')
  return fitted(`${head} ${one.overflow ?? one.tools.join(' ')}`, columns).trimEnd()
}

const TAIL = 20

/** Returns one session in full, for people, in three parts; no line has a character that a terminal acts on. */
export function sessionLines(session: SessionDetail, columns: number) {
  const facts: string[] = []
  const add = (name: string, text: string) => facts.push(fitted(`${`${name}:`.padEnd(13)}${text}`, columns).trimEnd())
  const { terminal, final_answer: answer, loop, asking, agents, seconds_to_limit: left } = session
  add('session', session.id)
  if (session.name !== null) add('name', session.name)
  add('state', stateOf({ ...session, stopping: false, asking: null }).text + (session.stopping ? ', stopping' : ''))
  if (session.limit) add('limit', [limitText(session), limitNote(session)].filter(Boolean).join(' '))
  add('risk', `${Math.round(session.risk * 100)}%${session.risk_by ? ` (${session.risk_by})` : ''}`)
  add('client', `${session.client ?? '-'}, since ${moment(session.started_at)}`)
  add('model', `${session.model ?? '-'} at ${session.upstream ?? '-'}`)
  const perMinute = rate(session)
  const spent = `${money(session)}${perMinute ? `, ${perMinute}/min` : ''}`
  add('used', `${session.total_iterations} iterations, ${session.tokens} tokens, ${spent}`)
  const limitIn = left === null ? '' : `, at a limit in ${span(left)}`
  add('agents', `${agents.alive} of ${agents.total} at work${limitIn}`)
  const whole = { of: 'session', meters: session.meters }
  for (const { of, meters } of [...session.threads.map((one) => ({ of: `agent ${one.thread}`, ...one })), whole])
    for (const { name, used, max } of meters) {
      if (max === 0) continue
      if (!facts.includes('limits:')) facts.push('limits:')
      add(`  ${of}`, `${name.replace('_', ' ')} ${amount(name, used)} of ${amount(name, max)}`)
    }
  for (const { model, used, base, effective, source } of session.contexts)
    add('context', `${model}: ${used ?? '?'} of ${effective ?? base ?? '?'} tokens (${source})`)
  if (loop) {
    const reaction = loop.blocked ? 'calls blocked' : `told ${counted(loop.warnings, 'time')}`
    add('loop', `${loop.pattern} ${loop.tools.join('+')} ×${loop.count} since iteration ${loop.since}, ${reaction}`)
  }
  if (asking) {
    const limit = limitOf(asking.limit, asking.max)
    add('asking', `limit of ${limit} reached: extend or stop within ${span(asking.seconds_left)}`)
  }
  if (terminal) add('ended', `${terminal.terminal_state}: ${terminal.terminal_reason}`)
  const iterations: string[] = []
  for (const one of session.iterations.slice(-TAIL)) {
    iterations.push(iterationLine(one, columns))
    if (one.said) iterations.push(fitted(`         Governor: ${one.said}`, columns).trimEnd())
  }
  return { facts, iterations, answer: answer ? plainLines(answer.text) : [] }
}

/** Prints all sessions. Throws `CommandError` if Governor can't be reached or refuses, as all commands here do. */
export async function sessions({ flags }: Call, terminal: Terminal): Promise<number> {
  const { rows, complete, paused } = await allSessions(connect(flags, terminal.env))
  if (!flags.json) terminal.out(pausedLines({ paused }, terminal))
  if (!complete) terminal.err(`governor: ${INCOMPLETE}\n`)
  terminal.out(flags.json ? rows.map(jsonLine).join('') : sessionTable(rows, terminal.columns))
  return 0
}

/** Returns why a run stays stopped although its limits were raised, and what helps; empty if it goes on. */
function staysText({ state, terminal }: SessionDetail): string {
  if (state !== 'stopped' || !terminal) return ''
  const { terminal_reason: reason, scope = 'run' } = terminal
  if (reason === 'operator') return '; an operator stopped it, so it stays stopped'
  if (reason === 'loop_guard') return '; it was in a loop, so it stays stopped until it is reset, or its user speaks'
  if (scope === 'minute') return '; it was too fast, so it stays stopped until it is reset, or its user speaks'
  if (!TIME_SCOPES.some((one) => one === scope)) return ''
  return `; ${scopeText(scope)}'s limit ended it, and holds: governor budget shows and raises it`
}

/** Prints one session, or what becomes of it by a command. */
export async function oneSession(command: 'session' | 'stop' | 'extend', { args, flags }: Call, terminal: Terminal) {
  const [given = '', by = '25%'] = args
  const connection = connect(flags, terminal.env)
  const id = await idOfSession(connection, given)
  let shown: SessionDetail | Transcript
  let text: string
  if (command === 'stop') {
    shown = await askSession(connection, id, 'stop', {})
    text = `${id}: ${shown.stopping ? 'its next request is the last' : 'had ended already'}\n`
  } else if (command === 'extend') {
    shown = await askSession(connection, id, 'extend', { by: /^\d+$/.test(by) ? Number(by) : by })
    const { iteration, max_iterations: max } = shown
    const now = max > 0 ? `iteration ${iteration} of ${max} now` : 'has no limit of iterations'
    text = `${id}: ${now}${staysText(shown)}\n`
  } else if (flags.transcript) {
    shown = await send<Transcript>(connection, `sessions/${encodeURIComponent(id)}/transcript`, 'entries')
    text = transcriptText(shown)
  } else {
    shown = await askSession(connection, id)
    const { facts, iterations, answer } = sessionLines(shown, terminal.columns)
    text = `${[...facts, '', ...iterations, ...(answer.length > 0 ? ['', ...answer] : [])].join('\n')}\n`
  }
  terminal.out(flags.json ? jsonLine(shown) : text)
  return 0
}
