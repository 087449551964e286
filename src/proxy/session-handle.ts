/** One counted request in the store: where it stands in its session, and what becomes of it there. */
import { NO_CONTEXTS, type SessionContexts } from '../core/context-window.ts'
import type { ToolCall } from '../core/conversation.ts'
import { type Hash, nameOf } from '../core/hash.ts'
import type { LoopPolicy } from '../core/loop/escalation.ts'
import { type BlockDecision, decideBlocks, type LoopState } from '../core/loop/observe.ts'
import { countRequest } from '../core/session/count-request.ts'
import {
  type ErrorReply,
  type ErrorStreak,
  enterStorm,
  type StormPolicy,
  withError,
  withoutErrors,
  withoutProbe,
} from '../core/session/error-streak.ts'
import type { RequestFacts } from '../core/session/request-facts.ts'
import { NEW_SESSION, type RunState, type Session } from '../core/session/session.ts'
import { NO_STOP_ATTEMPTS, type StopAttempts } from '../core/session/stop-attempts.ts'
import {
  type AnswerFacts,
  adoptFirst,
  blockIn,
  type CountedRequest,
  changeErrors,
  dropBoundThinking,
  endRun,
  noteAcknowledged,
  noteAnswer,
  noteDelivery,
  noteInjected,
  noteStopAttempt,
  noteWarning,
  releaseIteration,
  responseBegan,
  resumeRun,
} from '../core/session/transitions.ts'
import type { FinalAnswer } from '../core/terminal.ts'
import type { CallUsage } from '../core/usage.ts'
import { type Link, type SessionKey, sessionKey } from '../store/store.ts'
import type { Emit, ProxyEvent } from '../telemetry/event.ts'
import type { Answered } from '../usage/observe.ts'
import { isolated } from './fault.ts'
import { presentable } from './identity.ts'
import type { Services } from './services.ts'
import { keepUnclaimed, takeUnclaimed } from './unclaimed-usage.ts'

/** A request that is to be counted. */
export interface SessionLookup {
  readonly tenant: string
  /** The session's id in the store; `undefined` where nothing names it yet. */
  readonly id: string | undefined
  /** The session's id as the client knows it. */
  readonly sessionId: string | undefined
  /** The id is made of how the conversation began. */
  readonly isDerived: boolean
  readonly thread: string
  /** What the session began with, where that is known and the session is not there yet. */
  readonly begun: Session | undefined
  readonly facts: RequestFacts
  /** The conversation, by its id, that the provider adds to. */
  readonly within: string | undefined
  readonly loop: LoopPolicy
  readonly storm: StormPolicy
  /** What is asked: errors in a row count for each upstream and model apart. */
  readonly target: { readonly upstream: string; readonly model: string }
  /** Takes the request in for the loop guard; faults in that go to `emit`. */
  readonly follow: ((loopState: LoopState, emit: Emit) => LoopState) | undefined
  /** What it wants besides plain text. */
  readonly demands: readonly Hash[]
  /** Takes in for the loop guard what a response called. */
  readonly note: ((loopState: LoopState, calls: readonly ToolCall[], emit: Emit) => LoopState) | undefined
}

/** What an answer says of itself besides what it took. */
type Told = Omit<Answered, 'usage'>

const NOTHING_BLOCKED: BlockDecision = { blocked: [], endsRun: false }

/** Where the first answer of a conversation is kept that has no name before its second request. */
function firstKey({ tenant, facts }: SessionLookup): SessionKey {
  return sessionKey(tenant, `${facts.system} ${facts.userMessageHashes[0] ?? ''}`)
}

/**
 * Changes a session. What happens in the change is told once, after it: a store may run it several times, and what comes
 * of the last time holds.
 */
async function updateSession<Result>(
  { store, emit }: Pick<Services, 'store' | 'emit'>,
  key: SessionKey,
  change: (
    session: Session | undefined,
    emit: Emit,
  ) => { readonly session: Session; readonly result: Result },
): Promise<Result> {
  const { result, events } = await store.update(key, (before) => {
    const events: ProxyEvent[] = []
    const { session, result } = change(before, (event) => events.push(event))
    return { session, result: { result, events } }
  })
  for (const event of events) emit(event)
  return result
}

/** Counts a request. A store that fails loses its memory of the session, and the transcript goes on telling. */
export async function openSession(services: Services, lookup: SessionLookup): Promise<SessionHandle> {
  const { emit } = services
  const { tenant, id, facts, thread } = lookup
  const request: CountedRequest = { fingerprint: facts.fingerprint, thread }
  const askedAt = services.now()
  // Without a name there is nothing to remember it by.
  const byTranscript = () => countInSession(lookup, undefined, askedAt, emit).runState
  if (id === undefined)
    return new SessionHandle(services, lookup, request, askedAt, undefined, byTranscript())
  const key = sessionKey(tenant, id)
  let runState: RunState
  try {
    const counted = await updateSession(services, key, (session, tell) => {
      const next = countInSession(lookup, session, askedAt, tell)
      return { session: next.session, result: next.runState }
    })
    runState = await withFirst(services, lookup, key, request, counted)
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    runState = byTranscript()
  }
  return new SessionHandle(services, lookup, request, askedAt, key, runState)
}

function countInSession(
  lookup: SessionLookup,
  session: Session | undefined,
  askedAt: number,
  emit: Emit,
): ReturnType<typeof countRequest> {
  const { facts, thread, isDerived, begun, follow, storm, demands } = lookup
  return countRequest(session ?? begun ?? NEW_SESSION, {
    facts,
    thread,
    now: askedAt,
    isDerived,
    follow: follow && ((loopState) => follow(loopState, emit)),
    checkErrors: (errors) => enterStorm(errors, targetOf(lookup), storm, askedAt),
    demands,
  })
}

/** Names upstream and model in a thread's errors. */
function targetOf({ target }: SessionLookup): string {
  return nameOf(target.upstream, target.model)
}

/** A session that has just been named by its first answer gets what that took, which was kept apart. */
async function withFirst(
  services: Services,
  lookup: SessionLookup,
  key: SessionKey,
  request: CountedRequest,
  runState: RunState,
): Promise<RunState> {
  if (!lookup.isDerived || !runState.isNew || runState.iteration !== 2) return runState
  const { store } = services
  const first = await takeUnclaimed(store, firstKey(lookup))
  if (!first) return runState
  return store.update(key, (session) => {
    const adopted = adoptFirst(session ?? NEW_SESSION, request, runState, first, services.now())
    return { session: adopted.session, result: adopted.runState }
  })
}

/** A counted request: where it stood, and what is to be remembered of what became of it. */
export class SessionHandle {
  readonly runState: RunState
  /** The session's id as the client knows it. */
  readonly sessionId: string | undefined
  readonly #services: Services
  readonly #lookup: SessionLookup
  readonly #request: CountedRequest
  /** When it was asked, in milliseconds since the epoch. */
  readonly #askedAt: number
  /** Unset where the session has no name. */
  readonly #key: SessionKey | undefined
  #isWarned = false
  /** The calls of a response to this request were judged. */
  #wasJudged = false
  /** What was linked as the heads of responses came. */
  #linked: readonly string[] = []
  /** Settles when the answer is remembered. */
  #settled: Promise<void> | undefined

  constructor(
    services: Services,
    lookup: SessionLookup,
    request: CountedRequest,
    askedAt: number,
    key: SessionKey | undefined,
    runState: RunState,
  ) {
    this.runState = runState
    this.#services = services
    this.sessionId = lookup.sessionId
    this.#lookup = lookup
    this.#request = request
    this.#askedAt = askedAt
    this.#key = key
  }

  /** The provider gave an answer, which took something and may be gone on from. A store that fails loses it. */
  noteAnswer(usage: CallUsage, told: Told = {}): void {
    this.#settled = this.#takeIn(usage, told).catch(() => this.#lose())
  }

  /** The head of a response names it: from here on a client may go on from it. A store that fails does not know it. */
  responseBegan(response: string): void {
    const ids = this.#idsIn({ id: response })
    this.#linked = [...this.#linked, ...ids]
    this.#linkHead(ids).catch(() => this.#lose())
  }

  async #linkHead(ids: readonly string[]): Promise<void> {
    const { id, sessionId } = this.#lookup
    if (id === undefined) {
      const { emit } = this.#services
      const { session } = countInSession(this.#lookup, undefined, this.#askedAt, emit)
      return this.#linkUnnamed(ids, responseBegan(session, this.#request, ids))
    }
    const linked = this.#link(ids, { id, session: sessionId ?? '' })
    await this.#change((session) => responseBegan(session, this.#request, ids))
    await linked
  }

  /** A session that has no name yet is known by its first response, and begins when a client goes on from that. */
  async #linkUnnamed(ids: readonly string[], session: Session, items: readonly string[] = []): Promise<void> {
    const [first] = ids
    if (first === undefined) return
    const name = nameOf('response', first)
    await this.#link([...ids, ...items], { id: name, session: name, begun: session })
  }

  /** Remembers what is to be sent along when the client goes on from a response. */
  async savePendingResults(
    response: string,
    debt: Pick<Link, 'pendingResults' | 'redirectTo'>,
  ): Promise<void> {
    await this.#settled
    const { store } = this.#services
    const { tenant, id, sessionId } = this.#lookup
    const name = presentable(response)
    const own = id === undefined ? undefined : { id, session: sessionId ?? '' }
    const known = (await store.linked(tenant, name)) ?? own
    if (known) await store.link(tenant, name, { ...known, ...debt })
  }

  /** Judges the calls of the response; a store that fails refuses none. */
  async decideBlocks(calls: readonly ToolCall[]): Promise<BlockDecision> {
    if (!this.#key) return NOTHING_BLOCKED
    const request = this.#request
    const { loop } = this.#lookup
    const isAgain = this.#wasJudged
    this.#wasJudged = true
    const now = this.#services.now()
    try {
      return await updateSession(this.#services, this.#key, (session, tell) => {
        const judged = blockIn(
          session ?? NEW_SESSION,
          request,
          (loopState) =>
            isolated(tell, 'loop_guard', () =>
              decideBlocks(loopState, calls, loop, request.fingerprint, isAgain, now),
            ) ?? { loopState, decision: NOTHING_BLOCKED },
        )
        return { session: judged.session, result: judged.decision }
      })
    } catch {
      this.#lose()
      return NOTHING_BLOCKED
    }
  }

  /** Something became known of the windows of the session's models. */
  async changeContexts(by: (contexts: SessionContexts) => SessionContexts): Promise<void> {
    await this.#change((session) => ({ ...session, contexts: by(session.contexts ?? NO_CONTEXTS) }))
  }

  /** The model was shown, or the client denied, what the client's history will not tell. */
  async noteInjected(): Promise<void> {
    if (!this.runState.noticeSent) await this.#change((session) => noteInjected(session, this.#request))
  }

  /** Reasoning in this conversation is bound to what Governor said. */
  async dropBoundThinking(): Promise<void> {
    await this.#change((session) => dropBoundThinking(session, this.#request))
  }

  /** The model was told that its budget is nearly used up. */
  async noteWarning(): Promise<void> {
    this.#isWarned = true
    await this.#change((session) => noteWarning(session, this.#request))
  }

  /** Does the session have a name of the client's own, so that the same prompt may begin another run of it? */
  hasName(): boolean {
    return this.#key !== undefined && !this.#lookup.isDerived
  }

  /** Was it, in this request? */
  wasWarned(): boolean {
    return this.#isWarned
  }

  /** The answer to a warning called nothing. */
  async noteAcknowledged(): Promise<void> {
    await this.#change((session) => noteAcknowledged(session, this.#request))
  }

  /** The provider gave no answer: the iteration is not used up. */
  async releaseIteration(): Promise<void> {
    await this.#change((session) => releaseIteration(session, this.#request))
  }

  /** The answer to it ended, with all of it at the client or not. As most are answered whole, the first one is taken to be. */
  async noteDelivery(isWhole: boolean): Promise<void> {
    if (isWhole === this.runState.isRetry)
      await this.#change((session) => noteDelivery(session, this.#request, isWhole))
  }

  /** The run was over, and its limit is no longer reached. */
  async resumeRun(): Promise<void> {
    await this.#change((session) => resumeRun(session, this.#request))
  }

  /** The provider did not answer, as it is overloaded or gone. */
  async noteError(error: ErrorReply): Promise<void> {
    const { storm } = this.#lookup
    if (!storm.enabled) return
    const now = this.#services.now()
    await this.#changeErrors((errors) => withError(errors, targetOf(this.#lookup), error, storm, now))
  }

  /** The provider answered after errors: `isSuccess` ends them, an error about the request only lets the next one try. */
  async noteReached(isSuccess: boolean): Promise<void> {
    const endRun = isSuccess ? withoutErrors : withoutProbe
    await this.#changeErrors((errors) => endRun(errors, targetOf(this.#lookup)))
  }

  /** The run was stopped, and what it got is not recorded; a store that fails remembers no try. */
  async noteStopAttempt(change: (tries: StopAttempts | undefined) => StopAttempts): Promise<StopAttempts> {
    if (!this.#key) return NO_STOP_ATTEMPTS
    try {
      return await this.#services.store.update(this.#key, (session) => {
        const tried = noteStopAttempt(session ?? NEW_SESSION, this.#request, change)
        return { session: tried.session, result: tried.tries }
      })
    } catch {
      this.#lose()
      return NO_STOP_ATTEMPTS
    }
  }

  /** The run is over with this answer. */
  async end(answer: FinalAnswer): Promise<void> {
    await this.#change((session) => endRun(session, this.#request, answer))
  }

  async #changeErrors(change: (errors: readonly ErrorStreak[]) => readonly ErrorStreak[]): Promise<void> {
    try {
      await this.#change((session) => changeErrors(session, this.#request, change))
    } catch {
      this.#lose()
    }
  }

  #lose(): void {
    this.#services.emit({ kind: 'failed_open', reason: 'store' })
  }

  async #change(by: (session: Session, emit: Emit) => Session): Promise<void> {
    if (!this.#key) return
    await updateSession(this.#services, this.#key, (session, tell) => ({
      session: by(session ?? NEW_SESSION, tell),
      result: undefined,
    }))
  }

  async #takeIn(usage: CallUsage, told: Told): Promise<void> {
    const { id, sessionId } = this.#lookup
    if (id === undefined) return this.#takeFirst(usage, told)
    const ids = this.#idsIn(told)
    await this.#change((session, tell) =>
      noteAnswer(session, this.#request, this.#factsOf(usage, told, ids, tell)),
    )
    const unlinked = ids.filter((one) => !this.#linked.includes(one))
    await this.#link(unlinked, { id, session: sessionId ?? '' })
  }

  /** Ids by which the client may go on from an answer. */
  #idsIn({ id: response, conversation }: Told): readonly string[] {
    const place = conversation ?? this.#lookup.within
    return [response, place].flatMap((id) => (id === undefined ? [] : [presentable(id)]))
  }

  #factsOf(usage: CallUsage, { calls, callsNothing }: Told, ids: readonly string[], emit: Emit): AnswerFacts {
    const { note, facts } = this.#lookup
    return {
      usage,
      ids,
      requestBytes: facts.bytes ?? 0,
      callsNothing,
      follow: note && calls && calls.length > 0 ? (loopState) => note(loopState, calls, emit) : undefined,
    }
  }

  /** Puts the answer away of a session that has no name yet. */
  async #takeFirst(usage: CallUsage, told: Told): Promise<void> {
    const { id: response, item } = told
    // What an answer cost may come after it; one that nobody owns yet has been put away.
    if (response === undefined && usage.input + usage.output === 0) return
    const { emit, store } = this.#services
    // Whether the client goes on by its id or sends it again, the second request shows.
    await keepUnclaimed(store, firstKey(this.#lookup), { askedAt: this.#askedAt, usage })
    const ids = this.#idsIn(told)
    const { session } = countInSession(this.#lookup, undefined, this.#askedAt, emit)
    const after = noteAnswer(session, this.#request, this.#factsOf(usage, told, ids, emit))
    // Clients that refer to what was said before begin with the first item of the first response.
    await this.#linkUnnamed(ids, after, item === undefined ? [] : [presentable(item)])
  }

  async #link(names: readonly string[], link: Link): Promise<void> {
    for (const name of names) await this.#services.store.link(this.#lookup.tenant, name, link)
  }
}
