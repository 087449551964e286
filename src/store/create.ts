/** Creates the store of a configuration and reports its state. */
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createMemoryStore, type MemoryLimits } from './memory.ts'
import type { RedisSettings } from './redis.ts'
import { createReplicatedStore, type ReplicatedOptions } from './replicated.ts'
import type { Store } from './store.ts'

/** Where sessions are kept. `tls` names PEM files; an empty text is not set. */
export interface StoreConfig {
  readonly kind: 'memory' | 'redis'
  readonly limits: MemoryLimits
  readonly redis: Omit<RedisSettings, 'tls'> & {
    readonly tls: { readonly ca: string; readonly cert: string; readonly key: string }
  }
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

/**
 * Creates the store of a configuration. `now` returns milliseconds since the epoch.
 * @throws if a certificate file cannot be read.
 */
export function createStore(
  { kind, limits, redis }: StoreConfig,
  hooks: Pick<ReplicatedOptions, 'changed' | 'answered' | 'lost'>,
  now: () => number,
): OpenStore {
  if (kind === 'memory') {
    const store = createMemoryStore(limits, now)
    return { store, status: () => ({ kind, status: 'ok' }), open: async () => {}, close() {} }
  }
  const { tls } = redis
  const read = (file: string) => (file === '' ? undefined : readFileSync(file))
  const settings: RedisSettings = {
    ...redis,
    tls: tls.ca || tls.cert ? { ca: read(tls.ca), cert: read(tls.cert), key: read(tls.key) } : undefined,
  }
  const newId = () => randomBytes(8).toString('hex')
  const store = createReplicatedStore(settings, { ...hooks, limits, now, newId })
  const { isWhole, open, close } = store
  return { store, status: () => ({ kind, status: isWhole() ? 'ok' : 'degraded' }), open, close }
}
