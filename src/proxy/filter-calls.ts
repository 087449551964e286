/**
 * Refuses calls on their way out of the model's response, for a run that goes round in circles though it was told.
 *
 * Only such a run's responses are read. Text goes to the client as it comes; the calls are held until they are all
 * there. Those that must not be made again are taken out; where nothing is left to do, the model is asked again, with
 * Governor's own word as the result of each call, and what it answers then goes on in the same response.
 */

import { fill } from '../core/budget/notice.ts'
import { loopFallback, NOT_EXECUTED, refusalText } from '../core/loop/notice.ts'
import type { Refused } from '../core/loop/observe.ts'
import { type Limit, terminalOf } from '../core/terminal.ts'
import type { HeldCalls, RefusedRound, TerminalFor } from '../dialect/dialect.ts'
import { formatIn } from '../dialect/shared/output-demands.ts'
import { isEventStream, responseHeaders } from '../http/headers.ts'
import type { OwnHeaders } from '../http/response.ts'
import type { UpstreamCall } from '../http/upstream.ts'
import type { Edit } from '../json/edit.ts'
import { type Ending, passOn } from './answer-response.ts'
import type { Trip } from './begin-exchange.ts'
import { type Gate, type Gated, streamGate, wholeGate } from './call-filter.ts'
import type { Judgement } from './evaluate.ts'
import { type Form, terminalHeaders } from './final-answer.ts'
import {
  type Altered,
  alteredSafely,
  blame,
  isRefused,
  mayBeRefusal,
  noteTold,
  placeFor,
  returnIteration,
  suspectOf,
  withEdits,
} from './forward.ts'
import { owePart, replaceBy } from './pending-results.ts'
import { tapFor } from './record-usage.ts'
import type { ProxyContext } from './services.ts'
import { type Incoming, open, UpstreamFailed, uncoded } from './upstream-response.ts'

type Refusals = Refused['refusals']

/** So often a model whose calls were all refused is asked again for one response. */
const MAX_REASKS = 2

/** Everything that the steps of one guarded response share. */
interface Guarding extends Gated {
  readonly judgement: Judgement
  /** The client's request, and what was changed in it. */
  readonly call: UpstreamCall
  readonly bytes: Buffer
  readonly edits: readonly Edit[]
  /** Of these, those that touch no tool. */
  readonly said: readonly Edit[]
}

/** Gives the client a response whose calls were judged. */
export async function guardCalls(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  bytes: Buffer,
  own: OwnHeaders,
): Promise<void> {
  const { dialect } = trip.route
  if (!dialect) return
  const plain = uncoded(call)
  const altered = alteredSafely(context, trip, judgement, plain, bytes)
  try {
    const { incoming, isAltered } = await openFirst(context, trip, judgement, plain, altered)
    const { head } = incoming
    if (head.status !== 200) {
      if (head.status >= 400) returnIteration(judgement)
      return await passOn(trip, head, responseHeaders(head.headers), own, incoming.body)
    }
    const { verdict } = judgement
    if (isAltered && altered?.notice && verdict.kind === 'warn') {
      noteTold(context, judgement, verdict, altered.notice.channel)
    }
    const { edits = [], said = [] } = isAltered && altered ? altered : {}
    await letThrough({ context, trip, judgement, dialect, call: plain, bytes, edits, said, own }, incoming)
  } catch (error) {
    if (trip.isClientGone()) return
    if (!(error instanceof UpstreamFailed)) throw error
    returnIteration(judgement)
    trip.fail(error.failure, own)
  }
}

/** The response to the request as altered; where that is refused, to the client's own bytes. @throws {UpstreamFailed} */
async function openFirst(
  context: ProxyContext,
  trip: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  altered: Altered | undefined,
): Promise<{ readonly incoming: Incoming; readonly isAltered: boolean }> {
  const openTapped = (one: UpstreamCall) =>
    open(trip, one, (head) => tapFor(context, trip, judgement, one, head))
  if (!altered) return { incoming: await openTapped(call), isAltered: false }
  const incoming = await openTapped(altered.call)
  const { status } = incoming.head
  if (!mayBeRefusal(incoming.head, altered.dropsTools)) return { incoming, isAltered: true }
  incoming.body.destroy()
  const own = await openTapped(call)
  if (own.head.status < 400) blame(context, trip, judgement, suspectOf(altered, status), status)
  return { incoming: own, isAltered: false }
}

async function letThrough(guarding: Guarding, first: Incoming): Promise<void> {
  const { context, judgement } = guarding
  const gate = isEventStream(first.head.headers) ? streamGate(guarding, first) : wholeGate(guarding)
  const rounds: RefusedRound[] = []
  let held = await gate.take(first)
  for (;;) {
    if (!held || held.calls.length === 0) {
      await replaceBy(context, judgement, rounds, held)
      return gate.release(new Set())
    }
    const { refusals, endsRun } = await judgement.remembered.refuse(held.calls)
    const refused = new Set(refusals.flatMap((refusal, at) => (refusal ? [at] : [])))
    if (refused.size === 0) {
      await replaceBy(context, judgement, rounds, held)
      return gate.release(refused)
    }
    const { own } = guarding
    guarding.own = { ...own, ...blockHeaders(refusals) }
    const isOver = endsRun || rounds.length === MAX_REASKS
    const results = held.calls.map(({ name }, at) => {
      const refusal = refusals[at]
      return refusal ? refusalText(name, refusal.count) : NOT_EXECUTED
    })
    if (!isOver && refused.size < held.calls.length) {
      tellOfRefusals(guarding, refusals)
      await owePart(context, judgement, rounds, { held, results }, refused)
      return gate.release(refused)
    }
    rounds.push({ held, results })
    if (isOver) {
      tellOfRefusals(guarding, refusals)
      return endRun(guarding, gate, rounds, fallbackFor(refusals))
    }
    const again = await askAgain(guarding, rounds)
    const next = again && (await takeAgain(guarding, gate, again))
    context.emit({ kind: 'asked_again', outcome: next ? 'answered' : 'failed' })
    if (!next) {
      // Nothing of this response is refused after all.
      guarding.own = own
      await replaceBy(context, judgement, rounds.slice(0, -1), held)
      return gate.release(new Set())
    }
    tellOfRefusals(guarding, refusals)
    held = next
  }
}

/** Says in the headers what was refused; the last that was, where there are several. */
function blockHeaders(refusals: Refusals): OwnHeaders {
  const refusal = refusals.findLast((one) => one !== undefined)
  if (!refusal) return {}
  return {
    'x-governor-verdict': 'block',
    'x-governor-loop': `${refusal.pattern};count=${refusal.count}`,
  }
}

function tellOfRefusals({ context, trip, judgement }: Guarding, refusals: Refusals): void {
  judgement.remembered.said().catch(() => context.emit({ kind: 'failed_open', reason: 'store' }))
  for (const refusal of refusals) {
    if (!refusal) continue
    const { pattern, tool } = refusal
    context.emit({ kind: 'refused_call', pattern, tool })
    trip.ended('block', pattern)
  }
}

/** A later response that breaks off, or can't be read, is none: the one before it is still there for the client. */
async function takeAgain({ trip }: Guarding, gate: Gate, incoming: Incoming): Promise<HeldCalls | undefined> {
  try {
    return await gate.take(incoming)
  } catch (error) {
    if (trip.isClientGone()) throw error
    return undefined
  }
}

/** What is said for a model that has nothing to say. */
function fallbackFor(refusals: Refusals): string {
  const refusal = refusals.find((one) => one !== undefined)
  return loopFallback(refusal?.tool ?? '', refusal?.count ?? 0)
}

/** With all that the model said; where that is more than the API knows, with what it knows alone. */
function waysToGoOn({ request }: Judgement, rounds: readonly RefusedRound[]): (readonly Edit[])[] {
  const textOf = (edits: readonly Edit[] | undefined) => edits?.map(({ text }) => text).join('')
  const all = request.goOn(rounds)
  const bare = request.goOn(rounds, true)
  if (!all) return []
  return bare && textOf(bare) !== textOf(all) ? [all, bare] : [all]
}

/** The model's next response; `undefined` where there is none, or it is no success. */
async function askAgain(guarding: Guarding, rounds: readonly RefusedRound[]): Promise<Incoming | undefined> {
  const { context, trip, judgement, bytes, edits } = guarding
  try {
    for (const goingOn of waysToGoOn(judgement, rounds)) {
      const call = withEdits(guarding.call, bytes, [...edits, ...goingOn])
      const incoming = await open(trip, call, (head) => tapFor(context, trip, judgement, call, head))
      if (incoming.head.status === 200) return incoming
      incoming.body.destroy()
      if (!mayBeRefusal(incoming.head)) return undefined
    }
    return undefined
  } catch (error) {
    if (trip.isClientGone() || !(error instanceof UpstreamFailed)) throw error
    return undefined
  }
}

/** Nothing that the model was told has helped: it is asked for its answer, without tools. */
function endRun(
  guarding: Guarding,
  gate: Gate,
  rounds: readonly RefusedRound[],
  fallback: string,
): Promise<void> {
  const { context, trip, judgement, dialect } = guarding
  const { position, policy } = judgement
  const limit: Limit = {
    meter: { name: 'iterations', used: position.iteration, max: policy.enabled ? policy.run.iterations : 0 },
    reason: 'loop_guard',
  }
  const terminal: TerminalFor = (hasFinalAnswer, isTruncated) =>
    terminalOf(limit, judgement.sessionId ?? '', hasFinalAnswer, isTruncated)
  const own = { ...guarding.own, 'x-governor-verdict': 'stop' }
  trip.ended('stop')
  const ending: Ending = {
    context,
    trip,
    judgement,
    dialect,
    own,
    ownAtEnd: { ...own, ...terminalHeaders(terminal(false)) },
    isStop: true,
    fallback,
    isJson: formatIn(judgement.request.list) !== undefined,
    terminal,
    rounds,
  }
  return gate.end(ending, lastForms(guarding, rounds))
}

/** The ways to ask for the last answer, best first: after all that was said, or as if the last response had not been. */
function lastForms(guarding: Guarding, rounds: readonly RefusedRound[]): Form[] {
  const { context, trip, judgement, call, bytes, said } = guarding
  const { request, policy, position } = judgement
  const meter = { name: 'iterations', used: position.iteration, max: policy.run.iterations } as const
  const notice = fill(policy.texts.stop, meter)
  const last = rounds.at(-1)
  const told = last && {
    ...last,
    results: [...last.results.slice(0, -1), `${last.results.at(-1) ?? ''}\n\n${notice}`],
  }
  const goingOn = told && request.goOn([...rounds.slice(0, -1), told])
  const form = (ban: 'choice_none' | 'no_tools', more: readonly Edit[]): Form => ({
    call: withEdits(call, bytes, [...more, ...request.banTools(ban)]),
    ban,
  })
  const choosing = request.conversation.offersTools && !isRefused(context, trip, judgement, 'tool_choice')
  const place = placeFor(context, trip, judgement, notice)
  return [
    ...(goingOn && choosing ? [form('choice_none', [...said, ...goingOn])] : []),
    ...(goingOn ? [form('no_tools', [...said, ...goingOn])] : []),
    form('no_tools', place?.edits ?? []),
  ]
}
