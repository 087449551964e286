/**
 * Tool results and their hashes. To mask a result takes 25 nanoseconds for each character, and most results need no
 * mask: most calls are made once, and most calls that are made again bring the same bytes. So a result is masked only
 * if the same call had a different one.
 */
import type { Conversation, RawResult, ToolResult } from '../conversation.ts'
import { type Hash, hashOfBytes, hashOfText } from '../hash.ts'
import type { Work } from '../work.ts'
import { type CallHistory, renameResult, type ToolCallRecord } from './call-history.ts'
import { withoutNotices } from './notice.ts'
import type { MaskMode } from './policy.ts'
import { maskVolatile, withoutHarnessNoise } from './result-mask.ts'
import { SHORT, saysWorkGoesOn } from './tool-call.ts'

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

/** The most bytes that a character takes in JSON. */
const JSON_BYTES = 6

/** Returns the text of a result; `undefined` if it has more than so many characters, mostly without decoding it. */
function textWithin({ json, text }: TranscriptResult, characters: number): string | undefined {
  if (json && json.bytes.length > JSON_BYTES * characters + 2) return undefined
  const decoded = text()
  return decoded.length <= characters ? decoded : undefined
}

/** True if the result says that work goes on. */
export function isUnfinished(result: TranscriptResult): boolean {
  return saysWorkGoesOn(textWithin(result, SHORT) ?? '')
}

/** So few characters cannot show whether anything has changed: `ok`, `pressed`, or none. */
const TERSE = 16

/** True if the result is too short to show any progress. */
export function isTerse(result: TranscriptResult): boolean {
  return textWithin(result, TERSE) !== undefined
}

/** Hash of a result, letter by letter: of its bytes in the request if they can be used, else of its text. */
export function exactHash({ json, text }: TranscriptResult, volatile: MaskMode): Hash {
  return json && volatile !== 'none' ? hashOfBytes(json.bytes) : hashOfText(withoutNotices(text()))
}

/** The hashes by which results are compared. */
export type ResultHashes = Pick<ToolCallRecord, 'resultHash' | 'maskedHash'>

/** The first character of the hashes of a text that was compared with another; exact hashes never begin with it. */
const COMPARED = '~'

/** Hashes a result as text, without what a harness adds, also with what is volatile masked. Throws `TooMuchToRead`. */
export function textHashes(result: string, volatile: MaskMode, work?: Work): ResultHashes {
  const text = withoutNotices(result)
  if (volatile === 'none') {
    const hash = hashOfText(text)
    return { resultHash: hash, maskedHash: hash }
  }
  work?.search(result.length)
  const said = withoutHarnessNoise(text)
  return {
    resultHash: `${COMPARED}${hashOfText(said)}` as Hash,
    maskedHash: `${COMPARED}${hashOfText(maskVolatile(said))}` as Hash,
  }
}

/**
 * Returns the hashes of a call's result, and the history in which the earlier results of the call can be compared with
 * it. `findEarlier` finds a result of the call in the transcript that has an exact hash, at most so many responses ago;
 * one that is no longer there counts as different. Throws `TooMuchToRead`.
 */
export function hashResult(
  history: CallHistory,
  call: Hash,
  result: TranscriptResult,
  volatile: MaskMode,
  findEarlier: (exact: Hash, responses: number) => TranscriptResult | undefined,
  work?: Work,
): { readonly history: CallHistory; readonly hashes: ResultHashes } {
  const exact = exactHash(result, volatile)
  const earlier = history.window.filter((entry) => entry.call === call)
  const same = earlier.find(({ resultHash, maskedHash }) => resultHash === exact || maskedHash === exact)
  if (same || volatile === 'none' || earlier.length === 0)
    return { history, hashes: { resultHash: exact, maskedHash: same?.maskedHash ?? exact } }
  let comparable = history
  const steps = new Map(earlier.map(({ resultHash, step }) => [resultHash, step]))
  for (const [hash, step] of steps) {
    if (hash === '' || hash.startsWith(COMPARED)) continue
    const found = findEarlier(hash, history.steps + 1 - step)
    if (found) comparable = renameResult(comparable, call, hash, textHashes(found.text(), volatile, work))
  }
  return { history: comparable, hashes: textHashes(result.text(), volatile, work) }
}
