/** `governor report`: what agents used, out of the journal. */
import { open } from 'node:fs/promises'
import { ConfigError, type Flags, loadConfig, whyUnreadable } from '../config/load.ts'
import { tokens } from '../core/budget/amount.ts'
import { parseObject } from '../core/json-object.ts'
import { DEFAULT_JOURNAL, type JournalLine, journalFile, OLDER_FILES } from '../telemetry/journal.ts'
import type { Terminal } from './command.ts'
import { fitted, jsonLine } from './session-table.ts'

/** How lines are grouped. A day is one of the place where the command runs. */
const GROUPINGS = {
  day: ({ time }: JournalLine) => new Date(time).toLocaleDateString('sv'),
  model: ({ model }: JournalLine) => model,
  client: ({ client }: JournalLine) => client ?? 'unknown',
  session: ({ session, id }: JournalLine) => session ?? id ?? 'without a name',
} as const
type Grouping = keyof typeof GROUPINGS

/** Returns whether lines can be grouped so. */
export function isGrouping(text: string): text is Grouping {
  return Object.hasOwn(GROUPINGS, text)
}

/** The options of the command. */
export interface ReportOptions {
  readonly by: Grouping | undefined
  readonly since: string | undefined
  readonly json: boolean
  readonly csv: boolean
}

const SUMS = ['runs', 'iterations', 'calls', 'input', 'cached_input', 'cache_write', 'output', 'cost_usd'] as const
/** The columns of the table. */
const SHOWN = SUMS.filter((name) => name !== 'cache_write')
type Sums = Record<(typeof SUMS)[number], number> & { price_known: boolean }

const MILLISECONDS = { h: 3_600_000, d: 86_400_000 } as const

/** Returns a time in milliseconds since the epoch; `undefined` for a text that is none. */
function timeOf(text: string): number | undefined {
  const [, count, unit] = /^(\d{1,5})([hd])$/.exec(text) ?? []
  if (unit === 'h' || unit === 'd') return Date.now() - Number(count) * MILLISECONDS[unit]
  const time = /^\d{4}-\d\d-\d\d$/.test(text) ? new Date(`${text}T00:00`).getTime() : Number.NaN
  return Number.isNaN(time) ? undefined : time
}

/** Yields the lines of a journal, the oldest first; a file that is not there has none. Throws `ConfigError`. */
export async function* journalLines(path: string): AsyncGenerator<JournalLine> {
  for (let older = OLDER_FILES; older >= 0; older--)
    try {
      const file = await open(journalFile(path, older))
      for await (const text of file.readLines()) {
        const line = parseObject(text)
        // A line may be cut where a disk was full.
        if (typeof line?.['time'] === 'string') yield line as unknown as JournalLine
      }
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'ENOENT') continue
      const name = journalFile(path, older)
      throw new ConfigError(`${name}: can't be read (${whyUnreadable(error)}): name a file with --journal`)
    }
}

function add(sums: Sums | undefined, line: JournalLine): Sums {
  const added = SUMS.map((name) => [name, (sums?.[name] ?? 0) + (Number(line[name]) || 0)] as const)
  return {
    ...Object.fromEntries(added),
    price_known: (sums?.price_known ?? true) && line.price_known,
  } as Sums
}

function costText({ cost_usd: cost, price_known: isKnown }: Sums): string {
  if (isKnown) return `$${cost.toFixed(2)}`
  return cost > 0 ? `$${cost.toFixed(2)} + ?` : '?'
}

function tableOf(by: Grouping, rows: readonly (readonly [string, Sums])[], total: Sums, columns: number): string {
  const heads = ['runs', 'iterations', 'calls', 'input', 'cached', 'output', 'cost']
  const cellsOf = (sums: Sums) =>
    SHOWN.map((name, at) =>
      name === 'cost_usd' ? costText(sums) : at < 3 ? String(sums[name]) : tokens(sums[name], 0).used,
    )
  const lines = [...rows, ['total', total] as const].map(([title, sums]) => ({ title, cells: cellsOf(sums) }))
  const widths = heads.map((head, at) => Math.max(head.length, ...lines.map(({ cells }) => cells[at]?.length ?? 0)))
  const numbers = widths.reduce((sum, width) => sum + width + 2, 0)
  const first = Math.max(8, Math.min(columns - numbers, Math.max(by.length, ...lines.map(({ title }) => title.length))))
  const line = (title: string, cells: readonly string[]) =>
    `${fitted(title, first)}${cells.map((cell, at) => `  ${cell.padStart(widths[at] ?? 0)}`).join('')}\n`
  const rule = `${'─'.repeat(first + numbers)}\n`
  const body = lines.map(({ title, cells }) => line(title, cells))
  return `${line(by, heads)}${rule}${body.slice(0, -1).join('')}${rule}${body.at(-1)}`
}

/** Returns a text as a value of a CSV file; a spreadsheet would take some beginnings for a formula. */
function csvText(text: string): string {
  const plain = /^[=+@\t\r-]/.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain
}

/** Adds the journal up. Returns 1 if there is nothing to add. Throws `ConfigError`. */
export async function report(options: ReportOptions, flags: Flags, terminal: Terminal): Promise<number> {
  const { by = 'day', since, json, csv } = options
  const from = since === undefined ? 0 : timeOf(since)
  if (from === undefined) {
    terminal.err(`governor: --since ${since}: expected a day such as 2026-11-01, or how long ago, such as 12h or 7d\n`)
    return 2
  }
  const path = loadConfig(flags, terminal.env).config.usage.journal || DEFAULT_JOURNAL
  const groups = new Map<string, Sums>()
  let total: Sums | undefined
  for await (const line of journalLines(path)) {
    if (Date.parse(line.time) < from) continue
    const key = GROUPINGS[by](line)
    groups.set(key, add(groups.get(key), line))
    total = add(total, line)
  }
  if (!total) {
    const when = since === undefined ? '' : ` since ${since}`
    terminal.err(`governor: ${journalFile(path)} holds no usage${when}: Governor writes it with --journal FILE\n`)
    return 1
  }
  const byName = by === 'day'
  const rows = [...groups].sort(([a, x], [b, y]) => (byName ? (a < b ? -1 : 1) : y.cost_usd - x.cost_usd))
  if (json) for (const [key, sums] of rows) terminal.out(jsonLine({ [by]: key, ...sums }))
  else if (csv) {
    const values = (sums: Sums) => [...SUMS.map((name) => sums[name]), sums.price_known].join(',')
    terminal.out(`${[by, ...SUMS, 'price_known'].join(',')}\n`)
    for (const [key, sums] of rows) terminal.out(`${csvText(key)},${values(sums)}\n`)
  } else terminal.out(tableOf(by, rows, total, terminal.columns?.() ?? 80))
  return 0
}
