/** Classifies an error response whose body is complete, and adds its meaning to it. */
import type { Dialect } from '../../dialect/dialect.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { contentEncoding, headerOf, withHeaders, withoutBodyFields } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import { type Classified, classify } from '../../overflow/classify.ts'
import type { Row } from '../../overflow/rows.ts'
import {
  type Annotation,
  annotated,
  canonicalReply,
  governorField,
  isInputTooLarge,
  parsed,
} from './annotate.ts'

/** Bytes that a body may have without its content coding. */
const MAX_DECODED = 1_048_576

/** Returns the Content-Type in lower case; empty if there is none. */
export function typeOf(head: Head): string {
  return headerOf(head.headers, 'content-type')?.toLowerCase() ?? ''
}

/** A member that only errors have, whatever the status. In a string its quotes would be escaped. */
const ERROR_FIELD = /"(?:error|errors|exception|base_resp)"\s{0,8}:\s{0,8}[^\sn]/
/** The beginning of server-sent events, which some servers send as plain text. */
const EVENT_FIELD = /^(?:data|event|id|retry)?:/
/** Errors have such a member near the beginning. */
const FIRST_BYTES = 4_096

/** Returns true if a body of status 200 begins like an error. `isText`: its type is plain text. */
export function mayBeError(isText: boolean, chunk: Buffer): boolean {
  if (isText) return !EVENT_FIELD.test(chunk.toString('latin1', 0, 16))
  // One expression on a text takes a third of the time of a search for each word in bytes.
  return ERROR_FIELD.test(chunk.toString('latin1', 0, FIRST_BYTES))
}

function headFor(head: Head, body: Buffer, extraHeaders: Readonly<Record<string, string>>): Head {
  const headers = withHeaders(withoutBodyFields(head.headers), extraHeaders)
  return { ...head, headers: [...headers, 'content-length', String(body.length)] }
}

/** Classifies an error; also returns its body without content coding. `undefined` if it is no overflow. `request`: the JSON sent. */
export function meaningOf(
  head: Head,
  body: Buffer,
  quirks: readonly Row[],
  request: () => Buffer | undefined,
): { readonly plain: Buffer; readonly classified: Classified } | undefined {
  const coding = contentEncoding(head.headers)
  const plain = coding === 'identity' ? body : decodedAtOnce(body, coding, MAX_DECODED)
  if (!plain) return undefined
  const classified = classify(
    { status: head.status, body: parsed(plain.toString()) },
    { rows: quirks, request },
  )
  return classified && { plain, classified }
}

/** An error response, its body, and the same body without content coding. */
export interface Refusal {
  readonly head: Head
  readonly body: Buffer
  readonly plain: Buffer
}

/** Returns the error with its meaning added; with `canonical`, as an error of that dialect. */
export function explained(
  { head, body, plain }: Refusal,
  annotation: Annotation,
  canonical: Dialect | undefined,
): { readonly head: Head; readonly body: Buffer } {
  const overflow = annotation.classified.overflow.recovery
  const extraHeaders = { 'x-governor-overflow': overflow }
  if (canonical && isInputTooLarge(annotation)) {
    const reply = canonicalReply(plain.toString(), canonical, annotation)
    const changed = headFor(head, reply, { ...extraHeaders, 'content-type': 'application/json' })
    const status = head.status >= 400 ? 400 : head.status
    // The reason phrase belongs to the provider's status.
    return {
      head: { ...changed, status, reason: status === head.status ? head.reason : '', overflow },
      body: reply,
    }
  }
  let more: Buffer | undefined
  try {
    more = annotated(plain, annotation)
  } catch {
    // It is not JSON: the meaning goes into headers only.
  }
  if (more) return { head: { ...headFor(head, more, extraHeaders), overflow }, body: more }
  const detail = { 'x-governor-overflow-detail': JSON.stringify(governorField(annotation)) }
  const headers = withHeaders(head.headers, { ...extraHeaders, ...detail })
  return { head: { ...head, headers, overflow }, body }
}
