/** `governor report`: what agents used, out of the journal. */

import { createReadStream } from 'node:fs'
import { ConfigError, loadConfig, whyUnreadable } from '../config/load.ts'
import { tokens } from '../core/budget/meters.ts'
import { type Json, parseObject, textOf } from '../core/json-object.ts'
import { isNameIn, namesOf } from '../core/names.ts'
import { codeOf } from '../core/thrown.ts'
import { DEFAULT_JOURNAL, journalFile, OLDER_FILES } from '../telemetry/journal.ts'
import { type Call, CommandError, type Terminal, UsageError } from './command.ts'
import { linesOf } from './lines.ts'
import { aligned, fitted, jsonLine } from './terminal-text.ts'

/** How lines are grouped. A day is one of the place where the command runs. */
const GROUPINGS = {
  day: ({ time }: Line) => new Date(time).toLocaleDateString('sv'),
  model: ({ model }: Line) => textOf(model) || 'unknown',
  client: ({ client }: Line) => textOf(client) || 'unknown',
  key: ({ key }: Line) => textOf(key) || 'without a name',
  session: ({ session, id }: Line) => textOf(session) || textOf(id) || 'without a name',
} as const

/** The amounts of no lines, in the order of the columns of a CSV file. */
const AMOUNTS = { runs: 0, iterations: 0, calls: 0, input: 0, cached_input: 0, cache_write: 0, output: 0, cost_usd: 0 }
const SUMS = namesOf(AMOUNTS)
const NOTHING = { ...AMOUNTS, price_known: true }
type Sums = typeof NOTHING

/** Returns a time in milliseconds since the epoch. Throws `UsageError` for another text. */
function timeOf(text: string): number {
  const [, count, unit] = /^(\d{1,5})([hd])$/.exec(text) ?? []
  if (unit) return Date.now() - Number(count) * (unit === 'h' ? 3_600_000 : 86_400_000)
  const time = new Date(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : Number.NaN)
  // JavaScript takes 30 February for 2 March.
  if (time.getDate() === Number(text.slice(-2))) return time.getTime()
  throw new UsageError(`--since ${text}: expected a day such as 2026-11-01, or how long ago, such as 12h or 7d`)
}

/** A line of the journal, whatever its members are; it has at least a time. */
type Line = Json & { readonly time: string }

/** Yields the lines of a journal, the oldest first; a file that is not there has none. Throws `ConfigError`. */
export async function* journalLines(path: string): AsyncGenerator<Line> {
  for (let older = OLDER_FILES; older >= 0; older--)
    try {
      for await (const text of linesOf(createReadStream(journalFile(path, older)))) {
        const line = parseObject(text)
        // A line may be cut where a disk was full, and lack what another version of Governor does not write.
        if (line && !Number.isNaN(Date.parse(textOf(line['time'])))) yield line as Line
      }
    } catch (error) {
      if (codeOf(error) === 'ENOENT') continue
      const name = journalFile(path, older)
      throw new ConfigError(`${name}: can't be read (${whyUnreadable(error)}): name a file with --journal`)
    }
}

function add(sums: Sums, line: Line): void {
  for (const name of SUMS) {
    const amount = line[name]
    if (typeof amount === 'number' && amount >= 0 && amount <= Number.MAX_SAFE_INTEGER) sums[name] += amount
  }
  sums.price_known &&= line['price_known'] === true
}

function tableOf(by: string, groups: readonly (readonly [string, Sums])[], columns: number): string {
  const rows = [['runs', 'iterations', 'calls', 'input', 'cached', 'output', 'cost']]
  for (const [, sums] of groups) {
    const { runs, iterations, calls, input, cached_input, output, cost_usd, price_known: isKnown } = sums
    const amounts = [input, cached_input, output].map((amount) => tokens(amount, 0).used)
    const cost = isKnown || cost_usd > 0 ? `$${cost_usd.toFixed(2)}${isKnown ? '' : ' + ?'}` : '?'
    rows.push([String(runs), String(iterations), String(calls), ...amounts, cost])
  }
  const lines = aligned(rows, [0, 1, 2, 3, 4, 5, 6])
  const numbers = `  ${lines[0]?.join('  ')}`.length
  let widest = by.length
  for (const [title] of groups) widest = Math.max(widest, title.length)
  const first = Math.max(8, Math.min(columns - numbers, widest))
  const rule = `${'─'.repeat(first + numbers)}\n`
  let table = ''
  for (const [at, cells] of lines.entries()) {
    // A rule stands below the titles, and one above the total.
    if (at === 1 || at === lines.length - 1) table += rule
    table += `${fitted(groups[at - 1]?.[0] ?? by, first)}  ${cells.join('  ')}\n`
  }
  return table
}

/** Returns a text as a value of a CSV file; a spreadsheet would take some beginnings for a formula. */
function csvText(text: string): string {
  const plain = /^[=+@\t\r-]/.test(text) ? `'${text}` : text
  return /[",\r\n]/.test(plain) ? `"${plain.replaceAll('"', '""')}"` : plain
}

/** Adds the journal up. Throws `UsageError`, `ConfigError`, and `CommandError` if there is nothing to add. */
export async function report({ flags }: Call, terminal: Terminal): Promise<number> {
  const { by = 'day', since, json, csv } = flags
  if (!isNameIn(GROUPINGS, by)) throw new UsageError(`--by ${by}: expected ${namesOf(GROUPINGS).join(', ')}`)
  const keyOf = GROUPINGS[by]
  const from = since === undefined ? 0 : timeOf(since)
  const path = loadConfig(flags, terminal.env).config.usage.journal || DEFAULT_JOURNAL
  const groups = new Map<string, Sums>()
  const total = { ...NOTHING }
  for await (const line of journalLines(path)) {
    if (Date.parse(line.time) < from) continue
    const key = keyOf(line)
    const sums = groups.get(key) ?? { ...NOTHING }
    groups.set(key, sums)
    add(sums, line)
    add(total, line)
  }
  if (groups.size === 0) {
    const when = since === undefined ? '' : ` since ${since}`
    throw new CommandError(`${journalFile(path)} holds no usage${when}: Governor writes it with --journal FILE`)
  }
  const rows = [...groups].sort(([a, x], [b, y]) => (by !== 'day' ? y.cost_usd - x.cost_usd : a < b ? -1 : 1))
  if (json) for (const [key, sums] of rows) terminal.out(jsonLine({ [by]: key, ...sums }))
  else if (csv) {
    terminal.out(`${[by, ...Object.keys(NOTHING)].join(',')}\n`)
    for (const [key, sums] of rows) terminal.out(`${[csvText(key), ...Object.values(sums)].join(',')}\n`)
  } else terminal.out(tableOf(by, [...rows, ['total', total]], terminal.columns))
  return 0
}
