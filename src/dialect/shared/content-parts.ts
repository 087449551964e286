/** Contents that are lists of parts: texts, and pictures and the like, which are compared and never read. */
import { nameOf } from '../../core/hash.ts'
import { isObject, type Json, objectsOf, textOf } from './json-object.ts'

/** The texts of a content that is a list of parts: of those that have one. */
export function textsOfParts(parts: unknown): string[] {
  const texts: string[] = []
  if (!Array.isArray(parts)) return texts
  for (const part of parts) {
    if (typeof part === 'string') texts.push(part)
    else if (isObject(part) && typeof part['text'] === 'string') texts.push(part['text'])
  }
  return texts
}

/** Stands for a picture or a document: other letters than ids have, which comparing leaves out. */
export function attachmentHash({ cache_control: _cached, ...part }: Json): string {
  const letters = [...nameOf(JSON.stringify(part))].map(
    (digit) => 'ghijklmnopqrstuv'[Number.parseInt(digit, 16)],
  )
  return `[${textOf(part['type'])} ${letters.join('')}]`
}

/** What stands for the parts without a text, each alike for equal ones. */
export function attachmentHashes(parts: unknown): string[] {
  return objectsOf(parts)
    .filter((part) => typeof part['text'] !== 'string')
    .map(attachmentHash)
}

/** What a result says, decoded, with something that stands for what is no text. */
export function resultText(content: unknown): string {
  if (typeof content === 'string') return content
  return [...textsOfParts(content), ...attachmentHashes(content)].join('\n')
}
