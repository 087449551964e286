/** Continues a conversation after Governor has blocked calls and answered them itself. */
import { isObject, type Json, objectsOf, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import { appendElement, type Edit, prependElement, removeMembers, setMember } from '../../json/edit.ts'
import type { ListIndex } from '../../json/list.ts'
import { kindAt, type Span } from '../../json/scan.ts'
import type { BlockedMessage } from '../dialect.ts'
import { callOfItem, clientCallsIn } from './wire.ts'

/** Returns the item that answers a call with a text; `undefined` if the result of such a call can't be a text. */
function outputItem(call: Json, text: string): Json | undefined {
  const { caller } = call
  const item = outputOf(call, text)
  // A result names the program that made the call, as the call does.
  return item && isObject(caller) ? { ...item, caller } : item
}

function outputOf(call: Json, text: string): Json | undefined {
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

/** Returns the results of a blocked message as items; `undefined` if one of its calls can't be answered with a text. */
function resultItems({ buffered, results }: BlockedMessage): Json[] | undefined {
  const items: Json[] = []
  for (const call of clientCallsIn(objectsOf(propertyOf(buffered.message, 'output')))) {
    const item = outputItem(call, results[items.length] ?? '')
    if (!item) return undefined
    items.push(item)
  }
  return items
}

/** Returns a blocked message's items for the input; without readable reasoning, others lose ids that refer to it. */
function asInput({ buffered }: BlockedMessage): Json[] {
  const items = objectsOf(propertyOf(buffered.message, 'output'))
  const readable = items.filter((item) => item['type'] !== 'reasoning' || typeof item['encrypted_content'] === 'string')
  return readable.length === items.length ? items : readable.map(({ id: _id, ...item }) => item)
}

/** Returns the edits of `continueAfterBlock`. `isKept`: the provider stores this request and its response. */
export function continueAfterBlock(
  { json, object, fields, list }: ListIndex<Span>,
  blockedMessages: readonly BlockedMessage[],
  isKept: boolean,
  isConversation: boolean,
): Edit[] | undefined {
  const results = blockedMessages.map(resultItems)
  if (isKept) {
    // The provider has stored the blocked response: only its results are sent.
    const id = blockedMessages.at(-1)?.buffered.id
    const text = JSON.stringify(results.at(-1))
    if (id === undefined || text === undefined) return undefined
    const input = setMember(object, fields, 'input', text)
    if (isConversation) return [input]
    return [input, setMember(object, fields, 'previous_response_id', JSON.stringify(id))]
  }
  // An input that is a text begins its conversation: no call can have been blocked.
  if (results.includes(undefined) || kindAt(json, list) !== 'array') return undefined
  const added = blockedMessages.flatMap((one, at) => [...asInput(one), ...(results[at] ?? [])])
  return [appendElement(json, list, JSON.stringify(added).slice(1, -1))]
}

/** Returns the results (JSON texts) of a blocked message; none if one of its calls can't be answered with a text. */
export function resultsOfBlocked(blockedMessage: BlockedMessage): readonly string[] {
  return (resultItems(blockedMessage) ?? []).map((item) => JSON.stringify(item))
}

/** The members by which results name their calls. */
export const NAMING = ['call_id', 'approval_request_id', 'id'] as const

/** Returns those of the pending results (JSON texts) whose calls the results `ids` do not name. */
export function resultsLeft(pendingResults: readonly string[], ids: ReadonlySet<string>): readonly string[] {
  if (ids.size === 0) return pendingResults
  return pendingResults.filter((text) => {
    const result = parseObject(text) ?? {}
    return !NAMING.some((name) => ids.has(textOf(result[name])))
  })
}

/**
 * Returns edits that put results at the start of the input, and continue from the response `redirectTo`, or from none
 * if that is empty.
 */
export function injectPendingResults(
  { json, object, fields, list }: ListIndex<Span>,
  pendingResults: readonly string[],
  redirectTo: string | undefined,
): Edit[] {
  const edits =
    redirectTo === ''
      ? removeMembers(fields, new Set(['previous_response_id']))
      : redirectTo === undefined
        ? []
        : [setMember(object, fields, 'previous_response_id', JSON.stringify(redirectTo))]
  if (pendingResults.length === 0) return edits
  const items = pendingResults.join(',')
  const kind = kindAt(json, list)
  if (kind === 'array') return [...edits, prependElement(json, list, items)]
  const text = kind === 'string' ? `,{"role":"user","content":${json.toString('utf8', list.start, list.end)}}` : ''
  return [...edits, setMember(object, fields, 'input', `[${items}${text}]`)]
}
