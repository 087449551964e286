/** `governor replay FILE…`: shows what the loop guard would have done in recorded conversations. */
import { createReadStream } from 'node:fs'
import { loadConfig } from '../config/load.ts'
import { policiesOf, registryOf } from '../config/policies.ts'
import { TooMuchToRead } from '../core/bounds/work.ts'
import type { Conversation } from '../core/conversation/conversation.ts'
import { userText } from '../core/conversation/transcript.ts'
import type { HarnessRegistry } from '../core/harness/match.ts'
import type { Hash } from '../core/hash.ts'
import { isObject, type Json, parseObject } from '../core/json-object.ts'
import { blockCalls } from '../core/loop/escalation.ts'
import { afterNotice, INITIAL_LOOP_STATE, observeMessage } from '../core/loop/loop-state.ts'
import { inMode, type LoopPolicy, type Pattern } from '../core/loop/patterns.ts'
import { linesOf } from '../core/text/lines.ts'
import { whyUnreadable } from '../core/thrown.ts'
import { chat } from '../dialect/chat/index.ts'
import { gemini } from '../dialect/gemini/index.ts'
import { messages as anthropic } from '../dialect/messages/index.ts'
import { responses } from '../dialect/responses/index.ts'
import { type Call, CommandError, type Terminal } from './command.ts'
import { aligned, type Colour, coloured, counted, jsonLine, showsColours, visible } from './terminal-text.ts'

/** The most characters of a conversation with one message per line. */
const MAX_HELD = 67_108_864

/** Returns the list of messages of a request body. */
function listIn({ messages, input, contents }: Json): unknown[] | undefined {
  return [messages, input, contents].find(Array.isArray)
}

/** Yields the conversations of a file: its lines, or one list of all messages if the first line is a message. */
async function* conversationsIn(lines: AsyncIterable<string>) {
  const held: string[] = []
  let first: number | undefined
  let length = 0
  let number = 0
  for await (const text of lines) {
    number++
    if (text.trim() === '') continue
    const mayBeHeld = (first === undefined || held.length > 0) && length <= MAX_HELD
    first ??= number
    const value = mayBeHeld ? parseObject(text) : undefined
    // An item of a call or a result in the Responses API has no role.
    if (value && !listIn(value) && (typeof value['role'] === 'string' || typeof value['type'] === 'string')) {
      held.push(text)
      length += text.length
    } else yield { text, number }
  }
  if (first !== undefined && held.length > 0) yield { text: `[${held.join(',')}]`, number: first }
}

/** Returns the dialect of messages, and the key of a request body that holds them. */
function formOf(list: readonly Json[], isInput: boolean, isContents: boolean) {
  const isContent = ({ parts }: Json) => Array.isArray(parts)
  if (isContents || list.some(isContent)) return { dialect: gemini, key: 'contents' }
  const isItem = ({ role, type }: Json) => typeof role !== 'string' && typeof type === 'string'
  if (isInput || list.some(isItem)) return { dialect: responses, key: 'input' }
  const isBlock = (part: unknown) => isObject(part) && (part['type'] === 'tool_use' || part['type'] === 'tool_result')
  const hasBlock = ({ content }: Json) => Array.isArray(content) && content.some(isBlock)
  return { dialect: list.some(hasBlock) ? anthropic : chat, key: 'messages' }
}

/**
 * Reads the text of one conversation as the proxy would: a request body (an object with `messages`, with `input` for
 * Responses, or with `contents` for Gemini), or a list of messages. `undefined` if it is neither. Throws `SyntaxError`
 * if it is not JSON.
 */
function readRecording(text: string) {
  const value: unknown = JSON.parse(text)
  const top: Json = Array.isArray(value) ? { messages: value } : isObject(value) ? value : {}
  const { id, input, contents } = top
  const list = listIn(top)
  if (!list?.every(isObject)) return undefined
  const { dialect, key } = formOf(list, list === input, list === contents)
  const body = Array.isArray(value) ? `{"${key}":${text}}` : text
  const request = dialect.read({ path: '', body: Buffer.from(body) })
  if (!request) return undefined
  const isNamed = typeof id === 'string' || typeof id === 'number'
  return { id: isNamed ? String(id) : undefined, conversation: request.conversation }
}

/** One action that the loop guard would have taken. The keys are part of the public contract. */
interface LoopAction {
  /** The id of the conversation, or its file and line. */
  readonly id: string
  /** 0-based number of the call in its conversation after whose result the guard would have acted. */
  readonly call_index: number
  readonly verdict: 'warn' | 'block' | 'stop'
  readonly pattern: Pattern
  readonly tool: string
}

/** Returns the actions that the loop guard would have taken in a conversation, in order. */
function loopActionsIn(id: string, conversation: Conversation, policy: LoopPolicy, registry: HarnessRegistry) {
  conversation.work?.takeAnyTime()
  const actions: LoopAction[] = []
  const reader = { conversation, policy, callsByIndex: new Map() }
  let loopState = INITIAL_LOOP_STATE
  let hasEnded = false
  /** Calls before the current message. */
  let callCount = 0
  for (let index = 0; index < conversation.length; index++) {
    if (userText(conversation, index, registry) !== undefined) hasEnded = false
    const calls = conversation.calls(index)
    const first = callCount
    callCount += calls.length
    // After a stop nothing would have happened until a human speaks.
    if (hasEnded) continue
    // Blocked calls would never have reached the agent.
    const blockedCalls = new Set<Hash>()
    if (calls.length > 0) {
      const decision = blockCalls(loopState.memory, calls, policy, String(index), false, 0)
      loopState = { ...loopState, memory: decision.memory }
      hasEnded = decision.endsRun
      for (const [at, block] of decision.blocked.entries()) {
        if (!block || blockedCalls.has(block.call)) continue
        blockedCalls.add(block.call)
        const verdict = hasEnded ? 'stop' : 'block'
        actions.push({ id, call_index: first + at, verdict, pattern: block.pattern, tool: block.tool })
      }
    }
    loopState = observeMessage(loopState, reader, registry, index, { leftOut: blockedCalls })
    const { finding } = loopState
    if (!finding || calls.length === 0) continue
    loopState = afterNotice(loopState)
    const { at, pattern, tools } = finding
    actions.push({ id, call_index: first + at, verdict: 'warn', pattern, tool: tools.at(-1) ?? '' })
  }
  return actions
}

/** The most skipped lines of a file that are named; of the others only the number is shown. */
const NAMED_LINES = 10

const NOTHING = { conversations: 0, calls: 0, warned: 0, blocked: 0, stopped: 0 }

/** Returns the findings in the conversation of one line; a text says why the line has no conversation. */
function findingsIn(text: string, name: string, policy: LoopPolicy, registry: HarnessRegistry, count: typeof NOTHING) {
  let recording: ReturnType<typeof readRecording>
  try {
    recording = readRecording(text)
  } catch (error) {
    return error instanceof TooMuchToRead ? 'more than Governor reads of one request' : 'not JSON'
  }
  if (!recording) return 'not a conversation: expected an object with messages, input or contents'
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
  'no conversation was read: each line is expected to be one JSON object with messages, input or contents, ' +
  'such as a request body; `jq -c . FILE` writes JSON of many lines in one'

/**
 * Runs all conversations of the files through the loop guard; `-` is standard input. Lines without a conversation are
 * reported and skipped. Returns 1 if a file can't be read. Throws `CommandError` if no line holds a conversation.
 */
export async function replay({ args: files, flags }: Call, terminal: Terminal): Promise<number> {
  const { config } = loadConfig(flags, terminal.env)
  const { settings } = policiesOf(config).loop
  // A recording shows before the switch what enforcing would do.
  const policy = inMode(settings, settings.mode === 'observe' ? 'enforce' : undefined)
  const registry = registryOf(config)
  const count = { ...NOTHING }
  const kept: LoopAction[] = []
  const complain = (message: string) => terminal.err(`governor: ${message}\n`)
  let unread = 0
  for (const file of files) {
    const name = file === '-' ? 'stdin' : file
    let skipped = 0
    try {
      const input = file === '-' ? terminal.input() : createReadStream(file)
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
      unread++
    }
    if (skipped > NAMED_LINES) complain(`${name}: ${skipped - NAMED_LINES} more lines skipped`)
  }
  if (count.conversations === 0) {
    if (unread === files.length) return 1
    throw new CommandError(NOTHING_READ)
  }
  if (!flags.json) {
    const read = `${counted(count.conversations, 'conversation')}, ${counted(count.calls, 'tool call')}`
    terminal.out(tableOf(kept, showsColours(terminal)))
    terminal.out(`${read}: ${count.warned} warned, ${count.blocked} with calls blocked, ${count.stopped} stopped.\n`)
  }
  return unread > 0 ? 1 : 0
}
