/** Remembers which of Governor's edits an upstream's model has refused, so that they are not tried again. */
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

/** The edits that upstreams have refused for a model, so that they are not tried again. */
export interface UnsupportedEdits {
  /** Asks the store what other processes found, if that was not done for a while. */
  refresh(upstream: string, model: string): Promise<void>
  isRefused(upstream: string, model: string, edit: RequestEdit): boolean
  remember(upstream: string, model: string, edit: RequestEdit): void
}

/** Keeps refused edits in a value that all processes share. */
export function createUnsupportedEdits(refused: SharedValues<readonly RequestEdit[]>): UnsupportedEdits {
  const keyOf = (upstream: string, model: string) => `${upstream} ${model.slice(0, MAX_NAME)}`
  return {
    refresh: (upstream, model) => refused.refresh(keyOf(upstream, model)),
    isRefused: (upstream, model, edit) => refused.copyOf(keyOf(upstream, model)).includes(edit),
    remember: (upstream, model, edit) =>
      refused.change(keyOf(upstream, model), (known) => [...new Set([...known, edit])]),
  }
}
