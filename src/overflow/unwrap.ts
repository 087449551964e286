/** A provider's refusal without its envelopes: what is written in it, and the fields that tell machines what it is. */
import { parseForeign } from '../core/foreign-json.ts'
import { bounded, normalised } from './text.ts'

/** A refusal as it came. */
export interface RawReply {
  /** HTTP status; 0 where it is not known. */
  readonly status: number
  /** The body: decoded JSON, or the text where it is none. */
  readonly body: unknown
}

export interface Reply {
  readonly status: number
  /** Everything the reply says, in normal form (`normalised`), one message a line. */
  readonly text: string
  /** What stands in fields such as `code` and `type`, lower case. */
  readonly codes: ReadonlySet<string>
  /** The same as it was written. */
  readonly original: string
  /** Whole numbers in fields, by the field's name in lower case. */
  readonly numbers: ReadonlyMap<string, number>
}

/** Fields whose text is for people; names of fields without their case and what joins their words. */
const MESSAGES = new Set(
  `message error detail details errormessage errormsg errmsg statusmsg msg description errordescription reason raw cause text title
  faultstring body param exception errors statusmessage errortext`.split(/\s+/),
)

/** Fields that name the kind of an error. */
const CODES = new Set(
  'code type status errortype errorcode name reason statuscode param errcode'.split(/\s+/),
)

/** Objects that hold an error, or a part of one. */
const ENVELOPES = new Set(
  `error errors metadata response baseresp detail details innererror cause fault body data choices raw ctx lasterror providererror
  originalerror errordetails upstreamerror message exception`.split(/\s+/),
)

/** What names that nobody listed end with: `OriginalMessage`, `upstream_error_message`, `extError`. */
const MESSAGE_ENDS = /(?:message|msg|error|errors|errortext|description|exception|(?<!request)body|response)$/
const ENVELOPE_ENDS = /(?:error|errors|response|fault|exception|cause)$/

/** Bounds of what is looked at: an error that nests deeper, or is longer, says nothing more. */
const MAX_DEPTH = 12
const MAX_ITEMS = 16
const MAX_FIELDS = 64

interface Collected {
  readonly texts: string[]
  readonly codes: Set<string>
  readonly numbers: Map<string, number>
  /** The whole is a refusal; an event of a stream may be one, and holds what models and tools say beside it. */
  readonly isRefusal: boolean
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function parsed(text: string): unknown {
  try {
    return parseForeign(text)
  } catch {
    return undefined
  }
}

interface Embedded {
  readonly value: unknown
  /** Where it stands in the text. */
  readonly start: number
  readonly end: number
}

/** The JSON that a text holds from its first brace on, as far as it goes. */
function embeddedJson(text: string): Embedded | undefined {
  const start = text.search(/[[{]/)
  if (start === -1) return undefined
  for (const close of ['}', ']']) {
    const end = text.lastIndexOf(close) + 1
    if (end > start) {
      const value = parsed(text.slice(start, end))
      if (isRecord(value) || (Array.isArray(value) && value.some(isRecord))) return { value, start, end }
    }
  }
  const brace = text.indexOf('{')
  return brace === -1 ? undefined : bracedJson(text, brace)
}

/** The object that begins at `start`, where something other than its end follows it. */
function bracedJson(text: string, start: number): Embedded | undefined {
  let depth = 0
  let isQuoted = false
  for (let at = start; at < text.length; at++) {
    const char = text[at]
    if (isQuoted) {
      if (char === '\\') at++
      else if (char === '"') isQuoted = false
    } else if (char === '"') isQuoted = true
    else if (char === '{') depth++
    else if (char === '}' && --depth === 0) {
      const value = parsed(text.slice(start, at + 1))
      return value === undefined ? undefined : { value, start, end: at + 1 }
    }
  }
  return undefined
}

/** Data lines of server-sent events. */
function eventData(text: string): string[] {
  if (!/^(?:event|data|id|:)/m.test(text)) return []
  return text.split(/\r\n|\n|\r/).flatMap((line) => (line.startsWith('data:') ? [line.slice(5).trim()] : []))
}

/** The texts of a dictionary as Python prints it, a line each: the names of its fields are no words of theirs. */
function takeRepr(text: string, found: Collected): void {
  for (const [, code = ''] of text.matchAll(/'(?:code|type|status|reason)': ?'([\w.-]{1,64})'/g)) {
    found.codes.add(code.toLowerCase())
  }
  found.texts.push(text.replace(/['"]?(?:[{,] ?'\w{1,64}': ?|\})['"]?/g, '\n'))
}

function takeText(text: string, found: Collected, depth: number): void {
  // A message may be nothing but a code.
  if (/^\w{3,64}$/.test(text)) found.codes.add(text.toLowerCase())
  const cut = bounded(text)
  if (depth >= MAX_DEPTH) {
    found.texts.push(cut)
    return
  }
  const events = eventData(cut)
  if (events.length > 0) {
    for (const data of events.slice(0, MAX_ITEMS)) takeText(data, found, depth + 1)
    return
  }
  const inside = embeddedJson(cut)
  if (inside === undefined) {
    if (cut.includes("{'")) takeRepr(cut, found)
    else found.texts.push(cut)
    return
  }
  // What stands before it names at most the layer that it went through; after it another refusal may stand.
  const before = cut.slice(0, inside.start)
  if (before.trim() !== '') found.texts.push(before)
  take(inside.value, found, depth + 1)
  const after = cut.slice(inside.end)
  if (/\w/.test(after)) takeText(after, found, depth + 1)
}

function take(value: unknown, found: Collected, depth: number): void {
  if (depth > MAX_DEPTH) return
  if (typeof value === 'string') return takeText(value, found, depth)
  if (Array.isArray(value)) {
    for (const item of value.slice(0, MAX_ITEMS)) take(item, found, depth + 1)
    return
  }
  if (!isRecord(value)) return
  // Validators of Python say where and what in two fields.
  const { loc, msg } = value
  if (Array.isArray(loc) && typeof msg === 'string') {
    found.texts.push(`${String(loc.findLast((part) => typeof part === 'string') ?? '')}: ${bounded(msg)}`)
    return
  }
  const fields = Object.entries(value).slice(0, MAX_FIELDS)
  for (const [key, field] of fields) takeField(key, field, found, depth)
}

function takeField(key: string, field: unknown, found: Collected, depth: number): void {
  const name = key.toLowerCase().replace(/[_-]/g, '')
  if (typeof field === 'string') {
    if (CODES.has(name) && field.length <= 64) found.codes.add(field.toLowerCase())
    const isForPeople = MESSAGES.has(name) || (found.isRefusal && MESSAGE_ENDS.test(name))
    if (isForPeople && !(name === 'param' && field.length <= 32)) takeText(field, found, depth + 1)
  } else if (typeof field === 'number') {
    if (CODES.has(name)) found.codes.add(String(field))
    if (Number.isSafeInteger(field) && field > 0 && key.length <= 64)
      found.numbers.set(key.toLowerCase(), field)
  } else if (name === 'choices' && !found.isRefusal) {
    // Of a choice in a stream, all but its error is the model's.
    take(
      Array.isArray(field) ? field.map((choice) => isRecord(choice) && choice['error']) : [],
      found,
      depth + 1,
    )
  } else if (ENVELOPES.has(name) || (found.isRefusal && ENVELOPE_ENDS.test(name)))
    take(field, found, depth + 1)
}

/** Takes a reply out of its envelopes: gateways put one error into another, as JSON, as text, as JSON in a text. */
export function unwrap({ status, body }: RawReply): Reply {
  const found: Collected = {
    texts: [],
    codes: new Set(),
    numbers: new Map(),
    isRefusal: status < 200 || status >= 300,
  }
  take(body, found, 0)
  const original = bounded(found.texts.join('\n'))
  return replyOf({ status, original, codes: found.codes, numbers: found.numbers })
}

/** Returns a reply that says `original`, with its normal form. */
export function replyOf(said: Omit<Reply, 'text'>): Reply {
  const lines = said.original.split('\n').map(normalised)
  return { ...said, text: lines.filter((line) => line !== '').join('\n') }
}
