/** Makes one response for the client from the upstream responses that end a run. */

import type { ToolCall } from '../../core/conversation/conversation.ts'
import { isRealAnswer } from '../../core/conversation/real-answer.ts'
import { NOT_EXECUTED } from '../../core/guards.ts'
import { isLastTry, NO_STOP_ATTEMPTS, reportEnds } from '../../core/session/run.ts'
import type { Session, StopAttempts } from '../../core/session/session.ts'
import { changeThread, endRun, noteStopAttempt, type StopAttempt } from '../../core/session/transitions.ts'
import {
  type FinalAnswer,
  footerAfter,
  footerOf,
  type Limit,
  type Terminal,
  terminalOf,
  textWithFooter,
} from '../../core/terminal.ts'
import type { AnswerStream, BlockedMessage, BufferedCalls, ReadAnswer, TerminalFor } from '../../dialect/dialect.ts'
import { leaseFor } from '../../http/body.ts'
import { type GovernorHeaders, reply } from '../../http/client.ts'
import type { Head } from '../../http/upstream.ts'
import { isEventStream, plainBody, readUpTo, type UpstreamResponse } from '../../http/upstream-response.ts'
import { createFrameReader, type Frame, isTooLong } from '../../sse/frames.ts'
import type { Link } from '../../store/store.ts'
import { runEnded } from '../../telemetry/event.ts'
import { emitFor } from '../begin-exchange.ts'
import { keepPlace, savePending } from '../session/keep-place.ts'
import { keepEnd } from '../session/keep-transcript.ts'
import { giveBackIteration, relayResponse, type Turn, updateSession } from '../turn.ts'
import { type ClientStream, end, framesOf, rewritten, sendWhole, show } from './client-stream.ts'

/** Characters of a recorded answer. */
const MAX_RECORDED = 1_000_000

/** The last answer of a run while it is made of upstream responses: of streams, or of whole bodies. */
export interface Answer {
  readonly x: Turn
  /** The client's response; its headers say that the run is over. */
  readonly client: ClientStream
  /** Governor stops the run; otherwise the agent ends it itself, and its request and answer stay unchanged. */
  readonly isStop: boolean
  readonly fallback: string
  /** The client asked for a JSON object. */
  readonly isJson: boolean
  readonly terminal: TerminalFor
  /** The last line of what the client reads; `undefined` if there is none. */
  readonly footer: string | undefined
  /** Earlier responses, whose calls were all blocked; the client's stream began with the first. */
  readonly rounds: readonly BlockedMessage[]
  stream: AnswerStream | undefined
  /** The newest whole body, and those before it. */
  whole: { readonly head: Head; readonly body: Buffer; readonly answer: ReadAnswer } | undefined
  earlier: readonly Buffer[]
  /** The model's text in whole bodies whose calls were blocked. */
  textBefore: string
  /** The calls in the streams of the last answer. */
  readonly tries: BufferedCalls[]
  /** The call that is the answer. */
  kept: ToolCall | undefined
  /** There was no room for the rest of the stream. */
  isCut: boolean
  /** A response could not be read, and the client did not get it. */
  isUnread: boolean
}

/** Begins an answer; from now on the client's headers say that the run is over. */
export function beginAnswer(
  x: Turn,
  limit: Limit,
  client: ClientStream,
  how: Pick<Answer, 'isStop' | 'fallback' | 'rounds'> & { readonly hasFooter: boolean },
): Answer {
  const { session = '' } = x.names
  const terminal: TerminalFor = (hasFinalAnswer, isTruncated) => terminalOf(limit, session, hasFinalAnswer, isTruncated)
  client.governorHeaders = { ...client.governorHeaders, ...terminalHeaders(terminal(false), false) }
  const isJson = x.sent.demands().hasFormat
  const footer = how.hasFooter && !isJson ? footerOf(limit) : undefined
  // What cannot be read is given to the client once at most: the next response is held until it has been read.
  if (how.isStop) Object.assign(client, { isHeld: (x.runState.run.stopTries?.truncated ?? 0) > 0, isLeased: true })
  const begun = { stream: undefined, whole: undefined, earlier: [], textBefore: '', tries: [], kept: undefined }
  return { x, client, isJson, terminal, footer, ...how, ...begun, isCut: false, isUnread: false }
}

/** Returns the headers that state the end of a run; those of a whole response say whether it has an answer. */
function terminalHeaders(terminal: Terminal, isWhole: boolean): GovernorHeaders {
  return {
    'x-governor-terminal-state': terminal.terminal_state,
    'x-governor-terminal-reason': terminal.terminal_reason,
    ...(isWhole ? { 'x-governor-has-final-answer': String(terminal.has_final_answer) } : {}),
    'x-governor-resets-at': terminal.resets_at,
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
  const { x, isStop, client } = answer
  const isStream = await isEventStream(response)
  const plain = plainBody(response)
  if (!plain && !isStop) {
    relayResponse(x, response, client.governorHeaders)
    return 'given'
  }
  if (!plain || (answer.stream && !isStream)) {
    response.abort()
    return 'silent'
  }
  if (!isStream) return takeWhole(answer, response, plain, keeps)
  client.head ??= answerHead(answer, response)
  if (keeps.length > 0) return takeForced(answer, plain, keeps)
  const lease = leaseFor(x.services.buffers, x.exchange.client)
  const stream = answer.stream ?? x.dialect.openStream(isStop, answer.isJson, answer.footer !== undefined)
  answer.stream = stream
  let length = 0
  for await (const { frames, bytes } of framesOf(plain)) {
    length += bytes
    const hasRoom = lease.grow(bytes) && (stream.hasText || length <= x.services.maxGuardedBody)
    answer.isCut = isStop && (!hasRoom || frames.some(isTooLong))
    if (answer.isCut) break
    const chunks = frames.flatMap((frame) => stream.push(frame))
    await show(client, chunks, stream.hasText)
  }
  const last = stream.endResponse(answer.isCut)
  if (last === 'broken') return leaveBroken(answer, stream)
  if (stream.buffered) answer.tries.push(stream.buffered)
  // An agent that ends its run itself gets the model's response, whether or not it is an answer.
  return isStop ? last : 'answered'
}

/** Returns the head for the answer that a response becomes: a stop is a 200, whichever success the provider states. */
function answerHead({ isStop }: Answer, { head }: UpstreamResponse): Head {
  return isStop ? { ...head, status: 200, reason: 'OK' } : head
}

/** Forgets a response that cannot be read, if the client must not get it. Returns whether it must not. */
function withholdUnread(answer: Answer): boolean {
  const { client } = answer
  if (!client.isHeld) return false
  client.waiting = []
  // The client has the beginning of a stream, which then breaks off.
  if (client.to.status() !== 0) return false
  answer.isUnread = true
  client.head = undefined
  answer.stream = undefined
  return true
}

/** Closes the connection after an answer that broke off: a regular end would make it look complete. */
async function leaveBroken(answer: Answer, stream: AnswerStream): Promise<Taken> {
  const { x, client } = answer
  if (withholdUnread(answer)) return 'silent'
  await noteUnread(answer)
  void giveBackIteration(x)
  const taken = client.to.status() !== 0 ? 'given' : 'failed'
  client.governorHeaders = x.governorHeaders
  await end(client, client.isHeld ? [] : stream.abandon())
  return taken
}

/** Reads the stream of a response to a forced tool: one call of that tool is the answer. Calls are held. */
async function takeForced(answer: Answer, plain: AsyncIterable<Buffer>, keeps: readonly string[]): Promise<Taken> {
  const { x, client, isJson, footer } = answer
  const lease = leaseFor(x.services.buffers, x.exchange.client)
  const max = x.services.maxGuardedBody
  const filter = x.dialect.openFilter()
  const stream = x.dialect.openStream(false, isJson, footer !== undefined)
  const released = createFrameReader()
  const pass = async (frames: readonly Frame[]) => {
    for (const frame of frames) await show(client, stream.push(frame), stream.hasText)
  }
  let length = 0
  for await (const { frames, bytes } of framesOf(plain)) {
    length += frames.some(isTooLong) || !lease.grow(bytes) ? Number.POSITIVE_INFINITY : bytes
    if (length > max) break
    for (const frame of frames) for (const chunk of filter.push(frame)) await pass(released.push(chunk))
  }
  const buffered = filter.endResponse()
  const kept = length > max ? undefined : onlyCall(buffered?.calls, keeps)
  const isText = buffered?.calls.length === 0 && isRealAnswer(buffered.text, isJson)
  const isNoAnswer = length > max || (buffered !== undefined && !kept && !isText)
  if (isNoAnswer && !stream.hasFailed) {
    const [opening, next] = filter.becomeAnswer(isJson, footer !== undefined)
    await show(client, opening, false)
    answer.stream = next
    if (buffered) answer.tries.push(buffered)
    return 'silent'
  }
  for (const chunk of filter.release(new Set())) await pass(released.push(chunk))
  await pass(released.end())
  answer.stream = stream
  answer.kept = kept
  if (isText) stream.endAsAnswer()
  return stream.endResponse() === 'broken' ? leaveBroken(answer, stream) : 'answered'
}

function onlyCall(calls: readonly ToolCall[] = [], names: readonly string[] = []): ToolCall | undefined {
  const [call, other] = calls
  return call && !other && names.includes(call.name) ? call : undefined
}

async function takeWhole(
  answer: Answer,
  response: UpstreamResponse,
  plain: AsyncGenerator<Buffer>,
  keeps: readonly string[],
): Promise<Taken> {
  const { x, client, isStop, isJson } = answer
  const { head } = response
  const lease = leaseFor(x.services.buffers, x.exchange.client)
  const { bytes: body, rest } = await readUpTo(plain, x.services.maxGuardedBody, lease)
  if (rest && isStop) {
    response.abort()
    lease.release()
    return 'silent'
  }
  const read = rest ? undefined : x.dialect.readAnswer(body)
  if (!read || read.end === 'failed') {
    if (withholdUnread(answer)) return 'silent'
    // One that is too large to be changed is an answer: an agent that ends its run itself gets it as it is.
    if (!rest) {
      await noteUnread(answer)
      void giveBackIteration(x)
      client.governorHeaders = x.governorHeaders
    }
    await sendWhole(client, rewritten(head), body, rest)
    return rest ? 'given' : 'failed'
  }
  if (answer.whole) answer.earlier = [...answer.earlier, answer.whole.body]
  answer.whole = { head: answerHead(answer, response), body, answer: read }
  answer.kept = onlyCall(read.calls, keeps)
  return isStop && !answer.kept && !isRealAnswer(read.text, isJson) ? 'silent' : 'answered'
}

/** Gives the client the model's answer, or `fallback`. `isRecorded`: the next request does not ask again. */
export async function completeAnswer(answer: Answer, fallback?: string, isRecorded = true): Promise<void> {
  const { x, client, stream, whole, terminal, footer } = answer
  if (stream && (fallback === undefined || stream.hasBegun)) return finishStream(answer, stream, fallback, isRecorded)
  if (whole && !stream) return finishWhole(answer, whole, fallback, isRecorded)
  // A request that continues from this answer brings the results that the provider missed, if that keeps the history.
  await x.state.recorded
  const id = await keepPlace(x.exchange, x.sent, x.found)
  const ended = terminal(false)
  const text = fallback ?? ''
  await record(answer, text, ended, isRecorded, id)
  const final = { text, model: x.request.conversation.model, terminal: ended, id, footer }
  if (client.to.status() === 0) return sendAnswer(x, final, client.governorHeaders)
  // The stream has begun without a response: strict clients need the beginning of one.
  await end(client, [replyFor(x, final, true).body])
}

async function finishStream(answer: Answer, stream: AnswerStream, fallback: string | undefined, isRecorded: boolean) {
  const { terminal, rounds, client, kept, footer } = answer
  let ended = terminal(false)
  const terminalFor: TerminalFor = (hasFinalAnswer, isTruncated) => {
    ended = terminal(hasFinalAnswer || kept !== undefined, isTruncated || answer.isCut)
    return ended
  }
  const last = stream.finish(terminalFor, fallback, kept ? undefined : footer)
  // If no last answer came, the provider continues from the response before it.
  const id = stream.buffered?.id ?? rounds.at(-1)?.buffered.id
  await record(answer, stream.text, ended, isRecorded, id)
  await end(client, last)
}

async function finishWhole(
  answer: Answer,
  { head, body, answer: read }: NonNullable<Answer['whole']>,
  fallback: string | undefined,
  isRecorded: boolean,
): Promise<void> {
  const { x, client, isStop, isJson, terminal, footer, kept, textBefore, earlier } = answer
  const hasFinalAnswer = fallback === undefined && (kept !== undefined || isRealAnswer(read.text, isJson))
  const ended = terminal(hasFinalAnswer, fallback === undefined && read.end === 'truncated')
  const newest = fallback ?? read.text
  const text = textBefore === '' ? fallback : `${textBefore}\n\n${newest}`
  await record(answer, text ?? newest, ended, isRecorded, read.buffered?.id, read.buffered)
  const bytes = x.dialect.writeAnswer(body, {
    terminal: ended,
    dropCalls: isStop && !kept,
    earlier,
    text,
    footer: kept ? undefined : footerAfter(text ?? newest, footer),
  })
  client.governorHeaders = { ...client.governorHeaders, ...terminalHeaders(ended, true) }
  await sendWhole(client, rewritten(head, bytes.length), bytes)
}

/** Records a final answer. `id`: by which the client continues from it; `buffered`: the calls of a whole body. */
async function record(
  answer: Answer,
  text: string,
  terminal: Terminal,
  isRecorded: boolean,
  id: string | undefined,
  buffered?: BufferedCalls,
): Promise<void> {
  const { x, isStop, client, kept, footer, stream, rounds, tries } = answer
  const { services, exchange, request, counted, names } = x
  const { terminal_reason: reason } = terminal
  const by = !isStop ? 'agent' : terminal.has_final_answer ? 'model' : 'fallback'
  emitFor(exchange, { kind: 'stopped', reason, by, terminal, client: request.agent, ...names })
  const recorded = (kept?.arguments ?? text).slice(0, MAX_RECORDED)
  keepEnd(x, recorded, terminal)
  // A truncated answer is not replayed: a client that asks again may get a whole one.
  const isHalf = isStop && terminal.truncated && !isLastTry(await noteAttempt(x, { isIncomplete: true }))
  const isReplayed = isStop && isRecorded && !isHalf
  if (isStop && !isReplayed) void giveBackIteration(x)
  const loop = reason === 'loop_guard' ? client.governorHeaders['x-governor-loop'] : undefined
  const shown = kept ? ({ isCall: true } as const) : { footer }
  // Frameworks take two answers with one id for one message.
  const place = x.sent.storesAnswer ? id : undefined
  const final = { text: recorded, model: request.conversation.model, terminal, id: place, loop, ...shown }
  const now = services.now()
  const over = (session: Session) => {
    const after = isReplayed
      ? endRun(session, counted, final, x.decision.kind === 'stop')
      : changeThread(session, counted, {}, { ownEnd: terminal })
    return reportEnds(after, now)
  }
  for (const run of await updateSession(x, [], over)) services.emit(runEnded(run, names.apiId ?? ''))
  // The client has got the call that is the answer, and sends its result itself; all others it has not seen.
  if (!isStop || kept) return
  const unseen = stream ? tries : buffered && buffered.calls.length > 0 ? [buffered] : []
  // The stream has the id of the first of its responses, and a request continues from the last one.
  const all: BlockedMessage[] = stream ? [...rounds] : []
  for (const one of unseen) all.push({ buffered: one, results: one.calls.map(() => NOT_EXECUTED) })
  const last = all.at(-1)
  if (last) await saveResults(x, last, new Set(last.results.keys()), all)
}

/** Records that a response to a stopped request could not be read; returns whether a run ends without its answer. */
export async function noteUnread({ x, isStop }: Answer): Promise<boolean> {
  return isStop && isLastTry(await noteAttempt(x, { isIncomplete: true }))
}

/** Records an attempt to get the final answer that brought no answer to record; returns all of them. */
export function noteAttempt(x: Turn, attempt: StopAttempt): Promise<StopAttempts> {
  return updateSession(x, NO_STOP_ATTEMPTS, noteStopAttempt, attempt)
}

/** Saves results of calls that the client has not seen, for its next request. `before`: responses blocked before it. */
export async function saveResults(
  x: Turn,
  round: BlockedMessage,
  blocked: ReadonlySet<number>,
  before: readonly BlockedMessage[],
): Promise<void> {
  const { stored, resultsOf } = x.sent
  const pendingResults = resultsOf?.(round).filter((_, at) => blocked.has(at)) ?? []
  const place = stored?.isConversation ? stored.previous : round.buffered.id
  if (pendingResults.length > 0 && place !== undefined) await savePendingResults(x, place, { pendingResults })
  // A conversation object has them already.
  await redirectAll(x, before, round.buffered, stored?.isConversation ? [] : pendingResults)
}

/** Redirects requests from blocked responses to the response after them, which waits for these results. */
export async function redirectAll(
  x: Turn,
  rounds: readonly BlockedMessage[],
  buffered: BufferedCalls | undefined,
  pendingResults: readonly string[] = [],
): Promise<void> {
  const redirectTo = buffered?.id
  if (redirectTo === undefined || !x.sent.storesAnswer) return
  const pending = pendingResults.length === 0 ? { redirectTo } : { redirectTo, pendingResults }
  for (const { buffered: before } of rounds)
    if (before.id !== undefined && before.id !== redirectTo) await savePendingResults(x, before.id, pending)
}

/** Keeps what Governor adds when the client continues from a response, as the provider waits for it. */
async function savePendingResults(
  { services, found, state }: Turn,
  response: string,
  pending: Pick<Link, 'pendingResults' | 'redirectTo'>,
): Promise<void> {
  await state.recorded
  await savePending(services, found, response, pending)
}

/** A request as far as an answer of Governor's own depends on it. */
type Answerable = Pick<Turn, 'exchange' | 'dialect' | 'sent'>

function replyFor({ exchange, dialect, sent }: Answerable, answer: FinalAnswer, streams: boolean | 'list') {
  const { newId, now } = exchange.services
  const said = sent.demands().hasFormat ? answer : { ...answer, text: textWithFooter(answer) }
  return dialect.reply(said, streams, newId(), now(), sent.asksForUsage?.())
}

/**
 * Sends an answer that Governor makes, as a stream or a whole body as the client asked, with the headers of its end.
 */
export function sendAnswer(x: Answerable, answer: FinalAnswer, governorHeaders: GovernorHeaders): void {
  const { streams } = x.sent.conversation
  const { contentType, body } = replyFor(x, answer, x.sent.isList ? 'list' : streams)
  const ended = terminalHeaders(answer.terminal, !streams)
  reply(x.exchange.client, 200, contentType, body, { ...governorHeaders, ...ended })
}
