/** Chooses the store of a configuration, and says how it fares. */
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createMemoryStore, type MemoryLimits } from './memory.ts'
import { createRedis, type RedisSettings } from './redis.ts'
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
    readonly tls: { readonly ca: string; readonly cert: string; readonly key: string }
  }
}

export interface StoreHooks {
  /** The store can be reached, or not any more; `problem` says why not. */
  readonly changed: (isUp: boolean, problem: string | undefined) => void
  /** The store answered after so many milliseconds. */
  readonly answered: (ms: number) => void
  /** A call was served from this process's memory, as the store could not be reached. */
  readonly lost: () => void
}

export interface StoreStatus {
  readonly kind: 'memory' | 'redis'
  /** `degraded`: it can't be reached, and this process goes on with its own memory. */
  readonly status: 'ok' | 'degraded'
}

export interface OpenStore {
  readonly store: Store
  status(): StoreStatus
  /** Connects; resolves once that succeeded or failed, within a second or two. */
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

function createShared({ limits, redis }: StoreConfig, hooks: StoreHooks): OpenStore {
  const changed = (isUp: boolean, problem: string | undefined) => {
    hooks.changed(isUp, problem)
    if (isUp) void store.heal()
  }
  const newId = () => randomBytes(8).toString('hex')
  const remote = createRedis(
    settingsOf(redis),
    { ...hooks, changed },
    { ttl: limits.ttl, now: Date.now },
    newId,
  )
  const store = createReplicatedStore(remote, {
    limits,
    timeout: redis.timeout,
    now: () => performance.now(),
    replica: newId(),
    lost: hooks.lost,
  })
  return {
    store,
    status: () => ({ kind: 'redis', status: remote.isUp() ? 'ok' : 'degraded' }),
    open: remote.open,
    close: remote.close,
  }
}

/** Creates the store of a configuration. Throws where a file of a certificate can't be read. */
export function createStore(config: StoreConfig, hooks: StoreHooks): OpenStore {
  if (config.kind === 'redis') return createShared(config, hooks)
  return {
    store: createMemoryStore(config.limits),
    status: () => ({ kind: 'memory', status: 'ok' }),
    open: async () => {},
    close() {},
  }
}
