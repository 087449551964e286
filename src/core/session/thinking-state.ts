/**
 * Reasoning that is bound to the prompt it was made for. Some models check it when it is sent back, and refuse a history
 * in which something before it was another: Governor's words, say, which no client has in its history.
 */

/** What is remembered of a conversation for its reasoning's sake. */
export interface ThinkingState {
  /** Governor has said or taken out something that the client's history does not show. */
  readonly noticeSent?: true | undefined
  /** Its provider is told to leave out reasoning that was made for another prompt. */
  readonly dropsThinking?: true | undefined
}
