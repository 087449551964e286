/** What one or two upstream responses bring for a run that is over, made into one response for the client. */
import { once } from 'node:events'
import { Readable } from 'node:stream'
import type { ToolCall } from '../core/conversation.ts'
import { isRealAnswer } from '../core/final-answer.ts'
import { NOT_EXECUTED } from '../core/loop/notice.ts'
import { isLastTry, withTruncated } from '../core/session/stop-attempts.ts'
import type { FinalAnswer, Terminal } from '../core/terminal.ts'
import type {
  AnswerStream,
  Dialect,
  DialectRequest,
  HeldCalls,
  OwnReply,
  ReadAnswer,
  RefusedRound,
  TerminalFor,
} from '../dialect/dialect.ts'
import { leaseFor } from '../http/buffer-budget.ts'
import { isEventStream, type RawHeaders, responseHeaders, withoutBodyFields } from '../http/headers.ts'
import { type OwnHeaders, reply, writeHead } from '../http/response.ts'
import type { Head } from '../http/upstream.ts'
import { createFrameReader, type Frame } from '../sse/frames.ts'
import type { Trip } from './begin-exchange.ts'
import type { Judgement } from './evaluate.ts'
import { onlyCall, readForced } from './forced-answer.ts'
import { returnIteration } from './forward.ts'
import { oweResults, settleStream, standIn } from './pending-results.ts'
import type { ProxyContext } from './services.ts'
import { type Incoming, plainBody, readUpTo } from './upstream-response.ts'

/** A recorded answer is at most this many characters. */
const MAX_RECORDED = 1_000_000

/** Everything that the steps of a last answer share. */
export interface Ending {
  readonly context: ProxyContext
  readonly trip: Trip
  readonly judgement: Judgement
  readonly dialect: Dialect
  /** Headers of every reply, and those that say besides that the run is over. */
  readonly own: OwnHeaders
  readonly ownAtEnd: OwnHeaders
  /** Governor's stop; otherwise the agent ends itself and its request and answer stay as they are. */
  readonly isStop: boolean
  readonly fallback: string
  /** The client asked for an object in JSON. */
  readonly isJson: boolean
  readonly terminal: TerminalFor
  /** Responses of which a stream has begun with the first, and whose calls were all refused. */
  readonly rounds?: readonly RefusedRound[]
}

export async function write({ response }: Trip, chunks: readonly Buffer[]): Promise<void> {
  for (const chunk of chunks) {
    if (chunk.length > 0 && !response.write(chunk) && !response.destroyed) {
      const waiting = new AbortController()
      const { signal } = waiting
      await Promise.race([once(response, 'drain', { signal }), once(response, 'close', { signal })])
      waiting.abort()
    }
  }
}

/** Gives a client a response as it comes, after what was `read` of it already. */
export async function passOn(
  trip: Trip,
  head: Head,
  headers: RawHeaders,
  own: OwnHeaders,
  rest: AsyncIterable<Buffer>,
  read: readonly Buffer[] = [],
): Promise<void> {
  writeHead(trip.response, head, headers, own)
  await write(trip, read)
  for await (const chunk of rest) await write(trip, [chunk])
  trip.response.end()
}

/** The headers of a rewritten response. */
export function rewrittenHeaders(head: Head): string[] {
  return withoutBodyFields(responseHeaders(head.headers))
}

/** A response that was not streamed. */
interface Whole {
  readonly head: Head
  readonly body: Buffer
  readonly answer: ReadAnswer
}

/** What one response brought: an answer; none; or all that the client gets, `failed` where that is but a failure. */
type Taken = 'answered' | 'silent' | 'given' | 'failed'

export interface Answer {
  /** The client has got something: nothing else can take its place any more. */
  readonly isShown: boolean
  /** Takes one response; one that is a single call of a tool that `keeps` names is an answer. */
  take(incoming: Incoming, keeps?: readonly string[]): Promise<Taken>
  complete(): Promise<void>
  /** `isRecorded`: the model has no answer, so that the run need not ask again. */
  giveFallback(isRecorded: boolean): Promise<void>
}

/** What the client has got, or is to get, of responses before: a stream that is open, or whole bodies. */
export interface BegunAnswer {
  readonly stream?: {
    readonly answer: AnswerStream
    readonly head: Head
    /** What stands before its next bytes. */
    readonly opening: readonly Buffer[]
    /** The client has the head. */
    readonly isShown: boolean
  }
  /** The newest whole body, and those before it. */
  readonly whole?: { readonly head: Head; readonly body: Buffer }
  readonly earlier: readonly Buffer[]
  readonly text: string
}

/** So many bytes of a stream may stand before its first word. */
const MAX_OPENING = 65_536

/** The client's stream: what it begins with is held until the model says something, as another reply may take its place. */
function createShow({ trip, ownAtEnd }: Ending, begun: BegunAnswer['stream']) {
  let head = begun?.head
  let isShown = begun?.isShown === true
  let opening = [...(begun?.opening ?? [])]
  let length = 0
  return {
    get isShown() {
      return isShown
    },
    begin(first: Head): void {
      head ??= first
    },
    async show(chunks: readonly Buffer[], isLast: boolean, own = ownAtEnd): Promise<void> {
      for (const chunk of chunks) length += chunk.length
      opening.push(...chunks)
      if (!head || !(isLast || length > MAX_OPENING)) return
      if (!isShown) writeHead(trip.response, head, rewrittenHeaders(head), own)
      isShown = true
      const bytes = opening
      opening = []
      await write(trip, bytes)
    },
  }
}

/** Collects what one or two upstream responses bring into one response for the client. */
export function createAnswer(ending: Ending, begun: BegunAnswer = { earlier: [], text: '' }): Answer {
  const { trip, dialect, judgement, ownAtEnd: own, isStop, isJson, fallback, terminal, context } = ending
  const lease = leaseFor(context.buffers, trip.response)
  const shown = createShow(ending, begun.stream)
  let stream = begun.stream?.answer
  const before = begun.whole && dialect.readAnswer(begun.whole.body)
  let whole: Whole | undefined = begun.whole && before && { ...begun.whole, answer: before }
  let earlier = [...begun.earlier]
  /** What the streams of the last answer called. */
  const tries: HeldCalls[] = []

  /** The call that is the answer. */
  let kept: ToolCall | undefined

  const leaveBroken = async (open: AnswerStream): Promise<Taken> => {
    // What came is all there is: an answer that broke off must not pass for a whole one.
    returnIteration(judgement)
    const taken = shown.isShown ? 'given' : 'failed'
    await shown.show(open.abandon(), true, ending.own)
    trip.response.end()
    return taken
  }

  const takeForced = async (
    { head }: Incoming,
    plain: AsyncIterable<Buffer>,
    keeps: readonly string[],
  ): Promise<Taken> => {
    shown.begin(head)
    const show = (chunks: readonly Buffer[], hasSaid: boolean) => shown.show(chunks, shown.isShown || hasSaid)
    const reading = { dialect, isJson, keeps, maxBytes: context.maxGuardedBody, show }
    const read = await readForced(reading, plain)
    stream = read.stream
    kept = read.kept
    if (read.held) tries.push(read.held)
    if (!read.isOver) return 'silent'
    return stream.endTry() === 'broken' ? leaveBroken(stream) : 'answered'
  }

  const takeStream = async (incoming: Incoming, plain: AsyncIterable<Buffer>): Promise<Taken> => {
    stream ??= dialect.openStream(isStop, isJson)
    const open = stream
    shown.begin(incoming.head)
    const show = (frame: Frame) => shown.show(open.push(frame), shown.isShown || open.hasSaid)
    const reader = createFrameReader()
    for await (const chunk of plain) for (const frame of reader.push(chunk)) await show(frame)
    for (const frame of reader.end()) await show(frame)
    const end = open.endTry()
    if (end === 'broken') return leaveBroken(open)
    if (open.held) tries.push(open.held)
    // An agent that ends itself gets what the model said, an answer or not.
    return isStop ? end : 'answered'
  }

  const takeWhole = async (
    incoming: Incoming,
    plain: AsyncIterable<Buffer>,
    keeps: readonly string[],
  ): Promise<Taken> => {
    const { head } = incoming
    const { bytes: body, rest } = await readUpTo(plain, context.maxGuardedBody, lease)
    if (rest && isStop) {
      incoming.body.destroy()
      return 'silent'
    }
    if (rest) {
      // What can't be read can't be completed: the response to an agent's own request goes out as it came.
      await passOn(trip, head, rewrittenHeaders(head), own, rest, [body])
      return 'given'
    }
    const answer = dialect.readAnswer(body)
    if (!answer || answer.end === 'failed') {
      returnIteration(judgement)
      await passOn(trip, head, rewrittenHeaders(head), ending.own, Readable.from([]), [body])
      return 'failed'
    }
    if (whole) earlier = [...earlier, whole.body]
    whole = { head, body, answer }
    kept = onlyCall(answer.calls, keeps)
    return isStop && !kept && !isRealAnswer(answer.text, isJson) ? 'silent' : 'answered'
  }

  const record = async (
    text: string,
    ended: Terminal,
    isRecorded: boolean,
    id?: string,
    held?: HeldCalls,
  ): Promise<void> => {
    const { terminal_reason: reason, session } = ended
    const by = !isStop ? 'agent' : ended.has_final_answer ? 'model' : 'fallback'
    const loop = reason === 'loop_guard' ? own['x-governor-loop'] : undefined
    context.emit({ kind: 'stopped', reason, by, session })
    if (!isStop) return
    const answer: FinalAnswer = {
      text: (kept?.arguments ?? text).slice(0, MAX_RECORDED),
      model: judgement.request.conversation.model,
      terminal: ended,
      ...(id === undefined ? {} : { id }),
      ...(loop === undefined ? {} : { loop }),
      ...(kept ? { isCall: true } : {}),
    }
    // Half an answer is not to be repeated: who asks again may get all of it.
    const isHalf = ended.truncated && !isLastTry(await judgement.remembered.triedToStop(withTruncated))
    if (isHalf || !isRecorded) returnIteration(judgement)
    else await judgement.remembered.end(answer).catch(() => undefined)
    // The client has the call, and what it sends next goes on from it.
    if (kept) return
    if (stream) return settleStream(context, judgement, ending.rounds ?? [], tries)
    if (!held || held.calls.length === 0) return
    const results = held.calls.map(() => NOT_EXECUTED)
    await oweResults(context, judgement, { held, results }, new Set(results.keys()))
  }

  const finishStream = async (open: AnswerStream, text?: string, isRecorded = true): Promise<void> => {
    let ended = terminal(false)
    const last = open.finish((hasFinalAnswer, isTruncated) => {
      ended = terminal(hasFinalAnswer || kept !== undefined, isTruncated)
      return ended
    }, text)
    // Where no last answer came, the provider knows the response before it.
    await record(open.text, ended, isRecorded, open.held?.id ?? ending.rounds?.at(-1)?.held.id)
    await shown.show(last, true)
    trip.response.end()
  }

  const finishWhole = async (last: Whole, text?: string, isRecorded = true): Promise<void> => {
    const { head, body, answer } = last
    const hasFinalAnswer = text === undefined && (kept !== undefined || isRealAnswer(answer.text, isJson))
    const ended = terminal(hasFinalAnswer, text === undefined && answer.end === 'truncated')
    const said = text ?? answer.text
    const wholeText = begun.text === '' ? text : `${begun.text}\n\n${said}`
    await record(wholeText ?? said, ended, isRecorded, answer.held?.id, answer.held)
    const rewritten = dialect.writeAnswer(body, {
      terminal: ended,
      dropCalls: isStop && !kept,
      earlier,
      ...(wholeText === undefined ? {} : { text: wholeText }),
    })
    const headers = [...rewrittenHeaders(head), 'content-length', String(rewritten.length)]
    writeHead(trip.response, head, headers, own)
    trip.response.end(rewritten)
  }

  return {
    get isShown() {
      return shown.isShown
    },
    async take(incoming, keeps = []) {
      const plain = plainBody(incoming)
      if (!plain && !isStop) {
        await passOn(trip, incoming.head, responseHeaders(incoming.head.headers), own, incoming.body)
        return 'given'
      }
      if (!plain) {
        incoming.body.destroy()
        return 'silent'
      }
      if (isEventStream(incoming.head.headers))
        return keeps.length > 0 ? takeForced(incoming, plain, keeps) : takeStream(incoming, plain)
      if (stream) {
        incoming.body.destroy()
        return 'silent'
      }
      return takeWhole(incoming, plain, keeps)
    },
    async complete() {
      if (stream) await finishStream(stream)
      else if (whole) await finishWhole(whole)
    },
    async giveFallback(isRecorded) {
      if (stream?.hasBegun) return finishStream(stream, fallback, isRecorded)
      if (!stream && whole) return finishWhole(whole, fallback, isRecorded)
      const id = await standIn(context, judgement)
      await record(fallback, terminal(false), isRecorded, id)
      if (!shown.isShown) return sendFallback(ending, id)
      // Streams without a response: what clients read strictly must have a beginning.
      const { body } = ownReply(context, dialect, fallbackAnswer(ending, id), judgement.request, true)
      await shown.show([body], true)
      trip.response.end()
    },
  }
}

/** The fallback text as an answer. */
function fallbackAnswer({ judgement, fallback, terminal }: Ending, id: string | undefined): FinalAnswer {
  const { model } = judgement.request.conversation
  return { text: fallback, model, terminal: terminal(false), ...(id === undefined ? {} : { id }) }
}

/** Sends the fallback text as the whole response. */
export function sendFallback(ending: Ending, id?: string): void {
  const { context, trip, dialect, judgement, ownAtEnd } = ending
  sendOwn(context, trip, dialect, fallbackAnswer(ending, id), judgement.request, ownAtEnd)
}

function ownReply(
  context: ProxyContext,
  dialect: Dialect,
  answer: FinalAnswer,
  request: DialectRequest,
  streams: boolean,
): OwnReply {
  return dialect.reply(answer, streams, context.newId(), context.now(), request.asksForUsage?.())
}

/** Sends a reply that Governor makes itself, in the form the client asked for. */
export function sendOwn(
  context: ProxyContext,
  trip: Trip,
  dialect: Dialect,
  answer: FinalAnswer,
  request: DialectRequest,
  own: OwnHeaders,
): void {
  const { streams } = request.conversation
  const { contentType, body } = ownReply(context, dialect, answer, request, streams)
  reply(trip.response, 200, contentType, body, own)
}
