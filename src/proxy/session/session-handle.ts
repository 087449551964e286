/** The session of one counted request: what becomes of the request is recorded there. */
import type { LimitName, Meter } from '../../core/budget/meters.ts'
import type { ToolCall } from '../../core/conversation.ts'
import { type Judgement, judgeCalls, NOTHING_BLOCKED } from '../../core/guards.ts'
import { pendingCallsOf } from '../../core/loop/tool-call.ts'
import { askOperator, isAnswered } from '../../core/operator/operator.ts'
import type { IterationFacts } from '../../core/operator/session-record.ts'
import type { Request } from '../../core/request.ts'
import { NO_STOP_ATTEMPTS, reportEnds } from '../../core/session/run.ts'
import {
  type Changed,
  type FirstAnswer,
  NEW_SESSION,
  type RunState,
  type Session,
  type StopAttempts,
} from '../../core/session/session.ts'
import {
  type CountedRequest,
  noteAnswer,
  noteStopAttempt,
  noteTold,
  releaseIteration,
  responseBegan,
  type StopAttempt,
} from '../../core/session/transitions.ts'
import type { CallUsage } from '../../core/usage.ts'
import type { Recovery } from '../../overflow/meaning.ts'
import { idOf, type SessionKey, sessionKey } from '../../store/store.ts'
import { runEnded } from '../../telemetry/event.ts'
import type { Answered } from '../../usage/response-observer.ts'
import { countFault, isolated, unlessLost } from '../fault.ts'
import type { Services } from '../services.ts'
import {
  type FoundSession,
  idBegunBy,
  idsIn,
  keepFirstAnswer,
  linkResponses,
  linkResults,
  type PendingResults,
} from './find-session.ts'
import { presentable } from './identity.ts'
import type { TranscriptKeeper } from './keep-transcript.ts'

/** The metadata of a response besides its usage. */
type AnswerMetadata = Omit<Answered, 'usage'>

/** A counted request. */
interface Counted {
  readonly services: Services
  readonly request: Request
  readonly found: FoundSession
  /** Unset if the session has no id. */
  readonly key: SessionKey | undefined
  /** Identifies the request in the session. */
  readonly counted: CountedRequest
  /** The session after the request, if it has no id. */
  readonly begun: Session | undefined
  readonly runState: RunState
  /** Unset where transcripts are not kept. */
  readonly transcript: TranscriptKeeper | undefined
}

/** What is known of the response to a counted request so far. */
interface State extends Counted {
  /** The decision on the request, for operators to read. */
  decided: Pick<IterationFacts, 'verdict' | 'tier' | 'loop' | 'said'>
  /** The provider said that the request is too large. */
  overflow: Recovery | undefined
  /** The model was warned in this request. */
  isWarned: boolean
  /** Governor has decided on the calls of a response to this request. */
  wereCallsJudged: boolean
  /** Response ids that were linked to the session when responses began. */
  linked: readonly string[]
  /** Settles when the newest answer is recorded. */
  recorded: Promise<void> | undefined
}

/** A pure change of a session by one of its requests. */
type Transition<Args extends readonly unknown[]> = (session: Session, request: CountedRequest, ...args: Args) => Session

/** Changes the session and returns the result; `otherwise` if the session has no id or the store fails. */
function update<Result>(
  { services, key }: State,
  by: (session: Session) => Changed<Result>,
  otherwise: Result,
): Promise<Result> {
  if (key === undefined) return Promise.resolve(otherwise)
  return unlessLost(
    services.emit,
    services.store.update(key, (session = NEW_SESSION) => by(session)),
    otherwise,
  )
}

function change<Args extends readonly unknown[]>(state: State, by: Transition<Args>, ...args: Args): Promise<void> {
  const changed = (session: Session) => ({ session: by(session, state.counted, ...args), result: undefined })
  return update<void>(state, changed, undefined)
}

/** The session of one counted request. No promise rejects: a change that the store loses is a counted fault. */
export type SessionHandle = ReturnType<typeof handleOf>

/** Returns the handle of a counted request. */
export function handleOf(made: Counted) {
  const { services, found, key, counted, runState } = made
  const state: State = {
    ...made,
    decided: { verdict: 'allow', tier: undefined, loop: undefined },
    overflow: undefined,
    isWarned: false,
    wereCallsJudged: false,
    linked: [],
    recorded: undefined,
  }
  return {
    /** The session in events. */
    names: { session: found.name, apiId: key && idOf(key) },
    /** What is known so far. */
    state,
    /** Changes the session. */
    change: <Args extends readonly unknown[]>(by: Transition<Args>, ...args: Args) => change(state, by, ...args),
    /** Changes the session so that the run ends, and reports that. */
    async end<Args extends readonly unknown[]>(by: Transition<Args>, ...args: Args): Promise<void> {
      const now = services.now()
      const ended = await update(state, (session) => reportEnds(by(session, counted, ...args), now), [])
      for (const run of ended) services.emit(runEnded(run, key ? idOf(key) : ''))
    },
    /** The model got the notice of this request. `isWarning`: it warned of the end of the budget. */
    async noteTold(isWarning: boolean, said?: string): Promise<void> {
      state.decided = { ...state.decided, verdict: 'warn', said }
      if (isWarning) state.isWarned = true
      if (isWarning || runState.loop) await change(state, noteTold, isWarning)
    },
    /** The provider gave no answer: the next request gets the iteration. `status`: of its error; 0 for none. */
    async releaseIteration(status = 0): Promise<void> {
      const failedAs = state.overflow ? 'context_overflow' : 'no_response'
      await change(state, releaseIteration, iterationFacts(state, status), failedAs)
      if (key) services.quietRuns.watch(key)
    },
    /** Records an attempt to get the final answer that brought no answer to record; returns all of them. */
    noteStopAttempt: (attempt: StopAttempt): Promise<StopAttempts> =>
      update(state, (session) => noteStopAttempt(session, counted, attempt), NO_STOP_ATTEMPTS),
    question: questionOf(state),
    ...responseNotes(state),
  }
}

/** The question to an operator whether a run may go on. */
function questionOf(state: State) {
  const { services, key, counted } = state
  const { store, emit, now } = services
  return {
    /** Returns `undefined` if nobody is asked, as the session is not stored. */
    ask: (limit: Meter<LimitName>, until: number) =>
      update(state, (session) => askOperator(session, counted, limit, until), undefined),
    /** False where the store fails. */
    async isAnswered(): Promise<boolean> {
      const session = key && (await unlessLost(emit, store.get(key), undefined))
      return isAnswered(session, counted, now())
    },
    /** Calls `listener` whenever the session has changed, in any process; returns a function that ends it. */
    onChange: (listener: () => void) =>
      store.subscribe((keys) => {
        if (key !== undefined && keys.includes(key)) listener()
      }),
  }
}

/** What becomes of the responses to a counted request. */
function responseNotes(state: State) {
  const { services, request, found, key, counted, runState, transcript } = state
  const { store, emit, now } = services
  return {
    /**
     * Links the id that the head of a response states, as a client may continue from it before the response is over.
     * Resolves when all processes can find it.
     */
    async responseBegan(response: string): Promise<void> {
      const ids = idsIn(found, { id: response })
      state.linked = [...state.linked, ...ids]
      const begun = state.begun && responseBegan(state.begun, counted, ids)
      const links = unlessLost(emit, linkResponses(store, found, ids, begun), undefined)
      await change(state, responseBegan, ids)
      await links
    },
    /** Records what an answer used and by which ids it can be continued. */
    noteAnswer(usage: CallUsage, metadata: AnswerMetadata = {}): void {
      state.recorded = unlessLost(emit, recordAnswer(state, usage, metadata), undefined)
    },
    /** Keeps what the provider waits for when the client continues from a response. */
    async savePendingResults(response: string, pending: PendingResults): Promise<void> {
      await state.recorded
      await unlessLost(emit, linkResults(store, found, response, pending), undefined)
    },
    /** Returns which calls of a response are blocked; none if the store fails. */
    async judge(calls: readonly ToolCall[]): Promise<Judgement> {
      const { wereCallsJudged: isAgain } = state
      state.wereCallsJudged = true
      const judged = { request, runState, isAgain, now: now() }
      const by = (session: Session) => judgeCalls(session, counted, calls, judged)
      const judgement = await update(state, by, NOTHING_BLOCKED)
      for (const { guard, error } of judgement.faults) countFault(emit, error, guard)
      const block = judgement.blocked.find((one) => one !== undefined)
      if (block) state.decided = { ...state.decided, verdict: 'block', said: block.text }
      return judgement
    },
    /** Keeps what the model answered, where transcripts are kept. */
    noteText(text: string, metadata: AnswerMetadata): void {
      const [first] = key === undefined ? idsIn(found, metadata) : []
      const begun = first === undefined ? key : sessionKey(found.tenant, idBegunBy(first))
      transcript?.answered(text, metadata.callsNothing === true, begun)
    },
  }
}

async function recordAnswer(state: State, usage: CallUsage, metadata: AnswerMetadata): Promise<void> {
  const { services, request, found, key, counted, begun, runState } = state
  const { store, emit, now, quietRuns } = services
  const { id: response, item, calls = [], callsNothing } = metadata
  const ids = idsIn(found, metadata)
  const isObserved = calls.length > 0 && runState.thread.loopState !== undefined
  const answer = {
    iteration: iterationFacts(state, 200),
    usage,
    ids,
    requestBytes: request.facts.bytes ?? 0,
    callsNothing,
    calls: isObserved ? isolated(emit, 'loop_guard', () => pendingCallsOf(calls, request.loop)) : undefined,
  }
  if (key) {
    await change(state, noteAnswer, answer)
    if (callsNothing) quietRuns.watch(key)
    const unlinked = ids.filter((one) => !state.linked.includes(one))
    return linkResponses(store, found, unlinked)
  }
  // What an answer cost may come after the answer itself, which is kept already.
  if (!begun || (response === undefined && usage.input + usage.output === 0)) return
  // Only the second request shows whether the client continues by the response's id or sends everything again.
  const first: FirstAnswer = { askedAt: request.now, usage, endedAt: now() }
  await keepFirstAnswer(store, found.tenant, request.facts.prompt(), first)
  // Clients that refer to earlier items begin with the first item of the first response.
  const all = item === undefined || ids.length === 0 ? ids : [...ids, presentable(item)]
  await linkResponses(store, found, all, noteAnswer(begun, counted, answer))
}

/** Returns the outcome of a request whose answer is over. */
function iterationFacts({ request, services, decided, overflow }: State, status: number): IterationFacts {
  return { askedAt: request.now, endedAt: services.now(), status, overflow, ...decided }
}
