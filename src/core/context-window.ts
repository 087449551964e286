/**
 * The context windows of models. The base is the window of a model at an upstream, with the source of that number; the
 * effective context is what one session may use for now. A reduction never changes the base or another session. All
 * sizes are tokens.
 */
import type { Overflow } from '../overflow/meaning.ts'

/** The context window of a model at an upstream; without tokens if it is unknown. */
export interface BaseContext {
  readonly tokens: number | undefined
  readonly source: 'config' | 'provider' | 'catalogue' | 'unknown'
}

/** The windows that a provider has stated for one model, in its list and in an overflow error; plain JSON. */
export interface KnownWindow {
  readonly declared?: number
  readonly learned?: number
}

/** The provider has stated no window. */
export const NO_WINDOW: KnownWindow = {}

/** True if so many tokens can be a context window; other numbers are mistakes in reading. */
export function isWindow(tokens: number): boolean {
  return Number.isSafeInteger(tokens) && tokens >= 16 && tokens <= 100_000_000
}

function statedWindow({ declared, learned }: KnownWindow): number | undefined {
  if (declared === undefined || learned === undefined) return learned ?? declared
  return Math.min(declared, learned)
}

/** Returns the window of the configuration, else that of the provider, else that of the catalogue. */
export function baseContext(config: number | undefined, known: KnownWindow, listed: number | undefined): BaseContext {
  if (config !== undefined) return { tokens: config, source: 'config' }
  const stated = statedWindow(known)
  if (stated !== undefined) return { tokens: stated, source: 'provider' }
  if (listed !== undefined) return { tokens: listed, source: 'catalogue' }
  return { tokens: undefined, source: 'unknown' }
}

/** Returns the known window after the provider listed the model with `window`. */
export function windowAfterListing(known: KnownWindow, window: number): KnownWindow {
  return isWindow(window) ? { ...known, declared: window } : known
}

/** Returns the limit that an overflow states, if it can be a window. */
function statedLimit(overflow: Overflow): number | undefined {
  const limit = 'limit' in overflow ? overflow.limit : undefined
  return limit !== undefined && isWindow(limit) ? limit : undefined
}

/** Returns the known window after an overflow: only a stated limit changes it, and only downwards. */
export function windowAfterOverflow(known: KnownWindow, overflow: Overflow): KnownWindow {
  const limit = statedLimit(overflow)
  if (limit === undefined) return known
  const before = statedWindow(known)
  return before !== undefined && before <= limit ? known : { ...known, learned: limit }
}

/** Returns the known window after the provider accepted a prompt of this size: smaller stated windows were wrong. */
export function windowAfterAcceptance(known: KnownWindow, promptTokens: number): KnownWindow {
  const stated = Object.entries(known)
  const kept = stated.filter(([, tokens]) => tokens >= promptTokens)
  return kept.length < stated.length ? Object.fromEntries(kept) : known
}

interface ModelPlace {
  readonly upstream: string
  readonly model: string
}

/** A temporary window of one session for one model at one upstream; plain JSON. */
export interface Reduction extends ModelPlace {
  readonly tokens: number
  /** Why it is smaller than the base. */
  readonly reason: 'stated_limit' | 'tier'
  /** Milliseconds since the epoch. */
  readonly until: number
}

/** The context that a session may use for now; without tokens if no window is known. */
export interface EffectiveContext extends Partial<Pick<Reduction, 'reason' | 'until'>> {
  readonly tokens: number | undefined
}

/** The window of the standard tier, for plans without long context. */
export const STANDARD_TIER = 200_000

const MAX_REDUCTIONS = 16

function isOf({ upstream, model }: Reduction, of: ModelPlace): boolean {
  return upstream === of.upstream && model === of.model
}

/** Returns the reductions after an overflow: to its limit, or the standard tier. `ttl`: milliseconds that they hold. */
export function reductionsAfterOverflow(
  reductions: readonly Reduction[],
  { upstream, model, overflow, now, ttl }: ModelPlace & { overflow: Overflow; now: number; ttl: number },
): readonly Reduction[] {
  const isTier = overflow.recovery === 'tier_downgrade'
  const tokens = isTier ? STANDARD_TIER : statedLimit(overflow)
  if (tokens === undefined) return reductions
  const others = reductions.filter((entry) => !isOf(entry, { upstream, model }) && entry.until > now)
  const reduction: Reduction = { upstream, model, tokens, reason: isTier ? 'tier' : 'stated_limit', until: now + ttl }
  return [...others, reduction].slice(-MAX_REDUCTIONS)
}

/** Returns the reductions after the provider accepted a prompt of this size: smaller windows end. */
export function reductionsAfterAcceptance(reductions: readonly Reduction[], of: ModelPlace, promptTokens: number) {
  const kept = reductions.filter((reduction) => !isOf(reduction, of) || reduction.tokens >= promptTokens)
  return kept.length < reductions.length ? kept : reductions
}

/** Returns the context that a session may use now: the base, or less while a reduction holds. */
export function effectiveContext(
  base: BaseContext,
  reductions: readonly Reduction[],
  of: ModelPlace,
  now: number,
): EffectiveContext {
  const current = reductions.find((reduction) => isOf(reduction, of) && reduction.until > now)
  if (!current || (base.tokens !== undefined && base.tokens <= current.tokens)) return { tokens: base.tokens }
  return { tokens: current.tokens, reason: current.reason, until: current.until }
}
