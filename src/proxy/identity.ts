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

/** A hash of the credential: tells tenants apart without knowing them. */
export function tenantOf(headers: RawHeaders, credentialHeaders: readonly string[]): string {
  return nameOf(credentialsOf(headers, credentialHeaders)).slice(0, 16)
}

/** Longer ids, and those that can't stand in a header, are known by their hash. */
const MAX_ID = 200

/** An id of a client's or a provider's, fit to be kept and to stand in a header. */
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
 * A user id is many sessions' id; Claude Code alone puts its session into it, as a JSON string or, in older
 * versions, after `_session_`.
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
  // An object with an id stands for its id: {"conversation": {"id": "conv_1"}}.
  const id = typeof value === 'string' ? value : property(value, 'id')
  if (typeof id !== 'string' || id.trim() === '') return undefined
  return path.at(-1) === 'user_id' ? sessionInUserId(id) : id.trim()
}

/** The session id that a client sent in a header, fit to stand in one; `undefined` where it sent none there. */
export function sessionInHeaders(headers: RawHeaders, settings: IdentitySettings): string | undefined {
  const id = firstHeader(headers, settings.headers)
  return id === undefined ? undefined : presentable(id)
}

/** The session id a client sent, fit to stand in a header; `undefined` where it sent none. */
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

/** The thread a client names; empty where it names none. */
export function threadNameOf(headers: RawHeaders, settings: IdentitySettings): string {
  const name = firstHeader(headers, settings.threadHeaders)
  return name === undefined ? '' : presentable(name)
}
