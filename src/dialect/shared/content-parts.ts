/** Message contents that are lists of parts: texts, and attachments such as pictures, which are only compared. */
import { nameOf } from '../../core/hash.ts'
import { isObject, type Json, objectsOf, textOf } from '../../core/json-object.ts'

/** Returns the texts of those parts of a list that have one; an empty list if `parts` is not a list. */
export function textsOfParts(parts: unknown): string[] {
  const texts: string[] = []
  if (!Array.isArray(parts)) return texts
  for (const part of parts) {
    if (typeof part === 'string') texts.push(part)
    else if (isObject(part) && typeof part['text'] === 'string') texts.push(part['text'])
  }
  return texts
}

/** Returns a text that is equal for equal attachments. Its letters are not those of ids, which comparisons mask. */
export function attachmentHash({ cache_control: _cacheControl, ...part }: Json): string {
  const letters = [...nameOf(JSON.stringify(part))].map(
    (digit) => 'ghijklmnopqrstuv'[Number.parseInt(digit, 16)],
  )
  return `[${textOf(part['type'])} ${letters.join('')}]`
}

/** Returns the attachment hashes of the parts without a text. */
export function attachmentHashes(parts: unknown): string[] {
  return objectsOf(parts)
    .filter((part) => typeof part['text'] !== 'string')
    .map(attachmentHash)
}

/** Returns a decoded tool result as one text, with hashes for its attachments. */
export function resultText(content: unknown): string {
  if (typeof content === 'string') return content
  return [...textsOfParts(content), ...attachmentHashes(content)].join('\n')
}
