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

const NONE: ReadonlySet<string> = new Set()

/** Governor's own request headers, which never go upstream. */
const OWN_PREFIX = 'x-governor-'

/** Calls `visit` for every field, its name in lower case beside the original. */
function eachField(headers: RawHeaders, visit: (lower: string, name: string, value: string) => void): void {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] ?? ''
    visit(name.toLowerCase(), name, headers[at + 1] ?? '')
  }
}

/** The fields that Connection fields name: they end here too (RFC 9110, section 7.6.1). */
function nominated(headers: RawHeaders): ReadonlySet<string> {
  if (headerOf(headers, 'connection') === undefined) return NONE
  const names = new Set<string>()
  eachField(headers, (lower, _, value) => {
    if (lower !== 'connection') return
    for (const token of value.split(',')) names.add(token.trim().toLowerCase())
  })
  return names
}

/** The first value of a field; `name` in lower case. */
export function headerOf(headers: RawHeaders, name: string): string | undefined {
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const field = headers[at]
    // Lengths first: a request has twenty fields, and is asked for as many.
    if (field?.length === name.length && field.toLowerCase() === name) return headers[at + 1]
  }
  return undefined
}

/** The list without the fields for which `drop` says so. */
export function withoutFields(headers: RawHeaders, drop: (lower: string) => boolean): string[] {
  const kept: string[] = []
  eachField(headers, (lower, name, value) => {
    if (!drop(lower)) kept.push(name, value)
  })
  return kept
}

/** A message head as it stands on the wire, in Latin-1. */
export function headText(line: string, headers: RawHeaders): string {
  let text = `${line}\r\n`
  for (let at = 0; at + 1 < headers.length; at += 2) text += `${headers[at]}: ${headers[at + 1]}\r\n`
  return `${text}\r\n`
}

/** Fields that undici writes itself, or must not be given. */
const SET_BY_TRANSPORT = new Set(['host', 'expect'])

/**
 * The headers of a request on its way upstream. `Host` is the upstream's; `Expect: 100-continue` was answered here;
 * `TE: trailers` is kept, as the one transfer coding that asks for something this proxy passes on.
 */
export function requestHeaders(headers: RawHeaders): string[] {
  const named = nominated(headers)
  const kept: string[] = []
  eachField(headers, (lower, name, value) => {
    if (lower === 'te' && /(^|[\s,])trailers($|[\s,;])/i.test(value)) kept.push(name, 'trailers')
    if (HOP_BY_HOP.has(lower) || named.has(lower)) return
    if (SET_BY_TRANSPORT.has(lower) || lower.startsWith(OWN_PREFIX)) return
    kept.push(name, value)
  })
  return kept
}

/** The headers of a response on its way to the client. */
export function responseHeaders(headers: RawHeaders): string[] {
  const named = nominated(headers)
  return withoutFields(headers, (lower) => HOP_BY_HOP.has(lower) || named.has(lower))
}

/** Fields that tell who the client is to the provider. */
const CREDENTIALS = ['authorization', 'x-api-key', 'api-key', 'x-goog-api-key'] as const

/** Every credential a request carries, joined: the thing that tells tenants apart. Never stored, only hashed. */
export function credentialsOf(headers: RawHeaders): string {
  return CREDENTIALS.map((name) => headerOf(headers, name) ?? '').join('\n')
}

/** The key a client sent, in whichever of the usual fields. */
export function clientKeyOf(headers: RawHeaders): string | undefined {
  const bearer = /^bearer +(.+)$/i.exec(headerOf(headers, 'authorization') ?? '')?.[1]
  return bearer ?? headerOf(headers, 'x-api-key') ?? headerOf(headers, 'api-key')
}

/** Puts the upstream's own key where the client had put its credential. */
export function withCredential(headers: RawHeaders, key: string, speaksAnthropic: boolean): string[] {
  const used = CREDENTIALS.find((name) => headerOf(headers, name) !== undefined)
  const field = used ?? (speaksAnthropic ? 'x-api-key' : 'authorization')
  const kept = withoutFields(headers, (lower) => (CREDENTIALS as readonly string[]).includes(lower))
  return [...kept, field, field === 'authorization' ? `Bearer ${key}` : key]
}

/** Sets fields, in place of those of the same name. */
export function withHeaders(headers: RawHeaders, set: Readonly<Record<string, string>>): string[] {
  const names = new Set(Object.keys(set).map((name) => name.toLowerCase()))
  if (names.size === 0) return [...headers]
  return [...withoutFields(headers, (lower) => names.has(lower)), ...Object.entries(set).flat()]
}

/** The content coding of a body, in lower case; `identity` where it has none. */
export function codingOf(headers: RawHeaders): string {
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
