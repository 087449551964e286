/** Sessions as text: a table of 80 columns, and one session in full. */
import type { Transcript } from '../ops/sessions/schema.ts'
import { amount, clock, labelOf, money, rate, shortModel, span, stateOf } from '../ops/sessions/words.ts'
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

/** 45s, 12m, 3h, 2d. */
const shortSpan = (seconds: number) => span(seconds, ['s', 'm', 'h', 'd'])

/** Describes in a few words what a session is doing. */
function doing({ asking, loop, last_tool: tool }: Row): string {
  if (asking) return `waits ${shortSpan(asking.seconds_left)}`
  if (loop) return `${loop.tools.join('+') || tool || loop.pattern} ×${loop.count}${loop.blocked ? ' blocked' : ''}`
  return tool ?? ''
}

/** Returns the beginning of a session's name or id that the other commands take. */
function handleOf(row: Row): string {
  const label = labelOf(row)
  if (label === row.name) return label
  return row.name?.slice(0, 13) ?? row.id.slice(0, 9)
}

/** How a table is drawn. */
export interface TableStyle {
  readonly columns: number
  /** Colours say how urgent a state is. */
  readonly hasColours?: boolean
  /** Sessions are chosen by keys, so that those without a name are shown by client, model and begin. */
  readonly hasLabels?: boolean
}

interface Column {
  readonly title: string
  readonly width: number
  /** Numbers are aligned to the right. */
  readonly isRight?: boolean
  readonly text: (row: Row) => string
}

/** Returns the columns that fit, the most important ones together 78 characters wide. */
function columnsFor({ columns, hasLabels = false }: TableStyle): readonly Column[] {
  const room = Math.max(0, columns - 78)
  const isWide = room >= 40
  const doingWidth = room - (isWide ? 28 : 15)
  return [
    { title: 'SESSION', width: isWide ? 28 : 14 + Math.min(14, room), text: hasLabels ? labelOf : handleOf },
    { title: 'STATE', width: 17, text: (row) => stateOf(row).text },
    { title: 'RISK', width: 4, isRight: true, text: ({ risk }) => `${Math.round(risk * 100)}%` },
    {
      title: 'ITERATION',
      width: 9,
      isRight: true,
      text: ({ iteration, max_iterations: max }) => (max > 0 ? `${iteration}/${max}` : String(iteration)),
    },
    { title: 'COST', width: 6, isRight: true, text: money },
    { title: '$/MIN', width: 6, isRight: true, text: rate },
    { title: 'CLIENT', width: isWide ? 13 : 7, text: ({ client }) => client ?? '' },
    { title: 'MODEL', width: isWide ? 15 : 8, text: ({ model }) => shortModel(model) ?? '' },
    ...(doingWidth > 5 ? [{ title: 'DOING', width: doingWidth, text: doing }] : []),
  ]
}

function cell(text: string, { width, isRight = false }: Column): string {
  const shown = fitted(text, width)
  return isRight ? shown.trimEnd().padStart(width) : shown
}

const COLOURS = { bad: 31, warn: 33, good: 32, quiet: 90 } as const

/** Returns a text as a terminal shows it in a colour, or bold. */
export function coloured(text: string, colour: keyof typeof COLOURS | 'bold', { hasColours }: TableStyle): string {
  if (!hasColours) return text
  return `\u001b[${colour === 'bold' ? 1 : COLOURS[colour]}m${text}\u001b[0m`
}

/** Returns the titles of the columns of a table. */
export function headLine(style: TableStyle): string {
  const titles = columnsFor(style).map((column) => cell(column.title, column))
  return coloured(titles.join(' ').trimEnd(), 'quiet', style)
}

/** Returns one session as a line of a table. */
export function rowLine(row: Row, style: TableStyle): string {
  const cells = columnsFor(style).map((column) => {
    const text = cell(column.text(row), column)
    return column.title === 'STATE' ? coloured(text, stateOf(row).tone, style) : text
  })
  return cells.join(' ').trimEnd()
}

/** Returns a table of sessions, or a sentence if there are none. */
export function sessionTable(rows: readonly Row[], columns: number): string {
  if (rows.length === 0) return 'no sessions yet: point an agent at Governor\n'
  return `${[headLine({ columns }), ...rows.map((row) => rowLine(row, { columns }))].join('\n')}\n`
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
  const add = (name: string, text: string) => facts.push(fitted(`${`${name}:`.padEnd(13)}${text}`, columns).trimEnd())
  const { terminal, final_answer: answer, loop, asking } = session
  add('session', session.id)
  if (session.name !== null) add('name', session.name)
  add('state', stateOf({ ...session, stopping: false, asking: null }).text + (session.stopping ? ', stopping' : ''))
  add('risk', `${Math.round(session.risk * 100)}%${session.risk_by ? ` (${session.risk_by})` : ''}`)
  add('client', `${session.client ?? '-'}, since ${clock(session.started_at)}`)
  add('model', `${session.model ?? '-'} at ${session.upstream ?? '-'}`)
  const perMinute = rate(session)
  const spent = `${money(session)}${perMinute ? `, ${perMinute}/min` : ''}`
  add('used', `${session.total_iterations} iterations, ${session.tokens} tokens, ${spent}`)
  const { agents, seconds_to_limit: left } = session
  add(
    'agents',
    `${agents.alive} of ${agents.total} at work${left === null ? '' : `, at a limit in ${shortSpan(left)}`}`,
  )
  const limits = session.threads.flatMap(({ thread, meters }) =>
    meters.filter(({ max }) => max > 0).map((meter) => ({ thread, ...meter })),
  )
  if (limits.length > 0) facts.push('limits:')
  for (const { thread, name, used, max } of limits)
    add(`  agent ${thread}`, `${name.replace('_', ' ')} ${amount(name, used)} of ${amount(name, max)}`)
  for (const { model, used, base, effective, source } of session.contexts)
    add('context', `${model}: ${used ?? '?'} of ${effective ?? base ?? '?'} tokens (${source})`)
  if (loop) {
    const { pattern, tools, count, since, warnings, blocked } = loop
    const reaction = blocked ? 'calls blocked' : `told ${warnings === 1 ? 'once' : `${warnings} times`}`
    add('loop', `${pattern} ${tools.join('+')} ×${count} since iteration ${since}, ${reaction}`)
  }
  if (asking) {
    const left = shortSpan(asking.seconds_left)
    const limit = asking.limit.replace('_', ' ')
    add('asking', `limit of ${asking.max} ${limit} reached: extend or stop within ${left}`)
  }
  if (terminal) add('ended', `${terminal.terminal_state}: ${terminal.terminal_reason}`)
  return {
    facts,
    iterations: session.iterations
      .slice(-TAIL)
      .flatMap((one) => [
        iterationLine(one, columns),
        ...(one.said ? [fitted(`         Governor: ${one.said}`, columns).trimEnd()] : []),
      ]),
    answer: answer ? shownText(answer.text).split('\n') : [],
  }
}

/** One session in full, as text. */
export function sessionText(session: Detail, columns: number): string {
  const { facts, iterations, answer } = sessionLines(session, columns)
  return `${[...facts, '', ...iterations, ...(answer.length > 0 ? ['', ...answer] : [])].join('\n')}\n`
}
