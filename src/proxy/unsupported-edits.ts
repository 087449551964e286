/** Remembers which edits of Governor the provider of a model refuses. */
import type { Channel } from '../core/decide.ts'
import type { SharedValues } from '../store/shared-values.ts'
import type { ValueKind } from '../store/store.ts'

/** A change that Governor makes to a request. */
export type RequestEdit = Channel | 'announce' | 'tool_choice' | 'drop_tools'

/** Refused edits by upstream and model, kept for an hour: a 500 may have been temporary, and servers are updated. */
export const UNSUPPORTED_EDITS: ValueKind<readonly RequestEdit[]> = {
  name: 'unsupported_edits',
  ttl: 3_600_000,
  empty: [],
}

/** Characters of a model name, which the client chooses. */
const MAX_NAME = 200

/** Refused edits, so that they are not tried again. */
export interface UnsupportedEdits {
  /** Reads from the store what other processes found, if the copy is old. */
  refresh(upstream: string, model: string): Promise<void>
  isRefused(upstream: string, model: string, edit: RequestEdit): boolean
  remember(upstream: string, model: string, edit: RequestEdit): void
}

/** Creates the memory of refused edits in a value that all processes share. */
export function createUnsupportedEdits(shared: SharedValues<readonly RequestEdit[]>): UnsupportedEdits {
  const keyOf = (upstream: string, model: string) => `${upstream} ${model.slice(0, MAX_NAME)}`
  return {
    refresh: (upstream, model) => shared.refresh(keyOf(upstream, model)),
    isRefused: (upstream, model, edit) => shared.copyOf(keyOf(upstream, model)).includes(edit),
    remember: (upstream, model, edit) =>
      shared.change(keyOf(upstream, model), (known) => [...new Set([...known, edit])]),
  }
}
