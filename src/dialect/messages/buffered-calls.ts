/** Messages responses as their provider may keep them and as the input shows them. */
import { parseForeign } from '../../core/foreign-json.ts'
import { withMembers } from '../../json/edit.ts'
import { memberText } from '../../json/scan.ts'
import { createFrameReader } from '../../sse/frames.ts'
import type { BlockedMessage, BufferedCalls } from '../dialect.ts'
import { isObject, type Json, objectsIn, parseObject, summedUsage, textOf } from '../shared/json-object.ts'
import { callsOf, contentAt } from './content.ts'
import { eventIn } from './events.ts'
import { answerText, contentOf, isCall, stopWithoutCalls } from './wire.ts'

/** A response as the input shows it: its id, and its content as JSON text, every digit as it was. */
interface SentMessage {
  readonly id: string
  readonly content: string
}

export function bufferedCallsOf(said: SentMessage): BufferedCalls {
  const content = contentAt(Buffer.from(said.content), 0)
  const text = answerText(contentOf({ content: parseForeign(said.content, said.content.length) }))
  const { id } = said
  return { calls: callsOf(content), text, message: said, ...(id === '' ? {} : { id }) }
}

export function readMessageCalls(body: Buffer): BufferedCalls | undefined {
  const message = parseObject(body.toString('utf8'))
  if (!message || !Array.isArray(message['content'])) return undefined
  return bufferedCallsOf({ id: textOf(message['id']), content: memberText(body, 'content') ?? '[]' })
}

/** Content without the calls in `refused`, by their place among the calls. */
function keptContent(content: readonly Json[], blocked: ReadonlySet<number>): Json[] {
  let call = 0
  return content.filter((block) => !isCall(block) || !blocked.has(call++))
}

export function withoutMessageCalls(
  body: Buffer,
  blocked: ReadonlySet<number>,
  earlier: readonly Buffer[],
): Buffer {
  const [answer = {}, ...before] = objectsIn([body, ...earlier])
  const kept = keptContent(contentOf(answer), blocked)
  const content = [...before.flatMap((one) => contentOf(one).filter((block) => !isCall(block))), ...kept]
  return Buffer.from(
    JSON.stringify({
      ...answer,
      content,
      stop_reason: kept.some(isCall) ? answer['stop_reason'] : stopWithoutCalls(answer['stop_reason']),
      ...summedUsage(before, answer),
    }),
  )
}

/** The results of a refused round, as a user message holds them. */
function resultsOf({ buffered, results }: BlockedMessage): Json[] {
  return buffered.calls.map(({ id }, at) => ({
    type: 'tool_result',
    tool_use_id: id,
    content: results[at] ?? '',
  }))
}

function sentMessageIn({ buffered }: BlockedMessage): SentMessage {
  const { message } = buffered
  return isObject(message)
    ? { id: textOf(message['id']), content: textOf(message['content']) || '[]' }
    : { id: '', content: '[]' }
}

/** The messages (JSON texts) that stand after a refused round: what the model said, and what became of each call. */
export function messagesAfterBlock(blockedMessage: BlockedMessage): string[] {
  return [
    `{"role":"assistant","content":${sentMessageIn(blockedMessage).content}}`,
    JSON.stringify({ role: 'user', content: resultsOf(blockedMessage) }),
  ]
}

/** The results (JSON texts) of the calls in `refused`. */
export function blockedResults(blockedMessage: BlockedMessage, blocked: ReadonlySet<number>): string[] {
  return resultsOf(blockedMessage)
    .filter((_, at) => blocked.has(at))
    .map((result) => JSON.stringify(result))
}

/** What is sent after a refused round where the provider keeps what the model said, under this id. */
export function continuationOf(blockedMessage: BlockedMessage): {
  readonly id: string
  readonly messages: string
} {
  return {
    id: sentMessageIn(blockedMessage).id,
    messages: JSON.stringify([{ role: 'user', content: resultsOf(blockedMessage) }]),
  }
}

interface AssembledBlock {
  readonly start: Json
  /** Texts by the field that their pieces are sent in. */
  readonly texts: Map<string, string>
  /** The input of a call. */
  json: string
}

/** The content of a message so far. */
export interface Assembly {
  readonly blocks: AssembledBlock[]
  /** Blocks by the numbers that the provider sends. */
  readonly byIndex: Map<unknown, AssembledBlock>
}

export function newAssembly(): Assembly {
  return { blocks: [], byIndex: new Map() }
}

/** Adds an event of a stream; events that belong to no block change nothing. */
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

/** The API refuses a text block without a text. */
function isEmptyText({ start, texts }: AssembledBlock): boolean {
  return start['type'] === 'text' && (texts.get('text') ?? textOf(start['text'])) === ''
}

function blockJson({ start, texts, json }: AssembledBlock): string {
  const whole = Buffer.from(JSON.stringify({ ...start, ...Object.fromEntries(texts) }))
  if (json === '') return whole.toString()
  parseForeign(json, json.length)
  return withMembers(whole, { input: json }).toString()
}

/** Returns the content as JSON text. @throws {SyntaxError} where a call's input is not complete. */
function assembledContent({ blocks }: Assembly): string {
  return `[${blocks
    .filter((block) => !isEmptyText(block))
    .map(blockJson)
    .join(',')}]`
}

/** What was put together of a response; `undefined` where it has no beginning, or broke off in the middle of a call. */
export function assembled(id: string | undefined, assembly: Assembly): BufferedCalls | undefined {
  if (id === undefined) return undefined
  try {
    return bufferedCallsOf({ id, content: assembledContent(assembly) })
  } catch (error) {
    if (error instanceof SyntaxError) return undefined
    throw error
  }
}

/** What a whole streamed response says; `undefined` where it has no end. */
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
