/** Remembers which edits of Governor the provider of a model refuses. */
import type { Channel } from '../core/decide.ts'
import type { SharedValues } from '../store/shared-values.ts'
import type { ValueKind } from '../store/store.ts'

/** A change that Governor makes to a request. */
export type RequestEdit = Channel | 'announce' | 'tool_choice' | 'drop_tools'

/** What is known of a provider's refusals of one edit. Times in milliseconds since the epoch. */
interface EditRefusal {
  readonly edit: RequestEdit
  readonly status: number
  /** When the newest refused request was accepted without the edit. */
  readonly at: number
  /** False after the first 5xx, which may have been a fault of the moment. */
  readonly isCertain: boolean
}

/** Servers are updated: a refused edit is tried again after an hour. */
const CLIENT_ERROR_MS = 3_600_000
/** A server that failed on an edit may be well again soon. */
const SERVER_ERROR_MS = 300_000

/** Refused edits by upstream and model. */
export const EDIT_REFUSALS: ValueKind<readonly EditRefusal[]> = {
  name: 'edit_refusals',
  ttl: CLIENT_ERROR_MS,
  empty: [],
}

/** The clock of another replica may differ, and a clock may be set back. */
function isCurrent({ at, status }: EditRefusal, now: number): boolean {
  return Math.abs(now - at) < (status >= 500 ? SERVER_ERROR_MS : CLIENT_ERROR_MS)
}

/** The outcome of an edited request that was sent at `sentAt`, in milliseconds since the epoch. */
export interface Refused {
  readonly edit: RequestEdit
  readonly status: number
  readonly sentAt: number
}

/**
 * Returns the refusals after one more. A 5xx is certain only if a second request failed in the same way that was sent
 * after the first was accepted without the edit: requests that fail side by side may fail for one passing reason.
 */
function withRefusal(
  refusals: readonly EditRefusal[],
  { edit, status, sentAt }: Refused,
  now: number,
): readonly EditRefusal[] {
  const before = refusals.find((one) => one.edit === edit && isCurrent(one, now))
  if (before?.isCertain) return refusals
  const isSecond = before?.status === status && sentAt >= before.at
  const isCertain = status < 500 || isSecond
  if (before && !isCertain) return refusals
  return [...refusals.filter((one) => one.edit !== edit), { edit, status, at: now, isCertain }]
}

/** Characters of a model name, which the client chooses. */
const MAX_NAME = 200

/** Refused edits, so that they are not tried again. */
export type UnsupportedEdits = ReturnType<typeof createUnsupportedEdits>

/** Creates the memory of refused edits in a value that all processes share. `now`: milliseconds since the epoch. */
export function createUnsupportedEdits(shared: SharedValues<readonly EditRefusal[]>, now: () => number) {
  const keyOf = (upstream: string, model: string) => `${upstream} ${model.slice(0, MAX_NAME)}`
  const isRefused = (upstream: string, model: string, edit: RequestEdit): boolean =>
    shared.copyOf(keyOf(upstream, model)).some((one) => one.edit === edit && one.isCertain && isCurrent(one, now()))
  return {
    /** Reads from the store what other processes found, if the copy is old. */
    refresh: (upstream: string, model: string) => shared.refresh(keyOf(upstream, model)),
    isRefused,
    /** Records a request that was accepted without an edit only. Returns true if the edit is not tried again. */
    refused(upstream: string, model: string, refused: Refused): boolean {
      const at = now()
      shared.change(keyOf(upstream, model), (refusals) => withRefusal(refusals, refused, at))
      return isRefused(upstream, model, refused.edit)
    },
    /** Records a request that was accepted with these edits: an earlier 5xx had another reason. */
    accepted(upstream: string, model: string, edits: readonly RequestEdit[]): void {
      const isCleared = ({ edit, isCertain }: EditRefusal) => !isCertain && edits.includes(edit)
      shared.change(keyOf(upstream, model), (refusals) =>
        refusals.some(isCleared) ? refusals.filter((one) => !isCleared(one)) : refusals,
      )
    },
  }
}
