/** Reads the parts of Messages responses and events. */
import { isObject, type Json, objectsOf, textOf } from '../../core/json-object.ts'

/** True if a block is a call that the client has to make. */
export function isCall(block: unknown): boolean {
  return isObject(block) && block['type'] === 'tool_use'
}

/** Returns the content blocks of a response. */
export function contentOf(message: Json): Json[] {
  return objectsOf(message['content'])
}

/** Returns the text of a response's blocks. */
export function answerText(content: readonly Json[]): string {
  return content
    .filter(({ type }) => type === 'text')
    .map(({ text }) => textOf(text))
    .join('')
}

/** Returns the stop reason that is true once the calls are removed: the client has nothing to run or to continue. */
export function stopWithoutCalls(reason: unknown): unknown {
  return reason === 'tool_use' || reason === 'pause_turn' ? 'end_turn' : reason
}

/** True if a stop reason says that the provider cut the answer off. */
export function isCutOff(reason: unknown): boolean {
  return reason === 'max_tokens' || reason === 'model_context_window_exceeded'
}

/** Returns the usage of a streamed response: values of later events replace those of its start, except null. */
export function laterUsage(start: unknown, later: unknown): unknown {
  if (!isObject(start) || !isObject(later)) return isObject(later) ? later : start
  const stated = Object.entries(later).filter(([, value]) => value !== null)
  return { ...start, ...Object.fromEntries(stated) }
}

/**
 * Returns the id of the response from which a request continues; `undefined` outside of a message thread, in which the
 * provider stores system text, tools and messages. Source:
 * platform.claude.com/docs/en/build-with-claude/message-threads
 */
export function previousIdIn(field: (name: string) => unknown): string | undefined {
  const thread = field('thread')
  if (!isObject(thread) || thread['type'] !== 'continue') return undefined
  return textOf(thread['previous_message_id']) || undefined
}
