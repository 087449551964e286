/**
 * One turn of an agent: a request that was counted in its session, the decision on it, and what becomes of it there.
 */

import type { ShownTexts } from '../core/conversation/kept-transcript.ts'
import type { BudgetPolicy, Decision } from '../core/decide.ts'
import type { IterationFacts } from '../core/operator/session-record.ts'
import type { Request } from '../core/request.ts'
import type { PromptTokens } from '../core/session/result-tokens.ts'
import { type Changed, NEW_SESSION, type RunState, type Session } from '../core/session/session.ts'
import { type CountedRequest, type Delivered, releaseIteration } from '../core/session/transitions.ts'
import type { Dialect, DialectRequest } from '../dialect/dialect.ts'
import type { GovernorHeaders } from '../http/client.ts'
import type { Failure, UpstreamCall } from '../http/upstream.ts'
import type { UpstreamResponse } from '../http/upstream-response.ts'
import type { Recovery } from '../overflow/meaning.ts'
import type { SessionKey } from '../store/store.ts'
import { type Exchange, failExchange, relayTo } from './begin-exchange.ts'
import { unlessLost } from './fault.ts'
import type { Services, UnsupportedEdit } from './services.ts'
import type { FoundSession } from './session/find-session.ts'

export interface Turn {
  readonly services: Services
  readonly exchange: Exchange
  readonly dialect: Dialect
  readonly request: Request
  /** The request as its dialect reads it, with the results that the provider waits for and the client does not know. */
  readonly sent: DialectRequest
  /** The request as it goes upstream when nothing is changed. */
  readonly call: UpstreamCall
  /** Its body as JSON text, after decompression. */
  readonly bytes: Buffer
  readonly found: FoundSession
  /** Of its session; unset if that has no id. */
  readonly key: SessionKey | undefined
  /** The session in events. */
  readonly names: { readonly session: string | undefined; readonly apiId: string | undefined }
  /** Identifies the request in the session. */
  readonly counted: CountedRequest
  /** The session after the request, if it has no id. */
  readonly begun: Session | undefined
  /** Where it stands in its session. */
  readonly runState: RunState
  /** The budget, with the limits that an operator has set. */
  readonly policy: BudgetPolicy
  readonly decision: Decision
  /** The x-governor headers of every reply to it; made when the decision is final. */
  governorHeaders: GovernorHeaders
  readonly state: ResponseState
  /** Lets others that wait for its last answer go on; unset if nobody waits for this request. */
  readonly release?: () => void
}

/** What is known of the response to a counted request so far. */
interface ResponseState {
  /** The decision on the request, for operators to read. */
  decided: Pick<IterationFacts, 'verdict' | 'tier' | 'loop' | 'said'>
  /** The provider said that the request is too large. */
  overflow?: Recovery | undefined
  /** What the provider calls its error. */
  errorCode?: string | undefined
  isWarned?: boolean
  /** The provider is asked to leave out reasoning that was made for another prompt. */
  dropsThinking: boolean
  /** The newest calls that the client got. */
  relayed?: Delivered
  /** How many calls were recorded with it, as their results may come without them. */
  callsToCome?: number
  /** The edits that the provider has refused in this session. */
  refusedEdits: readonly UnsupportedEdit[]
  /** The ids of the calls in the newest answer. */
  callIds?: readonly string[]
  /** The link of the newest response, where its client may fetch it later; `isTaken`: it was counted here. */
  awaited?: { readonly key: SessionKey; isTaken?: boolean }
  /** Response ids that were linked to the session when responses began. */
  linked: readonly string[]
  /** What the newest prompt held that was answered. */
  prompt?: PromptTokens
  /** Settles when the ids of the newest answer are linked. */
  recorded?: Promise<void>
  /** Unset where transcripts are not kept. */
  texts?: SaidTexts
}

/** What a request and its answers say, for the transcript. */
interface SaidTexts {
  /** What the request shows, as far as it is not kept yet. */
  shown: ShownTexts
  /** The model's answers; they are kept as one. */
  readonly answers: string[]
  /** The run is over: the client got another answer in the place of all others. */
  isOver: boolean
}

/** Changes the session by one of its requests; returns the result, `otherwise` if it has no id or the store fails. */
export function updateSession<Result, Args extends readonly unknown[]>(
  { services, key, counted }: Turn,
  otherwise: Result,
  by: (session: Session, request: CountedRequest, ...args: Args) => Changed<Result>,
  ...args: Args
): Promise<Result> {
  if (key === undefined) return Promise.resolve(otherwise)
  const updated = services.store.update(key, (session = NEW_SESSION) => by(session, counted, ...args))
  return unlessLost(services.emit, updated, otherwise)
}

/**
 * Changes the session without a result. Never rejects: a change that the store loses is a counted fault. `mayWait`:
 * with its next change, or a moment later; it is lost if this process dies before that. An async function would keep
 * the request and its body until then.
 */
export function changeSession<Args extends readonly unknown[]>(
  { services, key, counted }: Turn,
  by: (session: Session, request: CountedRequest, ...args: Args) => Session,
  args: Args,
  mayWait = false,
): Promise<void> {
  if (key === undefined) return Promise.resolve()
  const change = (session = NEW_SESSION) => ({ session: by(session, counted, ...args), result: undefined })
  return unlessLost(services.emit, services.store.update(key, change, mayWait), undefined)
}

/** Returns the outcome of a request whose answer is over. */
export function iterationFacts({ request, services, state }: Turn, status: number): IterationFacts {
  return { askedAt: request.now, endedAt: services.now(), status, overflow: state.overflow, ...state.decided }
}

/** The provider gave no answer: the next request gets the iteration. `status`: of its error; 0 for none. */
export async function giveBackIteration(turn: Turn, status = 0, failure?: Failure): Promise<void> {
  const { overflow, errorCode } = turn.state
  const failedAs = overflow ? 'context_overflow' : 'no_response'
  const code = failure?.code ?? (overflow ? failedAs : errorCode)
  // Where an answer broke off, its client may have left.
  const error = status === 200 ? undefined : { status: failure?.status ?? status, code }
  await changeSession(turn, releaseIteration, [{ ...iterationFacts(turn, status), error }, failedAs])
  if (turn.key) turn.services.quietRuns.watch(turn.key)
}

/** Gives the client a response as it comes. */
export function relayResponse(turn: Turn, response: UpstreamResponse, headers = turn.governorHeaders): void {
  relayTo(turn.exchange, response, headers, (failure) => failRequest(turn, failure))
}

/** Tells the client that the upstream did not answer, and releases the iteration, unless the client left. */
export function failRequest(turn: Turn, failure: Failure): void {
  if (turn.exchange.client.isGone()) return
  // A client may fetch the rest of an answer in the background.
  if (!turn.state.awaited) void giveBackIteration(turn, 0, failure)
  failExchange(turn.exchange, failure, turn.governorHeaders)
}
