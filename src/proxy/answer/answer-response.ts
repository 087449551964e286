/** Makes one response for the client from the one or two upstream responses that end a run. */
import type { ToolCall } from '../../core/conversation.ts'
import { isRealAnswer } from '../../core/final-answer.ts'
import { NOT_EXECUTED } from '../../core/loop/notice.ts'
import { isLastTry, withTruncated } from '../../core/session/run.ts'
import { changeRun, endRun } from '../../core/session/transitions.ts'
import { type FinalAnswer, footerAfter, type Terminal, textWithFooter } from '../../core/terminal.ts'
import type {
  AnswerStream,
  BlockedMessage,
  BufferedCalls,
  Dialect,
  GovernorReply,
  ReadAnswer,
  TerminalFor,
} from '../../dialect/dialect.ts'
import type { Lease } from '../../http/body.ts'
import { isEventStream } from '../../http/headers.ts'
import { type GovernorHeaders, relay, reply } from '../../http/response.ts'
import type { Head } from '../../http/upstream.ts'
import { plainBody, readUpTo, type UpstreamResponse } from '../../http/upstream-response.ts'
import { createFrameReader, type Frame, isTooLong } from '../../sse/frames.ts'
import { failRequest, type Turn } from '../turn.ts'
import { type ClientStream, rewrittenHeaders } from './client-stream.ts'
import { saveResults, settleStream, standIn } from './pending-results.ts'

/** Characters of a recorded answer. */
const MAX_RECORDED = 1_000_000

/** What the steps of a last answer share. */
export interface Ending {
  readonly x: Turn
  readonly dialect: Dialect
  /** The client's response; its headers say that the run is over. */
  readonly client: ClientStream
  /** For the parts of responses that are held. */
  readonly lease: Lease
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

/** A whole response that was not streamed. */
interface Whole {
  readonly head: Head
  readonly body: Buffer
  readonly answer: ReadAnswer
}

/** The client's response so far, from earlier upstream responses: an open stream, or whole bodies. */
export interface BegunAnswer {
  readonly stream?: AnswerStream
  /** The newest whole body, and those before it. */
  readonly whole?: Pick<Whole, 'head' | 'body'>
  readonly earlier?: readonly Buffer[]
  /** The model's text in whole bodies. */
  readonly text?: string
}

/** The answer while it is made. Only the functions of this file change it. */
export interface Answer {
  readonly ending: Ending
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
export function beginAnswer(ending: Ending, begun: BegunAnswer = {}): Answer {
  const { stream, whole, earlier = [], text = '' } = begun
  const read = whole && ending.dialect.readAnswer(whole.body)
  return {
    ending,
    stream,
    whole: whole && read && { ...whole, answer: read },
    earlier,
    textBefore: text,
    tries: [],
    kept: undefined,
  }
}

/** What a response was: `silent` is no answer; `given`: the client has its response; `failed`: it got an error. */
type Taken = 'answered' | 'silent' | 'given' | 'failed'

/** Reads a response. A single call of a tool in `keeps` is an answer. @throws {UpstreamFailed} */
export async function takeResponse(
  answer: Answer,
  response: UpstreamResponse,
  keeps: readonly string[] = [],
): Promise<Taken> {
  const { x, isStop, client } = answer.ending
  const plain = plainBody(response)
  if (!plain && !isStop) {
    relay(response, x.exchange.response, client.governorHeaders, (failure) => failRequest(x, failure))
    return 'given'
  }
  const isStream = isEventStream(response.head.headers)
  if (!plain || (answer.stream && !isStream)) {
    response.abort()
    return 'silent'
  }
  if (!isStream) return takeWhole(answer, response, plain, keeps)
  client.begin(response.head)
  return keeps.length > 0 ? takeForced(answer, plain, keeps) : takeStream(answer, plain)
}

async function takeStream(answer: Answer, plain: AsyncIterable<Buffer>): Promise<Taken> {
  const { x, dialect, client, isStop, isJson, footer } = answer.ending
  const stream = answer.stream ?? dialect.openStream(isStop, isJson, footer !== undefined)
  answer.stream = stream
  const take = (frame: Frame) => client.show(stream.push(frame), stream.hasText)
  const reader = createFrameReader()
  let length = 0
  for await (const chunk of plain) {
    length += chunk.length
    const frames = reader.push(chunk)
    const isTooMuch = (!stream.hasText && length > x.services.maxGuardedBody) || frames.some(isTooLong)
    if (isStop && isTooMuch) {
      if (client.isShown) return leaveBroken(answer, stream)
      // It is too large to be held: the client gets the next response instead.
      client.reset()
      answer.stream = undefined
      return 'silent'
    }
    for (const frame of frames) await take(frame)
  }
  for (const frame of reader.end()) await take(frame)
  const end = stream.endResponse()
  if (end === 'broken') return leaveBroken(answer, stream)
  if (stream.buffered) answer.tries.push(stream.buffered)
  // An agent that ends its run itself gets the model's response, whether or not it is an answer.
  return isStop ? end : 'answered'
}

/** Closes the connection after an answer that broke off: a regular end would make it look complete. */
async function leaveBroken({ ending }: Answer, stream: AnswerStream): Promise<Taken> {
  const { client, x } = ending
  void x.handle.releaseIteration()
  const taken = client.isShown ? 'given' : 'failed'
  await client.fail(stream.abandon(), x.governorHeaders)
  return taken
}

/**
 * Reads the stream of a response to a forced tool: one call of that tool is the answer. Text passes; calls are held until
 * they are complete.
 */
async function takeForced(answer: Answer, plain: AsyncIterable<Buffer>, keeps: readonly string[]): Promise<Taken> {
  const { x, dialect, client, isJson, footer } = answer.ending
  const max = x.services.maxGuardedBody
  const filter = dialect.openFilter()
  const stream = dialect.openStream(false, isJson, footer !== undefined)
  const released = createFrameReader()
  const give = async (frames: readonly Frame[]) => {
    for (const frame of frames) await client.show(stream.push(frame), stream.hasText)
  }
  const pass = (chunks: readonly Buffer[]) => give(chunks.flatMap((chunk) => released.push(chunk)))
  const reader = createFrameReader()
  let length = 0
  for await (const chunk of plain) {
    const frames = reader.push(chunk)
    length += frames.some(isTooLong) ? Number.POSITIVE_INFINITY : chunk.length
    if (length > max) break
    for (const frame of frames) await pass(filter.push(frame))
  }
  for (const frame of reader.end()) await pass(filter.push(frame))
  const buffered = filter.endResponse()
  const kept = length > max ? undefined : onlyCall(buffered?.calls, keeps)
  const isText = buffered?.calls.length === 0 && isRealAnswer(buffered.text, isJson)
  const isNoAnswer = length > max || (buffered !== undefined && !kept && !isText)
  if (isNoAnswer && !stream.hasFailed) {
    const [opening, next] = filter.becomeAnswer(isJson, footer !== undefined)
    await client.show(opening, false)
    answer.stream = next
    if (buffered) answer.tries.push(buffered)
    return 'silent'
  }
  await pass(filter.release(new Set()))
  await give(released.end())
  answer.stream = stream
  answer.kept = kept
  return stream.endResponse() === 'broken' ? leaveBroken(answer, stream) : 'answered'
}

/** Returns the only call of a response if it calls one of these tools; else `undefined`. */
function onlyCall(calls: readonly ToolCall[] = [], names: readonly string[] = []): ToolCall | undefined {
  const [call, other] = calls
  return call && !other && names.includes(call.name) ? call : undefined
}

async function takeWhole(
  answer: Answer,
  response: UpstreamResponse,
  plain: AsyncIterable<Buffer>,
  keeps: readonly string[],
): Promise<Taken> {
  const { x, dialect, client, lease, isStop, isJson } = answer.ending
  const { head } = response
  const { bytes: body, rest } = await readUpTo(plain, x.services.maxGuardedBody, lease)
  if (rest && isStop) {
    response.abort()
    return 'silent'
  }
  if (rest) {
    // It is too large to be changed: the response to an agent that ends its run itself passes unchanged.
    await client.send(head, rewrittenHeaders(head), [body], rest)
    return 'given'
  }
  const read = dialect.readAnswer(body)
  if (!read || read.end === 'failed') {
    void x.handle.releaseIteration()
    client.governorHeaders = x.governorHeaders
    await client.send(head, rewrittenHeaders(head), [body])
    return 'failed'
  }
  if (answer.whole) answer.earlier = [...answer.earlier, answer.whole.body]
  answer.whole = { head, body, answer: read }
  answer.kept = onlyCall(read.calls, keeps)
  return isStop && !answer.kept && !isRealAnswer(read.text, isJson) ? 'silent' : 'answered'
}

/** Records a final answer; without `isRecorded`, the client's next request asks the provider again. */
async function record(
  answer: Answer,
  text: string,
  terminal: Terminal,
  isRecorded: boolean,
  id: string | undefined,
): Promise<void> {
  const { x, isStop, client } = answer.ending
  const { exchange, handle, request } = x
  const { terminal_reason: reason } = terminal
  const by = !isStop ? 'agent' : terminal.has_final_answer ? 'model' : 'fallback'
  exchange.emit({ kind: 'stopped', reason, by, ...handle.names })
  const recorded = (answer.kept?.arguments ?? text).slice(0, MAX_RECORDED)
  handle.state.transcript?.ended(recorded, terminal)
  if (!isStop) return handle.end(changeRun, { ownEnd: terminal })
  const final: FinalAnswer = {
    text: recorded,
    model: request.conversation.model,
    terminal,
    id,
    loop: reason === 'loop_guard' ? client.governorHeaders['x-governor-loop'] : undefined,
    footer: footerFor(answer),
    isCall: answer.kept ? true : undefined,
  }
  // A truncated answer is not replayed: a client that asks again may get a whole one.
  const isHalf = terminal.truncated && !isLastTry(await handle.noteStopAttempt(withTruncated))
  if (!isHalf && isRecorded) return handle.end(endRun, final)
  void handle.releaseIteration()
  await handle.end(changeRun, { ownEnd: terminal })
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

async function finishStream(answer: Answer, stream: AnswerStream, text?: string, isRecorded = true): Promise<void> {
  const { terminal, rounds, client } = answer.ending
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
  await client.end(last)
}

async function finishWhole(answer: Answer, last: Whole, text?: string, isRecorded = true): Promise<void> {
  const { ending, kept, textBefore, earlier } = answer
  const { dialect, client, isStop, isJson, terminal } = ending
  const { head, body, answer: read } = last
  const hasFinalAnswer = text === undefined && (kept !== undefined || isRealAnswer(read.text, isJson))
  const ended = terminal(hasFinalAnswer, text === undefined && read.end === 'truncated')
  const newest = text ?? read.text
  const wholeText = textBefore === '' ? text : `${textBefore}\n\n${newest}`
  await record(answer, wholeText ?? newest, ended, isRecorded, read.buffered?.id)
  await saveUnseenCalls(answer, read.buffered)
  const rewritten = dialect.writeAnswer(body, {
    terminal: ended,
    dropCalls: isStop && !kept,
    earlier,
    text: wholeText,
    footer: footerAfter(wholeText ?? newest, footerFor(answer)),
  })
  await client.send(head, rewrittenHeaders(head, rewritten.length), [rewritten])
}

/** Gives the client the model's answer as the end of the run. */
export async function completeAnswer(answer: Answer): Promise<void> {
  const { stream, whole } = answer
  if (stream) await finishStream(answer, stream)
  else if (whole) await finishWhole(answer, whole)
}

/** Gives the client the fallback text. `isRecorded`: the next request does not ask the model again. */
export async function giveFallback(answer: Answer, isRecorded: boolean): Promise<void> {
  const { ending, stream, whole } = answer
  const { x, client, fallback, terminal } = ending
  if (stream?.hasBegun) return finishStream(answer, stream, fallback, isRecorded)
  if (!stream && whole) return finishWhole(answer, whole, fallback, isRecorded)
  const id = await standIn(x)
  await record(answer, fallback, terminal(false), isRecorded, id)
  await saveUnseenCalls(answer)
  if (!client.isShown) return sendFallback(ending, id)
  // The stream has begun without a response: strict clients need the beginning of one.
  await client.end([replyFor(x, ending.dialect, fallbackAnswer(ending, id), true).body])
}

/** Returns the fallback text as an answer. */
function fallbackAnswer({ x, fallback, terminal, footer }: Ending, id: string | undefined): FinalAnswer {
  const { model } = x.request.conversation
  return { text: fallback, model, terminal: terminal(false), id, footer }
}

/** Sends the fallback text as the whole response. */
export function sendFallback(ending: Ending, id?: string): void {
  const { x, dialect, client } = ending
  sendAnswer(x, dialect, fallbackAnswer(ending, id), client.governorHeaders)
}

function replyFor({ services, sent }: Turn, dialect: Dialect, answer: FinalAnswer, streams: boolean): GovernorReply {
  const said = sent.hasFormat() ? answer : { ...answer, text: textWithFooter(answer) }
  return dialect.reply(said, streams, services.newId(), services.now(), sent.asksForUsage?.())
}

/** Sends an answer that Governor makes, as a stream or a whole body as the client asked. */
export function sendAnswer(x: Turn, dialect: Dialect, answer: FinalAnswer, governorHeaders: GovernorHeaders): void {
  const { streams } = x.request.conversation
  const { contentType, body } = replyFor(x, dialect, answer, streams)
  reply(x.exchange.response, 200, contentType, body, governorHeaders)
}
