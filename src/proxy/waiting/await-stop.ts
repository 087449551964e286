/** What a request waits for before a stop, silently: an operator, and another request for the last answer. */

import { isOfRuns, type LimitName, type Meter } from '../../core/budget/meters.ts'
import { askOperator, isAnswered } from '../../core/operator/operator.ts'
import { noteDelivery, releaseIteration } from '../../core/session/transitions.ts'
import { ignore } from '../../core/thrown.ts'
import { type SessionKey, SHARED, sessionKey, type ValueKind } from '../../store/store.ts'
import type { HoldOutcome } from '../../telemetry/event.ts'
import { emitFor, pause } from '../begin-exchange.ts'
import { countFault, unlessLost } from '../fault.ts'
import { changeSession, type Turn, updateSession } from '../turn.ts'
import { freeCharge, holdLast } from '../usage/charge.ts'

/** Decides on a request once more. Returns a text or nothing if it cannot be read any more; `answered`: it is over. */
export type EvaluateAgain = () => Promise<Turn | string | undefined>

/** Milliseconds between two looks, as the message about a change may be lost. */
const LOOK_MS = 1_000

/** Waits for operator and other requests; returns the request as it is then, `undefined` if the client left. */
export async function awaitStop(turn: Turn, evaluateAgain: EvaluateAgain): Promise<Turn | undefined> {
  const { services } = turn
  const { emit, draining } = services
  let held = turn
  let asked: Meter<LimitName> | undefined
  try {
    while (services.policies.stop.asks && held.decision.kind === 'stop') {
      const { limit, speech } = held.decision
      // An operator extends a run, and raises a limit of a scope of time in another place.
      if (!isOfRuns(limit.meter)) break
      // A higher limit does not make a price known. An agent that asks for its last answer itself gets no notice.
      if (limit.reason !== undefined || speech.notice === undefined) break
      if (draining.aborted || held.exchange.client.isGone()) break
      // A limit that was asked about and is reached still, as the operator has not raised it far enough.
      if (asked?.name === limit.meter.name && asked.max === limit.meter.max) break
      asked = limit.meter
      const outcome = await hold(held, asked)
      if (!outcome) break
      if (outcome !== 'reloaded') emit({ kind: 'hold_ended', ...held.names, outcome })
      if (outcome === 'no_answer' || outcome === 'drained') {
        holdLast(held.exchange)
        break
      }
      const next = await resend(held, evaluateAgain)
      if (!next) return undefined
      held = next
      if (outcome !== 'reloaded') continue
      if (held.decision.kind !== 'stop') emit({ kind: 'hold_ended', ...held.names, outcome })
      // The same question goes on if the new policies do not raise the limit.
      asked = undefined
    }
  } catch (error) {
    countFault(emit, error)
  }
  // The wait is not Governor's own time.
  if (held !== turn || asked) turn.exchange.bodyReadAt = performance.now()
  return awaitOther(held, evaluateAgain)
}

/** Waits for an answer to the question about a limit; returns `undefined` if the question is over. */
async function hold(turn: Turn, { name: meter, used, max }: Meter<LimitName>): Promise<HoldOutcome | undefined> {
  const { services, exchange, key, names, counted, request } = turn
  const { now, draining, policies, store, emit } = services
  const { askTimeout } = policies.stop
  const until = now() + askTimeout
  const limit = { name: meter, used, max }
  const askNow = () => updateSession(turn, undefined, askOperator, limit, until)
  const asked = await askNow()
  // A new question has all its time, however long it took to store it. Another replica's clock may be another one.
  const left = asked?.isNew ? askTimeout : Math.min((asked?.until ?? 0) - now(), askTimeout)
  if (!asked || left <= 0) return undefined
  if (asked.isNew) {
    const wait = { seconds: Math.round(left / 1_000), until: now() + left }
    const { agent: client } = request
    emitFor(exchange, { kind: 'operator_asked', ...names, client, meter, used: Math.min(used, max), max, ...wait })
  }
  freeCharge(exchange)
  for (const end = performance.now() + left; ; ) {
    if (exchange.client.isGone()) return 'client_gone'
    const session = key && (await unlessLost(emit, store.get(key), undefined))
    if (isAnswered(session, counted, now(), meter)) return 'answered'
    // A store that replicas share has lost it: an operator finds it again by what this one knows.
    if (!session && store.ahead) await askNow()
    if (draining.aborted) return 'drained'
    if (services.policies !== policies) return 'reloaded'
    const rest = end - performance.now()
    if (rest <= 0) return 'no_answer'
    await untilChanged(turn, Math.min(rest, LOOK_MS))
  }
}

/** Waits until the session has changed, the client has left or Governor ends; at most so many milliseconds. */
export function untilChanged(
  { services, exchange, key }: Pick<Turn, 'services' | 'exchange' | 'key'>,
  ms: number,
): Promise<void> {
  return pause(exchange, ms, (wake) =>
    services.store.subscribe((keys) => {
      if (key !== undefined && keys.includes(key)) wake()
    }),
  )
}

/** Counts a sending of a request as given up by its client, and decides on it again; `undefined` if the client left. */
export async function resend(turn: Turn, evaluateAgain: EvaluateAgain): Promise<Turn | undefined> {
  if (!turn.runState.isRetry) await changeSession(turn, noteDelivery, [false])
  if (turn.exchange.client.isGone()) return undefined
  const next = await evaluateAgain()
  // It was paused meanwhile, and has its answer: it is not counted.
  if (next === 'answered') {
    await changeSession(turn, releaseIteration, [])
    return undefined
  }
  return typeof next === 'object' ? next : turn
}

/**
 * The request that asks for a last answer, the end of its claim (0: it has asked; -1: its client left), and the claim
 * that it replaces.
 */
type Claim = { readonly by: string; readonly until: number; readonly instead?: string | undefined } | undefined

/** Milliseconds until another request asks too, as a replica that is gone does not renew its claim. */
const CLAIM_MS = 30_000

const CLAIMS: ValueKind<Claim> = { name: 'stop_claims', ttl: CLAIM_MS, empty: undefined }

/** Lets one of the requests at a limit ask for the last answer; others wait for one attempt, then each asks. */
async function awaitOther(turn: Turn, evaluateAgain: EvaluateAgain): Promise<Turn | undefined> {
  const { services, exchange } = turn
  const { store, now, newId, emit } = services
  const by = newId()
  let current = turn
  /** The claim that this request has waited for. */
  let waited: string | undefined
  try {
    for (;;) {
      const { decision, names, runState } = current
      const { apiId } = names
      // A recorded answer that this request cannot get, as a call that is an answer.
      const isRecorded = waited !== undefined && runState.finalAnswer !== undefined
      if (decision.kind !== 'stop' || apiId === undefined || isRecorded) return current
      const key = sessionKey(SHARED, `${apiId} ${runState.thread.number}`)
      const seen = waited
      let claim: Claim = await store.updateValue(CLAIMS, key, (known) => {
        // The answer of a claim that is over may have been recorded after this request was evaluated.
        const isFree = !known || known.until < 0 || (known.until <= now() && known.by === seen)
        const instead = known?.until === 0 ? undefined : known?.by
        const value = isFree ? { by, until: now() + CLAIM_MS, instead } : known
        return { value, result: value }
      })
      if (claim?.by === by) return { ...current, release: leading(current, key, claim) }
      const isOver = !claim || claim.until <= now()
      if (waited !== undefined && !isOver && claim?.instead !== waited) return current
      waited = claim?.by
      freeCharge(exchange)
      while (claim && claim.by === waited && claim.until > now() && !exchange.client.isGone()) {
        await untilChanged(current, LOOK_MS)
        claim = await store.value(CLAIMS, key)
      }
      const next = await resend(current, evaluateAgain)
      if (!next) return undefined
      current = next
    }
  } catch {
    emit({ kind: 'failed_open', reason: 'store' })
    return current
  }
}

/** Holds a claim until the returned function is called: after that, or once its client has left, others ask. */
function leading({ services, exchange }: Turn, key: SessionKey, own: NonNullable<Claim>): () => void {
  const { store, now } = services
  const change = (until: number) => {
    const changed = store.updateValue(CLAIMS, key, (known) => ({
      value: known?.by === own.by ? { ...own, until } : known,
      result: undefined,
    }))
    changed.catch(ignore)
  }
  const timer = setInterval(() => change(now() + CLAIM_MS), CLAIM_MS / 3).unref()
  return () => {
    clearInterval(timer)
    change(exchange.client.isGone() ? -1 : 0)
  }
}
