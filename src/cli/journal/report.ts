/** `governor report`: what agents used, out of the journal. */

import { ConfigError, loadConfig } from '../../config/load.ts'
import { tokens } from '../../core/budget/meters.ts'
import { isNameIn, namesOf } from '../../core/names.ts'
import { dollarText } from '../../core/text/dollars.ts'
import { whyUnreadable } from '../../core/thrown.ts'
import { DEFAULT_JOURNAL, journalFile } from '../../telemetry/journal.ts'
import {
  addLine,
  addTo,
  csvOf,
  GROUPINGS,
  type Group,
  inReadingOrder,
  JournalUnreadableError,
  type Line,
  linesInJournal,
  NO_SUMS,
  partsIn,
  plain,
  type Sums,
  sinceOf,
} from '../../telemetry/usage-sums.ts'
import { type Call, CommandError, type Terminal, UsageError } from '../command.ts'
import { aligned, fitted, jsonLine } from '../terminal-text.ts'

/** How lines are grouped. Days and months are those of the place where the command runs. */
const BY = {
  ...GROUPINGS,
  month: (line: Line) => GROUPINGS.day(line).slice(0, -3),
  agent: (line: Line) =>
    `${GROUPINGS.session(line)} · ${line['thread'] ? `agent ${line['thread']}` : 'other requests'}`,
} as const

/** Returns a time in milliseconds since the epoch: of a day its begin, for `until` its end. Throws `UsageError`. */
function timeOf(flag: 'since' | 'until', text: string): number {
  const time = sinceOf(text, Date.now(), flag === 'until')
  if (time !== undefined) return time
  throw new UsageError(`--${flag} ${text}: expected a day such as 2026-11-01, or how long ago, such as 12h or 7d`)
}

/** Yields the lines of a journal, the oldest first; a file that is not there has none. Throws `ConfigError`. */
export async function* journalLines(path: string): AsyncGenerator<Line> {
  try {
    yield* linesInJournal(path)
  } catch (error) {
    if (!(error instanceof JournalUnreadableError)) throw error
    throw new ConfigError(`${error.file}: can't be read (${whyUnreadable(error.cause)}): name a file with --journal`)
  }
}

interface Row extends Group {
  readonly models: Set<string>
}

/** The columns of amounts, as a table has them. */
const COLUMNS = {
  runs: ({ runs }: Sums) => String(runs),
  iterations: ({ iterations }: Sums) => String(iterations),
  calls: ({ calls }: Sums) => String(calls),
  input: ({ input }: Sums) => tokens(input, 0).used,
  cached: ({ cached_input }: Sums) => tokens(cached_input, 0).used,
  output: ({ output }: Sums) => tokens(output, 0).used,
  cost({ cost_usd: cost, price_known: isKnown }: Sums) {
    if (cost === 0 && !isKnown) return '?'
    const dollars = cost > 0 && cost < 0.00005 ? '<$0.0001' : dollarText(cost, cost > 0 && cost < 0.01 ? 4 : 2)
    return isKnown ? dollars : `${dollars} + ?`
  },
} as const

/** Returns a table in which the last cell before the amounts takes what is left of so many columns. */
function tableOf(titles: readonly string[], groups: readonly Group[], columns: number): string {
  const names: readonly (keyof typeof COLUMNS)[] = titles.includes('tool')
    ? ['input', 'cost']
    : namesOf(COLUMNS).filter((name) => titles.length === 1 || (name !== 'calls' && name !== 'cached'))
  const amounts = [names, ...groups.map((group) => names.map((name) => COLUMNS[name](group)))]
  const lines = aligned(amounts, [...names.keys()])
  let left = columns - `  ${lines[0]?.join('  ')}`.length
  const widths: number[] = []
  for (const [at, title] of titles.entries()) {
    const widest = groups.reduce((most, { cells }) => Math.max(most, cells[at]?.length ?? 0), title.length)
    // A further cell needs room too.
    const width = Math.max(8, Math.min(left - 10 * (titles.length - 1 - at), widest))
    widths.push(width)
    left -= width + 2
  }
  const rows = lines.map((line, at) => {
    const cells = at === 0 ? titles : (groups[at - 1]?.cells ?? [])
    return [...widths.map((width, cell) => fitted(cells[cell] ?? '', width)), ...line].join('  ')
  })
  const rule = '─'.repeat(rows[0]?.length ?? 0)
  // A rule stands below the titles, and one above the total.
  return [rows[0], rule, ...rows.slice(1, -1), rule, rows.at(-1), ''].join('\n')
}

const newRow = (...cells: Row['cells']): Row => ({ cells, models: new Set(), ...NO_SUMS })

/** Adds lines up. `isByClient`: each client has a row of its own. The last row is the total. */
async function rowsOf(lines: AsyncIterable<Line>, by: keyof typeof BY, isByClient: boolean): Promise<readonly Row[]> {
  const rows = new Map<string, Row>()
  const total = isByClient ? newRow('total', '') : newRow('total')
  for await (const line of lines) {
    for (const [name, part] of partsIn(line, by, BY[by])) {
      const start = isByClient ? newRow(name, GROUPINGS.client(line)) : newRow(name)
      addTo(rows, start, part).models.add(GROUPINGS.model(line))
    }
    addLine(total, line)
  }
  return [...inReadingOrder(by, rows), total]
}

async function* linesBetween(path: string, from: number, to: number): AsyncGenerator<Line> {
  for await (const line of journalLines(path)) {
    const time = Date.parse(line.time)
    if (time >= from && time < to) yield line
  }
}

/** Adds the journal up. Throws `UsageError`, `ConfigError`, and `CommandError` if there is nothing to add. */
export async function report({ flags }: Call, terminal: Terminal): Promise<number> {
  const { by = 'day', since, until, json, csv } = flags
  if (!isNameIn(BY, by)) throw new UsageError(`--by ${by}: expected ${namesOf(BY).join(', ')}`)
  const from = since === undefined ? 0 : timeOf('since', since)
  const to = until === undefined ? Number.POSITIVE_INFINITY : timeOf('until', until)
  if (to <= from) throw new UsageError(`--until ${until} is before --since ${since}`)
  const { journal } = loadConfig(flags, terminal.env).config.usage
  const path = journal || DEFAULT_JOURNAL
  // Days that nobody asked for by name say who worked, and with which models.
  const isByClient = flags.by === undefined
  const rows = await rowsOf(linesBetween(path, from, to), by, isByClient)
  if (rows.length === 1) {
    const when = `${since === undefined ? '' : ` since ${since}`}${until === undefined ? '' : ` until ${until}`}`
    const how = journal ? 'a line when a run ends, and at every full hour' : 'it with --journal FILE'
    throw new CommandError(`${journalFile(path)} holds no usage${when}: Governor writes ${how}`)
  }
  const modelsOf = ({ models }: Row) => [...models].sort()
  if (json)
    for (const row of rows.slice(0, -1)) {
      const { cells, models: _, ...sums } = plain(row)
      const who = isByClient ? { client: cells[1], models: modelsOf(row) } : {}
      terminal.out(jsonLine({ [by]: cells[0], ...who, ...sums }))
    }
  else {
    const titles = isByClient ? [by, 'client', 'models'] : [by]
    const withModels = (row: Row): Row => ({ ...row, cells: [...row.cells, modelsOf(row).join(', ')] })
    const shown = isByClient ? rows.map(withModels) : rows
    if (csv) terminal.out(csvOf(titles, shown.slice(0, -1)))
    else terminal.out(tableOf(titles, shown, terminal.isInteractive ? terminal.columns : Number.POSITIVE_INFINITY))
  }
  return 0
}
