/** A refusal that was held until it was whole: what it means, and how the client is told. */
import type { Dialect } from '../../dialect/dialect.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { contentEncoding, headerOf, withHeaders, withoutBodyFields } from '../../http/headers.ts'
import type { Flow, Head, Receiver } from '../../http/upstream.ts'
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

/** A response that is held until it is whole. */
export interface Held {
  readonly head: Head
  readonly flow: Flow
  readonly chunks: Buffer[]
  length: number
}

export function replay(held: Held, receiver: Receiver): void {
  receiver.start(held.head, held.flow)
  for (const chunk of held.chunks) receiver.data(chunk)
}

function withBody(head: Head, body: Buffer, own: Readonly<Record<string, string>>): Head {
  const headers = withoutBodyFields(head.headers)
  return { ...head, headers: [...withHeaders(headers, own), 'content-length', String(body.length)] }
}

/** What the refusal of a request means, if something is too large, and its body without its content coding. */
export function meaningOf(
  held: Held,
  quirks: readonly Row[],
  request: () => Buffer | undefined,
): { readonly plain: Buffer; readonly classified: Classified } | undefined {
  const whole = Buffer.concat(held.chunks, held.length)
  const coding = contentEncoding(held.head.headers)
  const plain = coding === 'identity' ? whole : decodedAtOnce(whole, coding, MAX_DECODED)
  if (!plain) return undefined
  const classified = classify({ status: held.head.status, body: parsed(plain.toString()) }, quirks, request)
  return classified && { plain, classified }
}

/** The refusal as the client gets it: the same, and what it means; with `canonical`, in the words of that dialect. */
export function explained(
  held: Held,
  plain: Buffer,
  annotation: Annotation,
  canonical: Dialect | undefined,
): { readonly head: Head; readonly body: Buffer } {
  const overflow = annotation.classified.overflow.recovery
  const own = { 'x-governor-overflow': overflow }
  if (canonical && isInputTooLarge(annotation)) {
    const body = canonicalReply(plain.toString(), canonical, annotation)
    const status = held.head.status >= 400 ? 400 : held.head.status
    const head = withBody(held.head, body, { ...own, 'content-type': 'application/json' })
    // What the provider calls its status is not what this one is called.
    return {
      head: { ...head, status, reason: status === held.head.status ? head.reason : '', overflow },
      body,
    }
  }
  let body: Buffer | undefined
  try {
    body = annotated(plain, annotation)
  } catch {
    // No JSON: what it means is said in headers alone.
  }
  if (body) return { head: { ...withBody(held.head, body, own), overflow }, body }
  const detail = { 'x-governor-overflow-detail': JSON.stringify(told(annotation)) }
  const headers = withHeaders(held.head.headers, { ...own, ...detail })
  return { head: { ...held.head, headers, overflow }, body: Buffer.concat(held.chunks) }
}
