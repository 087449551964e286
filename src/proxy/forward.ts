/** Sends an allowed request, unchanged or with a notice for the model, and relays the response. */
import type { UpstreamCall } from '../http/upstream.ts'
import { relay } from '../http/upstream-response.ts'
import type { Edit } from '../json/edit.ts'
import { type Exchange, failExchange } from './begin-exchange.ts'
import { noteFault } from './fault.ts'
import { noteLoop, noteNotice } from './note-decision.ts'
import { announcementFor, droppedFor, type PlacedNotice, placesFor } from './request-edits.ts'
import { type Attempt, mayBeUnsupported, openUpstream, type RequestVariant, sendModel, sendOnce } from './send-model.ts'
import type { RequestEdit } from './services.ts'
import { giveBackIteration, type Turn } from './turn.ts'

/** The client's request with a notice, or unchanged. */
export interface SpokenRequest extends RequestVariant {
  readonly notice?: PlacedNotice | undefined
  /** The edits that add text and change no tools. */
  readonly textEdits: readonly Edit[]
}

const UNCHANGED: SpokenRequest = { features: [], textEdits: [] }

/** Returns the request with what Governor says; after a fault of Governor's own the client's bytes. */
function spokenRequest(x: Turn): SpokenRequest {
  const { speech } = x.decision
  if (!speech) return UNCHANGED
  try {
    const announcing = announcementFor(x)
    const dropping = droppedFor(x, speech.dropTools)
    const [notice] = speech.notice === undefined ? [] : placesFor(x, speech.notice, speech.channel)
    const textEdits = [...announcing, ...(notice?.edits ?? [])]
    // The first is suspected first after a refusal: templates are strict about the system text.
    const features: RequestEdit[] = []
    if (announcing.length > 0) features.push('announce')
    if (dropping.length > 0) features.push('drop_tools')
    if (notice) features.push(notice.channel)
    return features.length === 0 ? UNCHANGED : { edits: [...textEdits, ...dropping], features, textEdits, notice }
  } catch (error) {
    noteFault(x.services.emit, error as Error)
    return UNCHANGED
  }
}

/** Sends a request with its notice, or the client's own bytes if the provider refuses that. @throws {UpstreamFailed} */
export async function sendSpoken(x: Turn): Promise<Attempt<SpokenRequest>> {
  let notice: PlacedNotice | undefined
  try {
    const made = await sendModel(x, spokenRequest(x), ({ variant, response }) => {
      const dropsTools = variant.features.includes('drop_tools')
      return variant !== UNCHANGED && mayBeUnsupported(response.head, dropsTools) ? UNCHANGED : undefined
    })
    const { status } = made.response.head
    if (status >= 400) void giveBackIteration(x, status)
    else notice = made.variant.notice
    if (notice) await noteNotice(x, notice)
    return made
  } finally {
    noteLoop(x, notice !== undefined)
  }
}

/** Sends a request that is not guarded, and relays its response. Resolves when its head is there. */
export async function forwardUnguarded(x: Exchange, call: UpstreamCall): Promise<void> {
  const response = await (x.route.dialect ? sendOnce(x, call) : openUpstream(x, call))
  relay(response, x.response, {}, (failure) => failExchange(x, failure))
}
