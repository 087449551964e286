/** Rewrites streamed responses in any dialect: holds calls, or the end, until Governor has decided on them. */
import { beginReply, isRealAnswer, mayStillBeMarkup, type ReplyStart } from '../../core/conversation/real-answer.ts'
import { footerAfter, type Terminal, textWithFooter } from '../../core/terminal.ts'
import { type Frame, isWhole, lineEndOf, terminated, withoutMark } from '../../sse/frames.ts'
import type { AnswerStream, BufferedCalls, TerminalFor, ToolCallFilter } from '../dialect.ts'
import { addUsage, largerUsage } from './stated-usage.ts'
import { joinedTexts } from './whole-response.ts'

/**
 * `filter`: calls are held until Governor has decided on them. `answer`: the stream ends a run; calls are removed, and
 * text is held until it is certain to be an answer. `observe`: only the terminal state is added.
 */
export type StreamMode = 'filter' | 'answer' | 'observe'

/** One frame of a response, as its dialect reads it. */
export interface Part {
  readonly frame: Frame
  /**
   * `comment`: not content; it is never rewritten. `lead`: it may precede a call, and is held until other content
   * follows. `text`: text or its beginning. `end`: it and all parts after it are the end of the response.
   */
  readonly kind: 'comment' | 'lead' | 'text' | 'call' | 'other' | 'end' | 'failed'
  /** The text that it adds to what the user reads. */
  readonly text: string
  /** It has no content for the user, as the beginning of a response. */
  readonly isEmpty: boolean
  /** It completes the response. */
  readonly isOver: boolean
  /** It says that the provider cut the response off. */
  readonly isTruncated: boolean
  /** The usage that it states; `undefined` if it states none. */
  readonly usage: unknown
  /** It belongs to a later response, which the client sees as part of the first. */
  readonly isLater: boolean
}

/** What a dialect needs to end the client's stream. */
export interface StreamEnding<P extends Part> {
  /** The end of the last response, which may be incomplete. */
  readonly parts: readonly P[]
  readonly mode: StreamMode
  readonly metadata: Terminal
  /** The text that replaces the missing answer; `undefined` if the response has an answer. */
  readonly fallback: string | undefined
  /** The sum over all responses. */
  readonly usage: unknown
  readonly responses: number
  /** Text to add to the model's text, line breaks included; `undefined` if there is none. */
  readonly footer: string | undefined
  /** The parts that end the model's text, which come after the footer; empty without a footer. */
  readonly textEnd: readonly P[]
}

/** What stays of a part: it may hold calls, other content, and the end of its response. */
export interface Kept {
  /** Places of the removed calls among the calls of the response. `all`: what is left belongs to an answer. */
  readonly blocked: ReadonlySet<number> | 'all'
  /** Its content other than calls stays. */
  readonly hasRest: boolean
  /** Its end, errors and usage stay. */
  readonly hasEnd: boolean
  /** Replaces the usage that it states. */
  readonly usage?: unknown
}

const ALL_BUT_CALLS: Kept = { blocked: 'all', hasRest: true, hasEnd: true }
const REST: Kept = { blocked: 'all', hasRest: true, hasEnd: false }

/** What the engine reads in the state that a dialect keeps of one stream. */
export interface DialectState {
  /** The client has received the beginning of a response, or is about to. */
  readonly hasBegun: boolean
  /** The current response may replace the one before it. */
  readonly mayFollow: boolean
  /** Calls can't be held in this stream. */
  readonly isUnfilterable?: boolean
  /** What ends the lines of the client's stream. */
  lineEnd: string
}

/** How a dialect reads and writes its streams. `S` is its state of one stream, which these functions change. */
export interface StreamDialect<P extends Part, S extends DialectState> {
  /** Parts that follow held text are held as well, as their order matters. */
  readonly keepsOrder?: boolean
  /** The client's stream begins with the opening of the first response with content, not with the very first. */
  readonly isNamedByLast?: boolean
  start(mode: StreamMode): S
  /** Ends the current response and prepares for the next. `isTaken`: the client gets the one that ended. */
  nextResponse(dialectState: S, mode: StreamMode, isTaken: boolean): void
  parse(frame: Frame, dialectState: S, isLater: boolean): P
  /** Returns the usage of a response that states it several times. Unset if the larger of two numbers counts. */
  joinUsage?(before: unknown, stated: unknown): unknown
  /** Returns the bytes for the client: the part's own, with a blank line at the end, if nothing in it has to change. */
  render(part: P, dialectState: S): Buffer[]
  /** Returns what stays of a part: the same object if nothing changes, `undefined` if nothing is left. */
  withParts(part: P, kept: Kept): P | undefined
  /** What separates the texts of two responses. */
  separator?(dialectState: S): Buffer[]
  /** True if a part ends a text that the client has received. Unset if texts have no end of their own. */
  endsText?(part: P, dialectState: S): boolean
  /** Ends what an incomplete response has left open. */
  closeOpen?(dialectState: S): Buffer[]
  /**
   * In `filter`, the current response; `undefined` if it is incomplete. Otherwise the newest response, including the
   * calls that were removed; `undefined` if no provider stores responses.
   */
  assemble(dialectState: S): BufferedCalls | undefined
  /** Returns the bytes that end the client's stream. */
  ending(ending: StreamEnding<P>, dialectState: S): Buffer[]
}

/** One upstream response. */
class StreamedResponse {
  hasBegun = false
  /** In `filter`: its parts before any content. */
  opening: Part[] = []
  /** The parts that are held: all of them once `holdsAll`, from its first call or its end on. */
  buffered: Part[] = []
  holdsAll = false
  usage: unknown
  isOver = false
  hasFailed = false
  /** Whether it had content other than calls, which the client then got; `undefined` until another response follows. */
  hasShownRest: boolean | undefined
}

/** One client's stream, made of one upstream response or of several. */
export class RewrittenStream implements AnswerStream {
  /** The engine hands parts and state of a dialect back to it alone. */
  readonly dialect: StreamDialect<Part, DialectState>
  readonly dialectState: DialectState
  mode: StreamMode
  isJson: boolean
  mayHaveFooter: boolean
  begun = 0
  /** How many responses have ended; in `filter`, without those that can't be used. */
  responses = 0
  current = new StreamedResponse()
  /** In `filter`: the response that ended last. */
  last: StreamedResponse | undefined
  /** The usage of the responses that have ended; in `filter`, of those before the last. */
  earlierUsage: unknown
  /** In `filter`: the client has received the beginning of a response. */
  hasOpened = false
  /** The text that the client got of earlier responses. */
  textBefore = ''
  /** The text that the client got of the current section. */
  section = ''
  /** Parts that are held until it is certain, by `replyStart`, that their text is an answer. */
  pendingParts: Part[] = []
  replyStart: ReplyStart
  /** The text is certain to be an answer. */
  isAnswer: boolean
  /** The end of the newest text, held until other content follows, as a footer may be added to the text. */
  textEnd: Part[] = []
  hasText = false
  hasFailed = false

  constructor(dialect: StreamDialect<Part, DialectState>, mode: StreamMode, isJson = false, mayHaveFooter = false) {
    this.dialect = dialect
    this.dialectState = dialect.start(mode)
    this.mode = mode
    this.isJson = isJson
    this.mayHaveFooter = mayHaveFooter
    this.replyStart = beginReply(isJson)
    this.isAnswer = mode === 'observe'
  }

  get hasBegun(): boolean {
    return this.dialectState.hasBegun
  }

  get text(): string {
    return joinedTexts(this.textBefore, this.section)
  }

  get buffered(): BufferedCalls | undefined {
    return this.dialect.assemble(this.dialectState)
  }

  push(frame: Frame): Buffer[] {
    if (this.hasFailed) return [frame.raw]
    const { part, before } = read(this, frame)
    const { dialect, dialectState, current, mode } = this
    const { kind } = part
    if (kind === 'comment') {
      if (mode === 'answer' && isHalf(part)) return before
      this.hasText ||= !part.isEmpty
      return [...before, part.frame.raw]
    }
    if (kind === 'failed') {
      this.hasFailed = true
      return [...before, ...this.abandon(), ...dialect.render(part, dialectState)]
    }
    if (kind === 'end' || current.buffered.length > 0) {
      current.buffered.push(part)
      return before
    }
    const kept = mode === 'answer' ? dialect.withParts(part, ALL_BUT_CALLS) : part
    if (!kept) return before
    const isBehindText = dialect.keepsOrder === true && this.pendingParts.length > 0
    if (this.isAnswer || (kept.kind !== 'text' && !isBehindText)) return [...before, ...show(this, [kept])]
    this.pendingParts.push(kept)
    this.isAnswer = !mayStillBeMarkup(this.replyStart, kept.text)
    return this.isAnswer ? [...before, ...show(this, takePending(this))] : before
  }

  endResponse(isCut = false): 'answered' | 'silent' | 'broken' {
    const { dialect, dialectState, current, mode } = this
    const text = this.section + textIn(this.pendingParts) + textIn(current.buffered)
    const isAnswered = isRealAnswer(text, this.isJson)
    this.responses++
    this.earlierUsage = addUsage(this.earlierUsage, current.usage)
    dialect.nextResponse(dialectState, mode, true)
    if (this.hasFailed || !(current.isOver || isCut)) return 'broken'
    if (!isAnswered && mode === 'answer') {
      takePending(this)
      this.current = new StreamedResponse()
    }
    return isAnswered ? 'answered' : 'silent'
  }

  finish(terminalFor: TerminalFor, fallback: string | undefined, footer?: string): Buffer[] {
    const { dialect, dialectState, mode, responses, earlierUsage } = this
    const { buffered } = this.current
    const parts = mode === 'answer' ? partsLeft(dialect, buffered, ALL_BUT_CALLS) : buffered
    const bytes = show(this, takePending(this))
    const endText = textIn(parts)
    const isAnswered = isRealAnswer(this.section + endText, this.isJson)
    const isTruncated = parts.some((part) => part.isTruncated)
    const metadata = terminalFor(isAnswered, isTruncated)
    const usedFallback = isAnswered ? undefined : fallback
    const separator = separatorBefore(this, usedFallback ?? endText)
    this.section = usedFallback ?? this.section + endText
    const added = isAnswered ? footerAfter(this.section, footer) : undefined
    if (added === undefined) bytes.push(...showTextEnd(this))
    const ending = {
      parts,
      mode,
      metadata,
      fallback: usedFallback === undefined ? undefined : textWithFooter({ text: usedFallback, footer }),
      usage: earlierUsage,
      responses,
      footer: added,
      textEnd: this.textEnd,
    }
    return [...bytes, ...separator, ...dialect.ending(ending, dialectState)]
  }

  endAsAnswer(): void {
    this.mode = 'answer'
  }

  abandon(): Buffer[] {
    const { buffered } = this.current
    this.current.buffered = []
    const bytes = [...show(this, takePending(this)), ...showTextEnd(this)]
    for (const { frame } of buffered) bytes.push(terminated(frame))
    return bytes
  }
}

/** Holds the calls of a stream until Governor has decided on them. */
export class CallFilter implements ToolCallFilter {
  readonly #stream: RewrittenStream

  /** `isJson`: the client reads one JSON value, so that only the text of the last response is shown. */
  constructor(dialect: StreamDialect<Part, DialectState>, isJson = false) {
    this.#stream = new RewrittenStream(dialect, 'filter', isJson)
  }

  push(frame: Frame): Buffer[] {
    const state = this.#stream
    const { part, before } = read(state, frame)
    const { dialect, current, dialectState } = state
    const { kind } = part
    const held = current.buffered
    if (dialectState.isUnfilterable) {
      current.buffered = []
      return [...before, ...pass(state, current.opening), ...held.map((one) => one.frame.raw), frame.raw]
    }
    current.hasFailed ||= kind === 'failed'
    // The client gets the response before it instead.
    if (part.isLater && (current.hasFailed || isHalf(part))) return before
    // An error may contain a call or the end of the response.
    const isHeldError = kind === 'failed' && (part.isOver || dialect.withParts(part, ALL_BUT_CALLS) !== part)
    current.holdsAll ||= isHeldError || kind === 'call' || kind === 'end' || (state.isJson && kind === 'text')
    if (current.holdsAll || kind === 'lead' || (kind === 'comment' && held.length > 0)) {
      held.push(part)
      return before
    }
    if (part.isEmpty && !state.hasOpened) {
      current.opening.push(part)
      return before
    }
    current.buffered = []
    return [...before, ...pass(state, current.opening, [...held, part])]
  }

  endResponse(): BufferedCalls | undefined {
    const state = this.#stream
    const { dialect, dialectState, current, responses } = state
    const calls = dialectState.isUnfilterable ? undefined : dialect.assemble(dialectState)
    const isUsable = responses === 0 || (calls !== undefined && !current.hasFailed && dialectState.mayFollow)
    state.current = new StreamedResponse()
    dialect.nextResponse(dialectState, state.mode, isUsable)
    if (!isUsable) return undefined
    state.earlierUsage = addUsage(state.earlierUsage, state.last?.usage)
    state.last = current
    state.responses++
    return calls
  }

  release(blocked: ReadonlySet<number>): Buffer[] {
    const { dialect, dialectState, last, begun, responses, earlierUsage } = this.#stream
    if (!last) return []
    const hasRest = last.hasShownRest !== true
    const bytes = pass(this.#stream, last.opening)
    if (begun <= 1 && blocked.size === 0) return [...bytes, ...last.buffered.map(({ frame }) => frame.raw)]
    // The response after the last one may be incomplete and have left something open.
    if (begun > responses) bytes.push(...(dialect.closeOpen?.(dialectState) ?? []))
    const usage = responses > 1 ? addUsage(earlierUsage, last.usage) : undefined
    const left = partsLeft(dialect, last.buffered, { blocked, hasRest, hasEnd: true, usage })
    for (const part of left) bytes.push(...dialect.render({ ...part, isEmpty: false }, dialectState))
    return bytes
  }

  becomeAnswer(isJson: boolean, mayHaveFooter = false): readonly [Buffer[], AnswerStream] {
    // The calls of the last response are dropped; the next response ends the run.
    const state = this.#stream
    const { dialect, dialectState, last } = state
    const opening = dialect.isNamedByLast || !last ? [] : pass(state, last.opening)
    const rest = showRest(state)
    state.earlierUsage = addUsage(state.earlierUsage, last?.usage)
    state.last = undefined
    state.mode = 'answer'
    state.isJson = isJson
    state.mayHaveFooter = mayHaveFooter
    state.current = new StreamedResponse()
    state.hasText = false
    state.replyStart = beginReply(isJson)
    state.textBefore = state.text
    state.section = ''
    dialect.nextResponse(dialectState, state.mode, false)
    return [[...opening, ...rest], state]
  }
}

/** Returns what stays of held parts; a comment stays where the end does. */
function partsLeft(dialect: StreamDialect<Part, DialectState>, parts: readonly Part[], kept: Kept): Part[] {
  return parts.flatMap((part) =>
    part.kind === 'comment' ? (kept.hasEnd ? part : []) : (dialect.withParts(part, kept) ?? []),
  )
}

function textIn(parts: readonly Part[]): string {
  let all = ''
  for (const { text } of parts) all += text
  return all
}

/** Reads a frame, and begins a response with its first one. Returns its part, and the bytes that come before it. */
function read(state: RewrittenStream, frame: Frame): { readonly part: Part; readonly before: Buffer[] } {
  const { current, dialect, dialectState, last, responses } = state
  const before: Buffer[] = []
  let own = frame
  if (!current.hasBegun) {
    current.hasBegun = true
    if (state.begun++ > 0) own = withoutMark(frame)
    else dialectState.lineEnd = lineEndOf(frame)
    if (responses > 0) {
      if (last && !dialect.isNamedByLast) current.opening = [...last.opening]
      before.push(...showRest(state), ...showTextEnd(state), ...(dialect.closeOpen?.(dialectState) ?? []))
    }
  }
  const part = dialect.parse(own, dialectState, responses > 0)
  current.usage = (dialect.joinUsage ?? largerUsage)(current.usage, part.usage)
  current.isOver ||= part.isOver
  return { part, before }
}

/** Returns what separates a text from the text of an earlier response. */
function separatorBefore(state: RewrittenStream, text: string): Buffer[] {
  const isSecond = text !== '' && state.section === '' && state.textBefore !== ''
  return isSecond ? (state.dialect.separator?.(state.dialectState) ?? []) : []
}

function showTextEnd(state: RewrittenStream): Buffer[] {
  const parts = state.textEnd
  state.textEnd = []
  return parts.flatMap((part) => state.dialect.render(part, state.dialectState))
}

function show(state: RewrittenStream, parts: readonly Part[]): Buffer[] {
  const { dialect, dialectState, mayHaveFooter } = state
  // Held text may be 100,000 parts.
  const bytes: Buffer[] = []
  for (const part of parts) {
    const separator = separatorBefore(state, part.text)
    state.section += part.text
    state.hasText ||= !part.isEmpty
    const endsText = mayHaveFooter && dialect.endsText?.(part, dialectState)
    if (!endsText && state.textEnd.length > 0) bytes.push(...showTextEnd(state))
    bytes.push(...separator)
    if (endsText) state.textEnd.push(part)
    else bytes.push(...dialect.render(part, dialectState))
  }
  return bytes
}

/**
 * Shows parts while calls are held, after the beginning of the client's stream. A first response keeps its exact bytes,
 * unterminated ones too, as no other may follow.
 */
function pass(state: RewrittenStream, opening: readonly Part[], parts: readonly Part[] = []): Buffer[] {
  const all = state.hasOpened ? parts : [...opening, ...parts]
  state.hasOpened = true
  const bytes: Buffer[] = []
  for (const part of all) {
    const shown = part.kind === 'comment' ? [] : show(state, [part])
    bytes.push(...(part.isLater && part.kind !== 'comment' ? shown : [part.frame.raw]))
  }
  return bytes
}

/** True for the beginning of an event, with which a stream may end: it would corrupt the event after it. */
const isHalf = ({ kind, frame }: Part): boolean => kind === 'comment' && !isWhole(frame)

/**
 * Shows the content of the last response other than its calls, once another response follows, and begins a new section
 * of text.
 */
function showRest(state: RewrittenStream): Buffer[] {
  const { last, dialect, dialectState } = state
  if (!last || last.hasShownRest !== undefined || dialectState.isUnfilterable) return []
  const rest = state.isJson ? [] : partsLeft(dialect, last.buffered, REST)
  last.hasShownRest = rest.length > 0
  const bytes = rest.length > 0 ? [...pass(state, last.opening), ...show(state, rest)] : []
  state.textBefore = state.text
  state.section = ''
  return bytes
}

/** Returns the pending parts, and expects the beginning of a reply. */
function takePending(state: RewrittenStream): readonly Part[] {
  const parts = state.pendingParts
  state.pendingParts = []
  state.replyStart = beginReply(state.isJson)
  return parts
}
