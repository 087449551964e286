/** What every request needs; made once, in app.ts. */
import type { Dispatcher } from 'undici'
import type { Catalogue } from '../catalogue/catalogue.ts'
import type { LoopPolicy } from '../core/loop-guard.ts'
import type { BudgetSettingsByRule } from '../core/policy.ts'
import type { ScaffoldRegistry } from '../core/scaffolding.ts'
import type { Store } from '../store/store.ts'
import type { Emit } from '../telemetry/event.ts'
import type { NotePriceless } from './bill.ts'
import type { IdentitySettings } from './identity.ts'
import type { Recall } from './recall.ts'
import type { Refusals } from './refusals.ts'
import type { Upstream } from './route.ts'

/** What a reload may change; read once per request. */
export interface Policies {
  readonly budget: BudgetSettingsByRule
  readonly loop: LoopPolicy
}

export interface ProxyContext {
  readonly upstreams: ReadonlyMap<string, Upstream>
  readonly transport: Dispatcher
  readonly store: Store
  readonly policies: () => Policies
  readonly catalogue: Catalogue
  /** Tokens that a model takes, prompt and answer together; `undefined` where that is not known. */
  readonly windowOf: (model: string, upstream: Upstream) => number | undefined
  readonly notePriceless: NotePriceless
  readonly registry: ScaffoldRegistry
  readonly recall: Recall
  readonly identity: IdentitySettings
  readonly refusals: Refusals
  /** Hashes of the keys that may use upstreams with a key of their own; empty: anybody. */
  readonly accessKeys: ReadonlySet<string>
  /** Bytes. */
  readonly maxGuardedBody: number
  readonly emit: Emit
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** A fresh random id for a reply of Governor's own. */
  readonly newId: () => string
}
