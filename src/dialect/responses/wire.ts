/** Reads the parts of Responses requests and responses, and writes events of their streams. */
import type { Role, ToolCall } from '../../core/conversation/conversation.ts'
import { nameOf } from '../../core/hash.ts'
import { isObject, type Json, objectsOf, propertyOf, textOf } from '../../core/json-object.ts'
import { withMembers } from '../../json/edit.ts'
import type { BufferedCalls } from '../dialect.ts'
import { attachmentHash } from '../shared/request.ts'

/** Types of calls that the provider makes itself and answers in the same response; the last four are xAI's. */
const HOSTED = new Set([
  'web_search_call',
  'file_search_call',
  'code_interpreter_call',
  'image_generation_call',
  'mcp_call',
  'x_search_call',
  'code_execution_call',
  'view_image_call',
  'view_x_video_call',
])

/** How the ids of xAI's own calls begin that have the type of a client's call. */
export const HOSTED_CALL_ID = 'xs_call'

/** Where a shell of the provider runs its commands; a client's is `local`. */
export const HOSTED_SHELL = 'container_reference'

/** What says that the provider made a call itself, whatever its type. */
export interface Maker {
  readonly execution: string
  readonly callId: string
  /** Where the commands of a shell run. */
  readonly environment: string
}

function isHosted(type: string, { execution, callId, environment }: Maker): boolean {
  return (
    HOSTED.has(type) ||
    execution === 'server' ||
    environment === HOSTED_SHELL ||
    (type === 'custom_tool_call' && callId.startsWith(HOSTED_CALL_ID))
  )
}

/** What an item is: a client's `call`, its result (`tool`), other output (`assistant`), or neither (`aside`). */
type ItemKind = 'message' | 'call' | 'tool' | 'assistant' | 'aside'

/** Returns the kind of an item by the form of its type, also of future tools: `x_call`, `x_call_output`. */
export function kindOfItem(type: string, maker: Maker): ItemKind {
  switch (type) {
    case '':
    case 'message':
      return 'message'
    // A reference contains only an id; in practice clients refer only to items of a model response.
    case 'item_reference':
    case 'reasoning':
    case 'mcp_list_tools':
    // The model wrote the program, and the provider runs it.
    case 'program':
    case 'program_output':
      return 'assistant'
    case 'mcp_approval_request':
      return 'call'
    case 'mcp_approval_response':
      return 'tool'
    default:
  }
  if (type.endsWith('_output')) return maker.execution === 'server' ? 'assistant' : 'tool'
  if (type.endsWith('_call')) return isHosted(type, maker) ? 'assistant' : 'call'
  return 'aside'
}

function kindOf({ type, execution, call_id: callId, environment }: Json): ItemKind {
  const place = textOf(propertyOf(environment, 'type'))
  return kindOfItem(textOf(type), { execution: textOf(execution), callId: textOf(callId), environment: place })
}

export function isClientCall(item: Json): boolean {
  return kindOf(item) === 'call'
}

/** Returns the id of the call that an item of an output answers; `undefined` if it answers none. */
export function answeredBy(item: Json): string | undefined {
  return kindOf(item) === 'tool' ? textOf(item['call_id']) || undefined : undefined
}

/** Returns the calls of an output that the client has to make: not those that the provider has answered beside them. */
export function clientCallsIn(output: readonly Json[]): Json[] {
  const answered = new Set(output.map(answeredBy))
  return output.filter((item) => isClientCall(item) && !answered.has(textOf(item['call_id'])))
}

/** A name that no tool has for an argument. */
const BROUGHT = 'governor:brought'

/** The id of a call, which begins with the type of the call. */
export const CALL_ID = /^(?:fc|ctc|lsh|sh|apc|cu)_/

/** Returns the role of an item. A message names its `role`; an unknown one is `system`, as `user` would start a run. */
export function roleOfItem(kind: ItemKind, role: string): Role {
  if (kind === 'message') return role === 'user' || role === 'assistant' ? role : 'system'
  if (kind === 'call') return 'assistant'
  return kind === 'aside' ? 'system' : kind
}

/** Returns the texts of a message's content, which is a string or a list of parts. */
export function textsOfContent(content: unknown): string[] {
  if (typeof content === 'string') return [content]
  const texts = objectsOf(content).map(({ text, refusal }) => text ?? refusal)
  return texts.filter((text) => typeof text === 'string')
}

/** Types of attachments: a picture may be a megabyte of base64. */
const ATTACHMENT = /image|screenshot|file|audio/

/** Returns the output of a tool as one text, with JSON or a hash for each part that is not text. */
export function textOfOutput(output: unknown): string {
  if (typeof output === 'string') return output
  if (output === undefined) return ''
  const texts = (Array.isArray(output) ? output : [output]).map((part) => {
    const text = propertyOf(part, 'text')
    if (typeof text === 'string') return text
    return isObject(part) && ATTACHMENT.test(textOf(part['type'])) ? attachmentHash(part) : JSON.stringify(part)
  })
  return texts.join('\n')
}

/** Returns what an MCP call of the provider brought; `undefined` for any other item. */
export function broughtBy({ type, output, error }: Json): string | undefined {
  return type === 'mcp_call' ? nameOf(textOf(output), JSON.stringify(error ?? null)) : undefined
}

/** Returns the JSON text of the arguments with one more; as they are if they are no object. */
function withArgument(args: string, name: string, value: string): string {
  try {
    return withMembers(Buffer.from(args), { [name]: JSON.stringify(value) }).toString()
  } catch {
    return args
  }
}

/**
 * Returns the call of an item: JSON `arguments`, `input` or an object; only the id of a reference is known. `brought`:
 * what MCP calls before it in its response did. A request for approval is equal to another one only after the same, as
 * what its call brings stands in the next response alone.
 */
export function callOfItem(item: Json, brought: readonly string[] = []): ToolCall {
  const type = textOf(item['type'])
  const itemId = textOf(item['id'])
  if (type === 'item_reference') return { id: itemId, item: itemId, name: '', arguments: '' }
  const id = textOf(item['call_id'] ?? item['id'])
  const name = textOf(item['name']) || type.replace(/_call$/, '')
  const args = item['arguments'] ?? item['input'] ?? item['action'] ?? item['actions'] ?? item['operation']
  const text = typeof args === 'string' ? args : JSON.stringify(args ?? {})
  const isApproval = type === 'mcp_approval_request' && brought.length > 0
  return { id, name, arguments: isApproval ? withArgument(text, BROUGHT, nameOf(...brought)) : text }
}

/** Returns the calls of an output that the client has to make, in the order of `clientCallsIn`. */
export function callsIn(output: readonly Json[]): ToolCall[] {
  const own = new Set(clientCallsIn(output))
  const calls: ToolCall[] = []
  const brought: string[] = []
  for (const item of output) {
    const result = broughtBy(item)
    if (result !== undefined) brought.push(result)
    else if (own.has(item)) calls.push(callOfItem(item, brought))
  }
  return calls
}

/** Returns the text of all messages in an output, which clients read as one. */
export function textOfOutputItems(output: readonly Json[]): string {
  return output.flatMap(({ type, content }) => (type === 'message' ? textsOfContent(content) : [])).join('')
}

/** Returns an output without its blocked calls (places among the calls), nor the reasoning before them. */
export function itemsLeft(output: readonly Json[], blocked: ReadonlySet<number> | 'all'): Json[] {
  const kept: Json[] = []
  const clientCalls = new Set(clientCallsIn(output))
  let reasoning: Json[] = []
  let isLost = false
  let calls = 0
  for (const item of output) {
    if (item['type'] === 'reasoning') {
      // The item after the earlier reasoning is removed.
      if (isLost) reasoning = []
      isLost = false
      reasoning.push(item)
    } else if (clientCalls.has(item) && (blocked === 'all' || blocked.has(calls++))) isLost = true
    else {
      kept.push(...reasoning, item)
      reasoning = []
      isLost = false
    }
  }
  return isLost ? kept : [...kept, ...reasoning]
}

export function textPart(text: string): Json {
  return { type: 'output_text', text, annotations: [], logprobs: [] }
}

export function messageItem(id: string, text: string): Json {
  return { id, type: 'message', status: 'completed', role: 'assistant', content: [textPart(text)] }
}

/** Returns a message with more text at the end of its last text. */
export function withAddedText(item: Json, added: string): Json {
  const content = objectsOf(item['content'])
  const last = content.findLastIndex(({ text }) => typeof text === 'string')
  const part = content[last]
  if (part) content[last] = { ...part, text: textOf(part['text']) + added }
  else content.push(textPart(added))
  return { ...item, content }
}

/** The members of a complete response without an error. */
export const COMPLETED: Json = { status: 'completed', incomplete_details: null, error: null }

export function bufferedCallsOf(id: unknown, output: readonly Json[]): BufferedCalls {
  const named = typeof id === 'string' ? { id } : {}
  const calls = callsIn(output)
  return { calls, text: textOfOutputItems(output), message: { id, output }, ...named }
}

/** Returns the events of a whole message, without sequence numbers: three begin it, three end it. */
export function messageEvents(item: Json, text: string, index: number): Json[] {
  const place = { item_id: item['id'], output_index: index, content_index: 0 }
  const begun = { ...item, status: 'in_progress', content: [] }
  return [
    { type: 'response.output_item.added', output_index: index, item: begun },
    { type: 'response.content_part.added', ...place, part: textPart('') },
    { type: 'response.output_text.delta', ...place, delta: text, logprobs: [] },
    { type: 'response.output_text.done', ...place, text, logprobs: [] },
    { type: 'response.content_part.done', ...place, part: textPart(text) },
    { type: 'response.output_item.done', output_index: index, item },
  ]
}
