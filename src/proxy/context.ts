/** What every request needs; made once, in app.ts. */
import type { Catalogue } from '../catalogue/catalogue.ts'
import type { LoopPolicy } from '../core/loop-guard.ts'
import type { BudgetSettings, ByRule } from '../core/policy.ts'
import type { ScaffoldRegistry } from '../core/scaffolding.ts'
import type { StormPolicy } from '../core/storm.ts'
import type { Row } from '../overflow/rows.ts'
import type { Store } from '../store/store.ts'
import type { Emit } from '../telemetry/event.ts'
import type { AccessSettings } from './access.ts'
import type { NotePriceless } from './bill.ts'
import type { BufferBudget } from './buffer-budget.ts'
import type { IdentitySettings } from './identity.ts'
import type { Refusals } from './refusals.ts'
import type { Upstream } from './route.ts'
import type { Transport } from './transport.ts'
import type { Windows } from './windows.ts'

/** What a reload may change; read once per request. */
export interface Policies {
  readonly budget: ByRule<BudgetSettings>
  readonly loop: ByRule<LoopPolicy>
  readonly overflow: OverflowPolicy
  readonly storm: StormPolicy
}

/** What becomes of overflows. */
export interface OverflowPolicy {
  readonly enabled: boolean
  /** The user's own first. */
  readonly quirks: readonly Row[]
  /** Rewrite them into the one error that the clients of a dialect understand. */
  readonly canonical: boolean
  /** Ask again with a lower output cap. */
  readonly retriesClamped: boolean
  /** Ask again without the beta of long context. */
  readonly retriesWithoutBeta: boolean
  /** Milliseconds for which a session's reduced context holds. */
  readonly effectiveTtl: number
}

export interface ProxyContext extends AccessSettings {
  readonly upstreams: ReadonlyMap<string, Upstream>
  readonly transport: Transport
  readonly store: Store
  readonly policies: () => Policies
  readonly catalogue: Catalogue
  readonly windows: Windows
  readonly notePriceless: NotePriceless
  readonly registry: ScaffoldRegistry
  readonly identity: IdentitySettings
  readonly refusals: Refusals
  /** Bytes. */
  readonly maxGuardedBody: number
  /** Of all bodies that are in hand. */
  readonly buffers: BufferBudget
  readonly emit: Emit
  /** Does Governor end what still runs, as the time to drain is over? */
  readonly isCut: () => boolean
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** A fresh random id for a reply of Governor's own. */
  readonly newId: () => string
}
