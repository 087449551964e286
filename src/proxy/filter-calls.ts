/**
 * Refuses calls on their way out of the model's response, for a run that goes round in circles though it was told.
 *
 * Only such a run's responses are read. Text goes to the client as it comes; the calls are held until they are all
 * there. Those that must not be made again are taken out; where nothing is left to do, the model is asked again, with
 * Governor's own word as the result of each call, and what it answers then goes on in the same response.
 */

import { fill } from '../core/budget/notice.ts'
import { blockText, fallbackText, NOT_EXECUTED } from '../core/loop/notice.ts'
import type { BlockDecision } from '../core/loop/observe.ts'
import { type Limit, terminalOf } from '../core/terminal.ts'
import type { BlockedMessage, BufferedCalls, TerminalFor } from '../dialect/dialect.ts'
import { isEventStream, responseHeaders } from '../http/headers.ts'
import type { GovernorHeaders } from '../http/response.ts'
import type { UpstreamCall } from '../http/upstream.ts'
import type { Edit } from '../json/edit.ts'
import { type Ending, passOn } from './answer-response.ts'
import type { Exchange } from './begin-exchange.ts'
import { bodyFilter, type FilteredResponse, type ResponseFilter, streamFilter } from './call-filter.ts'
import type { Evaluation } from './evaluate.ts'
import { type RequestVariant, terminalHeaders } from './final-answer.ts'
import {
  blamedEdit,
  type EditedRequest,
  editSafely,
  isUnsupported,
  markUnsupported,
  mayBeUnsupported,
  noteInjected,
  placeFor,
  releaseIteration,
  withEdits,
} from './forward.ts'
import { replaceBy, savePartOfResults } from './pending-results.ts'
import { usageRecorderFor } from './record-usage.ts'
import type { Services } from './services.ts'
import { open, UpstreamFailed, type UpstreamResponse, withoutCompression } from './upstream-response.ts'

type Refusals = BlockDecision['blocked']

/** So often a model whose calls were all refused is asked again for one response. */
const MAX_REASKS = 2

/** Everything that the steps of one guarded response share. */
interface Filtering extends FilteredResponse {
  readonly evaluation: Evaluation
  /** The client's request, and what was changed in it. */
  readonly call: UpstreamCall
  readonly bytes: Buffer
  readonly edits: readonly Edit[]
  /** Of these, those that touch no tool. */
  readonly textEdits: readonly Edit[]
}

/** Gives the client a response whose calls were judged. */
export async function filterCalls(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  bytes: Buffer,
  governorHeaders: GovernorHeaders,
): Promise<void> {
  const { dialect } = exchange.route
  if (!dialect) return
  const plain = withoutCompression(call)
  const altered = editSafely(services, exchange, evaluation, plain, bytes)
  try {
    const { incoming, isAltered } = await openFirst(services, exchange, evaluation, plain, altered)
    const { head } = incoming
    if (head.status !== 200) {
      if (head.status >= 400) releaseIteration(evaluation)
      return await passOn(exchange, head, responseHeaders(head.headers), governorHeaders, incoming.body)
    }
    const { speech } = evaluation.decision
    if (isAltered && altered?.notice && speech)
      noteInjected(services, evaluation, speech, altered.notice.channel)
    const { edits = [], textEdits = [] } = isAltered && altered ? altered : {}
    await letThrough(
      { services, exchange, evaluation, dialect, call: plain, bytes, edits, textEdits, governorHeaders },
      incoming,
    )
  } catch (error) {
    if (exchange.isClientGone()) return
    if (!(error instanceof UpstreamFailed)) throw error
    releaseIteration(evaluation)
    exchange.fail(error.failure, governorHeaders)
  }
}

/** The response to the request as altered; where that is refused, to the client's own bytes. @throws {UpstreamFailed} */
async function openFirst(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  altered: EditedRequest | undefined,
): Promise<{ readonly incoming: UpstreamResponse; readonly isAltered: boolean }> {
  const openTapped = (one: UpstreamCall) =>
    open(exchange, one, (head) => usageRecorderFor(services, exchange, evaluation, one, head))
  if (!altered) return { incoming: await openTapped(call), isAltered: false }
  const incoming = await openTapped(altered.call)
  const { status } = incoming.head
  if (!mayBeUnsupported(incoming.head, altered.dropsTools)) return { incoming, isAltered: true }
  incoming.body.destroy()
  const governorHeaders = await openTapped(call)
  if (governorHeaders.head.status < 400)
    markUnsupported(services, exchange, evaluation, blamedEdit(altered, status), status)
  return { incoming: governorHeaders, isAltered: false }
}

async function letThrough(guarding: Filtering, first: UpstreamResponse): Promise<void> {
  const { services, evaluation } = guarding
  const filter = isEventStream(first.head.headers) ? streamFilter(guarding, first) : bodyFilter(guarding)
  const rounds: BlockedMessage[] = []
  let buffered = await filter.take(first)
  for (;;) {
    if (!buffered || buffered.calls.length === 0) {
      await replaceBy(services, evaluation, rounds, buffered)
      return filter.release(new Set())
    }
    const { blocked, endsRun } = await evaluation.handle.decideBlocks(buffered.calls)
    const refused = new Set(blocked.flatMap((refusal, at) => (refusal ? [at] : [])))
    if (refused.size === 0) {
      await replaceBy(services, evaluation, rounds, buffered)
      return filter.release(refused)
    }
    const { governorHeaders } = guarding
    guarding.governorHeaders = { ...governorHeaders, ...blockHeaders(blocked) }
    const isOver = endsRun || rounds.length === MAX_REASKS
    const results = buffered.calls.map(({ name }, at) => {
      const refusal = blocked[at]
      return refusal ? blockText(name, refusal.count) : NOT_EXECUTED
    })
    if (!isOver && refused.size < buffered.calls.length) {
      tellOfRefusals(guarding, blocked)
      await savePartOfResults(services, evaluation, rounds, { buffered, results }, refused)
      return filter.release(refused)
    }
    rounds.push({ buffered, results })
    if (isOver) {
      tellOfRefusals(guarding, blocked)
      return endRun(guarding, filter, rounds, fallbackFor(blocked))
    }
    const again = await continueRun(guarding, rounds)
    const next = again && (await takeAgain(guarding, filter, again))
    services.emit({ kind: 'asked_again', outcome: next ? 'answered' : 'failed' })
    if (!next) {
      // Nothing of this response is refused after all.
      guarding.governorHeaders = governorHeaders
      await replaceBy(services, evaluation, rounds.slice(0, -1), buffered)
      return filter.release(new Set())
    }
    tellOfRefusals(guarding, blocked)
    buffered = next
  }
}

/** Says in the headers what was refused; the last that was, where there are several. */
function blockHeaders(blocked: Refusals): GovernorHeaders {
  const refusal = blocked.findLast((one) => one !== undefined)
  if (!refusal) return {}
  return {
    'x-governor-verdict': 'block',
    'x-governor-loop': `${refusal.pattern};count=${refusal.count}`,
  }
}

function tellOfRefusals({ services, exchange, evaluation }: Filtering, blocked: Refusals): void {
  evaluation.handle.noteInjected().catch(() => services.emit({ kind: 'failed_open', reason: 'store' }))
  for (const refusal of blocked) {
    if (!refusal) continue
    const { pattern, tool } = refusal
    services.emit({ kind: 'refused_call', pattern, tool })
    exchange.noteOutcome('block', pattern)
  }
}

/** A later response that breaks off, or can't be read, is none: the one before it is still there for the client. */
async function takeAgain(
  { exchange }: Filtering,
  filter: ResponseFilter,
  incoming: UpstreamResponse,
): Promise<BufferedCalls | undefined> {
  try {
    return await filter.take(incoming)
  } catch (error) {
    if (exchange.isClientGone()) throw error
    return undefined
  }
}

/** What is said for a model that has nothing to say. */
function fallbackFor(blocked: Refusals): string {
  const refusal = blocked.find((one) => one !== undefined)
  return fallbackText(refusal?.tool ?? '', refusal?.count ?? 0)
}

/** With all that the model said; where that is more than the API knows, with what it knows alone. */
function waysToGoOn({ request }: Evaluation, rounds: readonly BlockedMessage[]): (readonly Edit[])[] {
  const textOf = (edits: readonly Edit[] | undefined) => edits?.map(({ text }) => text).join('')
  const all = request.continueAfterBlock(rounds)
  const bare = request.continueAfterBlock(rounds, true)
  if (!all) return []
  return bare && textOf(bare) !== textOf(all) ? [all, bare] : [all]
}

/** The model's next response; `undefined` where there is none, or it is no success. */
async function continueRun(
  guarding: Filtering,
  rounds: readonly BlockedMessage[],
): Promise<UpstreamResponse | undefined> {
  const { services, exchange, evaluation, bytes, edits } = guarding
  try {
    for (const goingOn of waysToGoOn(evaluation, rounds)) {
      const call = withEdits(guarding.call, bytes, [...edits, ...goingOn])
      const incoming = await open(exchange, call, (head) =>
        usageRecorderFor(services, exchange, evaluation, call, head),
      )
      if (incoming.head.status === 200) return incoming
      incoming.body.destroy()
      if (!mayBeUnsupported(incoming.head)) return undefined
    }
    return undefined
  } catch (error) {
    if (exchange.isClientGone() || !(error instanceof UpstreamFailed)) throw error
    return undefined
  }
}

/** Nothing that the model was told has helped: it is asked for its answer, without tools. */
function endRun(
  guarding: Filtering,
  filter: ResponseFilter,
  rounds: readonly BlockedMessage[],
  fallback: string,
): Promise<void> {
  const { services, exchange, evaluation, dialect } = guarding
  const { runState, policy } = evaluation
  const limit: Limit = {
    meter: { name: 'iterations', used: runState.iteration, max: policy.enabled ? policy.run.iterations : 0 },
    reason: 'loop_guard',
  }
  const terminal: TerminalFor = (hasFinalAnswer, isTruncated) =>
    terminalOf(limit, evaluation.sessionId ?? '', hasFinalAnswer, isTruncated)
  const governorHeaders = { ...guarding.governorHeaders, 'x-governor-verdict': 'stop' }
  exchange.noteOutcome('stop')
  const ending: Ending = {
    services,
    exchange,
    evaluation,
    dialect,
    governorHeaders,
    terminalGovernorHeaders: { ...governorHeaders, ...terminalHeaders(terminal(false)) },
    isStop: true,
    fallback,
    isJson: evaluation.request.hasFormat(),
    terminal,
    rounds,
  }
  return filter.end(ending, lastForms(guarding, rounds))
}

/** The ways to ask for the last answer, best first: after all that was said, or as if the last response had not been. */
function lastForms(guarding: Filtering, rounds: readonly BlockedMessage[]): RequestVariant[] {
  const { services, exchange, evaluation, call, bytes, textEdits } = guarding
  const { request, policy, runState } = evaluation
  const meter = { name: 'iterations', used: runState.iteration, max: policy.run.iterations } as const
  const notice = fill(policy.texts.stop, meter)
  const last = rounds.at(-1)
  const told = last && {
    ...last,
    results: [...last.results.slice(0, -1), `${last.results.at(-1) ?? ''}\n\n${notice}`],
  }
  const goingOn = told && request.continueAfterBlock([...rounds.slice(0, -1), told])
  const form = (ban: 'choice_none' | 'no_tools', more: readonly Edit[]): RequestVariant => ({
    call: withEdits(call, bytes, [...more, ...request.banTools(ban)]),
    ban,
  })
  const choosing =
    request.conversation.offersTools && !isUnsupported(services, exchange, evaluation, 'tool_choice')
  const place = placeFor(services, exchange, evaluation, notice)
  return [
    ...(goingOn && choosing ? [form('choice_none', [...textEdits, ...goingOn])] : []),
    ...(goingOn ? [form('no_tools', [...textEdits, ...goingOn])] : []),
    form('no_tools', place?.edits ?? []),
  ]
}
