/** The last answer of a run: asked for without tools, rewritten on its way out, kept for a client that loses it. */
import { once } from 'node:events'
import { isRealAnswer } from '../core/answer.ts'
import { type FinalAnswer, type Limit, type Terminal, terminalOf } from '../core/terminal.ts'
import type { Channel } from '../core/verdict.ts'
import type { AnswerStream, Dialect, ToolBan } from '../dialect/dialect.ts'
import { applyEdits } from '../json/edit.ts'
import { createFrameReader } from '../sse/frames.ts'
import type { ProxyContext } from './context.ts'
import { blame, mayBeRefusal, placesFor, returnIteration, withBody } from './forward.ts'
import { headerOf, responseHeaders, withHeaders, withoutFields } from './headers.ts'
import { type Incoming, open, plainBody, UpstreamFailed, wholeBody } from './incoming.ts'
import type { Judgement } from './judge.ts'
import { type OwnHeaders, reply, writeHead } from './reply.ts'
import type { Trip } from './trip.ts'
import type { Head, UpstreamCall } from './upstream.ts'

/** One way to ask for the last answer. */
interface Form {
  readonly call: UpstreamCall
  readonly channel?: Channel
  readonly ban?: ToolBan
}

/** A model that says nothing is asked once more, not for ever. */
const MAX_ANSWERS = 2

/** A recorded answer is at most this many characters. */
const MAX_RECORDED = 1_000_000

/** Everything that the steps of a last answer share. */
interface Ending {
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
  readonly terminal: (hasFinalAnswer: boolean) => Terminal
}

/** Answers a stopped request, or one by which an agent ends itself. */
export async function answerLast(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  bytes: Buffer,
  own: OwnHeaders,
): Promise<void> {
  const { dialect } = trip.route
  if (!dialect) return
  const { verdict, position, policy } = judgement
  const isStop = verdict.kind === 'stop'
  const limit: Limit = isStop
    ? verdict.limit
    : { meter: { name: 'iterations', used: position.iteration, max: policy.maxIterations } }
  const terminal = (hasFinalAnswer: boolean) => terminalOf(limit, judgement.sessionId ?? '', hasFinalAnswer)
  const { terminal_state: state, terminal_reason: reason } = terminal(false)
  const ending: Ending = {
    context,
    trip,
    judgement,
    dialect,
    own,
    ownAtEnd: { ...own, 'x-governor-terminal-state': state, 'x-governor-terminal-reason': reason },
    isStop,
    fallback: isStop ? verdict.fallback : '',
    terminal,
  }
  // Compressed bytes would have to be undone before anything can be changed in them.
  const plain = { ...call, headers: withHeaders(call.headers, { 'accept-encoding': 'identity' }) }
  try {
    await ask(ending, isStop ? stopForms(ending, plain, bytes, verdict.notice) : [{ call: plain }])
  } catch (error) {
    if (!(error instanceof UpstreamFailed)) throw error
    if (trip.isClientGone) return
    returnIteration(judgement)
    trip.fail(error.failure, own)
  }
}

/**
 * The forms in which a stop is asked, best first: tools left in place but not to be chosen keeps the provider's
 * prompt cache; each of the others is for providers that refuse the one before.
 */
function stopForms(ending: Ending, call: UpstreamCall, bytes: Buffer, notice: string): Form[] {
  const { context, trip, judgement } = ending
  const { request } = judgement
  const { conversation } = request
  const form = (
    channel: Channel | undefined,
    ban: ToolBan,
    text: readonly { start: number; end: number; text: string }[],
  ): Form => ({
    call: withBody(call, applyEdits(bytes, [...request.banTools(ban), ...text])),
    ban,
    ...(channel ? { channel } : {}),
  })
  // An agent that asks for its last answer itself needs not be told twice.
  const places = judgement.endsItself ? [] : placesFor(context, trip, judgement, notice)
  const [best] = places
  const choosing =
    conversation.offersTools &&
    !context.refusals.isRefused(trip.route.upstream.name, conversation.model, 'tool_choice')
  return [
    ...(choosing ? [form(best?.channel, 'choice_none', best?.edits ?? [])] : []),
    ...places.map(({ channel, edits }) => form(channel, 'no_tools', edits)),
    ...(places.length === 0 ? [form(undefined, 'no_tools', [])] : []),
  ]
}

/** Goes through the forms until one brings an answer. */
async function ask(ending: Ending, forms: readonly Form[]): Promise<void> {
  const answer = createAnswer(ending)
  let refused: { form: Form; status: number } | undefined
  let answers = 0
  for (const form of forms) {
    if (answers === MAX_ANSWERS) break
    const incoming = await openNext(ending, form, answer.hasBegun)
    if (!incoming) break
    const { status } = incoming.head
    if (ending.isStop && mayBeRefusal(status)) {
      refused = { form, status }
      incoming.body.resume()
      continue
    }
    if (status !== 200) {
      if (answer.hasBegun) break
      returnIteration(ending.judgement)
      return passOn(ending, incoming)
    }
    if (refused) blameFor(ending, refused.form, form, refused.status)
    refused = undefined
    answers++
    if (await answer.take(incoming)) return answer.complete()
  }
  await answer.giveFallback()
}

/** A second try that gets no response is no reason to lose what the first one brought. */
async function openNext(ending: Ending, form: Form, hasBegun: boolean): Promise<Incoming | undefined> {
  try {
    return await open(ending.trip, form.call)
  } catch (error) {
    if (hasBegun && !ending.trip.isClientGone) return undefined
    throw error
  }
}

/** What the accepted form does not have and the refused one had is what was refused. */
function blameFor({ context, trip, judgement }: Ending, refused: Form, accepted: Form, status: number): void {
  if (refused.channel && refused.channel !== accepted.channel)
    blame(context, trip, judgement, refused.channel, status)
  else if (refused.ban === 'choice_none' && accepted.ban === 'no_tools') {
    blame(context, trip, judgement, 'tool_choice', status)
  }
}

/** A provider's error is the provider's to tell. */
async function passOn({ trip, own }: Ending, { head, body }: Incoming): Promise<void> {
  writeHead(trip.response, head, responseHeaders(head.headers), own)
  for await (const chunk of body) await write(trip, [chunk as Buffer])
  trip.response.end()
}

async function write({ response }: Trip, chunks: readonly Buffer[]): Promise<void> {
  for (const chunk of chunks) {
    if (chunk.length > 0 && !response.write(chunk) && !response.destroyed) {
      await Promise.race([once(response, 'drain'), once(response, 'close')])
    }
  }
}

/** Headers that no longer hold for a rewritten body. */
function rewrittenHeaders(head: Head): string[] {
  const stale = new Set([
    'content-length',
    'content-encoding',
    'content-md5',
    'digest',
    'content-digest',
    'etag',
  ])
  return withoutFields(responseHeaders(head.headers), (lower) => stale.has(lower))
}

function isEventStream(head: Head): boolean {
  return /^text\/event-stream\b/i.test(headerOf(head.headers, 'content-type') ?? '')
}

interface Answer {
  /** Something was received for the client: from here on it gets an answer, whatever else goes wrong. */
  readonly hasBegun: boolean
  /** Takes one response; true when it holds an answer. */
  take(incoming: Incoming): Promise<boolean>
  complete(): Promise<void>
  giveFallback(): Promise<void>
}

/** Collects what one or two upstream responses bring into one response for the client. */
function createAnswer(ending: Ending): Answer {
  const { trip, dialect, judgement, ownAtEnd: own, isStop, fallback, terminal, context } = ending
  let stream: AnswerStream | undefined
  let whole: { readonly head: Head; readonly body: Buffer } | undefined
  let earlier: Buffer[] = []

  const takeStream = async (incoming: Incoming, plain: AsyncIterable<Buffer>): Promise<boolean> => {
    if (!stream) {
      stream = dialect.openStream(isStop)
      writeHead(trip.response, incoming.head, rewrittenHeaders(incoming.head), own)
      trip.response.flushHeaders()
    }
    const reader = createFrameReader()
    for await (const chunk of plain) {
      for (const frame of reader.push(chunk)) await write(trip, stream.push(frame))
    }
    for (const frame of reader.end()) await write(trip, stream.push(frame))
    // An agent that ends itself gets what the model said, an answer or not.
    return stream.endTry() || !isStop
  }

  const takeWhole = async (incoming: Incoming, plain: AsyncIterable<Buffer>): Promise<boolean> => {
    const body = await wholeBody(plain, context.maxGuardedBody)
    const answer = body && dialect.readAnswer(body)
    if (!body) return false
    if (whole) earlier = [...earlier, whole.body]
    whole = { head: incoming.head, body }
    return !isStop || (answer !== undefined && isRealAnswer(answer.text))
  }

  const record = async (text: string, hasFinalAnswer: boolean): Promise<void> => {
    const by = isStop ? (hasFinalAnswer ? 'model' : 'fallback') : 'agent'
    const { terminal_reason: reason, session } = terminal(hasFinalAnswer)
    context.emit({ kind: 'stopped', reason, by, session })
    if (!isStop) return
    const answer: FinalAnswer = {
      text: text.slice(0, MAX_RECORDED),
      model: judgement.request.conversation.model,
      terminal: terminal(hasFinalAnswer),
    }
    await judgement.end(answer).catch(() => undefined)
  }

  const finishStream = async (open: AnswerStream, text: string | undefined): Promise<void> => {
    let hasFinalAnswer = false
    const last = open.finish((answered) => {
      hasFinalAnswer = answered
      return terminal(answered)
    }, text)
    await record(open.text, hasFinalAnswer)
    await write(trip, last)
    trip.response.end()
  }

  const finishWhole = async (
    { head, body }: { head: Head; body: Buffer },
    text: string | undefined,
  ): Promise<void> => {
    const answer = dialect.readAnswer(body)
    const hasFinalAnswer = text === undefined && answer !== undefined && isRealAnswer(answer.text)
    await record(text ?? answer?.text ?? '', hasFinalAnswer)
    // What is no response of this dialect can't be completed, and goes out as it came.
    const rewritten = answer
      ? dialect.writeAnswer(body, {
          terminal: terminal(hasFinalAnswer),
          dropCalls: isStop,
          earlier,
          ...(text === undefined ? {} : { text }),
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
    take(incoming) {
      const plain = plainBody(incoming)
      if (!plain) {
        incoming.body.resume()
        return Promise.resolve(false)
      }
      if (isEventStream(incoming.head)) return takeStream(incoming, plain)
      if (stream) {
        incoming.body.resume()
        return Promise.resolve(false)
      }
      return takeWhole(incoming, plain)
    },
    async complete() {
      if (stream) await finishStream(stream, undefined)
      else if (whole) await finishWhole(whole, undefined)
    },
    async giveFallback() {
      if (stream) return finishStream(stream, fallback)
      if (whole && dialect.readAnswer(whole.body)) return finishWhole(whole, fallback)
      await record(fallback, false)
      const { model, streams } = judgement.request.conversation
      const answer: FinalAnswer = { text: fallback, model, terminal: terminal(false) }
      sendOwn(context, trip, dialect, answer, streams, own)
    },
  }
}

function sendOwn(
  context: ProxyContext,
  trip: Trip,
  dialect: Dialect,
  answer: FinalAnswer,
  streams: boolean,
  own: OwnHeaders,
): void {
  const { contentType, body } = dialect.reply(answer, streams, context.newId(), context.now())
  reply(trip.response, 200, contentType, body, own)
}

/** Gives a stopped run its recorded answer again, without asking the provider. */
export function repeatAnswer(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  answer: FinalAnswer,
  own: OwnHeaders,
): void {
  const { dialect } = trip.route
  if (!dialect) return
  const { terminal_state: state, terminal_reason: reason } = answer.terminal
  context.emit({ kind: 'answer_repeated' })
  const headers = { ...own, 'x-governor-terminal-state': state, 'x-governor-terminal-reason': reason }
  sendOwn(context, trip, dialect, answer, judgement.request.conversation.streams, headers)
}
