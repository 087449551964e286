/** Creates what the handling of every request shares, from a configuration. */

import { randomUUID } from 'node:crypto'
import { uptime } from 'node:os'
import { setTimeout as wait } from 'node:timers/promises'
import { policiesOf, registryOf } from './config/policies.ts'
import type { Config } from './config/schema.ts'
import { scopesOf } from './config/scopes.ts'
import { DEFAULT_UPSTREAMS } from './config/upstreams.ts'
import { sha256Of } from './core/hash.ts'
import type { Dialect } from './dialect/dialect.ts'
import { DIALECTS } from './dialect/index.ts'
import { createTick } from './http/tick.ts'
import type { Upstream } from './http/upstream.ts'
import { createKnownEnds } from './proxy/at-limit.ts'
import { upstreamOf } from './proxy/door/route.ts'
import { faultOf } from './proxy/fault.ts'
import { createWindows, KNOWN_WINDOW } from './proxy/overflow/windows.ts'
import { UNSUPPORTED_EDITS } from './proxy/request-edits.ts'
import type { AccessKey, Services } from './proxy/services.ts'
import { createQuietRuns } from './proxy/session/quiet-runs.ts'
import { createKnownPrefixes } from './proxy/session/read-transcript.ts'
import { createKnownStreaks } from './proxy/waiting/error-streaks.ts'
import { createSharedValues } from './store/shared-values.ts'
import { createTracing } from './telemetry/tracing.ts'
import { createCatalogue } from './usage/catalogue.ts'
import { createEstimates } from './usage/estimates.ts'
import { createLedger } from './usage/ledger.ts'
import { VERSION } from './version.ts'

/** Milliseconds between two checks whether the machine slept; a shorter sleep does not count. */
const SLEEP_CHECK = 2_000

/**
 * Returns a clock, in milliseconds since the epoch: the system's clock at the start and the time since then, so that
 * durations stay right where that clock is set while Governor runs. The time in which the machine sleeps counts: the
 * process measures none of it, but the machine's uptime goes on.
 */
export function createSteadyClock(): () => number {
  const uptimeAhead = () => uptime() * 1_000 - performance.now()
  const aheadAtStart = uptimeAhead()
  let slept = 0
  let checkedAt = performance.now()
  return () => {
    const now = performance.now()
    if (now - checkedAt >= SLEEP_CHECK) {
      checkedAt = now
      const ahead = uptimeAhead() - aheadAtStart
      if (ahead - slept >= SLEEP_CHECK) slept = ahead
    }
    return Math.floor(performance.timeOrigin + now + slept)
  }
}

/** Calls back after so many milliseconds, for which no process is kept alive; returns what takes the call back. */
export function afterDelay(delay: number, call: () => void): () => void {
  const timer = setTimeout(call, delay).unref()
  return () => clearTimeout(timer)
}

/**
 * Returns 24 hex digits of a UUID: Node keeps random bytes for them, which takes a third of the time of `randomBytes`.
 */
export const newId = () => randomUUID().replaceAll('-', '').slice(-24)

/** What a Governor has besides its configuration. */
export interface ServiceOptions extends Pick<Services, 'store' | 'transport' | 'emit' | 'draining' | 'now'> {
  /**
   * Says which day it is, in milliseconds since the epoch, where no store does: it may be set while Governor runs. The
   * default is `now`.
   */
  readonly calendarNow?: (() => number) | undefined
  /** What operators have paused; unset: nobody can pause anything. */
  readonly pauses?: Services['pauses'] | undefined
  /** The APIs that are guarded; the default is all that Governor knows. */
  readonly dialects?: readonly Dialect[] | undefined
  /** Bytes of memory that the process may use; unset if that is not known. */
  readonly memory?: number | undefined
  /** Times the wait for the end of quiet runs; the default is the system's clock. */
  readonly after?: typeof afterDelay | undefined
  /** Times how long a request is held; the default is the system's clock. */
  readonly delay?: Services['delay'] | undefined
  /** Versions of OpenTelemetry's conventions, as in OTEL_SEMCONV_STABILITY_OPT_IN. */
  readonly semanticConventions?: string | undefined
}

/** Returns the access keys by their hashes, and the values that never go upstream. */
export function accessOf(entries: Config['server']['access_keys'], token: string | undefined) {
  const accessKeys = new Map<string, AccessKey>()
  const ownValues = token ? [token] : []
  const budgets = new Map<string | undefined, ReturnType<typeof scopesOf>>()
  for (const entry of entries)
    if (typeof entry !== 'string' && entry.budget) budgets.set(entry.name, scopesOf(entry.budget, entry.name))
  for (const entry of entries) {
    const { name, key, key_sha256, models } = typeof entry === 'string' ? { key: entry, models: [] } : entry
    if (key !== undefined) ownValues.push(key)
    const scopes = budgets.get(name) ?? []
    accessKeys.set(key === undefined ? (key_sha256?.toLowerCase() ?? '') : sha256Of(key), { name, models, scopes })
  }
  return { accessKeys, ownValues }
}

/** Returns what the handling of every request shares. Its policies and what is known of the listener may be set. */
export function createServices(config: Config, options: ServiceOptions) {
  const { server, sessions, ops } = config
  const { store, transport, emit, draining, now, dialects = DIALECTS, memory = Number.POSITIVE_INFINITY } = options
  const storeFailed = () => emit({ kind: 'failed_open', reason: 'store' })
  const upstreams = new Map<string, Upstream>()
  for (const [name, settings] of Object.entries(config.upstreams)) {
    const builtIn = Object.hasOwn(DEFAULT_UPSTREAMS, name) ? DEFAULT_UPSTREAMS[name] : undefined
    upstreams.set(name, upstreamOf(name, settings, builtIn?.url))
  }
  const catalogue = createCatalogue(config.models, (error) =>
    emit({ kind: 'failed_open', reason: 'prices', fault: faultOf(error) }),
  )
  return {
    credentialPlaces: {
      headers: [...new Set(dialects.flatMap(({ api }) => api.credentialHeaders))],
      parameters: [...new Set(dialects.flatMap(({ api }) => api.credentialParameters))],
    },
    ...accessOf(server.access_keys, ops.admin_token),
    allowedOrigins: server.allowed_origins,
    allowedHosts: server.allowed_hosts,
    isOnLoopback: true,
    upstreams,
    dialects,
    transport,
    store,
    policies: policiesOf(config),
    pauses: options.pauses ?? { current: [], subscribe: () => () => {} },
    catalogue,
    ledger: createLedger(store, store.ahead ? now : (options.calendarNow ?? now), newId()),
    estimates: createEstimates(),
    unpricedModels: new Set<string>(),
    windows: createWindows(createSharedValues(store, KNOWN_WINDOW, storeFailed), config.models, catalogue, now),
    harnessRegistry: registryOf(config),
    keepsTranscripts: sessions.transcript,
    labels: sessions.labels,
    identity: {
      headers: ['x-governor-session', ...sessions.headers],
      threadHeaders: sessions.thread_headers,
      bodyFields: sessions.body_fields.map((path) => path.split('.')),
    },
    prefixes: createKnownPrefixes(),
    streaks: createKnownStreaks(),
    knownEnds: createKnownEnds(),
    unsupportedEdits: createSharedValues(store, UNSUPPORTED_EDITS, storeFailed),
    quietRuns: createQuietRuns({ store, emit, now, after: options.after ?? afterDelay }),
    maxGuardedBody: server.max_guarded_body,
    buffers: { max: Math.floor(Math.min(server.max_buffered ?? memory / 4, memory / 2)), held: 0 },
    emit,
    tracing: createTracing(VERSION, options.semanticConventions),
    isCut: false,
    draining,
    now,
    tick: createTick(),
    delay: options.delay ?? ((ms, signal) => wait(ms, undefined, { signal })),
    newId,
  }
}
