/** The budget policy of a request: that of its model, its upstream, its headers and its access key. */
import type { ScopeLimits } from '../core/budget/ledger.ts'
import { policyFor, settingsFor } from '../core/budget/policy.ts'
import type { BudgetPolicy } from '../core/decide.ts'
import { headerOf } from '../http/headers.ts'
import type { Exchange } from './begin-exchange.ts'

/** Returns what an override may ask of a request. */
export function subjectOf({ route, client }: Exchange, model: string) {
  return { model, upstream: route.upstream.name, header: (name: string) => headerOf(client.head.headers, name) }
}

/** Returns the budget policy of a request. `declared`: the limits that its client declares. */
export function policyOf(exchange: Exchange, model: string, declared: Parameters<typeof policyFor>[1]): BudgetPolicy {
  const settings = settingsFor(exchange.services.policies.budget, subjectOf(exchange, model))
  const policy = policyFor(settings, declared)
  // The limits of the access key take the place of the general ones of each key.
  const own = exchange.accessKey?.scopes ?? []
  if (own.length === 0) return policy
  const isReplaced = ({ scope, per }: ScopeLimits) => per === 'key' && own.some((one) => one.scope === scope)
  return { ...policy, scopes: [...policy.scopes.filter((rule) => !isReplaced(rule)), ...own] }
}
