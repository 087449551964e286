/** Limits on the rate of a session: its meters for a decision, and the wait of requests where they are slowed. */
import { type AnyLimitName, isExhausted, type Meter } from '../../core/budget/meters.ts'
import {
  isAwaited,
  isReached,
  MAX_SLOWED_MS,
  mayGo,
  type RateMeter,
  ratesOf,
  type Velocity,
  type Waiting,
  withLet,
  withWaiting,
} from '../../core/budget/velocity.ts'
import type { BudgetPolicy, TimeMeters } from '../../core/decide.ts'
import { NEW_SESSION } from '../../core/session/session.ts'
import { changeThread, releaseIteration } from '../../core/session/transitions.ts'
import { SHARED, sessionKey, type ValueKind } from '../../store/store.ts'
import { type AsideRequest, type Exchange, emitFor } from '../begin-exchange.ts'
import { unlessLost } from '../fault.ts'
import { agentNameOf, namesOf } from '../session/find-session.ts'
import { changeSession, type Turn } from '../turn.ts'
import { freeCharge } from '../usage/charge.ts'
import { type EvaluateAgain, resend, untilChanged } from './await-stop.ts'

/** The requests of each session that wait in all processes. */
const WAITING: ValueKind<readonly Waiting[]> = { name: 'slowed', ttl: 2 * MAX_SLOWED_MS, empty: [] }

/** Milliseconds between two looks, as the message about a change may be lost. */
const LOOK_MS = 500

/** Returns the meters of scopes of time with those of the rate, where that has a limit. */
export function withRates(
  { velocity, calendar }: Pick<BudgetPolicy, 'velocity' | 'calendar'>,
  time: TimeMeters | undefined,
  rates: readonly RateMeter[] = [],
): TimeMeters | undefined {
  if (!velocity || rates.length === 0) return time
  const named = rates.map((meter) => {
    const { resetsAt } = meter.time
    return isReached(meter) ? { ...meter, time: { ...meter.time, resets: calendar().textOf(resetsAt) } } : meter
  })
  const { enforced, observed } = time ?? { enforced: [], observed: [] }
  if (velocity.isObserved) return { enforced, observed: [...observed, ...named] }
  return velocity.slows ? { enforced, observed, slowing: named } : { enforced: [...enforced, ...named], observed }
}

/** A request that may wait, in its session. */
type InSession = Pick<Turn, 'services' | 'exchange' | 'key' | 'names'>

/** The place where the requests of a session wait. */
const placeOf = ({ names }: InSession) => sessionKey(SHARED, names.apiId ?? '')

/** Returns whether requests of a session wait: one that comes now is behind them, also with a rate below the limit. */
async function isBehind(at: InSession, velocity: Velocity): Promise<boolean> {
  const { store, emit, now } = at.services
  if (!velocity.slows || velocity.isObserved || at.services.policies.observesOnly) return false
  return isAwaited(await unlessLost(emit, store.value(WAITING, placeOf(at)), []), now())
}

/**
 * Has a request wait until the rate of its session is below the limit and no other comes before it, at most 30 s; then
 * decides on it again. Returns the request as it is then, `undefined` if the client left.
 */
export async function slowDown(turn: Turn, evaluateAgain: EvaluateAgain): Promise<Turn | undefined> {
  const { decision } = turn
  const { velocity } = turn.request.budget
  if (!velocity || turn.key === undefined || !('resumesRun' in decision)) return turn
  const meter = decision.slowedBy
  if (!meter && !(await isBehind(turn, velocity))) return turn
  await changeSession(turn, changeThread, [{}, { slowedUntil: turn.services.now() + MAX_SLOWED_MS }])
  const isGone = await waitFor(turn, velocity, meter)
  await changeSession(turn, changeThread, [{}, { slowedUntil: undefined }])
  if (!isGone) return resend(turn, evaluateAgain)
  await changeSession(turn, releaseIteration, [])
  return undefined
}

/** Waits, and says so; returns whether the client has left. `reached`: the limit; unset behind others that wait. */
async function waitFor(at: InSession, velocity: Velocity, reached: Meter<AnyLimitName> | undefined) {
  const { exchange, names, services } = at
  const began = performance.now()
  freeCharge(exchange)
  const client = agentNameOf(exchange.client.head.headers)
  if (reached) {
    const { name: meter, used, max } = reached
    emitFor(exchange, { kind: 'slowed', ...names, client, meter, used, max })
  }
  const own = { id: services.newId(), until: services.now() + MAX_SLOWED_MS }
  const outcome = await untilBelow(at, velocity, own, reached !== undefined)
  // The wait is not Governor's own time.
  exchange.bodyReadAt = performance.now()
  exchange.slowedMs = exchange.bodyReadAt - began
  emitFor(exchange, { kind: 'slowing_ended', ...names, outcome, ms: exchange.slowedMs })
  return outcome === 'client_gone'
}

async function untilBelow(at: InSession, velocity: Velocity, own: Waiting, isReached: boolean) {
  const { services, exchange, key } = at
  const { store, emit, now, draining } = services
  const { client } = exchange
  const began = performance.now()
  const place = placeOf(at)
  const change = (by: (queue: readonly Waiting[]) => readonly Waiting[]) => {
    const changed = store.updateValue(WAITING, place, (queue) => {
      const value = by(queue)
      return { value: value.length > 0 ? value : undefined, result: value }
    })
    return unlessLost(emit, changed, [own])
  }
  const leave = (queue: readonly Waiting[]) => queue.filter(({ id }) => id !== own.id)
  let hasReached = isReached
  // The next one goes on when the response is over.
  client.onClose(() => void change(leave))
  for (;;) {
    if (client.isGone()) return 'client_gone' as const
    if (draining.aborted) return 'drained' as const
    // A clock that jumps makes no wait longer.
    const time = own.until - MAX_SLOWED_MS + (performance.now() - began)
    const queue = await change((known) => withWaiting(known, own, time))
    const session = key && (await unlessLost(emit, store.get(key), undefined))
    const isBelow = !ratesOf(velocity, session ?? NEW_SESSION, now()).some(isExhausted)
    hasReached ||= !isBelow
    if (mayGo(queue, own, isBelow, time, hasReached)) {
      // One that only kept its place holds up no other: else those of agents that go on at once would follow for ever.
      await change((known) => (hasReached ? withLet(known, own) : leave(known)))
      return isBelow ? ('below' as const) : ('time_over' as const)
    }
    await untilChanged(at, Math.min(LOOK_MS, own.until - time))
  }
}

/**
 * Returns the limit on the rate that ends a request which is no step of a run; where such requests are slowed, it
 * waits.
 */
export async function rateOfAside(
  x: Exchange,
  { found, policy }: Pick<AsideRequest, 'found' | 'policy'>,
): Promise<Meter<AnyLimitName> | undefined> {
  const { services } = x
  const { velocity } = policy
  if (!velocity || found?.id === undefined) return undefined
  const key = sessionKey(found.tenant, found.id)
  const session = await unlessLost(services.emit, services.store.get(key), undefined)
  const rates = ratesOf(velocity, session ?? NEW_SESSION, services.now())
  const { enforced = [], slowing = [] } = withRates(policy, undefined, rates) ?? {}
  const slowedBy = services.policies.observesOnly ? undefined : slowing.find(isExhausted)
  const at = { services, exchange: x, key, names: namesOf(found) }
  if (slowedBy || (await isBehind(at, velocity))) await waitFor(at, velocity, slowedBy)
  return enforced.find(isExhausted)
}
