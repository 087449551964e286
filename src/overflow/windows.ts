/** What is known of the context windows of models, by upstream and model: shared by all sessions, bounded. */
import {
  type BaseContext,
  baseContext,
  declare,
  type EffectiveContext,
  effectiveContext,
  isWindow,
  type KnownWindow,
  learn,
  NO_WINDOW,
  type Reduction,
  succeed,
} from '../core/context-window.ts'
import type { Overflow } from '../core/overflow.ts'
import type { Upstream } from '../http/upstream.ts'
import type { SharedValues } from '../store/shared-values.ts'
import type { ValueKind } from '../store/store.ts'

/** A model at an upstream. */
export interface ModelAt {
  readonly upstream: Upstream
  readonly model: string
}

export interface Windows {
  /** Asks for what other processes learned, where that was not done for a while. */
  refresh(of: ModelAt): Promise<void>
  base(of: ModelAt): BaseContext
  /** What one session may count on now. */
  effective(of: ModelAt, reductions: readonly Reduction[]): EffectiveContext
  /** The provider refused a request, stating its limit or not. */
  learn(of: ModelAt, overflow: Overflow): void
  /** The provider lists the model with this window. */
  declare(of: ModelAt, window: number): void
  /** The provider took a prompt of so many tokens. */
  succeed(of: ModelAt, promptTokens: number): void
}

export interface WindowSources {
  /** The user's own word. */
  readonly configured: (of: ModelAt) => number | undefined
  readonly catalogued: (of: ModelAt) => number | undefined
  /** Milliseconds since the epoch. */
  readonly now: () => number
}

/** What a provider has said of a model, by upstream and model; a month without a word of it is long enough to ask again. */
export const KNOWN_WINDOW: ValueKind<KnownWindow> = {
  name: 'window',
  ttl: 30 * 24 * 3_600_000,
  empty: NO_WINDOW,
}

const MAX_NAME = 200

/** A model as it is remembered in sessions: its name is the client's to choose. */
export function keptName(model: string): string {
  return model.slice(0, MAX_NAME)
}

export function createWindows(
  known: SharedValues<KnownWindow>,
  { configured, catalogued, now }: WindowSources,
): Windows {
  const keyOf = ({ upstream, model }: ModelAt) => `${upstream.name} ${keptName(model)}`
  const base = (of: ModelAt): BaseContext => {
    const own = configured(of)
    const stated = known.copyOf(keyOf(of))
    // The catalogue takes a while to load: it is asked only where nobody knows better.
    const isStated = own !== undefined || stated.declared !== undefined || stated.learned !== undefined
    const listed = isStated ? undefined : catalogued(of)
    return baseContext(own, stated, listed !== undefined && isWindow(listed) ? listed : undefined)
  }
  return {
    refresh: (of) => known.refresh(keyOf(of)),
    base,
    effective: (of, reductions) => {
      const { upstream, model } = of
      return effectiveContext(
        base(of),
        reductions,
        { upstream: upstream.name, model: keptName(model) },
        now(),
      )
    },
    learn: (of, overflow) => known.change(keyOf(of), (window) => learn(window, overflow)),
    declare: (of, window) => known.change(keyOf(of), (before) => declare(before, window)),
    succeed: (of, promptTokens) => known.change(keyOf(of), (window) => succeed(window, promptTokens)),
  }
}
