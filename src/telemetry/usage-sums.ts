/** What agents used, added up out of the journal, for `governor report` and the page *Usage*. */
import { type FileHandle, open } from 'node:fs/promises'
import { rounded } from '../core/counters.ts'
import { type Json, objectsOf, parseObject, textOf } from '../core/json-object.ts'
import { namesOf } from '../core/names.ts'
import { linesOf } from '../core/text/lines.ts'
import { codeOf } from '../core/thrown.ts'
import { journalFile, OLDER_FILES } from './journal.ts'

/** A line of the journal, whatever its members are; it has at least a time. */
export type Line = Json & { readonly time: string }

/** The part of the input that is no result of a tool, and all answers. No tool has such a name. */
const NO_TOOL = '(no tool)'

/** How lines are grouped. A day is one of the place where the process runs; a line has parts of several tools. */
export const GROUPINGS = {
  day: ({ time }: Line) => new Date(time).toLocaleDateString('sv'),
  model: ({ model }: Line) => textOf(model) || 'unknown',
  client: ({ client }: Line) => textOf(client) || 'unknown',
  key: ({ key }: Line) => textOf(key) || 'without a name',
  session: ({ session, id }: Line) => textOf(session) || textOf(id) || 'without a name',
  tool: () => NO_TOOL,
} as const
export type Grouping = keyof typeof GROUPINGS

/** The amounts of no lines, in the order of the columns of a CSV file. */
const AMOUNTS = { runs: 0, iterations: 0, calls: 0, input: 0, cached_input: 0, cache_write: 0, output: 0, cost_usd: 0 }
export const SUM_NAMES = namesOf(AMOUNTS)
export const NO_SUMS = { ...AMOUNTS, price_known: true }
export type Sums = typeof NO_SUMS

/** A file of the journal is there, but can't be read; `cause` says why. */
export class JournalUnreadableError extends Error {
  override readonly name = 'JournalUnreadableError'
  readonly file: string

  constructor(file: string, cause: unknown) {
    super(`${file} can't be read`, { cause })
    this.file = file
  }
}

/** Returns a line of the journal; `undefined` where a full disk cut it, or where it has no time. */
function lineIn(text: string): Line | undefined {
  const line = parseObject(text)
  return line && !Number.isNaN(Date.parse(textOf(line['time']))) ? (line as Line) : undefined
}

/** A file of the journal that is open. */
interface JournalFile {
  readonly name: string
  readonly file: FileHandle
}

/** Yields the lines of a file, and closes it. */
async function* linesInFile({ name, file }: JournalFile): AsyncGenerator<Line> {
  try {
    for await (const text of linesOf(file.createReadStream({ autoClose: false }))) {
      const line = lineIn(text)
      if (line) yield line
    }
  } catch (error) {
    throw new JournalUnreadableError(name, error)
  } finally {
    await file.close()
  }
}

/**
 * Opens the files of a journal that are there, and returns them with the oldest first. The newest is opened first:
 * where the files are renamed meanwhile, one is found twice, and none is missed.
 */
async function filesOf(path: string): Promise<JournalFile[]> {
  const files: JournalFile[] = []
  const known = new Set<string>()
  for (let older = 0; older <= OLDER_FILES; older++) {
    const name = journalFile(path, older)
    try {
      const file = await open(name)
      const { dev, ino } = await file.stat({ bigint: true })
      if (known.has(`${dev} ${ino}`)) await file.close()
      else files.unshift({ name, file })
      known.add(`${dev} ${ino}`)
    } catch (error) {
      if (codeOf(error) === 'ENOENT') continue
      for (const { file } of files) await file.close()
      throw new JournalUnreadableError(name, error)
    }
  }
  return files
}

/**
 * Yields the lines of a journal, the oldest first, then those of `unwritten`; a file that is not there has none.
 * @throws {JournalUnreadableError}
 */
export async function* linesInJournal(path: string, unwritten = () => ''): AsyncGenerator<Line> {
  const files = await filesOf(path)
  try {
    for (let next = files.shift(); next; next = files.shift()) yield* linesInFile(next)
  } finally {
    for (const { file } of files) await file.close()
  }
  for (const text of unwritten().split('\n')) {
    const line = lineIn(text)
    if (line) yield line
  }
}

/**
 * Returns milliseconds since the epoch of `12h`, `7d` or `2026-11-01`, of a day its begin, or its end; else
 * `undefined`.
 */
export function sinceOf(text: string, now: number, isEnd = false): number | undefined {
  const [, count, unit] = /^(\d{1,5})([hd])$/.exec(text) ?? []
  if (unit) return now - Number(count) * (unit === 'h' ? 3_600_000 : 86_400_000)
  const time = new Date(/^\d{4}-\d\d-\d\d$/.test(text) ? `${text}T00:00` : Number.NaN)
  // JavaScript takes 30 February for 2 March.
  const isDay = time.getDate() === Number(text.slice(-2))
  if (isDay && isEnd) time.setDate(time.getDate() + 1)
  return isDay ? time.getTime() : undefined
}

/** Returns an amount of a line, whatever stands there. */
export function numberIn(line: Json, name: string): number {
  const amount = line[name]
  return typeof amount === 'number' && amount >= 0 && amount <= Number.MAX_SAFE_INTEGER ? amount : 0
}

/** Adds a line, or other sums; what is no amount counts nothing. */
export function addLine(sums: Sums, line: Json | Sums): void {
  for (const name of SUM_NAMES) sums[name] += numberIn(line, name)
  sums.price_known &&= line['price_known'] === true
}

/** Returns what a line counts for each tool whose results its prompts held, and the rest of it. */
function* partsByTool(line: Line): Generator<readonly [tool: string, part: Json]> {
  let [input, cost] = [numberIn(line, 'input'), numberIn(line, 'cost_usd')]
  for (const one of objectsOf(line['tools'])) {
    const part = { input: Math.min(input, numberIn(one, 'input')), cost_usd: Math.min(cost, numberIn(one, 'cost_usd')) }
    input -= part.input
    cost -= part.cost_usd
    yield [textOf(one['tool']), { ...part, price_known: line['price_known'] }]
  }
  yield [NO_TOOL, { ...line, input, cost_usd: cost }]
}

/** Returns the groups that a line counts in, by their names, with its part in each. */
export function partsIn(line: Line, by: string, nameOf: (line: Line) => string): Iterable<readonly [string, Json]> {
  return by === 'tool' ? partsByTool(line) : [[nameOf(line), line]]
}

/** What lines have in common, in one cell for each title, and what they add up to. */
export interface Group extends Sums {
  readonly cells: readonly [string, ...string[]]
}

/** Adds a line to the group with the cells of `start`, which becomes one with its first line, and returns the group. */
export function addTo<One extends Group>(groups: Map<string, One>, start: One, line: Json): One {
  const key = start.cells.join('\n')
  const group = groups.get(key) ?? start
  groups.set(key, group)
  addLine(group, line)
  return group
}

/**
 * Returns the groups in the order in which people read them: days and months as they came, then the dearest first. What
 * is no result of a tool is compared with none.
 */
export function inReadingOrder<One extends Group>(by: string, groups: ReadonlyMap<string, One>): One[] {
  const timeOf = ({ cells }: One) => (by === 'day' || by === 'month' ? cells[0] : '')
  const isRest = ({ cells: [name] }: One) => by === 'tool' && name === NO_TOOL
  return [...groups.values()].sort((a, b) => {
    if (isRest(a) !== isRest(b)) return isRest(a) ? 1 : -1
    if (timeOf(a) !== timeOf(b)) return timeOf(a) < timeOf(b) ? -1 : 1
    return b.cost_usd - a.cost_usd || b.input - a.input
  })
}

/** Returns sums without the noise of adding fractions. */
export function plain<One extends Pick<Sums, 'cost_usd'>>(of: One): One {
  return { ...of, cost_usd: rounded(of.cost_usd) }
}

function csvRow(cells: readonly (string | number | boolean)[]): string {
  const values = cells.map((cell) => {
    if (typeof cell !== 'string') return cell
    // A spreadsheet would take some beginnings for a formula.
    const text = /^[=+@\t\r-]/.test(cell) ? `'${cell}` : cell
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
  })
  return `${values.join(',')}\n`
}

/** Returns groups as a CSV file. */
export function csvOf(titles: readonly string[], groups: readonly Group[]): string {
  const names = namesOf(NO_SUMS)
  const rows = groups.map(plain).map((group) => csvRow([...group.cells, ...names.map((name) => group[name])]))
  return csvRow([...titles, ...names]) + rows.join('')
}
