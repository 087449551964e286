/** The context windows of models, by upstream and model: shared by all sessions and bounded. */
import {
  type BaseContext,
  baseContext,
  type EffectiveContext,
  effectiveContext,
  isWindow,
  type KnownWindow,
  NO_WINDOW,
  type Reduction,
} from '../../core/context-window.ts'
import type { Upstream } from '../../http/upstream.ts'
import type { SharedValues } from '../../store/shared-values.ts'
import type { ValueKind } from '../../store/store.ts'
import { type Catalogue, configuredValue, type ModelSettings } from '../../usage/catalogue.ts'

/** A model at an upstream. */
interface ModelAt {
  readonly upstream: Upstream
  readonly model: string
}

/** The stored window of a model, by upstream and model; it is forgotten after 30 days without a change. */
export const KNOWN_WINDOW: ValueKind<KnownWindow> = {
  name: 'window',
  ttl: 30 * 24 * 3_600_000,
  empty: NO_WINDOW,
}

const MAX_NAME = 200

/** Returns a model's name cut to the length that is stored: clients choose it freely. */
export function keptName(model: string): string {
  return model.slice(0, MAX_NAME)
}

/** What is known of context windows, in tokens. */
export type Windows = ReturnType<typeof createWindows>

/**
 * Creates the windows of one Governor over the values that its processes share. `now`: milliseconds since the epoch.
 */
export function createWindows(
  known: SharedValues<KnownWindow>,
  models: readonly ModelSettings[],
  catalogue: Catalogue,
  now: () => number,
) {
  const keyOf = ({ upstream, model }: ModelAt) => `${upstream.name} ${keptName(model)}`
  const base = (of: ModelAt): BaseContext => {
    const fromConfig = configuredValue(models, of.model, of.upstream.name, 'context_window')
    const stated = known.copyOf(keyOf(of))
    // The catalogue takes a while to load, so it is the last resort.
    const isKnown = fromConfig !== undefined || stated.declared !== undefined || stated.learned !== undefined
    const listed = isKnown ? undefined : catalogue.modelAt(of.model, of.upstream).contextWindow
    return baseContext(fromConfig, stated, listed !== undefined && isWindow(listed) ? listed : undefined)
  }
  return {
    /** Reads from the store what other processes learned, at most every half minute. Never rejects. */
    refresh: (of: ModelAt) => known.refresh(keyOf(of)),
    base,
    /** The context that a session with these reductions may use now. */
    effective(of: ModelAt, reductions: readonly Reduction[]): EffectiveContext {
      const at = { upstream: of.upstream.name, model: keptName(of.model) }
      return effectiveContext(base(of), reductions, at, now())
    },
    /** Learns from what a provider stated or accepted. */
    change: <Fact>(of: ModelAt, by: (window: KnownWindow, fact: Fact) => KnownWindow, fact: Fact) =>
      known.change(keyOf(of), (window) => by(window, fact)),
  }
}
