/** The last answer of a run: asked for without tools, and kept for a client that loses it. */
import type { Conversation } from '../core/conversation.ts'
import type { Channel } from '../core/decide.ts'
import { isHopeless, NO_STOP_ATTEMPTS, withFailure } from '../core/session/stop-attempts.ts'
import { type FinalAnswer, type Terminal, terminalOf } from '../core/terminal.ts'
import type { TerminalFor, ToolBan } from '../dialect/dialect.ts'
import { responseHeaders } from '../http/headers.ts'
import type { GovernorHeaders } from '../http/response.ts'
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
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import { faultOf } from './fault.ts'
import {
  announcementFor,
  droppedFor,
  isUnsupported,
  markUnsupported,
  mayBeUnsupported,
  type PlacedNotice,
  placesFor,
  releaseIteration,
  withEdits,
} from './forward.ts'
import { usageRecorderFor } from './record-usage.ts'
import type { Services } from './services.ts'
import { open, UpstreamFailed, type UpstreamResponse, withoutCompression } from './upstream-response.ts'

/** One way to ask for the last answer. */
export interface RequestVariant {
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
export function terminalHeaders({
  terminal_state: state,
  terminal_reason: reason,
}: Terminal): GovernorHeaders {
  return { 'x-governor-terminal-state': state, 'x-governor-terminal-reason': reason }
}

/** Answers a stopped request, or one by which an agent ends itself. */
export async function finalAnswer(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  bytes: Buffer,
  governorHeaders: GovernorHeaders,
): Promise<void> {
  const { dialect } = exchange.route
  const { decision } = evaluation
  if (!dialect || (decision.kind !== 'stop' && decision.kind !== 'self_stop')) return
  const isStop = decision.kind === 'stop'
  const { limit, speech } = decision
  const terminal: TerminalFor = (hasFinalAnswer, isTruncated) =>
    terminalOf(limit, evaluation.sessionId ?? '', hasFinalAnswer, isTruncated)
  const ending: Ending = {
    services,
    exchange,
    evaluation,
    dialect,
    governorHeaders,
    terminalGovernorHeaders: { ...governorHeaders, ...terminalHeaders(terminal(false)) },
    isStop,
    fallback: isStop ? decision.fallback : '',
    isJson: evaluation.request.hasFormat(),
    terminal,
  }
  const plain = withoutCompression(call)
  try {
    await attemptVariants(
      ending,
      isStop ? stopForms(ending, plain, bytes, speech?.notice) : ownForms(ending, plain, bytes),
    )
  } catch (error) {
    if (exchange.isClientGone()) return
    if (!(error instanceof UpstreamFailed)) return endInFault(ending, error as Error)
    releaseIteration(evaluation)
    exchange.fail(error.failure, governorHeaders)
  }
}

/** A fault of Governor's own on the way to an answer: the limit stays reached, so that the fallback text is all there is. */
function endInFault(ending: Ending, error: Error): void {
  const { services, exchange, isStop } = ending
  if (!isStop || exchange.response.headersSent) throw error
  services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  sendFallback(ending)
}

/**
 * The forms in which a stop is asked, best first: tools left in place but not to be chosen keeps the provider's
 * prompt cache; each of the others is for providers that refuse the one before.
 */
function stopForms(ending: Ending, call: UpstreamCall, bytes: Buffer, notice?: string): RequestVariant[] {
  const { services, exchange, evaluation } = ending
  const { request, policy } = evaluation
  // It stands in every request of a run, the last one included: the system text begins the prompt.
  const announcing = announcementFor(services, exchange, evaluation)
  // So does the list of tools, which the requests before went without.
  const dropping = droppedFor(services, exchange, evaluation, policy.dropTools, [])
  const form = (
    place: PlacedNotice | undefined,
    ban: ToolBan,
    announced: readonly Edit[] = announcing,
  ): RequestVariant => ({
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
  const places = notice === undefined ? [] : placesFor(services, exchange, evaluation, notice)
  const [best] = places
  const choosing =
    request.conversation.offersTools && !isUnsupported(services, exchange, evaluation, 'tool_choice')
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
  { evaluation }: Ending,
  call: UpstreamCall,
  bytes: Buffer,
  edits: readonly Edit[],
): RequestVariant[] {
  const { request, runState } = evaluation
  const { names, isNamed } = request.forcedTools()
  if (names.length === 0 || (!isNamed && request.previous !== undefined)) return []
  const called = isNamed ? new Set() : calledIn(request.conversation, runState.iteration - 1)
  const keeps = names.filter((name) => !called.has(name))
  if (keeps.length === 0) return []
  const only = isNamed || keeps.length > 1 ? undefined : keeps[0]
  return [{ call: withEdits(call, bytes, [...edits, ...request.keepForced(only)]), keeps }]
}

/** An agent that ends itself is asked nothing; only the announcement stays where it was. */
function ownForms(
  { services, exchange, evaluation }: Ending,
  call: UpstreamCall,
  bytes: Buffer,
): RequestVariant[] {
  const announcing = announcementFor(services, exchange, evaluation)
  const governorHeaders: RequestVariant = { call }
  return announcing.length === 0
    ? [governorHeaders]
    : [{ call: withEdits(call, bytes, announcing), announces: true }, governorHeaders]
}

/** Does a status say that this form of the request is not taken, and another may be? */
function isRefusedForm({ status, overflow }: Head): boolean {
  return !overflow && (status === 400 || status === 404 || status === 422)
}

/** The forms that the provider has not failed on in this run, unless it has failed on all. */
function formsLeft({ evaluation }: Ending, forms: readonly RequestVariant[]): readonly RequestVariant[] {
  const failed = evaluation.runState.stopTries?.failedForms ?? []
  const left = forms.filter((form) => !failed.includes(nameOf(form)))
  return left.length > 0 ? left : forms
}

function nameOf({ ban, keeps, channel, announces }: RequestVariant): string {
  return [keeps ? 'forced' : ban, channel, announces ? 'announced' : ''].join(' ')
}

/** Goes through the forms until one brings an answer. */
export async function attemptVariants(
  ending: Ending,
  forms: readonly RequestVariant[],
  begun?: BegunAnswer,
): Promise<void> {
  const { evaluation, isStop } = ending
  const answer = createAnswer(ending, begun)
  let refused: { form: RequestVariant; status: number } | undefined
  let answers = 0
  const left = formsLeft(ending, forms)
  for (const form of left) {
    if (answers === MAX_ANSWERS) break
    const incoming = await openForm(ending, form)
    if (!incoming) return answer.giveFallback(true)
    const { head } = incoming
    const isRefused = isStop ? isRefusedForm(head) : mayBeUnsupported(head) && form !== left.at(-1)
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
      await evaluation.handle.noteStopAttempt((tries) => withFailure(tries, nameOf(form)))
    if (taken !== 'silent') return
  }
  // A form that the provider failed on before may be the one that it takes.
  await answer.giveFallback(answers > 0 || left.length === forms.length || isSpent(ending))
}

/** The provider keeps what led to the end, which can't be sent again: what the run ends with is all the client gets. */
function isSpent({ rounds, evaluation }: Ending): boolean {
  return rounds !== undefined && evaluation.request.isKept === true
}

/** @throws {UpstreamFailed} */
async function openForm(ending: Ending, { call }: RequestVariant): Promise<UpstreamResponse | undefined> {
  const { services, exchange, evaluation } = ending
  try {
    return await open(exchange, call, (head) => usageRecorderFor(services, exchange, evaluation, call, head))
  } catch (error) {
    if (isSpent(ending) && error instanceof UpstreamFailed && !exchange.isClientGone()) return undefined
    throw error
  }
}

/** A provider's failure is the provider's to tell, and nothing to be recorded: the next request asks again. */
async function passFailure(
  ending: Ending,
  answer: Answer,
  form: RequestVariant,
  incoming: UpstreamResponse,
): Promise<void> {
  const { services, exchange, evaluation, isStop, governorHeaders } = ending
  const { head, body } = incoming
  const { handle } = evaluation
  const mayBeForm = isStop && head.status === 500 && !head.overflow
  const now = services.now()
  const tries = mayBeForm
    ? await handle.noteStopAttempt((before) => withFailure(before, nameOf(form), now))
    : NO_STOP_ATTEMPTS
  if (isSpent(ending) || isHopeless(tries, now)) {
    body.destroy()
    return answer.giveFallback(isSpent(ending))
  }
  releaseIteration(evaluation)
  if (!answer.isShown) return passOn(exchange, head, responseHeaders(head.headers), governorHeaders, body)
  body.destroy()
  const message = `The upstream answered with status ${head.status} in the middle of a response.`
  exchange.fail({ status: 502, code: 'upstream_broken', message, cause: new Error(message) })
}

/** What the accepted form does not have and the refused one had is what was refused. */
function blameFor(
  { services, exchange, evaluation }: Ending,
  refused: RequestVariant,
  accepted: RequestVariant,
  status: number,
): void {
  if (refused.announces && !accepted.announces)
    markUnsupported(services, exchange, evaluation, 'announce', status)
  else if (refused.channel && refused.channel !== accepted.channel)
    markUnsupported(services, exchange, evaluation, refused.channel, status)
  else if (refused.ban === 'choice_none' && accepted.ban === 'no_tools') {
    markUnsupported(services, exchange, evaluation, 'tool_choice', status)
  }
}

/** Gives a stopped run its recorded answer again, without asking the provider. */
export function repeatAnswer(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  answer: FinalAnswer,
  governorHeaders: GovernorHeaders,
): void {
  const { dialect } = exchange.route
  if (!dialect) return
  services.emit({ kind: 'answer_repeated' })
  const headers = {
    ...governorHeaders,
    ...terminalHeaders(answer.terminal),
    'x-governor-loop': answer.loop ?? governorHeaders['x-governor-loop'],
  }
  sendOwn(services, exchange, dialect, answer, evaluation.request, headers)
}
