/** The only place that sends a request again in another form. */
import type { Head } from '../http/upstream.ts'
import type { UpstreamResponse } from '../http/upstream-response.ts'
import type { Edit } from '../json/edit.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import { openRecovering } from './recoveries.ts'
import { noteRefused, withEdits } from './request-edits.ts'
import type { RequestEdit } from './unsupported-edits.ts'

/** One form of a request: the client's own bytes, or edits to them. */
export interface RequestVariant {
  /** Unset for the client's own bytes. */
  readonly edits?: readonly Edit[]
  /** What these edits do that an upstream may not support. */
  readonly features: readonly RequestEdit[]
}

/** A variant, and the head and body that came for it. */
export interface Attempt<Variant extends RequestVariant> {
  readonly variant: Variant
  readonly response: UpstreamResponse
}

/**
 * True if an error status may mean that the upstream does not support an edit. Never for an overflow, because the request
 * would be too large in any form. `dropsTools`: tools are not offered, or must not be chosen; gateways that find no provider for that answer 404.
 */
export function mayBeUnsupported({ status, overflow }: Head, dropsTools = false): boolean {
  if (overflow) return false
  return status === 400 || status === 422 || status === 500 || (dropsTools && status === 404)
}

const TOOL_EDITS: readonly RequestEdit[] = ['drop_tools', 'tool_choice']

/** Returns the edit to blame for a refusal: the tool edit for a 404, else the first edit that only the refused variant has. */
function suspectEdit(
  refused: RequestVariant,
  accepted: RequestVariant,
  status: number,
): RequestEdit | undefined {
  const differing = refused.features.filter((edit) => !accepted.features.includes(edit))
  const toolEdit = status === 404 ? differing.find((edit) => TOOL_EDITS.includes(edit)) : undefined
  return toolEdit ?? differing[0]
}

/**
 * Sends a request, and sends it again in another form for as long as an error comes and `next` returns another variant.
 * Returns the last attempt: one with a status below 400, or the error after which there was no other variant. If a variant
 * was taken, the edit that the refused one before it had in addition is remembered as unsupported.
 * @throws {UpstreamFailed}
 */
export async function attempt<Variant extends RequestVariant>(
  x: EvaluatedRequest,
  first: Variant,
  next: (refused: Attempt<Variant>) => Variant | undefined,
): Promise<Attempt<Variant>> {
  const { services, exchange, evaluation } = x
  let refused: (Attempt<Variant> & { readonly sentAt: number }) | undefined
  let variant = first
  for (;;) {
    const { edits, features } = variant
    const sentAt = services.now()
    const response = await openRecovering(x, edits ? withEdits(x.call, x.bytes, edits) : x.call)
    const { status } = response.head
    const made = { variant, response }
    if (status < 400) {
      const { model } = evaluation.request.conversation
      if (features.length > 0)
        services.unsupportedEdits.accepted(exchange.route.upstream.name, model, features)
      if (refused) blame(x, refused, variant)
      return made
    }
    const following = next(made)
    if (!following) return made
    response.abort()
    refused = { ...made, sentAt }
    variant = following
  }
}

function blame<Variant extends RequestVariant>(
  x: EvaluatedRequest,
  { variant, response, sentAt }: Attempt<Variant> & { readonly sentAt: number },
  accepted: Variant,
): void {
  const { status } = response.head
  const edit = suspectEdit(variant, accepted, status)
  if (edit) noteRefused(x, { edit, status, sentAt })
}
