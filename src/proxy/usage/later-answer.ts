/** Keeps what is known of a request whose answer is made in the background, until a client fetches the answer. */
import type { BudgetPolicy } from '../../core/decide.ts'
import { hashOfText } from '../../core/hash.ts'
import type { LaterAnswer } from '../../core/session/later-answer.ts'
import { promptBytesOf } from '../../core/session/result-tokens.ts'
import { presentable } from '../../core/text/presentable.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import type { RawHeaders } from '../../http/headers.ts'
import { LINKS_AT_ONCE, type Link, type SessionKey, sessionKey } from '../../store/store.ts'
import type { FetchedAnswer } from '../begin-exchange.ts'
import type { Route } from '../door/route.ts'
import { unlessLost } from '../fault.ts'
import { keptName } from '../overflow/windows.ts'
import type { Services } from '../services.ts'
import { tenantOf } from '../session/find-session.ts'
import { iterationFacts, type Turn } from '../turn.ts'

/** True if a limit counts what tools have brought. */
export function countsTask({ run, session }: BudgetPolicy): boolean {
  return run.task_tokens > 0 || session.task_tokens > 0
}

/** Returns what is known of a request whose answer is to come. */
export function laterAnswerOf(turn: Turn): LaterAnswer {
  const { request, counted, found, sent, runState, policy } = turn
  const { facts, conversation } = request
  const { previous, assistantHashes } = facts
  const { endedAt: _, ...outcome } = iterationFacts(turn, 200)
  return {
    counted,
    model: keptName(conversation.model),
    facts: outcome,
    isNamed: found.isNamed,
    conversation: found.conversation,
    isNewRun: runState.isNewRun,
    newCalls: runState.newCalls,
    relayed: {
      operation: hashOfText(request.operation),
      isFirst: assistantHashes.length === 0 && previous === undefined ? true : undefined,
    },
    isOnly: !sent.stored,
    prompt: promptBytesOf(request, runState, countsTask(policy)),
  }
}

type LaterChange = (later: LaterAnswer) => LaterAnswer | undefined

/** Changes what is kept for a response. Returns whether it was; `ifLost`: if the store fails. Never rejects. */
async function changeLater({ store, emit }: Services, key: SessionKey, change: LaterChange, ifLost: boolean) {
  const changed = store.updateValue(LINKS_AT_ONCE, key, (link) => {
    if (!link?.later) return { value: link, result: false }
    const { later, ...rest } = link
    const next = change(later)
    return { value: next ? { ...rest, later: next } : rest, result: true }
  })
  return unlessLost(emit, changed, ifLost)
}

/**
 * Returns whether an answer is to be counted here: whoever has its end first counts it, in one process of all.
 * `ifLost`: if the store fails.
 */
export function takeLater(services: Services, key: SessionKey, ifLost = false): Promise<boolean> {
  return changeLater(services, key, () => undefined, ifLost)
}

/** Keeps the outcome of a request, which is known when the response to it is over. */
export async function keepOutcome(turn: Turn, key: SessionKey): Promise<void> {
  const { facts } = laterAnswerOf(turn)
  await changeLater(turn.services, key, (later) => ({ ...later, facts }), false)
}

/** Returns the answer at the end of a link, if it is still to come. */
export function fetchedAt(
  tenant: string,
  response: string,
  link: Link | undefined,
  dialect: Dialect,
): FetchedAnswer | undefined {
  if (!link?.later) return undefined
  const { id, session: name, begun, later } = link
  const { isNamed, conversation } = later
  const found = { tenant, id, name, isNamed, conversation }
  return { dialect, response, link: sessionKey(tenant, response), found, key: sessionKey(tenant, id), begun, later }
}

/** Returns the answer with this id, if it is still to come. */
export async function answerToCome(
  { store, emit }: Services,
  tenant: string,
  response: string,
  dialect: Dialect,
): Promise<FetchedAnswer | undefined> {
  const linked = store.value(LINKS_AT_ONCE, sessionKey(tenant, response))
  return fetchedAt(tenant, response, await unlessLost(emit, linked, undefined), dialect)
}

/** Returns the answer that a request fetches; `undefined` if nothing is known of it, or it was counted before. */
export async function fetchedBy(
  services: Services,
  headers: RawHeaders,
  route: Route,
): Promise<FetchedAnswer | undefined> {
  const { later } = route
  return later && answerToCome(services, tenantOf(headers, route, services), presentable(later.response), later.dialect)
}
