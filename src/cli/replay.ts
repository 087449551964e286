/** `governor replay FILE…`: what the loop guard would have done to recorded conversations. */
import { statSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { loadConfig, whyUnreadable } from '../config/load.ts'
import { loopPolicyOf, registryOf } from '../config/policies.ts'
import type { HarnessRegistry } from '../core/harness/match.ts'
import type { LoopPolicy } from '../core/loop/escalation.ts'
import type { ExitCode, Flags, Terminal } from './command.ts'
import { type Judged, judge } from './judge.ts'
import { conversationsIn, type Line, readRecording } from './recording.ts'

export interface ReplayOptions {
  /** `-` is standard input. */
  readonly files: readonly string[]
  readonly json: boolean
}

interface Finding extends Judged {
  /** The conversation's own, or where it stands. */
  readonly id: string
}

const READ_SIZE = 1_048_576

/** Work that is done before a bar could be read gets none. */
const LONG_WORK = 8_388_608
const BAR_WIDTH = 30

/** So many lines of a file that are skipped are named; of the others only the number is said. */
const NAMED_LINES = 10

/** The bytes of a file, piece by piece. Each piece is only good until the next one is asked for. */
async function* bytesOf(file: string): AsyncGenerator<Uint8Array> {
  const handle = await open(file)
  try {
    const buffer = Buffer.allocUnsafe(READ_SIZE)
    for (;;) {
      const { bytesRead } = await handle.read(buffer, 0, READ_SIZE)
      if (bytesRead === 0) return
      yield buffer.subarray(0, bytesRead)
    }
  } finally {
    await handle.close()
  }
}

const BYTE_ORDER_MARK = '\ufeff'

/** The text of a line, without the mark that some editors and shells begin files with. */
function decoded(line: Buffer, number: number): string {
  const text = line.toString('utf8')
  return number === 1 && text.startsWith(BYTE_ORDER_MARK) ? text.slice(1) : text
}

/** The lines of a stream, each decoded once. Bytes are only put together where a line spans several chunks. */
async function* linesOf(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Line> {
  let rest: Buffer[] = []
  let number = 0
  let offset = 0
  for await (const chunk of chunks) {
    const bytes = Buffer.from(chunk.buffer, chunk.byteOffset, chunk.byteLength)
    let start = 0
    for (let end = bytes.indexOf(10); end !== -1; end = bytes.indexOf(10, start)) {
      const last = bytes.subarray(start, end)
      const line = rest.length === 0 ? last : Buffer.concat([...rest, last])
      rest = []
      number++
      yield { text: decoded(line, number), number, offset: offset + end + 1 }
      start = end + 1
    }
    if (start < bytes.length) rest.push(Buffer.from(bytes.subarray(start)))
    offset += bytes.length
  }
  if (rest.length === 0) return
  number++
  yield { text: decoded(Buffer.concat(rest), number), number, offset }
}

/** How far the work is, as a bar on standard error; shows nothing where nobody watches or it is soon done. */
function progressOf(terminal: Terminal, total: number) {
  const isShown = terminal.isInteractive && total >= LONG_WORK
  let shown = -1
  return {
    at(done: number): void {
      const percent = Math.floor((100 * done) / total)
      if (!isShown || percent === shown) return
      shown = percent
      const filled = Math.round((BAR_WIDTH * Math.min(percent, 100)) / 100)
      terminal.err(`\r${'█'.repeat(filled)}${'░'.repeat(BAR_WIDTH - filled)} ${percent} %`)
    },
    /** Takes the bar away, so that something can be said. */
    clear(): void {
      if (shown !== -1) terminal.err('\r\u001b[K')
      shown = -1
    },
  }
}

function sizeOf(file: string): number {
  try {
    return file === '-' ? 0 : statSync(file).size
  } catch {
    return 0
  }
}

interface Count {
  conversations: number
  calls: number
  warned: number
  blocked: number
  stopped: number
}

/** Judges the conversation in one line; a text says why there is none. */
function judgeLine(
  text: string,
  name: string,
  policy: LoopPolicy,
  registry: HarnessRegistry,
  count: Count,
): Finding[] | string {
  let recording: ReturnType<typeof readRecording>
  try {
    recording = readRecording(text)
  } catch {
    return 'not JSON'
  }
  if (!recording) return 'not a conversation: expected an object with messages or input'
  const id = recording.id ?? name
  const { conversation } = recording
  const judged = judge(conversation, policy, registry)
  count.conversations++
  for (let at = 0; at < conversation.length; at++) count.calls += conversation.calls(at).length
  if (judged.some(({ verdict }) => verdict === 'warn')) count.warned++
  if (judged.some(({ verdict }) => verdict !== 'warn')) count.blocked++
  if (judged.some(({ verdict }) => verdict === 'stop')) count.stopped++
  return judged.map((finding) => ({ id, ...finding }))
}

const COLOURS: Readonly<Record<Judged['verdict'], string>> = { warn: '33', block: '31', stop: '35' }

/** Longer ids are cut, in the middle, as they often differ in their ends. */
const MAX_ID = 60

/** What a recording says must not steer the terminal it is shown on. */
function printable(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters it is about
  return text.replace(/[\u0000-\u001f\u007f-\u009f]/g, '\ufffd')
}

function shortened(text: string): string {
  const shown = printable(text)
  if (shown.length <= MAX_ID) return shown
  return `${shown.slice(0, MAX_ID / 2)}…${shown.slice(1 - MAX_ID / 2)}`
}

function tableOf(findings: readonly Finding[], isColoured: boolean): string {
  if (findings.length === 0) return ''
  const rows = findings.map(({ id, call_index, verdict, pattern, tool }) => ({
    verdict,
    cells: [shortened(id), String(call_index), verdict, pattern, shortened(tool)],
  }))
  const heads = ['conversation', 'call', 'verdict', 'pattern', 'tool']
  const widths = heads.map((head, column) =>
    rows.reduce((width, { cells }) => Math.max(width, cells[column]?.length ?? 0), head.length),
  )
  const pad = (cells: readonly string[]) =>
    cells.map((cell, column) =>
      column === 1 ? cell.padStart(widths[1] ?? 0) : cell.padEnd(widths[column] ?? 0),
    )
  const paint = (text: string, colour: string) => (isColoured ? `\u001b[${colour}m${text}\u001b[0m` : text)
  const lines = rows.map(({ verdict, cells }) =>
    pad(cells)
      .map((cell, column) => (column === 2 ? paint(cell, COLOURS[verdict]) : cell))
      .join('  ')
      .trimEnd(),
  )
  return `${[paint(pad(heads).join('  ').trimEnd(), '1'), ...lines].join('\n')}\n\n`
}

function summaryOf({ conversations, calls, warned, blocked, stopped }: Count): string {
  const number = (count: number, one: string, many: string) =>
    `${count.toLocaleString('en')} ${count === 1 ? one : many}`
  return `${number(conversations, 'conversation', 'conversations')}, ${number(calls, 'tool call', 'tool calls')}: ${warned} warned, ${blocked} with calls blocked, ${stopped} stopped.\n`
}

const NOTHING_READ =
  'governor: no conversation was read: each line is expected to be one JSON object with messages or input, such as a request body; `jq -c . FILE` writes JSON of many lines in one\n'

/** Judges all conversations of the files. Returns 1 where a file can't be read or no line holds a conversation; other such lines are reported and skipped. */
export async function replay(options: ReplayOptions, flags: Flags, terminal: Terminal): Promise<ExitCode> {
  const { config, warnings } = loadConfig(flags, terminal.env)
  for (const warning of warnings) terminal.err(`governor: ${warning}\n`)
  const policy = loopPolicyOf(config)
  const registry = registryOf(config)
  const count: Count = { conversations: 0, calls: 0, warned: 0, blocked: 0, stopped: 0 }
  const kept: Finding[] = []
  const bar = progressOf(
    terminal,
    options.files.reduce((sum, file) => sum + sizeOf(file), 0),
  )
  let before = 0
  let exitCode: ExitCode = 0
  for (const file of options.files) {
    const name = file === '-' ? 'stdin' : file
    const complain = (what: string) => {
      bar.clear()
      terminal.err(`governor: ${what}\n`)
    }
    let end = 0
    let skipped = 0
    try {
      const input = file === '-' ? terminal.input() : bytesOf(file)
      for await (const { text, number, offset } of conversationsIn(linesOf(input))) {
        end = offset
        const found = judgeLine(text, `${name}:${number}`, policy, registry, count)
        if (typeof found === 'string') {
          skipped++
          if (skipped <= NAMED_LINES) complain(`${name}, line ${number}: ${found}: skipped`)
        } else if (found.length === 0) {
          // Nothing to say.
        } else if (options.json) terminal.out(found.map((one) => `${JSON.stringify(one)}\n`).join(''))
        else kept.push(...found)
        bar.at(before + offset)
      }
    } catch (error) {
      complain(`${name}: can't be read (${whyUnreadable(error)})`)
      exitCode = 1
    }
    if (skipped > NAMED_LINES) complain(`${name}: ${skipped - NAMED_LINES} more lines skipped`)
    before += end
  }
  bar.clear()
  if (count.conversations === 0) {
    terminal.err(NOTHING_READ)
    return 1
  }
  if (!options.json) {
    const isColoured = terminal.isInteractive && !terminal.env['NO_COLOR']
    terminal.out(tableOf(kept, isColoured) + summaryOf(count))
  }
  return exitCode
}
