/** Unwraps the error of a provider: its message in words, and the fields that say to machines what it is. */

import { bounded, normalised } from './reader/text.ts'
import { wordSet } from './reader/words.ts'

/** An error as the provider sent it. */
export interface RawReply {
  /** HTTP status; 0 if it is not known. */
  readonly status: number
  /** The body: parsed JSON, or the text if it is not JSON. */
  readonly body: unknown
}

/** An error without its envelopes. */
export interface Reply {
  readonly status: number
  /** All messages in normal form (`normalised`), one per line. */
  readonly text: string
  /** Values of fields such as `code` and `type`, in lower case. */
  readonly codes: ReadonlySet<string>
  readonly original: string
  /** Positive whole numbers in fields, by the field's name in lower case. */
  readonly numbers: ReadonlyMap<string, number>
}

/** Fields whose text is for people; names in lower case, without `_` and `-`. */
const MESSAGES = wordSet(`
  message error detail details errormessage errormsg errmsg statusmsg msg description errordescription reason
  raw cause text title faultstring body param exception errors statusmessage errortext`)

const CODES = wordSet(`
  code type status errortype errorcode name reason statuscode param errcode`)

const ENVELOPES = wordSet(`
  error errors metadata response baseresp detail details innererror cause fault body data choices raw ctx
  lasterror providererror originalerror errordetails upstreamerror message exception`)

/** Endings of further names of such fields: `OriginalMessage`, `upstream_error_message`, `extError`. */
const MESSAGE_ENDS = /(?:message|msg|error|errors|errortext|description|exception|(?<!request)body|response)$/
const ENVELOPE_ENDS = /(?:error|errors|response|fault|exception|cause)$/

/** Bounds of what is read: deeper or later parts of an error say nothing new. */
const MAX_DEPTH = 12
const MAX_ITEMS = 16
const MAX_FIELDS = 64

interface Collected {
  readonly texts: string[]
  readonly codes: Set<string>
  readonly numbers: Map<string, number>
  /** The reply is an error by its status; an event of a stream may also hold texts of models and tools. */
  readonly isError: boolean
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Returns the object that begins at the first brace of a text, and its offsets; `undefined` if there is none. */
function embeddedJson(text: string): { value: unknown; start: number; end: number } | undefined {
  const start = text.indexOf('{')
  let depth = 0
  let isQuoted = false
  for (let at = start; at !== -1 && at < text.length; at++) {
    const char = text[at]
    if (isQuoted) {
      if (char === '\\') at++
      else if (char === '"') isQuoted = false
    } else if (char === '"') isQuoted = true
    else if (char === '{') depth++
    else if (char === '}' && --depth === 0) {
      try {
        return { value: JSON.parse(text.slice(start, at + 1)), start, end: at + 1 }
      } catch {
        return undefined
      }
    }
  }
  return undefined
}

const ENTITIES: Readonly<Record<string, string>> = { quot: '"', apos: "'", lt: '<', gt: '>', nbsp: ' ', amp: '&' }

/** Returns the text of a page with its characters as they are meant: pages write `"` as `&quot;`. */
function withoutEntities(text: string): string {
  return text.replace(/&(?:(quot|apos|lt|gt|nbsp|amp)|#(\d{1,5})|#x([\da-f]{1,4}));/gi, (_, name, code, hex) =>
    name ? (ENTITIES[name.toLowerCase()] ?? '') : String.fromCharCode(code ? Number(code) : Number.parseInt(hex, 16)),
  )
}

function collectText(text: string, collected: Collected, depth: number): void {
  // A message may be only a code.
  if (/^\w{3,64}$/.test(text)) collected.codes.add(text.toLowerCase())
  const cut = withoutEntities(bounded(text))
  if (depth >= MAX_DEPTH) return void collected.texts.push(cut)
  const events = cut.split(/\r\n|\n|\r/).filter((line) => line.startsWith('data:'))
  if (events.length > 0) {
    for (const line of events.slice(0, MAX_ITEMS)) collectText(line.slice(5).trim(), collected, depth + 1)
    return
  }
  const inside = embeddedJson(cut)
  if (inside === undefined) {
    if (!cut.includes("{'")) return void collected.texts.push(cut)
    // A dictionary as Python prints it: its texts, one per line, without the names of its fields.
    for (const [, code = ''] of cut.matchAll(/'(?:code|type|status|reason)': ?'([\w.-]{1,64})'/g))
      collected.codes.add(code.toLowerCase())
    collected.texts.push(cut.replace(/['"]?(?:[{,] ?'\w{1,64}': ?|\})['"]?/g, '\n'))
    return
  }
  // The text before it may name a layer that the error went through; the text after it may hold another error.
  const before = cut.slice(0, inside.start)
  if (before.trim() !== '') collected.texts.push(before)
  collect(inside.value, collected, depth + 1)
  const after = cut.slice(inside.end)
  if (/\w/.test(after)) collectText(after, collected, depth + 1)
}

function collect(value: unknown, collected: Collected, depth: number): void {
  if (depth > MAX_DEPTH) return
  if (typeof value === 'string') return collectText(value, collected, depth)
  if (Array.isArray(value)) {
    for (const item of value.slice(0, MAX_ITEMS)) collect(item, collected, depth + 1)
    return
  }
  if (!isRecord(value)) return
  // Python validators put the place and the message into two fields.
  const { loc, msg } = value
  if (Array.isArray(loc) && typeof msg === 'string') {
    const place: unknown = loc.findLast((part) => typeof part === 'string')
    return void collected.texts.push(`${place ?? ''}: ${bounded(msg)}`)
  }
  for (const [key, field] of Object.entries(value).slice(0, MAX_FIELDS)) collectField(key, field, collected, depth)
}

function collectField(key: string, field: unknown, collected: Collected, depth: number): void {
  const name = key.toLowerCase().replace(/[_-]/g, '')
  if (typeof field === 'string') {
    if (CODES.has(name) && field.length <= 64) collected.codes.add(field.toLowerCase())
    const isForPeople = MESSAGES.has(name) || (collected.isError && MESSAGE_ENDS.test(name))
    if (isForPeople && !(name === 'param' && field.length <= 32)) collectText(field, collected, depth + 1)
  } else if (typeof field === 'number') {
    if (CODES.has(name)) collected.codes.add(String(field))
    if (Number.isSafeInteger(field) && field > 0 && key.length <= 64) collected.numbers.set(key.toLowerCase(), field)
  } else if (name === 'choices' && !collected.isError) {
    // Everything in a choice of a stream except its error comes from the model.
    const choices = Array.isArray(field) ? field.slice(0, MAX_ITEMS) : []
    for (const choice of choices) if (isRecord(choice)) collect(choice['error'], collected, depth + 2)
  } else if (ENVELOPES.has(name) || (collected.isError && ENVELOPE_ENDS.test(name)))
    collect(field, collected, depth + 1)
}

/** Returns an error without its envelopes: gateways put errors into others, as JSON, as text, or as JSON in a text. */
export function unwrap({ status, body }: RawReply): Reply {
  const collected: Collected = {
    texts: [],
    codes: new Set(),
    numbers: new Map(),
    isError: status < 200 || status >= 300,
  }
  collect(body, collected, 0)
  const original = bounded(collected.texts.join('\n'))
  return replyOf({ status, original, codes: collected.codes, numbers: collected.numbers })
}

export function replyOf(reply: Omit<Reply, 'text'>): Reply {
  const lines = reply.original.split('\n').map(normalised)
  return { ...reply, text: lines.filter((line) => line !== '').join('\n') }
}
