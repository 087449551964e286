/** Sessions as text: a table of 80 columns, and one session in full. */
import type { Transcript } from '../ops/sessions/schema.ts'
import type { Detail, Row } from './sessions-client.ts'

/** Control characters, characters that change the direction of text, and invisible characters. */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}]/gu
/** Returns a value as a line of JSON that a terminal shows as it is: with characters nobody sees as escapes. */
export function jsonLine(value: unknown): string {
  const escaped = (unit: string) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`
  const text = JSON.stringify(value).replace(UNSEEN, (unseen) => unseen.split('').map(escaped).join(''))
  return `${text}\n`
}

/** Characters that take two columns, roughly. */
const WIDE =
  /[\u1100-\u115f\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\uffe0-\uffe6]|\p{Emoji_Presentation}/u

const widthOf = (character: string) => (WIDE.test(character) ? 2 : /\p{M}/u.test(character) ? 0 : 1)

/** Cuts a text to so many columns; what clients and models chose may hold anything. */
export function fitted(text: string, columns: number): string {
  const characters = [...text.slice(0, 4 * columns + 8).replace(UNSEEN, '·')]
  let width = characters.reduce((sum, one) => sum + widthOf(one), 0)
  if (width <= columns) return padded(characters, width, columns)
  while (width > columns - 1) width -= widthOf(characters.pop() ?? '')
  return padded([...characters, '…'], width + 1, columns)
}

/** Breaks a text into lines of at most so many columns. */
export function wrapped(text: string, columns: number): readonly string[] {
  const lines: string[] = []
  let line = ''
  let width = 0
  for (const one of text) {
    if (width + widthOf(one) > columns) {
      lines.push(line)
      line = ''
      width = 0
    }
    line += one
    width += widthOf(one)
  }
  return [...lines, line]
}

function padded(characters: readonly string[], width: number, columns: number): string {
  return characters.join('') + ' '.repeat(columns - width)
}

const WORDS: Readonly<Record<Row['state'], string>> = {
  asking: 'asking',
  working: 'working',
  going_round: 'going round',
  near_limit: 'near limit',
  answered: 'answered',
  idle: 'idle',
  stopped: 'stopped',
  completed: 'completed',
  no_response: 'no response',
  context_overflow: 'overflow',
}

type Cost = Pick<Row, 'cost_usd' | 'price_known' | 'cost_estimated'>

/** Returns `$1.20`; `≥$1.20` if a part is missing, `~$1.20` if it is estimated, `?` if nothing is known. */
function dollars({ cost_usd: cost, price_known: isKnown, cost_estimated: isEstimated }: Cost): string {
  if (cost === null) return '?'
  const sign = isKnown ? '' : isEstimated ? '~' : '≥'
  return sign + (cost < 100 ? `$${cost.toFixed(2)}` : `$${Math.round(cost)}`)
}

/** 45s, 12m, 3h, 2d. */
export function span(seconds: number): string {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))}s`
  if (seconds < 5_400) return `${Math.round(seconds / 60)}m`
  return seconds < 172_800 ? `${Math.round(seconds / 3_600)}h` : `${Math.round(seconds / 86_400)}d`
}

/** Describes in a few words what a session is doing. */
function doing({ stopping, terminal_reason: reason, asking, loop, last_tool: tool }: Row): string {
  if (stopping) return 'stopping'
  if (asking) return `extend? ${span(asking.seconds_left)}`
  if (reason !== null) return reason
  if (loop)
    return `${loop.tools.join('+') || tool || loop.pattern} ×${loop.count}${loop.blocked ? ' blocked' : ''}`
  return tool ?? ''
}

interface Column {
  readonly title: string
  readonly width: number
  /** Numbers are aligned to the right. */
  readonly isRight?: boolean
  readonly text: (row: Row) => string
}

/** Together 64 columns, with a space after each; the rest of the line describes what the session is doing. */
const COLUMNS: readonly Column[] = [
  // As many characters of an id as the other commands need.
  { title: 'SESSION', width: 9, text: ({ id }) => id.slice(0, 9) },
  { title: 'STATE', width: 11, text: ({ state }) => WORDS[state] },
  { title: 'RISK', width: 4, isRight: true, text: ({ risk }) => `${Math.round(risk * 100)}%` },
  {
    title: 'ITERATION',
    width: 9,
    isRight: true,
    text: ({ iteration, max_iterations: max }) => (max > 0 ? `${iteration}/${max}` : String(iteration)),
  },
  { title: 'COST', width: 7, isRight: true, text: dollars },
  {
    title: '$/MIN',
    width: 7,
    isRight: true,
    text: (row) => dollars({ ...row, cost_usd: row.cost_usd_per_minute }),
  },
  {
    title: 'LIMIT',
    width: 5,
    isRight: true,
    text: ({ seconds_to_limit: left }) => (left === null ? '-' : span(left)),
  },
  { title: 'AGENTS', width: 6, isRight: true, text: ({ agents }) => `${agents.alive}/${agents.total}` },
]

function cell(text: string, { width, isRight = false }: Column): string {
  const shown = fitted(text, width)
  return isRight ? shown.trimEnd().padStart(width) : shown
}

const restOf = (columns: number) =>
  Math.max(4, columns - COLUMNS.reduce((sum, { width }) => sum + width + 1, 0))

export function headLine(columns: number): string {
  const titles = COLUMNS.map((column) => cell(column.title, column))
  return `${titles.join(' ')} ${fitted('DOING', restOf(columns))}`.trimEnd()
}

export function rowLine(row: Row, columns: number): string {
  const cells = COLUMNS.map((column) => cell(column.text(row), column))
  return `${cells.join(' ')} ${fitted(doing(row), restOf(columns))}`.trimEnd()
}

/** Returns a table of sessions, or a sentence if there are none. */
export function sessionTable(rows: readonly Row[], columns: number): string {
  if (rows.length === 0) return 'no sessions yet: point an agent at Governor\n'
  return `${[headLine(columns), ...rows.map((row) => rowLine(row, columns))].join('\n')}\n`
}

/** Returns a text of several lines without characters that a terminal acts on. */
function shownText(text: string): string {
  return text.replace(/[^\S\n]/g, ' ').replace(UNSEEN, (one) => (one === '\n' ? one : '·'))
}

/** Returns what was said in a session, for people. Texts stand indented under who said them. */
export function transcriptText({ entries, truncated }: Transcript): string {
  if (entries.length === 0) return 'nothing was said since transcripts are kept\n'
  const said = entries.flatMap(({ at, thread, role, text, truncated: isCut, terminal_state: state }) => [
    `${at.slice(0, 10)} ${at.slice(11, 19)} agent ${thread} ${role}${state ? ` (ended: ${state})` : ''}`,
    ...shownText(isCut ? `${text}\n[there was more]` : text)
      .split('\n')
      .map((line) => `  ${line}`.trimEnd()),
    '',
  ])
  return `${[...(truncated ? ['[older texts were dropped]', ''] : []), ...said].join('\n')}`
}

function iterationLine(one: Detail['iterations'][number], columns: number): string {
  const head = [
    one.at.slice(11, 19),
    fitted(`#${one.thread}`, 4),
    String(one.iteration).padStart(5),
    fitted(one.verdict + (one.tier ? ` ${one.tier}` : ''), 12),
    String(one.status).padStart(3),
    `${(one.duration_ms / 1_000).toFixed(1)}s`.padStart(7),
    `${one.usage.input}+${one.usage.output}`.padStart(13),
  ].join(' ')
  return `${head} ${fitted(one.overflow ?? one.tools.join(' '), Math.max(4, columns - head.length - 1))}`.trimEnd()
}

const TAIL = 20

/** One session as lines of text. */
export interface SessionLines {
  /** State, limits, windows and loops. */
  readonly facts: readonly string[]
  /** Its newest iterations, the newest last. */
  readonly iterations: readonly string[]
  /** Its final answer; no line has a character that a terminal acts on. */
  readonly answer: readonly string[]
}

/** Returns one session in full, for people. */
export function sessionLines(session: Detail, columns: number): SessionLines {
  const facts: string[] = []
  const add = (name: string, text: string) =>
    facts.push(fitted(`${`${name}:`.padEnd(13)}${text}`, columns).trimEnd())
  const { terminal, final_answer: answer, loop, asking } = session
  add('session', session.id)
  if (session.name !== null) add('name', session.name)
  add('state', WORDS[session.state] + (session.stopping ? ', stopping' : ''))
  add('risk', `${Math.round(session.risk * 100)}%${session.risk_by ? ` (${session.risk_by})` : ''}`)
  add('model', `${session.model ?? '-'} at ${session.upstream ?? '-'}`)
  add('used', `${session.total_iterations} iterations, ${session.tokens} tokens, ${dollars(session)}`)
  const limits = session.threads.flatMap(({ thread, meters }) =>
    meters.filter(({ max }) => max > 0).map((meter) => ({ thread, ...meter })),
  )
  if (limits.length > 0) facts.push('limits:')
  for (const { thread, name, used, max } of limits)
    add(`  agent ${thread}`, `${name} ${used === null ? '?' : Math.round(used * 100) / 100} of ${max}`)
  for (const { model, base, effective, source } of session.contexts)
    add('context', `${model}: ${effective ?? 'unknown'} of ${base ?? 'unknown'} tokens (${source})`)
  if (loop) {
    const { pattern, tools, count, since, warnings, blocked } = loop
    const reaction = blocked ? 'calls blocked' : `told ${warnings === 1 ? 'once' : `${warnings} times`}`
    add('loop', `${pattern} ${tools.join('+')} ×${count} since iteration ${since}, ${reaction}`)
  }
  if (asking) {
    const left = span(asking.seconds_left)
    const limit = asking.limit.replace('_', ' ')
    add('asking', `limit of ${asking.max} ${limit} reached: extend or stop within ${left}`)
  }
  if (terminal) add('ended', `${terminal.terminal_state}: ${terminal.terminal_reason}`)
  return {
    facts,
    iterations: session.iterations.slice(-TAIL).map((one) => iterationLine(one, columns)),
    answer: answer ? shownText(answer.text).split('\n') : [],
  }
}

/** One session in full, as text. */
export function sessionText(session: Detail, columns: number): string {
  const { facts, iterations, answer } = sessionLines(session, columns)
  return `${[...facts, '', ...iterations, ...(answer.length > 0 ? ['', ...answer] : [])].join('\n')}\n`
}
