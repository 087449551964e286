/** Remembers which of Governor's alterations an upstream's model has refused, so that they are not tried again. */
import type { Channel } from '../core/decide.ts'
import type { SharedValues } from '../store/shared-values.ts'
import type { ValueKind } from '../store/store.ts'

/** Something Governor changes in a request. */
export type RequestEdit = Channel | 'announce' | 'tool_choice' | 'drop_tools'

/** By upstream and model, for an hour: a 500 may have been a bad moment, and servers are updated. */
export const UNSUPPORTED_EDITS: ValueKind<readonly RequestEdit[]> = {
  name: 'unsupported_edits',
  ttl: 3_600_000,
  empty: [],
}

/** A model name is the client's to choose. */
const MAX_NAME = 200

export interface UnsupportedEdits {
  /** Asks for what other processes found, where that was not done for a while. */
  refresh(upstream: string, model: string): Promise<void>
  isRefused(upstream: string, model: string, alteration: RequestEdit): boolean
  remember(upstream: string, model: string, alteration: RequestEdit): void
}

export function createUnsupportedEdits(refused: SharedValues<readonly RequestEdit[]>): UnsupportedEdits {
  const keyOf = (upstream: string, model: string) => `${upstream} ${model.slice(0, MAX_NAME)}`
  return {
    refresh: (upstream, model) => refused.refresh(keyOf(upstream, model)),
    isRefused: (upstream, model, alteration) => refused.copyOf(keyOf(upstream, model)).includes(alteration),
    remember: (upstream, model, alteration) =>
      refused.change(keyOf(upstream, model), (known) => [...new Set([...known, alteration])]),
  }
}

const OTHERWISE: readonly Channel[] = ['auto', 'user', 'system']

/** Channels worth trying, the preferred one first. */
export function channelsFor(preferred: Channel): readonly Channel[] {
  return preferred === 'auto'
    ? OTHERWISE
    : [preferred, ...OTHERWISE.filter((channel) => channel !== preferred)]
}
