/** Collapses repeated tool calls in a copy of a request, for a provider that refuses a history because of them. */
import type { Conversation } from '../../core/conversation.ts'
import { callHash } from '../../core/loop/tool-call.ts'
import { type Edit, removeItems } from '../../json/edit.ts'
import type { IndexedItem, IndexedList } from '../dialect.ts'

/** One response with calls and the messages with their results: `end` is the index after the last of these. */
interface Step {
  readonly start: number
  readonly end: number
}

function resultsEnd(conversation: Conversation, start: number): number {
  let end = start + 1
  while (conversation.role(end) === 'part') end++
  const isResult = (at: number) =>
    conversation.resultCount(at) > 0 && (conversation.role(at) === 'tool' || conversation.texts(at).length === 0)
  while (end < conversation.length && isResult(end)) end++
  return end
}

/** Returns the steps with equal calls, oldest first, for each kind of step since the same words of a user. */
function equalSteps(conversation: Conversation): readonly Step[][] {
  const groups: Step[][] = []
  let byCalls = new Map<string, Step[]>()
  for (let start = 0; start < conversation.length; start++) {
    if (conversation.role(start) === 'user' && conversation.resultCount(start) === 0) byCalls = new Map()
    if (conversation.callCount(start) === 0) continue
    const step = { start, end: resultsEnd(conversation, start) }
    const calls = conversation.calls(start)
    // Without exactly the results of its calls, the history would not stay valid.
    const open = new Set(calls.map(({ id }) => id))
    let isWhole = true
    for (let at = start + 1; at < step.end; at++)
      for (const { callId } of conversation.results(at)) isWhole &&= open.delete(callId)
    if (!isWhole || open.size > 0) continue
    const key = calls.map(({ name, arguments: text }) => callHash(name, text, conversation.work)).join(' ')
    const group = byCalls.get(key)
    if (group) group.push(step)
    else {
      const begun = [step]
      byCalls.set(key, begun)
      groups.push(begun)
    }
  }
  return groups
}

/**
 * Returns edits that leave only the newest of equal steps, with their count at the end of its last result; an empty
 * list if nothing is repeated. `addText` appends a text to the item at an index.
 */
export function collapseRepeats(
  { items }: IndexedList,
  conversation: Conversation,
  addText: (at: number, text: string) => Edit | undefined,
): Edit[] {
  const removed = new Set<IndexedItem>()
  const counts: Edit[] = []
  for (const steps of equalSteps(conversation)) {
    const newest = steps.pop()
    if (!newest || steps.length === 0) continue
    for (const { start, end } of steps) for (const item of items.slice(start, end)) removed.add(item)
    const text = `(This call was made ${steps.length + 1} times. Only its newest result is shown.)`
    const count = addText(newest.end - 1, text)
    if (count) counts.push(count)
  }
  return [...removeItems(items, (item) => removed.has(item)), ...counts]
}
