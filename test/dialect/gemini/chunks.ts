/** Chunks of Gemini responses, and what a client reads of a stream of them. */
import { terminalOf } from '../../../src/core/terminal.ts'
import type { AnswerStream, ToolCallFilter } from '../../../src/dialect/dialect.ts'
import { createFrameReader, dataOf, type Frame } from '../../../src/sse/frames.ts'
import type { Part } from '../../support/gemini.ts'

interface Candidate {
  readonly content?: { readonly parts?: readonly Part[]; readonly role?: string }
  readonly finishReason?: string
  readonly index?: number
}

/** A decoded chunk. */
interface Chunk {
  readonly candidates?: readonly Candidate[]
  readonly usageMetadata?: Readonly<Record<string, unknown>>
  readonly governor?: unknown
  readonly [name: string]: unknown
}

export const terminal = (answered: boolean, truncated = false) =>
  terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', answered, truncated)
export const TERMINAL = terminal(true)

/** Returns the members that all chunks of a response share. */
export const named = (id = 'one') => ({ modelVersion: 'm', responseId: id })
export const thought = (text: string): Part => ({ text, thought: true })
export const call = (name: string, more: object = {}): Part => ({ functionCall: { name, args: {} }, ...more })
export const SIGNED = { thoughtSignature: 'c2lnbmVk' }
export const UNCHECKED = { thoughtSignature: 'skip_thought_signature_validator' }

/** Returns a chunk. `candidate` and `more`: members of its only candidate and of itself. */
export function chunk(parts: readonly Part[], candidate: object = {}, more: object = {}): Chunk {
  return { candidates: [{ content: { parts, role: 'model' }, index: 0, ...candidate }], ...named(), ...more }
}

export const say = (text: string, more: object = {}) => chunk([{ text }], {}, more)
export const last = (parts: readonly Part[], finishReason = 'STOP', more: object = {}) =>
  chunk(parts, { finishReason }, more)
export const usage = (total: number) => ({ usageMetadata: { totalTokenCount: total } })

/** Returns a chunk, or a text as it is, in an event. */
export const eventOf = (data: unknown) => `data: ${typeof data === 'string' ? data : JSON.stringify(data)}\r\n\r\n`

/** Feeds bytes; returns what came at once. */
export function feed(stream: AnswerStream | ToolCallFilter, ...data: readonly unknown[]): Buffer {
  return feedBytes(stream, data.map(eventOf).join(''))
}

export function feedBytes(stream: AnswerStream | ToolCallFilter, bytes: string): Buffer {
  const reader = createFrameReader()
  const frames: Frame[] = [...reader.push(Buffer.from(bytes)), ...reader.end()]
  return Buffer.concat(frames.flatMap((frame) => stream.push(frame)))
}

/** Returns the chunks that a client receives, and what it reads of their first candidates. */
export function received(bytes: Buffer) {
  const reader = createFrameReader()
  const frames = [...reader.push(bytes), ...reader.end()]
  const chunks = frames.flatMap((frame) => dataOf(frame) ?? []).map((data): Chunk => JSON.parse(data))
  const parts = chunks.flatMap(({ candidates }) => candidates?.[0]?.content?.parts ?? [])
  return {
    chunks,
    parts,
    text: parts.map(({ text, thought }) => (thought === true ? '' : (text ?? ''))).join(''),
    calls: parts.filter(({ functionCall }) => functionCall !== undefined),
    reasons: chunks.flatMap(({ candidates }) => candidates?.[0]?.finishReason ?? []),
    governor: chunks.flatMap(({ governor }) => governor ?? []),
  }
}
