/** Sends an allowed request, unchanged or with a notice for the model, and relays the response. */

import type { Speech } from '../core/decide.ts'
import { relay } from '../http/relay.ts'
import type { Failure, UpstreamCall } from '../http/upstream.ts'
import { UpstreamFailed } from '../http/upstream-response.ts'
import type { Edit } from '../json/edit.ts'
import { type Attempt, attempt, mayBeUnsupported, type RequestVariant } from './attempts.ts'
import type { Exchange } from './begin-exchange.ts'
import { type EvaluatedRequest, failRequest, releaseIteration } from './evaluated-request.ts'
import { faultOf } from './fault.ts'
import { noteLoop, noteTold } from './note-decision.ts'
import { asksForModels, observeModelList } from './observe/model-list-watch.ts'
import { openModel } from './recoveries.ts'
import { announcementFor, droppedFor, type PlacedNotice, placeFor } from './request-edits.ts'
import type { Services } from './services.ts'
import type { RequestEdit } from './unsupported-edits.ts'

/** The client's request with a notice, or unchanged. */
export interface SpokenRequest extends RequestVariant {
  readonly notice?: PlacedNotice | undefined
  /** The edits that add text and change no tools. */
  readonly textEdits: readonly Edit[]
}

const UNCHANGED: SpokenRequest = { features: [], textEdits: [] }

function spokenRequest(x: EvaluatedRequest, speech: Speech): SpokenRequest {
  const announcing = announcementFor(x)
  const dropping = droppedFor(x, speech.dropTools)
  const place = speech.notice === undefined ? undefined : placeFor(x, speech.notice, speech.channel)
  const textEdits = [...announcing, ...(place?.edits ?? [])]
  // The first is the first to be suspected after a refusal: the announcement is in the system text, where templates are strict.
  const features: RequestEdit[] = [
    ...(announcing.length > 0 ? (['announce'] as const) : []),
    ...(dropping.length > 0 ? (['drop_tools'] as const) : []),
    ...(place ? [place.channel] : []),
  ]
  return features.length === 0
    ? UNCHANGED
    : { edits: [...textEdits, ...dropping], features, textEdits, notice: place }
}

/** Returns the edited request; a fault of Governor's own in editing it leaves it as it was. */
function spokenSafely(x: EvaluatedRequest): SpokenRequest {
  const { speech } = x.evaluation.decision
  try {
    return speech ? spokenRequest(x, speech) : UNCHANGED
  } catch (error) {
    x.services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error as Error) })
    return UNCHANGED
  }
}

/** An accepted or refused request, and the headers for the client that say what the model got. */
type Spoken = Attempt<SpokenRequest> & Pick<EvaluatedRequest, 'governorHeaders'>

/**
 * Sends a request with its notice; if the provider seems not to support that, the client's own bytes. Records whether
 * the model got the notice. @throws {UpstreamFailed}
 */
export async function openSpoken(x: EvaluatedRequest): Promise<Spoken> {
  const { services, evaluation } = x
  let { governorHeaders } = x
  let notice: PlacedNotice | undefined
  try {
    const made = await attempt(x, spokenSafely(x), ({ variant, response }) => {
      const dropsTools = variant.features.includes('drop_tools')
      return variant !== UNCHANGED && mayBeUnsupported(response.head, dropsTools) ? UNCHANGED : undefined
    })
    const { status } = made.response.head
    if (status >= 400) releaseIteration(evaluation, status)
    else notice = made.variant.notice
    if (notice) governorHeaders = await noteTold(x, notice)
    return { ...made, governorHeaders }
  } finally {
    noteLoop(services, evaluation, notice !== undefined)
  }
}

/** Sends a request and relays its response to the client. Resolves when the head of the response is there. */
export async function forward(x: EvaluatedRequest): Promise<void> {
  const { exchange } = x
  try {
    const { response, governorHeaders } = await openSpoken(x)
    relay(response, exchange.response, governorHeaders, (failure) => failRequest(x, failure))
  } catch (error) {
    if (!(error instanceof UpstreamFailed)) throw error
    failRequest(x, error.failure)
  }
}

/** Relays a request that is not guarded, and its response. Resolves when the head of the response is there. */
export async function relayCall(services: Services, exchange: Exchange, call: UpstreamCall): Promise<void> {
  const { route, response } = exchange
  const failed = (failure: Failure) => exchange.fail(failure)
  const observerFor = asksForModels(call) ? observeModelList(services, route) : undefined
  try {
    const from = route.dialect
      ? await openModel({ services, exchange, evaluation: undefined }, call)
      : await exchange.open(call, { observerFor })
    relay(from, response, {}, failed)
  } catch (error) {
    if (!(error instanceof UpstreamFailed)) throw error
    failed(error.failure)
  }
}
