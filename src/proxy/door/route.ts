/** Finds the upstream, the path and the dialect of a request, and decides whether its client may use that upstream. */
import { decodedPath } from '../../core/text/decoded-path.ts'
import { matchesAny } from '../../core/text/glob.ts'
import type { Api, Dialect } from '../../dialect/dialect.ts'
import { ANSWERS_NOTHING, DEFAULT_API, nameBefore } from '../../dialect/index.ts'
import type { Client } from '../../http/client.ts'
import { namesKey, withoutValues, withoutValuesInQuery } from '../../http/credentials.ts'
import {
  hasOtherTransferCoding,
  headerOf,
  type RawHeaders,
  requestHeaders,
  withHeaders,
  withoutFields,
} from '../../http/headers.ts'
import type { Upstream, UpstreamCall } from '../../http/upstream.ts'
import { climbsOut, isLoopback, pathOf, remembered, segmentsOf, withoutTrailingSlashes } from '../../http/urls.ts'
import type { Services } from '../services.ts'

export interface Route {
  readonly upstream: Upstream
  /** Path and query as sent upstream: without the upstream's name, and with the prefix of its URL. */
  readonly path: string
  /** The first segment of a guarded path, where it names an upstream that does not exist. */
  readonly unknownName: string | undefined
  /** A server that resolves its dot segments would leave the prefix of the upstream's URL. */
  readonly leavesPrefix: boolean
  /** The client's path without the query, which may hold a key. */
  readonly asked: string
  /** Its query, without the question mark. */
  readonly query: string
  /** Set on guarded requests only. */
  readonly dialect: Dialect | undefined
  /** Set on requests that may fetch an answer, by the id of its response. */
  readonly later: { readonly dialect: Dialect; readonly response: string } | undefined
  /** It may call a model, and no API that is guarded has this path: an agent may call one here that is not guarded. */
  readonly isUnknown: boolean
  /** The API whose clients expect its errors, and its place for keys. */
  readonly api: Api
}

interface UpstreamSettings {
  readonly url: string
  readonly api_key?: string | undefined
  readonly headers: Readonly<Record<string, string>>
  readonly strip_name: boolean
}

/** Returns whether the settings of an upstream hold a key: in `api_key`, or in a header whose name says so. */
export function holdsKey({ api_key, headers }: Pick<UpstreamSettings, 'api_key' | 'headers'>): boolean {
  for (const [name, value] of Object.entries(headers)) if (value !== '' && namesKey(name)) return true
  return Boolean(api_key)
}

/**
 * Reads the URL of an upstream once, at start. `publicUrl`: the default URL of a built-in name; `undefined` for other
 * names. A built-in name begins paths of other hosts too (`/openai/v1` of Bedrock, `/openai/deployments` of Azure):
 * there it stays in the path, unless the URL of the upstream has it in its path already.
 */
export function upstreamOf(name: string, settings: UpstreamSettings, publicUrl?: string): Upstream {
  const { api_key: apiKey, headers, strip_name } = settings
  const url = new URL(settings.url)
  const isOwnHost = publicUrl === undefined || url.host === new URL(publicUrl).host
  return {
    name,
    origin: url.origin,
    prefix: withoutTrailingSlashes(url.pathname),
    apiKey,
    headers,
    holdsKey: holdsKey(settings),
    keepsName: !strip_name && !isOwnHost && !url.pathname.split('/').includes(name),
  }
}

type Routing = Pick<Services, 'upstreams' | 'dialects'>

/** True for what calls no model: it says so, or lies under the path of a guarded API; a batch calls models, too. */
function answersNothing(dialects: readonly Dialect[], segments: readonly string[]): boolean {
  const last = segments.at(-1) ?? ''
  if (ANSWERS_NOTHING.test(last)) return true
  return last !== 'batches' && dialects.some((one) => one.claims(segments.slice(0, -1), true) > 0)
}

const posts = new WeakMap<Routing, (target: string) => Route>()

/** Returns where a request goes. @throws if a built-in upstream is missing. */
export function routeOf(services: Routing, head: Client['head']): Route {
  const { method, headers } = head
  const isMarked = ({ api }: Dialect) => api.ownHeader !== undefined && headerOf(headers, api.ownHeader) !== undefined
  if (method !== 'POST' || services.dialects.some(isMarked)) return findRoute(services, head)
  let routes = posts.get(services)
  if (!routes) {
    routes = remembered((target) => findRoute(services, { method, target, headers: [] }))
    posts.set(services, routes)
  }
  return routes(head.target)
}

function findRoute({ upstreams, dialects }: Routing, { method, target, headers }: Client['head']): Route {
  const whole = pathOf(target)
  const [asked = ''] = whole.split('?', 1)
  const [, first = ''] = asked.split('/', 2)
  const named = upstreams.get(first)
  const unnamed = named ? asked.slice(first.length + 1) : asked
  const path = unnamed.startsWith('/') ? unnamed : `/${unnamed}`
  const decoded = decodedPath(path)
  const segments = segmentsOf(decoded)
  let claimed: Dialect | undefined
  let operation = 0
  let marked: Dialect | undefined
  let later: Route['later']
  for (const one of dialects) {
    const { ownPaths, ownHeader } = one.api
    const hasHeader = ownHeader !== undefined && headerOf(headers, ownHeader) !== undefined
    if (!claimed) {
      operation = one.claims(segments, hasHeader)
      if (operation > 0) claimed = one
    }
    const response = one.laterResponse?.(method, segments)
    if (response !== undefined) later ??= { dialect: one, response }
    if (!marked && (ownPaths?.test(decoded) || hasHeader)) marked = one
  }
  const dialect = method === 'POST' ? claimed : undefined
  const api = (marked ?? dialect)?.api ?? DEFAULT_API
  const upstream = named ?? upstreams.get(api.upstream.name)
  if (!upstream) throw new Error(`There is no upstream ${api.upstream.name}, which is built in.`)
  const { prefix } = upstream
  const sent = named?.keepsName ? asked : path
  // `…/v1` and `/v1/…` join to one `/v1`.
  const rest = prefix.endsWith('/v1') && /^\/v1(?:\/|$)/.test(sent) ? sent.slice('/v1'.length) : sent
  const name = claimed && !named ? nameBefore(segments.slice(0, -operation)) : undefined
  return {
    upstream,
    path: prefix + rest + whole.slice(asked.length),
    // A name in the path of the default upstream's URL belongs to no other upstream.
    unknownName: name !== undefined && segmentsOf(prefix).includes(name) ? undefined : name,
    leavesPrefix: prefix !== '' && climbsOut(rest),
    asked,
    query: whole.slice(asked.length + 1),
    dialect,
    later,
    isUnknown: method === 'POST' && !claimed && !later && !answersNothing(dialects, segments),
    api,
  }
}

/**
 * Returns path and headers as they go upstream: with its key and its fields, without values of Governor's own.
 * `accessKey`: the one that the client sent; of a key that is known by its hash alone, this is the only copy.
 */
export function upstreamHead(
  { upstream, path, api }: Route,
  headers: RawHeaders,
  { credentialPlaces, ownValues: known }: Pick<Services, 'credentialPlaces' | 'ownValues'>,
  accessKey: string | undefined,
): Pick<UpstreamCall, 'path' | 'headers'> {
  const ownValues = accessKey === undefined || known.includes(accessKey) ? known : [...known, accessKey]
  let sent = withoutValues(requestHeaders(headers), ownValues)
  const { apiKey } = upstream
  if (apiKey) {
    const names = credentialPlaces.headers
    const field = api.credentialHeader(
      apiKey,
      names.find((name) => headerOf(sent, name) !== undefined),
    )
    const value = field === 'authorization' ? `Bearer ${apiKey}` : apiKey
    sent = [...withoutFields(sent, new Set(names)), field, value]
  }
  return { path: withoutValuesInQuery(path, ownValues), headers: withHeaders(sent, upstream.headers) }
}

const ERROR_KINDS = {
  400: 'invalid_request',
  401: 'unauthorized',
  403: 'forbidden',
  404: 'not_found',
  501: 'invalid_request',
} as const

/** What a sender chooses is repeated up to so many characters. */
const MAX_SHOWN = 100

function urlOf(text: string): URL | undefined {
  return URL.canParse(text) ? new URL(text) : undefined
}

/**
 * Returns the error for a request that must not be sent upstream, with its JSON in the shape of the client's API;
 * `undefined` if it may be sent.
 */
export function accessRefusal(services: Services, route: Route, headers: RawHeaders, accessKey: object | undefined) {
  const { leavesPrefix, unknownName, upstream, api } = route
  const refuse = (status: keyof typeof ERROR_KINDS, code: string, message: string) => ({
    status,
    body: api.errorBody(ERROR_KINDS[status], message, code, status),
  })
  if (leavesPrefix) {
    const why = "its '..' lead out of the path of the upstream's URL."
    return refuse(400, 'invalid_path', `Governor does not pass this path on: ${why}`)
  }
  if (unknownName !== undefined) {
    const name = unknownName.slice(0, MAX_SHOWN)
    const message =
      `This Governor has no upstream named ${name}, and sends the request to no other: check the first ` +
      `part of the path. If ${name} belongs to the path of a provider, put it into that upstream's url.`
    return refuse(404, 'unknown_upstream', message)
  }
  // A transfer coding is of one connection alone: the upstream would get coded bytes that nothing describes.
  if (hasOtherTransferCoding(headers)) {
    const advice = 'send the body in chunks alone, and name what else was done to it in Content-Encoding.'
    return refuse(501, 'unknown_transfer_coding', `Governor undoes no such transfer coding: ${advice}`)
  }
  if (!upstream.holdsKey) return undefined
  if (services.accessKeys.size === 0) {
    const problem = pageProblem(services, headers)
    return problem && refuse(403, problem.code, `Governor holds the key of this upstream and ${problem.message}`)
  }
  if (accessKey) return undefined
  const advice = 'send one of its server.access_keys as the API key.'
  return refuse(401, 'invalid_api_key', `This Governor asks for an access key: ${advice}`)
}

/**
 * Finds requests that a browser sends for a page that may not use Governor's keys. `Origin` states where the page comes
 * from (plain text is sent without a preflight); if its host name was made to resolve to this machine (DNS rebinding),
 * `Host` states that name. Programs send neither `Origin` nor `Sec-Fetch-Site`, and a loopback name in `Host`.
 */
function pageProblem({ allowedHosts, allowedOrigins, isOnLoopback }: Services, headers: RawHeaders) {
  const host = headerOf(headers, 'host')
  const here = host === undefined ? undefined : urlOf(`http://${host}`)
  const name = here?.hostname.replace(/^\[|\]$/g, '') ?? ''
  const isKnown = isLoopback(name) || matchesAny(allowedHosts, name)
  if (host !== undefined && !isKnown && isOnLoopback) {
    const advice = 'add that name to server.allowed_hosts, or send one of server.access_keys.'
    const message = `listens on loopback, where it is not known as ${host.slice(0, MAX_SHOWN)}: ${advice}`
    return { code: 'host_not_allowed', message }
  }
  const origin = headerOf(headers, 'origin')
  // A browser sends no `Origin` with a page's plain GET, which asks for an image or follows a link.
  const site = headerOf(headers, 'sec-fetch-site') ?? 'none'
  const mayUse =
    origin === undefined
      ? site === 'same-origin' || site === 'none'
      : matchesAny(allowedOrigins, origin.toLowerCase()) || (isKnown && urlOf(origin)?.host === here?.host)
  if (mayUse) return undefined
  const pages = `pages of ${origin === undefined ? 'another origin' : origin.slice(0, MAX_SHOWN)} may not use it`
  const advice = 'add that origin to server.allowed_origins, or send one of server.access_keys.'
  return { code: 'origin_not_allowed', message: `${pages}: ${advice}` }
}
