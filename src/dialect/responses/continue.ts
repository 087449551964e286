/** How a conversation goes on after calls that Governor answered itself. */
import { appendElement, type Edit, prependElement, setMember } from '../../json/edit.ts'
import type { ListIndex } from '../../json/list.ts'
import { kindAt, member, members, type Span } from '../../json/scan.ts'
import type { BlockedMessage } from '../dialect.ts'
import { isObject, type Json, objectsOf, textOf } from '../shared/json-object.ts'
import { callOfItem, isClientCall } from './wire.ts'

/** What a tool of each kind would have answered; `undefined` where no words can stand for it. */
function outputItem(call: Json, text: string): Json | undefined {
  const { id } = callOfItem(call)
  switch (call['type']) {
    case 'function_call':
    case 'custom_tool_call':
      return { type: `${textOf(call['type'])}_output`, call_id: id, output: text }
    case 'local_shell_call':
      return { type: 'local_shell_call_output', id, output: JSON.stringify({ output: text }) }
    case 'shell_call': {
      const outcome = { type: 'exit', exit_code: 1 }
      return { type: 'shell_call_output', call_id: id, output: [{ stdout: '', stderr: text, outcome }] }
    }
    case 'apply_patch_call':
      return { type: 'apply_patch_call_output', call_id: id, status: 'failed', output: text }
    case 'mcp_approval_request':
      return { type: 'mcp_approval_response', approval_request_id: id, approve: false, reason: text }
    default:
      return undefined
  }
}

function itemsOf({ buffered }: BlockedMessage): Json[] {
  return isObject(buffered.message) ? objectsOf(buffered.message['output']) : []
}

/** The results of a round as items; `undefined` where one of its calls can't be answered in words. */
export function resultItems(blockedMessage: BlockedMessage): Json[] | undefined {
  const outputs = itemsOf(blockedMessage)
    .filter(isClientCall)
    .map((call, at) => outputItem(call, blockedMessage.results[at] ?? ''))
  return outputs.every((item) => item !== undefined) ? outputs : undefined
}

/**
 * A response as it is sent back where its provider has not kept it. Reasoning can only be read with its encrypted
 * content; without it, items must not be known by the ids that tie them to it.
 */
function asInput(items: readonly Json[]): Json[] {
  const isReadable = (item: Json) =>
    item['type'] !== 'reasoning' || typeof item['encrypted_content'] === 'string'
  if (items.every(isReadable)) return [...items]
  return items.filter(isReadable).map(({ id: _id, ...item }) => item)
}

/** With the history in the request, what was said and answered stands at its end. */
function atTheEnd(
  { json, list }: ListIndex<Span>,
  blockedMessages: readonly BlockedMessage[],
): Edit[] | undefined {
  const added: Json[] = []
  for (const blockedMessage of blockedMessages) {
    const outputs = resultItems(blockedMessage)
    if (!outputs) return undefined
    added.push(...asInput(itemsOf(blockedMessage)), ...outputs)
  }
  // An input that is one text is the first of its conversation: there is nothing yet to refuse a call for.
  if (kindAt(json, list) !== 'array') return undefined
  return [appendElement(json, list, added.map((item) => JSON.stringify(item)).join(','))]
}

/** Where the provider has kept the refused response, only the results are sent, after it. */
function afterResponse(
  { object, fields, list }: ListIndex<Span>,
  blockedMessages: readonly BlockedMessage[],
  isConversation: boolean,
): Edit[] | undefined {
  const last = blockedMessages.at(-1)
  const outputs = last && resultItems(last)
  const id = last && isObject(last.buffered.message) ? last.buffered.message['id'] : undefined
  if (!outputs || typeof id !== 'string') return undefined
  const hasInput = fields.some(({ key }) => key === 'input')
  const text = JSON.stringify(outputs)
  const input = hasInput ? { ...list, text } : setMember(object, fields, 'input', text)
  if (isConversation) return [input]
  return [input, setMember(object, fields, 'previous_response_id', JSON.stringify(id))]
}

/** `isKept`: the provider keeps this request and the response to it. */
export function continueAfterBlock(
  index: ListIndex<Span>,
  blockedMessages: readonly BlockedMessage[],
  { isKept, isConversation }: { readonly isKept: boolean; readonly isConversation: boolean },
): Edit[] | undefined {
  return isKept ? afterResponse(index, blockedMessages, isConversation) : atTheEnd(index, blockedMessages)
}

/** Results as JSON of those calls of a round that the client does not get. */
export function resultsOfBlocked(
  blockedMessage: BlockedMessage,
  blocked: ReadonlySet<number>,
): readonly string[] {
  const outputs = resultItems(blockedMessage) ?? []
  return outputs.filter((_, at) => blocked.has(at)).map((item) => JSON.stringify(item))
}

/** Sends results along that the provider waits for, before all else, and goes on from the response that it kept. */
export function injectPendingResults(
  { json, object, fields, list }: ListIndex<Span>,
  pendingResults: readonly string[],
  redirectTo: string | undefined,
): Edit[] {
  const previous =
    redirectTo === undefined
      ? []
      : [setMember(object, fields, 'previous_response_id', JSON.stringify(redirectTo))]
  if (pendingResults.length === 0) return previous
  const items = pendingResults.join(',')
  const kind = kindAt(json, list)
  if (kind === 'array') return [...previous, prependElement(json, list, items)]
  if (kind !== 'string') return [...previous, setMember(object, fields, 'input', `[${items}]`)]
  const said = json.toString('utf8', list.start, list.end)
  return [...previous, { ...list, text: `[${items},{"role":"user","content":${said}}]` }]
}

/** Longer results, in bytes together, are not kept: the model is told that they got lost. */
const MAX_PENDING_RESULTS = 65_536

/** The results in an input, as JSON; those of calls that the provider waits for. */
export function resultsIn({
  json,
  items,
}: ListIndex<Span & { readonly isResult: boolean }>): readonly string[] {
  const results = items.filter(({ isResult }) => isResult)
  const texts = results.map(({ start, end }) => json.toString('utf8', start, end))
  if (texts.reduce((sum, text) => sum + text.length, 0) <= MAX_PENDING_RESULTS) return texts
  return results.map((result, at) => {
    const output = member(members(json, result), 'output')?.value
    if (!output || kindAt(json, output) !== 'string') return texts[at] ?? ''
    const [before, after] = [json.subarray(result.start, output.start), json.subarray(output.end, result.end)]
    return `${before}${JSON.stringify(LOST)}${after}`
  })
}

const LOST = '(This result is not available any more.)'
