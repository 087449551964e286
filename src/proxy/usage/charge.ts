/** What a request takes of the scopes of time: it holds an estimate while it is in flight, then its usage counts. */

import { type Ask, amountsIn, metersIn, sharesOf } from '../../core/budget/ledger.ts'
import { TIME_LIMITS, type TimeMeter } from '../../core/budget/meters.ts'
import { type Counts, countsOf } from '../../core/counters.ts'
import type { BudgetPolicy } from '../../core/decide.ts'
import { hashOf } from '../../core/hash.ts'
import { tableBy } from '../../core/names.ts'
import type { RunState } from '../../core/session/session.ts'
import { ignore } from '../../core/thrown.ts'
import type { CallUsage, TokenUsage } from '../../core/usage.ts'
import { headerOf } from '../../http/headers.ts'
import { costOf } from '../../usage/catalogue.ts'
import { type Place, placeOf, type Settled } from '../../usage/ledger.ts'
import { type Charge, type Exchange, emitFor, pause } from '../begin-exchange.ts'
import { isOfBody, unlessLost } from '../fault.ts'
import { keptName } from '../overflow/windows.ts'
import type { Services } from '../services.ts'

/** Milliseconds between two looks at what requests of other processes hold. */
const LOOK_MS = 500

/** Returns whom a request counts for in limits for each of something; `null` where they are for all together. */
function countedFor({ client, route, accessKey }: Exchange, per: string, model: string, tenant: string): string | null {
  switch (per) {
    case 'all':
      return null
    case 'credential':
      return tenant
    case 'key':
      return accessKey?.name ?? tenant
    case 'model':
      return keptName(model)
    case 'upstream':
      return route.upstream.name
    default:
      return headerOf(client.head.headers, per.slice('header:'.length)) ?? ''
  }
}

/** Returns the cap of a request on its answer, in tokens; a body that can't be read has none. */
function capOf({ route }: Exchange, json: Buffer): number | undefined {
  let found: number | undefined
  try {
    route.dialect?.withLowerOutput?.(json, ({ cap }) => {
      found = cap
      return undefined
    })
  } catch (error) {
    if (!isOfBody(error)) throw error
  }
  return found
}

/** Returns where a request counts now. */
function placesOf(x: Exchange, { model, tenant, policy }: Pick<Charged, 'model' | 'tenant' | 'policy'>): Place[] {
  const at = x.services.ledger.time()
  const calendar = policy.calendar()
  return policy.scopes.map((rule) =>
    placeOf(rule, calendar.periodOf(rule.scope, at), countedFor(x, rule.per, model, tenant)),
  )
}

/** Returns the name of a model in estimates. */
function estimatedAs({ route }: Exchange, model: string): string {
  return hashOf(`${route.upstream.name} ${model}`)
}

/** What is charged: a request as its dialect reads it, and the limits that apply to it. */
interface Charged {
  /** Unset if it could not be read as a whole. */
  readonly json: Buffer | undefined
  readonly model: string
  readonly tenant: string
  readonly policy: BudgetPolicy
  /** It seems to begin a run. */
  readonly isNewRun: boolean
}

/** Begins to charge a request: it holds what it may use. Call it only where there are limits of scopes of time. */
export function beginCharge(x: Exchange, { json, model, tenant, policy, isNewRun }: Charged): Charge {
  const { services, client, route } = x
  const { estimates, ledger, catalogue } = services
  if (x.charge) close(x, x.charge)
  const places = placesOf(x, { model, tenant, policy })
  const name = estimatedAs(x, model)
  const bytes = json ? json.length : Number(headerOf(client.head.headers, 'content-length') ?? 0)
  const cap = json && capOf(x, json)
  const priceOf = (of: TokenUsage) => {
    const cost = costOf(of, {}, catalogue, model, route.upstream, policy.unknownPrice === 'estimate')
    return cost instanceof Promise ? undefined : (cost.cost ?? 0)
  }
  const estimate = (runs: number): Ask => {
    const { isGuess, input, output } = estimates.of(name, bytes, cap)
    const cost = priceOf({ input, output })
    const counts: Counts = { iterations: 1, runs, input, output, cost: cost ?? 0 }
    return { counts, isGuess: isGuess || cost === undefined }
  }
  const ask = estimate(Number(isNewRun))
  const charge: Charge = {
    ...{ places, model: name, bytes, ask, estimate, priceOf, known: [], open: 0 },
    asked: ledger.hold(places, ask, services.policies.observesOnly),
    isCounted: false,
    isOver: false,
  }
  x.charge = charge
  client.onClose(() => close(x, charge))
  return charge
}

/** A request holds nothing while it waits for something else: others may use that. */
export function freeCharge({ services, charge }: Exchange): void {
  if (charge) void unlessLost(services.emit, charge.asked, []).then(() => free(services, charge))
}

/** A request holds what the last answer of a run may use, also beyond a limit. */
export function holdLast(x: Exchange): void {
  const { charge } = x
  if (!charge || charge.known.every(({ hold }) => hold)) return
  void holdAgain(x, charge, true).then(() => {
    if (charge.isOver || charge.isCounted) free(x.services, charge)
  })
}

/** Holds what a request asks for now, in place of what it held. */
export async function holdAgain(
  { services }: Exchange,
  charge: Charge,
  isForced: boolean,
  isWaiting = false,
): Promise<void> {
  free(services, charge)
  charge.asked = services.ledger.hold(charge.places, charge.ask, isForced, isWaiting)
  charge.known = await unlessLost(services.emit, charge.asked, [])
}

/** Waits until it is known where a request stands, after it began. */
async function awaitStanding({ services }: Exchange, charge: Charge): Promise<void> {
  const known = await unlessLost(services.emit, charge.asked, [])
  if (charge.known.length === 0) charge.known = known
}

/** Returns what a request holds in each place; from now on it holds nothing. */
function takeHolds(charge: Charge) {
  const { places, known } = charge
  charge.known = known.map(({ hold: _, ...standing }) => standing)
  return places.map((place, at) => ({ place, held: known[at]?.hold }))
}

function free({ ledger }: Services, charge: Charge): void {
  for (const { place, held } of takeHolds(charge)) if (held) ledger.settle(place, undefined, held).catch(ignore)
}

/**
 * Waits until a request may go on: what does not fit only because of others in flight waits for them, as long as an
 * operator is waited for. Returns the meters of the scopes; `runState`: unset for a request that is no step of a run.
 */
export async function timeMeters(x: Exchange, charge: Charge, runState?: RunState) {
  const { services } = x
  const { observesOnly, stop } = services.policies
  await awaitStanding(x, charge)
  charge.run = runState?.run.id
  // A run begins once, also if its first answer broke off and the client asks again, or an operator resets it.
  const isNew = runState?.iteration === 1 && runState.used.tokens === 0 && !services.ledger.hasBegun(runState.run.id)
  const runs = Number(isNew)
  if (runs !== charge.ask.counts.runs) {
    charge.ask = { ...charge.ask, counts: { ...charge.ask.counts, runs } }
    await holdAgain(x, charge, observesOnly)
  }
  const isSpent = () => charge.known.some((one, at) => one.isSpent && !charge.places[at]?.rule.isObserved)
  const isWaiting = () => charge.known.some(({ isCrowded, hold }) => isCrowded && !hold) && !isSpent()
  for (const end = performance.now() + stop.askTimeout; isWaiting(); ) {
    const rest = end - performance.now()
    if (rest <= 0 || x.client.isGone() || services.draining.aborted) break
    await pause(x, Math.min(rest, LOOK_MS), services.ledger.onFreed)
    // Its model may have answered others meanwhile.
    if (charge.ask.isGuess) charge.ask = charge.estimate(charge.ask.counts.runs ?? 0)
    await holdAgain(x, charge, observesOnly, true)
    // The wait is not Governor's own time.
    x.bodyReadAt = performance.now()
  }
  const meters = metersOfCharge(charge, runState)
  if (charge.isOver) free(services, charge)
  return meters
}

function metersOfCharge({ places, known, ask }: Charge, runState: RunState | undefined) {
  const enforced: TimeMeter[] = []
  const observed: TimeMeter[] = []
  const made = (runState?.iteration ?? 1) - 1
  const estimate = amountsIn(ask.counts)
  for (const [at, place] of places.entries()) {
    const standing = known[at]
    if (!standing) continue
    const steps = tableBy(TIME_LIMITS, (name) => {
      if (name === 'iterations') return 1
      if (name === 'runs' || (made === 0 && ask.isGuess)) return undefined
      return made > 0 && runState ? runState.used[name] / made : estimate[name]
    })
    const isHeld = standing.hold !== undefined
    const of = { ...standing, isCrowded: standing.isCrowded && !isHeld }
    const list = place.rule.isObserved ? observed : enforced
    list.push(...metersIn(of, place.period, ask.counts, steps))
  }
  return { enforced, observed }
}

/** Counts what an answer used. `isLater`: only what became known of its cost. */
export function countCharge(x: Exchange, charge: Charge, usage: CallUsage, isLater: boolean): void {
  const { estimates, ledger } = x.services
  const isFirst = !charge.isCounted && !isLater
  const { run = '' } = charge
  const runs = isFirst && charge.ask.counts.runs && (run === '' || ledger.begins(run)) ? 1 : 0
  if (!isLater) charge.open--
  if (!isLater && !usage.estimated) estimates.learn(charge.model, charge.bytes, usage)
  const used = { ...countsOf(usage), ...(isFirst ? { iterations: 1, runs } : {}) }
  charge.isCounted = true
  settleAll(x, charge, used)
}

/** Counts in scopes of time what an answer used whose request, of so many bytes, was counted when it came. */
export function countLater(x: Exchange, of: Parameters<typeof placesOf>[1], bytes: number, usage: CallUsage): void {
  const { estimates } = x.services
  if (of.policy.scopes.length === 0) return
  if (!usage.estimated && usage.input > 0) estimates.learn(estimatedAs(x, of.model), bytes, usage)
  for (const place of placesOf(x, of)) settle(x, place, countsOf(usage), undefined)
}

function settleAll(x: Exchange, charge: Charge, used: Counts): void {
  for (const { place, held } of takeHolds(charge)) settle(x, place, used, held)
}

function settle(x: Exchange, place: Place, used: Counts, held: Counts | undefined): void {
  const { ledger, emit } = x.services
  const settled = ledger.settle(place, used, held).then((now) => report(x, place, now))
  void unlessLost(emit, settled, undefined)
}

/** Shares of a limit at which people hear of it. */
const TOLD_AT = [0.75, 0.95] as const

function report(x: Exchange, { rule, period, subject }: Place, { before, after, limits }: Settled): void {
  const { scope, per, isObserved } = rule
  const was = sharesOf(before, limits)
  for (const [at, { name: meter, used, max, share }] of sharesOf(after, limits).entries()) {
    const told = TOLD_AT.findLast((one) => share >= one && (was[at]?.share ?? 0) < one)
    if (told === undefined) continue
    const of = { scope, per, subject, meter, used, max }
    emitFor(x, { kind: 'scope_filled', ...of, share: told, resetsAt: period.end, isObserved })
  }
}

/** The exchange is over: what it still holds is free. */
function close(x: Exchange, charge: Charge): void {
  if (charge.isOver || charge.open > 0) return
  charge.isOver = true
  // The provider may bill what nobody has waited for: the prompt, at least.
  const isCutOff = x.outcome === 'client_gone' && x.calledAt > 0 && x.upstreamMs === undefined && !charge.isCounted
  const { input = 0 } = charge.ask.counts
  if (isCutOff) settleAll(x, charge, { iterations: 1, input, cost: charge.priceOf({ input, output: 0 }) ?? 0 })
  else void awaitStanding(x, charge).then(() => free(x.services, charge))
}
