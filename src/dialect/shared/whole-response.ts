/** Writes whole (not streamed) responses. The client sees several responses as one, with the sum of their usage. */
import { isObject, type Json, parseObject } from '../../core/json-object.ts'
import { withMembers } from '../../json/edit.ts'
import type { AnswerChange, GovernorReply } from '../dialect.ts'

/** Returns the sum of two usage objects, number by number, nested details included. */
export function addUsage(a: unknown, b: unknown): unknown {
  if (typeof a === 'number' && typeof b === 'number') return a + b
  if (!isObject(a) || !isObject(b)) return b ?? a
  const keys = new Set([...Object.keys(a), ...Object.keys(b)])
  return Object.fromEntries([...keys].map((key) => [key, addUsage(a[key], b[key])]))
}

/**
 * Writes a response with other members, and with the usage of the `earlier` responses added. A body that is not an
 * object counts as an empty one.
 */
export function rewritten(
  body: Buffer,
  earlier: readonly Buffer[],
  changes: (response: Json, before: readonly Json[]) => Json,
): Buffer {
  const [response = {}, ...before] = [body, ...earlier].map((one) => parseObject(one.toString('utf8')) ?? {})
  const stated = [...before, response].map(({ usage }) => usage).filter(isObject)
  const usage = stated.length > 0 ? { usage: stated.reduce<unknown>(addUsage, undefined) } : {}
  return Buffer.from(JSON.stringify({ ...response, ...changes(response, before), ...usage }))
}

/** Writes a response as the final answer of a run. `changes`: other members; `undefined` if none has to change. */
export function writeAnswer(
  body: Buffer,
  { terminal: governor, earlier }: AnswerChange,
  changes: (response: Json) => Json | undefined,
): Buffer {
  const changed = changes(parseObject(body.toString('utf8')) ?? {})
  // If only the terminal state is added, all other bytes stay as the provider sent them.
  if (!changed) return withMembers(body, { governor: JSON.stringify(governor) })
  return rewritten(body, earlier, () => ({ ...changed, governor }))
}

/** Returns a reply of Governor's own that is not streamed. */
export function jsonReply(body: Json): GovernorReply {
  return { contentType: 'application/json', body: Buffer.from(JSON.stringify(body)) }
}

/** Returns a reply of Governor's own with these events. */
export function streamReply(events: readonly Buffer[]): GovernorReply {
  return { contentType: 'text/event-stream; charset=utf-8', body: Buffer.concat(events) }
}
