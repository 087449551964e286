/** Messages responses in the form that the input takes, and without some of their calls. */
import { parseForeign } from '../../core/foreign-json.ts'
import { isObject, type Json, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { withMembers } from '../../json/edit.ts'
import { memberText } from '../../json/scan.ts'
import { createFrameReader } from '../../sse/frames.ts'
import type { BlockedMessage, BufferedCalls } from '../dialect.ts'
import { rewritten } from '../shared/whole-response.ts'
import { callsOf, contentAt } from './content.ts'
import { eventIn } from './events.ts'
import { answerText, contentOf, isCall, stopWithoutCalls } from './wire.ts'

/** A response for the input: its id, and its content as JSON text, which keeps every digit. */
interface InputMessage {
  readonly id: string
  readonly content: string
}

/** Returns the calls of a response. @throws {SyntaxError} if its content is not valid JSON. */
export function bufferedCallsOf(message: InputMessage): BufferedCalls {
  const { id, content } = message
  const text = answerText(contentOf({ content: parseForeign(content, content.length) }))
  return { calls: callsOf(contentAt(Buffer.from(content), 0)), text, message, ...(id === '' ? {} : { id }) }
}

/** Reads the calls of a whole response; `undefined` if it is no message. */
export function readMessageCalls(body: Buffer): BufferedCalls | undefined {
  const message = parseObject(body.toString('utf8'))
  if (!message || !Array.isArray(message['content'])) return undefined
  return bufferedCallsOf({ id: textOf(message['id']), content: memberText(body, 'content') ?? '[]' })
}

/**
 * Writes a whole response without the calls in `blocked` (places among its calls), with the content and the usage of
 * the `earlier` responses added.
 */
export function withoutMessageCalls(
  body: Buffer,
  blocked: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  return rewritten(body, earlier, (answer, before) => {
    let call = 0
    const kept = contentOf(answer).filter((block) => !isCall(block) || !blocked.has(call++))
    const others = before.flatMap((message) => contentOf(message).filter((block) => !isCall(block)))
    const { stop_reason: reason } = answer
    return {
      content: [...others, ...kept],
      stop_reason: kept.some(isCall) ? reason : stopWithoutCalls(reason),
    }
  })
}

/** Returns the results of a blocked message as blocks of a user message. */
function resultsOf({ buffered, results }: BlockedMessage): Json[] {
  return buffered.calls.map(({ id }, at) => ({
    type: 'tool_result',
    tool_use_id: id,
    content: results[at] ?? '',
  }))
}

/** Returns the user message (JSON text) that holds the results of a blocked message. */
export function resultMessage(blockedMessage: BlockedMessage): string {
  return JSON.stringify({ role: 'user', content: resultsOf(blockedMessage) })
}

/** Returns the messages (JSON texts) that a blocked message adds to the input: its own, and the results. */
export function messagesAfterBlock(blockedMessage: BlockedMessage): string[] {
  const content = textOf(propertyOf(blockedMessage.buffered.message, 'content')) || '[]'
  return [`{"role":"assistant","content":${content}}`, resultMessage(blockedMessage)]
}

/** Returns the results (JSON texts) of the calls in `blocked`, as places among the message's calls. */
export function blockedResults(blockedMessage: BlockedMessage, blocked: ReadonlySet<number>): string[] {
  return resultsOf(blockedMessage)
    .filter((_, at) => blocked.has(at))
    .map((result) => JSON.stringify(result))
}

interface AssembledBlock {
  readonly start: Json
  /** The texts of the block, by the field that their pieces arrive in. */
  readonly texts: Map<string, string>
  /** The input of a call, as JSON text. */
  json: string
}

/** The content of a message that has arrived. */
export interface Assembly {
  readonly blocks: AssembledBlock[]
  /** Blocks by the indexes that the provider sends. */
  readonly byIndex: Map<unknown, AssembledBlock>
}

/** Returns a message of which nothing has arrived. */
export function newAssembly(): Assembly {
  return { blocks: [], byIndex: new Map() }
}

/** Adds an event of a stream; an event that belongs to no block changes nothing. */
export function addEvent({ blocks, byIndex }: Assembly, event: Json): void {
  const { type, index, content_block: start, delta } = event
  if (type === 'content_block_start' && isObject(start)) {
    const block = { start, texts: new Map<string, string>(), json: '' }
    blocks.push(block)
    byIndex.set(index, block)
    return
  }
  const block = byIndex.get(index)
  if (type !== 'content_block_delta' || !block || !isObject(delta)) return
  if (delta['type'] === 'input_json_delta') block.json += textOf(delta['partial_json'])
  for (const key of ['text', 'thinking', 'signature']) {
    const piece = delta[key]
    if (typeof piece === 'string')
      block.texts.set(key, (block.texts.get(key) ?? textOf(block.start[key])) + piece)
  }
}

/** Returns the JSON of a block; `undefined` for a text block without text, which the API refuses in the input. */
function blockJson({ start, texts, json }: AssembledBlock): string | undefined {
  const block: Json = { ...start, ...Object.fromEntries(texts) }
  if (block['type'] === 'text' && textOf(block['text']) === '') return undefined
  const whole = Buffer.from(JSON.stringify(block))
  if (json === '') return whole.toString()
  parseForeign(json, json.length)
  return withMembers(whole, { input: json }).toString()
}

/** Returns the calls of an assembled response; `undefined` if it has no beginning, or ended in the middle of a call. */
export function assembled(id: string | undefined, { blocks }: Assembly): BufferedCalls | undefined {
  if (id === undefined) return undefined
  try {
    return bufferedCallsOf({ id, content: `[${blocks.flatMap((block) => blockJson(block) ?? []).join()}]` })
  } catch (error) {
    if (error instanceof SyntaxError) return undefined
    throw error
  }
}

/** Reads the calls of a whole streamed response; `undefined` if it has no end. */
export function streamedMessage(body: Buffer): BufferedCalls | undefined {
  const assembly = newAssembly()
  let id: string | undefined
  let hasEnd = false
  const reader = createFrameReader()
  for (const frame of [...reader.push(body), ...reader.end()]) {
    const data = eventIn(frame) ?? {}
    addEvent(assembly, data)
    if (data['type'] === 'message_start' && isObject(data['message'])) id = textOf(data['message']['id'])
    if (data['type'] === 'message_delta') hasEnd = true
  }
  return hasEnd ? assembled(id, assembly) : undefined
}
