/** Messages responses: their usage and calls, read, put together from a stream, and written in other forms. */
import { nameOf } from '../../core/hash.ts'
import {
  countValues,
  isObject,
  type Json,
  objectsOf,
  parseForeign,
  parseObject,
  propertyOf,
  textOf,
} from '../../core/json-object.ts'
import { type TokenUsage, withTotal } from '../../core/usage.ts'
import { withMembers } from '../../json/edit.ts'
import { memberText } from '../../json/scan.ts'
import { createFrameReader, dataOf, type Frame } from '../../sse/frames.ts'
import type { BlockedMessage, BufferedCalls, Dialect, ReadAnswer } from '../dialect.ts'
import { hasError } from '../shared/event-types.ts'
import { drained } from '../shared/request.ts'
import { lastText, responseFacts, textsUnder } from '../shared/response-tail.ts'
import { statedIn, tokens } from '../shared/stated-usage.ts'
import { eventFrame, jsonReply, responsesIn, rewritten, streamReply, withTerminal } from '../shared/whole-response.ts'
import { contentAt, textsAndCallsOf } from './content.ts'

function isCall(block: unknown): boolean {
  return isObject(block) && block['type'] === 'tool_use'
}

function contentOf(message: Json): Json[] {
  return objectsOf(message['content'])
}

/** Stop reasons after which the client sends another request of the same run. */
const UNFINISHED = new Set<unknown>(['tool_use', 'pause_turn', 'compaction'])

/** Returns the stop reason of a last answer without its calls: clients may throw on one that was cut off. */
export function stopOfAnswer(reason: unknown): unknown {
  return UNFINISHED.has(reason) || isCutOff(reason) ? 'end_turn' : reason
}

export function isCutOff(reason: unknown): boolean {
  return reason === 'max_tokens' || reason === 'model_context_window_exceeded'
}

/** Returns the data of an event; `undefined` if the frame contains no JSON object, such as a comment. */
export function eventIn(frame: Frame): Json | undefined {
  return parseObject(dataOf(frame) ?? '')
}

export function textEvents(index: number, text: string, lineEnd?: string): Buffer[] {
  const events = [
    { type: 'content_block_start', index, content_block: { type: 'text', text: '' } },
    { type: 'content_block_delta', index, delta: { type: 'text_delta', text } },
    { type: 'content_block_stop', index },
  ]
  return events.map((event) => eventFrame(event, lineEnd))
}

/** Returns the calls of a response; its content is JSON text, which keeps every digit. @throws {SyntaxError} */
function bufferedCallsOf(id: string, content: string): BufferedCalls {
  const { texts, calls } = drained(textsAndCallsOf(contentAt(Buffer.from(content), 0)))
  return { calls, text: texts.join(''), message: { id, content }, ...(id === '' ? {} : { id }) }
}

function readMessage(body: Buffer): ReadAnswer | undefined {
  const answer = parseObject(body.toString('utf8'))
  if (!answer || answer['type'] === 'error' || !Array.isArray(answer['content'])) return undefined
  const buffered = bufferedCallsOf(textOf(answer['id']), memberText(body, 'content') ?? '[]')
  const { text, calls } = buffered
  return { text, calls, end: isCutOff(answer['stop_reason']) ? 'truncated' : 'complete', buffered }
}

/** Returns the results (JSON texts) of a blocked message; a result names the toolset of its call, as the call does. */
export function resultsOfBlocked({ buffered, results }: BlockedMessage): string[] {
  const content = textOf(propertyOf(buffered.message, 'content'))
  const blocks = content.includes('"toolset_name"') ? objectsOf(parseObject(`{"all":${content}}`)?.['all']) : []
  const ofSets = blocks.filter((block) => isCall(block) && block['toolset_name'])
  const toolsets = new Map(ofSets.map(({ id, toolset_name }) => [id, { toolset_name }]))
  return buffered.calls.map(({ id }, at) =>
    JSON.stringify({ type: 'tool_result', tool_use_id: id, ...toolsets.get(id), content: results[at] }),
  )
}

/** Returns the user message (JSON text) that holds the results of a blocked message. */
export function resultMessage(blockedMessage: BlockedMessage): string {
  return `{"role":"user","content":[${resultsOfBlocked(blockedMessage).join(',')}]}`
}

/** Returns the messages (JSON texts) that a blocked message adds to the input: its own, and the results. */
export function messagesAfterBlock(blockedMessage: BlockedMessage): string[] {
  const content = textOf(propertyOf(blockedMessage.buffered.message, 'content')) || '[]'
  return [`{"role":"assistant","content":${content}}`, resultMessage(blockedMessage)]
}

interface AssembledBlock {
  /** Its texts grow with their pieces. */
  readonly content: Json
  /** The input of a call, as JSON text. */
  json: string
  /** The place of a call among the calls of the response. */
  readonly call: number | undefined
}

/** The part of a streamed response that has arrived. */
export class Assembly {
  /** `undefined` if its beginning has not come. */
  id: string | undefined
  readonly blocks: AssembledBlock[] = []
  /** Blocks by the indexes that the provider sends. */
  readonly byIndex = new Map<unknown, AssembledBlock>()
  calls = 0
  hasEnd = false
}

/** Adds an event of a stream; returns the response that it belongs to. */
export function addEvent(assembly: Assembly, data: Json): Assembly {
  const { type, index, content_block: start, delta } = data
  if (type === 'message_start') return Object.assign(new Assembly(), { id: textOf(propertyOf(data['message'], 'id')) })
  assembly.hasEnd ||= type === 'message_delta' || type === 'message_stop'
  if (type === 'content_block_start' && isObject(start)) {
    const call = isCall(start) ? assembly.calls++ : undefined
    const block = { content: { ...start }, json: '', call }
    assembly.blocks.push(block)
    assembly.byIndex.set(index, block)
  }
  const block = assembly.byIndex.get(index)
  if (type !== 'content_block_delta' || !block || !isObject(delta)) return assembly
  const { type: kind, citation, ...piece } = delta
  if (kind === 'input_json_delta') block.json += textOf(piece['partial_json'])
  // The whole of a compaction comes at once.
  else if (kind === 'compaction_delta') Object.assign(block.content, piece)
  else if (citation) block.content['citations'] = [...objectsOf(block.content['citations']), citation]
  for (const key of ['text', 'thinking', 'signature']) {
    const text = piece[key]
    if (typeof text === 'string') block.content[key] = textOf(block.content[key]) + text
  }
  return assembly
}

/** Returns the calls of a streamed response; `undefined` if it has no beginning, or ended in the middle of a call. */
export function assembled({ id, blocks }: Assembly): BufferedCalls | undefined {
  if (id === undefined) return undefined
  const content: string[] = []
  try {
    for (const { content: block, json } of blocks) {
      // The API refuses a text block without text in the input.
      if (block['type'] === 'text' && textOf(block['text']) === '') continue
      const whole = JSON.stringify(block)
      if (json !== '') parseForeign(json, json.length)
      content.push(json === '' ? whole : withMembers(Buffer.from(whole), { input: json }).toString())
    }
    const all = `[${content.join()}]`
    return countValues(all, all.length) === undefined ? undefined : bufferedCallsOf(id, all)
  } catch (error) {
    if (error instanceof SyntaxError) return undefined
    throw error
  }
}

/** Reads the calls of a whole streamed response; `undefined` if it has no end. */
function streamedMessage(body: Buffer): BufferedCalls | undefined {
  const reader = createFrameReader()
  let assembly = new Assembly()
  for (const frame of [...reader.push(body), ...reader.end()]) assembly = addEvent(assembly, eventIn(frame) ?? {})
  return assembly.hasEnd ? assembled(assembly) : undefined
}

const INPUTS = ['input_tokens', 'cache_read_input_tokens', 'cache_creation_input_tokens'] as const

/** Steps of an answer whose prompt is not the conversation. */
const BESIDE = new Set<unknown>(['advisor_message', 'compaction'])

/** Returns what a step used, if another model than the one that was asked took it. */
function ofOther(step: Json) {
  const model = textOf(step['model'])
  const usage = model === '' || step['type'] === 'message' ? undefined : messagesUsage(step)
  return usage ? [{ ...usage, model }] : []
}

/** Reads `usage`, whose `input_tokens` lack cached ones; some numbers stand in the steps of an answer alone. */
function messagesUsage(usage: Json | undefined): TokenUsage | undefined {
  if (!usage) return undefined
  const steps = objectsOf(usage['iterations'])
  const last = steps.findLast(({ type }) => !BESIDE.has(type))
  const ofOthers = steps.flatMap(ofOther)
  const count = (...path: readonly string[]) => {
    const at = (value: unknown) => tokens(path.reduce<unknown>(propertyOf, value))
    return tokens(at(usage), steps.length > 0 ? steps.reduce((sum, step) => sum + (at(step) ?? 0), 0) : undefined)
  }
  const [fresh, cachedInput, written] = INPUTS.map((name) => count(name))
  const output = count('output_tokens')
  const total = count('total_tokens')
  if (fresh === undefined && output === undefined && total === undefined) return undefined
  const hourWrite = count('cache_creation', 'ephemeral_1h_input_tokens')
  const cacheWrite = tokens(written, hourWrite)
  const parts = {
    input: (fresh ?? 0) + (cachedInput ?? 0) + (cacheWrite ?? 0),
    lastInput: last && INPUTS.reduce((sum, name) => sum + (tokens(last[name]) ?? 0), 0),
    output: output ?? 0,
    cachedInput,
    cacheWrite,
    hourWrite,
    reasoning: count('output_tokens_details', 'thinking_tokens'),
    ofOthers: ofOthers.length > 0 ? ofOthers : undefined,
  }
  return withTotal(parts, total)
}

/** A call that the provider makes itself. Text of the model can't match, as its quotes are escaped. */
const RUN_BY_PROVIDER = /"type"\s{0,4}:\s{0,4}"[a-z]{1,20}_tool_use"\s{0,4},\s{0,4}"id"\s{0,4}:\s{0,4}"([^"\\]{1,200})"/

/** A summary of the provider, which has no id. */
const SUMMARY =
  /"type"\s{0,4}:\s{0,4}"compaction(?:_delta)?"\s{0,4},\s{0,4}"content"\s{0,4}:\s{0,4}("(?!")[^"\\]*(?:\\.[^"\\]*)*")/s

export const messagesReplies = {
  // Clients continue from the id of a response in a message thread only. Elsewhere they continue a paused response, and
  // send the first call of the provider in it.
  metadata(response) {
    const { withCalls, head, tail, whole, streams } = response
    const { usage, bill, id } = statedIn(response)
    const isBegun = (streams && usage && !tail.includes('"message_delta"')) || undefined
    const stated = { usage: messagesUsage(usage), isBegun, bill }
    if (!withCalls || id === '') {
      const isPaused = lastText(tail, 'stop_reason') === 'pause_turn'
      const called = isPaused ? RUN_BY_PROVIDER.exec(head.toString('latin1'))?.[1] : undefined
      const text = head.includes('"compaction"') ? SUMMARY.exec((whole ?? head).toString('utf8'))?.[1] : undefined
      const summary = text && nameOf(textOf(parseObject(`{"is":${text}}`)?.['is']))
      return { ...stated, id: called ?? summary, item: summary }
    }
    const buffered = whole && (streams ? streamedMessage(whole) : readMessage(whole)?.buffered)
    return { ...stated, id, calls: buffered?.calls }
  },
  callsNothing({ tail }) {
    const reason = lastText(tail, 'stop_reason')
    return reason !== undefined && !UNFINISHED.has(reason)
  },
  marks: {
    call: '"tool_use"',
    callIds(line) {
      const block = parseObject(line.slice(line.indexOf('{')))?.['content_block']
      return isObject(block) && isCall(block) ? [textOf(block['id'])] : []
    },
    end: (piece) => (hasError(piece) ? 'failed' : piece.includes('"message_stop"') ? 'whole' : undefined),
  },
  responseFacts: (response) => responseFacts(response, 'message', textsUnder(response.tail, 'stop_reason')),
  readAnswer: readMessage,
  writeAnswer(body, { terminal, dropCalls, text, footer, earlier }) {
    const all = responsesIn(body, earlier)
    const { stop_reason: stated } = all.response
    // Governor's own text is no refusal of the model.
    const isOwn = text !== undefined && !terminal.has_final_answer
    const reason = !dropCalls ? stated : isOwn ? 'end_turn' : stopOfAnswer(stated)
    const blocks = contentOf(all.response)
    // The reasoning and the provider's own calls stay.
    const isKept = (block: Json) => !isCall(block) && (text === undefined || block['type'] !== 'text')
    const content = dropCalls ? blocks.filter(isKept) : [...blocks]
    const isSame = text === undefined && footer === undefined && earlier.length === 0
    if (isSame && content.length === blocks.length && reason === stated) return withTerminal(body, terminal)
    if (dropCalls && text) content.push({ type: 'text', text })
    if (footer !== undefined) {
      // Some clients show the last block alone.
      const last = content.findLastIndex(({ type }) => type === 'text')
      const shown = textOf(content[last]?.['text'])
      if (last === -1) content.push({ type: 'text', text: footer })
      else content[last] = { ...content[last], text: shown + footer }
    }
    return rewritten(all, { content, stop_reason: reason, governor: terminal })
  },
  withoutCalls(body, blocked, earlier, isJson) {
    const all = responsesIn(body, earlier)
    const said = isJson ? [] : all.before
    const before = said.flatMap(contentOf).filter((block) => !isCall(block))
    let call = 0
    const left = contentOf(all.response).filter((block) => !isCall(block) || !blocked.has(call++))
    return rewritten(all, { content: [...before, ...left] })
  },
  reply(answer, streams, id) {
    const { text, model, terminal: governor } = answer
    const delta = { stop_reason: 'end_turn', stop_sequence: null }
    const message = {
      id: answer.id ?? `msg_${id}`,
      type: 'message',
      role: 'assistant',
      model,
      content: text === '' ? [] : [{ type: 'text', text }],
      ...delta,
      usage: { input_tokens: 0, output_tokens: 0 },
    }
    if (!streams) return jsonReply({ ...message, governor })
    return streamReply([
      eventFrame({ type: 'message_start', message: { ...message, content: [], stop_reason: null } }),
      ...(text === '' ? [] : textEvents(0, text)),
      eventFrame({ type: 'message_delta', delta, usage: { output_tokens: 0 }, governor }),
      eventFrame({ type: 'message_stop' }),
    ])
  },
} as const satisfies Partial<Dialect>
