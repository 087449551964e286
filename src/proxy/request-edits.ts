/** The edits that Governor makes in requests, and those that the provider of a model refuses. */
import type { Channel, Speech } from '../core/decide.ts'
import type { Request } from '../core/request.ts'
import { matchesAny } from '../core/text/glob.ts'
import { lengthOf } from '../http/body.ts'
import { withoutBodyFields } from '../http/headers.ts'
import type { UpstreamCall } from '../http/upstream.ts'
import { applyEdits, type Edit, editedPieces } from '../json/edit.ts'
import { type SessionKey, sessionKey, type ValueKind } from '../store/store.ts'
import type { Exchange } from './begin-exchange.ts'
import { noteFault, unlessLost } from './fault.ts'
import type { RequestEdit, Services, UnsupportedEdit } from './services.ts'
import type { FoundSession } from './session/find-session.ts'
import type { Turn } from './turn.ts'

/** One form of a request: the client's own bytes, or edits to them. */
export interface RequestVariant {
  /** Unset for the client's own bytes. */
  readonly edits?: readonly Edit[]
  /** What these edits do that an upstream may not support. */
  readonly features: readonly RequestEdit[]
}

/** Servers are updated: a refused edit is tried again after an hour. */
const CLIENT_ERROR_MS = 3_600_000
/** A server that failed on an edit may be well again soon. */
const SERVER_ERROR_MS = 300_000

/** Refused edits by session and by model: sessions of two tenants must be refused to keep one from all. */
export const UNSUPPORTED_EDITS: ValueKind<readonly UnsupportedEdit[]> = {
  name: 'unsupported_edits',
  ttl: CLIENT_ERROR_MS,
  empty: [],
}

/** Returns the name under which the unsupported edits of a request's model at its upstream are kept. */
function modelKey({ upstream, model }: Pick<Request, 'upstream' | 'model'>): string {
  return `${upstream} ${model}`
}

/** Returns the key under which the unsupported edits of a session and its model are kept; `undefined` without an id. */
function refusedKey({ tenant, id }: FoundSession, request: Request): SessionKey | undefined {
  return id === undefined ? undefined : sessionKey(tenant, `${id} ${modelKey(request)}`)
}

/**
 * Resolves with the edits that the session of a request knows as refused; those of its model are read again as well.
 */
export async function knownRefusedEdits(
  { store, emit, unsupportedEdits }: Services,
  found: FoundSession,
  request: Request,
): Promise<readonly UnsupportedEdit[]> {
  await unsupportedEdits.refresh(modelKey(request))
  const key = refusedKey(found, request)
  return key ? await unlessLost(emit, store.value(UNSUPPORTED_EDITS, key), []) : []
}

/** Finds a refusal that still holds. The clock of another replica may differ, and a clock may be set back. */
function refusalOf(known: readonly UnsupportedEdit[], edit: RequestEdit, now: number): UnsupportedEdit | undefined {
  return known.find((one) => {
    const holds = one.status >= 500 ? SERVER_ERROR_MS : CLIENT_ERROR_MS
    return one.edit === edit && Math.abs(now - one.at) < holds
  })
}

/** True if this request's upstream has refused an edit in its session, or in sessions of several tenants. */
export function isUnsupported({ services, request, state }: Turn, edit: RequestEdit): boolean {
  const all = [state.refusedEdits, services.unsupportedEdits.copyOf(modelKey(request))]
  return all.some((known) => refusalOf(known, edit, services.now())?.isCertain)
}

/**
 * Records that a request with an edit, sent at `sentAt`, was refused and one without it accepted; reports it once
 * certain: a 5xx only after a later request failed alike, as requests side by side may fail for one passing reason.
 */
export async function noteRefused(x: Turn, edit: RequestEdit, status: number, sentAt: number): Promise<void> {
  const { services, request, found } = x
  const at = services.now()
  await changeRefused(x, (known) => {
    const before = refusalOf(known, edit, at)
    const isCertain = status < 500 || (before?.status === status && sentAt >= before.at)
    if (before && (before.isCertain || !isCertain)) return known
    return [...known.filter((one) => one.edit !== edit), { edit, status, at, isCertain }]
  })
  if (!refusalOf(x.state.refusedEdits, edit, at)?.isCertain) return
  services.unsupportedEdits.change(modelKey(request), (known) => {
    const { tenants = [], isCertain } = refusalOf(known, edit, at) ?? {}
    if (isCertain || tenants.includes(found.tenant)) return known
    const all = { edit, status, at, isCertain: tenants.length > 0, tenants: [...tenants, found.tenant] }
    return [...known.filter((one) => one.edit !== edit), all]
  })
  const { upstream, conversation } = request
  services.emit({ kind: 'alteration_refused', upstream, model: conversation.model, alteration: edit, status })
}

/** Records that a request was accepted with these edits: earlier refusals had another reason. */
export function noteAccepted(x: Turn, edits: readonly RequestEdit[]): void {
  const without = (known: readonly UnsupportedEdit[]) =>
    known.some(({ edit }) => edits.includes(edit)) ? known.filter(({ edit }) => !edits.includes(edit)) : known
  x.services.unsupportedEdits.change(modelKey(x.request), without)
  if (without(x.state.refusedEdits) !== x.state.refusedEdits) void changeRefused(x, without)
}

/** Changes what the session of a request knows of refused edits, at once for the rest of this request. */
async function changeRefused(
  { services: { store, emit }, found, request, state }: Turn,
  by: (known: readonly UnsupportedEdit[]) => readonly UnsupportedEdit[],
): Promise<void> {
  state.refusedEdits = by(state.refusedEdits)
  const key = refusedKey(found, request)
  if (!key) return
  const changed = store.updateValue(UNSUPPORTED_EDITS, key, (known) => ({ value: by(known), result: by(known) }))
  state.refusedEdits = await unlessLost(emit, changed, state.refusedEdits)
}

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
  return sent.dropTools((name) => matchesAny(globs, name), instead ?? sent.banTools('choice_none'))
}

/** The client's request with a notice, or unchanged. */
export interface SpokenRequest extends RequestVariant {
  readonly notice?: PlacedNotice | undefined
  /** The edits that add text and change no tools. */
  readonly textEdits: readonly Edit[]
}

/** The client's own bytes. */
export const UNCHANGED: SpokenRequest = { features: [], textEdits: [] }

/** Returns the request with what Governor says; after a fault of Governor's own the client's bytes. */
export function spokenRequest(x: Turn, speech: Speech): SpokenRequest {
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
    noteFault(x.services.emit, error)
    return UNCHANGED
  }
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

/** Returns a request with edits of the client's own bytes; as it is if its dialect can't read it with them. */
export function readAgain(
  { route }: Exchange,
  { sent, bytes, call }: Pick<Turn, 'sent' | 'bytes' | 'call'>,
  edits: readonly Edit[],
): Pick<Turn, 'sent' | 'bytes' | 'call'> {
  const json = applyEdits(bytes, edits)
  const again = route.dialect?.read({ path: route.asked, query: route.query, body: json })
  return again ? { sent: again, bytes: json, call: withEdits(call, json, []) } : { sent, bytes, call }
}
