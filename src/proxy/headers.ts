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

/** What a field name means to a proxy. */
type Kind = 'plain' | 'hop' | 'te' | 'transport' | 'own'

function kindOf(lower: string): Kind {
  if (lower === 'te') return 'te'
  if (HOP_BY_HOP.has(lower)) return 'hop'
  if (SET_BY_TRANSPORT.has(lower)) return 'transport'
  return lower.startsWith(OWN_PREFIX) ? 'own' : 'plain'
}

/**
 * The names of a header list and what they mean. A client sends the same names in the same order with every request,
 * and comparing them with those of before costs a fraction of what it takes to look each of them up.
 */
class Layout {
  /** As they came, two places a field as in the list itself. */
  readonly names: readonly string[]
  readonly lowers: readonly string[]
  readonly kinds: readonly Kind[]
  /** Is one of the fields Governor's own? */
  readonly hasOwn: boolean
  readonly #places = new Map<string, number>()

  constructor(headers: RawHeaders) {
    const names: string[] = []
    for (let at = 0; at + 1 < headers.length; at += 2) names.push(headers[at] ?? '')
    this.names = names
    this.lowers = names.map((name) => name.toLowerCase())
    this.kinds = this.lowers.map(kindOf)
    this.hasOwn = this.kinds.includes('own')
    for (const [at, lower] of this.lowers.entries()) {
      if (!this.#places.has(lower)) this.#places.set(lower, at * 2 + 1)
    }
  }

  fits(headers: RawHeaders): boolean {
    const { names } = this
    if (headers.length >> 1 !== names.length) return false
    for (let at = 0; at < names.length; at++) if (headers[at * 2] !== names[at]) return false
    return true
  }

  /** Where the first value of a field is in the list; `undefined` where there is none. */
  placeOf(lower: string): number | undefined {
    return this.#places.get(lower)
  }
}

/** Names are the sender's to choose: so many lists of them are kept, of so many characters each. */
const MAX_LAYOUTS = 16
const MAX_NAMES = 2_048

const layouts: Layout[] = []
let nextLayout = 0
let newestHeaders: RawHeaders = []
let newestLayout = new Layout([])

function makeLayout(headers: RawHeaders): Layout {
  const layout = new Layout(headers)
  const characters = layout.names.reduce((sum, name) => sum + name.length, 0)
  if (characters <= MAX_NAMES) {
    layouts[nextLayout] = layout
    nextLayout = (nextLayout + 1) % MAX_LAYOUTS
  }
  return layout
}

function layoutOf(headers: RawHeaders): Layout {
  if (headers === newestHeaders) return newestLayout
  newestLayout = layouts.find((known) => known.fits(headers)) ?? makeLayout(headers)
  newestHeaders = headers
  return newestLayout
}

/** The fields that Connection fields name: they end here too (RFC 9110, section 7.6.1); `undefined` for none. */
function nominated(headers: RawHeaders, layout: Layout): ReadonlySet<string> | undefined {
  const first = layout.placeOf('connection')
  if (first === undefined) return undefined
  // What nearly all clients send names a field that ends here anyway.
  if (headers[first] === 'keep-alive' && layout.lowers.lastIndexOf('connection') === first >> 1)
    return undefined
  const names = new Set<string>()
  for (const [at, lower] of layout.lowers.entries()) {
    if (lower !== 'connection') continue
    for (const token of (headers[at * 2 + 1] ?? '').split(',')) names.add(token.trim().toLowerCase())
  }
  return names
}

/** The first value of a field; `name` in lower case. The list must not be changed once it was asked. */
export function headerOf(headers: RawHeaders, name: string): string | undefined {
  const place = layoutOf(headers).placeOf(name)
  return place === undefined ? undefined : headers[place]
}

/** The list without the fields for which `drop` says so. */
export function withoutFields(headers: RawHeaders, drop: (lower: string) => boolean): string[] {
  const { names, lowers } = layoutOf(headers)
  const kept: string[] = []
  for (let at = 0; at < names.length; at++) {
    if (!drop(lowers[at] ?? '')) kept.push(names[at] ?? '', headers[at * 2 + 1] ?? '')
  }
  return kept
}

/** Returns the headers or trailers of an upstream without fields that are Governor's own to send. */
export function withoutOwn(headers: RawHeaders): RawHeaders {
  return headers.length > 0 && layoutOf(headers).hasOwn
    ? withoutFields(headers, (lower) => lower.startsWith(OWN_PREFIX))
    : headers
}

/** The list without what tells how long a body is, and how it is coded. */
export function withoutLength(headers: RawHeaders): string[] {
  const { names, lowers } = layoutOf(headers)
  const kept: string[] = []
  for (let at = 0; at < names.length; at++) {
    const lower = lowers[at]
    if (lower === 'content-length' || lower === 'content-encoding') continue
    kept.push(names[at] ?? '', headers[at * 2 + 1] ?? '')
  }
  return kept
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
  const layout = layoutOf(headers)
  const { names, lowers, kinds } = layout
  const named = nominated(headers, layout)
  const kept: string[] = []
  for (let at = 0; at < names.length; at++) {
    const value = headers[at * 2 + 1] ?? ''
    const kind = kinds[at]
    if (kind === 'te' && /(^|[\s,])trailers($|[\s,;])/i.test(value)) kept.push(names[at] ?? '', 'trailers')
    else if (kind === 'plain' && !named?.has(lowers[at] ?? '')) kept.push(names[at] ?? '', value)
  }
  return kept
}

/** The headers of a response on its way to the client. */
export function responseHeaders(headers: RawHeaders): string[] {
  const layout = layoutOf(headers)
  const { names, lowers, kinds } = layout
  const named = nominated(headers, layout)
  const kept: string[] = []
  for (let at = 0; at < names.length; at++) {
    const kind = kinds[at]
    if (kind === 'hop' || kind === 'te' || named?.has(lowers[at] ?? '')) continue
    kept.push(names[at] ?? '', headers[at * 2 + 1] ?? '')
  }
  return kept
}

/** Fields that tell who the client is to the provider. */
const CREDENTIALS = ['authorization', 'x-api-key', 'api-key', 'x-goog-api-key'] as const
type Credential = (typeof CREDENTIALS)[number]

/** Every credential a request carries, joined: the thing that tells tenants apart. Never stored, only hashed. */
export function credentialsOf(headers: RawHeaders): string {
  let all = ''
  for (const name of CREDENTIALS) all += `${headerOf(headers, name) ?? ''}\n`
  return all.slice(0, -1)
}

/** The key that a client sent in one of the usual fields. */
function clientKeyIn(headers: RawHeaders, name: Credential): string | undefined {
  const sent = headerOf(headers, name)
  return name === 'authorization' ? /^bearer +(.+)$/i.exec(sent ?? '')?.[1] : sent
}

/** The keys a client sent, in whichever of the usual fields: some clients send two, of which one is meant for another. */
export function clientKeysOf(headers: RawHeaders): string[] {
  return CREDENTIALS.map((name) => clientKeyIn(headers, name)).filter((key) => key !== undefined)
}

/** Returns the list without the credential fields whose key `drop` says yes to. */
export function withoutKeys(headers: RawHeaders, drop: (key: string) => boolean): RawHeaders {
  const dropped = CREDENTIALS.filter((name) => {
    const key = clientKeyIn(headers, name)
    return key !== undefined && drop(key)
  })
  return dropped.length === 0 ? headers : withoutFields(headers, (lower) => isOneOf(dropped, lower))
}

function isOneOf(names: readonly string[], lower: string): boolean {
  return names.includes(lower)
}

/** Does a field's name say that its value is a key, or stands for one? */
export function namesKey(name: string): boolean {
  return /key|token|secret|auth|cookie|credential|password/i.test(name)
}

/** Where Anthropic's own keys have to stand, whatever field the client used: elsewhere they are answered with 401. */
function fieldOfAnthropic(key: string): 'authorization' | 'x-api-key' | undefined {
  if (key.startsWith('sk-ant-oat')) return 'authorization'
  return key.startsWith('sk-ant-') ? 'x-api-key' : undefined
}

/** Puts the upstream's own key where the client had put its credential, if the key is taken there. */
export function withCredential(headers: RawHeaders, key: string, speaksAnthropic: boolean): string[] {
  const used = CREDENTIALS.find((name) => headerOf(headers, name) !== undefined)
  const demanded = speaksAnthropic ? fieldOfAnthropic(key) : undefined
  const field = demanded ?? used ?? (speaksAnthropic ? 'x-api-key' : 'authorization')
  const kept = withoutFields(headers, (lower) => isOneOf(CREDENTIALS, lower))
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
  const { names, lowers } = layoutOf(headers)
  const all: string[] = []
  for (let at = 0; at < names.length; at++) {
    if (lowers[at] === 'trailer' && !hasTrailers) continue
    all.push(names[at] ?? '', headers[at * 2 + 1] ?? '')
  }
  for (const name in set) {
    const value = set[name]
    if (value !== undefined) all.push(name, value)
  }
  return all
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
