/** Recorded conversations: one line of JSON each, in the shape of the requests that they were made with. */
import type { ToolCall } from '../core/conversation.ts'
import { likenessesOf, resultText } from '../dialect/parts.ts'
import { callOfItem, kindOfItem, textOfOutput } from '../dialect/responses-shape.ts'

/** What one response called, and what came of each call; `undefined` where that is not recorded. */
export interface RecordedStep {
  readonly kind: 'step'
  readonly calls: readonly ToolCall[]
  readonly results: readonly (string | undefined)[]
}

export interface Recording {
  /** As the line says it; `undefined` where it says none. */
  readonly id: string | undefined
  /** In order. */
  readonly events: readonly (RecordedStep | RecordedWords)[]
}

/** A message of role user, with its texts: a person's words, or those of a harness in a person's name. */
export interface RecordedWords {
  readonly kind: 'words'
  readonly texts: readonly string[]
}

type Json = Readonly<Record<string, unknown>>

function isObject(value: unknown): value is Json {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function textOf(value: unknown): string {
  return typeof value === 'string' ? value : ''
}

/** The parts of a content: text parts as objects, plain text as one of them. */
function partsOf(content: unknown): Json[] {
  if (typeof content === 'string') return [{ type: 'text', text: content }]
  return Array.isArray(content) ? content.filter(isObject) : []
}

function textsOf(content: unknown): string[] {
  return partsOf(content).flatMap(({ text }) => (typeof text === 'string' ? [text] : []))
}

/** Arguments as text: recorded as such, or as the value that they were read into. */
function argumentsOf(value: unknown): string {
  return typeof value === 'string' ? value : (JSON.stringify(value) ?? '')
}

/** What a message calls: Chat Completions, its older functions and custom tools, and Anthropic's blocks. */
function callsOf(message: Json): ToolCall[] {
  const calls: ToolCall[] = []
  const listed = Array.isArray(message['tool_calls']) ? message['tool_calls'].filter(isObject) : []
  for (const call of listed) {
    const { function: made, custom } = call
    if (isObject(made))
      calls.push({
        id: textOf(call['id']),
        name: textOf(made['name']),
        arguments: argumentsOf(made['arguments']),
      })
    else if (isObject(custom))
      calls.push({
        id: textOf(call['id']),
        name: textOf(custom['name']),
        arguments: argumentsOf(custom['input']),
      })
  }
  const { function_call: old, content } = message
  if (calls.length === 0 && isObject(old)) {
    const name = textOf(old['name'])
    calls.push({ id: name, name, arguments: argumentsOf(old['arguments']) })
  }
  if (!Array.isArray(content)) return calls
  for (const part of content) {
    if (!isObject(part) || part['type'] !== 'tool_use') continue
    const { id, name, input } = part
    calls.push({ id: textOf(id), name: textOf(name), arguments: argumentsOf(input) })
  }
  return calls
}

/** A step whose results are still coming in. */
interface OpenStep extends RecordedStep {
  readonly results: (string | undefined)[]
}

/** Reads the messages of one conversation, in order. */
class Reader {
  readonly events: (OpenStep | RecordedWords)[] = []
  /** The newest response that called something. */
  #step: OpenStep | undefined
  /** May calls be added to it? Responses lists each call by itself. */
  #isOpen = false
  #followsResult = false
  /** Which call of the newest response was answered last; -1 where none was. */
  #answeredLast = -1

  read(message: Json): void {
    const { role, type, content } = message
    const kind = type === undefined ? 'message' : kindOfItem(textOf(type), textOf(message['execution']))
    if (kind === 'call') this.#called([callOfItem(message)], true)
    else if (kind === 'result') {
      const { call_id: call, approval_request_id: approval, id, output, approve } = message
      this.#answered(textOf(call ?? approval ?? id), textOfOutput(output ?? approve))
    } else if (role === 'assistant') this.#called(callsOf(message), false)
    else if (role === 'tool' || role === 'function') {
      this.#answered(textOf(message['tool_call_id'] ?? message['name']), content)
    } else if (role === 'user') this.#said(content)
  }

  #called(calls: readonly ToolCall[], mayJoin: boolean): void {
    if (mayJoin && this.#isOpen && this.#step) {
      const { calls: before, results } = this.#step
      this.#step = { kind: 'step', calls: [...before, ...calls], results: [...results, undefined] }
      this.events[this.events.length - 1] = this.#step
      return
    }
    this.#isOpen = mayJoin
    this.#followsResult = false
    this.#answeredLast = -1
    if (calls.length === 0) return
    this.#step = { kind: 'step', calls, results: calls.map(() => undefined) }
    this.events.push(this.#step)
  }

  /** Ids are only good for the response they were made in: some agents use the same ones again and again. */
  #answered(id: string, content: unknown): void {
    this.#isOpen = false
    this.#followsResult = true
    if (!this.#step) return
    const { calls, results } = this.#step
    const isFree = (at: number) => results[at] === undefined
    const named = calls.findIndex((call, at) => call.id === id && isFree(at))
    const at = named === -1 ? calls.findIndex((_, free) => isFree(free)) : named
    if (at === -1) return
    results[at] = resultText(content)
    this.#answeredLast = at
  }

  /** Pictures beside results, or after them, are what the last of them shows. */
  #shown(parts: readonly Json[]): void {
    const shown = likenessesOf(parts)
    const results = this.#step?.results
    if (!results || this.#answeredLast === -1 || shown.length === 0) return
    results[this.#answeredLast] = [results[this.#answeredLast], ...shown].join('\n')
  }

  #said(content: unknown): void {
    const parts = partsOf(content)
    const answers = parts.filter(({ type }) => type === 'tool_result')
    for (const answer of answers) this.#answered(textOf(answer['tool_use_id']), resultText(answer['content']))
    this.#shown(parts.filter(({ type }) => type !== 'tool_result'))
    const texts = textsOf(content)
    if (answers.length > 0) {
      // Words beside results may be a person's, or the harness's: whose, the registry knows.
      if (texts.length > 0) this.events.push({ kind: 'words', texts })
      return
    }
    // A message without any text, a picture say: a person's, unless it follows what a tool gave and shows that.
    const isOfTools = texts.length === 0 && this.#followsResult
    this.#isOpen = false
    this.#followsResult = false
    if (!isOfTools) this.events.push({ kind: 'words', texts })
  }
}

function messagesOf(value: Json): unknown[] | undefined {
  const { messages, input } = value
  if (Array.isArray(messages)) return messages
  return Array.isArray(input) ? input : undefined
}

/**
 * Reads one line: an object with `messages` (or `input`, as Responses calls them), such as a request body, or with
 * such an object as its `body` or `request`; or the list of messages alone. `undefined` where it is none of these.
 * @throws {SyntaxError} where the line is not JSON.
 */
export function readRecording(line: string): Recording | undefined {
  const value: unknown = JSON.parse(line)
  const top: Json = isObject(value) ? value : { messages: value }
  const holder = [top, top['body'], top['request']].find((one) => isObject(one) && messagesOf(one))
  const messages = isObject(holder) ? messagesOf(holder) : undefined
  if (!messages) return undefined
  const reader = new Reader()
  for (const message of messages) {
    if (isObject(message)) reader.read(message)
  }
  const { id } = top
  return {
    id: typeof id === 'string' || typeof id === 'number' ? String(id) : undefined,
    events: reader.events,
  }
}
