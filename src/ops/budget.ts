/** The API of limits of scopes of time: what is used of them, and what an operator sets until their period ends. */

import type { FastifyInstance } from 'fastify'
import * as z from 'zod'
import { amountsIn, type ScopeLimits, type SubjectLimits, sharesOf, type TimeAmounts } from '../core/budget/ledger.ts'
import { METERS, TIME_FIELDS, TIME_LIMITS, type TimeLimitName, type TimeLimitSetting } from '../core/budget/meters.ts'
import type { BudgetSettings, ByRule } from '../core/budget/policy.ts'
import { TIME_SCOPES } from '../core/budget/scopes.ts'
import { rounded } from '../core/counters.ts'
import { tableBy } from '../core/names.ts'
import type { Session } from '../core/session/session.ts'
import { ignore } from '../core/thrown.ts'
import type { Emit } from '../telemetry/event.ts'
import { type Ledger, type Place, placeOf } from '../usage/ledger.ts'
import type { AdminAccess } from './admin-access.ts'
import { RequestProblem } from './problem.ts'
import type { SessionPage } from './sessions/api-schema.ts'
import { validated } from './sessions/session-in.ts'
import { nearestOf, type TimeUse, timeUses, type UsedOf } from './sessions/view.ts'

/** What the routes use: the policies in force, and the sums. */
export interface BudgetSources {
  readonly ledger: Ledger
  /** Those in force, which a reload changes. */
  readonly policies: () => { readonly budget: ByRule<BudgetSettings> }
  readonly keyScopes: () => readonly ScopeLimits[]
  readonly emit: Emit
}

const FIELDS = Object.values(TIME_FIELDS)

const amount = z.number().min(0)
const amounts = z.strictObject(tableBy(FIELDS, () => amount))

const scopeRow = z
  .strictObject({
    scope: z.enum(TIME_SCOPES),
    per: z.string().describe('What has a sum of its own: all, credential, key, model, upstream or header:NAME.'),
    subject: z.string().nullable().describe('Which of them; null for all requests together.'),
    used: amounts,
    reserved: amounts.describe('What requests in flight may use.'),
    max: amounts.describe('0: no limit.'),
    share: amount.describe('The largest share of a limit that is used.'),
    mode: z.enum(['enforce', 'observe']),
    resets_at: z.iso.datetime(),
  })
  .meta({ id: 'ScopeBudget' })

const budgetReply = z.strictObject({ time_zone: z.string(), budget: z.array(scopeRow) }).meta({ id: 'Budget' })

/** The limits of scopes of time as the API shows them. */
export type BudgetView = z.output<typeof budgetReply>

const limitOf = (most: z.ZodNumber) => most.min(0).max(1e12).nullable().optional()
/** Only dollars have fractions, as in the configuration. */
const limits = {} as Record<TimeLimitSetting, ReturnType<typeof limitOf>>
for (const name of TIME_LIMITS) {
  const { setting, value } = METERS[name].limit
  limits[setting] = limitOf(value === 'dollars' ? z.number() : z.int())
}

export const scopeLimitBody = z
  .strictObject({
    scope: z.enum(TIME_SCOPES),
    per: z
      .string()
      .toLowerCase()
      .optional()
      .describe('Needed where several limits of the scope have a subject of this name.'),
    subject: z.string().nullable().default(null),
    ...limits,
  })
  .refine((body) => TIME_LIMITS.some((name) => body[METERS[name].limit.setting] !== undefined), {
    message: `sets no limit: expected one of ${Object.keys(limits).join(', ')}`,
  })
  .describe('Limits until the period ends. 0: no limit; null: as the configuration says.')

const calendarIn = ({ policies }: Pick<BudgetSources, 'policies'>) => policies().budget.settings.policy.calendar()

/** Returns the limits in force, each once: general ones before those of overrides, then those of access keys. */
function rulesOf({ policies, keyScopes }: BudgetSources): readonly ScopeLimits[] {
  const { budget } = policies()
  const found = new Map<string, ScopeLimits>()
  const general = [budget, ...budget.rules].flatMap(({ settings }) => settings.policy.scopes)
  for (const rule of [...general, ...keyScopes()]) {
    const key = `${rule.scope} ${rule.per} ${rule.only ?? ''}`
    if (!found.has(key)) found.set(key, rule)
  }
  return [...found.values()]
}

function fieldsOf(of: TimeAmounts) {
  const fields = tableBy(FIELDS, () => 0)
  for (const name of TIME_LIMITS) fields[TIME_FIELDS[name]] = rounded(of[name])
  return fields
}

async function viewOf(ledger: Ledger, place: Place): Promise<BudgetView['budget'][number]> {
  const { rule, period, subject } = place
  const { used, held, limits: max } = await ledger.read(place)
  return {
    scope: rule.scope,
    per: rule.per,
    subject,
    used: fieldsOf(amountsIn(used)),
    reserved: fieldsOf(amountsIn(held)),
    max: fieldsOf(max),
    share: Math.max(0, ...sharesOf(used, max).map(({ share }) => share)),
    mode: rule.isObserved ? 'observe' : 'enforce',
    resets_at: new Date(period.end).toISOString(),
  }
}

/** Returns the places of all limits that have a subject by now, or of some of them. */
async function placesOf(sources: BudgetSources, isAsked = (_: ScopeLimits) => true): Promise<readonly Place[]> {
  const { ledger } = sources
  const calendar = calendarIn(sources)
  const places: Place[] = []
  const rules = rulesOf(sources).filter(isAsked)
  const hasOwn = ({ scope, per, only }: ScopeLimits, subject: string | null) =>
    only === undefined && rules.some((one) => one.scope === scope && one.per === per && one.only === subject)
  for (const rule of rules) {
    const period = calendar.periodOf(rule.scope, ledger.time())
    const known = rule.per === 'all' ? [null] : await ledger.subjects(period, rule.per)
    for (const subject of rule.only === undefined ? known : [rule.only])
      if (!hasOwn(rule, subject)) places.push(placeOf(rule, period, subject))
  }
  return places
}

/** Returns the limits for all requests together, the fullest of each period, as a head line shows them. */
export async function headLimits(sources: BudgetSources): Promise<NonNullable<SessionPage['summary']>['limits']> {
  const limits = []
  for (const place of await placesOf(sources, ({ per, isObserved }) => per === 'all' && !isObserved)) {
    const { used, limits: max } = await sources.ledger.read(place)
    const fullest = nearestOf(timeUses(place.rule.scope, { used: amountsIn(used), limits: max }))
    if (fullest) limits.push({ ...fullest, resets_at: new Date(place.period.end).toISOString() })
  }
  return limits
}

/**
 * Reads what is used of the limits of scopes of time of a session; what the store can't say is not known. `known`: what
 * is read already, by name.
 */
export async function readUses(
  sources: Pick<BudgetSources, 'ledger' | 'policies'>,
  { threads }: Session,
  known = new Map<string, TimeUse>(),
): Promise<UsedOf> {
  const { ledger } = sources
  const placed = ({ rule, subject }: SubjectLimits) => {
    const place = placeOf(rule, calendarIn(sources).periodOf(rule.scope, ledger.time()), subject)
    return { ...place, known: `${place.name} ${Object.values(rule.limits)}` }
  }
  for (const { run } of threads)
    for (const one of run.timeLimits ?? []) {
      const place = placed(one)
      if (one.rule.isObserved || known.has(place.known)) continue
      const read = await ledger.read(place).catch(ignore)
      if (!read) continue
      known.set(place.known, { used: amountsIn(read.used), limits: read.limits, start: place.period.start })
    }
  return (one) => known.get(placed(one).known)
}

/** Sets limits until their period ends; returns what is used of them then. */
async function setLimits(sources: BudgetSources, body: z.output<typeof scopeLimitBody>, by: AdminAccess['by']) {
  const { ledger, emit } = sources
  const { scope, per, subject, ...set } = body
  const rules = rulesOf(sources)
  const fitting = rules.filter(
    (rule) =>
      rule.scope === scope &&
      (rule.only === undefined || rule.only === subject) &&
      (per === undefined ? (rule.per === 'all') === (subject === null) : rule.per === per),
  )
  const own = fitting.filter(({ only }) => only !== undefined)
  const [rule, other] = own.length > 0 ? own : fitting
  const namesOf = (some: readonly ScopeLimits[]) =>
    some.map((one) => `${one.scope} per ${one.per}${one.only === undefined ? '' : ` ${one.only}`}`).join(', ')
  if (!rule || (rule.per === 'all') !== (subject === null)) {
    const there =
      rules.length > 0
        ? `such limit; there are: ${namesOf(rules)}`
        : 'limit to change: start Governor with one, such as --max-cost-per-day 20'
    throw new RequestProblem(404, 'unknown_limit', `There is no ${there}.`)
  }
  if (other) throw new RequestProblem(409, 'ambiguous_limit', `Several limits fit: give per (${namesOf(fitting)}).`)
  const place = placeOf(rule, calendarIn(sources).periodOf(scope, ledger.time()), subject)
  const changed: Partial<Record<TimeLimitName, number | undefined>> = {}
  for (const name of TIME_LIMITS) {
    const max = set[METERS[name].limit.setting]
    if (max !== undefined) changed[name] = max ?? undefined
  }
  await ledger.setLimits(place, changed)
  emit({ kind: 'scope_limit_set', scope, per: rule.per, subject, by, details: set })
  return viewOf(ledger, place)
}

/** Adds the routes to the API, whose hooks let in only those who may use it. */
export function budgetRoutes(app: FastifyInstance, sources: BudgetSources): void {
  app.get('/governor/budget', async (): Promise<BudgetView> => {
    const budget: BudgetView['budget'] = []
    for (const place of await placesOf(sources)) budget.push(await viewOf(sources.ledger, place))
    return { time_zone: calendarIn(sources).zone, budget }
  })
  app.patch('/governor/budget', ({ body, admin }) =>
    setLimits(sources, validated(scopeLimitBody, body ?? undefined, 'body'), admin.by),
  )
}
