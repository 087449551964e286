/** Adds the meaning of an overflow to a provider's error, by an edit of its bytes: everything else stays unchanged. */
import type { BaseContext, EffectiveContext } from '../../core/context-window.ts'
import { parseForeign } from '../../core/foreign-json.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { withHeaders, withoutBodyFields } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import { applyEdits, setMember } from '../../json/edit.ts'
import { elements, kindAt, type Member, member, members, root, type Span } from '../../json/scan.ts'
import type { Classified } from '../../overflow/classify.ts'
import { statedNumbers } from '../../overflow/overflow.ts'

/** What Governor knows of an overflow: its class, and the context window of the model. */
export interface Annotation {
  readonly classified: Classified
  readonly base: BaseContext
  readonly effective: EffectiveContext
}

/** Returns the value of `governor` in an error; unknown numbers are `null`. */
export function governorField({ classified, base, effective }: Annotation) {
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

interface FoundError {
  /** The outermost object: the body, or its first item. */
  readonly whole: Place
  /** The error object in it; the same object if the body itself is the error. */
  readonly error: Place
}

/** Finds the error in a reply; `undefined` if the reply has no object. */
function errorIn(json: Buffer): FoundError | undefined {
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

/**
 * Returns the reply with `governor` in its error object; `undefined` if it has no object. @throws {JsonScanError} on
 * invalid JSON.
 */
export function annotated(json: Buffer, annotation: Annotation): Buffer | undefined {
  const found = errorIn(json)
  if (!found) return undefined
  const { object, fields } = found.error
  return applyEdits(json, [setMember(object, fields, 'governor', JSON.stringify(governorField(annotation)))])
}

/** Returns true if the client can solve the overflow with a smaller input, by compressing its history. */
export function isInputTooLarge({ classified: { overflow } }: Annotation): boolean {
  const { recovery } = overflow
  return recovery === 'shrink_context' || recovery === 'compress_only' || recovery === 'unknown_overflow'
}

function errorOf(dialect: Dialect, annotation: Annotation, original: unknown): object {
  const { limit, promptTokens } = statedNumbers(annotation.classified.overflow)
  return {
    ...dialect.api.overflowError(limit, promptTokens),
    governor: { ...governorField(annotation), original },
  }
}

/** Returns the value of a JSON text, or the text itself if it is not JSON. */
export function parsed(text: string): unknown {
  try {
    return parseForeign(text)
  } catch {
    return text
  }
}

/**
 * Returns an event with the error that clients of the dialect understand, and the provider's in `governor.original`.
 * The members around the error object stay, as clients read them. `undefined` as `annotated`.
 */
export function canonicalEvent(json: Buffer, dialect: Dialect, annotation: Annotation): Buffer | undefined {
  const found = errorIn(json)
  if (!found) return undefined
  const { whole, error } = found
  const original = parsed(json.toString('utf8', error.object.start, error.object.end))
  const canonical = errorOf(dialect, annotation, original)
  const replacement = JSON.stringify(canonical)
  if (error !== whole) return applyEdits(json, [{ ...error.object, text: replacement }])
  // An event that is the error itself (`{"type":"error","code":…,"message":…}`) is read by these members.
  const shared = ['code', 'message'].filter(
    (key) => member(whole.fields, key) && Object.hasOwn(canonical, key),
  )
  if (shared.length > 0) {
    const values = new Map<string, unknown>(Object.entries(canonical))
    const edits = [...shared, 'governor'].map((key) =>
      setMember(whole.object, whole.fields, key, JSON.stringify(values.get(key))),
    )
    return applyEdits(json, edits)
  }
  return applyEdits(json, [setMember(whole.object, whole.fields, 'error', replacement)])
}

/** An error response, its body, and the same body without content coding. */
export interface Refusal {
  readonly head: Head
  readonly body: Buffer
  readonly plain: Buffer
}

/** Returns the error with its meaning added; with `canonical`, as an error that clients of that dialect understand. */
export function explained(
  { head, body, plain }: Refusal,
  annotation: Annotation,
  canonical: Dialect | undefined,
): { readonly head: Head; readonly body: Buffer } {
  const overflow = annotation.classified.overflow.recovery
  const extraHeaders = { 'x-governor-overflow': overflow }
  const withBody = (changed: Buffer, more: Readonly<Record<string, string>>) => {
    const headers = withHeaders(withoutBodyFields(head.headers), { ...extraHeaders, ...more })
    return {
      head: { ...head, overflow, headers: [...headers, 'content-length', String(changed.length)] },
      body: changed,
    }
  }
  if (canonical && isInputTooLarge(annotation)) {
    const error = errorOf(canonical, annotation, parsed(plain.toString()))
    const reply = Buffer.from(JSON.stringify(canonical.api.errorReply(error)))
    const changed = withBody(reply, { 'content-type': 'application/json' })
    // The reason phrase belongs to the provider's status.
    return head.status > 400 ? { ...changed, head: { ...changed.head, status: 400, reason: '' } } : changed
  }
  let more: Buffer | undefined
  try {
    more = annotated(plain, annotation)
  } catch {
    // It is not JSON: the meaning goes into headers only.
  }
  if (more) return withBody(more, {})
  const detail = { 'x-governor-overflow-detail': JSON.stringify(governorField(annotation)) }
  return {
    head: { ...head, headers: withHeaders(head.headers, { ...extraHeaders, ...detail }), overflow },
    body,
  }
}
