/** Who a request belongs to: tenant, session, thread. */
import { parseForeign } from '../core/foreign-json.ts'
import { nameOf } from '../core/hash.ts'
import type { DialectRequest } from '../dialect/dialect.ts'
import { credentialsOf, headerOf, type RawHeaders } from '../http/headers.ts'

/** Header names in lower case; body fields as paths of keys. */
export interface IdentitySettings {
  readonly headers: readonly string[]
  readonly threadHeaders: readonly string[]
  readonly bodyFields: readonly (readonly string[])[]
}

/** Returns a hash of the credentials: it tells tenants apart and reveals no key. */
export function tenantOf(headers: RawHeaders, credentialHeaders: readonly string[]): string {
  return nameOf(credentialsOf(headers, credentialHeaders)).slice(0, 16)
}

/** Longer ids, and ids that a header cannot hold, are replaced by their hash. */
const MAX_ID = 200

/** Returns an id of a client or a provider in a form that can be kept and sent in a header. */
export function presentable(id: string): string {
  return id.length <= MAX_ID && /^[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?$/.test(id) ? id : nameOf(id)
}

function firstHeader(headers: RawHeaders, names: readonly string[]): string | undefined {
  for (const name of names) {
    const value = headerOf(headers, name)?.trim()
    if (value) return value
  }
  return undefined
}

function parsed(text: string): unknown {
  try {
    return parseForeign(text)
  } catch {
    return undefined
  }
}

function property(value: unknown, key: string): unknown {
  return typeof value === 'object' && value !== null && Object.hasOwn(value, key)
    ? Reflect.get(value, key)
    : undefined
}

/**
 * Returns the session id within a user id. A user has many sessions; Claude Code alone puts the session's id there, as a JSON
 * string or, in older versions, after `_session_`.
 */
function sessionInUserId(userId: string): string | undefined {
  const inside = property(parsed(userId), 'session_id')
  if (typeof inside === 'string' && inside !== '') return inside
  return /_session_([0-9a-f-]{36})$/.exec(userId)?.[1]
}

function bodyValue(request: DialectRequest, path: readonly string[]): string | undefined {
  let value: unknown = request.field(path[0] ?? '')
  for (let at = 1; at < path.length && value !== undefined; at++) value = property(value, path[at] ?? '')
  if (value === undefined) return undefined
  // The value may be an object with an id: {"conversation": {"id": "conv_1"}}.
  const id = typeof value === 'string' ? value : property(value, 'id')
  if (typeof id !== 'string' || id.trim() === '') return undefined
  return path.at(-1) === 'user_id' ? sessionInUserId(id) : id.trim()
}

/** Returns the session id that a client sent in a header, in presentable form; `undefined` where it sent none there. */
export function sessionInHeaders(headers: RawHeaders, settings: IdentitySettings): string | undefined {
  const id = firstHeader(headers, settings.headers)
  return id === undefined ? undefined : presentable(id)
}

/** Returns the session id that a client sent in a header or in the body, in presentable form; `undefined` where it sent none. */
export function explicitSessionId(
  headers: RawHeaders,
  request: DialectRequest,
  settings: IdentitySettings,
): string | undefined {
  const fromHeader = sessionInHeaders(headers, settings)
  if (fromHeader !== undefined) return fromHeader
  for (const path of settings.bodyFields) {
    const value = bodyValue(request, path)
    if (value !== undefined) return presentable(value)
  }
  return undefined
}

/** Returns the name of the thread that a client sent, in presentable form; empty where it sent none. */
export function threadNameOf(headers: RawHeaders, settings: IdentitySettings): string {
  const name = firstHeader(headers, settings.threadHeaders)
  return name === undefined ? '' : presentable(name)
}
