/** Creates the store of a configuration and reports its state. */
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createMemoryStore, type MemoryLimits } from './memory.ts'
import { createRedis, type RedisSettings } from './redis.ts'
import type { SentinelSettings } from './redis-client.ts'
import { createReplicatedStore } from './replicated.ts'
import type { Store } from './store.ts'

/** Where sessions are kept. Empty texts are not set; `tls` names PEM files. */
export interface StoreConfig {
  readonly kind: 'memory' | 'redis'
  readonly limits: MemoryLimits
  readonly redis: {
    readonly url: string
    readonly username: string
    readonly password: string
    readonly timeout: number
    readonly prefix: string
    readonly cluster: readonly string[]
    readonly sentinel: SentinelSettings
    readonly tls: { readonly ca: string; readonly cert: string; readonly key: string }
  }
}

/** Callbacks of a store. */
export interface StoreHooks {
  /** Called when the store becomes reachable or unreachable; `problem` says why not. */
  readonly changed: (isUp: boolean, problem: string | undefined) => void
  /** Called with the milliseconds after which the store answered. */
  readonly answered: (ms: number) => void
  /** Called for each call that used this process's memory because the store failed. */
  readonly lost: () => void
}

/** The state of a store. */
export interface StoreStatus {
  readonly kind: 'memory' | 'redis'
  /** `degraded`: the store cannot be reached, and this process uses its own memory. */
  readonly status: 'ok' | 'degraded'
}

/** A store with its connection. */
export interface OpenStore {
  readonly store: Store
  status(): StoreStatus
  /** Connects; resolves when that succeeded or failed, within two seconds. */
  open(): Promise<void>
  close(): void
}

function settingsOf({ tls, username, password, ...rest }: StoreConfig['redis']): RedisSettings {
  const read = (file: string) => (file === '' ? undefined : readFileSync(file))
  return {
    ...rest,
    username: username || undefined,
    password: password || undefined,
    tls: tls.ca || tls.cert ? { ca: read(tls.ca), cert: read(tls.cert), key: read(tls.key) } : undefined,
  }
}

/**
 * Creates the store of a configuration. `now` returns milliseconds since the epoch.
 * @throws if a certificate file cannot be read.
 */
export function createStore(config: StoreConfig, hooks: StoreHooks, now: () => number): OpenStore {
  const { kind, limits, redis } = config
  if (kind === 'memory') {
    const store = createMemoryStore(limits, now)
    return { store, status: () => ({ kind, status: 'ok' }), open: async () => {}, close() {} }
  }
  const newId = () => randomBytes(8).toString('hex')
  const remoteHooks = {
    answered: hooks.answered,
    settled: () => void store.heal(),
    changed(isUp: boolean, problem: string | undefined) {
      hooks.changed(isUp, problem)
      if (isUp) void store.heal()
    },
  }
  const remote = createRedis(settingsOf(redis), remoteHooks, { ttl: limits.ttl, now }, newId)
  const store = createReplicatedStore(remote, {
    limits,
    now: () => performance.now(),
    replica: newId(),
    lost: hooks.lost,
  })
  return {
    store,
    status: () => ({ kind, status: remote.isWhole() ? 'ok' : 'degraded' }),
    open: remote.open,
    close: remote.close,
  }
}
