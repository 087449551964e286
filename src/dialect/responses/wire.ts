/** The pieces that Responses requests, responses and events are made of. */
import type { Role, ToolCall } from '../../core/conversation.ts'
import type { BufferedCalls } from '../dialect.ts'
import { attachmentHash } from '../shared/content-parts.ts'
import { isObject, type Json, objectsOf, textOf } from '../shared/json-object.ts'

/** Calls that the provider makes itself, and answers within the same response. */
const HOSTED = new Set([
  'web_search_call',
  'file_search_call',
  'code_interpreter_call',
  'image_generation_call',
  'mcp_call',
])

/**
 * What an item of the input or the output is. `call`: the client has to make it; `result`: what came of it; `model`:
 * anything else that a model response holds; `aside`: neither said nor done by anybody, wherever it stands.
 */
export type ItemKind = 'message' | 'call' | 'result' | 'model' | 'aside'

/**
 * Kinds follow from names, so that tools which come later are read as well: `x_call` is a call and `x_call_output` its
 * result. `execution: server` says of either that the provider did it.
 */
export function kindOfItem(type: string, execution: string): ItemKind {
  switch (type) {
    case '':
    case 'message':
      return 'message'
    // Of what the provider keeps only the name is told; nothing but what a model said is referred to in practice.
    case 'item_reference':
    case 'reasoning':
    case 'mcp_list_tools':
      return 'model'
    case 'mcp_approval_request':
      return 'call'
    case 'mcp_approval_response':
      return 'result'
    default:
  }
  if (type.endsWith('_output')) return execution === 'server' ? 'model' : 'result'
  if (type.endsWith('_call')) return HOSTED.has(type) || execution === 'server' ? 'model' : 'call'
  return 'aside'
}

/** Does an item of a response ask the client to do something? */
export function isClientCall(item: Json): boolean {
  return kindOfItem(textOf(item['type']), textOf(item['execution'])) === 'call'
}

/** Calls that are referred to have ids that begin so. */
export function isCallReference(id: string): boolean {
  return /^(?:fc|ctc|lsh|sh|apc|cu)_/.test(id)
}

const ROLES: ReadonlyMap<string, Role> = new Map([
  ['system', 'system'],
  ['developer', 'system'],
  ['user', 'user'],
  ['assistant', 'assistant'],
])

/** The role of an item by itself. A role that is not known is nobody's word: a human's would start a run. */
export function roleOfItem(kind: ItemKind, role: string): Exclude<Role, 'part'> {
  switch (kind) {
    case 'message':
      return (ROLES.get(role) as Exclude<Role, 'part'> | undefined) ?? 'system'
    case 'call':
    case 'model':
      return 'assistant'
    case 'result':
      return 'tool'
    case 'aside':
      return 'system'
  }
}

/** The texts of a message's content: a string, or a list of parts of which those with a text count. */
export function textsOfContent(content: unknown): string[] {
  if (typeof content === 'string') return [content]
  return objectsOf(content).flatMap((part) => {
    const text = part['text'] ?? part['refusal']
    return typeof text === 'string' ? [text] : []
  })
}

/** What is shown and not read: a picture may be a megabyte of letters. */
const SHOWN = /image|screenshot|file|audio/

function textOfPart(part: unknown): string {
  if (!isObject(part)) return JSON.stringify(part)
  if (typeof part['text'] === 'string') return part['text']
  return SHOWN.test(textOf(part['type'])) ? attachmentHash(part) : JSON.stringify(part)
}

/** A tool's output as one text; of what is no text, all that tells it from another. */
export function textOfOutput(output: unknown): string {
  if (typeof output === 'string') return output
  if (output === undefined) return ''
  return Array.isArray(output) ? output.map(textOfPart).join('\n') : textOfPart(output)
}

/** What an item calls: functions have `arguments`, custom tools `input`, built-in ones what they are to do as an object. */
export function callOfItem(item: Json): ToolCall {
  const type = textOf(item['type'])
  const id = textOf(item['call_id'] ?? item['id'])
  const name = textOf(item['name']) || type.replace(/_call$/, '')
  const asked = item['arguments'] ?? item['input'] ?? item['action'] ?? item['actions'] ?? item['operation']
  return { id, name, arguments: typeof asked === 'string' ? asked : JSON.stringify(asked ?? {}) }
}

/** The text of a response's messages, which clients read as one. */
export function textOfOutputItems(output: readonly Json[]): string {
  return output
    .filter(({ type }) => type === 'message')
    .flatMap(({ content }) => textsOfContent(content))
    .join('')
}

/**
 * What is left of a response without some of its items, by their places. Reasoning goes with what it led to: a provider
 * refuses reasoning that is sent back without the item that followed it.
 */
export function keptPlaces(items: readonly Json[], isOut: (item: Json, at: number) => boolean): number[] {
  const kept: number[] = []
  let reasoning: number[] = []
  let isLost = false
  for (const [at, item] of items.entries()) {
    if (item['type'] === 'reasoning') {
      // The one before led to nothing that is left.
      if (isLost) reasoning = []
      isLost = false
      reasoning.push(at)
    } else if (isOut(item, at)) isLost = true
    else {
      kept.push(...reasoning, at)
      reasoning = []
      isLost = false
    }
  }
  return isLost ? kept : [...kept, ...reasoning]
}

/** The places of the items that are left when the calls in `refused`, by their place among the calls, are gone. */
export function placesWithoutBlocked(output: readonly Json[], blocked: ReadonlySet<number>): number[] {
  const calls = output.flatMap((item, at) => (isClientCall(item) ? [at] : []))
  return keptPlaces(output, (_, at) => blocked.has(calls.indexOf(at)))
}

/** What is left when all calls are gone. */
export function withoutCallItems(output: readonly Json[]): Json[] {
  return keptPlaces(output, isClientCall)
    .map((at) => output[at])
    .filter(isObject)
}

/** A message of the model's as an item of a response. */
export function messageItem(id: string, text: string): Json {
  return {
    id,
    type: 'message',
    status: 'completed',
    role: 'assistant',
    content: [{ type: 'output_text', text, annotations: [], logprobs: [] }],
  }
}

/** Members that say of a response that it is whole, and nothing is wrong with it. */
export const COMPLETED: Json = { status: 'completed', incomplete_details: null, error: null }

/** A response as the input of a later request can show it. */
export interface StoredResponse {
  readonly id: unknown
  readonly output: readonly Json[]
}

/** A response with what it calls. */
export function bufferedCallsOf(id: unknown, output: readonly Json[]): BufferedCalls {
  const message: StoredResponse = { id, output }
  const named = typeof id === 'string' ? { id } : {}
  const calls = output.filter(isClientCall).map(callOfItem)
  return { calls, text: textOfOutputItems(output), message, ...named }
}
