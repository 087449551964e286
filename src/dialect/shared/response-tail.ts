/** Reads usage, ids, facts and texts of a response that is relayed, from pieces that may begin and end anywhere. */
import { isObject, type Json, parseObject, propertyOf, textOf } from '../../core/json-object.ts'
import type { ResponseFacts } from '../../core/usage.ts'
import { BACKSLASH, COLON, decode, OPEN_BRACE, QUOTE, skipSpace, skipValue } from '../../json/scan.ts'
import { createFrameReader, dataOf } from '../../sse/frames.ts'
import type { Dialect, ResponseTail } from '../dialect.ts'

/** At most this many places of one key are tried: the model may have written it any number of times. */
const MAX_PLACES = 64

/** Returns where the value begins whose key stands at `at`; -1 if no key stands there. */
function valueStart(bytes: Buffer, at: number, quoted: string): number {
  // A quote within a string has a backslash before it.
  const colon = bytes[at - 1] === BACKSLASH ? -1 : skipSpace(bytes, at + quoted.length)
  return bytes[colon] === COLON ? skipSpace(bytes, colon + 1) : -1
}

/** Returns the first or last whole string under `key`, at any depth; `undefined` if the response has none. */
function textUnder(bytes: Buffer, key: string, isLast: boolean): string | undefined {
  const quoted = `"${key}"`
  let at = isLast ? bytes.lastIndexOf(quoted) : bytes.indexOf(quoted)
  for (let place = 0; at !== -1 && place < MAX_PLACES; place++) {
    const start = valueStart(bytes, at, quoted)
    try {
      if (bytes[start] === QUOTE) return String(decode(bytes, { start, end: skipValue(bytes, start) }))
    } catch {
      // The piece ends within the value.
    }
    if (!isLast) at = bytes.indexOf(quoted, at + quoted.length)
    else at = at === 0 ? -1 : bytes.lastIndexOf(quoted, at - 1)
  }
  return undefined
}

/** Returns the whole objects under `key`, at any depth but not within one another. */
export function objectsUnder(bytes: Buffer, key: string): Json[] {
  const quoted = `"${key}"`
  const objects: Json[] = []
  let at = bytes.indexOf(quoted)
  for (let failures = 0; at !== -1 && failures < MAX_PLACES; at = bytes.indexOf(quoted, at)) {
    const start = valueStart(bytes, at, quoted)
    at += quoted.length
    if (bytes[start] !== OPEN_BRACE) continue
    try {
      const end = skipValue(bytes, start)
      const value = decode(bytes, { start, end })
      if (isObject(value)) objects.push(value)
      at = end
    } catch {
      failures++
    }
  }
  return objects
}

/** Returns the last string under `key`, at any depth; `undefined` if the response has none. */
export function lastText(bytes: Buffer, key: string): string | undefined {
  return textUnder(bytes, key, true)
}

/** Returns the first string under `key`, at any depth; `undefined` if the response has none. */
export function firstText(bytes: Buffer, key: string): string | undefined {
  return textUnder(bytes, key, false)
}

/** A member whose value may be the id of a call. */
const ID_MEMBER = /"(\w{1,16})"\s{0,4}:\s{0,4}"([^"\\]{1,256})"/g

/** Returns the ids that stand under `key` in a line of a stream, at any depth. */
export function idsUnder(line: string, key: string): string[] {
  return [...line.matchAll(ID_MEMBER)].flatMap(([, name, id = '']) => (name === key ? id : []))
}

/** Fields whose text the model wrote, in all dialects. */
const WRITTEN =
  /"(?:content|text|delta|arguments|partial_json|thinking|reasoning|reasoning_content|refusal|input)"\s{0,4}:\s{0,4}"((?:[^"\\]|\\.)*)"/g

/** Returns how many characters the model wrote in a piece of a response. */
export function writtenCharacters(bytes: Buffer): number {
  let characters = 0
  for (const [, written = ''] of bytes.toString('latin1').matchAll(WRITTEN)) characters += written.length
  return characters
}

/** The most characters of an id or a model, and the most reasons. */
const MAX_NAME = 200
const MAX_REASONS = 16

/** A member of an object with a short text. */
const MEMBER = /"(\w{1,64})"\s{0,4}:\s{0,4}"([^"\\]{1,64})"/g

/** Returns the texts under `key`, at any depth. Text of the model can't match, as its quotes are escaped. */
export function textsUnder(bytes: Buffer, key: string): string[] {
  return [...bytes.toString('latin1').matchAll(MEMBER)].flatMap(([, name, text = '']) => (name === key ? text : []))
}

/**
 * Returns the facts of a response. `envelope`: the member of a stream's first event that holds the response, if any.
 */
export function responseFacts(
  { head, whole, streams }: ResponseTail,
  envelope: string | undefined,
  reasons: readonly string[],
): ResponseFacts {
  const finishReasons = reasons.slice(0, MAX_REASONS)
  const texts = streams ? createFrameReader().push(head).map(dataOf) : [whole?.toString('utf8')]
  for (const text of texts) {
    const body = parseObject(text ?? '')
    const response = streams && envelope !== undefined ? propertyOf(body, envelope) : body
    const id = textOf(propertyOf(response, 'id')).slice(0, MAX_NAME)
    if (id === '') continue
    return { id, model: textOf(propertyOf(response, 'model')).slice(0, MAX_NAME) || undefined, finishReasons }
  }
  return { id: undefined, model: undefined, finishReasons }
}

/** Bytes of a whole body that are held; the text of a longer one is not known. */
const MAX_WHOLE = 1_048_576
/** Bytes of a stream that are read, and characters of its text. */
const MAX_STREAM = 8_388_608
const MAX_TEXT = 131_072

/** Takes the chunks of one response without its content coding. Throws if a chunk is not what it should be. */
export interface ResponseText {
  push(chunk: Buffer): void
  /** Returns what the model said; `undefined` if that could not be read. */
  end(): string | undefined
}

/** Returns a reader of one response for the transcript. `streams`: it is a stream of server-sent events. */
export function readText(dialect: Dialect, streams: boolean): ResponseText {
  const textIn = streams ? dialect.openText() : undefined
  const reader = createFrameReader()
  const chunks: Buffer[] = []
  let text = ''
  let length = 0
  return {
    push(chunk) {
      length += chunk.length
      if (!textIn && length <= MAX_WHOLE) chunks.push(chunk)
      if (length > MAX_WHOLE) chunks.length = 0
      if (!textIn || length > MAX_STREAM || text.length > MAX_TEXT) return
      for (const frame of reader.push(chunk)) text += textIn(frame)
    },
    end() {
      if (textIn) {
        if (length <= MAX_STREAM) for (const frame of reader.end()) text += textIn(frame)
        return text
      }
      const answer = length <= MAX_WHOLE ? dialect.readAnswer(Buffer.concat(chunks)) : undefined
      return answer?.end === 'failed' ? undefined : answer?.text
    },
  }
}
