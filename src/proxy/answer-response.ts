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
  BlockedMessage,
  BufferedCalls,
  Dialect,
  DialectRequest,
  GovernorReply,
  ReadAnswer,
  TerminalFor,
} from '../dialect/dialect.ts'
import { leaseFor } from '../http/buffer-budget.ts'
import { isEventStream, type RawHeaders, responseHeaders, withoutBodyFields } from '../http/headers.ts'
import { type GovernorHeaders, reply, writeHead } from '../http/response.ts'
import type { Head } from '../http/upstream.ts'
import { createFrameReader, type Frame } from '../sse/frames.ts'
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import { onlyCall, readForced } from './forced-answer.ts'
import { releaseIteration } from './forward.ts'
import { saveResults, settleStream, standIn } from './pending-results.ts'
import type { Services } from './services.ts'
import { plainBody, readUpTo, type UpstreamResponse } from './upstream-response.ts'

/** A recorded answer is at most this many characters. */
const MAX_RECORDED = 1_000_000

/** Everything that the steps of a last answer share. */
export interface Ending {
  readonly services: Services
  readonly exchange: Exchange
  readonly evaluation: Evaluation
  readonly dialect: Dialect
  /** Headers of every reply, and those that say besides that the run is over. */
  readonly governorHeaders: GovernorHeaders
  readonly terminalGovernorHeaders: GovernorHeaders
  /** Governor's stop; otherwise the agent ends itself and its request and answer stay as they are. */
  readonly isStop: boolean
  readonly fallback: string
  /** The client asked for an object in JSON. */
  readonly isJson: boolean
  readonly terminal: TerminalFor
  /** Responses of which a stream has begun with the first, and whose calls were all refused. */
  readonly rounds?: readonly BlockedMessage[]
}

export async function write({ response }: Exchange, chunks: readonly Buffer[]): Promise<void> {
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
  exchange: Exchange,
  head: Head,
  headers: RawHeaders,
  governorHeaders: GovernorHeaders,
  rest: AsyncIterable<Buffer>,
  read: readonly Buffer[] = [],
): Promise<void> {
  writeHead(exchange.response, head, headers, governorHeaders)
  await write(exchange, read)
  for await (const chunk of rest) await write(exchange, [chunk])
  exchange.response.end()
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
  take(incoming: UpstreamResponse, keeps?: readonly string[]): Promise<Taken>
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
function createShow({ exchange, terminalGovernorHeaders }: Ending, begun: BegunAnswer['stream']) {
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
    async show(
      chunks: readonly Buffer[],
      isLast: boolean,
      governorHeaders = terminalGovernorHeaders,
    ): Promise<void> {
      for (const chunk of chunks) length += chunk.length
      opening.push(...chunks)
      if (!head || !(isLast || length > MAX_OPENING)) return
      if (!isShown) writeHead(exchange.response, head, rewrittenHeaders(head), governorHeaders)
      isShown = true
      const bytes = opening
      opening = []
      await write(exchange, bytes)
    },
  }
}

/** Collects what one or two upstream responses bring into one response for the client. */
export function createAnswer(ending: Ending, begun: BegunAnswer = { earlier: [], text: '' }): Answer {
  const {
    exchange,
    dialect,
    evaluation,
    terminalGovernorHeaders: governorHeaders,
    isStop,
    isJson,
    fallback,
    terminal,
    services,
  } = ending
  const lease = leaseFor(services.buffers, exchange.response)
  const shown = createShow(ending, begun.stream)
  let stream = begun.stream?.answer
  const before = begun.whole && dialect.readAnswer(begun.whole.body)
  let whole: Whole | undefined = begun.whole && before && { ...begun.whole, answer: before }
  let earlier = [...begun.earlier]
  /** What the streams of the last answer called. */
  const tries: BufferedCalls[] = []

  /** The call that is the answer. */
  let kept: ToolCall | undefined

  const leaveBroken = async (open: AnswerStream): Promise<Taken> => {
    // What came is all there is: an answer that broke off must not pass for a whole one.
    releaseIteration(evaluation)
    const taken = shown.isShown ? 'given' : 'failed'
    await shown.show(open.abandon(), true, ending.governorHeaders)
    exchange.response.end()
    return taken
  }

  const takeForced = async (
    { head }: UpstreamResponse,
    plain: AsyncIterable<Buffer>,
    keeps: readonly string[],
  ): Promise<Taken> => {
    shown.begin(head)
    const show = (chunks: readonly Buffer[], hasSaid: boolean) => shown.show(chunks, shown.isShown || hasSaid)
    const state = { dialect, isJson, keeps, maxBytes: services.maxGuardedBody, show }
    const read = await readForced(state, plain)
    stream = read.stream
    kept = read.kept
    if (read.buffered) tries.push(read.buffered)
    if (!read.isOver) return 'silent'
    return stream.endResponse() === 'broken' ? leaveBroken(stream) : 'answered'
  }

  const takeStream = async (incoming: UpstreamResponse, plain: AsyncIterable<Buffer>): Promise<Taken> => {
    stream ??= dialect.openStream(isStop, isJson)
    const open = stream
    shown.begin(incoming.head)
    const show = (frame: Frame) => shown.show(open.push(frame), shown.isShown || open.hasText)
    const reader = createFrameReader()
    for await (const chunk of plain) for (const frame of reader.push(chunk)) await show(frame)
    for (const frame of reader.end()) await show(frame)
    const end = open.endResponse()
    if (end === 'broken') return leaveBroken(open)
    if (open.buffered) tries.push(open.buffered)
    // An agent that ends itself gets what the model said, an answer or not.
    return isStop ? end : 'answered'
  }

  const takeWhole = async (
    incoming: UpstreamResponse,
    plain: AsyncIterable<Buffer>,
    keeps: readonly string[],
  ): Promise<Taken> => {
    const { head } = incoming
    const { bytes: body, rest } = await readUpTo(plain, services.maxGuardedBody, lease)
    if (rest && isStop) {
      incoming.body.destroy()
      return 'silent'
    }
    if (rest) {
      // What can't be read can't be completed: the response to an agent's own request goes out as it came.
      await passOn(exchange, head, rewrittenHeaders(head), governorHeaders, rest, [body])
      return 'given'
    }
    const answer = dialect.readAnswer(body)
    if (!answer || answer.end === 'failed') {
      releaseIteration(evaluation)
      await passOn(exchange, head, rewrittenHeaders(head), ending.governorHeaders, Readable.from([]), [body])
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
    buffered?: BufferedCalls,
  ): Promise<void> => {
    const { terminal_reason: reason, session } = ended
    const by = !isStop ? 'agent' : ended.has_final_answer ? 'model' : 'fallback'
    const loop = reason === 'loop_guard' ? governorHeaders['x-governor-loop'] : undefined
    services.emit({ kind: 'stopped', reason, by, session })
    if (!isStop) return
    const answer: FinalAnswer = {
      text: (kept?.arguments ?? text).slice(0, MAX_RECORDED),
      model: evaluation.request.conversation.model,
      terminal: ended,
      ...(id === undefined ? {} : { id }),
      ...(loop === undefined ? {} : { loop }),
      ...(kept ? { isCall: true } : {}),
    }
    // Half an answer is not to be repeated: who asks again may get all of it.
    const isHalf = ended.truncated && !isLastTry(await evaluation.handle.noteStopAttempt(withTruncated))
    if (isHalf || !isRecorded) releaseIteration(evaluation)
    else await evaluation.handle.end(answer).catch(() => undefined)
    // The client has the call, and what it sends next goes on from it.
    if (kept) return
    if (stream) return settleStream(services, evaluation, ending.rounds ?? [], tries)
    if (!buffered || buffered.calls.length === 0) return
    const results = buffered.calls.map(() => NOT_EXECUTED)
    await saveResults(services, evaluation, { buffered, results }, new Set(results.keys()))
  }

  const finishStream = async (open: AnswerStream, text?: string, isRecorded = true): Promise<void> => {
    let ended = terminal(false)
    const last = open.finish((hasFinalAnswer, isTruncated) => {
      ended = terminal(hasFinalAnswer || kept !== undefined, isTruncated)
      return ended
    }, text)
    // Where no last answer came, the provider knows the response before it.
    await record(open.text, ended, isRecorded, open.buffered?.id ?? ending.rounds?.at(-1)?.buffered.id)
    await shown.show(last, true)
    exchange.response.end()
  }

  const finishWhole = async (last: Whole, text?: string, isRecorded = true): Promise<void> => {
    const { head, body, answer } = last
    const hasFinalAnswer = text === undefined && (kept !== undefined || isRealAnswer(answer.text, isJson))
    const ended = terminal(hasFinalAnswer, text === undefined && answer.end === 'truncated')
    const said = text ?? answer.text
    const wholeText = begun.text === '' ? text : `${begun.text}\n\n${said}`
    await record(wholeText ?? said, ended, isRecorded, answer.buffered?.id, answer.buffered)
    const rewritten = dialect.writeAnswer(body, {
      terminal: ended,
      dropCalls: isStop && !kept,
      earlier,
      ...(wholeText === undefined ? {} : { text: wholeText }),
    })
    const headers = [...rewrittenHeaders(head), 'content-length', String(rewritten.length)]
    writeHead(exchange.response, head, headers, governorHeaders)
    exchange.response.end(rewritten)
  }

  return {
    get isShown() {
      return shown.isShown
    },
    async take(incoming, keeps = []) {
      const plain = plainBody(incoming)
      if (!plain && !isStop) {
        await passOn(
          exchange,
          incoming.head,
          responseHeaders(incoming.head.headers),
          governorHeaders,
          incoming.body,
        )
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
      const id = await standIn(services, evaluation)
      await record(fallback, terminal(false), isRecorded, id)
      if (!shown.isShown) return sendFallback(ending, id)
      // Streams without a response: what clients read strictly must have a beginning.
      const { body } = ownReply(services, dialect, fallbackAnswer(ending, id), evaluation.request, true)
      await shown.show([body], true)
      exchange.response.end()
    },
  }
}

/** The fallback text as an answer. */
function fallbackAnswer({ evaluation, fallback, terminal }: Ending, id: string | undefined): FinalAnswer {
  const { model } = evaluation.request.conversation
  return { text: fallback, model, terminal: terminal(false), ...(id === undefined ? {} : { id }) }
}

/** Sends the fallback text as the whole response. */
export function sendFallback(ending: Ending, id?: string): void {
  const { services, exchange, dialect, evaluation, terminalGovernorHeaders } = ending
  sendOwn(
    services,
    exchange,
    dialect,
    fallbackAnswer(ending, id),
    evaluation.request,
    terminalGovernorHeaders,
  )
}

function ownReply(
  services: Services,
  dialect: Dialect,
  answer: FinalAnswer,
  request: DialectRequest,
  streams: boolean,
): GovernorReply {
  return dialect.reply(answer, streams, services.newId(), services.now(), request.asksForUsage?.())
}

/** Sends a reply that Governor makes itself, in the form the client asked for. */
export function sendOwn(
  services: Services,
  exchange: Exchange,
  dialect: Dialect,
  answer: FinalAnswer,
  request: DialectRequest,
  governorHeaders: GovernorHeaders,
): void {
  const { streams } = request.conversation
  const { contentType, body } = ownReply(services, dialect, answer, request, streams)
  reply(exchange.response, 200, contentType, body, governorHeaders)
}
