/** Counts what an answer used and cost in the scopes of time, and reports it; says where a price is not known. */
import { costLimit } from '../../core/budget/meters.ts'
import type { BudgetPolicy } from '../../core/decide.ts'
import type { CallUsage } from '../../core/usage.ts'
import type { Upstream } from '../../http/upstream.ts'
import type { Answered as AnsweredEvent, UnpricedHandling } from '../../telemetry/event.ts'
import { type Cost, costOf } from '../../usage/catalogue.ts'
import type { Answered } from '../../usage/response-observer.ts'
import { type Exchange, emitFor } from '../begin-exchange.ts'
import { noteFault } from '../fault.ts'
import type { Services } from '../services.ts'
import { agentNameOf } from '../session/find-session.ts'
import { countCharge } from './charge.ts'

/**
 * Calls `note` with what an answer used; a second time (`isLater`) with its cost alone, if that is not known at once:
 * the first time has a promise of it then.
 */
export function countBill(
  x: Exchange,
  model: string,
  policy: BudgetPolicy,
  { usage, bill = {} }: Answered,
  note: (usage: CallUsage, isLater: boolean, toCome?: Promise<Cost>) => void,
): void {
  const { services, charge } = x
  const { upstream } = x.route
  const { catalogue } = services
  const noteAll = (known: CallUsage, isLater: boolean, toCome?: Promise<Cost>) => {
    if (charge) countCharge(x, charge, known, isLater)
    note(known, isLater, toCome)
    // If the prices can't be loaded, that was said once for all models.
    if (known.costGap === undefined || !catalogue.isLoaded) return
    const handling = known.costGap === 'estimate' ? 'estimate' : 'warn'
    noteUnpricedModel(services, model, upstream, costLimit(policy) === undefined ? undefined : handling)
  }
  const cost = costOf(usage, bill, catalogue, model, upstream, policy.unknownPrice === 'estimate')
  if (!(cost instanceof Promise)) return noteAll({ cost: undefined, costGap: undefined, ...usage, ...cost }, false)
  const { estimated } = usage
  noteAll(usage, false, cost)
  const noteLater = cost.then((later) => noteAll({ input: 0, output: 0, estimated, ...later }, true))
  noteLater.catch((error) => noteFault(services.emit, error))
}

/** Reports an answer. */
export function emitAnswered(x: Exchange, fields: Omit<AnsweredEvent, 'kind' | 'upstream' | 'client' | 'key'>): void {
  const client = agentNameOf(x.client.head.headers)
  emitFor(x, { kind: 'answered', upstream: x.route.upstream.name, client, key: x.accessKey?.name, ...fields })
}

/** How many models are reported: clients choose their names. */
const MAX_NOTED = 1_000

/** Reports, once, that the price of a model is unknown. `handling`: unset without a limit on cost. */
export function noteUnpricedModel(
  { unpricedModels: noted, emit }: Services,
  model: string,
  { name }: Upstream,
  handling: UnpricedHandling | undefined,
): void {
  const key = `${handling} ${name} ${model.slice(0, 200)}`
  if (noted.has(key) || noted.size >= MAX_NOTED) return
  noted.add(key)
  emit({ kind: 'unpriced_model', upstream: name, model, handling })
}
