/**
 * Tool calls before their results: equal calls have equal hashes, and a few words tell what a call does. Where the
 * provider keeps the conversation, a later request brings the results without the calls, so Governor remembers what it
 * needs of a call from the response.
 */
import type { ToolCall } from '../conversation.ts'
import { countValues, parseForeign } from '../foreign-json.ts'
import { type Hash, hashOf } from '../hash.ts'
import { STEPS_PER_CALL, STEPS_PER_VALUE, type Work } from '../work.ts'
import { MAX_CALLS, type ToolCallRecord } from './call-history.ts'
import { isExempt, type LoopPolicy } from './policy.ts'

/** Arguments in which a model comments on its call: another wording makes no other call. */
const COSMETIC: ReadonlySet<string> = new Set(['description', 'task_progress'])

const STRING = /"[^"\\]*(?:\\[\s\S][^"\\]*)*"/g
const NUMBER = /-?\d[\d.eE+-]*/g

/** Returns the JSON of a value with sorted keys; without those in `left`, where there are others. */
function sorted(value: unknown, left?: ReadonlySet<string>): string {
  if (typeof value !== 'object' || value === null) return JSON.stringify(value)
  if (Array.isArray(value)) return `[${value.map((item) => sorted(item)).join()}]`
  const keys = Object.keys(value).sort()
  const others = keys.filter((key) => !left?.has(key))
  const members = (others.length > 0 ? others : keys).map(
    (key) => `${JSON.stringify(key)}:${sorted(Reflect.get(value, key))}`,
  )
  return `{${members.join()}}`
}

/**
 * Returns the arguments with the keys of every object sorted, without white space and cosmetic arguments. Text that is
 * not JSON, or is too long or too deep to be read, stays as it is. JSON with a number that would be written with other
 * digits only loses the white space around it. Throws `TooMuchToRead`.
 */
export function canonicalArguments(text: string, work?: Work): string {
  const values = countValues(text)
  if (values === undefined) return text
  work?.spend(values * STEPS_PER_VALUE)
  try {
    const value = parseForeign(text, Number.POSITIVE_INFINITY)
    const numbers = text.replace(STRING, '').match(NUMBER) ?? []
    return numbers.every((number) => String(Number(number)) === number) ? sorted(value, COSMETIC) : text.trim()
  } catch {
    return text
  }
}

/** Hashes (sha256) a call with the arguments as the model wrote them, JSON or not. Throws `TooMuchToRead`. */
export function callHash(tool: string, argumentsText: string, work?: Work): Hash {
  return hashOf(`${tool.length}:${tool}${canonicalArguments(argumentsText, work)}`)
}

/** Characters of a call's arguments that are looked at. */
const HEAD = 300
/** A result of more characters is a document, which may say anything: it never says that work goes on. */
export const SHORT = 300

/** Words of a call that asks how something goes, or waits for it. */
const WAITS = /(?:^|[^a-z])(?:status|poll|polling|wait|watch|tail|sleep)(?:$|[^a-z])/i

/** Words of a call that changes something that later calls may see. */
const CHANGING =
  'edit write patch apply replace insert append create add update modify delete remove move rename click type press ' +
  'submit install commit checkout rm mv cp sed tee'
/** Such words, or a redirection to a file: no arrow, no comparison, and not to /dev/null. */
const CHANGES = new RegExp(
  `(?:^|[^a-z])(?:${CHANGING.replaceAll(' ', '|')})(?:$|[^a-z])|` + String.raw`(?<![-=<])>{1,2} ?(?!\/dev\/)[\w~$./-]`,
  'i',
)

const GOES_ON = new RegExp(
  String.raw`\b(?:pending|queued|running|waiting|processing|building|deploying|starting|in[ _-]progress|` +
    String.raw`not (?:yet )?(?:ready|finished|done|complete))\b`,
  'i',
)

/** True if a short result says that work goes on. */
export function saysWorkGoesOn(result: string): boolean {
  return result.length <= SHORT && GOES_ON.test(result)
}

/** All that is known of a call before its result. */
export type CallSignature = Pick<ToolCallRecord, 'tool' | 'call' | 'isPoll' | 'isChange'>

/** Returns the signature of a call as the model wrote it; `work` counts the hashing. Throws `TooMuchToRead`. */
export function signatureOf(
  { name: tool, arguments: text }: Pick<ToolCall, 'name' | 'arguments'>,
  work?: Work,
): CallSignature {
  work?.spend(2 * STEPS_PER_CALL)
  // writtenSo becomes written_So.
  const name = tool.slice(0, HEAD).replace(/([a-z])([A-Z])/g, '$1_$2')
  const words = `${name} ${text.slice(0, HEAD)}`
  return { tool, call: callHash(tool, text, work), isPoll: WAITS.test(words), isChange: CHANGES.test(words) }
}

/** Returns the hash of several calls or ids, in any order. */
export function hashOfAll(hashes: Iterable<string>): Hash {
  return hashOf(...[...hashes].sort())
}

/** Returns one signature for all calls of a response, if they are too many to be compared one by one. */
export function batchOf(calls: readonly CallSignature[]): CallSignature | undefined {
  const hashes = new Set(calls.map(({ call }) => call))
  if (hashes.size <= MAX_CALLS) return undefined
  const tool = [...new Set(calls.map((call) => call.tool))].join(', ')
  return { ...signatureOf({ name: tool, arguments: '' }), call: hashOfAll(hashes), isChange: false }
}

/** A call without its arguments, or all calls of a response. */
export interface PendingCall extends CallSignature {
  /** Of all calls of a response, the hash of their ids. */
  readonly id: string
  /** The provider's id of the call, by which a later request may refer to it. */
  readonly item?: string
}

/** The most calls that are remembered, the newest: a window of responses that call several tools each. */
const MAX_PENDING = 64

/** Returns the calls of a response whose results are to come without them. */
export function pendingCallsOf(calls: readonly ToolCall[], policy: LoopPolicy): readonly PendingCall[] {
  const withItem = (item: string | undefined) => (item === undefined ? {} : { item })
  const made = calls
    .filter(({ id }) => id !== '')
    .map((call): PendingCall => ({ ...signatureOf(call), id: call.id, ...withItem(call.item) }))
  const batch = batchOf(made.filter(({ tool }) => !isExempt(tool, policy)))
  if (!batch) return made
  const items = made.flatMap(({ item }) => item ?? [])
  return [{ ...batch, id: hashOfAll(made.map(({ id }) => id)), ...withItem(hashOfAll(items)) }]
}

/** Returns the pending calls with those of a response; the same response again adds nothing. */
export function addPendingCalls(known: readonly PendingCall[], calls: readonly PendingCall[]): readonly PendingCall[] {
  const fresh = calls.filter(({ id }) => !known.some((call) => call.id === id))
  return fresh.length === 0 ? known : [...known, ...fresh].slice(-MAX_PENDING)
}
