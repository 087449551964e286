/** `governor replay FILE…`: shows what the loop guard would have done in recorded conversations. */
import { statSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { type Flags, loadConfig, whyUnreadable } from '../../config/load.ts'
import { loopPolicyOf, registryOf } from '../../config/policies.ts'
import type { HarnessRegistry } from '../../core/harness/match.ts'
import type { LoopPolicy } from '../../core/loop/policy.ts'
import { TooMuchToRead } from '../../core/work.ts'
import type { Terminal } from '../command.ts'
import { jsonLine } from '../session-table.ts'
import { type LoopAction, loopActionsIn } from './loop-actions.ts'
import { conversationsIn, type Line, readRecording } from './recording.ts'

/** The options of the command. */
export interface ReplayOptions {
  /** `-` is standard input. */
  readonly files: readonly string[]
  readonly json: boolean
}

interface Finding extends LoopAction {
  /** The id of the conversation, or its file and line. */
  readonly id: string
}

const READ_SIZE = 1_048_576

/** Bytes from which a progress bar is worth showing. */
const LONG_WORK = 8_388_608
const BAR_WIDTH = 30

/** The most skipped lines of a file that are named; of the others only the number is shown. */
const NAMED_LINES = 10

/** Yields the bytes of a file in pieces; each piece is valid until the next one is read. */
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

/** Returns the text of a line, without a byte order mark at the start of the file. */
function decoded(line: Buffer, number: number): string {
  const text = line.toString('utf8')
  return number === 1 && text.startsWith(BYTE_ORDER_MARK) ? text.slice(1) : text
}

/** Yields the lines of a stream, each decoded once. Bytes are copied only if a line spans several chunks. */
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

/** Returns a progress bar on standard error; it shows nothing if no human watches or the work is short. */
function progressOf(terminal: Terminal, total: number) {
  const isShown = terminal.isInteractive && total >= LONG_WORK
  let shownPercent = -1
  return {
    at(done: number): void {
      const percent = Math.floor((100 * done) / total)
      if (!isShown || percent === shownPercent) return
      shownPercent = percent
      const filled = Math.round((BAR_WIDTH * Math.min(percent, 100)) / 100)
      terminal.err(`\r${'█'.repeat(filled)}${'░'.repeat(BAR_WIDTH - filled)} ${percent} %`)
    },
    /** Removes the bar before a message. */
    clear(): void {
      if (shownPercent !== -1) terminal.err('\r\u001b[K')
      shownPercent = -1
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

/** Returns the findings in the conversation of one line; a text says why the line has no conversation. */
function findingsIn(
  text: string,
  name: string,
  policy: LoopPolicy,
  registry: HarnessRegistry,
  count: Count,
): Finding[] | string {
  let recording: ReturnType<typeof readRecording>
  try {
    recording = readRecording(text)
  } catch (error) {
    return error instanceof TooMuchToRead ? 'more than Governor reads of one request' : 'not JSON'
  }
  if (!recording) return 'not a conversation: expected an object with messages or input'
  const id = recording.id ?? name
  const { conversation } = recording
  const actions = loopActionsIn(conversation, policy, registry)
  count.conversations++
  for (let at = 0; at < conversation.length; at++) count.calls += conversation.callCount(at)
  if (actions.some(({ verdict }) => verdict === 'warn')) count.warned++
  if (actions.some(({ verdict }) => verdict !== 'warn')) count.blocked++
  if (actions.some(({ verdict }) => verdict === 'stop')) count.stopped++
  return actions.map((finding) => ({ id, ...finding }))
}

const COLOURS: Readonly<Record<LoopAction['verdict'], string>> = { warn: '33', block: '31', stop: '35' }

/** Characters; longer ids are cut in the middle, because they often differ at their ends. */
const MAX_ID = 60

/** Shortens a text, without control characters, by which a recording could steer the terminal. */
function shortened(text: string): string {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters it is about
  const id = text.replace(/[\u0000-\u001f\u007f-\u009f]/g, '\ufffd')
  if (id.length <= MAX_ID) return id
  return `${id.slice(0, MAX_ID / 2)}…${id.slice(1 - MAX_ID / 2)}`
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
    cells.map((cell, column) => (column === 1 ? cell.padStart(widths[1] ?? 0) : cell.padEnd(widths[column] ?? 0)))
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
  const counted = (count: number, noun: string) => `${count.toLocaleString('en')} ${noun}${count === 1 ? '' : 's'}`
  const read = `${counted(conversations, 'conversation')}, ${counted(calls, 'tool call')}`
  return `${read}: ${warned} warned, ${blocked} with calls blocked, ${stopped} stopped.\n`
}

const NOTHING_READ =
  'governor: no conversation was read: each line is expected to be one JSON object with messages or input, ' +
  'such as a request body; `jq -c . FILE` writes JSON of many lines in one\n'

/**
 * Runs all conversations of the files through the loop guard. Lines without a conversation are reported and skipped.
 * Returns 1 if a file can't be read or no line holds a conversation.
 */
export async function replay(options: ReplayOptions, flags: Flags, terminal: Terminal): Promise<number> {
  const { config } = loadConfig(flags, terminal.env)
  const policy = loopPolicyOf(config)
  const registry = registryOf(config)
  const count: Count = { conversations: 0, calls: 0, warned: 0, blocked: 0, stopped: 0 }
  const kept: Finding[] = []
  const bar = progressOf(
    terminal,
    options.files.reduce((sum, file) => sum + sizeOf(file), 0),
  )
  let before = 0
  let exitCode = 0
  for (const file of options.files) {
    const name = file === '-' ? 'stdin' : file
    const complain = (message: string) => {
      bar.clear()
      terminal.err(`governor: ${message}\n`)
    }
    let end = 0
    let skipped = 0
    try {
      const input = file === '-' ? terminal.input() : bytesOf(file)
      for await (const { text, number, offset } of conversationsIn(linesOf(input))) {
        end = offset
        const findings = findingsIn(text, `${name}:${number}`, policy, registry, count)
        if (typeof findings === 'string') {
          skipped++
          if (skipped <= NAMED_LINES) complain(`${name}, line ${number}: ${findings}: skipped`)
        } else if (options.json) for (const finding of findings) terminal.out(jsonLine(finding))
        else kept.push(...findings)
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
