/** The settings of scopes of time: limits of an hour, a day, a week and a month. */
import * as z from 'zod'
import type { ScopeLimits } from '../core/budget/ledger.ts'
import { METERS, TIME_LIMITS, type TimeLimitName, type TimeLimitSetting } from '../core/budget/meters.ts'
import { type Calendar, createCalendar, TIME_SCOPES, type TimeScope } from '../core/budget/scopes.ts'
import { RATE_LIMITS, type RateLimitName, type Velocity } from '../core/budget/velocity.ts'
import { tableBy } from '../core/names.ts'
import { MAX_MINUTES_KEPT, MINUTE_MS } from '../core/operator/session-record.ts'
import { choice, count, dollars, duration, headerName, key, optional, seconds, section as sectionOf } from './units.ts'

const VALUES = { whole: z.int().min(0), count, dollars, seconds }

const maxima = {} as Record<TimeLimitSetting, z.ZodOptional<(typeof VALUES)[keyof typeof VALUES]>>
for (const name of TIME_LIMITS) {
  const { limit } = METERS[name]
  maxima[limit.setting] = VALUES[limit.value].optional().describe(limit.help)
}

/** Headers that hold a key, which would stand in the API and the log. */
const CREDENTIALS =
  /(?:auth(?:orization)?|cookie|(?:api|access|auth|subscription|functions)[-_]?key|token|jwt|secret|password|credentials?)$/i

const SUBJECTS = 'all, credential, key, model, upstream, or header: and the name of a header, such as header:x-team'

const per = z
  .string()
  .toLowerCase()
  .refine((text) => {
    const [, header] = /^header:(.+)$/.exec(text) ?? []
    return header === undefined
      ? /^(?:all|credential|key|model|upstream)$/.test(text)
      : headerName.safeParse(header).success && !CREDENTIALS.test(header)
  }, `expected one of ${SUBJECTS}; for a header with a key: credential`)
  .default('all')
  .describe(`What each has a sum of its own: ${SUBJECTS}.`)

const needed = Object.keys(maxima).join(', ')

const mode = z.enum(['enforce', 'observe']).default('enforce').describe('observe: count and report, but end nothing.')

const setsLimit = (limits: Readonly<Partial<Record<TimeLimitSetting, number | undefined>>>) =>
  TIME_LIMITS.some((name) => limits[METERS[name].limit.setting] !== undefined)
const NO_LIMIT = { message: `sets no limit: expected one of ${needed}` }

/** The limits of one scope of time for all requests together, or for each subject. */
const scopeLimits = z.strictObject({ per, ...maxima, mode }).refine(setsLimit, NO_LIMIT)

/** The limits of one access key: it is the subject. */
const keyLimits = z.strictObject({ ...maxima, mode }).refine(setsLimit, NO_LIMIT)

const listOfLimits = z
  .array(scopeLimits)
  .min(1)
  .superRefine((list, context) => {
    for (const [at, limits] of list.entries()) {
      if (list.findIndex((other) => other.per === limits.per) === at) continue
      const message = 'there is one already: expected one entry for each'
      context.addIssue({ code: 'custom', path: [at, 'per'], message })
    }
  })

const FORMS = 'expected limits such as {max_cost_usd: 20}, or a list of them'

const section = optional(z.union([scopeLimits, listOfLimits], FORMS), { max_cost_usd: 20 })

const HELP =
  'Such as {max_cost_usd: 20}; a list of them for several `per`. These limits count and end every request of a ' +
  'guarded API, with tools or without; sums survive restarts, and are one for all replicas and for all Governors of ' +
  `a user on a machine. per: what has a sum of its own: ${SUBJECTS}. Limits: ${needed}; 0 is no limit. ` +
  'mode: observe counts and reports, but ends nothing.'

/** The sections of all scopes of time. */
export const scopeSections = tableBy(TIME_SCOPES, (scope) =>
  section.describe(
    `Limits for each calendar ${scope}. ${scope === TIME_SCOPES[0] ? HELP : `As in \`${TIME_SCOPES[0]}\`.`}`,
  ),
)

/** The sections of an access key's own limits. */
export const keySections = tableBy(TIME_SCOPES, (scope) =>
  optional(keyLimits, { max_cost_usd: 5 }).describe(`Limits of this key for each calendar ${scope}.`),
)

/** The time zone of days, weeks and months. */
export const timeZone = z
  .string()
  .refine((zone) => {
    try {
      if (zone !== 'local') createCalendar(zone)
      return true
    } catch {
      return false
    }
  }, 'no such time zone: expected local, or a name such as Europe/Berlin or UTC')
  .default('local')
  .meta({ examples: ['Europe/Berlin'] })
  .describe(
    'Time zone of hours, days, weeks (from Monday) and months. local: the one of this machine; all replicas need the ' +
      'same, so name it where they share a store.',
  )

type Limits = z.output<typeof keyLimits> & { readonly per?: string }
type Sections = { readonly [Scope in TimeScope]?: Limits | readonly Limits[] | undefined }

/**
 * Converts the sections to limits, those of the shortest scope first. `key`: the name of the access key that has them.
 */
export function scopesOf(sections: Sections, key?: string): readonly ScopeLimits[] {
  return TIME_SCOPES.flatMap((scope) =>
    [sections[scope] ?? []].flat().map(({ per = 'key', mode, ...set }) => ({
      scope,
      per,
      only: key,
      limits: tableBy(TIME_LIMITS, (name: TimeLimitName) => set[METERS[name].limit.setting] ?? 0),
      isObserved: mode === 'observe',
    })),
  )
}

const rates = {} as Record<(typeof METERS)[RateLimitName]['limit']['setting'], z.ZodPrefault<z.ZodType<number>>>
for (const name of RATE_LIMITS) {
  const { limit } = METERS[name]
  const amount: z.ZodType<number> = VALUES[limit.value]
  rates[limit.setting] = amount.prefault(0).describe(`Per minute: ${limit.help}`)
}

/** The section of the rate of each session. */
export const velocity = sectionOf({
  ...rates,
  over: key(
    duration.refine((ms) => ms % MINUTE_MS === 0 && ms >= MINUTE_MS && ms <= MAX_MINUTES_KEPT * MINUTE_MS, {
      message: 'expected whole minutes, from 1m to 60m',
    }),
    '5m',
  ).describe('The time over which the rate is measured: so many minutes of the clock, the current one included.'),
  action: choice(['stop', 'slow'], 'stop').describe(
    'What happens above it. stop: the agent reads a caution from half of the limit on, one notice at the limit, and ' +
      'its next request ends the run. slow: requests wait until the rate is below the limit, one after the other, at ' +
      'most 30 s each.',
  ),
  mode,
}).describe(
  'Limits on what a session uses per minute, all its runs and agents together; 0 is no limit. ' +
    "A new run, and a request without tools, get Governor's own text above it, without a call.",
)

/** Converts the section to limits; `undefined` if it sets none. */
export function velocityOf({ over, action, mode, ...set }: z.output<typeof velocity>): Velocity | undefined {
  const limits = tableBy(RATE_LIMITS, (name: RateLimitName) => set[METERS[name].limit.setting])
  if (RATE_LIMITS.every((name) => limits[name] === 0)) return undefined
  return { limits, minutes: over / MINUTE_MS, slows: action === 'slow', isObserved: mode === 'observe' }
}

/** Returns a function that makes the calendar of a time zone of the configuration, once. */
export function calendarOf(zone: string): () => Calendar {
  let made: Calendar | undefined
  return () => {
    made ??= createCalendar(zone === 'local' ? Intl.DateTimeFormat().resolvedOptions().timeZone : zone)
    return made
  }
}
