/**
 * The sums of one period for one subject, such as what a key has used today. Each process changes a part of its own, so
 * that parts which were counted apart are simply put together.
 */
import { add, type Counts, minus, NO_COUNTS, rounded } from '../counters.ts'
import { tableBy } from '../names.ts'
import {
  amountIn,
  METERS,
  type Meter,
  type MeterRow,
  TIME_LIMITS,
  type TimeLimitName,
  type TimeMeter,
} from './meters.ts'
import type { Period, TimeScope } from './scopes.ts'

/** Limits of a scope of time, or amounts of its meters; of limits, 0 is none. */
export type TimeAmounts = Readonly<Record<TimeLimitName, number>>

/** The limits of one scope of time, for all requests together or for each subject. */
export interface ScopeLimits {
  readonly scope: TimeScope
  /** `all`, `credential`, `key`, `model`, `upstream`, or `header:` and the name of a header in lower case. */
  readonly per: string
  /** The one subject that they are for; unset: for each. */
  readonly only?: string | undefined
  readonly limits: TimeAmounts
  /** They are counted and reported, but end nothing. */
  readonly isObserved: boolean
}

/** Limits of a scope of time that hold for a run. `subject`: whose sum counts; `null` for that of all requests. */
export interface SubjectLimits {
  readonly rule: ScopeLimits
  readonly subject: string | null
}

/** What one process has counted, and what it holds for its requests in flight. */
interface Part {
  readonly used: Counts
  readonly held: Counts
  /** What it holds is nothing any more from then on, in milliseconds since the epoch: the process has ended. */
  readonly until: number
  /** How often the process has changed it: a store that went back to an older state has fewer. */
  readonly changes?: number
}

/** The parts of all processes by name, and the limits that an operator has set. A field of a newer version is kept. */
export interface Account {
  readonly limits?: { readonly max: Partial<TimeAmounts>; readonly setAt: number }
  readonly [part: `p:${string}`]: Part
}

/**
 * Milliseconds for which a process holds something without saying so again: a request that waits for what a killed
 * process held, as long as `stop.ask_timeout` says by default, goes on.
 */
export const LEASE_MS = 15_000

const NO_PART: Part = { used: NO_COUNTS, held: NO_COUNTS, until: 0 }

/** Returns the amounts of the meters of a scope of time in counts. */
export function amountsIn(counts: Counts): TimeAmounts {
  return tableBy(TIME_LIMITS, (name) => amountIn(counts, name) ?? 0)
}

export function partsOf(account: object): readonly `p:${string}`[] {
  return Object.keys(account).filter((name): name is `p:${string}` => name.startsWith('p:'))
}

/** Returns what all processes have used, and what they hold. */
export function sumsOf(account: Account, now: number): { readonly used: Counts; readonly held: Counts } {
  let used = NO_COUNTS
  let held = NO_COUNTS
  for (const name of partsOf(account)) {
    const part = account[name] ?? NO_PART
    used = add(used, part.used)
    // One far ahead was written before the clock was set back, by a process that has ended since, or will say so again.
    if (part.until > now && part.until <= now + 2 * LEASE_MS) held = add(held, part.held)
  }
  return { used, held }
}

/** Returns the limits of an account: those that an operator has set, else the configured ones. */
export function limitsIn(account: Account, { limits }: Pick<ScopeLimits, 'limits'>): TimeAmounts {
  return { ...limits, ...account.limits?.max }
}

/** What a request may use, which it holds until that is known. */
export interface Ask {
  readonly counts: Counts
  /** Nobody knows yet what the answers of its model use. */
  readonly isGuess: boolean
}

/** Until a model has answered, each of its requests holds this share of a limit, if not more. */
const GUESSED = 0.1

/** Sums of fractions are never quite round. */
const HAIR = 1 + 1e-9

/** Where a request stands in one account. */
export interface Standing {
  /** Before the request. */
  readonly used: Counts
  /** What others hold. */
  readonly held: Counts
  readonly limits: TimeAmounts
  /** What the request holds now; unset if it does not fit. */
  readonly hold?: Counts
  /** It would fit, if no other were in flight. */
  readonly isCrowded: boolean
  /** A limit is reached. */
  readonly isSpent: boolean
}

/** Returns what a request holds in an account with these limits. */
function holdOf({ counts, isGuess }: Ask, limits: TimeAmounts): Counts {
  if (!isGuess) return counts
  const { input = 0, output = 0, cost = 0 } = counts
  return {
    ...counts,
    input: Math.max(input, limits.tokens * GUESSED - output),
    cost: Math.max(cost, limits.cost * GUESSED),
  }
}

/** Returns where a request stands. It holds what it asks for if that fits, or if no other request is in flight. */
export function standingOf(account: Account, ask: Ask, limits: TimeAmounts, now: number): Standing {
  const { used, held } = sumsOf(account, now)
  const hold = holdOf(ask, limits)
  const before = amountsIn(used)
  const others = amountsIn(held)
  const asked = amountsIn(hold)
  let isCrowded = false
  for (const name of TIME_LIMITS) {
    const max = limits[name]
    if (max <= 0 || asked[name] <= 0) continue
    if (before[name] >= max) return { used, held, limits, isCrowded: false, isSpent: true }
    isCrowded ||= others[name] > 0 && before[name] + others[name] + asked[name] > max * HAIR
  }
  return { used, held, limits, isCrowded, isSpent: false, ...(isCrowded ? {} : { hold }) }
}

/** A change of a process's part: what it used, what it holds from now on, and what it holds no more. */
export interface PartChange {
  readonly used?: Counts | undefined
  readonly hold?: Counts | undefined
  readonly release?: Counts | undefined
}

/** Returns a part after a change. `now`: in milliseconds since the epoch. */
export function partAfter(part: Part = NO_PART, { used, hold, release }: PartChange, now: number): Part {
  const held = release ? minus(part.held, release) : part.held
  return {
    used: used ? add(part.used, used) : part.used,
    held: hold ? add(held, hold) : held,
    until: now + LEASE_MS,
    changes: (part.changes ?? 0) + 1,
  }
}

/**
 * Returns an account of a store with what a process knows better: its own part, and a limit that was set later; all
 * that it knows, where the store has lost it.
 */
export function knownAccount(here: Account, stored: Account, own: `p:${string}`): Account {
  if (!stored.limits && partsOf(stored).length === 0) return here
  const { [own]: mine, ...limit } = here
  const { changes = 0 } = stored[own] ?? {}
  return mergedAccount(mine && (mine.changes ?? 0) > changes ? here : limit, stored, own)
}

/** Returns an account with what a copy of it knows of all processes but one, whose part is newest here. */
export function mergedAccount(here: Account, there: Account, own: `p:${string}`): Account {
  const { [own]: mine } = here
  const limits = (here.limits?.setAt ?? 0) > (there.limits?.setAt ?? 0) ? here.limits : there.limits
  return { ...there, ...(mine && { [own]: mine }), ...(limits && { limits }) }
}

/** Returns what is used of each limit, and its share of the limit. */
export function sharesOf(used: Counts, limits: TimeAmounts): (Meter<TimeLimitName> & { readonly share: number })[] {
  const amounts = amountsIn(used)
  return TIME_LIMITS.filter((name) => limits[name] > 0).map((name) => {
    const [of, max] = [amounts[name], limits[name]]
    return { name, used: of, max, share: rounded(of / max) }
  })
}

/** Returns the meters of a request in one account. `steps`: what a step of its run uses, if that is known. */
export function metersIn(
  { used, held, limits, isCrowded }: Standing,
  { scope, end, resets }: Period,
  asked: Counts,
  steps: Readonly<Record<TimeLimitName, number | undefined>>,
): TimeMeter[] {
  const before = amountsIn(used)
  const others = amountsIn(held)
  const meters: TimeMeter[] = []
  for (const name of TIME_LIMITS) {
    const max = limits[name]
    // A run under way began before.
    if (max <= 0 || (name === 'runs' && !asked.runs)) continue
    const { includesCurrent }: MeterRow = METERS[name]
    const left = Math.max(0, max - before[name] - others[name])
    const time = { resetsAt: end, resets, left, step: steps[name] }
    const meter = { name, used: before[name] + (includesCurrent ? 1 : 0), max, scope }
    meters.push({ ...meter, time: isCrowded && others[name] > 0 ? { ...time, isCrowded } : time })
  }
  return meters
}
