/** Builds a Governor from its parts. */
import { randomUUID } from 'node:crypto'
import { setMaxListeners } from 'node:events'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import { uptime } from 'node:os'
import type { Duplex } from 'node:stream'
import fastify, {
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  type FastifyServerOptions,
} from 'fastify'
import type { Logger } from 'pino'
import {
  budgetOf,
  loopGuardOf,
  modelSettingsOf,
  overflowPolicyOf,
  registryOf,
  stopPolicyOf,
} from './config/policies.ts'
import type { Config } from './config/schema.ts'
import { DEFAULT_UPSTREAMS, RESERVED_NAMES } from './config/upstreams.ts'
import { limitsCost } from './core/budget/policy.ts'
import { hashOf } from './core/hash.ts'
import { livePage } from './dashboard/page.ts'
import type { Api, Dialect } from './dialect/dialect.ts'
import { DEFAULT_API, DIALECTS } from './dialect/index.ts'
import { hasBody } from './http/body.ts'
import { createBufferBudget } from './http/buffer-budget.ts'
import { clientErrorOf, MAX_HEAD, refuseBytes } from './http/client-error.ts'
import { createUploadWatch } from './http/client-idle.ts'
import type { CredentialPlaces } from './http/headers.ts'
import { isLoopback } from './http/loopback.ts'
import { createOwnValues } from './http/own-values.ts'
import { reply } from './http/response.ts'
import { createTransport, type Proxies } from './http/transport.ts'
import { type AdminSettings, adminAccess, unauthorized } from './ops/admin-access.ts'
import { type OpsSources, ops } from './ops/ops.ts'
import { createDayCost, type DayCost } from './ops/sessions/day-cost.ts'
import { notFound, replyToProblem, type SessionSources, sessionRoutes } from './ops/sessions/routes.ts'
import { firstSegmentsOf, routeOf, upstreamOf } from './proxy/door/route.ts'
import { handleUpgrades } from './proxy/door/tunnel.ts'
import { exchange } from './proxy/exchange.ts'
import { faultOf } from './proxy/fault.ts'
import { createUnpricedModels } from './proxy/observe-usage.ts'
import { createWindows, KNOWN_WINDOW } from './proxy/overflow/windows.ts'
import type { Policies, Services } from './proxy/services.ts'
import { createKnownPrefixes } from './proxy/session/known-prefixes.ts'
import { createQuietRuns } from './proxy/session/quiet-runs.ts'
import { createUnsupportedEdits, EDIT_REFUSALS } from './proxy/unsupported-edits.ts'
import { subscribeToChanges, watchStore } from './store/changes.ts'
import { createStore, type OpenStore } from './store/create.ts'
import { createSharedValues, isFirst } from './store/shared-values.ts'
import type { Store } from './store/store.ts'
import { type Emit, logEvent } from './telemetry/event.ts'
import { createMetrics, type Metrics } from './telemetry/metrics.ts'
import { createTracing } from './telemetry/tracing.ts'
import { createWebhook } from './telemetry/webhook.ts'
import { configuredWindow, createCatalogue } from './usage/catalogue.ts'
import { VERSION } from './version.ts'

/** A proxy with its server. */
export interface Governor {
  /** Governor's own routes, as `METHOD /path`; all other paths belong to the upstreams. Complete once it listens. */
  readonly routes: ReadonlySet<string>
  /** Starts to listen and returns the address, `http://host:port`. Rejects if it can't listen. */
  listen(): Promise<string>
  /** Applies the policies of a configuration (budget, loop guard, overflow, storm) from the next request on. */
  reload(config: Config): void
  /** Refuses new requests, waits at most `server.drain_timeout` for those under way, and closes; true if all ended. */
  drain(): Promise<boolean>
  /** Closes at once and cuts off the requests under way. */
  close(): Promise<void>
}

/** The environment of a Governor, besides its configuration. */
export interface GovernorOptions {
  readonly log: Logger
  /** Remembers sessions; the default is a store in memory. */
  readonly store?: Store
  /** Returns milliseconds since the epoch; the default does not jump where the system's clock is set. */
  readonly now?: () => number
  /** Bytes of memory that the process may use; unset if that is not known. */
  readonly memory?: number
  /** How many files and connections the process may have open; unset if that is not known. */
  readonly maxOpenFiles?: number | undefined
  /** Times the wait for the end of quiet runs; the default is the system's clock. */
  readonly after?: typeof afterDelay
  /** The HTTP proxies for upstreams. */
  readonly proxies?: Proxies | undefined
  /** The APIs that are guarded; the default is all that Governor knows. */
  readonly dialects?: readonly Dialect[]
  /** Versions of OpenTelemetry's conventions, as in OTEL_SEMCONV_STABILITY_OPT_IN. */
  readonly semanticConventions?: string | undefined
  /** Gets every event, as log and metrics do. */
  readonly onEvent?: Emit
}

function policiesOf(config: Config): Policies {
  return {
    loop: loopGuardOf(config),
    budget: budgetOf(config),
    overflow: overflowPolicyOf(config),
    storm: config.storm,
    stop: stopPolicyOf(config),
    observesOnly: config.mode === 'observe',
  }
}

/** The most milliseconds between two checks for clients that do not send their headers: Node's default. */
const HEADERS_CHECK = 30_000

/** True for Governor's own paths, also in spellings that some server takes for them; all others belong to the upstreams. */
function isOpsPath(target: string): boolean {
  return firstSegmentsOf(target).some((first) => RESERVED_NAMES.includes(first))
}

/** Answers `OPTIONS *`, which asks about the server and not about an upstream (RFC 9110, section 9.3.7). */
function answerForServer(response: ServerResponse): void {
  if (hasBody(response.req.rawHeaders)) response.setHeader('connection', 'close')
  response.writeHead(204, { allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' })
  response.end()
}

/** Sends a person who opens the bare address in a browser to the live page; programs do not accept HTML. */
function sendToPage(
  { method, url, headers: { accept = '' } }: IncomingMessage,
  response: ServerResponse,
): boolean {
  if (url !== '/' || (method !== 'GET' && method !== 'HEAD') || !accept.includes('text/html')) return false
  response.writeHead(302, { location: '/governor/', 'cache-control': 'no-store' }).end()
  return true
}

/** The open responses of each connection: several if a client sends requests without waiting. */
type OpenResponses = WeakMap<Duplex, Set<ServerResponse>>

function noteResponse(open: OpenResponses, { socket }: IncomingMessage, response: ServerResponse): void {
  const responses = open.get(socket) ?? new Set()
  open.set(socket, responses.add(response))
  response.once('close', () => responses.delete(response))
}

const UPLOAD_STOPPED = 'The rest of the request did not come. See timeouts.client_idle.'

/** Answers bytes that are no request; an answer in the middle of a response would look like a part of it. */
function refuseUnreadable(open: OpenResponses, error: NodeJS.ErrnoException, socket: Duplex): void {
  const responses = [...(open.get(socket) ?? [])]
  if (responses.some(({ headersSent }) => headersSent)) {
    socket.destroy()
    return
  }
  const { status, code, message } = clientErrorOf(error)
  const kind = status === 408 ? 'timeout' : 'invalid_request'
  refuseBytes(socket, status, DEFAULT_API.errorBody(kind, message, code), responses.length > 0)
}

function refuseWhileDraining(response: ServerResponse, { errorBody }: Api): void {
  response.setHeader('connection', 'close')
  response.setHeader('retry-after', '1')
  const body = errorBody('overloaded', 'Governor is shutting down: try again.', 'shutting_down')
  reply(response, 503, 'application/json', body)
}

function unneeded(): never {
  throw new Error("a route has a schema: remove `schemaController`, so that Fastify's own compilers are used")
}

/** No ops route has a schema. Without the compilers, Fastify loads half as much code. */
const NO_COMPILERS: NonNullable<FastifyServerOptions['schemaController']> = {
  compilersFactory: { buildValidator: unneeded, buildSerializer: unneeded },
}

/** What changes while Governor runs. */
interface State {
  policies: Policies
  /** Requests under way. */
  openRequests: number
  /** Called when the last request under way has ended. */
  onIdle: (() => void) | undefined
  /** Sessions in the store when the metrics were last rendered. */
  sessions: number
  isStoreUp: boolean
  /** Returns true to the first process that asks about an occasion. */
  isFirst: (occasion: string) => Promise<boolean>
  isOnLoopback: boolean
  /** Aborted once no more requests are accepted. */
  readonly draining: AbortController
  /** The time to drain is over: requests under way are cut off. */
  isCut: boolean
  dayCost: DayCost | undefined
  /** Address of the live page, with a slash at its end. */
  page: string
}

function initialState(config: Config): State {
  const draining = new AbortController()
  // Each request that waits for an operator listens to it.
  setMaxListeners(0, draining.signal)
  return {
    policies: policiesOf(config),
    openRequests: 0,
    isFirst: async () => true,
    onIdle: undefined,
    sessions: 0,
    isStoreUp: config.store === 'memory',
    isOnLoopback: true,
    draining,
    isCut: false,
    dayCost: undefined,
    page: '',
  }
}

/** Milliseconds between two checks whether the machine slept; a shorter sleep does not count. */
const SLEEP_CHECK = 2_000

/**
 * Returns a clock, in milliseconds since the epoch: the system's clock at the start and the time since then, so that durations
 * stay right where that clock is set while Governor runs. The time in which the machine sleeps counts: the process measures
 * none of it, but the machine's uptime goes on.
 */
function createSteadyClock(): () => number {
  const uptimeAhead = () => uptime() * 1_000 - performance.now()
  const aheadAtStart = uptimeAhead()
  let slept = 0
  let checkedAt = performance.now()
  return () => {
    const now = performance.now()
    if (now - checkedAt >= SLEEP_CHECK) {
      checkedAt = now
      const ahead = uptimeAhead() - aheadAtStart
      if (ahead - slept >= SLEEP_CHECK) slept = ahead
    }
    return Math.floor(performance.timeOrigin + now + slept)
  }
}

function afterDelay(delay: number, call: () => void): () => void {
  const timer = setTimeout(call, delay).unref()
  return () => clearTimeout(timer)
}

/** 24 hex digits. Node keeps random bytes for UUIDs in stock, so that they take a third of the time of `randomBytes`. */
const newId = () => randomUUID().replaceAll('-', '').slice(-24)

function createTelemetry(config: Config, options: GovernorOptions, state: State) {
  const metrics = createMetrics({
    sessions: () => state.sessions,
    open: () => state.openRequests,
    isStoreUp: () => state.isStoreUp,
  })
  const pageOf = (id: string) => `${state.page}#${id}`
  const emit: Emit = (event) => {
    if (event.kind === 'request_began') state.openRequests++
    if (event.kind === 'request_ended') {
      state.openRequests--
      if (state.openRequests === 0) state.onIdle?.()
    }
    if (event.kind === 'store_changed') state.isStoreUp = event.isUp
    if (event.kind === 'answered') state.dayCost?.add(event.usage)
    metrics.record(event)
    logEvent(options.log, event, pageOf)
    webhook?.record(event)
    options.onEvent?.(event)
  }
  const { url, secret, on } = config.events.webhook
  const first = (subject: string) => state.isFirst(subject)
  const webhookOptions = { now: options.now ?? Date.now, newId, isFirst: first, emit, pageOf }
  const webhook = url && secret ? createWebhook({ url, secret, on }, webhookOptions) : undefined
  return { metrics, emit, webhook }
}

function upstreamsOf(config: Config): Services['upstreams'] {
  return new Map(
    Object.entries(config.upstreams).map(([name, settings]) => {
      const builtIn = Object.hasOwn(DEFAULT_UPSTREAMS, name) ? DEFAULT_UPSTREAMS[name] : undefined
      return [name, upstreamOf(name, settings, builtIn?.url)]
    }),
  )
}

function openStore(
  { store, sessions, redis }: Config,
  { memory = Number.POSITIVE_INFINITY }: GovernorOptions,
  now: () => number,
  emit: Emit,
): OpenStore {
  const { max: maxSessions, ttl } = sessions
  const maxBytes = Math.floor(Math.min(sessions.max_bytes, memory / 8))
  return createStore(
    { kind: store, limits: { maxSessions, ttl, maxBytes }, redis },
    {
      changed: (isUp, problem) => emit({ kind: 'store_changed', isUp, problem }),
      answered: (ms) => emit({ kind: 'store_answered', ms }),
      lost: () => emit({ kind: 'failed_open', reason: 'store' }),
    },
    now,
  )
}

function credentialPlacesOf(dialects: readonly Dialect[]): CredentialPlaces {
  return {
    headers: [...new Set(dialects.flatMap(({ api }) => api.credentialHeaders))],
    parameters: [...new Set(dialects.flatMap(({ api }) => api.credentialParameters))],
  }
}

function createServices(
  config: Config,
  options: GovernorOptions,
  state: State,
  emit: Emit,
  store: Store,
  now: () => number,
): Services {
  const { server, sessions, timeouts } = config
  const { dialects = DIALECTS, memory = Number.POSITIVE_INFINITY } = options
  const models = modelSettingsOf(config)
  const catalogue = createCatalogue(models, (error) =>
    emit({ kind: 'failed_open', reason: 'prices', fault: faultOf(error) }),
  )
  const storeFailed = () => emit({ kind: 'failed_open', reason: 'store' })
  return {
    upstreams: upstreamsOf(config),
    dialects,
    transport: createTransport({
      connect: timeouts.connect,
      firstByte: timeouts.first_byte,
      idle: timeouts.idle,
      proxies: options.proxies,
    }),
    store,
    policies: () => state.policies,
    catalogue,
    noteUnpricedModel: createUnpricedModels(emit),
    windows: createWindows(createSharedValues(store, KNOWN_WINDOW, storeFailed), {
      configured: ({ model, upstream }) => configuredWindow(models, model, upstream.name),
      catalogued: ({ model, upstream }) => catalogue.contextWindowOf(model, upstream),
      now,
    }),
    harnessRegistry: registryOf(config),
    keepsTranscripts: sessions.transcript,
    identity: {
      headers: ['x-governor-session', ...sessions.headers.map((name) => name.toLowerCase())],
      threadHeaders: sessions.thread_headers.map((name) => name.toLowerCase()),
      bodyFields: sessions.body_fields.map((path) => path.split('.')),
    },
    prefixes: createKnownPrefixes(),
    unsupportedEdits: createUnsupportedEdits(createSharedValues(store, EDIT_REFUSALS, storeFailed), now),
    stops: new Map(),
    quietRuns: createQuietRuns({ store, emit, now, after: options.after ?? afterDelay }),
    credentialPlaces: credentialPlacesOf(dialects),
    accessKeys: new Set(server.access_keys.map((key) => hashOf(key))),
    ownValues: createOwnValues([...server.access_keys, config.ops.admin_token ?? ''].filter(Boolean)),
    allowedOrigins: server.allowed_origins.map((origin) => origin.toLowerCase()),
    allowedHosts: server.allowed_hosts.map((host) => host.toLowerCase()),
    isOnLoopback: () => state.isOnLoopback,
    maxGuardedBody: server.max_guarded_body,
    buffers: createBufferBudget(Math.floor(Math.min(server.max_buffered ?? memory / 4, memory / 2))),
    emit,
    tracing: createTracing(VERSION, options.semanticConventions),
    isCut: () => state.isCut,
    draining: state.draining.signal,
    onSessionChanges: (listener) => subscribeToChanges(store, listener),
    now,
    newId,
  }
}

type Listener = (request: IncomingMessage, response: ServerResponse) => void

/** Returns the listener for all requests; those to Governor's own paths go to `opsListener`. */
function requestListener(
  clientIdle: number,
  services: Services,
  state: State,
  open: OpenResponses,
  opsListener: Listener,
): Listener {
  const watchUpload = createUploadWatch(clientIdle)
  return (request, response) => {
    noteResponse(open, request, response)
    const target = request.url ?? '/'
    const api = (): Api => routeOf(services, request.method ?? 'GET', target, request.rawHeaders).api
    watchUpload(request, response, () => api().errorBody('timeout', UPLOAD_STOPPED, 'request_timeout'))
    if (isOpsPath(target)) return opsListener(request, response)
    if (target === '*') return answerForServer(response)
    if (sendToPage(request, response)) return
    if (state.draining.signal.aborted) return refuseWhileDraining(response, api())
    exchange(services, request, response).catch(() => response.destroy())
  }
}

function createServer(config: Config, services: Services, state: State): http.Server {
  const { client_idle: clientIdle, connect: connectTimeout } = config.timeouts
  const server = http.createServer({
    maxHeaderSize: MAX_HEAD,
    // Longer than the usual minute of a load balancer, so that Governor never closes first.
    keepAliveTimeout: 75_000,
    // A whole request may take any time. Without `headersTimeout`, Node would not limit the headers either.
    requestTimeout: 0,
    headersTimeout: clientIdle,
    connectionsCheckingInterval: Math.ceil(Math.min(HEADERS_CHECK, clientIdle / 4) || HEADERS_CHECK),
    noDelay: true,
  })
  server.maxHeadersCount = 0
  handleUpgrades(server, {
    upstreams: services.upstreams,
    dialects: services.dialects,
    websocket: config.server.websocket,
    connectTimeout,
    access: services,
    isOwnPath: isOpsPath,
    isDraining: () => state.draining.signal.aborted,
    emit: services.emit,
  })
  return server
}

/** Files and connections that clients leave to everything else: upstreams, Redis, the log. Or a share of all, if that is more. */
const LEAST_LEFT = 64
const SHARE_LEFT = 1 / 4
/** Milliseconds between two log lines about refused connections. */
const SILENCE = 60_000

/** Closes connections that are too many for the limit on open files, before nothing works any more. */
function limitConnections(server: http.Server, maxOpenFiles: number, emit: Emit): void {
  if (!Number.isFinite(maxOpenFiles)) return
  const open = Math.max(1, Math.floor(maxOpenFiles - Math.max(LEAST_LEFT, maxOpenFiles * SHARE_LEFT)))
  server.maxConnections = open
  let saidAt = Number.NEGATIVE_INFINITY
  server.on('drop', () => {
    const isNews = performance.now() - saidAt >= SILENCE
    if (isNews) saidAt = performance.now()
    emit({ kind: 'connection_refused', open, isNews })
  })
}

/** Returns a function that destroys all open connections of `server` and waits until they are closed. */
function trackConnections(server: http.Server): () => Promise<void> {
  const sockets = new Set<Socket>()
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  return async () => {
    const closed = [...sockets].map((socket) => new Promise((resolve) => socket.once('close', resolve)))
    for (const socket of sockets) socket.destroy()
    await Promise.all(closed)
  }
}

/** Returns a function that renders the metrics with the number of sessions in the store. */
function metricsRenderer({ store }: Services, metrics: Metrics, state: State): Metrics['render'] {
  return async () => {
    // If the store can't be reached, the number stays as it was.
    state.sessions = await store.count().catch(() => state.sessions)
    return metrics.render()
  }
}

/** Returns the parts that the API of sessions needs. */
function sessionSources(config: Config, services: Services, dayCost: DayCost): SessionSources {
  const { store, now, newId, emit, windows, upstreams, policies } = services
  return {
    version: VERSION,
    store,
    access: accessOf(config),
    now,
    newId,
    emit,
    keepsTranscripts: config.sessions.transcript,
    dayCost,
    contextOf:
      ({ contexts }) =>
      (name, model) => {
        const upstream = upstreams.get(name)
        if (!upstream) return undefined
        const of = { upstream, model }
        return { base: windows.base(of), effective: windows.effective(of, contexts?.reductions ?? []) }
      },
    isLoopGuardOff() {
      const { settings, rules } = policies().loop
      return !settings.enabled && rules.every((rule) => !rule.settings.enabled)
    },
  }
}

function accessOf({ ops }: Config): AdminSettings {
  return {
    token: ops.admin_token,
    trustsLoopback: ops.trust_loopback,
    namesNeedToken: ops.names === 'token',
  }
}

/** Ends the connection after the answer if a body was not read: the rest of it may never come. */
function closeIfUnread(request: IncomingMessage, answer: FastifyReply): void {
  if (hasBody(request.rawHeaders) && !request.complete) answer.header('connection', 'close')
}

/** Answers a request to one of Governor's own paths that has a wrong percent-encoding. No hooks run for it. */
function refuseUnroutable(
  access: AdminSettings,
  error: Error,
  { raw }: FastifyRequest,
  answer: FastifyReply,
): FastifyReply {
  closeIfUnread(raw, answer)
  return adminAccess(raw, access) ? replyToProblem(error, answer) : unauthorized(answer, access)
}

/** Registers all of Governor's own routes; returns their names, which are complete once the app is ready. */
function serveOwnRoutes(
  app: FastifyInstance,
  config: Config,
  services: Services,
  state: State,
  sources: Pick<OpsSources, 'store' | 'metrics'>,
): ReadonlySet<string> {
  const access = accessOf(config)
  const routes = new Set<string>()
  app.addHook('onRoute', ({ method, url }) => {
    for (const one of [method].flat()) routes.add(`${one} ${url}`)
  })
  // Before the body is read, which no route needs.
  app.addHook('onRequest', async (request, answer) => {
    if (request.is404) return replyToProblem(notFound(), answer)
  })
  app.addHook('onSend', async ({ raw }, answer) => closeIfUnread(raw, answer))
  app.register(ops, {
    ...sources,
    version: VERSION,
    access,
    isMetricsPublic: config.ops.metrics_public,
    isReady: () => !state.draining.signal.aborted,
  })
  state.dayCost = createDayCost(services.store, services.now)
  app.register(sessionRoutes, sessionSources(config, services, state.dayCost))
  app.register(livePage, { mayRead: ({ raw }) => adminAccess(raw, access) !== undefined })
  return routes
}

/** Loads the prices if there is a limit on cost, which can't wait until the first response asks for its price. */
async function loadPrices({ policies, catalogue }: Services): Promise<void> {
  if (limitsCost(policies().budget)) await catalogue.load()
}

/** Waits at most `timeout` milliseconds for the requests under way; returns true if all have ended. */
async function waitUntilIdle(state: State, timeout: number): Promise<boolean> {
  if (state.openRequests === 0) return true
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, timeout, false)
    state.onIdle = () => {
      clearTimeout(timer)
      resolve(true)
    }
  })
}

/** Notes whether only this machine reaches Governor; returns the address that it listens on, as a URL. */
function noteAddress(state: State, { address, family, port }: AddressInfo): string {
  state.isOnLoopback = isLoopback(address)
  return `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`
}

/** Builds a Governor with the given configuration; it does not listen yet. */
export function buildGovernor(config: Config, options: GovernorOptions): Governor {
  const state = initialState(config)
  const { metrics, emit, webhook } = createTelemetry(config, options, state)
  const now = options.now ?? createSteadyClock()
  const opened = openStore(config, options, now, emit)
  const lost = () => emit({ kind: 'failed_open', reason: 'store' })
  const watched = watchStore(options.store ?? opened.store, lost)
  state.isFirst = (occasion) => isFirst(watched.store, occasion)
  const services = createServices(config, options, state, emit, watched.store, now)
  const open: OpenResponses = new WeakMap()
  const server = createServer(config, services, state)
  limitConnections(server, options.maxOpenFiles ?? Number.POSITIVE_INFINITY, emit)
  const destroyConnections = trackConnections(server)
  const app = fastify({
    serverFactory: (opsListener) =>
      server.on('request', requestListener(config.timeouts.client_idle, services, state, open, opsListener)),
    clientErrorHandler: (error, socket) => refuseUnreadable(open, error, socket),
    frameworkErrors: (error, request, answer) => refuseUnroutable(accessOf(config), error, request, answer),
    exposeHeadRoutes: true,
    schemaController: NO_COMPILERS,
    // A path may hold the name that a client gave its session.
    routerOptions: { maxParamLength: MAX_HEAD },
  })
  const routes = serveOwnRoutes(app, config, services, state, {
    store: opened.status,
    metrics: metricsRenderer(services, metrics, state),
  })
  const close = async (): Promise<void> => {
    state.draining.abort()
    state.isCut = true
    // Ends each request before the upstream connections end, so that the end does not look like a fault of the upstream.
    watched.close()
    services.quietRuns.close()
    await destroyConnections()
    await services.catalogue.settled()
    await app.close()
    webhook?.close()
    await services.transport.destroy()
    opened.close()
  }
  return {
    routes,
    async listen() {
      await Promise.all([app.ready(), loadPrices(services), opened.open()])
      const { host, port } = config.server
      await app.listen({ host, port })
      const address = noteAddress(state, server.address() as AddressInfo)
      const reached = address.replace(/\/\/(?:0\.0\.0\.0|\[::\])/, '//localhost')
      state.page = `${(config.ops.url ?? reached).replace(/(?<!\/)\/+$/, '')}/governor/`
      return address
    },
    reload(next) {
      state.policies = policiesOf(next)
      loadPrices(services).catch(() => undefined)
    },
    async drain() {
      state.draining.abort()
      server.closeIdleConnections()
      const isComplete = await waitUntilIdle(state, config.server.drain_timeout)
      await close()
      return isComplete
    },
    close,
  }
}
