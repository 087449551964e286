/** Records answers in the session of their request, and links responses to it, so that a client can continue from them. */
import { nameOf } from '../../core/hash.ts'
import { pendingCallsOf } from '../../core/loop/tool-call.ts'
import type { FirstAnswer, Session } from '../../core/session/session.ts'
import { noteAnswer, responseBegan } from '../../core/session/transitions.ts'
import type { CallUsage } from '../../core/usage.ts'
import { LINKS, type Link, type SessionKey, type Store, sessionKey } from '../../store/store.ts'
import type { Answered } from '../../usage/response-observer.ts'
import { isolated, unlessLost } from '../fault.ts'
import { changeSession, iterationFacts, type Turn } from '../turn.ts'
import { type FoundSession, presentable, UNCLAIMED_USAGE } from './find-session.ts'

/** How many conversations with the same beginning may wait for their second request. */
const MAX_WAITING = 64

/** The metadata of a response besides its usage. */
type AnswerMetadata = Omit<Answered, 'usage'>

/** Returns the ids by which the client may continue from an answer. */
export function idsIn({ conversation: kept }: FoundSession, answer: AnswerMetadata): readonly string[] {
  const { id, conversation = kept } = answer
  const ids = id === undefined ? [] : [presentable(id)]
  return conversation === undefined ? ids : [...ids, presentable(conversation)]
}

/** Returns the id of the session that begins when a client continues from its first response. */
export function idBegunBy(response: string): string {
  return nameOf('response', response)
}

/**
 * Links the id that the head of a response states, as a client may continue from it before the response is over.
 * Resolves when all processes can find it.
 */
export async function noteResponseBegan(turn: Turn, response: string): Promise<void> {
  const { services, found, begun, counted, state } = turn
  const ids = idsIn(found, { id: response })
  state.linked = [...state.linked, ...ids]
  const links = linkResponses(services.store, found, ids, begun && responseBegan(begun, counted, ids))
  await Promise.all([unlessLost(services.emit, links, undefined), changeSession(turn, responseBegan, ids)])
}

/** Records what an answer used and by which ids it can be continued. */
export function recordAnswer(turn: Turn, usage: CallUsage, metadata: AnswerMetadata = {}): void {
  turn.state.recorded = unlessLost(turn.services.emit, record(turn, usage, metadata), undefined)
}

async function record(turn: Turn, usage: CallUsage, metadata: AnswerMetadata): Promise<void> {
  const { services, request, found, key, counted, begun, runState } = turn
  const { store, emit, now, quietRuns } = services
  const { id: response, item, calls = [], callsNothing } = metadata
  const ids = idsIn(found, metadata)
  const isObserved = calls.length > 0 && runState.thread.loopState !== undefined
  const answer = {
    iteration: iterationFacts(turn, 200),
    usage,
    ids,
    requestBytes: request.facts.bytes ?? 0,
    callsNothing,
    calls: isObserved ? isolated(emit, 'loop_guard', () => pendingCallsOf(calls, request.loop)) : undefined,
  }
  if (key) {
    await changeSession(turn, noteAnswer, answer)
    if (callsNothing) quietRuns.watch(key)
    const unlinked = ids.filter((one) => !turn.state.linked.includes(one))
    return linkResponses(store, found, unlinked)
  }
  // What an answer cost may come after the answer itself, which is kept already.
  if (!begun || (response === undefined && usage.input + usage.output === 0)) return
  // Only the second request shows whether the client continues by the response's id or sends everything again.
  const first: FirstAnswer = { askedAt: request.now, usage, endedAt: now() }
  await store.updateValue(UNCLAIMED_USAGE, sessionKey(found.tenant, request.facts.prompt()), (waiting) => ({
    value: [...waiting.slice(1 - MAX_WAITING), first],
    result: undefined,
  }))
  // Clients that refer to earlier items begin with the first item of the first response.
  const all = item === undefined || ids.length === 0 ? ids : [...ids, presentable(item)]
  await linkResponses(store, found, all, noteAnswer(begun, counted, answer))
}

/** `begun`: the session, where it has no id yet; it is stored when a client continues from one of the responses. */
async function linkResponses(
  store: Store,
  { tenant, id, name = '' }: FoundSession,
  responses: readonly string[],
  begun?: Session,
): Promise<void> {
  if (responses.length === 0) return
  const unnamed = idBegunBy(responses[0] ?? '')
  const to: Link = id === undefined ? { id: unnamed, session: unnamed, ...(begun && { begun }) } : { id, session: name }
  await Promise.all(responses.map((response) => linkTo(store, sessionKey(tenant, response), to)))
}

function linkTo(store: Store, response: SessionKey, link: Link): Promise<void> {
  return store.updateValue(LINKS, response, () => ({ value: link, result: undefined }))
}

/** Keeps what Governor adds when the client continues from a response, as the provider waits for it. */
export async function savePendingResults(
  { services, found, state }: Turn,
  response: string,
  pending: Pick<Link, 'pendingResults' | 'redirectTo'>,
): Promise<void> {
  const { store, emit } = services
  const { tenant, id, name = '' } = found
  await state.recorded
  const place = sessionKey(tenant, presentable(response))
  const save = async () => {
    const link = (await store.value(LINKS, place)) ?? (id === undefined ? undefined : { id, session: name })
    if (link) await linkTo(store, place, { ...link, ...pending })
  }
  await unlessLost(emit, save(), undefined)
}
