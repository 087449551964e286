/** What Governor needs from an API format in order to guard it. Each folder beside this file implements it. */
import type { Conversation, ToolCall } from '../core/conversation/conversation.ts'
import type { Channel } from '../core/decide.ts'
import type { Hash } from '../core/hash.ts'
import type { FinalAnswer, Terminal } from '../core/terminal.ts'
import type { ResponseFacts, StatedBill, TokenUsage } from '../core/usage.ts'
import type { Edit } from '../json/edit.ts'
import type { KnownItems, ListIndex } from '../json/list.ts'
import type { Span } from '../json/scan.ts'
import type { Frame } from '../sse/frames.ts'

/** The output that a request asks for, in tokens. */
export interface AskedOutput {
  readonly cap: number
  /** Tokens for thinking that count as output and must be less than the cap. */
  readonly thinking?: number
}

/**
 * How a stopped request keeps the model from calling tools: by its tool choice, without any tools in the prompt, or by
 * a tool choice that forces the tool whose call is the answer.
 */
export type ToolBan = 'choice_none' | 'no_tools' | 'all_but_forced'

/** A message or an item of a request. `tools`: where the list of tools stands that it offers. */
export interface IndexedItem extends Span {
  readonly tools?: Span | undefined
}

/** A request body with the byte offsets of its fields and of its list of messages or items. */
export type IndexedList = ListIndex<IndexedItem>

/** The tool calls of one response, and the response itself in the form that this dialect's input takes. */
export interface BufferedCalls {
  /** In the order of the response. */
  readonly calls: readonly ToolCall[]
  readonly text: string
  /** Only the dialect that made it reads it. */
  readonly message: unknown
  /** The id by which a client may continue from the response. */
  readonly id?: string
}

/** A response whose calls Governor blocked: it answers each of them itself. */
export interface BlockedMessage {
  readonly buffered: BufferedCalls
  /** One result for each call, in order. */
  readonly results: readonly string[]
}

/**
 * Names of tools: the model must call one of them; no names if it need not. `isNamed`: the request names that one tool.
 */
export interface ForcedTools {
  readonly names: readonly string[]
  readonly isNamed: boolean
}

/** The history that a provider stores, so that a later request need not contain it. */
export interface StoredHistory {
  /** The id of the response or conversation that this request continues without sending it. */
  readonly previous: string | undefined
  /** `previous` is a conversation: the provider appends each response to it. */
  readonly isConversation: boolean
  /** Each answer is appended to the history, which cannot be continued twice from one place. */
  readonly hasOneEnd: boolean
  /**
   * What the provider misses when Governor answers this request without sending it: the results in it (JSON texts), and
   * the response that it continued from, empty for none. The client continues from Governor's answer by `id`, made of
   * `unique`, whose place `redirectTo` has to take. `undefined` if the provider stores nothing of it.
   */
  skippedResults(
    unique: string,
  ): { readonly id: string; readonly pendingResults: readonly string[]; readonly redirectTo?: string } | undefined
  /**
   * Edits that add such results to the input, but for those that it has, and continue from `redirectTo` instead of the
   * named response.
   */
  injectPendingResults(pendingResults: readonly string[], redirectTo: string | undefined): Edit[]
}

/** A request body that its dialect has read and can edit in place. */
export interface DialectRequest {
  readonly conversation: Conversation
  /** Where its messages are; unset if the dialect can't begin to read after known ones. */
  readonly index?: IndexedList
  /** The fields with system text, apart from messages. */
  readonly systemFields?: readonly string[]
  /** Unset if the provider stores nothing of the conversation. */
  readonly stored?: StoredHistory | undefined
  /** The provider stores the response, so that a client may continue from it by its id. */
  readonly storesAnswer?: boolean
  /**
   * Results (JSON texts) of a message's calls, in order: where a client continues from it, the provider asks for each,
   * and the client never saw the blocked ones. Unset, or empty, if it does not store the response to this request.
   */
  resultsOf?(blockedMessage: BlockedMessage): readonly string[]
  /** Its client may fetch the answer later, by the id of the response. Unset if this API has no such form. */
  readonly isFetchedLater?: boolean
  /** Edits that make the answer come at once, where its client would fetch it later. */
  answerAtOnce?(): Edit[]
  /** The id of the first item of the first answer, if the input only refers to it, continues it or is its summary. */
  readonly firstItem?: string | undefined
  /** True if reasoning may be bound to the exact prompt that it was made for. Unset if this API has none. */
  bindsReasoning?(): boolean
  /** True if the client asks for usage in a stream. Unset if all streams of this API state it. */
  asksForUsage?(): boolean
  /** The client asked for a stream as one list in JSON. Unset if this API has no such form. */
  readonly isList?: boolean
  /** The session id at a path of keys in the body; `undefined` if the path holds none, or only the id of a user. */
  sessionIdAt(path: readonly string[]): string | undefined
  /** Hashes of the output format and of the forced tool that the request demands. `hasFormat`: it demands a format. */
  demands(): { readonly hashes: readonly Hash[]; readonly hasFormat: boolean }
  /** Returns the tools that the request forces: the model must call one of them. */
  forcedTools(): ForcedTools
  /** The numbers that shape the answer, by the names that OpenTelemetry has for them after `gen_ai.request.`. */
  parameters?(): Readonly<Record<string, number>>
  /**
   * Edits that remove the tools for which `drop` returns true; an empty list if there are none. Tools that the client
   * forces stay. If no tool would be left, all of them stay and the result is `instead`.
   */
  dropTools(drop: (name: string) => boolean, instead: readonly Edit[]): readonly Edit[]
  /** Edits that put `text` at the end of the input; `undefined` if this request has no place for it there. */
  notice(text: string, channel: Channel): Edit[] | undefined
  /** Edits that leave the newest of equal calls with its result and their count; empty if no call is repeated. */
  collapseRepeats(): Edit[]
  /** Edits that append `text` to the system text. */
  announce(text: string): Edit[]
  /** Edits that keep the model from calling tools. `forced`: the tool to force, if the client names none. */
  banTools(ban: ToolBan, forced?: string): Edit[]
  /**
   * Edits that append blocked messages (oldest first) and their results to the input, after any notice there;
   * `undefined` if a result has no form in this API. `onlyStandardFields`: without fields that the API does not
   * specify, such as reasoning in Chat Completions, as some providers refuse their own.
   */
  continueAfterBlock(blockedMessages: readonly BlockedMessage[], onlyStandardFields?: boolean): Edit[] | undefined
}

/** Changes that make a provider drop reasoning which was made for another prompt. */
interface ThinkingRemoval {
  readonly edits: readonly Edit[]
  /** A value to add to those that a header has already; `name` in lower case. */
  readonly header: { readonly name: string; readonly value: string }
}

/** Reasoning that an API accepts back only after the exact prompt that it was made for. */
export interface BoundThinking {
  /** True if the body of a 400 response says that reasoning in the history was made for another prompt. */
  isBoundThinkingError(error: Buffer): boolean
  /**
   * Changes to a request body; `undefined` if the request itself says what happens to such reasoning.
   * @throws {JsonScanError}
   */
  dropBoundThinking(body: Buffer): ThinkingRemoval | undefined
}

/** Returns the terminal state of a run, given whether it has a final answer and whether that was cut off. */
export type TerminalFor = (hasFinalAnswer: boolean, isTruncated?: boolean) => Terminal

/** What Governor reads of a whole (not streamed) response. */
export interface ReadAnswer {
  readonly text: string
  readonly calls: readonly ToolCall[]
  /** How it ended: `truncated` if the provider cut it off, `failed` if the provider reports an error in it. */
  readonly end: 'complete' | 'truncated' | 'failed'
  /** The calls that Governor can hold; unset for several choices. */
  readonly buffered?: BufferedCalls | undefined
}

/** How Governor changes the body of a response before the client gets it. */
export interface AnswerChange {
  readonly terminal: Terminal
  /** Removes tool calls and adapts the finish reason. */
  readonly dropCalls: boolean
  /** Replaces the model's text. */
  readonly text?: string | undefined
  /** Text to add to the model's text, line breaks included. */
  readonly footer?: string | undefined
  /** Bodies of earlier attempts at the same response, whose usage is added as the client pays for it too. */
  readonly earlier: readonly Buffer[]
}

/**
 * Rewrites streamed responses into one final answer. It takes the upstream responses one after the other; the bytes it
 * returns go to the client at once. Text passes as it comes, once it is certain to be an answer.
 */
export interface AnswerStream {
  push(frame: Frame): Buffer[]
  /**
   * Ends the current response. `silent`: it is whole without a real answer. `broken`: it has an error or no end.
   * `isCut`: Governor reads no more of it, so that its end does not matter.
   */
  endResponse(isCut?: boolean): 'answered' | 'silent' | 'broken'
  /**
   * Ends the client's stream. `fallback`: the text to give if there was no real answer. `footer`: the last line of what
   * the client reads; the stream has to be opened for it.
   */
  finish(terminal: TerminalFor, fallback: string | undefined, footer?: string): Buffer[]
  /** Makes the current response, which has text and no calls, end as an answer that Governor asked for does. */
  endAsAnswer(): void
  /** Returns the bytes that are still held of a broken response. */
  abandon(): Buffer[]
  /** The client has received the beginning of a response, so that its stream needs an end. */
  readonly hasBegun: boolean
  readonly hasFailed: boolean
  /** The client has received more than the beginning of a response, so that no other reply can replace it. */
  readonly hasText: boolean
  /** All the text that went to the client, without the footer. */
  readonly text: string
  /** The newest response, including the calls that were removed. Unset if the provider does not store it. */
  readonly buffered?: BufferedCalls | undefined
}

/**
 * Holds the calls of a streamed response until Governor has decided which of them the client gets. All but calls, the
 * end, and an empty beginning (as the response headers are held until there is content) go to the client at once.
 */
export interface ToolCallFilter {
  push(frame: Frame): Buffer[]
  /** Ends the current response and returns its calls; `undefined` if it is incomplete or they can't be separated. */
  endResponse(): BufferedCalls | undefined
  /**
   * Ends the client's stream with what is held of the last response, without the calls in `blocked` (places among the
   * calls that `endResponse` returned, but not all of them). A first response without blocked calls keeps its exact
   * bytes.
   */
  release(blocked: ReadonlySet<number>): Buffer[]
  /** Drops the held calls. The client's stream continues, after the returned bytes, as the final answer of the run. */
  becomeAnswer(isJson: boolean, mayHaveFooter?: boolean): readonly [Buffer[], AnswerStream]
}

/** A response that Governor makes itself. */
export interface GovernorReply {
  readonly contentType: string
  readonly body: Buffer
}

/** The parts of a relayed successful response that are kept for reading, without its content coding. */
export interface ResponseTail {
  /** The first 16 KB, or a little more. */
  readonly head: Buffer
  /** The last 64 KB, or a little more; the whole body if it is shorter. */
  readonly tail: Buffer
  /** The whole body; `undefined` if it is longer than `tail`. */
  readonly whole: Buffer | undefined
  readonly streams: boolean
  /** The calls have to be read as well; `tail` is up to 1 MB long then. */
  readonly withCalls: boolean
}

/** How calls and the end look in the bytes of a streamed response. */
export interface StreamMarks {
  /** Each line that names a call contains it. */
  readonly call: string
  /** Returns the ids of the calls in such a line. */
  callIds(line: string): readonly string[]
  /** Returns how a response ended, if a piece of it, in Latin-1, says that; `failed`: with an error. */
  end(piece: string): 'whole' | 'failed' | undefined
}

/** What Governor reads from a response after relaying it. */
export interface ResponseMetadata {
  /** Unset if the response states none. */
  readonly usage?: TokenUsage | undefined
  /** The usage states the prompt alone, or is of a stream that broke off: most of the output is not in it. */
  readonly isBegun?: true | undefined
  readonly bill?: StatedBill | undefined
  /** The id by which a client may continue from this response without sending the history again. */
  readonly id?: string | undefined
  /** The id of the conversation, stored by the provider, that the response was appended to. */
  readonly conversation?: string | undefined
  /** Set if `withCalls` asked for them. */
  readonly calls?: readonly ToolCall[] | undefined
  /** The id of the first output item. */
  readonly item?: string | undefined
  /** It is not over: its client fetches the rest of it. Set only where that may be. */
  readonly isPending?: boolean | undefined
}

/** A request before any part of it is read. */
export interface RequestInput {
  /** The path of the client's URL, without the query; ends in `STEERED` if the response has begun already. */
  readonly path: string
  /** Its query, without `?`; it may hold a key. Unset if it has none. */
  readonly query?: string | undefined
  /** Without its content coding. */
  readonly body: Buffer
  /** What the same dialect read of an earlier body that begins with the same bytes. */
  readonly known?: KnownItems | undefined
}

/** The end of the path for a request that was never sent: the provider answers it by itself. */
export const STEERED = '/steered'

/** A message of a provider. */
export interface SocketEvent {
  /**
   * `begin`, `part`, `end`: of a response; `error`: in its place, or its end; `unsteered`: none follows a steered one.
   */
  readonly kind: 'begin' | 'part' | 'end' | 'error' | 'unsteered' | 'other'
  /** The id of the response that begins. */
  readonly id?: string
  /** `undefined` if it names none. */
  readonly lane: string | undefined
  /** Of an error: what would be the status and the raw headers of a reply over HTTP. */
  readonly status?: number
  readonly headers?: readonly string[]
}

/** How an API goes over a connection of messages (WebSocket): in lanes, each with one response after the other. */
export interface SocketForm {
  /** Reads a client's message; `undefined` if it is no request. `headers`: raw headers that it states for itself. */
  readRequest(message: Buffer): { readonly lane: string; readonly headers: readonly string[] } | undefined
  readEvent(message: Buffer): SocketEvent
  /** Returns the id of the response that a client's message steers: another one may follow it without a request. */
  steeredBy(message: Buffer): string | undefined
  /**
   * Returns what the response after a steered one answers, as a request: that of the steered one goes on with the
   * message.
   */
  steered(request: Buffer, message: Buffer): Buffer
  /** Returns an event as one of this lane: unchanged if it names the lane. */
  inLane(event: Buffer, lane: string): Buffer
  /** Returns the event for the reply that an error would be over HTTP: unchanged if it is one. */
  errorEvent(status: number, body: Buffer): Buffer
}

/** Why Governor answers a request with an error of its own. */
export type ErrorKind =
  | 'invalid_request'
  | 'unauthorized'
  | 'forbidden'
  | 'not_found'
  /** The client stopped sending its request. */
  | 'timeout'
  /** Governor accepts no more requests. */
  | 'overloaded'
  /** The provider failed many times in a row. */
  | 'provider_down'
  /** The upstream sent no response, or Governor failed while handling it. */
  | 'no_response'

/** The upstream of an API's own provider, which exists in every configuration. */
export interface BuiltInUpstream {
  readonly name: string
  readonly url: string
  /** The environment variable that sets another one. */
  readonly variable: string
  /** The environment variable in which its clients read their base URL. */
  readonly clientVariable: string
  /** The path, below the base URL, of its list of models. */
  readonly models: string
  /** The provider and the operation in spans, by the names of OpenTelemetry. */
  readonly provider: string
  readonly operation: string
}

/** What clients of an API expect on all of its paths, guarded or not. Several dialects may share one. */
export interface Api {
  /** The upstream for paths that name no upstream. */
  readonly upstream: BuiltInUpstream
  /** Paths, without the name of an upstream, that belong to this API alone. */
  readonly ownPaths?: RegExp
  /** A header, in lower case, that only clients of this API send. */
  readonly ownHeader?: string
  /** Names, in lower case, of the headers in which clients send a key; `authorization` holds a bearer token. */
  readonly credentialHeaders: readonly string[]
  /** Names of the parameters of a query in which clients send a key. */
  readonly credentialParameters: readonly string[]
  /** The name, in lower case, of the header for an upstream's `key`. `sent`: the header of the client's own key. */
  credentialHeader(key: string, sent: string | undefined): string
  /** The JSON body of an error that Governor itself reports. `status`: of the reply, which some APIs repeat. */
  errorBody(kind: ErrorKind, message: string, code: string, status: number): string
  /** The whole body of an error response, made of its error object. */
  errorReply(error: object): object
  /** The error object by which clients of the API recognize that their input is too long; both numbers are tokens. */
  overflowError(limit: number | undefined, promptTokens: number | undefined): object
}

/** An API format that Governor can guard: how to read and edit its requests and responses. */
export interface Dialect {
  readonly name: string
  readonly api: Api
  /**
   * Returns how many segments at the end of a path name this API's operation, if POST requests to it use this dialect;
   * else 0. `hasHeader`: see `Api.ownHeader`.
   */
  claims(segments: readonly string[], hasHeader?: boolean): number
  /**
   * Returns the id of the response that a request to such a path fetches, or ends; `undefined` for other paths. Unset
   * if no client of this API fetches its answers later.
   */
  laterResponse?(method: string, segments: readonly string[]): string | undefined
  /** True if a response is not over, so that its client fetches the rest of it. */
  isPending?(response: ResponseTail): boolean
  /**
   * Reads a request; `undefined` if the body does not belong to this dialect.
   * @throws {JsonScanError}
   * @throws {TooMuchToRead}
   */
  read(input: RequestInput): DialectRequest | undefined
  /** The model that a request names, without reading the rest; `undefined` if it names none. @throws {JsonScanError} */
  modelOf(input: RequestInput): string | undefined
  /**
   * Returns the body with the output cap that `lower` allows; `undefined` if it has none or `lower` returns
   * `undefined`. Unset if requests of this API have no output cap. @throws {JsonScanError}
   */
  withLowerOutput?(body: Buffer, lower: (asked: AskedOutput) => AskedOutput | undefined): Buffer | undefined
  /** Raw headers without any that ask for a longer context; `undefined` if none does. Unset if none can. */
  withoutLongContext?(headers: readonly string[]): readonly string[] | undefined
  /** The number of characters that the model wrote in a piece of a response. */
  writtenCharacters(bytes: Buffer): number
  /** The id by which a client may continue from a response, if its first bytes hold one. */
  responseId?(head: Buffer): string | undefined
  /** Reads a response after the client has received it. */
  metadata(response: ResponseTail): ResponseMetadata
  /** Reads what the span of a request says of its response. */
  responseFacts?(response: ResponseTail): ResponseFacts
  /** Unset if this API has no streams. */
  readonly marks?: StreamMarks
  /** Unset if this API does not bind reasoning to a prompt. */
  readonly boundThinking?: BoundThinking
  /** True if the response certainly contains no tool calls. May return false for truncated bodies. */
  callsNothing(response: ResponseTail): boolean
  /** Reads a whole response; `undefined` if the body is not a response of this dialect. */
  readAnswer(body: Buffer): ReadAnswer | undefined
  /** Writes a whole response as the final answer of a run. */
  writeAnswer(body: Buffer, change: AnswerChange): Buffer
  /**
   * Opens a stream that ends a run. `dropCalls`: remove tool calls; otherwise only the terminal state is added.
   * `isJson`: an object in the text is the answer that the client asked for, and not a call written as text.
   */
  openStream(dropCalls: boolean, isJson: boolean, mayHaveFooter?: boolean): AnswerStream
  /**
   * Writes a whole response without the calls at these places, which are not all of its calls, and with text and usage
   * of the `earlier` ones added. `isJson`: the client reads its text as one JSON value, so that theirs is left out.
   */
  withoutCalls(body: Buffer, blocked: ReadonlySet<number>, earlier: readonly Buffer[], isJson?: boolean): Buffer
  /** Returns a filter. `isJson`: as for `withoutCalls`, so that no text is shown before its response is over. */
  openFilter(isJson?: boolean): ToolCallFilter
  /** Unset if the API is guarded over HTTP alone. */
  readonly socket?: SocketForm
  /** Returns a function that takes the frames of one response and returns the text that each adds. */
  openText(): (frame: Frame) => string
  /**
   * A complete response with a given text: a recorded answer, or the fallback. `createdAt` is in ms since the epoch.
   * `streams`: as events, or as one list. `statesUsage`: the client asked for usage in a stream.
   */
  reply(
    answer: FinalAnswer,
    streams: boolean | 'list',
    id: string,
    createdAt: number,
    statesUsage?: boolean,
  ): GovernorReply
}
