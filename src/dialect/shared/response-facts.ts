/** Reads what a span says of a response. Only the response of a request whose span is recorded is read. */
import { parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import type { ResponseFacts } from '../../core/usage.ts'
import { createFrameReader, dataOf } from '../../sse/frames.ts'
import type { ResponseTail } from '../dialect.ts'

/** The most characters of an id or a model, and the most reasons. */
const MAX_NAME = 200
const MAX_REASONS = 16

/** A member of an object with a short text. */
const MEMBER = /"(\w{1,64})"\s{0,4}:\s{0,4}"([^"\\]{1,64})"/g

/** Returns the texts under `key`, at any depth. Text of the model can't match, as its quotes are escaped. */
export function textsUnder(bytes: Buffer, key: string): string[] {
  const members = [...bytes.toString('latin1').matchAll(MEMBER)]
  return members.flatMap(([, name, text = '']) => (name === key ? [text] : []))
}

/** Returns the facts of a response. `envelope`: the member of a stream's first event that holds the response, if any. */
export function responseFacts(
  { head, whole, streams }: ResponseTail,
  envelope: string | undefined,
  finishReasons: readonly string[],
): ResponseFacts {
  const events = streams
    ? createFrameReader()
        .push(head)
        .map((frame) => dataOf(frame) ?? '')
    : []
  const bodies = streams ? events : [whole?.toString('utf8') ?? '']
  const responses = bodies.map((text) => {
    const body = parseObject(text)
    return streams && envelope !== undefined ? propertyOf(body, envelope) : body
  })
  const named = responses.find((response) => textOf(propertyOf(response, 'id')) !== '')
  const name = (key: string) => textOf(propertyOf(named, key)).slice(0, MAX_NAME) || undefined
  return { id: name('id'), model: name('model'), finishReasons: finishReasons.slice(0, MAX_REASONS) }
}
