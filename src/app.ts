/** Wiring and nothing else: which store, which upstreams, which plugins. */
import { randomBytes } from 'node:crypto'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo, Socket } from 'node:net'
import type { Duplex } from 'node:stream'
import fastify, { type FastifyServerOptions } from 'fastify'
import type { Logger } from 'pino'
import { budgetOf, loopGuardOf, modelSettingsOf, overflowPolicyOf, registryOf } from './config/policies.ts'
import type { Config } from './config/schema.ts'
import { DEFAULT_UPSTREAMS } from './config/upstreams.ts'
import { limitsCost } from './core/budget/policy.ts'
import { hashOf } from './core/hash.ts'
import type { Api, Dialect } from './dialect/dialect.ts'
import { DIALECTS } from './dialect/index.ts'
import { type Clock, createBufferBudget } from './http/buffer-budget.ts'
import { watchUpload } from './http/client-idle.ts'
import { isLoopback } from './http/loopback.ts'
import { reply } from './http/response.ts'
import { createTransport, type Proxies } from './http/transport.ts'
import { ops } from './ops/ops.ts'
import { createWindows, KNOWN_WINDOW } from './overflow/windows.ts'
import { exchange } from './proxy/exchange.ts'
import { pathOf, routeOf, upstreamOf } from './proxy/route.ts'
import type { Policies, Services } from './proxy/services.ts'
import { handleUpgrades } from './proxy/tunnel.ts'
import { createUnpricedModels } from './proxy/unpriced-models.ts'
import { createUnsupportedEdits, UNSUPPORTED_EDITS } from './proxy/unsupported-edits.ts'
import { createMemoryStore } from './store/memory.ts'
import { createSharedValues } from './store/shared-values.ts'
import type { Store } from './store/store.ts'
import type { Emit } from './telemetry/event.ts'
import { logEvent } from './telemetry/log.ts'
import { createMetrics } from './telemetry/metrics.ts'
import { createWebhook } from './telemetry/webhook.ts'
import { configuredWindow, createCatalogue } from './usage/catalogue.ts'
import { VERSION } from './version.ts'

export interface Governor {
  /** Starts to listen; returns the address, `http://host:port`. */
  listen(): Promise<string>
  /** Puts other policies (budget, stop) in force from the next request on. */
  reload(config: Config): void
  /** Stops taking requests and waits for those under way, at most `server.drain_timeout`; true when all were finished. */
  drain(): Promise<boolean>
  /** Stops at once. */
  close(): Promise<void>
}

export interface GovernorOptions {
  readonly log: Logger
  /** Where sessions are remembered, instead of this process's memory. */
  readonly store?: Store
  /** Milliseconds since the epoch. */
  readonly now?: () => number
  /** Bytes of memory that the process may use, where that is known. */
  readonly memory?: number
  /** Times the waits for room, instead of the system's clock. */
  readonly clock?: Clock
  /** Those that upstreams are to be reached through. */
  readonly proxies?: Proxies | undefined
  /** Those that are guarded, instead of all that Governor knows. */
  readonly dialects?: readonly Dialect[]
  /** Sees every event besides log and metrics. */
  readonly onEvent?: Emit
}

function policiesOf(config: Config): Policies {
  return {
    loop: loopGuardOf(config),
    budget: budgetOf(config),
    overflow: overflowPolicyOf(config),
    storm: config.storm,
  }
}

/** How often it is looked for clients that do not send their headers, at least, in milliseconds: as often as Node does. */
const HEADERS_CHECK = 30_000

/** Paths that are Governor's own; everything else belongs to the upstreams. */
function isOwnPath(target: string): boolean {
  return /^\/(?:health|ready|metrics|governor)(?:[/?]|$)/.test(pathOf(target))
}

/** A response to `OPTIONS *`, which asks about the server and not about anything behind it (RFC 9110, section 9.3.7). */
function answerForServer(response: ServerResponse): void {
  response.writeHead(204, { allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' })
  response.end()
}

/** The responses of each connection that have not ended: several where a client sends requests without waiting. */
type OpenResponses = WeakMap<Duplex, Set<ServerResponse>>

function noteResponse(open: OpenResponses, { socket }: IncomingMessage, response: ServerResponse): void {
  const responses = open.get(socket) ?? new Set()
  open.set(socket, responses.add(response))
  response.once('close', () => responses.delete(response))
}

/** Has a response begun on a connection? */
function isAnswering(open: OpenResponses, socket: Duplex): boolean {
  return [...(open.get(socket) ?? [])].some(({ headersSent }) => headersSent)
}

const UPLOAD_STOPPED = 'The rest of the request did not come. See timeouts.client_idle.'

function refuseWhileDraining(response: ServerResponse, { errorBody }: Api): void {
  response.setHeader('connection', 'close')
  response.setHeader('retry-after', '1')
  const body = errorBody('overloaded', 'Governor is shutting down: try again.', 'shutting_down')
  reply(response, 503, 'application/json', body)
}

function unneeded(): never {
  throw new Error("a route has a schema: give Fastify's own compilers back")
}

/** No route of Governor's own has a schema: the compilers, half of what Fastify loads, stay where they are. */
const NO_COMPILERS: NonNullable<FastifyServerOptions['schemaController']> = {
  compilersFactory: { buildValidator: unneeded, buildSerializer: unneeded },
}

export function buildGovernor(config: Config, options: GovernorOptions): Governor {
  const { log } = options
  const store =
    options.store ??
    createMemoryStore({
      maxSessions: config.sessions.max,
      ttl: config.sessions.ttl,
      maxBytes: config.sessions.max_bytes,
    })
  let open = 0
  let allDone: (() => void) | undefined
  let sessions = 0
  const metrics = createMetrics({ sessions: () => sessions, open: () => open })
  const emit: Emit = (event) => {
    if (event.kind === 'request_began') open++
    if (event.kind === 'request_ended') {
      open--
      if (open === 0) allDone?.()
    }
    metrics.record(event)
    logEvent(log, event)
    webhook?.record(event)
    options.onEvent?.(event)
  }
  const newId = () => randomBytes(12).toString('hex')
  const now = options.now ?? Date.now
  const { url, secret, on } = config.events.webhook
  const webhook = url && secret ? createWebhook({ url, secret, on }, { now, newId, emit }) : undefined
  const storeFailed = () => emit({ kind: 'failed_open', reason: 'store' })
  const transport = createTransport({
    connect: config.timeouts.connect,
    firstByte: config.timeouts.first_byte,
    idle: config.timeouts.idle,
    proxies: options.proxies,
  })
  const upstreams = new Map(
    Object.entries(config.upstreams).map(([name, settings]) => {
      const builtIn = Object.hasOwn(DEFAULT_UPSTREAMS, name) ? DEFAULT_UPSTREAMS[name] : undefined
      return [name, upstreamOf(name, settings, builtIn?.url)]
    }),
  )
  let policies = policiesOf(config)
  const harnessRegistry = registryOf(config)
  const models = modelSettingsOf(config)
  const catalogue = createCatalogue(models)
  let isOnLoopback = true
  let isCut = false
  const dialects = options.dialects ?? DIALECTS
  const context: Services = {
    upstreams,
    dialects,
    transport,
    store,
    policies: () => policies,
    catalogue,
    noteUnpricedModel: createUnpricedModels(emit),
    windows: createWindows(createSharedValues(store, KNOWN_WINDOW, storeFailed), {
      configured: ({ model, upstream }) => configuredWindow(models, model, upstream.name),
      catalogued: ({ model, upstream }) => catalogue.contextWindowOf(model, upstream),
      now: options.now ?? Date.now,
    }),
    harnessRegistry,
    identity: {
      headers: ['x-governor-session', ...config.sessions.headers.map((name) => name.toLowerCase())],
      threadHeaders: config.sessions.thread_headers.map((name) => name.toLowerCase()),
      bodyFields: config.sessions.body_fields.map((path) => path.split('.')),
    },
    unsupportedEdits: createUnsupportedEdits(createSharedValues(store, UNSUPPORTED_EDITS, storeFailed)),
    credentialHeaders: [...new Set(dialects.flatMap(({ api }) => api.credentialHeaders))],
    accessKeys: new Set(config.server.access_keys.map((key) => hashOf(key))),
    allowedOrigins: config.server.allowed_origins.map((origin) => origin.toLowerCase()),
    allowedHosts: config.server.allowed_hosts.map((host) => host.toLowerCase()),
    isOnLoopback: () => isOnLoopback,
    maxGuardedBody: config.server.max_guarded_body,
    buffers: createBufferBudget(
      Math.min(config.server.max_buffered, Math.floor((options.memory ?? Number.POSITIVE_INFINITY) / 2)),
      options.clock,
    ),
    emit,
    isCut: () => isCut,
    now: options.now ?? Date.now,
    newId,
  }

  let isDraining = false
  const openResponses: OpenResponses = new WeakMap()
  const take =
    (own: (request: IncomingMessage, response: ServerResponse) => void) =>
    (request: IncomingMessage, response: ServerResponse): void => {
      noteResponse(openResponses, request, response)
      const target = request.url ?? '/'
      if (isOwnPath(target)) return own(request, response)
      if (target === '*') return answerForServer(response)
      const api = (): Api => routeOf(context, request.method ?? 'GET', target, request.rawHeaders).api
      if (isDraining) return refuseWhileDraining(response, api())
      watchUpload(request, response, config.timeouts.client_idle, () =>
        api().errorBody('timeout', UPLOAD_STOPPED, 'request_timeout'),
      )
      exchange(context, request, response).catch(() => response.destroy())
    }

  const server = http.createServer({
    // Larger than Node's, as agents put whole JSON documents into headers.
    maxHeaderSize: 65_536,
    // Longer than a load balancer's usual minute, so that it is never Governor that closes first.
    keepAliveTimeout: 75_000,
    // How long a whole request may take is nobody's business; Node would take the time for its headers to be unlimited as well.
    requestTimeout: 0,
    headersTimeout: config.timeouts.client_idle,
    connectionsCheckingInterval: Math.ceil(
      Math.min(HEADERS_CHECK, config.timeouts.client_idle / 4) || HEADERS_CHECK,
    ),
    noDelay: true,
  })
  server.maxHeadersCount = 0
  // Comes before Fastify's, which answers whatever was sent: into the middle of a response that is on its way, too.
  server.on('clientError', (_, socket) => {
    if (isAnswering(openResponses, socket)) socket.destroy()
  })
  handleUpgrades(server, {
    upstreams,
    dialects,
    websocket: config.server.websocket,
    connectTimeout: config.timeouts.connect,
    access: context,
    isDraining: () => isDraining,
    emit,
  })
  const sockets = new Set<Socket>()
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  const app = fastify({
    serverFactory: (own) => server.on('request', take(own)),
    exposeHeadRoutes: true,
    schemaController: NO_COMPILERS,
  })
  const renderMetrics = async () => {
    // A store that can't be reached leaves the number as it was.
    const health = await store.health().catch(() => undefined)
    sessions = health?.sessions ?? sessions
    return metrics.render()
  }
  app.register(ops, { version: VERSION, isReady: () => !isDraining, metrics: renderMetrics })

  /** A limit on cost can't wait until the first answer asks for its price. */
  const knowPrices = async (): Promise<void> => {
    if (limitsCost(policies.budget)) await catalogue.load()
  }

  const close = async (): Promise<void> => {
    isDraining = true
    isCut = true
    const closed = [...sockets].map((socket) => new Promise((resolve) => socket.once('close', resolve)))
    for (const socket of sockets) socket.destroy()
    // Each request has been told to end by then; the end of the upstream connections would look like the upstream's fault.
    await Promise.all(closed)
    await app.close()
    webhook?.close()
    await transport.destroy()
  }

  return {
    async listen() {
      await Promise.all([app.ready(), knowPrices()])
      const { host, port } = config.server
      await app.listen({ host, port })
      const address = server.address() as AddressInfo
      isOnLoopback = isLoopback(address.address)
      const name = address.family === 'IPv6' ? `[${address.address}]` : address.address
      return `http://${name}:${address.port}`
    },
    reload(next) {
      policies = policiesOf(next)
      knowPrices().catch(() => undefined)
    },
    async drain() {
      isDraining = true
      server.closeIdleConnections()
      let isComplete = true
      if (open > 0) {
        await new Promise<void>((resolve) => {
          const cut = setTimeout(() => {
            isComplete = false
            resolve()
          }, config.server.drain_timeout)
          allDone = () => {
            clearTimeout(cut)
            resolve()
          }
        })
      }
      await close()
      return isComplete
    },
    close,
  }
}
