/** A refusal whose body is whole: what it means, and how the client is told. */
import type { Dialect } from '../../dialect/dialect.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { contentEncoding, headerOf, withHeaders, withoutBodyFields } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import { type Classified, classify } from '../classify.ts'
import type { Row } from '../rows.ts'
import { type Annotation, annotated, canonicalReply, isInputTooLarge, parsed, told } from './annotate.ts'

/** What it may become without its content coding. */
const MAX_DECODED = 1_048_576

export function typeOf(head: Head): string {
  return headerOf(head.headers, 'content-type')?.toLowerCase() ?? ''
}

/** How a body says that it is an error, whatever its status; in strings the quotes would be escaped. */
const ERROR_FIELD = /"(?:error|errors|exception|base_resp)"\s{0,8}:\s{0,8}[^\sn]/
/** How events begin, which some servers call plain text. */
const EVENT_FIELD = /^(?:data|event|id|retry)?:/
/** An error says so at once. */
const FIRST_BYTES = 4_096

/** Does an answer of status 200 begin as an error would? `isText`: it is said to be plain text. */
export function mayBeError(isText: boolean, chunk: Buffer): boolean {
  if (isText) return !EVENT_FIELD.test(chunk.toString('latin1', 0, 16))
  // One expression on a text takes a third of what it takes to look for each word in bytes.
  return ERROR_FIELD.test(chunk.toString('latin1', 0, FIRST_BYTES))
}

function headFor(head: Head, body: Buffer, governorHeaders: Readonly<Record<string, string>>): Head {
  const headers = withHeaders(withoutBodyFields(head.headers), governorHeaders)
  return { ...head, headers: [...headers, 'content-length', String(body.length)] }
}

/** What a refusal means, if something is too large, and its body without its content coding. `request`: the JSON refused. */
export function meaningOf(
  head: Head,
  body: Buffer,
  quirks: readonly Row[],
  request: () => Buffer | undefined,
): { readonly plain: Buffer; readonly classified: Classified } | undefined {
  const coding = contentEncoding(head.headers)
  const plain = coding === 'identity' ? body : decodedAtOnce(body, coding, MAX_DECODED)
  if (!plain) return undefined
  const classified = classify({ status: head.status, body: parsed(plain.toString()) }, quirks, request)
  return classified && { plain, classified }
}

/** A refusal as it came, and its body without its content coding. */
export interface Refusal {
  readonly head: Head
  readonly body: Buffer
  readonly plain: Buffer
}

/** The refusal as the client gets it: the same with what it means; with `canonical`, as an error of that dialect. */
export function explained(
  { head, body, plain }: Refusal,
  annotation: Annotation,
  canonical: Dialect | undefined,
): { readonly head: Head; readonly body: Buffer } {
  const overflow = annotation.classified.overflow.recovery
  const governorHeaders = { 'x-governor-overflow': overflow }
  if (canonical && isInputTooLarge(annotation)) {
    const reply = canonicalReply(plain.toString(), canonical, annotation)
    const changed = headFor(head, reply, { ...governorHeaders, 'content-type': 'application/json' })
    const status = head.status >= 400 ? 400 : head.status
    // The provider's reason phrase belongs to the provider's status.
    return {
      head: { ...changed, status, reason: status === head.status ? head.reason : '', overflow },
      body: reply,
    }
  }
  let more: Buffer | undefined
  try {
    more = annotated(plain, annotation)
  } catch {
    // No JSON: what it means is said in headers alone.
  }
  if (more) return { head: { ...headFor(head, more, governorHeaders), overflow }, body: more }
  const detail = { 'x-governor-overflow-detail': JSON.stringify(told(annotation)) }
  const headers = withHeaders(head.headers, { ...governorHeaders, ...detail })
  return { head: { ...head, headers, overflow }, body }
}
