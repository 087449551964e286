/**
 * Writes events and whole (not streamed) responses. The client sees several responses as one, with the sum of their
 * usage.
 */
import { isObject, type Json, parseObject } from '../../core/json-object.ts'
import type { Terminal } from '../../core/terminal.ts'
import { withMembers } from '../../json/edit.ts'
import { dataFrame } from '../../sse/frames.ts'
import type { GovernorReply } from '../dialect.ts'
import { addUsage } from './stated-usage.ts'

/** Returns two texts as paragraphs of one, with nothing between them if one is empty. */
export function joinedTexts(before: string, text: string): string {
  return before === '' || text === '' ? before + text : `${before}\n\n${text}`
}

/**
 * Decodes a response and, as `before`, the `earlier` ones that the client sees as part of it. One that is not an object
 * counts as an empty one.
 */
export function responsesIn(body: Buffer, earlier: readonly Buffer[]) {
  const [response = {}, ...before] = [body, ...earlier].map((one) => parseObject(one.toString('utf8')) ?? {})
  return { response, before }
}

/** Writes a response with other members, and with the usage of those before it added. */
export function rewritten({ response, before }: ReturnType<typeof responsesIn>, changes: Json): Buffer {
  let sum: Json = {}
  for (const { usage } of [...before, response]) if (isObject(usage)) sum = { usage: addUsage(sum['usage'], usage) }
  return Buffer.from(JSON.stringify({ ...response, ...changes, ...sum }))
}

/** Returns a response as the final answer of a run, to which only its terminal state is added, byte for byte. */
export function withTerminal(body: Buffer, terminal: Terminal): Buffer {
  return withMembers(body, { governor: JSON.stringify(terminal) })
}

export function jsonReply(body: Json): GovernorReply {
  return { contentType: 'application/json', body: Buffer.from(JSON.stringify(body)) }
}

/** Writes an event; its type stands in the frame and in the data. */
export function eventFrame(event: Json, lineEnd?: string): Buffer {
  return dataFrame(JSON.stringify(event), String(event['type']), lineEnd)
}

export function streamReply(events: readonly Buffer[]): GovernorReply {
  return { contentType: 'text/event-stream; charset=utf-8', body: Buffer.concat(events) }
}
