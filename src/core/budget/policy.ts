/** Which budget holds for a request: the first rule that matches it, and what its client may change of that. */

import type { BudgetPolicy } from '../decide.ts'
import { globMatches } from '../glob.ts'
import { type Amounts, LIMITS, type LimitName } from './meters.ts'

/** Whether the budget is stated in the system text; `auto`: where the client declared it. */
export type Announce = 'auto' | 'always' | 'never'

/** A budget as it is configured. `announce` of the policy itself is settled for each request. */
export interface BudgetSettings {
  readonly policy: BudgetPolicy
  readonly announce: Announce
  /** May clients set limits of their own? */
  readonly clientOverride: boolean | 'lower_only'
}

/** Settings for the requests that match all that is given. */
export interface Rule<Settings> {
  /** Globs, of the model and of header values by lower-case name. */
  readonly model?: string | undefined
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly upstream?: string | undefined
  readonly settings: Settings
}

/** Settings with other ones for some requests: the first rule that matches counts. */
export interface ByRule<Settings> {
  readonly settings: Settings
  readonly rules: readonly Rule<Settings>[]
}

/** What rules can go by. */
export interface Asked {
  readonly model: string
  readonly upstream: string
  header(name: string): string | undefined
}

function matches({ model, headers, upstream }: Rule<unknown>, asked: Asked): boolean {
  if (upstream !== undefined && upstream !== asked.upstream) return false
  if (model !== undefined && !globMatches(model, asked.model)) return false
  return headers.every(([name, value]) => {
    const given = asked.header(name)
    return given !== undefined && globMatches(value, given.trim())
  })
}

/** The settings that hold for a request. */
export function settingsFor<Settings>({ settings, rules }: ByRule<Settings>, asked: Asked): Settings {
  return rules.find((rule) => matches(rule, asked))?.settings ?? settings
}

/** Limits of a run that a client declares; unset where it declares none. 0 is no limit. */
export type Declared = Partial<Pick<Amounts, 'iterations' | 'tool_calls'>>

function limitFor(
  limit: number,
  declared: number | undefined,
  mode: BudgetSettings['clientOverride'],
): number {
  if (declared === undefined || mode === false) return limit
  if (mode === true || limit === 0) return declared
  return declared === 0 ? limit : Math.min(limit, declared)
}

/** A tracker is what it states at the beginning. */
function announcesAlways({ announce, policy }: BudgetSettings): boolean {
  return announce === 'always' || (announce === 'auto' && policy.thresholds.style === 'tracker')
}

/** The limits that are stated; nothing is stated of a limit that is not set. */
function announced(settings: BudgetSettings, declared: Declared): readonly LimitName[] {
  const { announce, clientOverride } = settings
  if (announce === 'never') return []
  if (announcesAlways(settings)) return LIMITS
  if (clientOverride === false) return []
  return LIMITS.filter((name) => Object.hasOwn(declared, name))
}

/** The budget of one request whose client declares limits, or none. */
export function policyFor(settings: BudgetSettings, declared: Declared): BudgetPolicy {
  const { policy, clientOverride } = settings
  const { iterations, tool_calls: toolCalls } = declared
  // What nearly all requests say, which is nothing.
  if (iterations === undefined && toolCalls === undefined && !announcesAlways(settings)) return policy
  const run = {
    ...policy.run,
    iterations: limitFor(policy.run.iterations, iterations, clientOverride),
    tool_calls: limitFor(policy.run.tool_calls, toolCalls, clientOverride),
  }
  return { ...policy, run, announce: announced(settings, declared) }
}

/** Does any budget have a limit on cost? */
export function limitsCost({ settings, rules }: ByRule<BudgetSettings>): boolean {
  return [settings, ...rules.map((rule) => rule.settings)].some(
    ({ policy }) => policy.enabled && (policy.run.cost > 0 || policy.session.cost > 0),
  )
}
