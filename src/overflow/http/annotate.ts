/** Says in a provider's error what it means, by adding to its bytes: everything that was there stays as it was. */
import type { BaseContext, EffectiveContext } from '../../core/context-window.ts'
import { parseForeign } from '../../core/foreign-json.ts'
import { statedNumbers } from '../../core/overflow.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { applyEdits, setMember } from '../../json/edit.ts'
import { elements, kindAt, type Member, member, members, root, type Span } from '../../json/scan.ts'
import type { Classified } from '../classify.ts'

/** What clients are told of an overflow. */
export interface Annotation {
  readonly classified: Classified
  readonly base: BaseContext
  readonly effective: EffectiveContext
}

/** The annotation as it stands in a reply; `null` where nothing is known. */
export function told({ classified, base, effective }: Annotation) {
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

/** An object in a JSON text. */
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
  /** The object that holds everything else: the body, or its first item. */
  readonly whole: Place
  /** The error object in it, or the same where the body itself is the error. */
  readonly error: Place
}

/** The error of the first choice that has one. */
function errorOfChoice(json: Buffer, whole: Place): Place | undefined {
  for (const item of itemsOf(json, member(whole.fields, 'choices')?.value)) {
    const error = within(json, objectAt(json, item), 'error')
    if (error) return error
  }
  return undefined
}

/** Finds the error in a reply; `undefined` where there is no object to say anything in. */
function errorIn(json: Buffer): FoundError | undefined {
  const span = root(json)
  const whole = objectAt(json, span) ?? objectAt(json, itemsOf(json, span)[0])
  if (!whole) return undefined
  const error =
    within(json, whole, 'error') ??
    within(json, within(json, whole, 'response'), 'error') ??
    within(json, whole, 'exception') ??
    errorOfChoice(json, whole) ??
    whole
  return { whole, error }
}

/** The reply with `governor` in its error object; `undefined` where it has no object. @throws on what is no JSON. */
export function annotated(json: Buffer, annotation: Annotation): Buffer | undefined {
  const found = errorIn(json)
  if (!found) return undefined
  const { object, fields } = found.error
  return applyEdits(json, [setMember(object, fields, 'governor', JSON.stringify(told(annotation)))])
}

/** May this overflow be told as an input that is too large? Clients answer that by compressing. */
export function isInputTooLarge({ classified: { overflow } }: Annotation): boolean {
  const { recovery } = overflow
  return recovery === 'shrink_context' || recovery === 'compress_only' || recovery === 'unknown_overflow'
}

function errorOf(dialect: Dialect, annotation: Annotation, original: unknown): object {
  const { limit, promptTokens } = statedNumbers(annotation.classified.overflow)
  return { ...dialect.api.overflowError(limit, promptTokens), governor: { ...told(annotation), original } }
}

/** The body as JSON, or as the text that it is. */
export function parsed(text: string): unknown {
  try {
    return parseForeign(text)
  } catch {
    return text
  }
}

/** The one error that clients of the dialect understand, whatever the provider's own was. */
export function canonicalReply(text: string, dialect: Dialect, annotation: Annotation): Buffer {
  return Buffer.from(JSON.stringify(dialect.api.errorReply(errorOf(dialect, annotation, parsed(text)))))
}

/** The same in an event: what is around the error object stays, as clients go by it. */
export function canonicalEvent(json: Buffer, dialect: Dialect, annotation: Annotation): Buffer | undefined {
  const found = errorIn(json)
  if (!found) return undefined
  const { whole, error } = found
  const original = parsed(json.toString('utf8', error.object.start, error.object.end))
  const canonical = errorOf(dialect, annotation, original)
  const replacement = JSON.stringify(canonical)
  if (error !== whole) return applyEdits(json, [{ ...error.object, text: replacement }])
  // An event that is the error itself (`{"type":"error","code":…,"message":…}`) is read by these members.
  const own = ['code', 'message'].filter((key) => member(whole.fields, key) && Object.hasOwn(canonical, key))
  if (own.length > 0) {
    const said = new Map<string, unknown>(Object.entries(canonical))
    const edits = [...own, 'governor'].map((key) =>
      setMember(whole.object, whole.fields, key, JSON.stringify(said.get(key))),
    )
    return applyEdits(json, edits)
  }
  return applyEdits(json, [setMember(whole.object, whole.fields, 'error', replacement)])
}
