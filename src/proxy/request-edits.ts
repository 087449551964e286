/** The edits that Governor makes in requests. */
import type { Channel } from '../core/decide.ts'
import { globMatches } from '../core/glob.ts'
import { withoutBodyFields } from '../http/headers.ts'
import { lengthOf, type UpstreamCall } from '../http/upstream.ts'
import { type Edit, editedPieces } from '../json/edit.ts'
import type { Turn } from './turn.ts'
import { isUnsupported } from './unsupported-edits.ts'

/** Returns edits that state the budget in the system text; none if the model refused them. */
export function announcementFor(x: Turn): readonly Edit[] {
  const { sent, decision } = x
  const announcement = decision.speech?.announcement
  if (announcement === undefined || isUnsupported(x, 'announce')) return []
  return sent.announce(announcement)
}

/** A notice placed in a request. */
export interface PlacedNotice {
  readonly channel: Channel
  readonly edits: readonly Edit[]
}

const OTHERWISE: readonly Channel[] = ['auto', 'user', 'system']

/** Yields the places where a notice can go, the preferred channel first, without refused channels. */
export function* placesFor(x: Turn, text: string, preferred: Channel = x.policy.channel) {
  for (const channel of new Set([preferred, ...OTHERWISE])) {
    const edits = isUnsupported(x, channel) ? undefined : x.sent.notice(text, channel)
    if (edits) yield { channel, edits } satisfies PlacedNotice
  }
}

/** Returns edits that no longer offer the tools that match the globs; none if the model refused them. */
export function droppedFor(x: Turn, globs: readonly string[], instead?: readonly Edit[]): readonly Edit[] {
  if (globs.length === 0 || isUnsupported(x, 'drop_tools')) return []
  const { sent } = x
  const isDropped = (name: string) => globs.some((glob) => globMatches(glob, name))
  return sent.dropTools(isDropped, instead ?? sent.banTools('choice_none'))
}

/** Up to so many bytes, copying them into one piece costs less than sending several. */
const ONE_PIECE = 65_536

/** Returns the call with an edited body, without content coding. `json`: the client's body as plain text. */
export function withEdits(call: UpstreamCall, json: Buffer, edits: readonly Edit[]): UpstreamCall {
  const { upstream, method, path } = call
  const headers = withoutBodyFields(call.headers)
  const pieces = editedPieces(json, edits)
  const length = lengthOf(pieces)
  if (length <= ONE_PIECE) return { upstream, method, path, headers, body: Buffer.concat(pieces, length) }
  headers.push('content-length', String(length))
  return { upstream, method, path, headers, body: pieces }
}
