/** What one or two upstream responses bring for a run that is over, made into one response for the client. */
import { once } from 'node:events'
import { isRealAnswer } from '../core/answer.ts'
import { NOT_EXECUTED } from '../core/loop-notice.ts'
import type { FinalAnswer, Terminal } from '../core/terminal.ts'
import type {
  AnswerStream,
  Dialect,
  DialectRequest,
  HeldCalls,
  OwnReply,
  ReadAnswer,
  RefusedRound,
} from '../dialect/dialect.ts'
import { createFrameReader } from '../sse/frames.ts'
import type { ProxyContext } from './context.ts'
import { isEventStream, type RawHeaders, responseHeaders, withoutBodyFields } from './headers.ts'
import { type Incoming, plainBody, readUpTo } from './incoming.ts'
import type { Judgement } from './judge.ts'
import { oweResults, settleStream, standIn } from './owed.ts'
import { type OwnHeaders, reply, writeHead } from './reply.ts'
import type { Trip } from './trip.ts'
import type { Head } from './upstream.ts'

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
  readonly terminal: (hasFinalAnswer: boolean) => Terminal
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

/** A response that was not streamed; `answer` is unset where it is none of its dialect. */
interface Whole {
  readonly head: Head
  readonly body: Buffer
  readonly answer: ReadAnswer | undefined
}

interface Answer {
  /** Something was received for the client: from here on it gets an answer, whatever else goes wrong. */
  readonly hasBegun: boolean
  /** Takes one response; true when it holds an answer. */
  take(incoming: Incoming): Promise<boolean>
  complete(): Promise<void>
  giveFallback(): Promise<void>
}

/** What the client has got, or is to get, of responses before: a stream that is open, or whole bodies. */
export interface BegunAnswer {
  readonly stream?: AnswerStream
  /** The newest whole body, and those before it. */
  readonly whole?: { readonly head: Head; readonly body: Buffer }
  readonly earlier: readonly Buffer[]
  readonly text: string
}

/** Collects what one or two upstream responses bring into one response for the client. */
export function createAnswer(ending: Ending, begun: BegunAnswer = { earlier: [], text: '' }): Answer {
  const { trip, dialect, judgement, ownAtEnd: own, isStop, isJson, fallback, terminal, context } = ending
  let { stream } = begun
  let whole: Whole | undefined = begun.whole && {
    ...begun.whole,
    answer: dialect.readAnswer(begun.whole.body),
  }
  let earlier = [...begun.earlier]
  /** What the streams of the last answer called. */
  const tries: HeldCalls[] = []

  const takeStream = async (incoming: Incoming, plain: AsyncIterable<Buffer>): Promise<boolean> => {
    if (!stream) {
      stream = dialect.openStream(isStop, isJson)
      writeHead(trip.response, incoming.head, rewrittenHeaders(incoming.head), own)
      trip.response.flushHeaders()
    }
    const reader = createFrameReader()
    for await (const chunk of plain) {
      for (const frame of reader.push(chunk)) await write(trip, stream.push(frame))
    }
    for (const frame of reader.end()) await write(trip, stream.push(frame))
    const isAnswer = stream.endTry()
    if (stream.held) tries.push(stream.held)
    // An agent that ends itself gets what the model said, an answer or not.
    return isAnswer || !isStop
  }

  const takeWhole = async (incoming: Incoming, plain: AsyncIterable<Buffer>): Promise<boolean> => {
    const { bytes: body, rest } = await readUpTo(plain, context.maxGuardedBody)
    if (rest && isStop) {
      incoming.body.destroy()
      return false
    }
    if (rest) {
      // What can't be read can't be completed: the response to an agent's own request goes out as it came.
      await passOn(trip, incoming.head, rewrittenHeaders(incoming.head), own, rest, [body])
      return true
    }
    const answer = dialect.readAnswer(body)
    if (whole) earlier = [...earlier, whole.body]
    whole = { head: incoming.head, body, answer }
    return !isStop || (answer !== undefined && isRealAnswer(answer.text, isJson))
  }

  const record = async (
    text: string,
    hasFinalAnswer: boolean,
    id?: string,
    held?: HeldCalls,
  ): Promise<void> => {
    const by = isStop ? (hasFinalAnswer ? 'model' : 'fallback') : 'agent'
    const { terminal_reason: reason, session } = terminal(hasFinalAnswer)
    const loop = reason === 'loop_guard' ? own['x-governor-loop'] : undefined
    context.emit({ kind: 'stopped', reason, by, session })
    if (!isStop) return
    const answer: FinalAnswer = {
      text: text.slice(0, MAX_RECORDED),
      model: judgement.request.conversation.model,
      terminal: terminal(hasFinalAnswer),
      ...(id === undefined ? {} : { id }),
      ...(loop === undefined ? {} : { loop }),
    }
    await judgement.remembered.end(answer).catch(() => undefined)
    if (stream) return settleStream(context, judgement, ending.rounds ?? [], tries)
    if (!held || held.calls.length === 0) return
    const results = held.calls.map(() => NOT_EXECUTED)
    await oweResults(context, judgement, { held, results }, new Set(results.keys()))
  }

  const finishStream = async (open: AnswerStream, text: string | undefined): Promise<void> => {
    let hasFinalAnswer = false
    const last = open.finish((answered) => {
      hasFinalAnswer = answered
      return terminal(answered)
    }, text)
    // Where no last answer came, the provider knows the response before it.
    await record(open.text, hasFinalAnswer, open.held?.id ?? ending.rounds?.at(-1)?.held.id)
    await write(trip, last)
    trip.response.end()
  }

  const finishWhole = async ({ head, body, answer }: Whole, text: string | undefined): Promise<void> => {
    const hasFinalAnswer = text === undefined && answer !== undefined && isRealAnswer(answer.text, isJson)
    const said = text ?? answer?.text ?? ''
    const wholeText = begun.text === '' ? text : `${begun.text}\n\n${said}`
    await record(wholeText ?? said, hasFinalAnswer, answer?.held?.id, answer?.held)
    // What is no response of this dialect can't be completed, and goes out as it came.
    const rewritten = answer
      ? dialect.writeAnswer(body, {
          terminal: terminal(hasFinalAnswer),
          dropCalls: isStop,
          earlier,
          ...(wholeText === undefined ? {} : { text: wholeText }),
        })
      : body
    const headers = [...rewrittenHeaders(head), 'content-length', String(rewritten.length)]
    writeHead(trip.response, head, headers, own)
    trip.response.end(rewritten)
  }

  return {
    get hasBegun() {
      return stream !== undefined || whole !== undefined
    },
    async take(incoming) {
      const plain = plainBody(incoming)
      if (!plain && !isStop) {
        await passOn(trip, incoming.head, responseHeaders(incoming.head.headers), own, incoming.body)
        return true
      }
      if (!plain) {
        incoming.body.destroy()
        return false
      }
      if (isEventStream(incoming.head.headers)) return takeStream(incoming, plain)
      if (stream) {
        incoming.body.destroy()
        return false
      }
      return takeWhole(incoming, plain)
    },
    async complete() {
      if (stream) await finishStream(stream, undefined)
      else if (whole) await finishWhole(whole, undefined)
    },
    async giveFallback() {
      if (stream?.hasBegun) return finishStream(stream, fallback)
      if (!stream && whole?.answer) return finishWhole(whole, fallback)
      const id = await standIn(context, judgement)
      await record(fallback, false, id)
      if (!stream) return sendFallback(ending, id)
      // Streams without a response: what clients read strictly must have a beginning.
      await write(trip, [
        ownReply(context, dialect, fallbackAnswer(ending, id), judgement.request, true).body,
      ])
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
