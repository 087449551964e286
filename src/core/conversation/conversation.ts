/**
 * A request as the core sees it: messages, decoded only when they are read, from an index over the raw bytes. No field
 * of a provider is known here: each dialect maps its API onto these types.
 */
import type { Work } from '../bounds/work.ts'

/**
 * The role of a message. `tool`: it only carries tool results. `system` includes OpenAI's `developer`. `part`: it
 * belongs to the assistant message before it, as some APIs split one model response into several items.
 */
export type Role = 'system' | 'user' | 'assistant' | 'tool' | 'part'

/** One tool call as the model wrote it: `arguments` is its raw text, JSON or not. */
export interface ToolCall {
  readonly id: string
  readonly name: string
  readonly arguments: string
  /** The provider's own id of it. A call that is only referred to has nothing else: no tool, no arguments. */
  readonly item?: string
}

/** The result of the call `callId`. */
export interface ToolResult {
  readonly callId: string
  /** The tool, where the API names it with the result: there may be no ids. */
  readonly name?: string
  readonly text: string
}

/** The same as the bytes of its JSON string in the request. */
export interface RawResult {
  readonly callId: string
  readonly bytes: Uint8Array
}

/** The size of a result: the bytes that it takes in the request. `name` as in `ToolResult`. */
export interface ResultSize extends Pick<ToolResult, 'callId' | 'name'> {
  readonly bytes: number
}

/** Tokens of one task, counted as by `task_tokens`. `spent`: those used for messages that the history no longer has. */
export interface TaskBudget {
  readonly total: number
  readonly spent: number
}

/** A request's messages and settings. Methods throw `TooMuchToRead` if `work` is used up. */
export interface Conversation {
  /** Counts the work of decoding; unset if no other request waits. */
  readonly work?: Work
  /** The requested model; empty if the request names none. */
  readonly model: string
  /** The client asked for server-sent events. */
  readonly streams: boolean
  /** The request lets the model call at least one tool. */
  readonly offersTools: boolean
  /** The request asks for a summary of the history by a feature of its API, and is no step of a run. */
  readonly isCompaction?: boolean
  /** The request asks for no answer: the provider only reads it, as the next request continues from it. */
  readonly isWarmUp?: boolean
  /** The tokens that the client states for one task; the provider shows the model how many are left. */
  readonly taskBudget?: TaskBudget | undefined
  /** The history begins with the provider's own summary of what stood before it. */
  readonly isCompacted?: boolean
  /** The system text before the conversation; empty if there is none. */
  systemText(): string
  /** How many messages there are; indexes below go from 0 to `length - 1`. */
  readonly length: number
  /** Responses may come in parts: the first, `assistant`, gives texts and calls of all, the others, `part`, none. */
  readonly hasParts?: boolean
  role(index: number): Role
  /** The text parts of a message in order, images and the like left out. */
  texts(index: number): readonly string[]
  calls(index: number): readonly ToolCall[]
  results(index: number): readonly ToolResult[]
  /** A text for each picture of a user message, equal for equal pictures. */
  pictures?(index: number): readonly string[]
  /**
   * Ids of tool calls that the provider itself ran for an assistant message, in order. A message that has some holds
   * one or more responses that the provider is to continue.
   */
  ranByProvider?(index: number): readonly string[]
  /** The result of a message that holds one and nothing else; `undefined` if it is not plain text. */
  rawResult?(index: number): RawResult | undefined
  /** The sizes of the results of a message, which are not decoded. */
  resultSizes?(index: number): readonly ResultSize[]
  /**
   * Decodes the texts and calls of a large message, or with -1 the system text, and yields wherever other requests
   * should have their turn: reading them afterwards takes no long time. `undefined` if that is short anyway.
   */
  prepare?(index: number): Iterable<void> | undefined
  /** Drops what was decoded; it is decoded again if it is read again. */
  forget(): void
  /** The number of calls or results in a message, without decoding them. */
  callCount(index: number): number
  resultCount(index: number): number
}
