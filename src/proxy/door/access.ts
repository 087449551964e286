/** Decides which clients may use an upstream. */
import { globMatches } from '../../core/glob.ts'
import { hashOf } from '../../core/hash.ts'
import type { ErrorKind } from '../../dialect/dialect.ts'
import { type CredentialPlaces, clientKeysOf } from '../../http/credentials.ts'
import { headerOf, type RawHeaders } from '../../http/headers.ts'
import { isLoopback } from '../../http/loopback.ts'
import type { Route } from './route.ts'

/** Who may use upstreams whose key Governor holds. */
export interface AccessSettings {
  readonly credentialPlaces: CredentialPlaces
  /** Hashes of the access keys; empty: no key is needed. */
  readonly accessKeys: ReadonlySet<string>
  /** Access keys and the admin token, which never go upstream. */
  readonly ownValues: readonly string[]
  /** Globs in lower case. */
  readonly allowedOrigins: readonly string[]
  /** Globs in lower case, of names without a port. */
  readonly allowedHosts: readonly string[]
  /** Only this machine can reach Governor; known once it listens. */
  readonly isOnLoopback: boolean
}

/** The error that the client of a refused request gets. */
export interface AccessRefusal {
  readonly status: 400 | 401 | 403 | 404
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

/** What a sender chooses is repeated up to so many characters. */
const shown = (text: string) => text.slice(0, 100)

const unknownUpstream = (name: string): AccessRefusal => ({
  status: 404,
  code: 'unknown_upstream',
  message:
    `This Governor has no upstream named ${shown(name)}, and sends the request to no other: check the first ` +
    `part of the path. If ${shown(name)} belongs to the path of a provider, put it into that upstream's url.`,
})

const foreignOrigin = (origin: string): AccessRefusal => ({
  status: 403,
  code: 'origin_not_allowed',
  message:
    `Governor holds the key of this upstream, and pages of ${shown(origin)} may not use it: add that origin to ` +
    'server.allowed_origins, or send one of server.access_keys.',
})

const foreignHost = (host: string): AccessRefusal => ({
  status: 403,
  code: 'host_not_allowed',
  message:
    `Governor holds the key of this upstream and listens on loopback, where it is not known as ` +
    `${shown(host)}: add that name to server.allowed_hosts, or send one of server.access_keys.`,
})

function hasMatch(globs: readonly string[], name: string): boolean {
  return globs.some((glob) => globMatches(glob, name))
}

function urlOf(text: string): URL | undefined {
  return URL.canParse(text) ? new URL(text) : undefined
}

/**
 * Refuses requests that a browser sends for a page that may not use Governor's keys. `Origin` states where the page comes from
 * (plain text is sent without a preflight); if its host name was made to resolve to this machine (DNS rebinding), `Host` states
 * that name. Programs send neither `Origin` nor `Sec-Fetch-Site`, and a loopback name in `Host`.
 */
function pageRefusal(settings: AccessSettings, headers: RawHeaders): AccessRefusal | undefined {
  const host = headerOf(headers, 'host')
  const here = host === undefined ? undefined : urlOf(`http://${host}`)
  const name = here?.hostname.replace(/^\[|\]$/g, '') ?? ''
  const isKnown = isLoopback(name) || hasMatch(settings.allowedHosts, name)
  if (host !== undefined && !isKnown && settings.isOnLoopback) return foreignHost(host)
  const origin = headerOf(headers, 'origin')
  if (origin === undefined) {
    // A browser sends no `Origin` with a page's plain GET, which asks for an image or follows a link.
    const site = headerOf(headers, 'sec-fetch-site') ?? 'none'
    return site === 'same-origin' || site === 'none' ? undefined : foreignOrigin('another origin')
  }
  if (hasMatch(settings.allowedOrigins, origin.toLowerCase())) return undefined
  return isKnown && urlOf(origin)?.host === here?.host ? undefined : foreignOrigin(origin)
}

/** Returns the error for a request that must not be sent upstream; `undefined` if it may be sent. */
export function accessRefusal(
  settings: AccessSettings,
  { leavesPrefix, unknownName, upstream, path }: Route,
  headers: RawHeaders,
): AccessRefusal | undefined {
  if (leavesPrefix) return OUTSIDE
  if (unknownName !== undefined) return unknownUpstream(unknownName)
  if (!upstream.holdsKey) return undefined
  if (settings.accessKeys.size === 0) return pageRefusal(settings, headers)
  const keys = clientKeysOf(headers, path, settings.credentialPlaces)
  // Hashes are compared, so that the time it takes reveals nothing.
  return keys.some((key) => settings.accessKeys.has(hashOf(key))) ? undefined : NO_ACCESS_KEY
}

const ERROR_KINDS: Readonly<Record<AccessRefusal['status'], ErrorKind>> = {
  400: 'invalid_request',
  401: 'unauthorized',
  403: 'forbidden',
  404: 'not_found',
}

/** Returns a refusal as a JSON error in the shape of the client's API. */
export function refusalBody({ status, code, message }: AccessRefusal, { api }: Route): string {
  return api.errorBody(ERROR_KINDS[status], message, code)
}
