/** What a provider's way of speaking has to offer for Governor to guard it. One file per dialect implements this. */
import type { Conversation, ToolCall } from '../core/conversation.ts'
import type { Channel } from '../core/decide.ts'
import type { Hash } from '../core/hash.ts'
import type { AskedOutput } from '../core/overflow.ts'
import type { FinalAnswer, Terminal } from '../core/terminal.ts'
import type { TokenUsage } from '../core/usage.ts'
import type { Edit } from '../json/edit.ts'
import type { ListIndex } from '../json/list.ts'
import type { Span } from '../json/scan.ts'
import type { Frame } from '../sse/frames.ts'

/** How a stopped request keeps the model from calling tools: told not to (tools stay in the prompt), or given none. */
export type ToolBan = 'choice_none' | 'no_tools'

/** The conversation in a body, by its bytes. */
export type IndexedList = ListIndex<Span>

/** What one response calls, and the response itself as this dialect's input shows it: opaque to everybody else. */
export interface BufferedCalls {
  /** In the order they were made. */
  readonly calls: readonly ToolCall[]
  readonly text: string
  readonly message: unknown
  /** The id by which a client may go on from the response. */
  readonly id?: string
}

/** A response that no client gets: each of its calls was answered by Governor itself. */
export interface BlockedMessage {
  readonly buffered: BufferedCalls
  /** One result for each call, in order. */
  readonly results: readonly string[]
}

/** A request body that the dialect can read and change in place. */
export interface DialectRequest {
  readonly conversation: Conversation
  /** The id of the response or the conversation, kept by the provider, that this request continues without sending it. */
  readonly previous?: string | undefined
  /** `previous` is a conversation, to which responses are added one after the other. */
  readonly isConversation?: boolean | undefined
  /** The id of the first item of the first answer in the input, where the input only refers to it, or continues it. */
  readonly firstItem?: string | undefined
  /** The provider keeps what the model writes, so that a later request need not show what it called. */
  readonly isKept?: boolean
  /** May the model's reasoning be bound to the exact prompt it was made for? Unset where reasoning is bound to nothing. */
  bindsReasoning?(): boolean
  /** Does the client ask a stream to state its usage? Unset where all streams do. */
  asksForUsage?(): boolean
  /** The id of the session at a path of keys in the body; `undefined` where there is none, or only a user's id. */
  sessionIdAt(path: readonly string[]): string | undefined
  /** Hashes of the format and of the forced tool that the request asks for, equal for equal ones. */
  demands(): readonly Hash[]
  /** True if the answer must have a format, such as JSON. */
  hasFormat(): boolean
  /** The tools of which the request forces the model to call one; no names where it forces none. `isNamed`: it names that one. */
  forcedTools(): { readonly names: readonly string[]; readonly isNamed: boolean }
  /**
   * Edits that no longer offer the tools that `drop` returns true for; none where there are none. Tools that the client
   * forces stay. Where no tool would be left, all stay and `instead` is returned.
   */
  dropTools(drop: (name: string) => boolean, instead: readonly Edit[]): readonly Edit[]
  /** Edits that say `text` to the model at the end of the input; `undefined` where this request has no such place. */
  notice(text: string, channel: Channel): Edit[] | undefined
  /** Edits that put `text` into the system text. */
  announce(text: string): Edit[]
  banTools(ban: ToolBan): Edit[]
  /** Edits of a request whose last answer is a call of a forced tool: of the one named `name`, where the client names none. */
  keepForced(name: string | undefined): Edit[]
  /**
   * Edits that let the conversation go on after refused rounds, oldest first, at the end of the input and after any
   * notice there; `undefined` where it can't. `isBare`: for providers that do not take back all that they say in a
   * message, such as its reasoning; the same where all of it is the API's own.
   */
  continueAfterBlock(
    blockedMessages: readonly BlockedMessage[],
    onlyStandardFields?: boolean,
  ): Edit[] | undefined
  /**
   * Results, as JSON, of the calls in `refused` where the provider keeps the response that made them: it asks for each,
   * and the client, who has not seen them, has none to send. Unset where no provider keeps anything.
   */
  pendingResults?(blockedMessage: BlockedMessage, blocked: ReadonlySet<number>): readonly string[]
  /**
   * What the provider does not learn from this request where Governor answers it alone: the results in it, as JSON, and
   * the response it went on from, which the client will not name again; and an id for the answer, made of `unique`.
   * Unset where no provider keeps anything.
   */
  skippedResults?(
    unique: string,
  ):
    | { readonly id: string; readonly pendingResults: readonly string[]; readonly redirectTo?: string }
    | undefined
  /** Edits that send such results along, and that go on from the response `redirectTo` where another is named. */
  injectPendingResults?(pendingResults: readonly string[], redirectTo: string | undefined): Edit[]
}

/** A request that asks its provider to leave out reasoning that was made for another prompt. */
export interface ThinkingRemoval {
  readonly edits: readonly Edit[]
  /** A value that the request needs in a header in addition to those that it has there; `name` in lower case. */
  readonly header: { readonly name: string; readonly value: string }
}

/** Reasoning that models check when it is sent back: what stands before it must be what it was made for. */
export interface BoundThinking {
  /** Does an error of status 400 say that reasoning in the history was made for another prompt? */
  isBoundThinkingError(error: Buffer): boolean
  /** Edits to a request body; `undefined` where it says itself what becomes of such reasoning. */
  dropBoundThinking(body: Buffer): ThinkingRemoval | undefined
}

/** How a response ended: `truncated`, as its provider cut it off; `failed`, as the provider says that something went wrong. */
export type AnswerEnd = 'complete' | 'truncated' | 'failed'

/** The terminal state of a run, once it is known what its last response brought. */
export type TerminalFor = (hasFinalAnswer: boolean, isTruncated?: boolean) => Terminal

/** A whole (not streamed) model response. */
export interface ReadAnswer {
  readonly text: string
  readonly calls: readonly ToolCall[]
  readonly end: AnswerEnd
  /** The response as its provider may keep it. */
  readonly buffered?: BufferedCalls | undefined
}

/** How the body of a response is changed on its way to the client. */
export interface AnswerChange {
  readonly terminal: Terminal
  /** Take tool calls out and make the finish reason say so. */
  readonly dropCalls: boolean
  /** Replaces the model's text. */
  readonly text?: string
  /** Bodies of earlier tries of the same response, whose usage the client pays for too. */
  readonly earlier: readonly Buffer[]
}

/**
 * A streamed response being rewritten into a final answer. Feed it one upstream response after the other; what it
 * returns goes to the client at once. Text passes as it comes, as soon as it is surely an answer.
 */
export interface AnswerStream {
  /** Takes one frame of the current upstream response. */
  push(frame: Frame): Buffer[]
  /**
   * The current upstream response is over: `answered`, it left real text; `silent`, it is whole and left none; `broken`,
   * it ended in an error or without an end, and what the client has got is all there is.
   */
  endResponse(): 'answered' | 'silent' | 'broken'
  /** Closes the client's stream. `fallback` is the text to give where no real text came. */
  finish(terminal: TerminalFor, fallback: string | undefined): Buffer[]
  /** What is still held of a response that is broken. */
  abandon(): Buffer[]
  /** The client has got the beginning of a response, so that this one has to be ended. */
  readonly hasBegun: boolean
  /** The provider said that it failed. */
  readonly hasFailed: boolean
  /** Something was returned that is more than the beginning of a response: another reply can't take its place. */
  readonly hasText: boolean
  /** All the text that went to the client. */
  readonly text: string
  /** The newest response as its provider may keep it, with the calls that were taken out. */
  readonly buffered?: BufferedCalls | undefined
}

/**
 * A streamed response whose calls are held until it is known which of them the client gets. Feed it one upstream
 * response after the other; what it returns goes to the client at once: all that is neither a call nor the end. What a
 * response begins with before it says anything is held as well, as its headers are until then.
 */
export interface ToolCallFilter {
  /** Takes one frame of the current upstream response. */
  push(frame: Frame): Buffer[]
  /** The current upstream response is over: what it calls, or `undefined` where that can't be told. */
  endResponse(): BufferedCalls | undefined
  /**
   * Lets go what is held of the response that ended last, without the calls in `refused` (by their place among those
   * of `endTry`), and ends the client's stream. With nothing refused in a first response these are its own bytes.
   */
  release(blocked: ReadonlySet<number>): Buffer[]
  /** Drops the calls; the client's stream goes on, after these bytes, as the run's last answer. */
  becomeAnswer(isJson: boolean): readonly [Buffer[], AnswerStream]
}

/** A reply that Governor makes itself. */
export interface GovernorReply {
  readonly contentType: string
  readonly body: Buffer
}

/** What is kept of a successful response that went by unread, without its content coding. */
export interface ResponseTail {
  /** Its first 16 KB, or a little more. */
  readonly head: Buffer
  /** Its last 64 KB, or a little more; of a shorter one, all of it. */
  readonly tail: Buffer
  /** All of it, where it is no longer than that. */
  readonly whole: Buffer | undefined
  /** It came as server-sent events. */
  readonly streams: boolean
  /** What it calls is to be told as well; the tail is up to 1 MB long then. */
  readonly withCalls: boolean
}

/** What a response says of itself. */
export interface ResponseMetadata {
  /** Unset where it does not say. */
  readonly usage?: TokenUsage | undefined
  /** The id by which a client may go on from this response without sending the history again. */
  readonly id?: string | undefined
  /** The id of a conversation that the provider keeps, which the response was added to. */
  readonly conversation?: string | undefined
  /** What it calls, where that was asked for. */
  readonly calls?: readonly ToolCall[] | undefined
  /** The id of the first item it consists of. */
  readonly item?: string | undefined
}

/** A request as it came, before anything of it is read. */
export interface RequestInput {
  /** Of the URL that the client asked for, without the query. */
  readonly path: string
  /** Without its content coding. */
  readonly body: Buffer
}

/** Why Governor answers a request with an error of its own. */
export type ErrorKind =
  | 'invalid_request'
  | 'unauthorized'
  | 'forbidden'
  /** The client stopped sending. */
  | 'timeout'
  /** Governor takes no more requests. */
  | 'overloaded'
  /** The provider failed many times in a row. */
  | 'provider_down'
  /** The upstream sent no response, or Governor failed on it. */
  | 'no_response'

/** What the clients of an API expect on each of its paths, guarded or not. Several dialects may share it. */
export interface Api {
  /** Name of the built-in upstream for paths that name none. */
  readonly upstream: string
  /** True if a request surely belongs to this API. `path`: without an upstream's name; `header` takes a name in lower case. */
  recognizes(path: string, header: (name: string) => string | undefined): boolean
  /** Headers in which clients send a key, in lower case; in `authorization` it is a bearer token. */
  readonly credentialHeaders: readonly string[]
  /** The header, in lower case, that an upstream's `key` goes into. `sent`: the one that the client sent its key in. */
  credentialHeader(key: string, sent: string | undefined): string
  /** The JSON body of an error of Governor's own. */
  errorBody(kind: ErrorKind, message: string, code: string): string
  /** A whole error reply with a given error object. */
  errorReply(error: object): object
  /** The error object by which the API's own clients know that their input is too large; numbers are tokens. */
  overflowError(limit: number | undefined, promptTokens: number | undefined): object
}

export interface Dialect {
  readonly name: string
  readonly api: Api
  /** Does a POST to this path, given as its segments, speak this dialect? */
  claims(segments: readonly string[]): boolean
  /** Reads a request; `undefined` when its body is not one of this dialect. @throws {JsonScanError} @throws {TooMuchToRead} */
  read(input: RequestInput): DialectRequest | undefined
  /** The model that a request names, read without the rest of it. @throws {JsonScanError} */
  modelOf(input: RequestInput): string | undefined
  /** True if the path, or a piece of the body, asks for a stream. */
  asksForStream(path: string, piece: string): boolean
  /** The body with the output that `lower` allows; `undefined` where it has no cap, or `lower` returns none. Unset where output has no cap. */
  withLowerOutput?(body: Buffer, lower: (asked: AskedOutput) => AskedOutput | undefined): Buffer | undefined
  /** Raw headers without what asks for a longer context; `undefined` where nothing does. Unset where nothing can. */
  withoutLongContext?(headers: readonly string[]): readonly string[] | undefined
  /** How many characters the model wrote in a piece of a response. */
  writtenCharacters(bytes: Buffer): number
  /** The id of a response, by which a client may go on from it, as its first bytes state it; `undefined` where they do not. */
  responseId?(head: Buffer): string | undefined
  /** Reads what a response says of itself; called once it has gone to the client. */
  metadata(response: ResponseTail): ResponseMetadata
  /** Unset where reasoning is bound to nothing. */
  readonly bound?: BoundThinking
  /** Does a response surely ask the client to do nothing? Of what is not all there it need not be known. */
  callsNothing(response: ResponseTail): boolean
  /** Reads a whole response; `undefined` when it is none of this dialect. */
  readAnswer(body: Buffer): ReadAnswer | undefined
  /** Writes a whole response as the run's last. */
  writeAnswer(body: Buffer, change: AnswerChange): Buffer
  /**
   * `dropCalls`: take tool calls out; otherwise only the terminal state is added. `isJson`: the client asked for an
   * object, which is no call that the model wrote out.
   */
  openStream(dropCalls: boolean, isJson: boolean): AnswerStream
  /** Reads what a whole response calls; `undefined` when it is none of this dialect, or its calls can't be told apart. */
  readCalls(body: Buffer): BufferedCalls | undefined
  /** Writes a whole response without the calls in `refused`; of the `earlier` ones it keeps the text and the usage. */
  withoutCalls(body: Buffer, blocked: ReadonlySet<number>, earlier: readonly Buffer[]): Buffer
  openFilter(): ToolCallFilter
  /**
   * A complete response with a given text: a recorded answer, or the fallback. `createdAt` in ms since the epoch;
   * `statesUsage`: in a stream too, where that is not a matter of course.
   */
  reply(
    answer: FinalAnswer,
    streams: boolean,
    id: string,
    createdAt: number,
    statesUsage?: boolean,
  ): GovernorReply
}
