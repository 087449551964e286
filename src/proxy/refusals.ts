/** Remembers which of Governor's alterations an upstream's model has refused, so that they are not tried again. */
import { LRUCache } from 'lru-cache'
import type { Channel } from '../core/verdict.ts'

/** Something Governor changes in a request. */
export type Alteration = Channel | 'announce' | 'tool_choice' | 'drop_tools'

export interface Refusals {
  isRefused(upstream: string, model: string, alteration: Alteration): boolean
  remember(upstream: string, model: string, alteration: Alteration): void
}

/** Upstream and model pairs; a model name is the client's to choose, so both their number and length are bounded. */
const MAX_PAIRS = 1_000
const MAX_NAME = 200

/** Milliseconds until an alteration is tried again: a 500 may have been a bad moment, and servers are updated. */
const TTL = 3_600_000

export function createRefusals(): Refusals {
  const refused = new LRUCache<string, ReadonlySet<Alteration>>({ max: MAX_PAIRS, ttl: TTL })
  const keyOf = (upstream: string, model: string) => `${upstream} ${model.slice(0, MAX_NAME)}`
  return {
    isRefused: (upstream, model, alteration) =>
      refused.size > 0 && (refused.get(keyOf(upstream, model))?.has(alteration) ?? false),
    remember(upstream, model, alteration) {
      const key = keyOf(upstream, model)
      refused.set(key, new Set([...(refused.get(key) ?? []), alteration]))
    },
  }
}

const OTHERWISE: readonly Channel[] = ['auto', 'user', 'system']

/** Channels worth trying, the preferred one first. */
export function channelsFor(preferred: Channel): readonly Channel[] {
  return preferred === 'auto'
    ? OTHERWISE
    : [preferred, ...OTHERWISE.filter((channel) => channel !== preferred)]
}
