/**
 * What the core knows of a request: messages, decoded only when asked for.
 *
 * An index over the raw bytes stands behind it, so asking for message 3 costs message 3 and not the whole
 * body. Provider vocabulary ends here: a dialect maps its own shapes onto these.
 */

/** `tool` is a message that only carries tool results; `system` includes OpenAI's `developer`. */
export type Role = 'system' | 'user' | 'assistant' | 'tool'

/** One tool call as the model wrote it: `arguments` is its raw text, JSON or not. */
export interface ToolCall {
  readonly id: string
  readonly name: string
  readonly arguments: string
}

/** What a tool answered to the call `callId`. */
export interface ToolResult {
  readonly callId: string
  readonly text: string
}

export interface Conversation {
  /** The model asked for; empty where the request names none. */
  readonly model: string
  /** The client asked for server-sent events. */
  readonly streams: boolean
  /** The request lets the model call at least one tool. */
  readonly offersTools: boolean
  /** The text that stands before the conversation; empty where there is none. */
  readonly systemText: string
  /** How many messages there are; indexes below go from 0 to `length - 1`. */
  readonly length: number
  role(index: number): Role
  /** The text parts of a message in order, images and the like left out. */
  texts(index: number): readonly string[]
  calls(index: number): readonly ToolCall[]
  results(index: number): readonly ToolResult[]
  /** How many calls and results a message holds, at less than the cost of decoding them. */
  callCount(index: number): number
  resultCount(index: number): number
}
