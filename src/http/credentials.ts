/** The credentials of a request: whose they are, which go upstream, and which only Governor and its clients share. */
import { headerOf, type RawHeaders, withoutFields } from './headers.ts'

/** Where clients send keys: names of headers, in lower case, and of parameters in the query. */
export interface CredentialPlaces {
  readonly headers: readonly string[]
  readonly parameters: readonly string[]
}

function keysInQuery(target: string, names: readonly string[]): string[] {
  const at = target.indexOf('?')
  if (at === -1) return []
  const query = new URLSearchParams(target.slice(at))
  return names.flatMap((name) => query.getAll(name))
}

/** Returns all credentials of a request, joined. They tell tenants apart, are hashed and never stored. */
export function credentialsOf(headers: RawHeaders, target: string, places: CredentialPlaces): string {
  const inHeaders = places.headers.map((name) => headerOf(headers, name) ?? '')
  return [...inHeaders, ...keysInQuery(target, places.parameters)].join('\n')
}

/** Returns all keys of a request; some clients send two, for different servers. */
export function clientKeysOf(headers: RawHeaders, target: string, places: CredentialPlaces): string[] {
  const inHeaders = places.headers.flatMap((name) => {
    const sent = headerOf(headers, name)
    return (name === 'authorization' ? /^bearer +([^ ].*)$/i.exec(sent ?? '')?.[1] : sent) ?? []
  })
  return [...inHeaders, ...keysInQuery(target, places.parameters)]
}

/** Returns true if the name of a field says that its value is a credential. */
export function namesKey(name: string): boolean {
  return /key|token|secret|auth|cookie|credential|password/i.test(name)
}

/** Replaces the credentials in `names` by `key`. `headerFor` returns its header, given the one that the client used. */
export function withCredential(
  headers: RawHeaders,
  names: readonly string[],
  key: string,
  headerFor: (sent: string | undefined) => string,
): string[] {
  const field = headerFor(names.find((name) => headerOf(headers, name) !== undefined))
  return [...withoutFields(headers, new Set(names)), field, field === 'authorization' ? `Bearer ${key}` : key]
}

/** Shorter values are words that other values may contain by chance. */
const SURELY_SECRET = 8

function holds(text: string, value: string): boolean {
  for (let at = text.indexOf(value); at !== -1; at = text.indexOf(value, at + 1)) {
    const around = text.charAt(at - 1) + text.charAt(at + value.length)
    if (value.length >= SURELY_SECRET || !/[\w-]/.test(around)) return true
  }
  return false
}

/**
 * Returns true if a text holds one of the values: as it is, without percent-encoding, however often it was applied, or
 * as user and password (RFC 7617).
 */
function holdsAny(text: string, values: readonly string[]): boolean {
  const plain = text.replace(/%(?:25)*([0-9a-f]{2})/gi, (_, hex: string) =>
    String.fromCharCode(Number.parseInt(hex, 16)),
  )
  const [, basic = ''] = /\bbasic +([\w+/-]+)/i.exec(plain) ?? []
  const login = Buffer.from(basic, 'base64').toString('latin1')
  return values.some((value) => holds(text, value) || holds(plain, value) || holds(login, value))
}

/**
 * Returns the headers without each field that holds one of the values, also beside other text: access keys and the
 * admin token, which no upstream may see.
 */
export function withoutValues(headers: RawHeaders, values: readonly string[]): RawHeaders {
  if (values.length === 0) return headers
  const kept: string[] = []
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const [name = '', value = ''] = headers.slice(at, at + 2)
    if (!holdsAny(`${name}: ${value}`, values)) kept.push(name, value)
  }
  return kept
}

export function withoutValuesInQuery(target: string, values: readonly string[]): string {
  const at = target.indexOf('?')
  if (at === -1 || !holdsAny(target.slice(at), values)) return target
  const parameters = target.slice(at + 1).split('&')
  const kept = parameters.filter((parameter) => !holdsAny(parameter, values)).join('&')
  // A value that is still there spans several parameters.
  return target.slice(0, at) + (kept === '' || holdsAny(kept, values) ? '' : `?${kept}`)
}
