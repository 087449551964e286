/** Reads one chunk of a streamed Chat Completions response. */
import { isObject, type Json } from '../../core/json-object.ts'
import { choicesOf, textOfMessage } from './wire.ts'

/** Returns the delta of a choice; an empty object if it has none. */
export const deltaOf = ({ delta }: Json): Json => (isObject(delta) ? delta : {})

/** Returns the chunk with changed deltas; the same object if it has no choice. */
export function withDeltas(chunk: Json, change: (delta: Json) => Json): Json {
  const choices = choicesOf(chunk)
  if (choices.length === 0) return chunk
  return { ...chunk, choices: choices.map((choice) => ({ ...choice, delta: change(deltaOf(choice)) })) }
}

/** Returns the delta without its role. */
export function withoutRole({ role: _role, ...delta }: Json): Json {
  return delta
}

/** True if the chunk states the role of the message. */
export function namesRole(chunk: Json): boolean {
  return choicesOf(chunk).some((choice) => Boolean(deltaOf(choice)['role']))
}

/** True if the chunk states a finish reason. */
export function finishes(chunk: Json): boolean {
  return choicesOf(chunk).some(({ finish_reason: reason }) => typeof reason === 'string' && reason !== '')
}

/** Returns the text that a chunk adds to the first choice, the one that clients read. */
export function addedText(chunk: Json): string {
  return choicesOf(chunk)
    .filter((choice) => (choice['index'] ?? 0) === 0)
    .map((choice) => textOfMessage(deltaOf(choice)))
    .join('')
}

const isEmptyValue = (value: unknown): boolean =>
  value === null || value === '' || (Array.isArray(value) && value.length === 0)

/** True if a chunk contains no error, usage, finish reason or delta. */
export function isWithoutContent(chunk: Json): boolean {
  if (chunk['error'] || isObject(chunk['usage']) || finishes(chunk)) return false
  return choicesOf(chunk).every(({ delta }) =>
    Object.values(isObject(delta) ? delta : {}).every(isEmptyValue),
  )
}

/** Returns the fields that all chunks of a stream share; a second response continues under those of the first. */
export function envelopeOf({ id, object, created, model }: Json): Json {
  return { id, object, created, model }
}
