/** The pieces that Messages responses and their events are made of. */
import { isObject, type Json, objectsOf, textOf } from '../shared/json-object.ts'

export function isCall(block: unknown): boolean {
  return isObject(block) && block['type'] === 'tool_use'
}

/** The blocks of a response. */
export function contentOf(message: Json): Json[] {
  return objectsOf(message['content'])
}

export function answerText(content: readonly Json[]): string {
  return content
    .filter(({ type }) => type === 'text')
    .map(({ text }) => textOf(text))
    .join('')
}

/**
 * A stop reason from the provider's own list that is still true once the calls are gone: nothing is left to be run by the
 * client, or to be gone on with.
 */
export function stopWithoutCalls(reason: unknown): unknown {
  return reason === 'tool_use' || reason === 'pause_turn' ? 'end_turn' : reason
}

/** Does a stop reason say that the answer was cut off? */
export function isCutOff(reason: unknown): boolean {
  return reason === 'max_tokens' || reason === 'model_context_window_exceeded'
}

/** The usage of a response that was streamed: what its start said, and what later events said more exactly. */
export function laterUsage(start: unknown, later: unknown): unknown {
  if (!isObject(start) || !isObject(later)) return isObject(later) ? later : start
  const told = Object.entries(later).filter(([, value]) => value !== null)
  return { ...start, ...Object.fromEntries(told) }
}

/**
 * The response that a request goes on from: in a message thread the provider keeps system text, tools and messages, and
 * takes what is new alone. Source: platform.claude.com/docs/en/build-with-claude/message-threads
 */
export function previousIn(field: (name: string) => unknown): string | undefined {
  const thread = field('thread')
  if (!isObject(thread) || thread['type'] !== 'continue') return undefined
  return textOf(thread['previous_message_id']) || undefined
}
