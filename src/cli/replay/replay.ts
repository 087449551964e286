/** `governor replay FILE…`: shows what the loop guard would have done in recorded conversations. */
import { createReadStream } from 'node:fs'
import { loadConfig, whyUnreadable } from '../../config/load.ts'
import { policiesOf, registryOf } from '../../config/policies.ts'
import type { HarnessRegistry } from '../../core/harness/match.ts'
import type { LoopPolicy } from '../../core/loop/patterns.ts'
import { TooMuchToRead } from '../../core/work.ts'
import type { Call, Terminal } from '../command.ts'
import { linesOf } from '../lines.ts'
import { aligned, type Colour, coloured, counted, jsonLine, showsColours, visible } from '../terminal-text.ts'
import { type LoopAction, loopActionsIn } from './loop-actions.ts'
import { conversationsIn, readRecording } from './recording.ts'

const READ_SIZE = 1_048_576

/** The most skipped lines of a file that are named; of the others only the number is shown. */
const NAMED_LINES = 10

const NOTHING = { conversations: 0, calls: 0, warned: 0, blocked: 0, stopped: 0 }
type Count = typeof NOTHING

/** Returns the findings in the conversation of one line; a text says why the line has no conversation. */
function findingsIn(text: string, name: string, policy: LoopPolicy, registry: HarnessRegistry, count: Count) {
  let recording: ReturnType<typeof readRecording>
  try {
    recording = readRecording(text)
  } catch (error) {
    return error instanceof TooMuchToRead ? 'more than Governor reads of one request' : 'not JSON'
  }
  if (!recording) return 'not a conversation: expected an object with messages or input'
  const { id = name, conversation } = recording
  count.conversations++
  for (let at = 0; at < conversation.length; at++) count.calls += conversation.callCount(at)
  const findings = loopActionsIn(id, conversation, policy, registry)
  const verdicts = new Set(findings.map(({ verdict }) => verdict))
  if (verdicts.has('warn')) count.warned++
  if (verdicts.has('block') || verdicts.has('stop')) count.blocked++
  if (verdicts.has('stop')) count.stopped++
  return findings
}

const COLOURS: Readonly<Record<LoopAction['verdict'], Colour>> = { warn: 'yellow', block: 'red', stop: 'magenta' }

/** Characters; longer ids are cut in the middle, because they often differ at their ends. */
const MAX_ID = 60

function shortened(text: string): string {
  const id = visible(text)
  return id.length <= MAX_ID ? id : `${id.slice(0, MAX_ID / 2)}…${id.slice(1 - MAX_ID / 2)}`
}

function tableOf(findings: readonly LoopAction[], hasColours: boolean): string {
  if (findings.length === 0) return ''
  const rows = [['conversation', 'call', 'verdict', 'pattern', 'tool']]
  for (const { id, call_index, verdict, pattern, tool } of findings)
    rows.push([shortened(id), String(call_index), verdict, pattern, shortened(tool)])
  const [head = [], ...lines] = aligned(rows, [1])
  let table = `${coloured(head.join('  ').trimEnd(), 'bold', hasColours)}\n`
  for (const [at, [id, call, verdict = '', ...rest]] of lines.entries()) {
    const shown = coloured(verdict, COLOURS[findings[at]?.verdict ?? 'warn'], hasColours)
    table += `${[id, call, shown, ...rest].join('  ').trimEnd()}\n`
  }
  return `${table}\n`
}

const NOTHING_READ =
  'governor: no conversation was read: each line is expected to be one JSON object with messages or input, ' +
  'such as a request body; `jq -c . FILE` writes JSON of many lines in one\n'

/**
 * Runs all conversations of the files through the loop guard; `-` is standard input. Lines without a conversation are
 * reported and skipped. Returns 1 if a file can't be read or no line holds a conversation.
 */
export async function replay({ args: files, flags }: Call, terminal: Terminal): Promise<number> {
  const { config } = loadConfig(flags, terminal.env)
  const policy = policiesOf(config).loop.settings
  const registry = registryOf(config)
  const count = { ...NOTHING }
  const kept: LoopAction[] = []
  const complain = (message: string) => terminal.err(`governor: ${message}\n`)
  let exitCode = 0
  for (const file of files) {
    const name = file === '-' ? 'stdin' : file
    let skipped = 0
    try {
      const input = file === '-' ? terminal.input() : createReadStream(file, { highWaterMark: READ_SIZE })
      for await (const { text, number } of conversationsIn(linesOf(input))) {
        const findings = findingsIn(text, `${name}:${number}`, policy, registry, count)
        if (typeof findings === 'string') {
          skipped++
          if (skipped <= NAMED_LINES) complain(`${name}, line ${number}: ${findings}: skipped`)
        } else if (flags.json) for (const finding of findings) terminal.out(jsonLine(finding))
        else kept.push(...findings)
      }
    } catch (error) {
      complain(`${name}: can't be read (${whyUnreadable(error)})`)
      exitCode = 1
    }
    if (skipped > NAMED_LINES) complain(`${name}: ${skipped - NAMED_LINES} more lines skipped`)
  }
  if (count.conversations === 0) {
    terminal.err(NOTHING_READ)
    return 1
  }
  if (!flags.json) {
    const read = `${counted(count.conversations, 'conversation')}, ${counted(count.calls, 'tool call')}`
    terminal.out(tableOf(kept, showsColours(terminal)))
    terminal.out(`${read}: ${count.warned} warned, ${count.blocked} with calls blocked, ${count.stopped} stopped.\n`)
  }
  return exitCode
}
