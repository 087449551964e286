/** Adds the meaning of an overflow to a provider's error, by an edit of its bytes, and records it. */
import { type Reduction, reductionsAfterOverflow, windowAfterOverflow } from '../../core/context-window.ts'
import { parseForeign } from '../../core/json-object.ts'
import { changeReductions } from '../../core/session/transitions.ts'
import type { Dialect } from '../../dialect/dialect.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { contentEncoding, headerOf, withHeaders, withoutBodyFields } from '../../http/headers.ts'
import type { Head, UpstreamCall } from '../../http/upstream.ts'
import { type UpstreamResponse, withBody } from '../../http/upstream-response.ts'
import { applyEdits, setMember } from '../../json/edit.ts'
import { elements, kindAt, member, members, root, type Span } from '../../json/scan.ts'
import { type Classified, classify } from '../../overflow/classify.ts'
import { type Overflow, statedNumbers } from '../../overflow/meaning.ts'
import { type Exchange, emitFor } from '../begin-exchange.ts'
import { noteFault } from '../fault.ts'
import { changeSession, type Turn } from '../turn.ts'
import { bodyOf } from './recover.ts'
import { keptName } from './windows.ts'

/** A request whose responses are checked for overflows. */
export interface WatchedRequest {
  readonly x: Exchange
  readonly dialect: Dialect
  readonly call: UpstreamCall
  /** Unset for a request that is not guarded. */
  readonly turn: Turn | undefined
}

/** Bytes that a body may have without its content coding. */
const MAX_DECODED = 1_048_576

/** Returns an error response, whose whole body is `body`, with its meaning; `undefined` if it is no overflow. */
export async function explainRefusal(request: WatchedRequest, response: UpstreamResponse, body: Buffer) {
  const { x, dialect } = request
  const { catalogue, emit } = x.services
  const { head } = response
  try {
    const plain = decodedAtOnce(body, contentEncoding(head.headers), MAX_DECODED)
    const classified = plain && classifiedIn(request, head.status, plain)
    if (!plain || !classified) return undefined
    // The window of the model may stand there.
    if (!catalogue.isLoaded) await catalogue.load()
    const annotation = noteOverflow(request, classified)
    const { overflow } = classified
    const stated = { 'x-governor-overflow': overflow.recovery }
    const { limit, promptTokens, overflowBy } = statedNumbers(overflow)
    const excess = overflowBy ?? (promptTokens && limit && promptTokens - limit)
    const marked = { ...head, overflow: overflow.recovery, excess }
    const isCanonical = isReplaced(request, overflow)
    const error = isCanonical && errorOf(dialect, annotation, parsed(plain.toString()))
    const changed = error ? Buffer.from(JSON.stringify(dialect.api.errorReply(error))) : annotated(plain, annotation)
    if (!changed) {
      const detail = { ...stated, 'x-governor-overflow-detail': JSON.stringify(governorField(annotation)) }
      const noted = { ...marked, headers: withHeaders(head.headers, detail) }
      return { response: withBody(response, noted, body), overflow }
    }
    const fields = isCanonical ? { ...stated, 'content-type': 'application/json' } : stated
    const headers = withHeaders(withoutBodyFields(head.headers), fields)
    const all = [...headers, 'content-length', String(changed.length)]
    // The reason phrase belongs to the provider's status.
    const status = isCanonical && head.status > 400 ? { status: 400, reason: '' } : {}
    const noted = { ...marked, ...status, headers: all }
    return { response: withBody(response, noted, changed), overflow }
  } catch (error) {
    noteFault(emit, error)
    return undefined
  }
}

/**
 * Returns what replaces an error event from its byte `sent` on: with its meaning, if it is an overflow. The event of a
 * response whose `head` states its length stays as it is: a client would take the bytes beyond that for its next one.
 */
export function explainFrame(request: WatchedRequest, frame: Buffer, sent: number, { headers }: Head): Buffer {
  const rest = frame.subarray(sent)
  try {
    const found = /data: ?([^\r\n]*)/.exec(frame.toString('latin1'))
    const end = found ? found.index + found[0].length : 0
    const start = end - (found?.[1]?.length ?? 0)
    const json = frame.subarray(start, end)
    const classified = found ? classifiedIn(request, 200, json) : undefined
    if (!classified) return rest
    const annotation = noteOverflow(request, classified)
    if (headerOf(headers, 'content-length') !== undefined) return rest
    const changed = annotated(json, annotation, isReplaced(request, classified.overflow) ? request.dialect : undefined)
    const whole = changed && Buffer.concat([frame.subarray(0, start), changed, frame.subarray(end)])
    // Bytes that have gone cannot be changed any more.
    return whole?.subarray(0, sent).equals(frame.subarray(0, sent)) ? whole.subarray(sent) : rest
  } catch (error) {
    noteFault(request.x.services.emit, error)
    return rest
  }
}

function classifiedIn({ x, call }: WatchedRequest, status: number, text: Buffer): Classified | undefined {
  const rows = x.services.policies.overflow.quirks
  return classify({ status, body: parsed(text.toString()) }, { rows, request: () => bodyOf(call) })
}

/** Returns the value of a JSON text, or the text itself if it is not JSON. */
function parsed(text: string): unknown {
  try {
    return parseForeign(text)
  } catch {
    return text
  }
}

/** Records an overflow in the known window of the model and in the effective context of its session. */
function noteOverflow({ x, turn, dialect, call }: WatchedRequest, { overflow, quirk }: Classified) {
  const { services, route } = x
  const { windows, now, policies } = services
  const { upstream } = route
  const body = turn ? undefined : bodyOf(call)
  const model = turn?.request.conversation.model ?? (body && dialect.modelOf({ path: route.asked, body })) ?? ''
  const at = { upstream, model }
  windows.change(at, windowAfterOverflow, overflow)
  const { recovery } = overflow
  if (turn && recovery !== 'loop_refused') turn.state.overflow = recovery
  const ttl = policies.overflow.effectiveTtl
  const refusal = { upstream: upstream.name, model: keptName(model), overflow, now: now(), ttl }
  const reduced = (reductions: readonly Reduction[]) => reductionsAfterOverflow(reductions, refusal)
  if (turn) void changeSession(turn, changeReductions, [reduced])
  emitFor(x, { kind: 'overflow', upstream: upstream.name, recovery, quirk, ...turn?.names })
  const reductions = reduced(turn?.runState.reductions ?? [])
  return { overflow, quirk, base: windows.base(at), effective: windows.effective(at, reductions) }
}

/** What Governor knows of an overflow: its class, and the context window of the model. */
type Annotation = ReturnType<typeof noteOverflow>

/** Returns true if clients get their API's own error: they can solve the overflow by compressing their history. */
function isReplaced({ x }: WatchedRequest, { recovery }: Overflow): boolean {
  const isInput = recovery === 'shrink_context' || recovery === 'compress_only' || recovery === 'unknown_overflow'
  return isInput && x.services.policies.overflow.canonical
}

/** Returns the value of `governor` in an error; unknown numbers are `null`. */
function governorField({ overflow, quirk, base, effective }: Annotation) {
  const { limit = null, promptTokens = null, maxOutput = null, overflowBy = null } = statedNumbers(overflow)
  return {
    recovery: overflow.recovery,
    quirk,
    limit,
    prompt_tokens: promptTokens,
    max_output: maxOutput,
    overflow_by: overflowBy,
    context: { base: base.tokens ?? null, effective: effective.tokens ?? null, source: base.source },
  }
}

/** Returns an error that clients of the dialect understand, with the provider's in `governor.original`. */
function errorOf(dialect: Dialect, annotation: Annotation, original: unknown): object {
  const { limit, promptTokens } = statedNumbers(annotation.overflow)
  return {
    ...dialect.api.overflowError(limit, promptTokens),
    governor: { ...governorField(annotation), original },
  }
}

/** Returns the object at a path of keys and places in arrays, with its members. */
function objectAt(json: Buffer, path: readonly (string | number)[]) {
  let span: Span | undefined = root(json)
  for (const key of path) {
    const kind = kindAt(json, span)
    if (typeof key === 'number') span = kind === 'array' ? elements(json, span)[key] : undefined
    else span = kind === 'object' ? member(members(json, span), key)?.value : undefined
    if (!span) return undefined
  }
  return kindAt(json, span) === 'object' ? { object: span, fields: members(json, span) } : undefined
}

const ERROR_PATHS = [['error'], ['response', 'error'], ['exception']]
/** The most choices that APIs give. */
const MAX_CHOICES = 128

/**
 * Returns an error in JSON with its meaning in `governor`, or as the error that clients of `dialect` understand, with
 * the members around it. `undefined` if it has no error object.
 */
function annotated(json: Buffer, annotation: Annotation, dialect?: Dialect): Buffer | undefined {
  if (typeof parsed(json.toString()) === 'string') return undefined
  const base = objectAt(json, []) ? [] : [0]
  const whole = objectAt(json, base)
  if (!whole) return undefined
  let error: ReturnType<typeof objectAt>
  for (const path of ERROR_PATHS) error ??= objectAt(json, [...base, ...path])
  if (member(whole.fields, 'choices'))
    for (let at = 0; at < MAX_CHOICES; at++) error ??= objectAt(json, [...base, 'choices', at, 'error'])
  const { object, fields } = error ?? whole
  const set = (key: string, value: unknown) => setMember(object, fields, key, JSON.stringify(value))
  if (!dialect) return applyEdits(json, [set('governor', governorField(annotation))])
  const original = parsed(json.toString('utf8', object.start, object.end))
  const canonical = errorOf(dialect, annotation, original)
  if (error) return applyEdits(json, [{ ...object, text: JSON.stringify(canonical) }])
  // An event that is the error itself (`{"type":"error","code":…,"message":…}`) is read by these members.
  const values = new Map<string, unknown>(Object.entries(canonical))
  const shared = ['code', 'message'].filter((key) => member(fields, key) && values.has(key))
  if (shared.length === 0) return applyEdits(json, [set('error', canonical)])
  const changed = [...shared, 'governor'].map((key) => set(key, values.get(key)))
  return applyEdits(json, changed)
}
