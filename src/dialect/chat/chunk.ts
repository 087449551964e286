/** What can be read of one chunk of a streamed Chat Completions response. */

import { isObject, type Json } from '../shared/json-object.ts'
import { choicesOf, textOfMessage } from './wire.ts'

export const deltaOf = ({ delta }: Json): Json => (isObject(delta) ? delta : {})

/** The chunk with other deltas; the very same object when it has no choice. */
export function withDeltas(chunk: Json, change: (delta: Json) => Json): Json {
  const choices = choicesOf(chunk)
  if (choices.length === 0) return chunk
  return { ...chunk, choices: choices.map((choice) => ({ ...choice, delta: change(deltaOf(choice)) })) }
}

export function withoutRole({ role: _role, ...delta }: Json): Json {
  return delta
}

/** Does the chunk tell whose message it is? */
export function namesRole(chunk: Json): boolean {
  return choicesOf(chunk).some((choice) => Boolean(deltaOf(choice)['role']))
}

/** Does the chunk give the reason why the response ends? */
export function finishes(chunk: Json): boolean {
  return choicesOf(chunk).some(({ finish_reason: reason }) => typeof reason === 'string' && reason !== '')
}

/** The text that a chunk adds to the first choice, the one clients read. */
export function addedText(chunk: Json): string {
  return choicesOf(chunk)
    .filter((choice) => (choice['index'] ?? 0) === 0)
    .map((choice) => textOfMessage(deltaOf(choice)))
    .join('')
}

const isNothing = (value: unknown): boolean =>
  value === null || value === '' || (Array.isArray(value) && value.length === 0)

/** Does a chunk that something was taken out of still say anything? */
export function isWithoutContent(chunk: Json): boolean {
  if (chunk['error'] || isObject(chunk['usage']) || finishes(chunk)) return false
  return choicesOf(chunk).every(({ delta }) => Object.values(isObject(delta) ? delta : {}).every(isNothing))
}

/** What all chunks of one stream share, so that a second response can go on in the first one's name. */
export function envelopeOf({ id, object, created, model }: Json): Json {
  return { id, object, created, model }
}
