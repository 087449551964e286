/**
 * What is believed of the context of models. The base is what a model can take, by upstream and model, with where that is
 * known from; the effective context is what one session may count on for now. A reduction never reaches the base or
 * another session. Pure functions over plain data; all sizes are tokens.
 */
import type { Overflow } from './overflow.ts'

/** Where a base is known from, best first. */
export type ContextSource = 'config' | 'provider' | 'catalogue' | 'unknown'

export interface BaseContext {
  /** Unset where nobody knows. */
  readonly tokens: number | undefined
  readonly source: ContextSource
}

/** What providers have said of one model at one upstream; plain JSON. */
export interface KnownWindow {
  /** In a list of its models. */
  readonly declared?: number
  /** In a refusal. */
  readonly learned?: number
}

/** Of a model that no provider has said anything about. */
export const NO_WINDOW: KnownWindow = {}

/** A window smaller than this is no window but a mistake in reading. */
const SMALLEST = 16
/** And larger than any. */
const LARGEST = 100_000_000

export function isWindow(tokens: number): boolean {
  return Number.isSafeInteger(tokens) && tokens >= SMALLEST && tokens <= LARGEST
}

/** What the provider itself confirms: the least that it has said. */
function confirmed({ declared, learned }: KnownWindow): number | undefined {
  if (declared === undefined || learned === undefined) return learned ?? declared
  return Math.min(declared, learned)
}

/** The configuration's word, else the provider's, else the catalogue's. */
export function baseContext(
  configured: number | undefined,
  known: KnownWindow,
  catalogued: number | undefined,
): BaseContext {
  if (configured !== undefined) return { tokens: configured, source: 'config' }
  const stated = confirmed(known)
  if (stated !== undefined) return { tokens: stated, source: 'provider' }
  if (catalogued !== undefined) return { tokens: catalogued, source: 'catalogue' }
  return { tokens: undefined, source: 'unknown' }
}

/** The provider lists the model with this window. */
export function declare(known: KnownWindow, window: number): KnownWindow {
  return isWindow(window) ? { ...known, declared: window } : known
}

/** The limit that an overflow states, whatever it is to be recovered by. */
export function statedLimit(overflow: Overflow): number | undefined {
  const limit = 'limit' in overflow ? overflow.limit : undefined
  return limit !== undefined && isWindow(limit) ? limit : undefined
}

/** Only a stated limit changes what is known, and only downwards. */
export function learn(known: KnownWindow, overflow: Overflow): KnownWindow {
  const limit = statedLimit(overflow)
  if (limit === undefined) return known
  const before = confirmed(known)
  return before !== undefined && before <= limit ? known : { ...known, learned: limit }
}

/** A prompt of this size was taken: what was said to be less was wrong, or is no longer so. */
export function succeed(known: KnownWindow, promptTokens: number): KnownWindow {
  const { declared, learned } = known
  const keepsDeclared = declared !== undefined && declared >= promptTokens
  const keepsLearned = learned !== undefined && learned >= promptTokens
  if (keepsDeclared === (declared !== undefined) && keepsLearned === (learned !== undefined)) return known
  return { ...(keepsDeclared ? { declared } : {}), ...(keepsLearned ? { learned } : {}) }
}

/** Why a session's context is smaller than the base. */
export type ReductionReason = 'stated_limit' | 'tier'

/** A session's own, temporary window for one model at one upstream; plain JSON. */
export interface Reduction {
  readonly upstream: string
  readonly model: string
  readonly tokens: number
  readonly reason: ReductionReason
  /** Milliseconds since the epoch. */
  readonly until: number
}

export interface EffectiveContext {
  readonly tokens: number | undefined
  readonly reason?: ReductionReason
  /** Milliseconds since the epoch. */
  readonly until?: number
}

/** What a session remembers of overflows; plain JSON. */
export interface SessionContexts {
  readonly reductions: readonly Reduction[]
  /** How many requests were refused as too large. */
  readonly overflows: number
}

export const NO_CONTEXTS: SessionContexts = { reductions: [], overflows: 0 }

/** A window of the standard tier, where long context is refused for the plan. */
export const STANDARD_TIER = 200_000

/** A session talks to few models; older reductions go first. */
const MAX_REDUCTIONS = 16

interface Refused {
  readonly upstream: string
  readonly model: string
  readonly overflow: Overflow
  /** Milliseconds since the epoch, and how long a reduction holds. */
  readonly now: number
  readonly ttl: number
}

function isOf(
  { upstream, model }: Reduction,
  of: { readonly upstream: string; readonly model: string },
): boolean {
  return upstream === of.upstream && model === of.model
}

/** What a refusal means for a session: its limit, or the standard tier; anything else leaves what is believed. */
export function reduce(
  reductions: readonly Reduction[],
  { upstream, model, overflow, now, ttl }: Refused,
): readonly Reduction[] {
  const isTier = overflow.recovery === 'tier_downgrade'
  const tokens = isTier ? STANDARD_TIER : statedLimit(overflow)
  if (tokens === undefined) return reductions
  const others = reductions.filter((one) => !isOf(one, { upstream, model }) && one.until > now)
  const reason: ReductionReason = isTier ? 'tier' : 'stated_limit'
  return [...others, { upstream, model, tokens, reason, until: now + ttl }].slice(-MAX_REDUCTIONS)
}

/** A prompt of this size was taken in the session. */
export function succeedInSession(
  reductions: readonly Reduction[],
  of: { readonly upstream: string; readonly model: string },
  promptTokens: number,
): readonly Reduction[] {
  const isUndone = (one: Reduction) => isOf(one, of) && one.tokens < promptTokens
  return reductions.some(isUndone) ? reductions.filter((one) => !isUndone(one)) : reductions
}

/** What a session may count on now: the base, or less while a reduction holds. */
export function effectiveContext(
  base: BaseContext,
  reductions: readonly Reduction[],
  of: { readonly upstream: string; readonly model: string },
  now: number,
): EffectiveContext {
  const held = reductions.find((one) => isOf(one, of) && one.until > now)
  if (!held || (base.tokens !== undefined && base.tokens <= held.tokens)) return { tokens: base.tokens }
  return { tokens: held.tokens, reason: held.reason, until: held.until }
}
