/** Finds the budget of a request: the first rule that matches it, changed by the limits that its client declares. */

import type { BudgetPolicy } from '../decide.ts'
import { globMatches } from '../text/glob.ts'
import type { ScopeLimits } from './ledger.ts'
import { costLimit, LIMITS, type LimitName } from './meters.ts'

/** A configured budget. `policyFor` decides for each request what the policy announces. */
export interface BudgetSettings {
  readonly policy: BudgetPolicy
  /** Whether the system text states the budget; `auto`: if the client declared it. */
  readonly announce: 'auto' | 'always' | 'never'
  readonly clientOverride: boolean | 'lower_only'
}

/** Settings for the requests that match every condition of the rule. */
export interface Rule<Settings> {
  readonly model?: string | undefined
  /** Globs of header values, by lower-case header name. */
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly upstream?: string | undefined
  readonly settings: Settings
}

/** Settings, with other ones for some requests: the first rule that matches counts. */
export interface ByRule<Settings> {
  readonly settings: Settings
  readonly rules: readonly Rule<Settings>[]
}

interface RuleSubject {
  readonly model: string
  readonly upstream: string
  header(name: string): string | undefined
}

function matches({ model, headers, upstream }: Rule<unknown>, subject: RuleSubject): boolean {
  if (upstream !== undefined && upstream !== subject.upstream) return false
  if (model !== undefined && !globMatches(model, subject.model)) return false
  for (const [name, value] of headers) {
    const actual = subject.header(name)
    if (actual === undefined || !globMatches(value, actual.trim())) return false
  }
  return true
}

/** Returns the settings of the first rule that matches a request, else the general ones. */
export function settingsFor<Settings>({ settings, rules }: ByRule<Settings>, subject: RuleSubject): Settings {
  for (const rule of rules) if (matches(rule, subject)) return rule.settings
  return settings
}

/** Returns the budget policy of one request, with the limits that its client declares; 0 is no limit. */
export function policyFor(
  { policy, clientOverride, announce }: BudgetSettings,
  declared: { readonly [Name in LimitName]?: number | undefined },
): BudgetPolicy {
  // A tracker begins with the announcement.
  const isAnnounced = announce === 'always' || (announce === 'auto' && policy.thresholds.style === 'tracker')
  const names: LimitName[] = []
  for (const name of LIMITS) if (declared[name] !== undefined) names.push(name)
  if (names.length === 0 && !isAnnounced) return policy
  const run = { ...policy.run }
  for (const name of clientOverride === false ? [] : names) {
    const asked = declared[name] ?? 0
    const isLower = asked !== 0 && asked < run[name]
    if (clientOverride === true || run[name] === 0 || isLower) run[name] = asked
  }
  const mayAnnounce = announce !== 'never' && clientOverride !== false
  const announced = isAnnounced ? LIMITS : mayAnnounce ? names : []
  // Its provider states a task budget itself.
  const isStated = (name: LimitName) => name === 'task_tokens' && declared[name] !== undefined
  return { ...policy, run, announce: announced.filter((name) => !isStated(name)) }
}

/** True if any budget, of a rule or general, or an access key (`own`) has a limit on cost. */
export function limitsCost({ settings, rules }: ByRule<BudgetSettings>, own: readonly ScopeLimits[] = []): boolean {
  if (own.some(({ limits }) => limits.cost > 0)) return true
  return [{ settings }, ...rules].some((one) => costLimit(one.settings.policy) !== undefined)
}

/** True if any budget, of a rule or general, or an access key (`own`) has a limit of a scope of time. */
export function limitsTime({ settings, rules }: ByRule<BudgetSettings>, own: readonly ScopeLimits[] = []): boolean {
  return own.length > 0 || [{ settings }, ...rules].some((one) => one.settings.policy.scopes.length > 0)
}
