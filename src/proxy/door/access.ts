/** Decides which clients may use an upstream. */
import { globMatches } from '../../core/glob.ts'
import { hashOf } from '../../core/hash.ts'
import { clientKeysOf } from '../../http/credentials.ts'
import { headerOf, type RawHeaders } from '../../http/headers.ts'
import { isLoopback } from '../../http/loopback.ts'
import type { Services } from '../services.ts'
import type { Route } from './route.ts'

/** The error that the client of a refused request gets; `body`: as JSON, in the shape of the client's API. */
export interface AccessRefusal {
  readonly status: keyof typeof ERROR_KINDS
  readonly body: string
}

const ERROR_KINDS = { 400: 'invalid_request', 401: 'unauthorized', 403: 'forbidden', 404: 'not_found' } as const

/** What a sender chooses is repeated up to so many characters. */
const shown = (text: string) => text.slice(0, 100)

function hasMatch(globs: readonly string[], name: string): boolean {
  return globs.some((glob) => globMatches(glob, name))
}

function urlOf(text: string): URL | undefined {
  return URL.canParse(text) ? new URL(text) : undefined
}

/** Returns the error for a request that must not be sent upstream; `undefined` if it may be sent. */
export function accessRefusal(services: Services, route: Route, headers: RawHeaders): AccessRefusal | undefined {
  const { leavesPrefix, unknownName, upstream, path, api } = route
  const refuse = (status: AccessRefusal['status'], code: string, message: string): AccessRefusal => ({
    status,
    body: api.errorBody(ERROR_KINDS[status], message, code),
  })
  if (leavesPrefix) {
    const why = "its '..' lead out of the path of the upstream's URL."
    return refuse(400, 'invalid_path', `Governor does not pass this path on: ${why}`)
  }
  if (unknownName !== undefined) {
    const name = shown(unknownName)
    const message =
      `This Governor has no upstream named ${name}, and sends the request to no other: check the first ` +
      `part of the path. If ${name} belongs to the path of a provider, put it into that upstream's url.`
    return refuse(404, 'unknown_upstream', message)
  }
  if (!upstream.holdsKey) return undefined
  if (services.accessKeys.size === 0) {
    const problem = pageProblem(services, headers)
    return problem && refuse(403, problem.code, `Governor holds the key of this upstream and ${problem.message}`)
  }
  const keys = clientKeysOf(headers, path, services.credentialPlaces)
  // Hashes are compared, so that the time it takes reveals nothing.
  if (keys.some((key) => services.accessKeys.has(hashOf(key)))) return undefined
  const advice = 'send one of its server.access_keys as the API key.'
  return refuse(401, 'invalid_api_key', `This Governor asks for an access key: ${advice}`)
}

/**
 * Finds requests that a browser sends for a page that may not use Governor's keys. `Origin` states where the page comes
 * from (plain text is sent without a preflight); if its host name was made to resolve to this machine (DNS rebinding),
 * `Host` states that name. Programs send neither `Origin` nor `Sec-Fetch-Site`, and a loopback name in `Host`.
 */
function pageProblem(
  { allowedHosts, allowedOrigins, isOnLoopback }: Services,
  headers: RawHeaders,
): { readonly code: string; readonly message: string } | undefined {
  const host = headerOf(headers, 'host')
  const here = host === undefined ? undefined : urlOf(`http://${host}`)
  const name = here?.hostname.replace(/^\[|\]$/g, '') ?? ''
  const isKnown = isLoopback(name) || hasMatch(allowedHosts, name)
  if (host !== undefined && !isKnown && isOnLoopback) {
    const advice = 'add that name to server.allowed_hosts, or send one of server.access_keys.'
    const message = `listens on loopback, where it is not known as ${shown(host)}: ${advice}`
    return { code: 'host_not_allowed', message }
  }
  const origin = headerOf(headers, 'origin')
  // A browser sends no `Origin` with a page's plain GET, which asks for an image or follows a link.
  const site = headerOf(headers, 'sec-fetch-site') ?? 'none'
  const mayUse =
    origin === undefined
      ? site === 'same-origin' || site === 'none'
      : hasMatch(allowedOrigins, origin.toLowerCase()) || (isKnown && urlOf(origin)?.host === here?.host)
  if (mayUse) return undefined
  const pages = `pages of ${origin === undefined ? 'another origin' : shown(origin)} may not use it`
  const advice = 'add that origin to server.allowed_origins, or send one of server.access_keys.'
  return { code: 'origin_not_allowed', message: `${pages}: ${advice}` }
}
