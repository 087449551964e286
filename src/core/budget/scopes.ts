/**
 * The scopes of limits, one row each: a run, a session, its rate, and periods of the calendar. The configuration, the
 * notices, the ends of runs and the API are made of these rows.
 */
import { namesOf } from '../names.ts'

const HOUR = 3_600_000
/** No time zone is further from UTC, and no calendar day is longer. */
const MOST_OFFSET = 16 * HOUR

/** A time of the calendar in milliseconds, as if the place were at UTC. */
type LocalTime = number

/** All that is particular about one scope. */
interface ScopeRow {
  /** What a notice says after its numbers; empty for what the model takes for granted. */
  readonly words: string
  /** A limit in the sentence that tells the model that it is reached; `noun`: cost, token. */
  readonly limit: (noun: string) => string
  /** Of a scope of time: when its period begins that a time is in, and when the next one begins. */
  readonly time?: {
    readonly begin: (local: LocalTime) => LocalTime
    readonly next: (begin: LocalTime) => LocalTime
    /** The clock may show the same hour twice on a day: those are two periods. */
    readonly isOfClock?: true
  }
}

/** Returns midnight, so many days and months later; months may have a day 0, as in `Date.UTC`. */
function dateOf(local: LocalTime, { months = 0, days = 0, day }: { months?: number; days?: number; day?: number }) {
  const date = new Date(local)
  return Date.UTC(date.getUTCFullYear(), date.getUTCMonth() + months, (day ?? date.getUTCDate()) + days)
}

/** The scopes; of two that are reached at once, the first counts. */
export const SCOPES = {
  run: { words: '', limit: (noun) => `the ${noun} limit of this run` },
  session: { words: '', limit: (noun) => `the ${noun} limit of this session` },
  /** The rate of a session: see `velocity.ts`. */
  minute: { words: 'per minute', limit: (noun) => `this session's ${noun} limit per minute` },
  hour: {
    words: 'this hour',
    limit: (noun) => `this hour's ${noun} limit`,
    time: { begin: (local) => Math.floor(local / HOUR) * HOUR, next: (begin) => begin + HOUR, isOfClock: true },
  },
  day: {
    words: 'today',
    limit: (noun) => `today's ${noun} limit`,
    time: { begin: (local) => dateOf(local, {}), next: (begin) => dateOf(begin, { days: 1 }) },
  },
  week: {
    words: 'this week',
    limit: (noun) => `this week's ${noun} limit`,
    time: {
      // Weeks begin on Monday.
      begin: (local) => dateOf(local, { days: -((new Date(local).getUTCDay() + 6) % 7) }),
      next: (begin) => dateOf(begin, { days: 7 }),
    },
  },
  month: {
    words: 'this month',
    limit: (noun) => `this month's ${noun} limit`,
    time: { begin: (local) => dateOf(local, { day: 1 }), next: (begin) => dateOf(begin, { months: 1 }) },
  },
} as const satisfies Readonly<Record<string, ScopeRow>>

/** The name of a scope, as in the configuration and in the terminal state. */
export type ScopeName = keyof typeof SCOPES

/** The scopes that are periods of the calendar. */
export type TimeScope = {
  [Name in ScopeName]: (typeof SCOPES)[Name] extends { readonly time: object } ? Name : never
}[ScopeName]

/** The scopes of time, the shortest first. */
export const TIME_SCOPES: readonly TimeScope[] = namesOf(SCOPES).filter(
  (name): name is TimeScope => 'time' in SCOPES[name],
)

/** Returns the row of a scope; a meter without a scope is one of a run. */
export function scopeRow(name: ScopeName = 'run'): ScopeRow {
  return SCOPES[name]
}

/** A period of the calendar: its first instant, and the first one after it, in milliseconds since the epoch. */
export interface Period {
  readonly scope: TimeScope
  readonly start: number
  readonly end: number
  /** `end` as people of the time zone read it. */
  readonly resets: string
  /** The same for all processes: its scope, its first instant in UTC, and the time zone. */
  readonly name: string
}

/** The calendar of one time zone. */
export interface Calendar {
  readonly zone: string
  /** Returns the period that an instant is in. */
  periodOf(scope: TimeScope, at: number): Period
  /** Returns an instant as people of the time zone read it: `2026-11-28 00:00 Europe/Berlin`. */
  textOf(at: number): string
}

/** Returns the first instant of two, to the millisecond, for which something that stays true is true; `to` if none. */
function firstInstant(from: number, to: number, isReached: (at: number) => boolean): number {
  let [before, after] = [from, to]
  if (isReached(before)) return before
  while (after - before > 1) {
    const middle = Math.floor((before + after) / 2)
    if (isReached(middle)) after = middle
    else before = middle
  }
  return after
}

/** Creates the calendar of an IANA time zone. @throws {RangeError} if there is no such zone. */
export function createCalendar(zone: string): Calendar {
  const clock = new Intl.DateTimeFormat('en-US', {
    timeZone: zone,
    calendar: 'gregory',
    numberingSystem: 'latn',
    hourCycle: 'h23',
    year: 'numeric',
    month: 'numeric',
    day: 'numeric',
    hour: 'numeric',
    minute: 'numeric',
    second: 'numeric',
    fractionalSecondDigits: 3,
  })
  const localOf = (at: number): LocalTime => {
    const parts: Record<string, number> = {}
    for (const { type, value } of clock.formatToParts(at)) parts[type] = Number(value)
    const { year = 0, month = 1, day, hour, minute, second, fractionalSecond } = parts
    return Date.UTC(year, month - 1, day, hour, minute, second, fractionalSecond)
  }
  /**
   * Returns the first instant at which the clock shows a time or a later one: some times are left out, some come twice.
   */
  const instantOf = (local: LocalTime): number => {
    const offsets = [local - MOST_OFFSET, local + MOST_OFFSET].map((at) => localOf(at) - at)
    const [earliest, latest] = [local - Math.max(...offsets), local - Math.min(...offsets)]
    return firstInstant(earliest, latest, (at) => localOf(at) >= local)
  }
  /** Returns the part of an hour in which the clock is not set. */
  const hourOf = (at: number, begin: LocalTime): readonly [number, number] => {
    const offset = localOf(at) - at
    const isSame = (other: number) => localOf(other) - other === offset
    const start = begin - offset
    const end = start + HOUR
    return [firstInstant(start, at, isSame), firstInstant(at, end, (other) => other === end || !isSame(other))]
  }
  const textOf = (at: number) => `${new Date(localOf(at)).toISOString().slice(0, 16).replace('T', ' ')} ${zone}`
  const newest = new Map<TimeScope, Period>()
  return {
    zone,
    periodOf(scope, at) {
      const known = newest.get(scope)
      if (known && at >= known.start && at < known.end) return known
      const { time }: ScopeRow & { readonly time: NonNullable<ScopeRow['time']> } = SCOPES[scope]
      let begin = time.begin(localOf(at))
      let [start, end] = time.isOfClock ? hourOf(at, begin) : [instantOf(begin), instantOf(time.next(begin))]
      // Where the clock was set back past midnight, the day that has begun goes on.
      for (; end <= at; end = instantOf(time.next(begin))) {
        begin = time.next(begin)
        start = end
      }
      const name = `${scope} ${new Date(start).toISOString()} ${zone}`
      const period = { scope, start, end, resets: textOf(end), name }
      newest.set(scope, period)
      return period
    },
    textOf,
  }
}
