/** Makes one response for the client from the one or two upstream responses that end a run. */
import { once } from 'node:events'
import { setImmediate } from 'node:timers/promises'
import type { ToolCall } from '../../core/conversation.ts'
import { isRealAnswer } from '../../core/final-answer.ts'
import { footerAfter, textWithFooter } from '../../core/footer.ts'
import { NOT_EXECUTED } from '../../core/loop/notice.ts'
import { isLastTry, withTruncated } from '../../core/session/stop-attempts.ts'
import type { FinalAnswer, Terminal } from '../../core/terminal.ts'
import type {
  AnswerStream,
  BlockedMessage,
  BufferedCalls,
  Dialect,
  DialectRequest,
  GovernorReply,
  ReadAnswer,
  TerminalFor,
} from '../../dialect/dialect.ts'
import type { Lease } from '../../http/buffer-budget.ts'
import { isEventStream, type RawHeaders, responseHeaders, withoutBodyFields } from '../../http/headers.ts'
import { relay } from '../../http/relay.ts'
import { type GovernorHeaders, reply, writeHead } from '../../http/response.ts'
import type { Head } from '../../http/upstream.ts'
import { plainBody, readUpTo, type UpstreamResponse } from '../../http/upstream-response.ts'
import { createFrameReader, type Frame, isTooLong } from '../../sse/frames.ts'
import type { Exchange } from '../begin-exchange.ts'
import type { EvaluatedRequest } from '../evaluated-request.ts'
import { failRequest } from '../evaluated-request.ts'
import type { Services } from '../services.ts'
import { onlyCall, readForced } from './forced-answer.ts'
import { saveResults, settleStream, standIn } from './pending-results.ts'

/** Characters of a recorded answer. */
const MAX_RECORDED = 1_000_000

/** What the steps of a last answer share. */
export interface Ending {
  readonly x: EvaluatedRequest
  readonly dialect: Dialect
  /** For the parts of responses that are held. */
  readonly lease: Lease
  /** Governor's headers, with those that say that the run is over. */
  readonly terminalGovernorHeaders: GovernorHeaders
  /** Governor stops the run; otherwise the agent ends it itself, and its request and answer stay unchanged. */
  readonly isStop: boolean
  readonly fallback: string
  /** The client asked for a JSON object. */
  readonly isJson: boolean
  readonly terminal: TerminalFor
  /** The last line of what the client reads; `undefined` if there is none. */
  readonly footer: string | undefined
  /** Earlier responses, whose calls were all blocked; the client's stream began with the first. */
  readonly rounds?: readonly BlockedMessage[]
}

/** Bytes that are written at once. */
const MAX_WRITE = 65_536

/** Joins chunks to larger ones: text that was held comes in as many small ones as the model wrote. */
function* joined(chunks: readonly Buffer[]): Generator<Buffer, void, undefined> {
  let from = 0
  let length = 0
  for (const [at, chunk] of chunks.entries()) {
    length += chunk.length
    if (length < MAX_WRITE && at + 1 < chunks.length) continue
    const [first = chunk, second] = chunks.slice(from, at + 1)
    yield second ? Buffer.concat(chunks.slice(from, at + 1), length) : first
    from = at + 1
    length = 0
  }
}

/** Writes chunks to the client; waits while it reads slowly, and lets others go on between two large chunks. */
export async function write({ response }: Exchange, chunks: readonly Buffer[]): Promise<void> {
  for (const bytes of joined(chunks)) {
    if (bytes.length > 0 && !response.write(bytes) && !response.destroyed) {
      const waiting = new AbortController()
      const { signal } = waiting
      await Promise.race([once(response, 'drain', { signal }), once(response, 'close', { signal })])
      waiting.abort()
    }
    if (bytes.length >= MAX_WRITE) await setImmediate()
  }
}

/** Gives the client a response: the chunks that were `read` already, then the rest as it comes. */
export async function passOn(
  exchange: Exchange,
  head: Head,
  headers: RawHeaders,
  governorHeaders: GovernorHeaders,
  read: readonly Buffer[],
  rest?: AsyncIterable<Buffer>,
): Promise<void> {
  writeHead(exchange.response, head, headers, governorHeaders)
  await write(exchange, read)
  if (rest) for await (const chunk of rest) await write(exchange, [chunk])
  exchange.response.end()
}

/** Returns the headers for a rewritten body. */
export function rewrittenHeaders(head: Head): string[] {
  return withoutBodyFields(responseHeaders(head.headers))
}

/** A whole response that was not streamed. */
interface Whole {
  readonly head: Head
  readonly body: Buffer
  readonly answer: ReadAnswer
}

/** What a response contained: an answer, or no answer (`silent`). `given`: the client has its response already; `failed`: it got an error. */
type Taken = 'answered' | 'silent' | 'given' | 'failed'

/** The client's response so far, from earlier upstream responses: an open stream, or whole bodies. */
export interface BegunAnswer {
  readonly stream?: {
    readonly answer: AnswerStream
    readonly head: Head
    /** Chunks to be sent before its next bytes. */
    readonly opening: readonly Buffer[]
    /** The client has the head. */
    readonly isShown: boolean
  }
  /** The newest whole body, and those before it. */
  readonly whole?: { readonly head: Head; readonly body: Buffer }
  readonly earlier: readonly Buffer[]
  readonly text: string
}

/** The client's response while it is made. Only the functions of this file change it. */
export interface Answer {
  readonly ending: Ending
  /** The head of the client's stream. */
  head: Head | undefined
  /** The client has got the head: no other response can replace this one. */
  isShown: boolean
  /** The beginning of the client's stream, held until the model writes text, as another response may replace it. */
  opening: Buffer[]
  openingLength: number
  stream: AnswerStream | undefined
  whole: Whole | undefined
  earlier: readonly Buffer[]
  /** The model's text in earlier whole bodies. */
  readonly textBefore: string
  /** The calls in the streams of the last answer. */
  readonly tries: BufferedCalls[]
  /** The call that is the answer. */
  kept: ToolCall | undefined
}

/** Begins an answer, after the part that the client has got already. */
export function beginAnswer(ending: Ending, begun: BegunAnswer = { earlier: [], text: '' }): Answer {
  const { stream, whole } = begun
  const read = whole && ending.dialect.readAnswer(whole.body)
  return {
    ending,
    head: stream?.head,
    isShown: stream?.isShown === true,
    opening: [...(stream?.opening ?? [])],
    openingLength: 0,
    stream: stream?.answer,
    whole: whole && read && { ...whole, answer: read },
    earlier: begun.earlier,
    textBefore: begun.text,
    tries: [],
    kept: undefined,
  }
}

/** Bytes of a stream that are held before its first text. */
const MAX_OPENING = 65_536

/** Adds chunks to the client's stream; `isLast`: sends all that is held. */
async function show(
  answer: Answer,
  chunks: readonly Buffer[],
  isLast: boolean,
  governorHeaders = answer.ending.terminalGovernorHeaders,
): Promise<void> {
  const { exchange } = answer.ending.x
  for (const chunk of chunks) {
    answer.openingLength += chunk.length
    answer.opening.push(chunk)
  }
  const { head, opening } = answer
  if (!head || !(isLast || answer.openingLength > MAX_OPENING)) return
  if (!answer.isShown) writeHead(exchange.response, head, rewrittenHeaders(head), governorHeaders)
  answer.isShown = true
  answer.opening = []
  await write(exchange, opening)
}

/** Closes the connection after an answer that broke off: a regular end would make it look complete. */
async function leaveBroken(answer: Answer, stream: AnswerStream): Promise<Taken> {
  const { exchange, evaluation, governorHeaders } = answer.ending.x
  void evaluation.handle.releaseIteration()
  const taken = answer.isShown ? 'given' : 'failed'
  await show(answer, stream.abandon(), true, governorHeaders)
  exchange.response.end()
  return taken
}

/** Gives up a response that is too large to be held: the client gets the next one instead, unless it has a part of this one. */
async function giveUpStream(answer: Answer, stream: AnswerStream): Promise<Taken> {
  if (answer.isShown) return leaveBroken(answer, stream)
  answer.head = undefined
  answer.opening = []
  answer.stream = undefined
  return 'silent'
}

async function takeForced(
  answer: Answer,
  plain: AsyncIterable<Buffer>,
  keeps: readonly string[],
): Promise<Taken> {
  const { dialect, isJson, footer, x } = answer.ending
  const read = await readForced(
    {
      dialect,
      isJson,
      mayHaveFooter: footer !== undefined,
      keeps,
      maxBytes: x.services.maxGuardedBody,
      show: (chunks, hasText) => show(answer, chunks, answer.isShown || hasText),
    },
    plain,
  )
  answer.stream = read.stream
  answer.kept = read.kept
  if (read.buffered) answer.tries.push(read.buffered)
  if (!read.isOver) return 'silent'
  return read.stream.endResponse() === 'broken' ? leaveBroken(answer, read.stream) : 'answered'
}

async function takeStream(answer: Answer, plain: AsyncIterable<Buffer>): Promise<Taken> {
  const { x, dialect, isStop, isJson, footer } = answer.ending
  const stream = answer.stream ?? dialect.openStream(isStop, isJson, footer !== undefined)
  answer.stream = stream
  const take = (frame: Frame) => show(answer, stream.push(frame), answer.isShown || stream.hasText)
  const reader = createFrameReader()
  let length = 0
  for await (const chunk of plain) {
    length += chunk.length
    const frames = reader.push(chunk)
    const isTooMuch = (!stream.hasText && length > x.services.maxGuardedBody) || frames.some(isTooLong)
    if (isStop && isTooMuch) return giveUpStream(answer, stream)
    for (const frame of frames) await take(frame)
  }
  for (const frame of reader.end()) await take(frame)
  const end = stream.endResponse()
  if (end === 'broken') return leaveBroken(answer, stream)
  if (stream.buffered) answer.tries.push(stream.buffered)
  // An agent that ends its run itself gets the model's response, whether or not it is an answer.
  return isStop ? end : 'answered'
}

async function takeWhole(
  answer: Answer,
  response: UpstreamResponse,
  plain: AsyncIterable<Buffer>,
  keeps: readonly string[],
): Promise<Taken> {
  const { x, dialect, lease, isStop, isJson, terminalGovernorHeaders } = answer.ending
  const { exchange, services, evaluation, governorHeaders } = x
  const { head } = response
  const { bytes: body, rest } = await readUpTo(plain, services.maxGuardedBody, lease)
  if (rest && isStop) {
    response.abort()
    return 'silent'
  }
  if (rest) {
    // It is too large to be changed: the response to an agent that ends its run itself passes unchanged.
    await passOn(exchange, head, rewrittenHeaders(head), terminalGovernorHeaders, [body], rest)
    return 'given'
  }
  const read = dialect.readAnswer(body)
  if (!read || read.end === 'failed') {
    void evaluation.handle.releaseIteration()
    await passOn(exchange, head, rewrittenHeaders(head), governorHeaders, [body])
    return 'failed'
  }
  if (answer.whole) answer.earlier = [...answer.earlier, answer.whole.body]
  answer.whole = { head, body, answer: read }
  answer.kept = onlyCall(read.calls, keeps)
  return isStop && !answer.kept && !isRealAnswer(read.text, isJson) ? 'silent' : 'answered'
}

/** Reads a response. One that consists of a single call of a tool in `keeps` is an answer. @throws {UpstreamFailed} */
export async function takeResponse(
  answer: Answer,
  response: UpstreamResponse,
  keeps: readonly string[] = [],
): Promise<Taken> {
  const { x, isStop, terminalGovernorHeaders } = answer.ending
  const plain = plainBody(response)
  if (!plain && !isStop) {
    relay(response, x.exchange.response, terminalGovernorHeaders, (failure) => failRequest(x, failure))
    return 'given'
  }
  const isStream = isEventStream(response.head.headers)
  if (!plain || (answer.stream && !isStream)) {
    response.abort()
    return 'silent'
  }
  if (!isStream) return takeWhole(answer, response, plain, keeps)
  answer.head ??= response.head
  return keeps.length > 0 ? takeForced(answer, plain, keeps) : takeStream(answer, plain)
}

/** Records a final answer for a client that asks again. Without `isRecorded`, its next request asks the provider again. */
async function record(
  answer: Answer,
  text: string,
  terminal: Terminal,
  isRecorded: boolean,
  id: string | undefined,
): Promise<void> {
  const { x, isStop, terminalGovernorHeaders } = answer.ending
  const { exchange, evaluation } = x
  const { handle } = evaluation
  const { terminal_reason: reason } = terminal
  const by = !isStop ? 'agent' : terminal.has_final_answer ? 'model' : 'fallback'
  exchange.emit({ kind: 'stopped', reason, by, ...handle.names })
  const recorded = (answer.kept?.arguments ?? text).slice(0, MAX_RECORDED)
  handle.noteFinalText(recorded, terminal)
  if (!isStop) return handle.noteOwnEnd(terminal)
  const footer = footerFor(answer)
  const loop = reason === 'loop_guard' ? terminalGovernorHeaders['x-governor-loop'] : undefined
  const final: FinalAnswer = {
    text: recorded,
    model: evaluation.request.conversation.model,
    terminal,
    ...(id === undefined ? {} : { id }),
    ...(loop === undefined ? {} : { loop }),
    ...(footer === undefined ? {} : { footer }),
    ...(answer.kept ? { isCall: true } : {}),
  }
  // A truncated answer is not replayed: a client that asks again may get a whole one.
  const isHalf = terminal.truncated && !isLastTry(await handle.noteStopAttempt(withTruncated))
  if (!isHalf && isRecorded) return handle.end(final)
  void evaluation.handle.releaseIteration()
  await handle.noteOwnEnd(terminal)
}

/** Returns the footer of an answer; a call of a tool has none. */
function footerFor({ ending, kept }: Answer): string | undefined {
  return kept ? undefined : ending.footer
}

/** Saves results for calls that the provider keeps and the client has not seen. */
async function saveUnseenCalls(answer: Answer, buffered?: BufferedCalls): Promise<void> {
  const { x, isStop, rounds = [] } = answer.ending
  // The client has got the call that is the answer, and sends its result itself.
  if (!isStop || answer.kept) return
  if (answer.stream) return settleStream(x, rounds, answer.tries)
  if (!buffered || buffered.calls.length === 0) return
  const results = buffered.calls.map(() => NOT_EXECUTED)
  await saveResults(x, { buffered, results }, new Set(results.keys()))
}

async function finishStream(
  answer: Answer,
  stream: AnswerStream,
  text?: string,
  isRecorded = true,
): Promise<void> {
  const { terminal, rounds, x } = answer.ending
  let ended = terminal(false)
  const terminalFor: TerminalFor = (hasFinalAnswer, isTruncated) => {
    ended = terminal(hasFinalAnswer || answer.kept !== undefined, isTruncated)
    return ended
  }
  const last = stream.finish(terminalFor, text, footerFor(answer))
  // If no last answer came, the provider continues from the response before it.
  const id = stream.buffered?.id ?? rounds?.at(-1)?.buffered.id
  await record(answer, stream.text, ended, isRecorded, id)
  await saveUnseenCalls(answer)
  await show(answer, last, true)
  x.exchange.response.end()
}

async function finishWhole(answer: Answer, last: Whole, text?: string, isRecorded = true): Promise<void> {
  const { ending, kept, textBefore, earlier } = answer
  const { x, dialect, isStop, isJson, terminal, terminalGovernorHeaders } = ending
  const { head, body, answer: read } = last
  const hasFinalAnswer = text === undefined && (kept !== undefined || isRealAnswer(read.text, isJson))
  const ended = terminal(hasFinalAnswer, text === undefined && read.end === 'truncated')
  const newest = text ?? read.text
  const wholeText = textBefore === '' ? text : `${textBefore}\n\n${newest}`
  await record(answer, wholeText ?? newest, ended, isRecorded, read.buffered?.id)
  await saveUnseenCalls(answer, read.buffered)
  const footer = footerAfter(wholeText ?? newest, footerFor(answer))
  const rewritten = dialect.writeAnswer(body, {
    terminal: ended,
    dropCalls: isStop && !kept,
    earlier,
    ...(wholeText === undefined ? {} : { text: wholeText }),
    ...(footer === undefined ? {} : { footer }),
  })
  const headers = [...rewrittenHeaders(head), 'content-length', String(rewritten.length)]
  writeHead(x.exchange.response, head, headers, terminalGovernorHeaders)
  x.exchange.response.end(rewritten)
}

/** Gives the client the model's answer as the end of the run. */
export async function completeAnswer(answer: Answer): Promise<void> {
  const { stream, whole } = answer
  if (stream) await finishStream(answer, stream)
  else if (whole) await finishWhole(answer, whole)
}

/** Gives the client the fallback text. `isRecorded`: the model has no answer, and the next request does not ask again. */
export async function giveFallback(answer: Answer, isRecorded: boolean): Promise<void> {
  const { ending, stream, whole } = answer
  const { x, dialect, fallback, terminal } = ending
  if (stream?.hasBegun) return finishStream(answer, stream, fallback, isRecorded)
  if (!stream && whole) return finishWhole(answer, whole, fallback, isRecorded)
  const id = await standIn(x)
  await record(answer, fallback, terminal(false), isRecorded, id)
  await saveUnseenCalls(answer)
  if (!answer.isShown) return sendFallback(ending, id)
  // The stream has begun without a response: strict clients need the beginning of one.
  const { body } = replyFor(x.services, dialect, fallbackAnswer(ending, id), x.evaluation.request, true)
  await show(answer, [body], true)
  x.exchange.response.end()
}

/** Returns the fallback text as an answer. */
function fallbackAnswer({ x, fallback, terminal, footer }: Ending, id: string | undefined): FinalAnswer {
  const { model } = x.evaluation.request.conversation
  return {
    text: fallback,
    model,
    terminal: terminal(false),
    ...(id === undefined ? {} : { id }),
    ...(footer === undefined ? {} : { footer }),
  }
}

/** Sends the fallback text as the whole response. */
export function sendFallback(ending: Ending, id?: string): void {
  const { x, dialect, terminalGovernorHeaders } = ending
  const { services, exchange, evaluation } = x
  const answer = fallbackAnswer(ending, id)
  sendAnswer(services, exchange, dialect, answer, evaluation.request, terminalGovernorHeaders)
}

function replyFor(
  services: Services,
  dialect: Dialect,
  answer: FinalAnswer,
  request: DialectRequest,
  streams: boolean,
): GovernorReply {
  const said = request.hasFormat() ? answer : { ...answer, text: textWithFooter(answer) }
  return dialect.reply(said, streams, services.newId(), services.now(), request.asksForUsage?.())
}

/** Sends an answer that Governor makes, as a stream or a whole body as the client asked. */
export function sendAnswer(
  services: Services,
  exchange: Exchange,
  dialect: Dialect,
  answer: FinalAnswer,
  request: DialectRequest,
  governorHeaders: GovernorHeaders,
): void {
  const { streams } = request.conversation
  const { contentType, body } = replyFor(services, dialect, answer, request, streams)
  reply(exchange.response, 200, contentType, body, governorHeaders)
}
