/**
 * Which header fields go through a proxy, and which end at it. Headers are flat lists of names and values as they
 * came, so that case, order and duplicates stay.
 */

/** Name, value, name, value, …: as Node and undici give raw headers. */
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

/** Fields that undici writes itself, or must not be given. */
const SET_BY_TRANSPORT = new Set(['host', 'expect'])

/** Governor's own headers, which go to clients and never upstream; from there none is believed. */
const OWN_PREFIX = 'x-governor-'

/** Calls `visit` for each field with its name in lower case, its value, and its name as it came. */
function eachField(headers: RawHeaders, visit: (lower: string, value: string, name: string) => void): void {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] ?? ''
    visit(name.toLowerCase(), headers[at + 1] ?? '', name)
  }
}

/** The fields that Connection fields name: they end here too (RFC 9110, section 7.6.1). */
function nominated(headers: RawHeaders): ReadonlySet<string> {
  const names = new Set<string>()
  eachField(headers, (lower, value) => {
    if (lower !== 'connection') return
    for (const token of value.split(',')) names.add(token.trim().toLowerCase())
  })
  return names
}

/** The first value of a field; `name` in lower case. */
export function headerOf(headers: RawHeaders, name: string): string | undefined {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const field = headers[at] ?? ''
    if (field.length === name.length && field.toLowerCase() === name) return headers[at + 1]
  }
  return undefined
}

/** The list without the fields for which `drop` says so. */
export function withoutFields(headers: RawHeaders, drop: (lower: string) => boolean): string[] {
  const kept: string[] = []
  eachField(headers, (lower, value, name) => {
    if (!drop(lower)) kept.push(name, value)
  })
  return kept
}

/** Returns the headers or trailers of an upstream without fields that are Governor's own to send. */
export function withoutGovernorHeaders(headers: RawHeaders): RawHeaders {
  return withoutFields(headers, (lower) => lower.startsWith(OWN_PREFIX))
}

/** The list without what tells how long a body is, and how it is coded. */
export function withoutLength(headers: RawHeaders): string[] {
  return withoutFields(headers, (lower) => lower === 'content-length' || lower === 'content-encoding')
}

/** A message head as it stands on the wire, in Latin-1. */
export function headText(line: string, headers: RawHeaders): string {
  let text = `${line}\r\n`
  for (let at = 0; at + 1 < headers.length; at += 2) text += `${headers[at]}: ${headers[at + 1]}\r\n`
  return `${text}\r\n`
}

/**
 * The headers of a request on its way upstream. `Host` is the upstream's; `Expect: 100-continue` was answered here;
 * `TE: trailers` is kept, as the one transfer coding that asks for something this proxy passes on.
 */
export function requestHeaders(headers: RawHeaders): string[] {
  const named = nominated(headers)
  const kept: string[] = []
  eachField(headers, (lower, value, name) => {
    if (lower === 'te' && /(^|[\s,])trailers($|[\s,;])/i.test(value)) kept.push(name, 'trailers')
    else if (!HOP_BY_HOP.has(lower) && !SET_BY_TRANSPORT.has(lower) && !lower.startsWith(OWN_PREFIX)) {
      if (!named.has(lower)) kept.push(name, value)
    }
  })
  return kept
}

/** The headers of a response on its way to the client. */
export function responseHeaders(headers: RawHeaders): string[] {
  const named = nominated(headers)
  return withoutFields(headers, (lower) => HOP_BY_HOP.has(lower) || named.has(lower))
}

/** Every credential that a request carries in the headers `names`, joined. It tells tenants apart; it is hashed and never stored. */
export function credentialsOf(headers: RawHeaders, names: readonly string[]): string {
  let all = ''
  for (const name of names) all += `${headerOf(headers, name) ?? ''}\n`
  return all.slice(0, -1)
}

/** The key that a client sent in a header. */
function clientKeyIn(headers: RawHeaders, name: string): string | undefined {
  const sent = headerOf(headers, name)
  return name === 'authorization' ? /^bearer +(.+)$/i.exec(sent ?? '')?.[1] : sent
}

/** The keys that a client sent in the headers `names`: some clients send two, each for another server. */
export function clientKeysOf(headers: RawHeaders, names: readonly string[]): string[] {
  return names.map((name) => clientKeyIn(headers, name)).filter((key) => key !== undefined)
}

/** Returns the list without those of the headers `names` whose key `drop` says yes to. */
export function withoutCredentials(
  headers: RawHeaders,
  names: readonly string[],
  drop: (key: string) => boolean,
): RawHeaders {
  const dropped = names.filter((name) => {
    const key = clientKeyIn(headers, name)
    return key !== undefined && drop(key)
  })
  return dropped.length === 0 ? headers : withoutFields(headers, (lower) => dropped.includes(lower))
}

/** Does a field's name say that its value is a key, or stands for one? */
export function namesKey(name: string): boolean {
  return /key|token|secret|auth|cookie|credential|password/i.test(name)
}

/**
 * Replaces the client's credentials, in the headers `names`, by the upstream's own `key`. `headerFor` returns the header for
 * it; it takes the one that the client used.
 */
export function withCredential(
  headers: RawHeaders,
  names: readonly string[],
  key: string,
  headerFor: (sent: string | undefined) => string,
): string[] {
  const field = headerFor(names.find((name) => headerOf(headers, name) !== undefined))
  const kept = withoutFields(headers, (lower) => names.includes(lower))
  return [...kept, field, field === 'authorization' ? `Bearer ${key}` : key]
}

/** Sets fields, in place of those of the same name. */
export function withHeaders(headers: RawHeaders, set: Readonly<Record<string, string>>): RawHeaders {
  const added = Object.keys(set)
  if (added.length === 0) return headers
  const names = new Set(added.map((name) => name.toLowerCase()))
  return [...withoutFields(headers, (lower) => names.has(lower)), ...Object.entries(set).flat()]
}

/**
 * What a response is sent with: its own fields, and then Governor's (`set`; those without a value are left out). Without
 * `hasTrailers`, no field announces trailers.
 */
export function replyHeaders(
  headers: RawHeaders,
  set: Readonly<Record<string, string | undefined>>,
  hasTrailers: boolean,
): string[] {
  const all = withoutFields(headers, (lower) => lower === 'trailer' && !hasTrailers)
  for (const name in set) {
    const value = set[name]
    if (value !== undefined) all.push(name, value)
  }
  return all
}

/** The content coding of a body, in lower case; `identity` where it has none. */
export function contentEncoding(headers: RawHeaders): string {
  return headerOf(headers, 'content-encoding')?.trim().toLowerCase() || 'identity'
}

export function isEventStream(headers: RawHeaders): boolean {
  return /^text\/event-stream\b/i.test(headerOf(headers, 'content-type') ?? '')
}

/** What holds for the bytes of one body, and for no other (RFC 9110, section 8; RFC 9530). */
const BODY_FIELDS = new Set([
  'content-length',
  'content-encoding',
  'content-md5',
  'digest',
  'content-digest',
  'repr-digest',
  'etag',
])

/** The headers that still hold once the body is another. */
export function withoutBodyFields(headers: RawHeaders): string[] {
  return withoutFields(headers, (lower) => BODY_FIELDS.has(lower))
}
