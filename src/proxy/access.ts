/** Which requests are never sent upstream: what their clients may not do. */
import { globMatches } from '../core/glob.ts'
import { hashOf } from '../core/hash.ts'
import type { ErrorKind } from '../dialect/dialect.ts'
import { clientKeysOf, headerOf, type RawHeaders } from '../http/headers.ts'
import { isLoopback } from '../http/loopback.ts'
import type { Route } from './route.ts'

/** The settings that decide. */
export interface AccessSettings {
  /** Headers in which clients send keys, in lower case. */
  readonly credentialHeaders: readonly string[]
  /** Hashes of the keys that may use upstreams whose key Governor holds; empty: anybody may. */
  readonly accessKeys: ReadonlySet<string>
  /** Globs in lower case. */
  readonly allowedOrigins: readonly string[]
  /** Globs in lower case, of names without a port. */
  readonly allowedHosts: readonly string[]
  /** Can Governor be reached from this machine alone? */
  readonly isOnLoopback: () => boolean
}

/** Why a request is not sent, as its client is told. */
export interface AccessRefusal {
  readonly status: 400 | 401 | 403
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

/** Origins and hosts are the sender's to choose: so many characters of them are told. */
const MAX_TOLD = 100

function foreignOrigin(origin: string): AccessRefusal {
  const message = `Governor holds the key of this upstream, and pages of ${origin.slice(0, MAX_TOLD)} may not use it: add that origin to server.allowed_origins, or send one of server.access_keys.`
  return { status: 403, code: 'origin_not_allowed', message }
}

function foreignHost(host: string): AccessRefusal {
  const message = `Governor holds the key of this upstream and listens on loopback, where it is not known as ${host.slice(0, MAX_TOLD)}: add that name to server.allowed_hosts, or send one of server.access_keys.`
  return { status: 403, code: 'host_not_allowed', message }
}

/** Is this one of `server.access_keys`? Compared as hashes, so that time tells nothing. */
export function isAccessKey({ accessKeys }: AccessSettings, key: string): boolean {
  return accessKeys.size > 0 && accessKeys.has(hashOf(key))
}

function hasMatch(globs: readonly string[], name: string): boolean {
  return globs.some((glob) => globMatches(glob, name))
}

function urlOf(text: string): URL | undefined {
  return URL.canParse(text) ? new URL(text) : undefined
}

/**
 * Does a browser send a request for a page that may not use Governor's keys? A page says where it comes from in `Origin`
 * (no preflight is needed to send plain text); one whose host name was made to point here (DNS rebinding) has that name
 * in `Host`. Programs send no `Origin`, and a loopback name.
 */
function pageRefusal(settings: AccessSettings, headers: RawHeaders): AccessRefusal | undefined {
  const host = headerOf(headers, 'host')
  const here = host === undefined ? undefined : urlOf(`http://${host}`)
  const name = here?.hostname.replace(/^\[|\]$/g, '') ?? ''
  const isKnown = isLoopback(name) || hasMatch(settings.allowedHosts, name)
  if (host !== undefined && !isKnown && settings.isOnLoopback()) return foreignHost(host)
  const origin = headerOf(headers, 'origin')
  if (origin === undefined || hasMatch(settings.allowedOrigins, origin.toLowerCase())) return undefined
  return isKnown && urlOf(origin)?.host === here?.host ? undefined : foreignOrigin(origin)
}

/** Returns why a request must not be sent, or `undefined` where it may be. */
export function accessRefusal(
  settings: AccessSettings,
  { leavesPrefix, upstream }: Route,
  headers: RawHeaders,
): AccessRefusal | undefined {
  if (leavesPrefix) return OUTSIDE
  if (!upstream.holdsKey) return undefined
  if (settings.accessKeys.size === 0) return pageRefusal(settings, headers)
  return clientKeysOf(headers, settings.credentialHeaders).some((key) => isAccessKey(settings, key))
    ? undefined
    : NO_ACCESS_KEY
}

const ERROR_KINDS: Readonly<Record<AccessRefusal['status'], ErrorKind>> = {
  400: 'invalid_request',
  401: 'unauthorized',
  403: 'forbidden',
}

/** Returns the JSON error that tells a client of a refusal, in the shape that its API has. */
export function refusalBody({ status, code, message }: AccessRefusal, { api }: Route): string {
  return api.errorBody(ERROR_KINDS[status], message, code)
}
