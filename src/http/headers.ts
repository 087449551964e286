/** Decides which header fields pass through a proxy. */

/** Name, value, name, value, …, like the raw headers of Node and undici, which keeps case, order and duplicates. */
export type RawHeaders = readonly string[]

/** Fields that belong to one connection: RFC 9110, section 7.6.1; the Proxy- fields: sections 11.7.1 and 11.7.2. */
const HOP_BY_HOP: ReadonlySet<string> = new Set([
  'connection',
  'proxy-connection',
  'keep-alive',
  'te',
  'transfer-encoding',
  'upgrade',
  'proxy-authenticate',
  'proxy-authorization',
])

/** Fields that describe the exact bytes of a body (RFC 9110, section 8; RFC 9530). */
const BODY_FIELDS: ReadonlySet<string> = new Set([
  'content-length',
  'content-encoding',
  'content-md5',
  'digest',
  'content-digest',
  'repr-digest',
  'etag',
  // Fields after a body describe it too.
  'trailer',
])

const TRAILER: ReadonlySet<string> = new Set(['trailer'])

/** Prefix of the headers that Governor sends to clients. They never go upstream, and an upstream's are dropped. */
const GOVERNOR_PREFIX = 'x-governor-'

/** Returns the first value of a field; `name` in lower case. */
export function headerOf(headers: RawHeaders, name: string): string | undefined {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const field = headers[at] ?? ''
    if (field.length === name.length && field.toLowerCase() === name) return headers[at + 1]
  }
  return undefined
}

/** Returns the values of all fields of a name in lower case. */
export function valuesOf(headers: RawHeaders, name: string): string[] {
  const values: string[] = []
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const field = headers[at] ?? ''
    if (field.length === name.length && field.toLowerCase() === name) values.push(headers[at + 1] ?? '')
  }
  return values
}

/** Returns the content coding of a body, or a list of several, in lower case; `identity` if it has none. */
export function contentEncoding(headers: RawHeaders): string {
  return valuesOf(headers, 'content-encoding').join(',').trim().toLowerCase() || 'identity'
}

/** Returns true if a body has a transfer coding that Node's parser leaves in its bytes: it undoes the chunks alone. */
export function hasOtherTransferCoding(headers: RawHeaders): boolean {
  return valuesOf(headers, 'transfer-encoding').some((value) => value.trim().toLowerCase() !== 'chunked')
}

/** Returns true if the headers say that the body is a stream of server-sent events. */
export function statesEventStream(headers: RawHeaders): boolean {
  return /^text\/event-stream\b/i.test(headerOf(headers, 'content-type') ?? '')
}

export function fieldsKept(headers: RawHeaders, keeps: (name: string, value: string) => boolean): string[] {
  const kept: string[] = []
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] ?? ''
    const value = headers[at + 1] ?? ''
    if (keeps(name, value)) kept.push(name, value)
  }
  return kept
}

/** Returns the headers without the fields that `dropped` has; names in lower case. */
export function withoutFields(headers: RawHeaders, dropped: ReadonlySet<string>): string[] {
  return fieldsKept(headers, (name) => !dropped.has(name.toLowerCase()))
}

/** Returns the headers that are still true after the body changed. */
export function withoutBodyFields(headers: RawHeaders): string[] {
  return withoutFields(headers, BODY_FIELDS)
}

/** Returns the headers or trailers of an upstream without `x-governor-` fields, which only Governor sends. */
export function withoutGovernorHeaders(headers: RawHeaders): string[] {
  return fieldsKept(headers, (name) => !name.toLowerCase().startsWith(GOVERNOR_PREFIX))
}

/** Returns the headers with these fields in place of those of the same name. */
export function withHeaders(headers: RawHeaders, set: Readonly<Record<string, string>>): RawHeaders {
  const names = new Set<string>()
  for (const name in set) names.add(name.toLowerCase())
  return names.size === 0 ? headers : [...withoutFields(headers, names), ...Object.entries(set).flat()]
}

/** Returns the fields of one connection, also those that Connection names (RFC 9110, section 7.6.1). */
function connectionFields(headers: RawHeaders): ReadonlySet<string> {
  let fields: Set<string> | undefined
  for (const token of valuesOf(headers, 'connection').join().split(',')) {
    const field = token.trim().toLowerCase()
    // `keep-alive`, which nearly every message names, needs no set of its own.
    if (field === '' || HOP_BY_HOP.has(field)) continue
    fields ??= new Set(HOP_BY_HOP)
    fields.add(field)
  }
  return fields ?? HOP_BY_HOP
}

/**
 * Returns the headers that go upstream with a request. undici writes `Host` itself and refuses `Expect`, which Governor
 * has answered. `TE: trailers` stays, as this proxy passes trailers on.
 */
export function requestHeaders(headers: RawHeaders): string[] {
  const dropped = connectionFields(headers)
  const kept: string[] = []
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] ?? ''
    const value = headers[at + 1] ?? ''
    const lower = name.toLowerCase()
    if (lower === 'te' && /(^|[\s,])trailers($|[\s,;])/i.test(value)) kept.push(name, 'trailers')
    else if (dropped.has(lower) || lower === 'host' || lower === 'expect') continue
    else if (!lower.startsWith(GOVERNOR_PREFIX)) kept.push(name, value)
  }
  return kept
}

export function responseHeaders(headers: RawHeaders): string[] {
  return withoutFields(headers, connectionFields(headers))
}

/** Returns the headers of a response and those in `set` that have a value. Drops `Trailer` unless it `hasTrailers`. */
export function replyHeaders(
  headers: RawHeaders,
  set: Readonly<Record<string, string | undefined>>,
  hasTrailers: boolean,
): string[] {
  const mayStay = hasTrailers || headerOf(headers, 'trailer') === undefined
  const all = mayStay ? headers.slice() : withoutFields(headers, TRAILER)
  for (const name in set) {
    const value = set[name]
    if (value !== undefined) all.push(name, value)
  }
  return all
}

export function pairsOf(headers: RawHeaders): [name: string, value: string][] {
  const pairs: [string, string][] = []
  for (let at = 0; at + 1 < headers.length; at += 2) pairs.push([headers[at] ?? '', headers[at + 1] ?? ''])
  return pairs
}

/** Returns a message head in wire format, to be written as Latin-1. */
export function headText(line: string, headers: RawHeaders): string {
  let text = `${line}\r\n`
  for (let at = 0; at + 1 < headers.length; at += 2) text += `${headers[at]}: ${headers[at + 1]}\r\n`
  return `${text}\r\n`
}
