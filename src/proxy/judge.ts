/** Reads a guarded request and decides what becomes of it. */
import type { MeterName } from '../core/budget.ts'
import type { ToolCall } from '../core/conversation.ts'
import { type Guarded, guard, type Refused, refuse } from '../core/guard.ts'
import { hashOf } from '../core/hash.ts'
import { mayRefuse } from '../core/loop-guard.ts'
import {
  answered,
  end,
  giveBack,
  NEW_SESSION,
  observe,
  type Position,
  refuseIn,
  type Session,
} from '../core/session.ts'
import { derivedSessionId, isAgentic, type Sighting, sight } from '../core/sighting.ts'
import type { FinalAnswer } from '../core/terminal.ts'
import { type BudgetPolicy, decide, type Verdict } from '../core/verdict.ts'
import type { Dialect, DialectRequest } from '../dialect/dialect.ts'
import type { Link, SessionKey } from '../store/store.ts'
import type { Policies, ProxyContext } from './context.ts'
import { headerOf, type RawHeaders } from './headers.ts'
import { explicitSessionId, presentable, tenantOf, threadNameOf } from './identity.ts'
import type { Answered } from './tap.ts'

export interface Judgement {
  readonly request: DialectRequest
  /** The session's id as the client knows it; `undefined` for the first request of one that has none yet. */
  readonly sessionId: string | undefined
  readonly position: Position
  readonly policy: BudgetPolicy
  readonly verdict: Verdict
  /** The agent reached a limit of its own and asks for its last answer. */
  readonly endsItself: boolean
  /** The provider gave an answer, which took something and may be gone on from. */
  answered(answer: Answered): Promise<void>
  /** There are calls that the model must not make again: its response has to be read. */
  readonly mayRefuse: boolean
  /** Judges the calls of the response; a store that fails refuses none. */
  refuse(calls: readonly ToolCall[]): Promise<Refused>
  /** The provider gave no answer: the iteration is not used up. */
  giveBack(): Promise<void>
  /** The run is over with this answer. */
  end(answer: FinalAnswer): Promise<void>
}

function wholeNumber(text: string | undefined): number | undefined {
  return text !== undefined && /^\d{1,9}$/.test(text.trim()) ? Number(text) : undefined
}

/** What the client declared in a header, as far as it may; 0 is no limit. */
function overridden(limit: number, declared: number | undefined, mode: Policies['clientOverride']): number {
  if (declared === undefined || mode === false) return limit
  if (mode === true || limit === 0) return declared
  return declared === 0 ? limit : Math.min(limit, declared)
}

/** The budget of one request: the configured one, changed by what its client declares. */
export function policyFor(headers: RawHeaders, policies: Policies): BudgetPolicy {
  const { budget, clientOverride, announce } = policies
  const iterations = wholeNumber(headerOf(headers, 'x-governor-max-iterations'))
  const toolCalls = wholeNumber(headerOf(headers, 'x-governor-max-tool-calls'))
  // What nearly all requests say, which is nothing.
  if (iterations === undefined && toolCalls === undefined && announce !== 'always') return budget
  const maxIterations = overridden(budget.maxIterations, iterations, clientOverride)
  const maxToolCalls = overridden(budget.maxToolCalls, toolCalls, clientOverride)
  const declared: MeterName[] = []
  if (clientOverride !== false && iterations !== undefined) declared.push('iterations')
  if (clientOverride !== false && toolCalls !== undefined) declared.push('tool_calls')
  const announced: Record<Policies['announce'], readonly MeterName[]> = {
    never: [],
    auto: declared,
    always: ['iterations', 'tool_calls'],
  }
  return { ...budget, maxIterations, maxToolCalls, announce: announced[announce] }
}

const NOTHING_REFUSED: Refused = { refusals: [], endsRun: false }

/** Where the request stands; a store that fails loses its memory of the session, and the transcript goes on telling. */
async function placeInSession(
  context: ProxyContext,
  key: SessionKey | undefined,
  sighting: Sighting,
  thread: string,
  isDerived: boolean,
  follow: ((guarded: Guarded) => Guarded) | undefined,
): Promise<Position> {
  const change = (session: Session | undefined) => {
    const { session: next, position } = observe(
      session ?? NEW_SESSION,
      sighting,
      thread,
      context.now(),
      isDerived,
      follow,
    )
    return { session: next, result: position }
  }
  const byTranscript = () => change(undefined).result
  // Without a name there is nothing to remember it by.
  if (!key) return byTranscript()
  try {
    return await context.store.update(key, change)
  } catch {
    context.emit({ kind: 'failed_open', reason: 'store' })
    return byTranscript()
  }
}

/** The session that a response belongs to; a store that fails knows none. */
async function linkOf(context: ProxyContext, tenant: string, response: string): Promise<Link | undefined> {
  try {
    return await context.store.linked(tenant, response)
  } catch {
    context.emit({ kind: 'failed_open', reason: 'store' })
    return undefined
  }
}

/**
 * Judges a request body. `undefined`: not a conversation, or one without tools (a title, a summary), which is
 * relayed and not counted.
 */
export async function judge(
  context: ProxyContext,
  dialect: Dialect,
  headers: RawHeaders,
  body: Buffer,
): Promise<Judgement | 'unreadable' | 'uncounted'> {
  const { registry, identity, store } = context
  const tenant = tenantOf(headers)
  const recollection = context.recall.begin(`${tenant}:${dialect.name}`, body.length)
  const request = dialect.read(body, recollection.recall)
  if (!request) return 'unreadable'
  const { conversation } = request
  const { reading, fingerprint } = recollection.read(request)
  const previous = request.previous === undefined ? undefined : presentable(request.previous)
  const sighting = {
    ...sight(reading, conversation, fingerprint, registry),
    ...(previous === undefined ? {} : { previous }),
  }
  if (!isAgentic(conversation, sighting)) return 'uncounted'
  const explicit = explicitSessionId(headers, request, identity)
  const link =
    explicit === undefined && previous !== undefined ? await linkOf(context, tenant, previous) : undefined
  const derived = explicit === undefined && !link ? derivedSessionId(tenant, sighting) : undefined
  const sessionId = explicit ?? link?.session ?? derived
  // Sessions are kept by a hash of their name: it may be a secret of the client's, and of any length.
  const id = explicit === undefined ? (link?.id ?? derived) : hashOf(explicit)
  const key = id === undefined ? undefined : { tenant, id }
  const thread = threadNameOf(headers, identity)
  const { loop } = context.policies()
  const transcript = { conversation, reading, registry }
  const follow = loop.enabled ? (guarded: Guarded) => guard(guarded, transcript, loop) : undefined
  const position = await placeInSession(context, key, sighting, thread, derived !== undefined, follow)
  const counted = { fingerprint: sighting.fingerprint, thread }
  const policy = policyFor(headers, context.policies())
  const refuseCalls = async (calls: readonly ToolCall[]): Promise<Refused> => {
    if (!key) return NOTHING_REFUSED
    try {
      return await store.update(key, (session) => {
        const change = refuseIn(session ?? NEW_SESSION, counted, (guarded) => refuse(guarded, calls, loop))
        return { session: change.session, result: change.refused }
      })
    } catch {
      context.emit({ kind: 'failed_open', reason: 'store' })
      return NOTHING_REFUSED
    }
  }
  const remember = async (change: (session: Session) => Session): Promise<void> => {
    if (!key) return
    await store.update(key, (session) => ({ session: change(session ?? NEW_SESSION), result: undefined }))
  }
  return {
    request,
    sessionId,
    position,
    policy,
    verdict: decide(position, policy, loop.mode === 'observe' ? undefined : position.loop),
    endsItself: sighting.asksForSummary,
    async answered({ usage, id: response, conversation: kept }) {
      const ids = [response, kept].flatMap((name) => (name === undefined ? [] : [presentable(name)]))
      const [first] = ids
      // A session that has no name yet is known by its first response, where a client can go on from that.
      const began = first === undefined ? undefined : hashOf('response', first)
      const name = key ?? (began && { tenant, id: began })
      if (!name) return
      const shown = sessionId ?? began ?? ''
      await store.update(name, (session) => {
        const begun =
          key === undefined && !session
            ? observe(NEW_SESSION, sighting, thread, context.now(), false, follow).session
            : (session ?? NEW_SESSION)
        return { session: answered(begun, counted, { usage, ids }), result: undefined }
      })
      for (const one of ids) await store.link(tenant, one, { id: name.id, session: shown })
    },
    mayRefuse: loop.enabled && position.guarded !== undefined && mayRefuse(position.guarded.memory, loop),
    refuse: refuseCalls,
    giveBack: () => remember((session) => giveBack(session, counted)),
    end: (answer) => remember((session) => end(session, counted, answer)),
  }
}
