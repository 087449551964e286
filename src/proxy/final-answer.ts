/** The last answer of a run: asked for without tools, and kept for a client that loses it. */
import type { Conversation } from '../core/conversation.ts'
import type { Channel } from '../core/decide.ts'
import { isHopeless, NO_TRIES, withFailure } from '../core/session/stop-attempts.ts'
import { type FinalAnswer, type Limit, type Terminal, terminalOf } from '../core/terminal.ts'
import type { TerminalFor, ToolBan } from '../dialect/dialect.ts'
import { forcedTools, formatIn } from '../dialect/shared/output-demands.ts'
import { responseHeaders } from '../http/headers.ts'
import type { OwnHeaders } from '../http/response.ts'
import type { Head, UpstreamCall } from '../http/upstream.ts'
import type { Edit } from '../json/edit.ts'
import {
  type Answer,
  type BegunAnswer,
  createAnswer,
  type Ending,
  passOn,
  sendFallback,
  sendOwn,
} from './answer-response.ts'
import type { Trip } from './begin-exchange.ts'
import type { Judgement } from './evaluate.ts'
import { faultOf } from './fault.ts'
import {
  announcementFor,
  blame,
  droppedFor,
  isRefused,
  mayBeRefusal,
  type PlacedNotice,
  placesFor,
  returnIteration,
  withEdits,
} from './forward.ts'
import { tapFor } from './record-usage.ts'
import type { ProxyContext } from './services.ts'
import { type Incoming, open, UpstreamFailed, uncoded } from './upstream-response.ts'

/** One way to ask for the last answer. */
export interface Form {
  readonly call: UpstreamCall
  readonly channel?: Channel
  readonly ban?: ToolBan
  /** Names of tools: a response that is one call of one of them is the answer. */
  readonly keeps?: readonly string[]
  readonly announces?: boolean
}

/** A model that says nothing is asked once more, not for ever. */
const MAX_ANSWERS = 2

/** Says in the headers how a run ended. */
export function terminalHeaders({ terminal_state: state, terminal_reason: reason }: Terminal): OwnHeaders {
  return { 'x-governor-terminal-state': state, 'x-governor-terminal-reason': reason }
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
    : { meter: { name: 'iterations', used: position.iteration, max: policy.run.iterations } }
  const terminal: TerminalFor = (hasFinalAnswer, isTruncated) =>
    terminalOf(limit, judgement.sessionId ?? '', hasFinalAnswer, isTruncated)
  const ending: Ending = {
    context,
    trip,
    judgement,
    dialect,
    own,
    ownAtEnd: { ...own, ...terminalHeaders(terminal(false)) },
    isStop,
    fallback: isStop ? verdict.fallback : '',
    isJson: formatIn(judgement.request.list) !== undefined,
    terminal,
  }
  const plain = uncoded(call)
  try {
    await ask(
      ending,
      isStop ? stopForms(ending, plain, bytes, verdict.notice) : ownForms(ending, plain, bytes),
    )
  } catch (error) {
    if (trip.isClientGone()) return
    if (!(error instanceof UpstreamFailed)) return endInFault(ending, error as Error)
    returnIteration(judgement)
    trip.fail(error.failure, own)
  }
}

/** A fault of Governor's own on the way to an answer: the limit stays reached, so that the fallback text is all there is. */
function endInFault(ending: Ending, error: Error): void {
  const { context, trip, isStop } = ending
  if (!isStop || trip.response.headersSent) throw error
  context.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  sendFallback(ending)
}

/**
 * The forms in which a stop is asked, best first: tools left in place but not to be chosen keeps the provider's
 * prompt cache; each of the others is for providers that refuse the one before.
 */
function stopForms(ending: Ending, call: UpstreamCall, bytes: Buffer, notice: string): Form[] {
  const { context, trip, judgement } = ending
  const { request, policy } = judgement
  // It stands in every request of a run, the last one included: the system text begins the prompt.
  const announcing = announcementFor(context, trip, judgement)
  // So does the list of tools, which the requests before went without.
  const dropping = droppedFor(context, trip, judgement, policy.dropTools, [])
  const form = (
    place: PlacedNotice | undefined,
    ban: ToolBan,
    announced: readonly Edit[] = announcing,
  ): Form => ({
    call: withEdits(call, bytes, [
      ...announced,
      ...request.banTools(ban),
      ...(ban === 'choice_none' ? dropping : []),
      ...(place?.edits ?? []),
    ]),
    ban,
    announces: announced.length > 0,
    ...(place ? { channel: place.channel } : {}),
  })
  // An agent that asks for its last answer itself needs not be told twice.
  const places = judgement.endsItself ? [] : placesFor(context, trip, judgement, notice)
  const [best] = places
  const choosing = request.conversation.offersTools && !isRefused(context, trip, judgement, 'tool_choice')
  return [
    ...forcedForms(ending, call, bytes, [...announcing, ...dropping, ...(best?.edits ?? [])]),
    ...(choosing ? [form(best, 'choice_none')] : []),
    ...(announcing.length > 0 ? [form(best, 'no_tools')] : []),
    ...places.map((place) => form(place, 'no_tools', [])),
    // The client's own words alone, for an upstream that takes nothing else.
    form(undefined, 'no_tools', []),
  ]
}

/** Names of the tools that the newest steps of a conversation call. */
function calledIn(conversation: Conversation, steps: number): ReadonlySet<string> {
  const names = new Set<string>()
  let left = steps
  for (let at = conversation.length - 1; at >= 0 && left > 0; at--) {
    if (conversation.role(at) !== 'assistant') continue
    left--
    for (const { name } of conversation.calls(at)) names.add(name)
  }
  return names
}

/**
 * The form for an agent whose answer is a call of a forced tool. Where it names none, it is a tool that the run has not called:
 * one that brings the answer is called once. Of a history that the provider keeps that can't be told.
 */
function forcedForms(
  { judgement }: Ending,
  call: UpstreamCall,
  bytes: Buffer,
  edits: readonly Edit[],
): Form[] {
  const { request, position } = judgement
  const { names, isNamed } = forcedTools(request.list)
  if (names.length === 0 || (!isNamed && request.previous !== undefined)) return []
  const called = isNamed ? new Set() : calledIn(request.conversation, position.iteration - 1)
  const keeps = names.filter((name) => !called.has(name))
  if (keeps.length === 0) return []
  const only = isNamed || keeps.length > 1 ? undefined : keeps[0]
  return [{ call: withEdits(call, bytes, [...edits, ...request.keepForced(only)]), keeps }]
}

/** An agent that ends itself is asked nothing; only the announcement stays where it was. */
function ownForms({ context, trip, judgement }: Ending, call: UpstreamCall, bytes: Buffer): Form[] {
  const announcing = announcementFor(context, trip, judgement)
  const own: Form = { call }
  return announcing.length === 0
    ? [own]
    : [{ call: withEdits(call, bytes, announcing), announces: true }, own]
}

/** Does a status say that this form of the request is not taken, and another may be? */
function isRefusedForm({ status, overflow }: Head): boolean {
  return !overflow && (status === 400 || status === 404 || status === 422)
}

/** The forms that the provider has not failed on in this run, unless it has failed on all. */
function formsLeft({ judgement }: Ending, forms: readonly Form[]): readonly Form[] {
  const failed = judgement.position.stopTries?.failedForms ?? []
  const left = forms.filter((form) => !failed.includes(nameOf(form)))
  return left.length > 0 ? left : forms
}

function nameOf({ ban, keeps, channel, announces }: Form): string {
  return [keeps ? 'forced' : ban, channel, announces ? 'announced' : ''].join(' ')
}

/** Goes through the forms until one brings an answer. */
export async function ask(ending: Ending, forms: readonly Form[], begun?: BegunAnswer): Promise<void> {
  const { judgement, isStop } = ending
  const answer = createAnswer(ending, begun)
  let refused: { form: Form; status: number } | undefined
  let answers = 0
  const left = formsLeft(ending, forms)
  for (const form of left) {
    if (answers === MAX_ANSWERS) break
    const incoming = await openForm(ending, form)
    if (!incoming) return answer.giveFallback(true)
    const { head } = incoming
    const isRefused = isStop ? isRefusedForm(head) : mayBeRefusal(head) && form !== left.at(-1)
    if (isRefused) {
      refused = { form, status: head.status }
      incoming.body.destroy()
      continue
    }
    if (head.status !== 200) return passFailure(ending, answer, form, incoming)
    if (refused) blameFor(ending, refused.form, form, refused.status)
    refused = undefined
    answers++
    const taken = await answer.take(incoming, form.keeps)
    if (taken === 'answered') return answer.complete()
    if (taken === 'failed' && isStop)
      await judgement.remembered.triedToStop((tries) => withFailure(tries, nameOf(form)))
    if (taken !== 'silent') return
  }
  // A form that the provider failed on before may be the one that it takes.
  await answer.giveFallback(answers > 0 || left.length === forms.length || isSpent(ending))
}

/** The provider keeps what led to the end, which can't be sent again: what the run ends with is all the client gets. */
function isSpent({ rounds, judgement }: Ending): boolean {
  return rounds !== undefined && judgement.request.isKept === true
}

/** @throws {UpstreamFailed} */
async function openForm(ending: Ending, { call }: Form): Promise<Incoming | undefined> {
  const { context, trip, judgement } = ending
  try {
    return await open(trip, call, (head) => tapFor(context, trip, judgement, call, head))
  } catch (error) {
    if (isSpent(ending) && error instanceof UpstreamFailed && !trip.isClientGone()) return undefined
    throw error
  }
}

/** A provider's failure is the provider's to tell, and nothing to be recorded: the next request asks again. */
async function passFailure(ending: Ending, answer: Answer, form: Form, incoming: Incoming): Promise<void> {
  const { context, trip, judgement, isStop, own } = ending
  const { head, body } = incoming
  const { remembered } = judgement
  const mayBeForm = isStop && head.status === 500 && !head.overflow
  const now = context.now()
  const tries = mayBeForm
    ? await remembered.triedToStop((before) => withFailure(before, nameOf(form), now))
    : NO_TRIES
  if (isSpent(ending) || isHopeless(tries, now)) {
    body.destroy()
    return answer.giveFallback(isSpent(ending))
  }
  returnIteration(judgement)
  if (!answer.isShown) return passOn(trip, head, responseHeaders(head.headers), own, body)
  body.destroy()
  const message = `The upstream answered with status ${head.status} in the middle of a response.`
  trip.fail({ status: 502, code: 'upstream_broken', message, cause: new Error(message) })
}

/** What the accepted form does not have and the refused one had is what was refused. */
function blameFor({ context, trip, judgement }: Ending, refused: Form, accepted: Form, status: number): void {
  if (refused.announces && !accepted.announces) blame(context, trip, judgement, 'announce', status)
  else if (refused.channel && refused.channel !== accepted.channel)
    blame(context, trip, judgement, refused.channel, status)
  else if (refused.ban === 'choice_none' && accepted.ban === 'no_tools') {
    blame(context, trip, judgement, 'tool_choice', status)
  }
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
  context.emit({ kind: 'answer_repeated' })
  const headers = {
    ...own,
    ...terminalHeaders(answer.terminal),
    'x-governor-loop': answer.loop ?? own['x-governor-loop'],
  }
  sendOwn(context, trip, dialect, answer, judgement.request, headers)
}
