/** The credentials of a request: whose they are, which go upstream, and which only Governor and its clients share. */
import { fieldsKept, headerOf, type RawHeaders } from './headers.ts'

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
  const sent = places.headers.map((name) => headerOf(headers, name) ?? '')
  return sent.concat(keysInQuery(target, places.parameters)).join('\n')
}

/** Returns all keys of a request; some clients send two, for different servers. */
export function clientKeysOf(headers: RawHeaders, target: string, places: CredentialPlaces): string[] {
  const keys = keysInQuery(target, places.parameters)
  for (const name of places.headers) {
    const sent = headerOf(headers, name)
    const key = name === 'authorization' ? /^bearer +([^ ].*)$/i.exec(sent ?? '')?.[1] : sent
    if (key !== undefined) keys.push(key)
  }
  return keys
}

/** Returns true if the name of a field says that its value is a credential. */
export function namesKey(name: string): boolean {
  return /key|token|secret|auth|cookie|credential|password/i.test(name)
}

/** Shorter values are words that other values may contain by chance. */
const SURELY_SECRET = 8

/**
 * Returns true if a text holds one of the values: as it is, without percent-encoding, however often it was applied, or
 * as user and password (RFC 7617).
 */
function holdsAny(text: string, values: readonly string[]): boolean {
  const plain = text.replace(/%(?:25)*([0-9a-f]{2})/gi, (_, hex: string) =>
    String.fromCharCode(Number.parseInt(hex, 16)),
  )
  const [, basic = ''] = /\bbasic +([\w+/-]+)/i.exec(plain) ?? []
  for (const one of [text, plain, Buffer.from(basic, 'base64').toString('latin1')]) {
    for (const value of values) {
      for (let at = one.indexOf(value); at !== -1; at = one.indexOf(value, at + 1)) {
        const around = one.charAt(at - 1) + one.charAt(at + value.length)
        if (value.length >= SURELY_SECRET || !/[\w-]/.test(around)) return true
      }
    }
  }
  return false
}

/**
 * Returns the headers without each field that holds one of the values, also beside other text: access keys and the
 * admin token, which no upstream may see.
 */
export function withoutValues(headers: RawHeaders, values: readonly string[]): RawHeaders {
  return values.length === 0 ? headers : fieldsKept(headers, (name, value) => !holdsAny(`${name}: ${value}`, values))
}

export function withoutValuesInQuery(target: string, values: readonly string[]): string {
  const at = target.indexOf('?')
  if (at === -1 || !holdsAny(target.slice(at), values)) return target
  const parameters = target.slice(at + 1).split('&')
  const kept = parameters.filter((parameter) => !holdsAny(parameter, values)).join('&')
  // A value that is still there spans several parameters.
  return target.slice(0, at) + (kept === '' || holdsAny(kept, values) ? '' : `?${kept}`)
}
