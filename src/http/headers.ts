/**
 * Decides which header fields pass through a proxy. Headers are flat lists of names and values, which keeps
 * case, order and duplicates.
 */

/** Name, value, name, value, …, like the raw headers of Node and undici. */
export type RawHeaders = readonly string[]

/** Fields that belong to one connection: RFC 9110, section 7.6.1; the Proxy- fields: sections 11.7.1 and 11.7.2. */
const HOP_BY_HOP = new Set([
  'connection',
  'proxy-connection',
  'keep-alive',
  'te',
  'transfer-encoding',
  'upgrade',
  'proxy-authenticate',
  'proxy-authorization',
])

/** Fields that undici writes itself or refuses. */
const SET_BY_TRANSPORT = new Set(['host', 'expect'])

/** Prefix of the headers that Governor sends to clients. They never go upstream, and an upstream's are dropped. */
const GOVERNOR_PREFIX = 'x-governor-'

/** Calls `visit` for each field with its name in lower case, its value, and its name as it was sent. */
function eachField(headers: RawHeaders, visit: (lower: string, value: string, name: string) => void): void {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] ?? ''
    visit(name.toLowerCase(), headers[at + 1] ?? '', name)
  }
}

const NO_NAMES: ReadonlySet<string> = new Set()

/** Returns the fields that Connection names, which belong to one connection too (RFC 9110, section 7.6.1). */
function nominated(headers: RawHeaders): ReadonlySet<string> {
  if (headerOf(headers, 'connection') === undefined) return NO_NAMES
  const names = new Set<string>()
  eachField(headers, (lower, value) => {
    if (lower !== 'connection') return
    for (const token of value.split(',')) names.add(token.trim().toLowerCase())
  })
  return names
}

/** Returns the first value of a field; `name` in lower case. */
export function headerOf(headers: RawHeaders, name: string): string | undefined {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const field = headers[at] ?? ''
    if (field.length === name.length && field.toLowerCase() === name) return headers[at + 1]
  }
  return undefined
}

/** Returns the headers without the fields for which `drop` returns true. */
export function withoutFields(headers: RawHeaders, drop: (lower: string, value: string) => boolean): string[] {
  const kept: string[] = []
  eachField(headers, (lower, value, name) => {
    if (!drop(lower, value)) kept.push(name, value)
  })
  return kept
}

/** Returns the headers or trailers of an upstream without `x-governor-` fields, which only Governor sends. */
export function withoutGovernorHeaders(headers: RawHeaders): RawHeaders {
  return withoutFields(headers, (lower) => lower.startsWith(GOVERNOR_PREFIX))
}

/** Returns the headers without the length and the content coding of a body. */
export function withoutLength(headers: RawHeaders): string[] {
  return withoutFields(headers, (lower) => lower === 'content-length' || lower === 'content-encoding')
}

/** Returns a message head in wire format, to be written as Latin-1. */
export function headText(line: string, headers: RawHeaders): string {
  let text = `${line}\r\n`
  for (let at = 0; at + 1 < headers.length; at += 2) text += `${headers[at]}: ${headers[at + 1]}\r\n`
  return `${text}\r\n`
}

/**
 * Returns the headers that go upstream with a request. `Host` becomes the upstream's, and Governor answered
 * `Expect: 100-continue` itself. `TE: trailers` stays, as this proxy passes trailers on.
 */
export function requestHeaders(headers: RawHeaders): string[] {
  const named = nominated(headers)
  const kept: string[] = []
  eachField(headers, (lower, value, name) => {
    if (lower === 'te' && /(^|[\s,])trailers($|[\s,;])/i.test(value)) kept.push(name, 'trailers')
    else if (!HOP_BY_HOP.has(lower) && !SET_BY_TRANSPORT.has(lower) && !lower.startsWith(GOVERNOR_PREFIX)) {
      if (!named.has(lower)) kept.push(name, value)
    }
  })
  return kept
}

/** Returns the headers of a response that go to the client. */
export function responseHeaders(headers: RawHeaders): string[] {
  const named = nominated(headers)
  return withoutFields(headers, (lower) => HOP_BY_HOP.has(lower) || named.has(lower))
}

/** Returns the headers with these fields in place of those of the same name. */
export function withHeaders(headers: RawHeaders, set: Readonly<Record<string, string>>): RawHeaders {
  const added = Object.keys(set)
  if (added.length === 0) return headers
  const names = new Set(added.map((name) => name.toLowerCase()))
  return [...withoutFields(headers, (lower) => names.has(lower)), ...Object.entries(set).flat()]
}

/**
 * Returns the headers of a response and those in `set` that have a value. Drops `Trailer` unless it
 * `hasTrailers`.
 */
export function replyHeaders(
  headers: RawHeaders,
  set: Readonly<Record<string, string | undefined>>,
  hasTrailers: boolean,
): string[] {
  const mayStay = hasTrailers || headerOf(headers, 'trailer') === undefined
  const all = mayStay ? headers.slice() : withoutFields(headers, (lower) => lower === 'trailer')
  for (const name in set) {
    const value = set[name]
    if (value !== undefined) all.push(name, value)
  }
  return all
}

/** Returns the content coding of a body, in lower case; `identity` if it has none. */
export function contentEncoding(headers: RawHeaders): string {
  return headerOf(headers, 'content-encoding')?.trim().toLowerCase() || 'identity'
}

/** Returns true for a body of server-sent events. */
export function isEventStream(headers: RawHeaders): boolean {
  return /^text\/event-stream\b/i.test(headerOf(headers, 'content-type') ?? '')
}

/** Fields that describe the exact bytes of a body (RFC 9110, section 8; RFC 9530). */
const BODY_FIELDS = new Set([
  'content-length',
  'content-encoding',
  'content-md5',
  'digest',
  'content-digest',
  'repr-digest',
  'etag',
])

/** Returns the headers that are still true after the body changed. */
export function withoutBodyFields(headers: RawHeaders): string[] {
  return withoutFields(headers, (lower) => BODY_FIELDS.has(lower))
}
