/**
 * Upgraded connections: guarded, or refused, on guarded paths, where they would hide a session; passed on elsewhere.
 */
import http, { type IncomingMessage } from 'node:http'
import https from 'node:https'
import { type Duplex, pipeline } from 'node:stream'
import { DEFAULT_API } from '../../dialect/index.ts'
import { headerOf, headText, withoutFields, withoutGovernorHeaders } from '../../http/headers.ts'
import { endWithError } from '../../http/server.ts'
import { failureOf, invalidStatus } from '../../http/upstream.ts'
import type { Services } from '../services.ts'
import { accessKeyOf, allowsSome } from './access-key.ts'
import { accessRefusal, type Route, routeOf, upstreamHead } from './route.ts'

interface UpgradeSettings {
  readonly websocket: 'guard' | 'refuse' | 'tunnel'
  /** Opens a WebSocket whose requests are guarded. */
  readonly guard: (request: IncomingMessage, socket: Duplex, first: Buffer, route: Route) => void
  /** Milliseconds to open a connection; 0 is no limit. */
  readonly connectTimeout: number
  /** Returns false for an upgrade that is ignored. */
  readonly isTaken: (request: IncomingMessage) => boolean
}

/**
 * Returns false for an upgrade that is ignored (RFC 9110, section 7.8): h2c, which some HTTP clients ask for at first,
 * and any on one of Governor's own paths.
 */
export function isUpgrade({ url = '/', rawHeaders }: IncomingMessage, isOwnPath: (target: string) => boolean): boolean {
  return /(^|[\s,])websocket($|[\s,/])/i.test(headerOf(rawHeaders, 'upgrade') ?? '') && !isOwnPath(url)
}

function errorBody(message: string, code: string): string {
  return DEFAULT_API.errorBody('invalid_request', message, code, 400)
}

/** Answers an upgrade so that the client sends its requests over HTTP, which agents do at once. */
export function useHttp(socket: Duplex): void {
  const upgrade = ['Upgrade', 'HTTP/1.1', 'Connection', 'Upgrade, close']
  endWithError(socket, 426, errorBody(POST_ONLY, 'upgrade_required'), upgrade)
}

/** Gives the client an upstream's answer that is no upgrade; the connection ends with it. */
export function passRefusal(answer: IncomingMessage, client: Duplex): void {
  // Node removes the chunked coding from the body.
  const passed = withoutGovernorHeaders(answer.rawHeaders)
  const headers = withoutFields(passed, new Set(['connection', 'transfer-encoding']))
  headers.push('Connection', 'close')
  client.write(headText(`HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}`, headers), 'latin1')
  // If it breaks off, the client's connection must break too: a clean end would look like a complete answer.
  pipeline(answer, client, () => client.destroy())
}

/** How many chunks, of at most 64 KB each, a client may send before the upstream answers. */
const MAX_EARLY = 16

/** Returns the request to the upstream, not yet sent. @throws {TypeError} on headers that Node refuses. */
function upgradeRequest(
  services: Services,
  connectTimeout: number,
  route: Route,
  { method = 'GET', rawHeaders }: IncomingMessage,
  accessKey: string | undefined,
): http.ClientRequest {
  const url = new URL(route.upstream.origin)
  const { path, headers } = upstreamHead(route, rawHeaders, services, accessKey)
  const call = (url.protocol === 'https:' ? https : http).request(url, {
    method,
    path,
    headers: [
      ...['Host', url.host],
      ...['Connection', 'Upgrade', 'Upgrade', headerOf(rawHeaders, 'upgrade') ?? 'websocket'],
      // Node throws on Trailer, as an upgrade has no body that trailers could follow.
      ...withoutFields(headers, new Set(['trailer'])),
    ],
    agent: false,
    setHost: false,
    ...(connectTimeout > 0 ? { timeout: connectTimeout } : {}),
  })
  return call.on('timeout', () => call.destroy(Object.assign(new Error('no answer in time'), { code: 'ETIMEDOUT' })))
}

/** Sends the upgrade, and joins both connections once the upstream accepts. */
function openTunnel({ emit }: Services, route: Route, call: http.ClientRequest, client: Duplex, first: Buffer): void {
  const { upstream } = route
  // Read before there is an answer: Node reports that a client left only on a connection that is read.
  const early: Buffer[] = [first]
  const keep = (chunk: Buffer) => {
    early.push(chunk)
    if (early.length > MAX_EARLY) client.pause()
  }
  const leave = () => client.destroy()
  client.on('data', keep).on('end', leave)
  call.on('upgrade', (answer, socket, rest) => {
    client.off('data', keep).off('end', leave)
    socket.setTimeout(0)
    const headers = withoutGovernorHeaders(answer.rawHeaders)
    client.write(headText(`HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}`, headers), 'latin1')
    if (rest.length > 0) client.write(rest)
    for (const chunk of early) if (chunk.length > 0) socket.write(chunk)
    // All bytes pass until either connection ends; that ends the other too.
    for (const [from, to] of [
      [client, socket],
      [socket, client],
    ] as const) {
      const end = () => to.destroy()
      from.on('error', end).on('close', end).pipe(to)
    }
  })
  call.on('response', (answer) => {
    const invalid = invalidStatus(answer.statusCode)
    if (invalid) {
      answer.destroy()
      return void call.emit('error', invalid)
    }
    passRefusal(answer, client)
  })
  call.on('error', (error) => {
    if (client.destroyed) return
    const { status, code, message, detail } = failureOf(error, upstream)
    emit({ kind: 'tunnel_failed', upstream: upstream.name, failure: code, detail })
    endWithError(client, status, errorBody(message, code))
  })
  client.on('close', () => call.destroy())
  call.end()
}

const NO_TUNNELS = 'Governor opens no tunnels: set OPENAI_BASE_URL or ANTHROPIC_BASE_URL to it, not HTTPS_PROXY.'
const SHUTTING_DOWN = 'Governor is shutting down: try again.'
const POST_ONLY = 'Here this path works over POST only: fall back to HTTP. See server.websocket.'
const MODELS_UNKNOWN = 'This access key allows only some models, and Governor does not read this connection.'
const INVALID_HEADERS = 'Governor could not pass this upgrade on: its headers are not valid.'

/** Handles every request for an upgrade or a CONNECT tunnel on a server. */
export function handleUpgrades(server: http.Server, services: Services, settings: UpgradeSettings): void {
  // A client sends CONNECT if it uses Governor as a forward proxy.
  server.on('connect', (_: IncomingMessage, socket: Duplex) => {
    socket.on('error', () => socket.destroy())
    endWithError(socket, 501, errorBody(NO_TUNNELS, 'no_tunnels'))
  })
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, rest: Buffer) => {
    const { method = 'GET', url: target = '/', rawHeaders } = request
    if (!settings.isTaken(request)) {
      // Node older than 24.9 does not ask before it removes its parser, so the head is written back without the Upgrade
      // fields, and the server reads it again.
      const headers = withoutFields(rawHeaders, new Set(['upgrade', 'connection', 'http2-settings']))
      const head = headText(`${method} ${target} HTTP/${request.httpVersion}`, headers)
      socket.unshift(Buffer.concat([Buffer.from(head, 'latin1'), rest]))
      server.emit('connection', socket)
      return
    }
    socket.on('error', () => socket.destroy())
    if (services.draining.aborted) return endWithError(socket, 503, errorBody(SHUTTING_DOWN, 'shutting_down'))
    const guarded = routeOf(services, { method: 'POST', target, headers: rawHeaders })
    if (settings.websocket !== 'tunnel' && guarded.dialect) {
      if (settings.websocket === 'guard') return settings.guard(request, socket, rest, guarded)
      return useHttp(socket)
    }
    const route = routeOf(services, { method, target, headers: rawHeaders })
    const accessKey = accessKeyOf(services, route, rawHeaders)
    if (allowsSome({ accessKey }))
      return endWithError(socket, 403, route.api.errorBody('forbidden', MODELS_UNKNOWN, 'model_not_allowed', 403))
    const refusal = accessRefusal(services, route, rawHeaders, accessKey)
    if (refusal) return endWithError(socket, refusal.status, refusal.body)
    let call: http.ClientRequest
    try {
      call = upgradeRequest(services, settings.connectTimeout, route, request, accessKey?.key)
    } catch {
      // Node throws on headers that it does not send, and no caller above this one catches.
      return endWithError(socket, 502, errorBody(INVALID_HEADERS, 'upstream_broken'))
    }
    openTunnel(services, route, call, socket, rest)
  })
}
