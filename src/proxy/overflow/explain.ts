/** Adds the meaning of an overflow to a provider's error, by an edit of its bytes. */
import type { BaseContext, EffectiveContext } from '../../core/context-window.ts'
import { parseForeign } from '../../core/json-object.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { contentEncoding, withHeaders, withoutBodyFields } from '../../http/headers.ts'
import type { Head, UpstreamCall } from '../../http/upstream.ts'
import { type UpstreamResponse, withBody } from '../../http/upstream-response.ts'
import { applyEdits, setMember } from '../../json/edit.ts'
import { elements, kindAt, type Member, member, members, root, type Span } from '../../json/scan.ts'
import { type Classified, classify } from '../../overflow/classify.ts'
import { type Recovery, statedNumbers } from '../../overflow/overflow.ts'
import { bodyOf, type OverflowPolicy } from './recover.ts'

/** What Governor knows of an overflow: its class, and the context window of the model. */
export interface Annotation {
  readonly classified: Classified
  readonly base: BaseContext
  readonly effective: EffectiveContext
}

/** A request whose responses are checked for overflows. */
export interface WatchedRequest {
  readonly call: UpstreamCall
  readonly dialect: Dialect
  readonly policy: OverflowPolicy
  /** Resolves when the windows of models are loaded, which `note` needs. */
  readonly loadWindows: () => Promise<void>
  /** Records an overflow; returns what the error gets in addition. */
  readonly note: (classified: Classified) => Annotation
  /** Counts a fault of Governor, after which the response passes unchanged. */
  readonly fault: (error: Error) => void
}

/** Bytes that a body may have without its content coding. */
const MAX_DECODED = 1_048_576

/** Returns an error response, whose whole body is `body`, with its meaning; `undefined` if it has none. */
export async function explainRefusal(
  request: WatchedRequest,
  response: UpstreamResponse,
  body: Buffer,
): Promise<{ readonly response: UpstreamResponse; readonly classified: Classified } | undefined> {
  const { head } = response
  try {
    const coding = contentEncoding(head.headers)
    const plain = coding === 'identity' ? body : decodedAtOnce(body, coding, MAX_DECODED)
    const classified = plain && classifiedIn(request, head.status, plain)
    if (!plain || !classified) return undefined
    await request.loadWindows()
    const annotation = request.note(classified)
    const canonical = request.policy.canonical && isInputTooLarge(annotation)
    const changed = canonical
      ? canonicalReply(head, plain, request.dialect, annotation)
      : annotatedReply(head, body, plain, annotation)
    return { response: withBody(response, changed.head, changed.body), classified }
  } catch (error) {
    request.fault(error as Error)
    return undefined
  }
}

/** Returns what replaces an error event from its byte `sent` on: with its meaning, if it is an overflow. */
export function explainFrame(request: WatchedRequest, frame: Buffer, sent: number): Buffer {
  const rest = frame.subarray(sent)
  try {
    const found = /data: ?([^\r\n]*)/.exec(frame.toString('latin1'))
    const end = found ? found.index + found[0].length : 0
    const start = end - (found?.[1]?.length ?? 0)
    const json = frame.subarray(start, end)
    const classified = found ? classifiedIn(request, 200, json) : undefined
    if (!classified) return rest
    const annotation = request.note(classified)
    const changed =
      request.policy.canonical && isInputTooLarge(annotation)
        ? canonicalEvent(json, request.dialect, annotation)
        : annotated(json, annotation)
    const whole = changed && Buffer.concat([frame.subarray(0, start), changed, frame.subarray(end)])
    // Bytes that have gone cannot be changed any more.
    return whole?.subarray(0, sent).equals(frame.subarray(0, sent)) ? whole.subarray(sent) : rest
  } catch (error) {
    request.fault(error as Error)
    return rest
  }
}

function classifiedIn({ policy, call }: WatchedRequest, status: number, text: Buffer): Classified | undefined {
  const reply = { status, body: parsed(text.toString()) }
  return classify(reply, { rows: policy.quirks, request: () => bodyOf(call) })
}

/** Returns the value of a JSON text, or the text itself if it is not JSON. */
function parsed(text: string): unknown {
  try {
    return parseForeign(text)
  } catch {
    return text
  }
}

/** Returns true if the client can solve the overflow with a smaller input, by compressing its history. */
function isInputTooLarge({ classified: { overflow } }: Annotation): boolean {
  const { recovery } = overflow
  return recovery === 'shrink_context' || recovery === 'compress_only' || recovery === 'unknown_overflow'
}

/** Returns the value of `governor` in an error; unknown numbers are `null`. */
function governorField({ classified, base, effective }: Annotation) {
  const { limit, promptTokens, maxOutput, overflowBy } = statedNumbers(classified.overflow)
  return {
    recovery: classified.overflow.recovery,
    quirk: classified.quirk,
    limit: limit ?? null,
    prompt_tokens: promptTokens ?? null,
    max_output: maxOutput ?? null,
    overflow_by: overflowBy ?? null,
    context: { base: base.tokens ?? null, effective: effective.tokens ?? null, source: base.source },
  }
}

/** Returns an error that clients of the dialect understand, with the provider's in `governor.original`. */
function errorOf(dialect: Dialect, annotation: Annotation, original: unknown): object {
  const { limit, promptTokens } = statedNumbers(annotation.classified.overflow)
  return {
    ...dialect.api.overflowError(limit, promptTokens),
    governor: { ...governorField(annotation), original },
  }
}

interface Reply {
  readonly head: Head
  readonly body: Buffer
}

function changedReply(head: Head, overflow: Recovery, body: Buffer, headers: Readonly<Record<string, string>>): Reply {
  const all = withHeaders(withoutBodyFields(head.headers), { 'x-governor-overflow': overflow, ...headers })
  return { head: { ...head, overflow, headers: [...all, 'content-length', String(body.length)] }, body }
}

/** Returns the reply as an error that clients of the dialect understand. */
function canonicalReply(head: Head, plain: Buffer, dialect: Dialect, annotation: Annotation): Reply {
  const { recovery } = annotation.classified.overflow
  const error = errorOf(dialect, annotation, parsed(plain.toString()))
  const body = Buffer.from(JSON.stringify(dialect.api.errorReply(error)))
  // The reason phrase belongs to the provider's status.
  const own = head.status > 400 ? { ...head, status: 400, reason: '' } : head
  return changedReply(own, recovery, body, { 'content-type': 'application/json' })
}

/** Returns the reply with its meaning in its error object, else in headers. `plain`: the decoded `body`. */
function annotatedReply(head: Head, body: Buffer, plain: Buffer, annotation: Annotation): Reply {
  const { recovery } = annotation.classified.overflow
  let changed: Buffer | undefined
  try {
    changed = annotated(plain, annotation)
  } catch {
    // It is not JSON.
  }
  if (changed) return changedReply(head, recovery, changed, {})
  const detail = JSON.stringify(governorField(annotation))
  const stated = { 'x-governor-overflow': recovery, 'x-governor-overflow-detail': detail }
  return { head: { ...head, overflow: recovery, headers: withHeaders(head.headers, stated) }, body }
}

/** An object in a JSON text, with its members. */
interface Place {
  readonly object: Span
  readonly fields: readonly Member[]
}

function objectAt(json: Buffer, span: Span | undefined): Place | undefined {
  if (!span || kindAt(json, span) !== 'object') return undefined
  return { object: span, fields: members(json, span) }
}

function within(json: Buffer, place: Place | undefined, key: string): Place | undefined {
  return place && objectAt(json, member(place.fields, key)?.value)
}

function itemsOf(json: Buffer, span: Span | undefined): readonly Span[] {
  return span && kindAt(json, span) === 'array' ? elements(json, span) : []
}

/**
 * Finds the error in a reply, which may be the reply itself; `undefined` if it has no object. `whole`: the outermost
 * object, the reply or its first item.
 */
function errorIn(json: Buffer): { readonly whole: Place; readonly error: Place } | undefined {
  const span = root(json)
  const whole = objectAt(json, span) ?? objectAt(json, itemsOf(json, span)[0])
  if (!whole) return undefined
  const inChoice = () =>
    itemsOf(json, member(whole.fields, 'choices')?.value)
      .map((choice) => within(json, objectAt(json, choice), 'error'))
      .find((error) => error !== undefined)
  const error =
    within(json, whole, 'error') ??
    within(json, within(json, whole, 'response'), 'error') ??
    within(json, whole, 'exception') ??
    inChoice() ??
    whole
  return { whole, error }
}

/** Returns the reply with `governor` in its error object; `undefined` if it has none. @throws {JsonScanError} */
function annotated(json: Buffer, annotation: Annotation): Buffer | undefined {
  const found = errorIn(json)
  if (!found) return undefined
  const { object, fields } = found.error
  return applyEdits(json, [setMember(object, fields, 'governor', JSON.stringify(governorField(annotation)))])
}

/**
 * Returns an event with the error that clients of the dialect understand. The members around the error object stay, as
 * clients read them. `undefined` as `annotated`.
 */
function canonicalEvent(json: Buffer, dialect: Dialect, annotation: Annotation): Buffer | undefined {
  const found = errorIn(json)
  if (!found) return undefined
  const { whole, error } = found
  const original = parsed(json.toString('utf8', error.object.start, error.object.end))
  const canonical = errorOf(dialect, annotation, original)
  const replacement = JSON.stringify(canonical)
  if (error !== whole) return applyEdits(json, [{ ...error.object, text: replacement }])
  const set = (key: string, text: string) => setMember(whole.object, whole.fields, key, text)
  // An event that is the error itself (`{"type":"error","code":…,"message":…}`) is read by these members.
  const values = new Map<string, unknown>(Object.entries(canonical))
  const shared = ['code', 'message'].filter((key) => member(whole.fields, key) && values.has(key))
  if (shared.length === 0) return applyEdits(json, [set('error', replacement)])
  return applyEdits(
    json,
    [...shared, 'governor'].map((key) => set(key, JSON.stringify(values.get(key)))),
  )
}
