/** Upgraded connections: WebSockets refused where they would hide a session from the guard, passed through elsewhere. */
import http, { type IncomingMessage } from 'node:http'
import https from 'node:https'
import { type Duplex, pipeline } from 'node:stream'
import { DEFAULT_API } from '../dialect/index.ts'
import {
  headerOf,
  headText,
  type RawHeaders,
  withHeaders,
  withoutFields,
  withoutGovernorHeaders,
} from '../http/headers.ts'
import { failureOf } from '../http/upstream.ts'
import type { Emit } from '../telemetry/event.ts'
import { type AccessSettings, accessRefusal, isAccessKey, refusalBody } from './access.ts'
import { isGuardedSocket, type Route, type Routing, routeOf, upstreamHeaders } from './route.ts'

export interface TunnelSettings extends Routing {
  readonly websocket: 'refuse' | 'tunnel'
  /** Milliseconds to open a connection; 0 is no limit. */
  readonly connectTimeout: number
  readonly access: AccessSettings
  readonly isDraining: () => boolean
  readonly emit: Emit
}

function asksForWebSocket(request: IncomingMessage): boolean {
  return /(^|[\s,])websocket($|[\s,/])/i.test(headerOf(request.rawHeaders, 'upgrade') ?? '')
}

function refuse(socket: Duplex, status: string, extra: RawHeaders, message: string, code: string): void {
  refuseWith(socket, status, extra, DEFAULT_API.errorBody('invalid_request', message, code))
}

function refuseWith(socket: Duplex, status: string, extra: RawHeaders, body: string): void {
  const headers = [
    'Content-Type',
    'application/json',
    'Content-Length',
    String(Buffer.byteLength(body)),
    ...extra,
  ]
  socket.end(headText(`HTTP/1.1 ${status}`, headers) + body)
}

/**
 * Hands a request that asks for an upgrade nobody here makes (h2c, as some HTTP clients do with every first request)
 * back to the server without that wish: a server may ignore it (RFC 9110, section 7.8). The head is written anew and
 * read again, as Node has already taken its parser off the connection.
 */
function ignoreUpgrade(server: http.Server, request: IncomingMessage, socket: Duplex, rest: Buffer): void {
  const dropped = new Set(['upgrade', 'connection', 'http2-settings'])
  const headers = withoutFields(request.rawHeaders, (lower) => dropped.has(lower))
  const head = headText(`${request.method} ${request.url} HTTP/${request.httpVersion}`, headers)
  socket.unshift(Buffer.concat([Buffer.from(head, 'latin1'), rest]))
  server.emit('connection', socket)
}

/** Joins two connections until either ends; what breaks one ends the other. */
function join(client: Duplex, upstream: Duplex): void {
  client.on('error', () => upstream.destroy())
  upstream.on('error', () => client.destroy())
  client.on('close', () => upstream.destroy())
  upstream.on('close', () => client.destroy())
  client.pipe(upstream)
  upstream.pipe(client)
}

/** Pieces of at most 64 KB that a client may send before its upgrade is answered; what is more has to wait. */
const MAX_EARLY = 16

function open(
  settings: TunnelSettings,
  route: Route,
  request: IncomingMessage,
  client: Duplex,
  first: Buffer,
): void {
  const { upstream, path } = route
  const url = new URL(upstream.origin)
  const isKey = (key: string) => isAccessKey(settings.access, key)
  // There is no body that trailers could follow; Node throws on the field.
  const { credentialHeaders } = settings.access
  const plain = withoutFields(
    upstreamHeaders(route, request.rawHeaders, credentialHeaders, isKey),
    (lower) => lower === 'trailer',
  )
  const headers = [
    ...['Host', url.host],
    ...['Connection', 'Upgrade', 'Upgrade', headerOf(request.rawHeaders, 'upgrade') ?? 'websocket'],
    ...plain,
  ]
  const call = (url.protocol === 'https:' ? https : http).request(url, {
    method: request.method ?? 'GET',
    path,
    headers,
    agent: false,
    setHost: false,
    ...(settings.connectTimeout > 0 ? { timeout: settings.connectTimeout } : {}),
  })
  call.on('timeout', () => call.destroy(Object.assign(new Error('no answer in time'), { code: 'ETIMEDOUT' })))
  // Read while there is no answer yet: a connection that nobody reads does not tell that its client has left.
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
    client.write(
      headText(
        `HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}`,
        withoutGovernorHeaders(answer.rawHeaders),
      ),
    )
    if (rest.length > 0) client.write(rest)
    for (const chunk of early) if (chunk.length > 0) socket.write(chunk)
    join(client, socket)
  })
  call.on('response', (answer) => {
    // The upstream says no, in its own words.
    // Node hands the body over without its chunks; it then ends with the connection.
    const kept = withoutFields(
      withHeaders(withoutGovernorHeaders(answer.rawHeaders), { Connection: 'close' }),
      (lower) => lower === 'transfer-encoding',
    )
    client.write(headText(`HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}`, kept))
    // Where it breaks off, the client's connection does too: a clean end would pass for the whole.
    pipeline(answer, client, () => client.destroy())
  })
  call.on('error', (error) => {
    if (client.destroyed) return
    const failure = failureOf(error, upstream)
    settings.emit({
      kind: 'tunnel_failed',
      upstream: upstream.name,
      failure: failure.code,
      detail: failure.detail,
    })
    const status = failure.status === 504 ? '504 Gateway Timeout' : '502 Bad Gateway'
    refuse(client, status, ['Connection', 'close'], failure.message, failure.code)
  })
  client.on('close', () => call.destroy())
  call.end()
}

/** Whoever has taken Governor for a proxy to anywhere is told what to set instead; Node would hang up on them. */
function refuseTunnels(server: http.Server): void {
  server.on('connect', (_: IncomingMessage, socket: Duplex) => {
    socket.on('error', () => socket.destroy())
    const message =
      'Governor opens no tunnels: set OPENAI_BASE_URL or ANTHROPIC_BASE_URL to it, not HTTPS_PROXY.'
    refuse(socket, '501 Not Implemented', ['Connection', 'close'], message, 'no_tunnels')
  })
}

/** Answers every request for an upgrade on a server, and for a tunnel. */
export function handleUpgrades(server: http.Server, settings: TunnelSettings): void {
  refuseTunnels(server)
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, rest: Buffer) => {
    if (!asksForWebSocket(request)) return ignoreUpgrade(server, request, socket, rest)
    socket.on('error', () => socket.destroy())
    if (settings.isDraining()) {
      const message = 'Governor is shutting down: try again.'
      return refuse(socket, '503 Service Unavailable', ['Connection', 'close'], message, 'shutting_down')
    }
    const target = request.url ?? '/'
    if (settings.websocket === 'refuse' && isGuardedSocket(settings.dialects, target)) {
      const message =
        'Governor guards this path over POST only: fall back to HTTP, or set server.websocket: tunnel.'
      return refuse(
        socket,
        '426 Upgrade Required',
        ['Upgrade', 'HTTP/1.1', 'Connection', 'Upgrade, close'],
        message,
        'upgrade_required',
      )
    }
    const route = routeOf(settings, request.method ?? 'GET', target, request.rawHeaders)
    const refusal = accessRefusal(settings.access, route, request.rawHeaders)
    if (refusal) {
      const status = `${refusal.status} ${http.STATUS_CODES[refusal.status]}`
      return refuseWith(socket, status, ['Connection', 'close'], refusalBody(refusal, route))
    }
    try {
      open(settings, route, request, socket, rest)
    } catch {
      // Node throws on headers that it will not send; nothing above this would catch it.
      const message = 'Governor could not pass this upgrade on: its headers are not valid.'
      refuse(socket, '502 Bad Gateway', ['Connection', 'close'], message, 'upstream_broken')
    }
  })
}
