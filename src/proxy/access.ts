/** Which requests are never sent upstream: what their clients may not do. */
import { hashOf } from '../core/hash.ts'
import { clientKeysOf, type RawHeaders } from './headers.ts'
import { errorBody } from './reply.ts'
import type { Route } from './route.ts'

/** The settings that decide. */
export interface AccessSettings {
  /** Hashes of the keys that may use upstreams whose key Governor holds; empty: anybody may. */
  readonly accessKeys: ReadonlySet<string>
}

/** Why a request is not sent, as its client is told. */
export interface AccessRefusal {
  readonly status: 400 | 401
  readonly code: string
  readonly message: string
}

const OUTSIDE: AccessRefusal = {
  status: 400,
  code: 'invalid_path',
  message: "Governor does not pass this path on: its '..' lead out of the path of the upstream's URL.",
}

const NO_ACCESS_KEY: AccessRefusal = {
  status: 401,
  code: 'invalid_api_key',
  message: 'This Governor asks for an access key: send one of its server.access_keys as the API key.',
}

/** Is this one of `server.access_keys`? Compared as hashes, so that time tells nothing. */
export function isAccessKey({ accessKeys }: AccessSettings, key: string): boolean {
  return accessKeys.size > 0 && accessKeys.has(hashOf(key))
}

/** Returns why a request must not be sent, or `undefined` where it may be. */
export function accessRefusal(
  settings: AccessSettings,
  { leavesPrefix, upstream }: Route,
  headers: RawHeaders,
): AccessRefusal | undefined {
  if (leavesPrefix) return OUTSIDE
  if (!upstream.holdsKey || settings.accessKeys.size === 0) return undefined
  return clientKeysOf(headers).some((key) => isAccessKey(settings, key)) ? undefined : NO_ACCESS_KEY
}

/** Error types of Anthropic's API by status; OpenAI's has one for all. */
const ANTHROPIC_TYPES = { 400: 'invalid_request_error', 401: 'authentication_error' } as const

/** Returns the JSON error that tells a client of a refusal, in the shape that its API has. */
export function refusalBody({ status, code, message }: AccessRefusal, { speaksAnthropic }: Route): string {
  const type = speaksAnthropic ? ANTHROPIC_TYPES[status] : 'invalid_request_error'
  return errorBody(message, code, type, speaksAnthropic)
}
