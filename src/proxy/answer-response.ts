/** What one or two upstream responses bring for a run that is over, made into one response for the client. */
import { once } from 'node:events'
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
import type { Lease } from '../http/buffer-budget.ts'
import { isEventStream, type RawHeaders, responseHeaders, withoutBodyFields } from '../http/headers.ts'
import { relay } from '../http/relay.ts'
import { type GovernorHeaders, reply, writeHead } from '../http/response.ts'
import type { Head } from '../http/upstream.ts'
import { plainBody, readUpTo, type UpstreamResponse } from '../http/upstream-response.ts'
import { createFrameReader, type Frame } from '../sse/frames.ts'
import type { Exchange } from './begin-exchange.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import { failRequest, releaseIteration } from './evaluated-request.ts'
import { onlyCall, readForced } from './forced-answer.ts'
import { saveResults, settleStream, standIn } from './pending-results.ts'
import type { Services } from './services.ts'

/** A recorded answer is at most this many characters. */
const MAX_RECORDED = 1_000_000

/** Everything that the steps of a last answer share. */
export interface Ending {
  readonly x: EvaluatedRequest
  readonly dialect: Dialect
  /** For what is held of responses. */
  readonly lease: Lease
  /** Headers that say besides that the run is over. */
  readonly terminalGovernorHeaders: GovernorHeaders
  /** Governor's stop; otherwise the agent ends itself and its request and answer stay as they are. */
  readonly isStop: boolean
  readonly fallback: string
  /** The client asked for an object in JSON. */
  readonly isJson: boolean
  readonly terminal: TerminalFor
  /** Responses before, all of whose calls were blocked; the client's stream began with the first. */
  readonly rounds?: readonly BlockedMessage[]
}

/** Writes chunks to the client, and waits while it reads slowly. */
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

/** Gives a client a response: what was `read` of it already, and the rest as it comes. */
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

/** One response for the client, made of one or two of the upstream's. Changed by the functions of this file alone. */
export interface Answer {
  readonly ending: Ending
  /** The head of the client's stream. */
  head: Head | undefined
  /** The client has got something: nothing else can take its place any more. */
  isShown: boolean
  /** What the client's stream begins with is held until the model says something, as another reply may take its place. */
  opening: Buffer[]
  openingLength: number
  stream: AnswerStream | undefined
  whole: Whole | undefined
  earlier: readonly Buffer[]
  /** What the model said in whole bodies before. */
  readonly textBefore: string
  /** What the streams of the last answer called. */
  readonly tries: BufferedCalls[]
  /** The call that is the answer. */
  kept: ToolCall | undefined
}

/** Begins an answer, with what the client has got already. */
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

/** So many bytes of a stream may stand before its first word. */
const MAX_OPENING = 65_536

/** Gives the client chunks of its stream; `isLast`: nothing is held any more. */
async function show(
  answer: Answer,
  chunks: readonly Buffer[],
  isLast: boolean,
  governorHeaders = answer.ending.terminalGovernorHeaders,
): Promise<void> {
  const { exchange } = answer.ending.x
  for (const chunk of chunks) answer.openingLength += chunk.length
  answer.opening.push(...chunks)
  const { head, opening } = answer
  if (!head || !(isLast || answer.openingLength > MAX_OPENING)) return
  if (!answer.isShown) writeHead(exchange.response, head, rewrittenHeaders(head), governorHeaders)
  answer.isShown = true
  answer.opening = []
  await write(exchange, opening)
}

/** An answer that broke off must not pass for a whole one: what came is all there is. */
async function leaveBroken(answer: Answer, stream: AnswerStream): Promise<Taken> {
  const { exchange, evaluation, governorHeaders } = answer.ending.x
  releaseIteration(evaluation)
  const taken = answer.isShown ? 'given' : 'failed'
  await show(answer, stream.abandon(), true, governorHeaders)
  exchange.response.end()
  return taken
}

async function takeForced(
  answer: Answer,
  plain: AsyncIterable<Buffer>,
  keeps: readonly string[],
): Promise<Taken> {
  const { dialect, isJson, x } = answer.ending
  const read = await readForced(
    {
      dialect,
      isJson,
      keeps,
      maxBytes: x.services.maxGuardedBody,
      show: (chunks, hasSaid) => show(answer, chunks, answer.isShown || hasSaid),
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
  const { dialect, isStop, isJson } = answer.ending
  const stream = answer.stream ?? dialect.openStream(isStop, isJson)
  answer.stream = stream
  const take = (frame: Frame) => show(answer, stream.push(frame), answer.isShown || stream.hasText)
  const reader = createFrameReader()
  for await (const chunk of plain) for (const frame of reader.push(chunk)) await take(frame)
  for (const frame of reader.end()) await take(frame)
  const end = stream.endResponse()
  if (end === 'broken') return leaveBroken(answer, stream)
  if (stream.buffered) answer.tries.push(stream.buffered)
  // An agent that ends itself gets what the model said, an answer or not.
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
    // What can't be read can't be completed: the response to an agent's own request goes out as it came.
    await passOn(exchange, head, rewrittenHeaders(head), terminalGovernorHeaders, [body], rest)
    return 'given'
  }
  const read = dialect.readAnswer(body)
  if (!read || read.end === 'failed') {
    releaseIteration(evaluation)
    await passOn(exchange, head, rewrittenHeaders(head), governorHeaders, [body])
    return 'failed'
  }
  if (answer.whole) answer.earlier = [...answer.earlier, answer.whole.body]
  answer.whole = { head, body, answer: read }
  answer.kept = onlyCall(read.calls, keeps)
  return isStop && !answer.kept && !isRealAnswer(read.text, isJson) ? 'silent' : 'answered'
}

/** Takes one response in; one that is a single call of a tool that `keeps` names is an answer. @throws {UpstreamFailed} */
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

/** Remembers a final answer for a client that asks again; `isRecorded`: the run need not ask the provider again. */
async function record(
  answer: Answer,
  text: string,
  terminal: Terminal,
  isRecorded: boolean,
  id: string | undefined,
): Promise<void> {
  const { x, isStop, terminalGovernorHeaders } = answer.ending
  const { exchange, evaluation } = x
  const { terminal_reason: reason, session } = terminal
  const by = !isStop ? 'agent' : terminal.has_final_answer ? 'model' : 'fallback'
  exchange.emit({ kind: 'stopped', reason, by, session })
  if (!isStop) return
  const loop = reason === 'loop_guard' ? terminalGovernorHeaders['x-governor-loop'] : undefined
  const final: FinalAnswer = {
    text: (answer.kept?.arguments ?? text).slice(0, MAX_RECORDED),
    model: evaluation.request.conversation.model,
    terminal,
    ...(id === undefined ? {} : { id }),
    ...(loop === undefined ? {} : { loop }),
    ...(answer.kept ? { isCall: true } : {}),
  }
  // Half an answer is not to be repeated: a client that asks again may get all of it.
  const isHalf = terminal.truncated && !isLastTry(await evaluation.handle.noteStopAttempt(withTruncated))
  if (isHalf || !isRecorded) releaseIteration(evaluation)
  else await evaluation.handle.end(final).catch(() => undefined)
}

/** Saves results of the calls that a provider keeps and the client does not see. */
async function saveUnseenCalls(answer: Answer, buffered?: BufferedCalls): Promise<void> {
  const { x, isStop, rounds = [] } = answer.ending
  // The client has a kept call, and what it sends next goes on from it.
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
  const last = stream.finish((hasFinalAnswer, isTruncated) => {
    ended = terminal(hasFinalAnswer || answer.kept !== undefined, isTruncated)
    return ended
  }, text)
  // Where no last answer came, the provider knows the response before it.
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
  const said = text ?? read.text
  const wholeText = textBefore === '' ? text : `${textBefore}\n\n${said}`
  await record(answer, wholeText ?? said, ended, isRecorded, read.buffered?.id)
  await saveUnseenCalls(answer, read.buffered)
  const rewritten = dialect.writeAnswer(body, {
    terminal: ended,
    dropCalls: isStop && !kept,
    earlier,
    ...(wholeText === undefined ? {} : { text: wholeText }),
  })
  const headers = [...rewrittenHeaders(head), 'content-length', String(rewritten.length)]
  writeHead(x.exchange.response, head, headers, terminalGovernorHeaders)
  x.exchange.response.end(rewritten)
}

/** Gives the client what the model answered, as the end of the run. */
export async function completeAnswer(answer: Answer): Promise<void> {
  const { stream, whole } = answer
  if (stream) await finishStream(answer, stream)
  else if (whole) await finishWhole(answer, whole)
}

/** Gives the client the fallback text. `isRecorded`: the model has no answer, so that the run need not ask again. */
export async function giveFallback(answer: Answer, isRecorded: boolean): Promise<void> {
  const { ending, stream, whole } = answer
  const { x, dialect, fallback, terminal } = ending
  if (stream?.hasBegun) return finishStream(answer, stream, fallback, isRecorded)
  if (!stream && whole) return finishWhole(answer, whole, fallback, isRecorded)
  const id = await standIn(x)
  await record(answer, fallback, terminal(false), isRecorded, id)
  await saveUnseenCalls(answer)
  if (!answer.isShown) return sendFallback(ending, id)
  // Streams without a response: what clients read strictly must have a beginning.
  const { body } = ownReply(x.services, dialect, fallbackAnswer(ending, id), x.evaluation.request, true)
  await show(answer, [body], true)
  x.exchange.response.end()
}

/** The fallback text as an answer. */
function fallbackAnswer({ x, fallback, terminal }: Ending, id: string | undefined): FinalAnswer {
  const { model } = x.evaluation.request.conversation
  return { text: fallback, model, terminal: terminal(false), ...(id === undefined ? {} : { id }) }
}

/** Sends the fallback text as the whole response. */
export function sendFallback(ending: Ending, id?: string): void {
  const { x, dialect, terminalGovernorHeaders } = ending
  const { services, exchange, evaluation } = x
  const answer = fallbackAnswer(ending, id)
  sendOwn(services, exchange, dialect, answer, evaluation.request, terminalGovernorHeaders)
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
