/** Observes the responses in which clients fetch answers that were made in the background, and counts each once. */

import { settingsFor } from '../../core/budget/policy.ts'
import { windowAfterAcceptance } from '../../core/context-window.ts'
import { isRealAnswer } from '../../core/conversation/real-answer.ts'
import { distinctIds } from '../../core/conversation/transcript.ts'
import { NO_COUNTS } from '../../core/counters.ts'
import type { Request } from '../../core/request.ts'
import { countsByTool, type PromptTokens } from '../../core/session/result-tokens.ts'
import { NEW_SESSION, type RunState, retryOf, type Session } from '../../core/session/session.ts'
import {
  type Delivered,
  noteAcknowledged,
  noteAnswer,
  noteRelayed,
  releaseIteration,
  threadOf,
} from '../../core/session/transitions.ts'
import { type CallUsage, estimateTokens } from '../../core/usage.ts'
import type { Dialect, ResponseMetadata } from '../../dialect/dialect.ts'
import { type Head, isSuccess } from '../../http/upstream.ts'
import type { ResponseObserver } from '../../http/upstream-response.ts'
import { promptTokens } from '../../usage/catalogue.ts'
import { type Answered, observeResponse } from '../../usage/response-observer.ts'
import { type Exchange, emitFor, type FetchedAnswer } from '../begin-exchange.ts'
import { noteFault, unlessLost } from '../fault.ts'
import { noteGap } from '../note-gap.ts'
import { policyOf, subjectOf } from '../policy-of.ts'
import { idsIn, linkCalls, namesOf } from '../session/find-session.ts'
import { keepFetched } from '../session/keep-transcript.ts'
import { countLater } from './charge.ts'
import { countBill, emitAnswered } from './count-bill.ts'
import { answerToCome, takeLater } from './later-answer.ts'
import { callsToCome } from './observe-usage.ts'

/** Returns an observer for a response that may hold an answer; `undefined` if it is an error. */
export function observeFetched(x: Exchange, fetched: FetchedAnswer, head: Head): ResponseObserver | undefined {
  const { services } = x
  if (!isSuccess(head)) return undefined
  /** It is counted here; how many of its calls are recorded. */
  const state = { isTaken: false, calls: 0 }
  return observeResponse({
    dialect: fetched.dialect,
    head,
    requestBytes: fetched.later.prompt.bytes,
    withText: services.keepsTranscripts,
    isKept: true,
    mayBePending: true,
    async relayed(ids, isCut, kept) {
      if (kept.isPending) return
      // Another client that has the end too must not go on before the calls are known.
      if (ids.length > 0) await noteCalls(x, fetched, ids, isCut, kept, state.isTaken)
      state.calls = kept.calls?.length ?? 0
      state.isTaken ||= await takeLater(services, fetched.link)
    },
    completed(answer) {
      if (!state.isTaken || answer.isPending) return
      const { calls, ...rest } = answer
      noteFetched(x, fetched, calls?.length === state.calls ? rest : answer)
    },
    fault: (error) => noteFault(services.emit, error),
  })
}

/** Returns the calls of an answer whose results will come without them; unset if the loop guard does not follow it. */
function callsOf(x: Exchange, { later }: FetchedAnswer, session: Session, { calls }: ResponseMetadata) {
  const policy = settingsFor(x.services.policies.loop, subjectOf(x, later.model))
  return callsToCome(x.services.emit, policy, threadOf(session, later.counted), calls)
}

/** Remembers the calls of an answer, unless another client has fetched it before. `isAgain`: there are further ones. */
async function noteCalls(
  x: Exchange,
  fetched: FetchedAnswer,
  ids: readonly string[],
  isCut: boolean,
  kept: ResponseMetadata,
  isAgain: boolean,
): Promise<void> {
  const { store, emit } = x.services
  const { later, found, key, begun, response } = fetched
  const { counted, isOnly } = later
  const callIds = distinctIds(ids)
  const answer: Delivered = { ...later.relayed, callIds, calls: ids.length, isCut: isCut || undefined }
  const keptIds = idsIn(found, { ...kept, id: response })
  const noted = store.update(key, (session = begun ?? NEW_SESSION) => {
    const relayed = threadOf(session, counted)?.relayed ?? []
    const isKnown = !isAgain && relayed.some(({ operation }) => operation === answer.operation)
    if (isKnown) return { session, result: undefined }
    const to = { ids: keptIds, calls: callsOf(x, fetched, session, kept), isOnly }
    return { session: noteRelayed(session, counted, answer, to), result: undefined }
  })
  const linked = found.isNamed ? undefined : linkCalls(store, found, answer)
  await Promise.all([unlessLost(emit, noted, undefined), linked && unlessLost(emit, linked, undefined)])
}

/** Counts an answer in its session, and reports it. */
function noteFetched(x: Exchange, fetched: FetchedAnswer, answer: Answered): void {
  const { services } = x
  const { store, emit, windows, quietRuns, now } = services
  const { later, found, key } = fetched
  const { model, counted, prompt } = later
  const policy = policyOf(x, model, {})
  const { input, lastInput: tokens = input } = answer.usage
  if (!answer.usage.estimated) windows.change({ upstream: x.route.upstream, model }, windowAfterAcceptance, tokens)
  const known = {}
  // Its request was charged when it came, and another one may be charged now.
  const { charge: _, ...own } = x
  countBill(own, model, policy, answer, (usage, isLater) => {
    countLater(x, { model, tenant: found.tenant, policy }, prompt.bytes, usage)
    const change = store.update(key, (session = fetched.begun ?? NEW_SESSION) => ({
      session: sessionAfter(x, fetched, session, answer, usage, isLater, known),
      result: session,
    }))
    const reported = change.then((before) => {
      const { number = 0, depth, run } = threadOf(before, counted) ?? {}
      const iteration = (run && retryOf(run, counted)?.iteration) ?? 0
      const { isNewRun, newCalls } = later
      const place = {
        thread: number,
        depth,
        isNewRun,
        iteration,
        counts: run?.counts ?? NO_COUNTS,
        newCalls,
        ...(run && { run: run.id }),
      }
      if (!isLater || usage.cost !== undefined) emitAnswered(x, { model, ...namesOf(found), ...place, usage })
      if (isLater) return
      if (answer.callsNothing && run?.isWarned) emitFor(x, { kind: 'warning_answered', reaction: 'acknowledged' })
      if (answer.callsNothing) quietRuns.watch(key)
      const { text = '', callsNothing } = answer
      const said = {
        thread: number,
        text,
        at: now(),
        request: counted.fingerprint,
        callsNothing: callsNothing || undefined,
      }
      if (isRealAnswer(text)) keepFetched(services, key, said)
    })
    void unlessLost(emit, reported, undefined)
  })
}

/** Returns the session after an answer. `isLater`: only what became known of its cost; `of`: what was known before. */
function sessionAfter(
  x: Exchange,
  fetched: FetchedAnswer,
  session: Session,
  answer: Answered,
  known: CallUsage,
  isLater: boolean,
  of: { prompt?: PromptTokens },
): Session {
  const { services, route } = x
  const { later, found, response } = fetched
  const { counted, model, isOnly, prompt } = later
  const { context } = threadOf(session, counted) ?? {}
  const held =
    (isLater && of.prompt) || promptTokens(prompt, context, answer.usage, services.catalogue, model, route.upstream)
  of.prompt = held
  const { added } = held
  const usage = isLater || added === undefined ? known : { ...known, added }
  const iteration = { ...later.facts, endedAt: services.now() }
  const { callsNothing, isCut } = answer
  const released = isCut && !isLater ? releaseIteration(session, counted, iteration, 'no_response') : session
  const after = noteAnswer(released, counted, {
    iteration,
    usage,
    tools: countsByTool(held, usage),
    results: isOnly ? undefined : held.results,
    ids: isLater ? [] : idsIn(found, { ...answer, id: response }),
    requestBytes: prompt.bytes,
    messages: usage.added === undefined ? undefined : prompt.messages,
    callsNothing: isLater ? undefined : callsNothing,
    isCut,
    calls: isLater ? undefined : callsOf(x, fetched, session, answer),
  })
  const isWarned = !isLater && callsNothing && threadOf(session, counted)?.run.isWarned
  return isWarned ? noteAcknowledged(after, counted) : after
}

/** A request continues from an answer that nobody has fetched here: what it used is estimated. */
export async function noteUnfetched(x: Exchange, fetched: FetchedAnswer): Promise<void> {
  const { services } = x
  if (!(await takeLater(services, fetched.link))) return
  void noteGap(services, 'background', fetched.found)
  const usage = { input: estimateTokens(fetched.later.prompt.bytes), output: 0, estimated: true }
  noteFetched(x, fetched, { usage, isCut: false })
}

/** Does so with the newest answer of a thread: a client sends all that was said, and names no response. */
export function noteUnfetchedIn(
  x: Exchange,
  tenant: string,
  { facts }: Request,
  { thread, newCalls, isRetry }: RunState,
  dialect: Dialect,
): void {
  const newest = thread.responses?.at(-1)
  if (newest === undefined || facts.previous !== undefined || newCalls === 0 || isRetry) return
  answerToCome(x.services, tenant, newest, dialect)
    .then((unfetched) => unfetched && noteUnfetched(x, unfetched))
    .catch((error) => noteFault(x.services.emit, error))
}
