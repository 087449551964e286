/** Tool results, decoded only if needed: most of them are compared with no other. */

import type { Conversation, RawResult, ToolResult } from '../conversation.ts'
import { type Hash, hashOfBytes } from '../hash.ts'
import { isTerse, SHORT, saysWorkGoesOn, TERSE } from './call-words.ts'
import { endsInNotice, withoutNotices } from './notice.ts'
import { exactHash, type MaskMode } from './result-mask.ts'

/** The result of a call in a transcript. */
export interface TranscriptResult {
  readonly callId: string
  /** Returns the text; decodes it if that was not done yet. */
  readonly text: () => string
  /** The result as its bytes stand in the request; unset if they do not hold just this result. */
  readonly json: RawResult | undefined
}

/** Returns a result whose text is decoded already. */
export function resultWithText({ callId, text }: ToolResult): TranscriptResult {
  return { callId, text: () => text, json: undefined }
}

/** Adds the results of the message at `index` to `results`. */
export function appendResults(results: TranscriptResult[], conversation: Conversation, index: number): void {
  const json = conversation.rawResult?.(index)
  const text = () => conversation.results(index)[0]?.text ?? ''
  if (json) results.push({ callId: json.callId, text, json })
  else for (const result of conversation.results(index)) results.push(resultWithText(result))
}

/** Adds the pictures of the message at `index` to the last of `results`: some APIs allow no picture in a result. */
export function appendImages(results: TranscriptResult[], conversation: Conversation, index: number): void {
  const last = results.at(-1)
  if (!last || conversation.role(index) !== 'user') return
  const pictures = conversation.pictures?.(index)
  if (!pictures || pictures.length === 0) return
  const text = [last.text(), ...pictures].join('\n')
  results[results.length - 1] = resultWithText({ callId: last.callId, text })
}

/** The most bytes that a character takes in JSON. */
const JSON_BYTES = 6

/** False if the result certainly has more than `characters`; to be sure that it has not, it must be decoded. */
function mayBeWithin(result: TranscriptResult, characters: number): boolean {
  return !result.json || result.json.bytes.length <= JSON_BYTES * characters + 2
}

/** True if the result says that work goes on. */
export function isUnfinished(result: TranscriptResult): boolean {
  return mayBeWithin(result, SHORT) && saysWorkGoesOn(result.text())
}

/** True if the result is too short to show any progress. */
export function isTerseResult(result: TranscriptResult): boolean {
  return mayBeWithin(result, TERSE) && isTerse(result.text())
}

/** Hash of a result, letter by letter: of its bytes in the request if they can be used, else of its text. */
export function exactResultHash(result: TranscriptResult, volatile: MaskMode): Hash {
  const { json } = result
  if (!json || volatile === 'none' || endsInNotice(json.bytes)) return exactHash(result.text())
  return hashOfBytes(json.bytes)
}

/** True if `hash` is the exact hash of the result, made from its bytes or from its text. */
export function hasExactHash(result: TranscriptResult, hash: Hash): boolean {
  if (exactResultHash(result, 'default') === hash || exactHash(result.text()) === hash) return true
  return hashOfBytes(Buffer.from(JSON.stringify(withoutNotices(result.text())))) === hash
}
