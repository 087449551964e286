/** What the handling of every request shares; created once, in app.ts. */
import type { LRUCache } from 'lru-cache'
import type { BudgetSettings, ByRule } from '../core/budget/policy.ts'
import type { HarnessRegistry } from '../core/harness/match.ts'
import type { LoopPolicy } from '../core/loop/patterns.ts'
import type { StormPolicy } from '../core/storm.ts'
import type { Dialect } from '../dialect/dialect.ts'
import type { BufferBudget } from '../http/body.ts'
import type { Transport } from '../http/transport.ts'
import type { Upstream } from '../http/upstream.ts'
import type { SessionKey, Store } from '../store/store.ts'
import type { Emit, UnpricedHandling } from '../telemetry/event.ts'
import type { Tracing } from '../telemetry/tracing.ts'
import type { Catalogue } from '../usage/catalogue.ts'
import type { AccessSettings } from './door/access.ts'
import type { OverflowPolicy } from './overflow/recover.ts'
import type { Windows } from './overflow/windows.ts'
import type { IdentitySettings } from './session/identity.ts'
import type { QuietRuns } from './session/quiet-runs.ts'
import type { KnownPrefixes } from './session/read-transcript.ts'
import type { UnsupportedEdits } from './unsupported-edits.ts'

/** Reports once for each upstream and model that its price is unknown. `handling`: unset without a limit on cost. */
export type NoteUnpricedModel = (model: string, upstream: Upstream, handling: UnpricedHandling | undefined) => void

/** What happens at the end of a run, besides what is said to the model. */
export interface StopPolicy {
  /** The final answer ends with a line about what ended the run. */
  readonly hasFooter: boolean
  /** A request that a limit would stop is held, so that an operator can extend its run. */
  readonly asks: boolean
  /** Milliseconds for which it is held. */
  readonly askTimeout: number
}

/** The policies, which a reload may change; read once per request. */
export interface Policies {
  readonly budget: ByRule<BudgetSettings>
  readonly loop: ByRule<LoopPolicy>
  readonly overflow: OverflowPolicy
  readonly storm: StormPolicy
  readonly stop: StopPolicy
  /** Governor only observes: it evaluates requests, but adds, blocks and stops nothing. */
  readonly observesOnly: boolean
}

export interface Services extends AccessSettings {
  readonly upstreams: ReadonlyMap<string, Upstream>
  /** The guarded dialects, in the order in which they may claim a path. */
  readonly dialects: readonly Dialect[]
  readonly transport: Transport
  readonly store: Store
  /** A reload replaces them. */
  readonly policies: Policies
  readonly catalogue: Catalogue
  readonly windows: Windows
  readonly noteUnpricedModel: NoteUnpricedModel
  readonly harnessRegistry: HarnessRegistry
  /** What users and assistants say is kept, as the configuration opts into it. */
  readonly keepsTranscripts: boolean
  readonly identity: IdentitySettings
  readonly prefixes: KnownPrefixes
  readonly unsupportedEdits: UnsupportedEdits
  readonly quietRuns: QuietRuns
  /**
   * Where this process has counted errors in a row, so that no other request waits for the store. A replica learns of
   * the errors of all others with its own first one.
   */
  readonly streaks: LRUCache<SessionKey, true>
  /** The stops that this process asks for now, by thread. Each settles when its client has its answer, or has left. */
  readonly stops: Map<string, Promise<void>>
  /** The longest body that is read, in bytes. */
  readonly maxGuardedBody: number
  /** Bounds the bytes of all bodies in memory. */
  readonly buffers: BufferBudget
  readonly emit: Emit
  readonly tracing: Tracing
  /** True once the drain time is over and Governor cuts off running requests. */
  readonly isCut: boolean
  /** Aborted once Governor accepts no more requests. */
  readonly draining: AbortSignal
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** Returns a random id for a reply that Governor makes itself. */
  readonly newId: () => string
}
