/** What is known of the context windows of models, by upstream and model: shared by all sessions, bounded. */
import { LRUCache } from 'lru-cache'
import {
  type BaseContext,
  baseContext,
  declare,
  type EffectiveContext,
  effectiveContext,
  isWindow,
  type KnownWindow,
  learn,
  type Reduction,
  succeed,
} from '../core/context.ts'
import type { Overflow } from '../core/overflow.ts'
import type { Upstream } from './route.ts'

/** A model at an upstream. */
export interface ModelAt {
  readonly upstream: Upstream
  readonly model: string
}

export interface Windows {
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

/** Upstream and model pairs; a model name is the client's to choose, so both their number and length are bounded. */
const MAX_PAIRS = 2_000
const MAX_NAME = 200

/** A model as it is remembered in sessions: its name is the client's to choose. */
export function keptName(model: string): string {
  return model.slice(0, MAX_NAME)
}

export function createWindows({ configured, catalogued, now }: WindowSources): Windows {
  const known = new LRUCache<string, KnownWindow>({ max: MAX_PAIRS })
  const keyOf = ({ upstream, model }: ModelAt) => `${upstream.name} ${keptName(model)}`
  // Most of the time nobody has said anything of any model.
  const knownOf = (of: ModelAt) => (known.size === 0 ? undefined : known.get(keyOf(of)))
  const base = (of: ModelAt): BaseContext => {
    const own = configured(of)
    const stated = knownOf(of)
    // The catalogue takes a while to load: it is asked only where nobody knows better.
    const isStated = own !== undefined || stated?.declared !== undefined || stated?.learned !== undefined
    const listed = isStated ? undefined : catalogued(of)
    return baseContext(own, stated, listed !== undefined && isWindow(listed) ? listed : undefined)
  }
  const change = (of: ModelAt, by: (known: KnownWindow | undefined) => KnownWindow | undefined): void => {
    const before = knownOf(of)
    const after = by(before)
    if (after && after !== before) known.set(keyOf(of), after)
  }
  return {
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
    learn: (of, overflow) => change(of, (window) => learn(window, overflow)),
    declare: (of, window) => change(of, (before) => declare(before, window)),
    succeed: (of, promptTokens) => {
      // Every answer comes by here, and of most models nothing is known.
      if (known.size > 0) change(of, (window) => succeed(window, promptTokens))
    },
  }
}
