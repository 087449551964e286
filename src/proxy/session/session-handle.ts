/** Counts a request in its session, and records the outcome there. */
import type { LimitName, Meter } from '../../core/budget/meters.ts'
import { NO_CONTEXTS, type SessionContexts } from '../../core/context-window.ts'
import type { ToolCall } from '../../core/conversation.ts'
import { type Hash, nameOf } from '../../core/hash.ts'
import { blockText } from '../../core/loop/notice.ts'
import { type BlockDecision, decideBlocks, type LoopState } from '../../core/loop/observe.ts'
import type { LoopMode, LoopPolicy } from '../../core/loop/policy.ts'
import { type AskedOperator, askOperator, isAnswered } from '../../core/operator/question.ts'
import type { Asked } from '../../core/operator/record-request.ts'
import type { IterationFacts } from '../../core/operator/session-record.ts'
import { countRequest, type TranscriptReading } from '../../core/session/count-request.ts'
import {
  type ErrorReply,
  type ErrorStreak,
  enterStorm,
  type StormPolicy,
  withError,
  withoutErrors,
  withoutProbe,
} from '../../core/session/error-streak.ts'
import type { RequestFacts } from '../../core/session/request-facts.ts'
import { reportEnds } from '../../core/session/run-end.ts'
import { type Changed, NEW_SESSION, type RunState, type Session } from '../../core/session/session.ts'
import { NO_STOP_ATTEMPTS, type StopAttempts } from '../../core/session/stop-attempts.ts'
import {
  type AnswerFacts,
  adoptFirst,
  blockIn,
  type CountedRequest,
  changeErrors,
  type Delivery,
  dropBoundThinking,
  endRun,
  noteAcknowledged,
  noteAnswer,
  noteDelivery,
  noteInjected,
  noteOwnEnd,
  noteStopAttempt,
  noteTold,
  releaseIteration,
  responseBegan,
  resumeRun,
} from '../../core/session/transitions.ts'
import type { FinalAnswer, Terminal } from '../../core/terminal.ts'
import type { Said } from '../../core/transcript/kept-transcript.ts'
import type { CallUsage } from '../../core/usage.ts'
import type { Recovery } from '../../overflow/overflow.ts'
import { idOf } from '../../store/session-id.ts'
import { type Link, type SessionKey, sessionKey } from '../../store/store.ts'
import { type Emit, type ProxyEvent, runEnded } from '../../telemetry/event.ts'
import type { Answered } from '../../usage/observe.ts'
import { isolated } from '../fault.ts'
import type { Services } from '../services.ts'
import type { DerivedSession } from './derived-session.ts'
import { presentable } from './identity.ts'
import { keepTranscript, type TranscriptKeeper } from './keep-transcript.ts'
import { keepUnclaimed, takeUnclaimed } from './unclaimed-usage.ts'

/** Says in which session a request is counted, and how. */
export interface SessionLookup {
  readonly tenant: string
  /** The session's id in the store; `undefined` if nothing identifies the session yet. */
  readonly id: string | undefined
  /** The session's id as the client knows it. */
  readonly sessionId: string | undefined
  /** The session as it is derived from how the conversation began; unset where the client or a response names it. */
  readonly derived: DerivedSession | undefined
  readonly thread: string
  /** The first state of a session that the store does not contain yet; unset if that is not known. */
  readonly begun: Session | undefined
  readonly facts: RequestFacts
  /** The id of the conversation that the provider adds the response to. */
  readonly conversationId: string | undefined
  readonly loop: LoopPolicy
  readonly storm: StormPolicy
  /** Errors in a row are counted for each upstream and model. */
  readonly target: { readonly upstream: string; readonly model: string }
  /** The facts about it that operators see in the session. */
  readonly asked: Asked
  /**
   * Observes the request's calls for the loop guard; faults in that go to `emit`. `mode`: as an operator has set it.
   */
  readonly observeRequestCalls:
    | ((
        loopState: LoopState,
        emit: Emit,
        mode: LoopMode | undefined,
        reading: TranscriptReading,
      ) => LoopState)
    | undefined
  /** What it demands besides plain text. */
  readonly demands: readonly Hash[]
  /** What it shows of the conversation, to be kept; unset where transcripts are not kept. */
  readonly said: readonly Said[] | undefined
  /** Observes the calls of the response for the loop guard. */
  readonly observeResponseCalls:
    | ((loopState: LoopState, calls: readonly ToolCall[], emit: Emit) => LoopState)
    | undefined
}

/** The metadata of a response besides its usage. */
type AnswerMetadata = Omit<Answered, 'usage'>

/** A counted request, and what is known of its response so far. */
interface Counted {
  readonly services: Services
  readonly lookup: SessionLookup
  readonly request: CountedRequest
  /** When the request was read, in milliseconds since the epoch. */
  readonly askedAt: number
  /** The name of the operation that counts it. */
  readonly operation: string
  /** Unset if the session has no id. */
  readonly key: SessionKey | undefined
  readonly runState: RunState
  /** Unset where transcripts are not kept. */
  readonly transcript: TranscriptKeeper | undefined
  isWarned: boolean
  /** Governor has decided on the calls of a response to this request. */
  wereCallsJudged: boolean
  /** Response ids that were linked to the session when responses began. */
  linked: readonly string[]
  /** Settles when the newest answer is recorded. */
  recorded: Promise<void> | undefined
  /** The decision on it, for operators to read. */
  decided: Decided
  /** The provider said that it is too large. */
  overflow: Recovery | undefined
}

/** When and by which operation a request is counted. */
type Counting = Pick<Counted, 'askedAt' | 'operation'>

type Decided = Pick<IterationFacts, 'verdict' | 'tier' | 'loop' | 'said'>

const ALLOWED: Decided = { verdict: 'allow', tier: undefined, loop: undefined }

type Change = (session: Session, request: CountedRequest, emit: Emit) => Session

const NOTHING_BLOCKED: BlockDecision = { blocked: [], endsRun: false }

async function addError(counted: Counted, error: ErrorReply): Promise<void> {
  const { storm } = counted.lookup
  const now = counted.services.now()
  if (storm.enabled)
    await changeStreaks(counted, (errors, target) => withError(errors, target, error, storm, now))
}

/** The notes about a counted request that change its run. */
function runNotes(counted: Counted) {
  const { runState } = counted
  const change = (by: Change) => unlessLost(counted, changeSession(counted, by), undefined)
  return {
    /** Governor injected or removed content that the client's history does not contain. */
    noteInjected: async () => (runState.noticeSent ? undefined : change(noteInjected)),
    dropBoundThinking: () => change(dropBoundThinking),
    /** The model got the notice of this request. `isWarning`: it warned of the end of the budget. */
    noteTold: (isWarning: boolean, said?: string) => toldIn(counted, isWarning, said),
    noteAcknowledged: () => change(noteAcknowledged),
    /** `status`: the status of the provider's answer; 0 if there was none. */
    releaseIteration: (status = 0) => unlessLost(counted, releaseCounted(counted, status), undefined),
    /** The response is over. The count assumed the usual outcome: a first request is answered, and a retry fails. */
    noteDelivery: (delivery: Delivery) =>
      delivery === (runState.isRetry ? 'failed' : 'whole')
        ? undefined
        : change((session, request) => noteDelivery(session, request, delivery, runState.isRetry)),
    resumeRun: () => change(resumeRun),
    /** The provider is overloaded or gone. */
    noteError: (error: ErrorReply) => addError(counted, error),
    /** The provider answered after errors: a success ends them, an error about the request lets the next request try. */
    noteReached: (isSuccess: boolean) => changeStreaks(counted, isSuccess ? withoutErrors : withoutProbe),
    /** Records an attempt to get the final answer that brought no answer to record. Returns no attempts if the store fails. */
    noteStopAttempt: (by: (tries: StopAttempts | undefined) => StopAttempts) => stopAttempt(counted, by),
    /** Returns the question to an operator whether the run may go on. */
    question: () => questionOf(counted),
    /** Ends the run with this answer. */
    end: (answer: FinalAnswer) => endWith(counted, (session, request) => endRun(session, request, answer)),
    /** The client got the end of its run, and the answer is not recorded. */
    noteOwnEnd: (terminal: Terminal) =>
      endWith(counted, (session, request) => noteOwnEnd(session, request, terminal)),
  }
}

/** The session of one counted request. None of its promises rejects: a change that the store loses is counted as a fault. */
export type SessionHandle = ReturnType<typeof handleOf>

function handleOf(counted: Counted) {
  const { lookup, runState } = counted
  const change = (by: Change) => unlessLost(counted, changeSession(counted, by), undefined)
  return {
    runState,
    /** The session's id as the client knows it. */
    sessionId: lookup.sessionId,
    /** The session in events. */
    names: { session: lookup.sessionId, apiId: counted.key && idOf(counted.key) },
    /** The model was warned in this request. */
    wasWarned: () => counted.isWarned,
    /** Keeps the decision until the answer is recorded. */
    noteDecision(decided: Decided): void {
      counted.decided = decided
    },
    /** The provider said that the request is too large. */
    noteOverflow(recovery: Recovery): void {
      counted.overflow = recovery
    },
    /** Records what an answer used and by which ids it can be continued. */
    noteAnswer(usage: CallUsage, metadata: AnswerMetadata = {}): void {
      counted.recorded = unlessLost(counted, recordAnswer(counted, usage, metadata), undefined)
    },
    /** Keeps what the model answered, where transcripts are kept. */
    noteText: (text: string, metadata: AnswerMetadata) => noteText(counted, text, metadata),
    /** Keeps the text with which the run ended for its client, where transcripts are kept. */
    noteFinalText: (text: string, terminal: Terminal) => counted.transcript?.ended(text, terminal),
    /**
     * Links the id that the head of a response states, as a client may continue from it before the response is over. Resolves
     * when all processes can find it.
     */
    responseBegan: (response: string) => linkResponse(counted, response),
    savePendingResults: (response: string, pending: PendingResults) =>
      unlessLost(counted, savePendingResults(counted, response, pending), undefined),
    /** Returns which calls of the response are blocked; none if the store fails. */
    decideBlocks: (calls: readonly ToolCall[]) => blocksIn(counted, calls),
    /** Changes the known context windows of the session's models. */
    changeContexts: (by: (contexts: SessionContexts) => SessionContexts) =>
      change((session) => ({ ...session, contexts: by(session.contexts ?? NO_CONTEXTS) })),
    ...runNotes(counted),
  }
}

async function toldIn(counted: Counted, isWarning: boolean, said: string | undefined): Promise<void> {
  counted.decided = { ...counted.decided, verdict: 'warn', said }
  if (isWarning) counted.isWarned = true
  if (!isWarning && !counted.runState.loop) return
  const change: Change = (session, request) => noteTold(session, request, isWarning)
  await unlessLost(counted, changeSession(counted, change), undefined)
}

/** The question to an operator about a run that has reached a limit. */
function questionOf(counted: Counted) {
  const { services, key } = counted
  return {
    /** Returns `undefined` if nobody is asked, as the session is not stored. */
    ask: (limit: Meter<LimitName>, until: number) => ask(counted, limit, until),
    /** False where the store fails. */
    isAnswered: () => unlessLost(counted, isQuestionAnswered(counted), false),
    /** Calls `listener` whenever the session has changed, in any process; returns a function that ends it. */
    onChange: (listener: () => void) =>
      services.onSessionChanges((keys) => {
        if (key !== undefined && keys.includes(key)) listener()
      }),
  }
}

/** Counts a request. If the store fails, the request is counted by its transcript alone. */
export async function openSession(services: Services, lookup: SessionLookup): Promise<SessionHandle> {
  const { tenant, id } = lookup
  const askedAt = services.now()
  const operation = services.newId()
  const key = id === undefined ? undefined : sessionKey(tenant, id)
  const request: CountedRequest = { fingerprint: lookup.facts.fingerprint, thread: lookup.thread }
  const runState = await countIn(services, lookup, key, request, { askedAt, operation })
  return handleOf({
    services,
    lookup,
    request,
    askedAt,
    operation,
    key,
    runState,
    transcript: transcriptFor(services, lookup, key, runState),
    isWarned: false,
    wereCallsJudged: false,
    linked: [],
    recorded: undefined,
    decided: ALLOWED,
    overflow: undefined,
  })
}

function transcriptFor(
  services: Services,
  { said, facts }: SessionLookup,
  key: SessionKey | undefined,
  runState: RunState,
): TranscriptKeeper | undefined {
  if (!said) return undefined
  const { fingerprint, previous, endsInUserMessage } = facts
  return keepTranscript(services, {
    key,
    fingerprint,
    runState,
    said,
    isContinued: previous !== undefined,
    endsInUserMessage,
  })
}

function noteText(counted: Counted, text: string, metadata: AnswerMetadata): void {
  const { transcript, lookup, key } = counted
  const [first] = key === undefined ? idsIn(counted, metadata) : []
  const begun = first === undefined ? key : sessionKey(lookup.tenant, nameOfUnnamed(first))
  transcript?.answered(text, metadata.callsNothing === true, begun)
}

/** Returns the name of a session that begins in the store when a client continues from this response. */
function nameOfUnnamed(response: string): string {
  return nameOf('response', response)
}

async function countIn(
  services: Services,
  lookup: SessionLookup,
  key: SessionKey | undefined,
  request: CountedRequest,
  counting: Counting,
): Promise<RunState> {
  const { emit } = services
  if (key === undefined) return countOnce(lookup, undefined, counting, emit).result
  try {
    const runState = await updateSession(services, key, (session, tell) =>
      countOnce(lookup, session, counting, tell),
    )
    if (runState.ended) emit(runEnded(runState.ended))
    const { derived } = lookup
    const mayClaim = derived && runState.isNew && runState.iteration === 2
    return mayClaim ? await withFirstAnswer(services, lookup, key, request, runState, derived) : runState
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    return countOnce(lookup, undefined, counting, emit).result
  }
}

/** Counts a request in a session; if `session` is undefined, in the session that it begins. */
function countOnce(
  lookup: SessionLookup,
  session: Session | undefined,
  { askedAt, operation }: Counting,
  emit: Emit,
): Changed<RunState> {
  const { facts, thread, derived, begun, observeRequestCalls: follow, storm, demands, asked } = lookup
  return countRequest(session ?? begun ?? NEW_SESSION, {
    facts,
    thread,
    now: askedAt,
    operation,
    isDerived: derived !== undefined,
    follow: follow && ((loopState, mode, reading) => follow(loopState, emit, mode, reading)),
    checkErrors: (errors) => enterStorm(errors, targetOf(lookup), storm, askedAt),
    demands,
    asked,
  })
}

/** Returns the session that a request without a session id begins. */
function beginSession(counted: Counted): Session {
  return countOnce(counted.lookup, undefined, counted, counted.services.emit).session
}

/** Returns the key of upstream and model in a thread's errors. */
function targetOf({ target }: SessionLookup): string {
  return nameOf(target.upstream, target.model)
}

/** Adds the usage of the first answer to a session that got its id with its second request. */
async function withFirstAnswer(
  services: Services,
  lookup: SessionLookup,
  key: SessionKey,
  request: CountedRequest,
  runState: RunState,
  { prompt }: DerivedSession,
): Promise<RunState> {
  const first = await takeUnclaimed(services.store, sessionKey(lookup.tenant, prompt))
  if (!first) return runState
  return services.store.update(key, (session = NEW_SESSION) =>
    adoptFirst(session, request, runState, first, services.now(), lookup.asked.tools),
  )
}

/**
 * Changes a session. The events of the change are emitted once, after it: a store may run the change several times, and only
 * the last run counts.
 */
async function updateSession<Result>(
  { store, emit }: Pick<Services, 'store' | 'emit'>,
  key: SessionKey,
  change: (session: Session | undefined, emit: Emit) => Changed<Result>,
): Promise<Result> {
  const { result, events } = await store.update(key, (before) => {
    const events: ProxyEvent[] = []
    const { session, result } = change(before, (event) => events.push(event))
    return { session, result: { result, events } }
  })
  for (const event of events) emit(event)
  return result
}

/** Changes the session of a counted request; a session without an id is not stored. */
function changeSession({ services, key, request }: Counted, by: Change): Promise<void> {
  if (!key) return Promise.resolve()
  return updateSession(services, key, (session, emit) => ({
    session: by(session ?? NEW_SESSION, request, emit),
    result: undefined,
  }))
}

/** Ends the run of a counted request, and reports that. Never rejects. */
function endWith(counted: Counted, by: Change): Promise<void> {
  const { services, key, request } = counted
  if (!key) return Promise.resolve()
  const change = (session: Session = NEW_SESSION, emit: Emit) => {
    const { session: after, result } = reportEnds(by(session, request, emit), services.now())
    for (const ended of result) emit(runEnded(ended))
    return { session: after, result: undefined }
  }
  return unlessLost(counted, updateSession(services, key, change), undefined)
}

async function releaseCounted(counted: Counted, status: number): Promise<void> {
  const facts = iterationFacts(counted, status)
  const failedAs = counted.overflow ? 'context_overflow' : 'no_response'
  await changeSession(counted, (session, request) => releaseIteration(session, request, facts, failedAs))
  watchEnd(counted)
}

/** The run ends here if nothing comes any more. */
function watchEnd({ services, key }: Counted): void {
  if (key) services.quietRuns.watch(key)
}

/** Waits for the store; if it fails, reports that and returns `otherwise`. */
function unlessLost<Result>(
  { services }: Counted,
  stored: Promise<Result>,
  otherwise: Result,
): Promise<Result> {
  return stored.catch(() => {
    services.emit({ kind: 'failed_open', reason: 'store' })
    return otherwise
  })
}

function changeStreaks(
  counted: Counted,
  by: (errors: readonly ErrorStreak[], target: string) => readonly ErrorStreak[],
): Promise<void> {
  const target = targetOf(counted.lookup)
  const change: Change = (session, request) => changeErrors(session, request, (errors) => by(errors, target))
  return unlessLost(counted, changeSession(counted, change), undefined)
}

async function stopAttempt(
  counted: Counted,
  by: (tries: StopAttempts | undefined) => StopAttempts,
): Promise<StopAttempts> {
  const { services, key, request } = counted
  if (!key) return NO_STOP_ATTEMPTS
  const change = (session = NEW_SESSION) => noteStopAttempt(session, request, by)
  return unlessLost(counted, updateSession(services, key, change), NO_STOP_ATTEMPTS)
}

async function ask(
  counted: Counted,
  limit: Meter<LimitName>,
  until: number,
): Promise<AskedOperator | undefined> {
  const { services, key, request } = counted
  if (!key) return undefined
  const change = (session = NEW_SESSION) => askOperator(session, request, limit, until)
  return unlessLost(counted, updateSession(services, key, change), undefined)
}

async function isQuestionAnswered({ services, key, request }: Counted): Promise<boolean> {
  return key !== undefined && isAnswered(await services.store.get(key), request, services.now())
}

async function blocksIn(counted: Counted, calls: readonly ToolCall[]): Promise<BlockDecision> {
  const { services, key, request, lookup, runState } = counted
  if (!key) return NOTHING_BLOCKED
  const mode = runState.loopMode ?? lookup.loop.mode
  const loop = mode === lookup.loop.mode ? lookup.loop : { ...lookup.loop, mode }
  const isAgain = counted.wereCallsJudged
  counted.wereCallsJudged = true
  const now = services.now()
  const change = (session: Session = NEW_SESSION, emit: Emit) =>
    blockIn(
      session,
      request,
      (loopState) =>
        isolated(emit, 'loop_guard', () =>
          decideBlocks(loopState, calls, loop, request.fingerprint, isAgain, now),
        ) ?? { loopState, decision: NOTHING_BLOCKED },
    )
  const decision = await unlessLost(counted, updateSession(services, key, change), NOTHING_BLOCKED)
  const block = decision.blocked.find((one) => one !== undefined)
  if (block)
    counted.decided = { ...counted.decided, verdict: 'block', said: blockText(block.tool, block.count) }
  return decision
}

function linkResponse(counted: Counted, response: string): Promise<void> {
  const ids = idsIn(counted, { id: response })
  counted.linked = [...counted.linked, ...ids]
  return unlessLost(counted, linkHead(counted, ids), undefined)
}

async function linkHead(counted: Counted, ids: readonly string[]): Promise<void> {
  const { lookup, request } = counted
  const { id, sessionId } = lookup
  if (id === undefined) {
    const session = beginSession(counted)
    return linkUnnamed(counted, ids, responseBegan(session, request, ids))
  }
  const linked = link(counted, ids, { id, session: sessionId ?? '' })
  await changeSession(counted, (session) => responseBegan(session, request, ids))
  await linked
}

/** Links a session without an id to its first response; the session is stored when a client continues from that response. */
async function linkUnnamed(
  counted: Counted,
  ids: readonly string[],
  session: Session,
  items: readonly string[] = [],
): Promise<void> {
  const [first] = ids
  if (first === undefined) return
  const name = nameOfUnnamed(first)
  await link(counted, [...ids, ...items], { id: name, session: name, begun: session })
}

async function link({ services, lookup }: Counted, responses: readonly string[], to: Link): Promise<void> {
  await Promise.all(responses.map((response) => services.store.link(lookup.tenant, response, to)))
}

/** What Governor adds when the client continues from a response. */
type PendingResults = Pick<Link, 'pendingResults' | 'redirectTo'>

async function savePendingResults(
  { services, lookup, recorded }: Counted,
  response: string,
  pending: PendingResults,
): Promise<void> {
  await recorded
  const { store } = services
  const { tenant, id, sessionId } = lookup
  const name = presentable(response)
  const toSession = id === undefined ? undefined : { id, session: sessionId ?? '' }
  const known = (await store.linked(tenant, name)) ?? toSession
  if (known) await store.link(tenant, name, { ...known, ...pending })
}

async function recordAnswer(counted: Counted, usage: CallUsage, metadata: AnswerMetadata): Promise<void> {
  const { id, sessionId } = counted.lookup
  if (id === undefined) return recordFirstAnswer(counted, usage, metadata)
  const ids = idsIn(counted, metadata)
  await changeSession(counted, (session, request, emit) =>
    noteAnswer(session, request, answerFacts(counted, usage, metadata, ids, emit)),
  )
  if (metadata.callsNothing) watchEnd(counted)
  const unlinked = ids.filter((one) => !counted.linked.includes(one))
  if (unlinked.length > 0) await link(counted, unlinked, { id, session: sessionId ?? '' })
}

/** Keeps the answer of a session without an id until the second request gives it one. */
async function recordFirstAnswer(
  counted: Counted,
  usage: CallUsage,
  metadata: AnswerMetadata,
): Promise<void> {
  const { services, lookup, request, askedAt } = counted
  const { id: response, item } = metadata
  // What an answer cost may come after the answer itself, which is kept already.
  if (response === undefined && usage.input + usage.output === 0) return
  // Only the second request shows whether the client continues by the response's id or sends everything again.
  await keepUnclaimed(services.store, sessionKey(lookup.tenant, lookup.facts.prompt()), {
    askedAt,
    usage,
    endedAt: services.now(),
  })
  const ids = idsIn(counted, metadata)
  const session = beginSession(counted)
  const after = noteAnswer(session, request, answerFacts(counted, usage, metadata, ids, services.emit))
  // Clients that refer to earlier items begin with the first item of the first response.
  await linkUnnamed(counted, ids, after, item === undefined ? [] : [presentable(item)])
}

/** Returns the ids by which the client may continue from an answer. */
function idsIn(
  { lookup }: Counted,
  { id: response, conversation = lookup.conversationId }: AnswerMetadata,
): readonly string[] {
  return [response, conversation].flatMap((id) => (id === undefined ? [] : [presentable(id)]))
}

/** Returns the outcome of a request whose answer is over. */
function iterationFacts({ askedAt, services, decided, overflow }: Counted, status: number): IterationFacts {
  return { askedAt, endedAt: services.now(), status, ...decided, overflow }
}

function answerFacts(
  counted: Counted,
  usage: CallUsage,
  { calls, callsNothing }: AnswerMetadata,
  ids: readonly string[],
  emit: Emit,
): AnswerFacts {
  const { observeResponseCalls: note, facts } = counted.lookup
  return {
    iteration: iterationFacts(counted, 200),
    usage,
    ids,
    requestBytes: facts.bytes ?? 0,
    callsNothing,
    follow: note && calls && calls.length > 0 ? (loopState) => note(loopState, calls, emit) : undefined,
  }
}
