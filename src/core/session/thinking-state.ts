/**
 * Reasoning that is bound to the prompt it was made for. Some providers check it when it is sent back, and refuse a history whose
 * earlier content differs: the content that Governor injected is missing in every client's history.
 */

/** What a thread remembers because of bound reasoning. */
export interface ThinkingState {
  /** Governor injected or removed content that the client's history does not contain. */
  readonly noticeSent?: true | undefined
  /** The provider is asked to leave out reasoning that was made for another prompt. */
  readonly dropsThinking?: true | undefined
}
