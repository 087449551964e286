/** What tools gave, read no further than it takes: most results are compared with nothing and need not be decoded. */

import type { Conversation, RawResult, ToolResult } from '../conversation.ts'
import { type Hash, hashOfBytes } from '../hash.ts'
import { isTerse, SHORT, saysWorkGoesOn, TERSE } from './call-words.ts'
import { endsInNotice, withoutNotices } from './notice.ts'
import { exactHash, type MaskMode } from './result-mask.ts'

/** The result of a call. */
export interface TranscriptResult extends ToolResult {
  /** As it stands in the request; unset where that is not at hand. */
  readonly json: RawResult | undefined
}

class Undecoded implements TranscriptResult {
  readonly callId: string
  readonly json: RawResult
  readonly #conversation: Conversation
  readonly #index: number

  constructor(conversation: Conversation, index: number, json: RawResult) {
    this.callId = json.callId
    this.json = json
    this.#conversation = conversation
    this.#index = index
  }

  get text(): string {
    return this.#conversation.results(this.#index)[0]?.text ?? ''
  }
}

/** A result whose text is at hand. */
export function resultWithText({ callId, text }: ToolResult): TranscriptResult {
  return { callId, text, json: undefined }
}

/** Adds the results of a message to `found`. */
export function appendResults(found: TranscriptResult[], conversation: Conversation, index: number): void {
  const json = conversation.rawResult?.(index)
  if (json) found.push(new Undecoded(conversation, index, json))
  else for (const result of conversation.results(index)) found.push(resultWithText(result))
}

/** Adds the pictures of a message to the result before them: some APIs have no place for a picture in a result. */
export function appendImages(found: TranscriptResult[], conversation: Conversation, index: number): void {
  const last = found.at(-1)
  if (!last || conversation.role(index) !== 'user') return
  const shown = conversation.pictures?.(index)
  if (!shown || shown.length === 0) return
  found[found.length - 1] = resultWithText({ callId: last.callId, text: [last.text, ...shown].join('\n') })
}

/** What a character of a text takes in JSON at most. */
const JSON_BYTES = 6

/** Can the result be so short? To know it for sure it must be decoded. */
function mayBeWithin(result: TranscriptResult, characters: number): boolean {
  return !result.json || result.json.bytes.length <= JSON_BYTES * characters + 2
}

/** Does the tool answer that work goes on? */
export function isUnfinished(result: TranscriptResult): boolean {
  return mayBeWithin(result, SHORT) && saysWorkGoesOn(result.text)
}

/** Is the result too short to show any progress? */
export function isTerseResult(result: TranscriptResult): boolean {
  return mayBeWithin(result, TERSE) && isTerse(result.text)
}

/** Names a result letter by letter. */
export function exactResultHash(result: TranscriptResult, volatile: MaskMode): Hash {
  const { json } = result
  if (!json || volatile === 'none' || endsInNotice(json.bytes)) return exactHash(result.text)
  return hashOfBytes(json.bytes)
}

/** Was this name given to the result, in whatever form it stood then? */
export function hasExactHash(result: TranscriptResult, name: Hash): boolean {
  if (exactResultHash(result, 'default') === name || exactHash(result.text) === name) return true
  return hashOfBytes(Buffer.from(JSON.stringify(withoutNotices(result.text)))) === name
}
