/** One counted request in the store: where it stands in its session, and what becomes of it there. */
import { NO_CONTEXTS, type SessionContexts } from '../core/context-window.ts'
import type { ToolCall } from '../core/conversation.ts'
import { type Hash, nameOf } from '../core/hash.ts'
import type { LoopPolicy } from '../core/loop/escalation.ts'
import { type Guarded, type Refused, refuse } from '../core/loop/observe.ts'
import { observe } from '../core/session/count-request.ts'
import {
  type ErrorReply,
  type ErrorStreak,
  enterStorm,
  type StormPolicy,
  withError,
  withoutErrors,
  withoutProbe,
} from '../core/session/error-streak.ts'
import type { Sighting } from '../core/session/request-facts.ts'
import { type EnterStorm, NEW_SESSION, type Position, type Session } from '../core/session/session.ts'
import { NO_TRIES, type StopTries } from '../core/session/stop-attempts.ts'
import {
  type AnswerFacts,
  acknowledged,
  adoptFirst,
  answered,
  begun,
  type CountedRequest,
  changeErrors,
  delivered,
  end,
  giveBack,
  goOn,
  loosen,
  refuseIn,
  said,
  triedToStop,
  warned,
} from '../core/session/transitions.ts'
import type { FinalAnswer } from '../core/terminal.ts'
import type { CallUsage } from '../core/usage.ts'
import { type Link, type SessionKey, sessionKey } from '../store/store.ts'
import type { Emit, ProxyEvent } from '../telemetry/event.ts'
import type { Answered } from '../usage/observe.ts'
import { isolated } from './fault.ts'
import { presentable } from './identity.ts'
import type { ProxyContext } from './services.ts'
import { keepUnclaimed, takeUnclaimed } from './unclaimed-usage.ts'

/** A request that is to be counted. */
export interface Counting {
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
  readonly sighting: Sighting
  /** The conversation, by its id, that the provider adds to. */
  readonly within: string | undefined
  readonly loop: LoopPolicy
  readonly storm: StormPolicy
  /** What is asked: errors in a row count for each upstream and model apart. */
  readonly target: { readonly upstream: string; readonly model: string }
  /** Takes the request in for the loop guard; faults in that go to `emit`. */
  readonly follow: ((guarded: Guarded, emit: Emit) => Guarded) | undefined
  /** What it wants besides plain text. */
  readonly demands: readonly Hash[]
  /** Takes in for the loop guard what a response called. */
  readonly note: ((guarded: Guarded, calls: readonly ToolCall[], emit: Emit) => Guarded) | undefined
}

/** What an answer says of itself besides what it took. */
type Told = Omit<Answered, 'usage'>

const NOTHING_REFUSED: Refused = { refusals: [], endsRun: false }

/** Where the first answer of a conversation is kept that has no name before its second request. */
function firstKey({ tenant, sighting }: Counting): SessionKey {
  return sessionKey(tenant, `${sighting.system} ${sighting.humans[0] ?? ''}`)
}

/**
 * Changes a session. What happens in the change is told once, after it: a store may run it several times, and what comes
 * of the last time holds.
 */
async function updateSession<Result>(
  { store, emit }: Pick<ProxyContext, 'store' | 'emit'>,
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
export async function remember(context: ProxyContext, counting: Counting): Promise<Remembered> {
  const { emit } = context
  const { tenant, id, sighting, thread } = counting
  const request: CountedRequest = { fingerprint: sighting.fingerprint, thread }
  const askedAt = context.now()
  // Without a name there is nothing to remember it by.
  const byTranscript = () => count(counting, undefined, askedAt, emit).position
  if (id === undefined) return new Remembered(context, counting, request, askedAt, undefined, byTranscript())
  const key = sessionKey(tenant, id)
  let position: Position
  try {
    const counted = await updateSession(context, key, (session, tell) => {
      const next = count(counting, session, askedAt, tell)
      return { session: next.session, result: next.position }
    })
    position = await withFirst(context, counting, key, request, counted)
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    position = byTranscript()
  }
  return new Remembered(context, counting, request, askedAt, key, position)
}

function count(
  counting: Counting,
  session: Session | undefined,
  askedAt: number,
  emit: Emit,
): ReturnType<typeof observe> {
  const { sighting, thread, isDerived, begun, follow, storm, demands } = counting
  const enter: EnterStorm = (errors) => enterStorm(errors, targetOf(counting), storm, askedAt)
  return observe(
    session ?? begun ?? NEW_SESSION,
    sighting,
    thread,
    askedAt,
    isDerived,
    follow && ((guarded) => follow(guarded, emit)),
    enter,
    demands,
  )
}

/** Names upstream and model in a thread's errors. */
function targetOf({ target }: Counting): string {
  return nameOf(target.upstream, target.model)
}

/** A session that has just been named by its first answer gets what that took, which was kept apart. */
async function withFirst(
  context: ProxyContext,
  counting: Counting,
  key: SessionKey,
  request: CountedRequest,
  position: Position,
): Promise<Position> {
  if (!counting.isDerived || !position.isNew || position.iteration !== 2) return position
  const { store } = context
  const first = await takeUnclaimed(store, firstKey(counting))
  if (!first) return position
  return store.update(key, (session) => {
    const adopted = adoptFirst(session ?? NEW_SESSION, request, position, first, context.now())
    return { session: adopted.session, result: adopted.position }
  })
}

/** A counted request: where it stood, and what is to be remembered of what became of it. */
export class Remembered {
  readonly position: Position
  readonly #context: ProxyContext
  readonly #counting: Counting
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
    context: ProxyContext,
    counting: Counting,
    request: CountedRequest,
    askedAt: number,
    key: SessionKey | undefined,
    position: Position,
  ) {
    this.position = position
    this.#context = context
    this.#counting = counting
    this.#request = request
    this.#askedAt = askedAt
    this.#key = key
  }

  /** The provider gave an answer, which took something and may be gone on from. A store that fails loses it. */
  answered(usage: CallUsage, told: Told = {}): void {
    this.#settled = this.#takeIn(usage, told).catch(() => this.#lose())
  }

  /** The head of a response names it: from here on a client may go on from it. A store that fails does not know it. */
  began(response: string): void {
    const ids = this.#idsIn({ id: response })
    this.#linked = [...this.#linked, ...ids]
    this.#linkHead(ids).catch(() => this.#lose())
  }

  async #linkHead(ids: readonly string[]): Promise<void> {
    const { id, sessionId } = this.#counting
    if (id === undefined) {
      const { emit } = this.#context
      const { session } = count(this.#counting, undefined, this.#askedAt, emit)
      return this.#linkUnnamed(ids, begun(session, this.#request, ids))
    }
    const linked = this.#link(ids, { id, session: sessionId ?? '' })
    await this.#change((session) => begun(session, this.#request, ids))
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
  async owe(response: string, debt: Pick<Link, 'owed' | 'as'>): Promise<void> {
    await this.#settled
    const { store } = this.#context
    const { tenant, id, sessionId } = this.#counting
    const name = presentable(response)
    const own = id === undefined ? undefined : { id, session: sessionId ?? '' }
    const known = (await store.linked(tenant, name)) ?? own
    if (known) await store.link(tenant, name, { ...known, ...debt })
  }

  /** Judges the calls of the response; a store that fails refuses none. */
  async refuse(calls: readonly ToolCall[]): Promise<Refused> {
    if (!this.#key) return NOTHING_REFUSED
    const request = this.#request
    const { loop } = this.#counting
    const isAgain = this.#wasJudged
    this.#wasJudged = true
    const now = this.#context.now()
    try {
      return await updateSession(this.#context, this.#key, (session, tell) => {
        const judged = refuseIn(
          session ?? NEW_SESSION,
          request,
          (guarded) =>
            isolated(tell, 'loop_guard', () =>
              refuse(guarded, calls, loop, request.fingerprint, isAgain, now),
            ) ?? { guarded, refused: NOTHING_REFUSED },
        )
        return { session: judged.session, result: judged.refused }
      })
    } catch {
      this.#lose()
      return NOTHING_REFUSED
    }
  }

  /** Something became known of the windows of the session's models. */
  async contexts(by: (contexts: SessionContexts) => SessionContexts): Promise<void> {
    await this.#change((session) => ({ ...session, contexts: by(session.contexts ?? NO_CONTEXTS) }))
  }

  /** The model was shown, or the client denied, what the client's history will not tell. */
  async said(): Promise<void> {
    if (!this.position.hasSaid) await this.#change((session) => said(session, this.#request))
  }

  /** Reasoning in this conversation is bound to what Governor said. */
  async loosen(): Promise<void> {
    await this.#change((session) => loosen(session, this.#request))
  }

  /** The model was told that its budget is nearly used up. */
  async warned(): Promise<void> {
    this.#isWarned = true
    await this.#change((session) => warned(session, this.#request))
  }

  /** Does the session have a name of the client's own, so that the same prompt may begin another run of it? */
  hasName(): boolean {
    return this.#key !== undefined && !this.#counting.isDerived
  }

  /** Was it, in this request? */
  wasWarned(): boolean {
    return this.#isWarned
  }

  /** The answer to a warning called nothing. */
  async acknowledged(): Promise<void> {
    await this.#change((session) => acknowledged(session, this.#request))
  }

  /** The provider gave no answer: the iteration is not used up. */
  async giveBack(): Promise<void> {
    await this.#change((session) => giveBack(session, this.#request))
  }

  /** The answer to it ended, with all of it at the client or not. As most are answered whole, the first one is taken to be. */
  async delivered(isWhole: boolean): Promise<void> {
    if (isWhole === this.position.isRetry)
      await this.#change((session) => delivered(session, this.#request, isWhole))
  }

  /** The run was over, and its limit is no longer reached. */
  async goOn(): Promise<void> {
    await this.#change((session) => goOn(session, this.#request))
  }

  /** The provider did not answer, as it is overloaded or gone. */
  async failed(error: ErrorReply): Promise<void> {
    const { storm } = this.#counting
    if (!storm.enabled) return
    const now = this.#context.now()
    await this.#changeErrors((errors) => withError(errors, targetOf(this.#counting), error, storm, now))
  }

  /** The provider answered after errors: `isSuccess` ends them, an error about the request only lets the next one try. */
  async reached(isSuccess: boolean): Promise<void> {
    const end = isSuccess ? withoutErrors : withoutProbe
    await this.#changeErrors((errors) => end(errors, targetOf(this.#counting)))
  }

  /** The run was stopped, and what it got is not recorded; a store that fails remembers no try. */
  async triedToStop(change: (tries: StopTries | undefined) => StopTries): Promise<StopTries> {
    if (!this.#key) return NO_TRIES
    try {
      return await this.#context.store.update(this.#key, (session) => {
        const tried = triedToStop(session ?? NEW_SESSION, this.#request, change)
        return { session: tried.session, result: tried.tries }
      })
    } catch {
      this.#lose()
      return NO_TRIES
    }
  }

  /** The run is over with this answer. */
  async end(answer: FinalAnswer): Promise<void> {
    await this.#change((session) => end(session, this.#request, answer))
  }

  async #changeErrors(change: (errors: readonly ErrorStreak[]) => readonly ErrorStreak[]): Promise<void> {
    try {
      await this.#change((session) => changeErrors(session, this.#request, change))
    } catch {
      this.#lose()
    }
  }

  #lose(): void {
    this.#context.emit({ kind: 'failed_open', reason: 'store' })
  }

  async #change(by: (session: Session, emit: Emit) => Session): Promise<void> {
    if (!this.#key) return
    await updateSession(this.#context, this.#key, (session, tell) => ({
      session: by(session ?? NEW_SESSION, tell),
      result: undefined,
    }))
  }

  async #takeIn(usage: CallUsage, told: Told): Promise<void> {
    const { id, sessionId } = this.#counting
    if (id === undefined) return this.#takeFirst(usage, told)
    const ids = this.#idsIn(told)
    await this.#change((session, tell) =>
      answered(session, this.#request, this.#factsOf(usage, told, ids, tell)),
    )
    const unlinked = ids.filter((one) => !this.#linked.includes(one))
    await this.#link(unlinked, { id, session: sessionId ?? '' })
  }

  /** Ids by which the client may go on from an answer. */
  #idsIn({ id: response, conversation }: Told): readonly string[] {
    const place = conversation ?? this.#counting.within
    return [response, place].flatMap((id) => (id === undefined ? [] : [presentable(id)]))
  }

  #factsOf(usage: CallUsage, { calls, callsNothing }: Told, ids: readonly string[], emit: Emit): AnswerFacts {
    const { note, sighting } = this.#counting
    return {
      usage,
      ids,
      requestBytes: sighting.bytes ?? 0,
      callsNothing,
      follow: note && calls && calls.length > 0 ? (guarded) => note(guarded, calls, emit) : undefined,
    }
  }

  /** Puts the answer away of a session that has no name yet. */
  async #takeFirst(usage: CallUsage, told: Told): Promise<void> {
    const { id: response, item } = told
    // What an answer cost may come after it; one that nobody owns yet has been put away.
    if (response === undefined && usage.input + usage.output === 0) return
    const { emit, store } = this.#context
    // Whether the client goes on by its id or sends it again, the second request shows.
    await keepUnclaimed(store, firstKey(this.#counting), { askedAt: this.#askedAt, usage })
    const ids = this.#idsIn(told)
    const { session } = count(this.#counting, undefined, this.#askedAt, emit)
    const after = answered(session, this.#request, this.#factsOf(usage, told, ids, emit))
    // Clients that refer to what was said before begin with the first item of the first response.
    await this.#linkUnnamed(ids, after, item === undefined ? [] : [presentable(item)])
  }

  async #link(names: readonly string[], link: Link): Promise<void> {
    for (const name of names) await this.#context.store.link(this.#counting.tenant, name, link)
  }
}
