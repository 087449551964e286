/** Rewrites streamed responses, in any dialect: holds calls or the end of a response until it is known what becomes of them. */
import { isRealAnswer, mayStillBeMarkup } from '../../core/final-answer.ts'
import type { Terminal } from '../../core/terminal.ts'
import { type Frame, isWhole, terminated } from '../../sse/frames.ts'
import type { AnswerStream, BufferedCalls, TerminalFor, ToolCallFilter } from '../dialect.ts'
import { addUsage } from './json-object.ts'

/**
 * `filter`: calls are held until they are judged. `answer`: the stream is the last of a run; calls are taken out, and text
 * is held while it may still turn out to be no answer. `observe`: only the terminal state is added.
 */
export type StreamMode = 'filter' | 'answer' | 'observe'

/** One frame of a response as its dialect reads it. */
export interface Part {
  readonly frame: Frame
  /**
   * `comment`: it keeps its place, whatever is held. `lead`: it may lead to a call, and is held until something else is
   * shown. `text`: the beginning of a text. `end`: the first of these, and all that follows it, is the end of the response.
   */
  readonly kind: 'comment' | 'lead' | 'text' | 'call' | 'other' | 'end' | 'failed'
  /** Text that it adds to what clients read. */
  readonly text: string
  /** It shows the user nothing, as the beginning of a response does. */
  readonly isEmpty: boolean
  /** With it the response is whole. */
  readonly isOver: boolean
  /** The usage of the response so far, where it states one. */
  readonly usage: unknown
  /** It belongs to a response after the first: the client sees both as one. */
  readonly isLater: boolean
}

/** How the client's stream ends. */
export interface StreamEnding<P extends Part> {
  /** The end of the last response, as far as it came. */
  readonly parts: readonly P[]
  readonly mode: StreamMode
  readonly metadata: Terminal
  /** The text to give in place of an answer; `undefined` where the response has its own end. */
  readonly fallback: string | undefined
  /** Of all responses together. */
  readonly usage: unknown
  readonly responses: number
}

/** What is left of the last response when its calls are judged. */
export interface KeptCalls {
  /** By their place among the calls of the response. */
  readonly blocked: ReadonlySet<number>
  /** What it says beside its calls has been shown. */
  readonly hasShownRest: boolean
  /** Of all responses together; `undefined` where there is only one. */
  readonly usage: unknown
}

/** What a dialect knows of its streams. `S` is what it remembers of one, changed in place by the functions that take it. */
export interface StreamDialect<P extends Part, S> {
  /** All that follows held text is held as well: parts belong together by their order. */
  readonly keepsOrder?: boolean
  /** The client's stream begins as the first response does that shows something; otherwise as the first one does. */
  readonly isNamedByLast?: boolean
  start(mode: StreamMode): S
  /** The current response is over; `isTaken`: the client gets it. Of the next one nothing is known. */
  nextResponse(dialectState: S, mode: StreamMode, isTaken: boolean): void
  parse(frame: Frame, dialectState: S, isLater: boolean): P
  /** The part for the client: its own bytes, terminated, where nothing in it has to change. */
  render(part: P, dialectState: S): Buffer[]
  /** The part without its calls; `undefined` where nothing is left. */
  withoutCalls(part: P): P | undefined
  /** A held part without the calls that are refused; `undefined` where nothing is left. */
  keepCalls(part: P, kept: KeptCalls): P | undefined
  /** What a held part says beside calls and the end of its response, which the client gets if another response follows. */
  besideCalls?(part: P): P | undefined
  /** Stands between the texts of two responses. */
  separator?(dialectState: S): Buffer[]
  /** Ends what a response that broke off has left open. */
  closeOpen?(dialectState: S): Buffer[]
  /** The calls of the current response; `undefined` where they can't be told. */
  assemble(dialectState: S): BufferedCalls | undefined
  /** The newest response with the calls that were taken out; unset where a provider keeps nothing. */
  newest?(dialectState: S): BufferedCalls | undefined
  /** Calls can't be held in this stream. */
  isUnfilterable?(dialectState: S): boolean
  /** May the current response take the place of the one before it? */
  mayFollow(dialectState: S): boolean
  /** The client has got, or is about to get, the beginning of a response. */
  hasBegun(dialectState: S): boolean
  isTruncated(parts: readonly P[]): boolean
  ending(ending: StreamEnding<P>, dialectState: S): Buffer[]
}

/** One upstream response. */
interface StreamedResponse<P> {
  hasBegun: boolean
  /** In `filter`: what it begins with before it shows anything. */
  opening: P[]
  /** From its first call or its end on. */
  buffered: P[]
  /** A call or the end has come, so that all that follows is held. */
  isHolding: boolean
  usage: unknown
  isOver: boolean
  hasFailed: boolean
  /** Whether its text beside its calls was shown; `undefined` until another response follows. */
  hasShownRest: boolean | undefined
}

/** Everything that is known of one client's stream. */
interface StreamState<P extends Part, S> {
  readonly dialect: StreamDialect<P, S>
  readonly dialectState: S
  mode: StreamMode
  /** The client asked for an object in JSON, which is not a call that the model wrote out. */
  isJson: boolean
  /** How many responses have begun, and how many are over and were taken. */
  begun: number
  responses: number
  current: StreamedResponse<P>
  /** In `filter`: the response that ended last. */
  last: StreamedResponse<P> | undefined
  /** Usage of the responses that are over; in `filter`, of those before the last. */
  earlierUsage: unknown
  /** In `filter`: the client has got the beginning of a response. */
  hasOpened: boolean
  /** Text that the client got of earlier responses, and of what is now an answer. */
  textBefore: string
  text: string
  /** What may turn out to be no answer, and its text. */
  pendingParts: P[]
  pendingText: string
  /** The text is surely an answer. */
  isAnswer: boolean
  hasShown: boolean
  hasFailed: boolean
}

function newResponse<P>(): StreamedResponse<P> {
  return {
    hasBegun: false,
    opening: [],
    buffered: [],
    isHolding: false,
    usage: undefined,
    isOver: false,
    hasFailed: false,
    hasShownRest: undefined,
  }
}

function newState<P extends Part, S>(
  dialect: StreamDialect<P, S>,
  mode: StreamMode,
  isJson: boolean,
): StreamState<P, S> {
  return {
    dialect,
    dialectState: dialect.start(mode),
    mode,
    isJson,
    begun: 0,
    responses: 0,
    current: newResponse(),
    last: undefined,
    earlierUsage: undefined,
    hasOpened: false,
    textBefore: '',
    text: '',
    pendingParts: [],
    pendingText: '',
    isAnswer: mode === 'observe',
    hasShown: false,
    hasFailed: false,
  }
}

const rawOf = ({ frame }: Part): Buffer => frame.raw

function textIn(parts: readonly Part[]): string {
  return parts.map(({ text }) => text).join('')
}

function allText({ textBefore, text }: { readonly textBefore: string; readonly text: string }): string {
  return [textBefore, text].filter((one) => one !== '').join('\n\n')
}

function read<P extends Part, S>(state: StreamState<P, S>, frame: Frame): P {
  const { dialect, dialectState, current, responses } = state
  const part = dialect.parse(frame, dialectState, responses > 0)
  if (part.usage !== undefined) current.usage = part.usage
  current.isOver ||= part.isOver
  return part
}

/** What has to stand before a text that begins after that of an earlier response. */
function separatorBefore<P extends Part, S>(state: StreamState<P, S>, text: string): Buffer[] {
  const isSecond = text !== '' && state.text === '' && state.textBefore !== ''
  return isSecond ? (state.dialect.separator?.(state.dialectState) ?? []) : []
}

function show<P extends Part, S>(state: StreamState<P, S>, parts: readonly P[]): Buffer[] {
  return parts.flatMap((part) => {
    const separator = separatorBefore(state, part.text)
    state.text += part.text
    state.hasShown ||= !part.isEmpty
    return [...separator, ...state.dialect.render(part, state.dialectState)]
  })
}

/** Shows parts while calls are held. A first response keeps its bytes, its last ones as well: it may be all there is. */
function pass<P extends Part, S>(state: StreamState<P, S>, parts: readonly P[]): Buffer[] {
  return parts.flatMap((part) => {
    if (part.kind === 'comment') return [part.frame.raw]
    const bytes = show(state, [part])
    return part.isLater ? bytes : [part.frame.raw]
  })
}

/** What the client's stream begins with, once. */
function open<P extends Part, S>(state: StreamState<P, S>, opening: readonly P[]): Buffer[] {
  if (state.hasOpened) return []
  state.hasOpened = true
  return pass(state, opening)
}

/** Does a part call something, or end the response? A failure may do so as well. */
function mustWait<P extends Part, S>({ withoutCalls }: StreamDialect<P, S>, part: P): boolean {
  if (part.kind === 'failed') return part.isOver || withoutCalls(part) !== part
  return part.kind === 'call' || part.kind === 'end'
}

function filtered<P extends Part, S>(state: StreamState<P, S>, part: P): Buffer[] {
  const { dialect, current, dialectState } = state
  if (dialect.isUnfilterable?.(dialectState)) {
    const buffered = current.buffered.map(rawOf)
    current.buffered = []
    return [...open(state, current.opening), ...buffered, part.frame.raw]
  }
  current.hasFailed ||= part.kind === 'failed'
  // The response before it is what the client gets.
  if (part.isLater && current.hasFailed) return []
  current.isHolding ||= mustWait(dialect, part)
  const isWaiting = part.kind === 'lead' || (part.kind === 'comment' && current.buffered.length > 0)
  if (current.isHolding || isWaiting) {
    current.buffered.push(part)
    return []
  }
  if (part.isEmpty && !state.hasOpened) {
    current.opening.push(part)
    return []
  }
  const leading = current.buffered
  current.buffered = []
  return [...open(state, current.opening), ...pass(state, [...leading, part])]
}

function beginSection<P extends Part, S>(state: StreamState<P, S>): void {
  state.textBefore = allText(state)
  state.text = ''
}

/** What the last response says beside its calls is shown as soon as another follows, whose text is a new section. */
function showRest<P extends Part, S>(state: StreamState<P, S>): Buffer[] {
  const { last, dialect, dialectState } = state
  if (!last || last.hasShownRest !== undefined || dialect.isUnfilterable?.(dialectState)) return []
  const rest = last.buffered.flatMap((part) => dialect.besideCalls?.(part) ?? [])
  last.hasShownRest = rest.length > 0
  const bytes = rest.length > 0 ? [...open(state, last.opening), ...show(state, rest)] : []
  beginSection(state)
  return bytes
}

function beginResponse<P extends Part, S>(state: StreamState<P, S>): Buffer[] {
  const { current, dialect, dialectState, last, responses } = state
  if (current.hasBegun) return []
  current.hasBegun = true
  state.begun++
  if (responses === 0) return []
  if (last && !dialect.isNamedByLast) current.opening = [...last.opening]
  return [...showRest(state), ...(dialect.closeOpen?.(dialectState) ?? [])]
}

function endFiltered<P extends Part, S>(state: StreamState<P, S>): BufferedCalls | undefined {
  const { dialect, dialectState, current } = state
  const calls = dialect.isUnfilterable?.(dialectState) ? undefined : dialect.assemble(dialectState)
  const isUsable = state.responses === 0 || (calls && !current.hasFailed && dialect.mayFollow(dialectState))
  state.current = newResponse()
  dialect.nextResponse(dialectState, state.mode, Boolean(isUsable))
  if (!isUsable) return undefined
  state.earlierUsage = addUsage(state.earlierUsage, state.last?.usage)
  state.last = current
  state.responses++
  return calls
}

function release<P extends Part, S>(state: StreamState<P, S>, blocked: ReadonlySet<number>): Buffer[] {
  const { dialect, dialectState, last, begun, responses, earlierUsage } = state
  if (!last) return []
  const hasShownRest = last.hasShownRest === true
  const isUnchanged = begun <= 1 && blocked.size === 0
  const opening = open(state, last.opening)
  if (isUnchanged) return [...opening, ...last.buffered.map(rawOf)]
  // A response after the last one may have broken off in the middle of something.
  const closing = begun > responses ? (dialect.closeOpen?.(dialectState) ?? []) : []
  const usage = responses > 1 ? addUsage(earlierUsage, last.usage) : undefined
  const bytes = last.buffered.flatMap((part) => {
    if (part.kind === 'comment') return [terminated(part.frame)]
    const kept = dialect.keepCalls(part, { blocked, hasShownRest, usage })
    return kept ? dialect.render(kept, dialectState) : []
  })
  return [...opening, ...closing, ...bytes]
}

/** The filter becomes the answer: the calls of the last response are dropped, and what comes now ends the run. */
function becomeAnswer<P extends Part, S>(state: StreamState<P, S>, isJson: boolean): Buffer[] {
  const { last, dialect, dialectState } = state
  const opening = dialect.isNamedByLast || !last ? [] : open(state, last.opening)
  const rest = showRest(state)
  state.earlierUsage = addUsage(state.earlierUsage, last?.usage)
  state.last = undefined
  state.mode = 'answer'
  state.isJson = isJson
  state.current = newResponse()
  state.hasShown = false
  beginSection(state)
  dialect.nextResponse(dialectState, state.mode, false)
  return [...opening, ...rest]
}

function dropPendingText<P extends Part, S>(state: StreamState<P, S>): void {
  state.pendingParts = []
  state.pendingText = ''
}

function showPendingText<P extends Part, S>(state: StreamState<P, S>): Buffer[] {
  const parts = state.pendingParts
  dropPendingText(state)
  return show(state, parts)
}

/** All that is held of a response that failed or broke off. */
function abandon<P extends Part, S>(state: StreamState<P, S>): Buffer[] {
  const { buffered } = state.current
  state.current.buffered = []
  return [...showPendingText(state), ...buffered.map(({ frame }) => terminated(frame))]
}

function answering<P extends Part, S>(state: StreamState<P, S>, part: P): Buffer[] {
  const { dialect, current, mode } = state
  const { frame, kind } = part
  if (kind === 'comment') {
    // What broke off says nothing, and would spoil what comes after it.
    if (mode === 'answer' && !isWhole(frame)) return []
    state.hasShown ||= !part.isEmpty
    return [frame.raw]
  }
  if (kind === 'failed') {
    state.hasFailed = true
    return [...abandon(state), ...dialect.render(part, state.dialectState)]
  }
  if (kind === 'end' || current.buffered.length > 0) {
    current.buffered.push(part)
    return []
  }
  const kept = mode === 'answer' ? dialect.withoutCalls(part) : part
  if (!kept) return []
  const isBehindText = dialect.keepsOrder === true && state.pendingParts.length > 0
  if (state.isAnswer || (kept.kind !== 'text' && !isBehindText)) return show(state, [kept])
  state.pendingParts.push(kept)
  state.pendingText += kept.text
  state.isAnswer = !mayStillBeMarkup(state.pendingText, state.isJson)
  return state.isAnswer ? showPendingText(state) : []
}

function endAnswering<P extends Part, S>(state: StreamState<P, S>): ReturnType<AnswerStream['endResponse']> {
  const { dialect, dialectState, current, mode } = state
  const text = state.text + state.pendingText + textIn(current.buffered)
  const isAnswered = isRealAnswer(text, state.isJson)
  state.responses++
  state.earlierUsage = addUsage(state.earlierUsage, current.usage)
  dialect.nextResponse(dialectState, mode, true)
  if (state.hasFailed || !current.isOver) return 'broken'
  if (!isAnswered && mode === 'answer') {
    dropPendingText(state)
    state.current = newResponse()
  }
  return isAnswered ? 'answered' : 'silent'
}

function finish<P extends Part, S>(
  state: StreamState<P, S>,
  terminalFor: TerminalFor,
  fallback: string | undefined,
): Buffer[] {
  const { dialect, dialectState, mode, responses, earlierUsage } = state
  const parts = state.current.buffered
  const buffered = showPendingText(state)
  const endText = textIn(parts)
  const isAnswered = isRealAnswer(state.text + endText, state.isJson)
  const metadata = terminalFor(isAnswered, dialect.isTruncated(parts))
  const stated = isAnswered ? undefined : fallback
  const separator = separatorBefore(state, stated ?? endText)
  state.text = stated ?? state.text + endText
  const ending = { parts, mode, metadata, fallback: stated, usage: earlierUsage, responses }
  return [...buffered, ...separator, ...dialect.ending(ending, dialectState)]
}

function answerOf<P extends Part, S>(state: StreamState<P, S>): AnswerStream {
  return {
    get hasBegun() {
      return state.dialect.hasBegun(state.dialectState)
    },
    get hasFailed() {
      return state.hasFailed
    },
    get hasText() {
      return state.hasShown
    },
    get text() {
      return allText(state)
    },
    get buffered() {
      return state.dialect.newest?.(state.dialectState)
    },
    push: (frame) =>
      state.hasFailed ? [frame.raw] : [...beginResponse(state), ...answering(state, read(state, frame))],
    endResponse: () => endAnswering(state),
    finish: (terminalFor, fallback) => finish(state, terminalFor, fallback),
    abandon: () => abandon(state),
  }
}

/** Opens a stream that is the last of a run. `dropCalls`: Governor ends the run; otherwise the agent does so itself. */
export function openAnswer<P extends Part, S>(
  dialect: StreamDialect<P, S>,
  dropCalls: boolean,
  isJson: boolean,
): AnswerStream {
  return answerOf(newState(dialect, dropCalls ? 'answer' : 'observe', isJson))
}

/** Opens a stream whose calls are held until they are judged. */
export function openFilter<P extends Part, S>(dialect: StreamDialect<P, S>): ToolCallFilter {
  const state = newState(dialect, 'filter', false)
  return {
    push: (frame) => [...beginResponse(state), ...filtered(state, read(state, frame))],
    endResponse: () => endFiltered(state),
    release: (blocked) => release(state, blocked),
    becomeAnswer: (isJson) => [becomeAnswer(state, isJson), answerOf(state)],
  }
}
