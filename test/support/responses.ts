/** The provider's side of the Responses API: its objects and events, and the conversations that it keeps. */
import type { Answer, ChatBody } from './provider.ts'

export type Item = Readonly<Record<string, unknown>>

const USAGE = {
  input_tokens: 100,
  input_tokens_details: { cached_tokens: 20 },
  output_tokens: 10,
  output_tokens_details: { reasoning_tokens: 4 },
  total_tokens: 110,
}

export function inputOf(request: ChatBody): Item[] {
  const input = request['input']
  if (typeof input === 'string') return [{ type: 'message', role: 'user', content: input }]
  return Array.isArray(input) ? (input as Item[]) : []
}

/** The items of a response, as its provider would number them. */
export function outputOf(answer: Answer, number: number): Item[] {
  const text = { type: 'output_text', text: answer.text, annotations: [], logprobs: [] }
  return [
    ...((answer.blocks ?? []) as readonly Item[]),
    ...(answer.reasoning === undefined
      ? []
      : [{ id: `rs_${number}`, type: 'reasoning', summary: [], encrypted_content: answer.reasoning }]),
    ...(answer.text === undefined
      ? []
      : [{ id: `msg_${number}`, type: 'message', status: 'completed', role: 'assistant', content: [text] }]),
    ...(answer.calls ?? []).map((call, index) => {
      const text = typeof call.arguments === 'string' ? call.arguments : JSON.stringify(call.arguments)
      return {
        id: `${call.isCustom ? 'ctc' : 'fc'}_${number}_${index}`,
        type: call.isCustom ? 'custom_tool_call' : 'function_call',
        status: 'completed',
        name: call.name,
        ...(call.namespace === undefined ? {} : { namespace: call.namespace }),
        ...(call.isCustom ? { input: text } : { arguments: text }),
        call_id: call.id ?? `call_${number}_${index}`,
      }
    }),
  ]
}

/** A whole response to a request. */
export function responseObject(request: ChatBody, answer: Answer, number: number): Item {
  return {
    id: `resp_${number}`,
    object: 'response',
    created_at: 1_760_000_000,
    status: answer.finish ?? 'completed',
    background: false,
    error: null,
    incomplete_details: answer.finish === 'incomplete' ? { reason: 'max_output_tokens' } : null,
    instructions: request['instructions'] ?? null,
    max_output_tokens: null,
    model: request.model,
    output: outputOf(answer, number),
    parallel_tool_calls: true,
    previous_response_id: request['previous_response_id'] ?? null,
    reasoning: { effort: null, summary: null },
    store: request['store'] !== false,
    temperature: 1,
    text: { format: { type: 'text' } },
    tool_choice: request.tool_choice ?? 'auto',
    tools: request.tools ?? [],
    top_p: 1,
    truncation: 'disabled',
    usage: USAGE,
    user: null,
    metadata: {},
  }
}

function itemEvents(item: Item, index: number): Item[] {
  const added = (fields: object) => ({
    type: 'response.output_item.added',
    output_index: index,
    item: { ...item, ...fields },
  })
  const done = { type: 'response.output_item.done', output_index: index, item }
  const place = { item_id: item['id'], output_index: index }
  if (item['type'] === 'function_call') {
    const { arguments: text } = item
    const within = 'response.function_call_arguments'
    return [
      added({ status: 'in_progress', arguments: '' }),
      { type: `${within}.delta`, ...place, delta: text },
      { type: `${within}.done`, ...place, arguments: text },
      done,
    ]
  }
  if (item['type'] !== 'message') return [added({}), done]
  const [part] = item['content'] as { text: string }[]
  const text = part?.text ?? ''
  const at = { ...place, content_index: 0 }
  return [
    added({ status: 'in_progress', content: [] }),
    { type: 'response.content_part.added', ...at, part: { ...part, text: '' } },
    ...text
      .split(/(?<= )/)
      .filter((word) => word !== '')
      .map((delta) => ({ type: 'response.output_text.delta', ...at, delta, logprobs: [] })),
    { type: 'response.output_text.done', ...at, text, logprobs: [] },
    { type: 'response.content_part.done', ...at, part },
    done,
  ]
}

/** The same response as the events of a stream, without their numbers. */
export function responseEvents(whole: Item): Item[] {
  const begun = { ...whole, status: 'in_progress', output: [], usage: null }
  const output = whole['output'] as Item[]
  return [
    { type: 'response.created', response: begun },
    { type: 'response.in_progress', response: begun },
    ...output.flatMap((item, index) => itemEvents(item, index)),
    { type: `response.${String(whole['status'])}`, response: whole },
  ]
}

/** Events as they go over the wire, numbered. */
export function eventTexts(events: readonly Item[]): string[] {
  return events.map((event, number) => {
    const { type, ...fields } = event
    return `event: ${String(type)}\ndata: ${JSON.stringify({ type, sequence_number: number, ...fields })}\n\n`
  })
}

function refusal(message: string, param: string): { readonly status: number; readonly body: object } {
  return { status: 400, body: { error: { message, type: 'invalid_request_error', param, code: null } } }
}

/** Returns what is wrong with a conversation, in the provider's words; `undefined` if it is valid. */
export function faultOf(items: readonly Item[]): string | undefined {
  const ids = (type: string) => items.filter((item) => item['type'] === type).map((item) => item['call_id'] as string)
  const [calls, outputs] = [ids('function_call'), ids('function_call_output')]
  const open = calls.find((id) => !outputs.includes(id))
  if (open !== undefined) return `No tool output found for function call ${open}.`
  const stray = outputs.find((id) => !calls.includes(id))
  if (stray !== undefined) return `No tool call found for function call output with call_id ${stray}.`
  const isOfModel = (item: Item | undefined) =>
    item?.['role'] === 'assistant' || ['reasoning', 'function_call'].includes(String(item?.['type']))
  const lonely = items.find((item, at) => item['type'] === 'reasoning' && !isOfModel(items[at + 1]))
  if (lonely)
    return `Item '${String(lonely['id'])}' of type 'reasoning' was provided without its required following item.`
  return undefined
}

/** Stores responses and conversations by id like the API, and refuses the same requests. */
export interface Kept {
  /** Returns the model's input, including the history; a refusal if the request is not valid. */
  open(request: ChatBody): { readonly items: readonly Item[] } | { readonly status: number; readonly body: object }
  /** Stores a response. */
  close(request: ChatBody, items: readonly Item[], response: Item): void
}

export function createKept(): Kept {
  const responses = new Map<string, readonly Item[]>()
  const conversations = new Map<string, readonly Item[]>()
  const conversationOf = ({ conversation }: ChatBody): string | undefined => {
    if (typeof conversation === 'string') return conversation
    return (conversation as { id: string } | undefined)?.id
  }
  return {
    open(request) {
      const previous = request['previous_response_id']
      const conversation = conversationOf(request)
      const before =
        typeof previous === 'string'
          ? responses.get(previous)
          : ((conversation && conversations.get(conversation)) ?? [])
      if (!before) {
        return refusal(`Previous response with id '${String(previous)}' not found.`, 'previous_response_id')
      }
      const known = new Map([...responses.values()].flat().map((item) => [item['id'], item]))
      const input = inputOf(request).map((item) =>
        item['type'] === 'item_reference' ? (known.get(item['id']) ?? item) : item,
      )
      const items = [...before, ...input]
      const fault = faultOf(items)
      return fault === undefined ? { items } : refusal(fault, 'input')
    },
    close(request, items, response) {
      const all = [...items, ...(response['output'] as Item[])]
      if (request['store'] !== false) responses.set(String(response['id']), all)
      const conversation = conversationOf(request)
      if (conversation) conversations.set(conversation, all)
    },
  }
}
