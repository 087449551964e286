/** Which budget holds for a request: the first rule that matches it, and what its client may change of that. */
import { type Amounts, LIMITS, type LimitName } from './budget.ts'
import { globMatches } from './glob.ts'
import type { BudgetPolicy } from './verdict.ts'

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
export interface BudgetRule {
  /** Globs, of the model and of header values by lower-case name. */
  readonly model?: string
  readonly headers: readonly (readonly [name: string, value: string])[]
  readonly upstream?: string
  readonly settings: BudgetSettings
}

export interface BudgetSettingsByRule extends BudgetSettings {
  /** The first that matches counts. */
  readonly rules: readonly BudgetRule[]
}

/** What rules can go by. */
export interface Asked {
  readonly model: string
  readonly upstream: string
  header(name: string): string | undefined
}

function matches({ model, headers, upstream }: BudgetRule, asked: Asked): boolean {
  if (upstream !== undefined && upstream !== asked.upstream) return false
  if (model !== undefined && !globMatches(model, asked.model)) return false
  return headers.every(([name, value]) => {
    const given = asked.header(name)
    return given !== undefined && globMatches(value, given.trim())
  })
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

/** The limits that are stated; nothing is stated of a limit that is not set. */
function announced({ announce, clientOverride }: BudgetSettings, declared: Declared): readonly LimitName[] {
  if (announce === 'never') return []
  if (announce === 'always') return LIMITS
  if (clientOverride === false) return []
  return LIMITS.filter((name) => Object.hasOwn(declared, name))
}

/** The budget of one request. */
export function policyFor(settings: BudgetSettingsByRule, asked: Asked, declared: Declared): BudgetPolicy {
  const rule = settings.rules.find((candidate) => matches(candidate, asked))
  const own = rule?.settings ?? settings
  const { policy, clientOverride, announce } = own
  const { iterations, tool_calls: toolCalls } = declared
  // What nearly all requests say, which is nothing.
  if (iterations === undefined && toolCalls === undefined && announce !== 'always') return policy
  const run = {
    ...policy.run,
    iterations: limitFor(policy.run.iterations, iterations, clientOverride),
    tool_calls: limitFor(policy.run.tool_calls, toolCalls, clientOverride),
  }
  return { ...policy, run, announce: announced(own, declared) }
}

/** Does any budget have a limit on cost? */
export function limitsCost(settings: BudgetSettingsByRule): boolean {
  return [settings, ...settings.rules.map((rule) => rule.settings)].some(
    ({ policy }) => policy.enabled && (policy.run.cost > 0 || policy.session.cost > 0),
  )
}
