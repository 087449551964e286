/** Remembers which edits of Governor the provider of a model refuses. */
import type { Request } from '../core/request.ts'
import type { ValueKind } from '../store/store.ts'
import type { EditRefusal, RequestEdit } from './services.ts'
import type { Turn } from './turn.ts'

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

/** Returns the name under which refusals of a request's model at its upstream are kept. */
export function refusalsKey({ upstream, model }: Pick<Request, 'upstream' | 'model'>): string {
  return `${upstream} ${model}`
}

/** True if this request's upstream has refused an edit for its model. */
export function isUnsupported({ services, request }: Turn, edit: RequestEdit): boolean {
  const now = services.now()
  for (const one of services.unsupportedEdits.copyOf(refusalsKey(request)))
    if (one.edit === edit && one.isCertain && isCurrent(one, now)) return true
  return false
}

/**
 * Records that a request with an edit, sent at `sentAt`, was refused, and one without it accepted; reports it once the edit
 * is not tried again. A 5xx is certain once a request fails in the same way that was sent after that: requests that fail
 * side by side may fail for one passing reason.
 */
export function noteRefused(x: Turn, edit: RequestEdit, status: number, sentAt: number): void {
  const { services, request } = x
  const at = services.now()
  services.unsupportedEdits.change(refusalsKey(request), (refusals) => {
    const before = refusals.find((one) => one.edit === edit && isCurrent(one, at))
    const isCertain = status < 500 || (before?.status === status && sentAt >= before.at)
    if (before && (before.isCertain || !isCertain)) return refusals
    return [...refusals.filter((one) => one.edit !== edit), { edit, status, at, isCertain }]
  })
  if (!isUnsupported(x, edit)) return
  const { upstream, conversation } = request
  services.emit({ kind: 'alteration_refused', upstream, model: conversation.model, alteration: edit, status })
}

/** Records that a request was accepted with these edits: an earlier 5xx had another reason. */
export function noteAccepted({ services, request }: Turn, edits: readonly RequestEdit[]): void {
  services.unsupportedEdits.change(refusalsKey(request), (refusals) => {
    const left = refusals.filter(({ edit, isCertain }) => isCertain || !edits.includes(edit))
    return left.length === refusals.length ? refusals : left
  })
}
