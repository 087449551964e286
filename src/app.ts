/** Builds a Governor from its parts. */

import { setMaxListeners } from 'node:events'
import type http from 'node:http'
import type { AddressInfo } from 'node:net'
import { basename, dirname, join } from 'node:path'
import { setTimeout as pause } from 'node:timers/promises'
import fastify, { type FastifyInstance, type FastifyReply } from 'fastify'
import type { Logger } from 'pino'
import { policiesOf } from './config/policies.ts'
import type { Config } from './config/schema.ts'
import { RESERVED_NAMES } from './config/upstreams.ts'
import type { ScopeLimits } from './core/budget/ledger.ts'
import { limitsCost, limitsTime } from './core/budget/policy.ts'
import { countsOf } from './core/counters.ts'
import { pausedPart } from './core/operator/pause.ts'
import { ignore } from './core/thrown.ts'
import {
  accessOf,
  afterDelay,
  createServices,
  createSteadyClock,
  newId,
  type ServiceOptions,
} from './create-services.ts'
import { livePage } from './dashboard/page.ts'
import { DEFAULT_API } from './dialect/index.ts'
import { hasBody } from './http/body.ts'
import { breakOff, clientOf, reply } from './http/client.ts'
import { createLazyTransport } from './http/lazy-transport.ts'
import { createClientServer, MAX_HEAD } from './http/server.ts'
import type { Proxies } from './http/transport.ts'
import { firstSegmentsOf, isLoopback, remembered, withoutTrailingSlashes } from './http/urls.ts'
import { adminAccess, unauthorized } from './ops/admin-access.ts'
import { ops } from './ops/ops.ts'
import { problem, replyToProblem } from './ops/problem.ts'
import { sessionRoutes } from './ops/sessions/routes.ts'
import { routeOf } from './proxy/door/route.ts'
import { handleUpgrades, isUpgrade } from './proxy/door/tunnel.ts'
import { exchange } from './proxy/exchange.ts'
import type { Services } from './proxy/services.ts'
import { createStore } from './store/create.ts'
import { createLossWatch } from './store/losses.ts'
import { createPauses } from './store/pauses.ts'
import { isFirst } from './store/shared-values.ts'
import { keyOf, type Store } from './store/store.ts'
import { type Emit, logEvent } from './telemetry/event.ts'
import { createJournal, journalFile } from './telemetry/journal.ts'
import { createMetrics } from './telemetry/metrics.ts'
import { createWebhook, type WebhookOptions } from './telemetry/webhook.ts'
import { createDayCost, type DayCost } from './usage/day-cost.ts'
import { createUsageState } from './usage/usage-state.ts'
import { VERSION } from './version.ts'
import { createSocketGuard } from './websocket/upgrade.ts'

export interface GovernorOptions
  extends Pick<ServiceOptions, 'dialects' | 'memory' | 'after' | 'delay' | 'semanticConventions'> {
  readonly log: Logger
  /** Remembers sessions; the default is a store in memory. */
  readonly store?: Store
  /** Returns milliseconds since the epoch; the default does not jump where the system's clock is set. */
  readonly now?: () => number
  /** How many files and connections the process may have open; unset if that is not known. */
  readonly maxOpenFiles?: number | undefined
  readonly proxies?: Proxies | undefined
  /**
   * Where pauses and sums of limits are kept if the store is in memory and there is no journal; unset: a restart
   * forgets them.
   */
  readonly stateFolder?: string | undefined
  readonly onEvent?: Emit
  /** Returns the text of `/metrics` where several processes are one Governor; the default is that of this one. */
  readonly renderMetrics?: (() => Promise<string>) | undefined
}

/** True for Governor's own paths, also in spellings that some server takes for them. */
const isOpsPath = remembered((target) => firstSegmentsOf(target).some((first) => RESERVED_NAMES.includes(first)))

function unneeded(): never {
  throw new Error("a route has a schema: remove `schemaController`, so that Fastify's own compilers are used")
}

/** Returns what changes while Governor runs. */
function createState() {
  const later: { onIdle?: (() => void) | undefined; dayCost?: DayCost } = {}
  const draining = new AbortController()
  // Each request that waits for an operator listens to it.
  setMaxListeners(0, draining.signal)
  return {
    ...later,
    openRequests: 0,
    /** Sessions in the store when the metrics were last rendered. */
    sessions: 0,
    isStoreUp: false,
    pauses: 0,
    /** Aborted once no more requests are accepted. */
    draining,
    /** Address of the live page, with a slash at its end. */
    page: '',
  }
}

type State = ReturnType<typeof createState>

function createTelemetry(config: Config, options: GovernorOptions, state: State, isFirst: WebhookOptions['isFirst']) {
  const { log, onEvent, now = Date.now, after = afterDelay } = options
  const metrics = createMetrics(state)
  const pageOf = (id: string) => `${state.page}#${id}`
  const emit: Emit = (event) => {
    if (event.kind === 'request_began') state.openRequests++
    if (event.kind === 'request_ended') {
      state.openRequests--
      if (state.openRequests === 0) state.onIdle?.()
    }
    if (event.kind === 'store_changed') state.isStoreUp = event.isUp
    if (event.kind === 'pauses_changed') state.pauses = event.pauses
    if (event.kind === 'answered') state.dayCost?.add(countsOf(event.usage))
    metrics.record(event)
    logEvent(log, event, pageOf)
    webhook?.record(event)
    journal?.record(event)
    onEvent?.(event)
  }
  const { url, ...settings } = config.events.webhook
  const webhook = url ? createWebhook({ url, ...settings }, { now, newId, isFirst, emit, pageOf }) : undefined
  const path = config.usage.journal
  const journal = path === '' ? undefined : createJournal({ path, now, after, emit })
  const storeFailed = () => emit({ kind: 'failed_open', reason: 'store' })
  return { metrics, emit, storeFailed, webhook, journal }
}

/** Returns the listener for all requests; those to Governor's own paths go to `serveOps`. */
function requestListener(services: Services, serveOps: http.RequestListener): http.RequestListener {
  return (request, response) => {
    const { method = 'GET', url: target = '/' } = request
    if (isOpsPath(target)) {
      serveOps(request, response)
    } else if (target === '*') {
      // `OPTIONS *` asks about the server and not about an upstream (RFC 9110, section 9.3.7).
      if (hasBody(request.rawHeaders)) response.setHeader('connection', 'close')
      response.writeHead(204, { allow: 'GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS' }).end()
    } else if (target === '/' && /^(?:GET|HEAD)$/.test(method) && request.headers.accept?.includes('text/html')) {
      // A person opens the bare address in a browser; programs do not accept HTML.
      response.writeHead(302, { location: '/governor/', 'cache-control': 'no-store' }).end()
    } else if (services.draining.aborted) {
      response.setHeader('connection', 'close')
      const message = 'Governor is shutting down: try again.'
      const client = clientOf(request, response)
      const { api } = routeOf(services, client.head)
      const body = api.errorBody('overloaded', message, 'shutting_down', 503)
      reply(client, 503, 'application/json', body, {}, ['retry-after', '1'])
    } else {
      exchange(services, clientOf(request, response)).catch(() => breakOff(response))
    }
  }
}

/** Ends the connection after the answer if a body was not read: the rest of it may never come. */
function closeIfUnread(request: http.IncomingMessage, answer: FastifyReply): void {
  if (hasBody(request.rawHeaders) && !request.complete) answer.header('connection', 'close')
}

/** Keeps the sums of scopes of time in a file. */
function createStateFile(folder: string, { ledger, emit }: Services) {
  const file = createUsageState({
    path: join(folder, 'usage.state'),
    ledger,
    failed: (problem) => emit({ kind: 'sums_not_kept', problem }),
    setAside: (name) => emit({ kind: 'sums_set_aside', file: basename(name) }),
  })
  ledger.keepWith(file.look, file.changed)
  return file
}

function createParts(config: Config, options: GovernorOptions) {
  const { now = createSteadyClock(), memory = Number.POSITIVE_INFINITY } = options
  const { sessions, redis } = config
  const state = createState()
  const telemetry = createTelemetry(config, options, state, (occasion) => isFirst(store, occasion))
  const { emit, storeFailed } = telemetry
  const maxBytes = Math.floor(Math.min(sessions.max_bytes, memory / 8))
  // What this process has written, and the store may have lost.
  const restore = () => Promise.all([services.ledger.restore(), pauses.restore(), state.dayCost?.restore()])
  const opened = createStore(
    { kind: config.store, limits: { max: sessions.max, ttl: sessions.ttl, maxBytes }, redis },
    {
      changed(isUp, problem) {
        emit({ kind: 'store_changed', isUp, problem })
        if (isUp) void restore()
      },
      answered: (ms) => emit({ kind: 'store_answered', ms }),
      lost: storeFailed,
    },
    now,
  )
  state.isStoreUp = opened.status().status === 'ok'
  const store = options.store ?? opened.store
  const { connect, first_byte: firstByte, idle } = config.timeouts
  const transport = createLazyTransport({ connect, firstByte, idle, proxies: options.proxies })
  const draining = state.draining.signal
  const { journal } = config.usage
  const folder = journal === '' ? options.stateFolder : dirname(journalFile(journal))
  const pauses = createPauses({
    store,
    kept: config.store === 'redis' ? 'store' : folder === undefined ? undefined : { file: join(folder, 'pauses.json') },
    changed: ({ length }) => emit({ kind: 'pauses_changed', pauses: length }),
    failed: (problem) => emit({ kind: 'pauses_failed', problem }),
  })
  const shared = { store, transport, emit, draining, now, calendarNow: options.now ?? Date.now, pauses }
  const services = createServices(config, { ...options, ...shared })
  // Where replicas share a store, that keeps the sums.
  const isOwn = config.store === 'memory' && !options.store
  const stateFile = isOwn && folder !== undefined ? createStateFile(folder, services) : undefined
  const losses = config.store === 'redis' ? createLossWatch(store, services.newId, restore) : undefined
  const { renderMetrics } = options
  return { config, state, telemetry, opened, services, transport, pauses, losses, stateFile, renderMetrics }
}

type Parts = ReturnType<typeof createParts>

/** If the store can't be reached, the number stays as it was. */
async function countSessions({ state, services: { store } }: Parts): Promise<void> {
  state.sessions = await store.count().catch(() => state.sessions)
}

/** Registers all of Governor's own routes; returns their names, which are complete once the app is ready. */
function serveOwnRoutes(app: FastifyInstance, parts: Parts): ReadonlySet<string> {
  const { config, state, services, telemetry, opened, pauses } = parts
  const access = config.ops
  const { store, windows, upstreams } = services
  const routes = new Set<string>()
  app.addHook('onRoute', ({ method, url }) => {
    for (const one of [method].flat()) routes.add(`${one} ${url}`)
  })
  // Before the body is read, which no route needs.
  app.addHook('onRequest', async (request, answer) => {
    if (request.is404) return replyToProblem(problem('not_found'), answer)
  })
  app.addHook('onSend', async ({ raw }, answer) => closeIfUnread(raw, answer))
  app.register(ops, {
    version: VERSION,
    access,
    store: opened.status,
    isReady: () => !services.draining.aborted,
    paused: () => pausedPart(pauses.current, services.now()),
    async metrics() {
      await countSessions(parts)
      return telemetry.metrics.render(parts.renderMetrics?.())
    },
  })
  state.dayCost = createDayCost(store, services.ledger.time, services.newId())
  app.register(sessionRoutes, {
    ...services,
    version: VERSION,
    access,
    policies: () => services.policies,
    dayCost: state.dayCost,
    usage: telemetry.journal && { path: config.usage.journal, ...telemetry.journal },
    pauses,
    keyNames: () => new Set([...services.accessKeys.values()].map(({ name = '' }) => name)),
    keyScopes: () => keyScopesOf(services),
    contextOf({ reductions = [] }, name, model) {
      const upstream = upstreams.get(name)
      if (!upstream) return undefined
      const of = { upstream, model }
      return { base: windows.base(of), effective: windows.effective(of, reductions) }
    },
    mode: () => (services.policies.observesOnly ? 'observe' : 'enforce'),
    isLoopGuardOff() {
      const { settings, rules } = services.policies.loop
      return !settings.enabled && rules.every((rule) => !rule.settings.enabled)
    },
  })
  app.register(livePage, { mayRead: ({ raw }) => adminAccess(raw, access) !== undefined })
  return routes
}

/** Creates the server for clients and Governor's own routes, which do not listen yet. */
function createFront(parts: Parts, maxOpenFiles = Number.POSITIVE_INFINITY) {
  const { config, services } = parts
  const { client_idle: clientIdle, connect: connectTimeout } = config.timeouts
  const isTaken = (request: http.IncomingMessage) => isUpgrade(request, isOpsPath)
  const clients = createClientServer({
    clientIdle,
    shouldUpgradeCallback: isTaken,
    maxOpenFiles,
    emit: services.emit,
    errorBody(kind, message, code, status, request) {
      const { method = 'GET', url: target = '/', rawHeaders: headers } = request ?? {}
      const api = headers ? routeOf(services, { method, target, headers }).api : DEFAULT_API
      return api.errorBody(kind, message, code, status)
    },
  })
  const { first_byte: firstByte, idle } = config.timeouts
  const guard = createSocketGuard(services, {
    connect: connectTimeout,
    carry: { silence: clientIdle, firstByte, idle },
  })
  const { websocket } = config.server
  handleUpgrades(clients.server, services, { websocket, guard, connectTimeout, isTaken })
  const app = fastify({
    serverFactory: (serveOps) => clients.server.on('request', requestListener(services, serveOps)),
    clientErrorHandler: clients.refuseUnreadable,
    // No hooks run for a path of Governor's own with a wrong percent-encoding.
    frameworkErrors(error, { raw }, answer: FastifyReply) {
      closeIfUnread(raw, answer)
      return adminAccess(raw, config.ops) ? replyToProblem(error, answer) : unauthorized(answer, config.ops)
    },
    exposeHeadRoutes: true,
    // No ops route has a schema. Without the compilers, Fastify loads half as much code.
    schemaController: { compilersFactory: { buildValidator: unneeded, buildSerializer: unneeded } },
    // A path may hold the name that a client gave its session.
    routerOptions: { maxParamLength: MAX_HEAD },
  })
  return { app, clients, routes: serveOwnRoutes(app, parts) }
}

/** Milliseconds after the start: a program that waits for it asks for `/health` first. */
const LOAD_MS = 100

export type Governor = ReturnType<typeof buildGovernor>

function keyScopesOf({ accessKeys }: Services): readonly ScopeLimits[] {
  return [...accessKeys.values()].flatMap(({ scopes }) => scopes)
}

/** Reads what the limits in force need. Resolves with what is wrong with the prices, if anything is. */
async function openLimits({ services, stateFile }: Parts) {
  const { budget } = services.policies
  const own = keyScopesOf(services)
  const sums = limitsTime(budget, own) ? stateFile?.open() : undefined
  const [problem] = await Promise.all([limitsCost(budget, own) ? services.catalogue.load() : undefined, sums])
  return problem
}

/** Cuts off the requests under way, and closes everything in the order in which one needs the other. */
async function closeAll(parts: Parts, { app, clients }: ReturnType<typeof createFront>): Promise<void> {
  const { state, services, telemetry, opened, pauses, losses, stateFile } = parts
  state.draining.abort()
  services.isCut = true
  // Each request ends before the upstream connections do, so that this does not look like a fault of the upstream.
  services.quietRuns.close()
  await clients.destroyConnections()
  await services.catalogue.loading
  await app.close()
  services.ledger.close()
  await stateFile?.close()
  telemetry.webhook?.close()
  await telemetry.journal?.close()
  await services.transport.destroy()
  pauses.close()
  await losses?.close()
  await state.dayCost?.close()
  await opened.close()
}

/** Returns what a session is about, by its id in the API. Never rejects. */
async function labelIn(store: Store, id: string): Promise<string | undefined> {
  const key = keyOf(id)
  const session = key && (await store.get(key).catch(ignore))
  return session?.record?.label || undefined
}

/** Builds a Governor with the given configuration; it does not listen yet. */
export function buildGovernor(config: Config, options: GovernorOptions) {
  const parts = createParts(config, options)
  const { state, services, telemetry, opened, pauses, losses, transport } = parts
  const front = createFront(parts, options.maxOpenFiles)
  const { app, clients, routes } = front
  const close = () => closeAll(parts, front)
  return {
    /** Governor's own routes, as `METHOD /path`; all other paths belong to the upstreams. Complete once it listens. */
    routes,
    /** The address of the live page; empty before it listens. */
    get page() {
      return state.page
    },
    /** Starts to listen and returns the address, `http://host:port`. Rejects if it can't listen. */
    async listen(): Promise<string> {
      // A limit on cost can't wait until the first response asks for its price.
      const [problem] = await Promise.all([openLimits(parts), app.ready(), opened.open()])
      if (problem) throw problem
      await Promise.all([pauses.open(), losses?.open()])
      await app.listen({ host: config.server.host, port: config.server.port })
      const { address, family, port } = clients.server.address() as AddressInfo
      services.isOnLoopback = isLoopback(address)
      const url = `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`
      const page = config.ops.url ?? url.replace(/\/\/(?:0\.0\.0\.0|\[::\])/, '//localhost')
      state.page = `${withoutTrailingSlashes(page)}/governor/`
      return url
    },
    /** Loads what the first request would wait for. Never rejects. */
    async loadLater(): Promise<void> {
      await pause(LOAD_MS, undefined, { ref: false })
      await transport.load().catch(ignore)
    },
    /** Applies access keys and policies (budget, loop guard, overflow, storm) from the next request on. */
    reload(next: Config): void {
      Object.assign(services, accessOf(next.server.access_keys, config.ops.admin_token))
      services.policies = policiesOf(next)
      void openLimits(parts)
    },
    /** Refuses new requests, waits at most `server.drain_timeout` for those under way, closes; true if all ended. */
    async drain(): Promise<boolean> {
      state.draining.abort()
      clients.server.closeIdleConnections()
      const isComplete = await new Promise<boolean>((resolve) => {
        // Whatever is under way keeps the process alive.
        setTimeout(resolve, config.server.drain_timeout, false).unref()
        state.onIdle = () => resolve(true)
        if (state.openRequests === 0) resolve(true)
      })
      await close()
      return isComplete
    },
    /** Returns what this process alone has counted. */
    metrics: () => countSessions(parts).then(telemetry.metrics.data),
    /** Returns what a session is about, by its id in the API: for people alone. Never rejects. */
    labelOf: (id: string) => labelIn(services.store, id),
    /** Closes at once and cuts off the requests under way. */
    close,
  }
}
