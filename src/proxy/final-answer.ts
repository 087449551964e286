/** The last answer of a run: asked for without tools, and kept for a client that loses it. */
import type { Conversation } from '../core/conversation.ts'
import { isHopeless, NO_STOP_ATTEMPTS, withFailure } from '../core/session/stop-attempts.ts'
import { type FinalAnswer, type Terminal, terminalOf } from '../core/terminal.ts'
import type { TerminalFor, ToolBan } from '../dialect/dialect.ts'
import { leaseFor } from '../http/buffer-budget.ts'
import { relay } from '../http/relay.ts'
import type { GovernorHeaders } from '../http/response.ts'
import type { Failure } from '../http/upstream.ts'
import { UpstreamFailed, type UpstreamResponse, withoutCompression } from '../http/upstream-response.ts'
import type { Edit } from '../json/edit.ts'
import {
  type Answer,
  type BegunAnswer,
  beginAnswer,
  completeAnswer,
  type Ending,
  giveFallback,
  sendFallback,
  sendOwn,
  takeResponse,
} from './answer-response.ts'
import { type Attempt, attempt, mayBeUnsupported, type RequestVariant } from './attempts.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import { failRequest, releaseIteration } from './evaluated-request.ts'
import { faultOf } from './fault.ts'
import { announcementFor, droppedFor, isUnsupported, type PlacedNotice, placesFor } from './request-edits.ts'

/** One way to ask for the last answer. */
export interface AnswerVariant extends RequestVariant {
  /** Names the variant among the failed ones of a run. */
  readonly name: string
  /** Names of tools: a response that is one call of one of them is the answer. */
  readonly keeps?: readonly string[]
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
export async function finalAnswer(evaluated: EvaluatedRequest): Promise<void> {
  const { exchange, evaluation, governorHeaders } = evaluated
  const { dialect } = exchange.route
  const { decision } = evaluation
  if (!dialect || (decision.kind !== 'stop' && decision.kind !== 'self_stop')) return
  const isStop = decision.kind === 'stop'
  const { limit, speech } = decision
  const terminal: TerminalFor = (hasFinalAnswer, isTruncated) =>
    terminalOf(limit, evaluation.sessionId ?? '', hasFinalAnswer, isTruncated)
  const x = { ...evaluated, call: withoutCompression(evaluated.call) }
  const ending: Ending = {
    x,
    dialect,
    lease: leaseFor(x.services.buffers, exchange.response),
    terminalGovernorHeaders: { ...governorHeaders, ...terminalHeaders(terminal(false)) },
    isStop,
    fallback: isStop ? decision.fallback : '',
    isJson: evaluation.request.hasFormat(),
    terminal,
  }
  try {
    await askForAnswer(ending, isStop ? stopVariants(x, speech?.notice) : selfStopVariants(x))
  } catch (error) {
    if (exchange.isClientGone()) return
    if (!(error instanceof UpstreamFailed)) return endInFault(ending, error as Error)
    failRequest(x, error.failure)
  }
}

/** A fault of Governor's own on the way to an answer: the limit stays reached, so that the client gets the fallback text. */
function endInFault(ending: Ending, error: Error): void {
  const { isStop, x } = ending
  if (!isStop || x.exchange.response.headersSent) throw error
  x.services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  sendFallback(ending)
}

/** A variant with a notice, or without; a ban of the choice alone keeps the list of tools, with what is `dropped` of it. */
function answerVariant(
  { evaluation }: EvaluatedRequest,
  ban: ToolBan,
  announced: readonly Edit[],
  dropped: readonly Edit[],
  place: PlacedNotice | undefined,
): AnswerVariant {
  const isChoice = ban === 'choice_none'
  const isAnnounced = announced.length > 0
  return {
    edits: [
      ...announced,
      ...evaluation.request.banTools(ban),
      ...(isChoice ? dropped : []),
      ...(place?.edits ?? []),
    ],
    features: [
      ...(isAnnounced ? (['announce'] as const) : []),
      ...(place ? [place.channel] : []),
      ...(isChoice ? (['tool_choice'] as const) : []),
    ],
    name: [ban, place?.channel, isAnnounced ? 'announced' : ''].join(' '),
  }
}

/**
 * The variants in which a stop is asked, best first: tools left in place but not to be chosen keep the provider's prompt
 * cache; each of the others is for providers that refuse the one before.
 */
function stopVariants(x: EvaluatedRequest, notice: string | undefined): AnswerVariant[] {
  const { request, policy } = x.evaluation
  // It stands in every request of a run, the last one included: the system text begins the prompt.
  const announcing = announcementFor(x)
  // So does the list of tools, which the requests before went without.
  const dropping = droppedFor(x, policy.dropTools, [])
  // An agent that asks for its last answer itself needs not be told twice.
  const places = notice === undefined ? [] : [...placesFor(x, notice)]
  const [best] = places
  const mayChoose = request.conversation.offersTools && !isUnsupported(x, 'tool_choice')
  return [
    ...forcedVariants(x, [...announcing, ...dropping, ...(best?.edits ?? [])]),
    ...(mayChoose ? [answerVariant(x, 'choice_none', announcing, dropping, best)] : []),
    ...(announcing.length > 0 ? [answerVariant(x, 'no_tools', announcing, [], best)] : []),
    ...places.map((place) => answerVariant(x, 'no_tools', [], [], place)),
    // The client's own words alone, for an upstream that takes nothing else.
    answerVariant(x, 'no_tools', [], [], undefined),
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
 * The variant for an agent whose answer is a call of a forced tool. Where the client names none, it is a tool that the run
 * has not called: one that brings the answer is called once. Of a history that the provider keeps that can't be told.
 */
function forcedVariants({ evaluation }: EvaluatedRequest, edits: readonly Edit[]): AnswerVariant[] {
  const { request, runState } = evaluation
  const { names, isNamed } = request.forcedTools()
  if (names.length === 0 || (!isNamed && request.previous !== undefined)) return []
  const called = isNamed ? new Set() : calledIn(request.conversation, runState.iteration - 1)
  const keeps = names.filter((name) => !called.has(name))
  if (keeps.length === 0) return []
  const only = isNamed || keeps.length > 1 ? undefined : keeps[0]
  return [{ edits: [...edits, ...request.keepForced(only)], features: [], name: 'forced  ', keeps }]
}

/** An agent that ends itself is asked nothing; only the announcement stays where it was. */
function selfStopVariants(x: EvaluatedRequest): AnswerVariant[] {
  const edits = announcementFor(x)
  const unchanged: AnswerVariant = { features: [], name: '  ' }
  return edits.length === 0
    ? [unchanged]
    : [{ edits, features: ['announce'], name: '  announced' }, unchanged]
}

/** The variants that the provider has not failed on in this run, or all of them if it has failed on all. */
function variantsLeft({ x }: Ending, variants: readonly AnswerVariant[]): readonly AnswerVariant[] {
  const failed = x.evaluation.runState.stopTries?.failedForms ?? []
  const left = variants.filter(({ name }) => !failed.includes(name))
  return left.length > 0 ? left : variants
}

/** True if this variant of the request is not taken, and another may be. */
function isRefused({ head }: UpstreamResponse, isStop: boolean): boolean {
  if (!isStop) return mayBeUnsupported(head)
  return !head.overflow && (head.status === 400 || head.status === 404 || head.status === 422)
}

/** Asks in one variant after the other until one brings an answer. @throws {UpstreamFailed} */
export async function askForAnswer(
  ending: Ending,
  variants: readonly AnswerVariant[],
  begun?: BegunAnswer,
): Promise<void> {
  const { x, isStop } = ending
  const answer = beginAnswer(ending, begun)
  const all = variantsLeft(ending, variants)
  const left = [...all]
  let answers = 0
  for (let first = left.shift(); first && answers < MAX_ANSWERS; first = left.shift()) {
    const made = await attemptAnswer(ending, first, ({ response }) =>
      isRefused(response, isStop) ? left.shift() : undefined,
    )
    if (!made) return giveFallback(answer, true)
    const { variant, response } = made
    if (isStop && isRefused(response, isStop)) {
      response.abort()
      break
    }
    if (response.head.status !== 200) return passFailure(ending, answer, made)
    answers++
    const taken = await takeResponse(answer, response, variant.keeps)
    if (taken === 'answered') return completeAnswer(answer)
    if (taken === 'failed' && isStop)
      await x.evaluation.handle.noteStopAttempt((tries) => withFailure(tries, variant.name))
    if (taken !== 'silent') return
  }
  // A variant that the provider failed on before may be the one that it takes.
  await giveFallback(answer, answers > 0 || all.length === variants.length || isSpent(ending))
}

/** The provider keeps what led to the end, which can't be sent again: what the run ends with is all the client gets. */
function isSpent({ rounds, x }: Ending): boolean {
  return rounds !== undefined && x.evaluation.request.isKept === true
}

/** Returns `undefined` where there is no response, and nothing can be asked again. @throws {UpstreamFailed} */
async function attemptAnswer(
  ending: Ending,
  first: AnswerVariant,
  next: (refused: Attempt<AnswerVariant>) => AnswerVariant | undefined,
): Promise<Attempt<AnswerVariant> | undefined> {
  const { x } = ending
  try {
    return await attempt(x, first, next)
  } catch (error) {
    if (isSpent(ending) && error instanceof UpstreamFailed && !x.exchange.isClientGone()) return undefined
    throw error
  }
}

/** A provider's failure is the provider's to tell, and nothing to be recorded: the next request asks again. */
async function passFailure(
  ending: Ending,
  answer: Answer,
  { variant, response }: Attempt<AnswerVariant>,
): Promise<void> {
  const { x, isStop } = ending
  const { services, exchange, evaluation, governorHeaders } = x
  const { status, overflow } = response.head
  const mayBeVariant = isStop && status === 500 && !overflow
  const now = services.now()
  const tries = mayBeVariant
    ? await evaluation.handle.noteStopAttempt((before) => withFailure(before, variant.name, now))
    : NO_STOP_ATTEMPTS
  if (isSpent(ending) || isHopeless(tries, now)) {
    response.abort()
    return giveFallback(answer, isSpent(ending))
  }
  releaseIteration(evaluation, status)
  const fail = (failure: Failure) => exchange.fail(failure, governorHeaders)
  if (!answer.isShown) return relay(response, exchange.response, governorHeaders, fail)
  response.abort()
  const message = `The upstream answered with status ${status} in the middle of a response.`
  fail({ status: 502, code: 'upstream_broken', message, cause: new Error(message) })
}

/** Gives a stopped run its recorded answer again, without asking the provider. */
export function replayAnswer(x: EvaluatedRequest, answer: FinalAnswer): void {
  const { services, exchange, evaluation, governorHeaders } = x
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
