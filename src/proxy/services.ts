/** What the handling of every request shares; created once, in app.ts. */

import type { LRUCache } from 'lru-cache'
import type { ScopeLimits } from '../core/budget/ledger.ts'
import type { BudgetSettings, ByRule } from '../core/budget/policy.ts'
import type { Labels } from '../core/conversation/label.ts'
import type { Channel } from '../core/decide.ts'
import type { HarnessRegistry } from '../core/harness/match.ts'
import type { LoopPolicy } from '../core/loop/patterns.ts'
import type { Pause } from '../core/operator/pause.ts'
import type { StormPolicy } from '../core/storm.ts'
import type { FinalAnswer } from '../core/terminal.ts'
import type { Dialect } from '../dialect/dialect.ts'
import type { BufferBudget } from '../http/body.ts'
import type { CredentialPlaces } from '../http/credentials.ts'
import type { Tick } from '../http/tick.ts'
import type { Transport } from '../http/transport.ts'
import type { Upstream } from '../http/upstream.ts'
import type { Row } from '../overflow/rows.ts'
import type { SharedValues } from '../store/shared-values.ts'
import type { SessionKey, Store } from '../store/store.ts'
import type { Emit } from '../telemetry/event.ts'
import type { Tracing } from '../telemetry/tracing.ts'
import type { Catalogue } from '../usage/catalogue.ts'
import type { Estimates } from '../usage/estimates.ts'
import type { Ledger } from '../usage/ledger.ts'
import type { Windows } from './overflow/windows.ts'
import type { QuietRuns } from './session/quiet-runs.ts'
import type { KnownPrefixes } from './session/read-transcript.ts'

/** A change that Governor makes to a request. */
export type RequestEdit = Channel | 'announce' | 'tool_choice' | 'drop_tools'

/** What is known of a provider's refusals of one edit, for a session or for a model. */
export interface UnsupportedEdit {
  readonly edit: RequestEdit
  readonly status: number
  /** When the newest refused request was accepted without the edit, in milliseconds since the epoch. */
  readonly at: number
  /** False while it may have had another reason; then the edit is tried again. */
  readonly isCertain: boolean
  /** Of a model: the tenants whose sessions were refused it. */
  readonly tenants?: readonly string[]
}

/** The policies, which a reload may change; read once per request. */
interface Policies {
  readonly budget: ByRule<BudgetSettings>
  readonly loop: ByRule<LoopPolicy>
  readonly overflow: {
    readonly enabled: boolean
    /** Rows for wordings that the general reader would misread, those of the user first. */
    readonly quirks: readonly Row[]
    /** Rewrites overflow errors into the one that the clients of an API understand. */
    readonly canonical: boolean
    /** Sends a request again with a lower output cap. */
    readonly retriesClamped: boolean
    /** Sends a request again without the beta of long context. */
    readonly retriesWithoutBeta: boolean
    /** Milliseconds for which a session's reduced context holds. */
    readonly effectiveTtl: number
  }
  readonly storm: StormPolicy
  /** What happens at the end of a run, besides what is said to the model. */
  readonly stop: {
    /** The final answer ends with a line about what ended the run. */
    readonly hasFooter: boolean
    /** A request that a limit would stop is held, so that an operator can extend its run. */
    readonly asks: boolean
    /** Milliseconds for which it is held, as a paused one that waits. */
    readonly askTimeout: number
  }
  /** Governor only observes: it evaluates requests, but adds, blocks and stops nothing. */
  readonly observesOnly: boolean
}

/** What an entry of the configuration says of a key. */
export interface AccessKey {
  /** Whose it is: metrics, journal and API count by it. Unset for a key that is written as a text. */
  readonly name?: string | undefined
  /** Globs of the models that it may use; empty: all. */
  readonly models: readonly string[]
  /** Limits of its own, each `per` key. */
  readonly scopes: readonly ScopeLimits[]
}

/** What a run at its limit gets until then, in milliseconds since the epoch. */
export interface KnownEnd {
  readonly answer: FinalAnswer
  readonly until: number
}

export interface Services {
  readonly credentialPlaces: CredentialPlaces
  /**
   * The keys for upstreams whose key Governor holds, by their SHA-256 in hex; empty: no key is needed. A reload
   * replaces them.
   */
  readonly accessKeys: ReadonlyMap<string, AccessKey>
  /** Access keys and the admin token, which never go upstream. */
  readonly ownValues: readonly string[]
  /** Globs in lower case; hosts without a port. */
  readonly allowedOrigins: readonly string[]
  readonly allowedHosts: readonly string[]
  /** Only this machine can reach Governor; known once it listens. */
  readonly isOnLoopback: boolean
  /** By name; at least the built-in ones. */
  readonly upstreams: ReadonlyMap<string, Upstream>
  /** The guarded dialects, in the order in which they may claim a path. */
  readonly dialects: readonly Dialect[]
  readonly transport: Transport
  readonly store: Store
  /** A reload replaces them. */
  readonly policies: Policies
  /** Those that operators have set. `subscribe` calls back after each change; it returns what ends that. */
  readonly pauses: { readonly current: readonly Pause[]; subscribe(listener: () => void): () => void }
  readonly catalogue: Catalogue
  /** The sums of scopes of time, and what requests may use of them. */
  readonly ledger: Ledger
  readonly estimates: Estimates
  readonly windows: Windows
  /** The models whose unknown price was reported, by handling and upstream. */
  readonly unpricedModels: Set<string>
  readonly harnessRegistry: HarnessRegistry
  /** What users and assistants say is kept, as the configuration opts into it. */
  readonly keepsTranscripts: boolean
  readonly labels: Labels
  /** Where clients state ids: header names in lower case; body fields as paths of keys. */
  readonly identity: {
    readonly headers: readonly string[]
    readonly threadHeaders: readonly string[]
    readonly bodyFields: readonly (readonly string[])[]
  }
  readonly prefixes: KnownPrefixes
  readonly unsupportedEdits: SharedValues<readonly UnsupportedEdit[]>
  readonly quietRuns: QuietRuns
  /**
   * Where this process has counted errors in a row: no other request waits for the store. `held`: replies in storms.
   */
  readonly streaks: LRUCache<SessionKey, true> & { held: number }
  /** Ends by what requests show without being read: a hash of headers, and else an id of a call. */
  readonly knownEnds: LRUCache<string, KnownEnd>
  /** The longest body that is read, in bytes. */
  readonly maxGuardedBody: number
  /** Bounds the bytes of all bodies in memory. */
  readonly buffers: BufferBudget
  readonly emit: Emit
  readonly tracing: Tracing | undefined
  /** True once the drain time is over and Governor cuts off running requests. */
  readonly isCut: boolean
  /** Aborted once Governor accepts no more requests. */
  readonly draining: AbortSignal
  /** Milliseconds since the epoch. */
  readonly now: () => number
  /** Does the work of many requests together. */
  readonly tick: Tick
  /** Settles after so many milliseconds; rejects at once where the signal aborts. */
  readonly delay: (ms: number, signal: AbortSignal) => Promise<unknown>
  /** Returns a random id for a reply that Governor makes itself. */
  readonly newId: () => string
}
