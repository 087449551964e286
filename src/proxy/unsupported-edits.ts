/** Remembers which edits of Governor the provider of a model refuses. */
import type { Channel } from '../core/decide.ts'
import type { Request } from '../core/request.ts'
import type { ValueKind } from '../store/store.ts'

/** A change that Governor makes to a request. */
export type RequestEdit = Channel | 'announce' | 'tool_choice' | 'drop_tools'

/** What is known of a provider's refusals of one edit. Times in milliseconds since the epoch. */
export interface EditRefusal {
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

/** Returns the name under which refusals of a request's model at its upstream are kept. */
export function refusalsKey({ upstream, model }: Pick<Request, 'upstream' | 'model'>): string {
  return `${upstream} ${model}`
}

/** True if an edit is not tried. */
export function isRefused(refusals: readonly EditRefusal[], edit: RequestEdit, now: number): boolean {
  return refusals.some((one) => one.edit === edit && one.isCertain && isCurrent(one, now))
}

/**
 * Returns the refusals after a request was accepted without this edit only. A 5xx is certain once a request fails in the
 * same way that was sent after that: requests that fail side by side may fail for one passing reason.
 */
export function withRefusal(
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

/** Returns the refusals after a request was accepted with these edits: an earlier 5xx had another reason. */
export function withAccepted(refusals: readonly EditRefusal[], edits: readonly RequestEdit[]): readonly EditRefusal[] {
  const left = refusals.filter(({ edit, isCertain }) => isCertain || !edits.includes(edit))
  return left.length === refusals.length ? refusals : left
}
