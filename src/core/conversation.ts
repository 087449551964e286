/**
 * What the core knows of a request: messages, decoded only when asked for.
 *
 * An index over the raw bytes stands behind it, so asking for message 3 costs message 3 and not the whole
 * body. Provider vocabulary ends here: a dialect maps its own shapes onto these.
 */
import type { Work } from './work.ts'

/**
 * `tool` is a message that only carries tool results; `system` includes OpenAI's `developer`. `part` belongs to the
 * assistant message before it, as some APIs cut one model response into several items.
 */
export type Role = 'system' | 'user' | 'assistant' | 'tool' | 'part'

/** One tool call as the model wrote it: `arguments` is its raw text, JSON or not. */
export interface ToolCall {
  readonly id: string
  readonly name: string
  readonly arguments: string
  /** The provider's own name for it. A call that is only referred to has nothing else: no tool, no arguments. */
  readonly item?: string
}

/** What a tool answered to the call `callId`. */
export interface ToolResult {
  readonly callId: string
  readonly text: string
}

/** What a tool answered, its text as JSON and as it stands in the request. */
export interface RawResult {
  readonly callId: string
  readonly bytes: Uint8Array
}

export interface Conversation {
  /** Takes note of what is decoded; unset where nobody waits. */
  readonly work?: Work
  /** The model asked for; empty where the request names none. */
  readonly model: string
  /** The client asked for server-sent events. */
  readonly streams: boolean
  /** The request lets the model call at least one tool. */
  readonly offersTools: boolean
  /** The request asks for the history in short, as its API has it, and for no step of a run. */
  readonly isCompaction?: boolean
  /** The text that stands before the conversation; empty where there is none. */
  systemText(): string
  /** How many messages there are; indexes below go from 0 to `length - 1`. */
  readonly length: number
  /**
   * Model responses may come in parts here: the first one has role `assistant` and tells all that its parts say and
   * call, the others have role `part` and tell nothing.
   */
  readonly hasParts?: boolean
  role(index: number): Role
  /** The text parts of a message in order, images and the like left out. */
  texts(index: number): readonly string[]
  calls(index: number): readonly ToolCall[]
  results(index: number): readonly ToolResult[]
  /** What stands for the pictures that a user message shows, beside results or alone; the same for equal ones. */
  pictures?(index: number): readonly string[]
  /**
   * Ids of what the provider ran by itself for an assistant message, in order. A message that has some is a response of
   * the model's, or several in one, that the provider is to go on with.
   */
  ranByProvider?(index: number): readonly string[]
  /** The result of a message that holds one and nothing else; `undefined` where it is no plain text. */
  rawResult?(index: number): RawResult | undefined
  /** How many calls and results a message holds, at less than the cost of decoding them. */
  callCount(index: number): number
  resultCount(index: number): number
}

/** The index of the last message, or of its first part; -1 where there is none. */
export function lastMessage(conversation: Conversation): number {
  let last = conversation.length - 1
  while (last > 0 && conversation.role(last) === 'part') last--
  return last
}

/**
 * The last place at or before `index` where all that stands before it is complete, whatever may follow: not within a
 * model response, nor after one that may have more parts.
 */
export function boundary(conversation: Conversation, index: number): number {
  if (!conversation.hasParts) return index
  let at = index
  while (at > 0 && ['assistant', 'part'].includes(conversation.role(at - 1))) at--
  return at
}

/** Where the newest `count` messages begin, parts not counted; 0 where there are fewer. */
export function startOfNewest(conversation: Conversation, count: number): number {
  if (!conversation.hasParts) return Math.max(0, conversation.length - count)
  let at = conversation.length
  for (let left = count; at > 0 && left > 0; at--) if (conversation.role(at - 1) !== 'part') left--
  return at
}
