/** Collapses repeated tool calls in a copy of a request, for a provider that refuses a history because of them. */
import type { Conversation } from '../../core/conversation/conversation.ts'
import { callHash } from '../../core/loop/tool-call.ts'
import { type Edit, removeItems } from '../../json/edit.ts'
import type { IndexedItem, IndexedList } from '../dialect.ts'

/** Returns the index after the last of the messages with the results of the response that begins at `start`. */
function resultsEnd(conversation: Conversation, start: number): number {
  let end = start + 1
  while (conversation.role(end) === 'part') end++
  for (; end < conversation.length && conversation.resultCount(end) > 0; end++)
    if (conversation.role(end) !== 'tool' && conversation.texts(end).length > 0) break
  return end
}

/**
 * Returns the text of a response's calls; `undefined` without exactly their results: the history would not stay valid.
 */
function keyOf(conversation: Conversation, start: number, end: number): string | undefined {
  const calls = conversation.calls(start)
  const open = new Set(calls.map(({ id }) => id))
  let isWhole = true
  for (let at = start + 1; at < end; at++)
    for (const { callId } of conversation.results(at)) isWhole &&= open.delete(callId)
  if (!isWhole || open.size > 0) return undefined
  return calls.map(({ name, arguments: text }) => callHash(name, text, conversation.work)).join(' ')
}

/**
 * Returns edits that leave only the newest of equal calls since the same words of a user, with their count at the end
 * of its last result; an empty list if nothing is repeated.
 */
export function collapseRepeats(
  { items }: IndexedList,
  conversation: Conversation,
  addText: (at: number, text: string) => Edit | undefined,
): Edit[] {
  const removed = new Set<IndexedItem>()
  /** How often calls were made, by the end of their newest results. */
  const counts = new Map<number, number>()
  let newest = new Map<string, { readonly start: number; readonly end: number }>()
  for (let start = 0; start < conversation.length; start++) {
    if (conversation.role(start) === 'user' && conversation.resultCount(start) === 0) newest = new Map()
    if (conversation.callCount(start) === 0) continue
    const end = resultsEnd(conversation, start)
    const key = keyOf(conversation, start, end)
    if (key === undefined) continue
    const before = newest.get(key)
    newest.set(key, { start, end })
    if (!before) continue
    for (const item of items.slice(before.start, before.end)) removed.add(item)
    counts.set(end, (counts.get(before.end) ?? 1) + 1)
    counts.delete(before.end)
  }
  const edits = removeItems(items, removed)
  for (const [end, count] of counts) {
    const edit = addText(end - 1, `(This call was made ${count} times. Only its newest result is shown.)`)
    if (edit) edits.push(edit)
  }
  return edits
}
