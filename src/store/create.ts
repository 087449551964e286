/** Creates the store of a configuration and reports its state. */
import { randomBytes } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createMemoryStore, type MemoryLimits } from './memory.ts'
import type { RedisSettings } from './redis-data.ts'
import { createReplicatedStore, type ReplicatedOptions } from './replicated.ts'
import type { Store } from './store.ts'

/** Where sessions are kept. `tls` names PEM files; an empty text is not set. */
interface StoreConfig {
  readonly kind: 'memory' | 'redis'
  readonly limits: MemoryLimits
  readonly redis: Omit<RedisSettings, 'tls'> & {
    readonly tls: { readonly ca: string; readonly cert: string; readonly key: string }
  }
}

/**
 * Creates the store of a configuration, which `open` connects, successfully or not, within two seconds. `now` returns
 * milliseconds since the epoch. A store that is `degraded` cannot be reached: this process uses its own memory.
 * @throws if a certificate file cannot be read.
 */
export function createStore(
  { kind, limits, redis }: StoreConfig,
  hooks: Pick<ReplicatedOptions, 'changed' | 'answered' | 'lost'>,
  now: () => number,
) {
  const statusOf = (isWhole: boolean) => ({ kind, status: isWhole ? 'ok' : 'degraded' }) as const
  switch (kind) {
    case 'memory': {
      const store: Store = createMemoryStore(limits, now)
      return { store, status: () => statusOf(true), open: async () => {}, close: async () => {} }
    }
    case 'redis': {
      const { tls } = redis
      const read = (file: string) => (file === '' ? undefined : readFileSync(file))
      const settings: RedisSettings = {
        ...redis,
        tls: tls.ca || tls.cert ? { ca: read(tls.ca), cert: read(tls.cert), key: read(tls.key) } : undefined,
      }
      const replica = randomBytes(8).toString('hex')
      const store = createReplicatedStore(settings, { ...hooks, limits, now, replica })
      const { isWhole, open, close } = store
      return { store, status: () => statusOf(isWhole()), open, close }
    }
  }
}
