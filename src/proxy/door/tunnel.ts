/** Upgraded connections. WebSockets are refused on guarded paths, where they would hide a session, and pass through on others. */
import http, { type IncomingMessage } from 'node:http'
import https from 'node:https'
import { type Duplex, pipeline } from 'node:stream'
import { DEFAULT_API } from '../../dialect/index.ts'
import {
  headerOf,
  headText,
  type RawHeaders,
  withHeaders,
  withoutFields,
  withoutGovernorHeaders,
} from '../../http/headers.ts'
import { endWith } from '../../http/server.ts'
import { failureOf } from '../../http/upstream.ts'
import type { Emit } from '../../telemetry/event.ts'
import { type AccessSettings, accessRefusal, refusalBody } from './access.ts'
import { isGuardedSocket, type Route, type Routing, routeOf, upstreamHead } from './route.ts'

export interface TunnelSettings extends Routing {
  readonly websocket: 'refuse' | 'tunnel'
  /** Milliseconds to open a connection; 0 is no limit. */
  readonly connectTimeout: number
  readonly access: AccessSettings
  /** True for targets that no upstream may get. */
  readonly isOwnPath: (target: string) => boolean
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
  endWith(socket, headText(`HTTP/1.1 ${status}`, headers) + body)
}

/**
 * Ignores an upgrade that Governor does not support (h2c, which some HTTP clients ask for in every first request, and any on
 * its own paths), as a server may (RFC 9110, section 7.8). Node has already removed its parser from the connection, so the head is written
 * back without the Upgrade fields and the server reads it again.
 */
function ignoreUpgrade(server: http.Server, request: IncomingMessage, socket: Duplex, rest: Buffer): void {
  const dropped = new Set(['upgrade', 'connection', 'http2-settings'])
  const headers = withoutFields(request.rawHeaders, (lower) => dropped.has(lower))
  const head = headText(`${request.method} ${request.url} HTTP/${request.httpVersion}`, headers)
  socket.unshift(Buffer.concat([Buffer.from(head, 'latin1'), rest]))
  server.emit('connection', socket)
}

/** Joins two connections until either ends; an error on one ends the other. */
function join(client: Duplex, upstream: Duplex): void {
  client.on('error', () => upstream.destroy())
  upstream.on('error', () => client.destroy())
  client.on('close', () => upstream.destroy())
  upstream.on('close', () => client.destroy())
  client.pipe(upstream)
  upstream.pipe(client)
}

/** A client may send this many chunks, of at most 64 KB each, before the upstream answers; then it is paused. */
const MAX_EARLY = 16

/** Returns the request to the upstream, not yet sent. @throws {TypeError} on headers that Node does not send. */
function upgradeRequest(
  { access, connectTimeout }: TunnelSettings,
  route: Route,
  { method = 'GET', rawHeaders }: IncomingMessage,
): http.ClientRequest {
  const url = new URL(route.upstream.origin)
  const { path, headers } = upstreamHead(route, rawHeaders, access)
  const call = (url.protocol === 'https:' ? https : http).request(url, {
    method,
    path,
    headers: [
      ...['Host', url.host],
      ...['Connection', 'Upgrade', 'Upgrade', headerOf(rawHeaders, 'upgrade') ?? 'websocket'],
      // Node throws on Trailer, as an upgrade has no body that trailers could follow.
      ...withoutFields(headers, (lower) => lower === 'trailer'),
    ],
    agent: false,
    setHost: false,
    ...(connectTimeout > 0 ? { timeout: connectTimeout } : {}),
  })
  return call.on('timeout', () =>
    call.destroy(Object.assign(new Error('no answer in time'), { code: 'ETIMEDOUT' })),
  )
}

/** Gives the client an upstream's answer that is not an upgrade, unchanged, and ends the connection with it. */
function passAnswer(client: Duplex, answer: IncomingMessage): void {
  // Node removes the chunked coding from the body, which then ends with the connection.
  const headers = withoutFields(
    withHeaders(withoutGovernorHeaders(answer.rawHeaders), { Connection: 'close' }),
    (lower) => lower === 'transfer-encoding',
  )
  client.write(headText(`HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}`, headers))
  // If the answer breaks off, the client's connection must break too: a clean end would look like a complete answer.
  pipeline(answer, client, () => client.destroy())
}

/** Sends the upgrade to the upstream and joins the two connections once it accepts. @throws {TypeError} as `upgradeRequest`. */
function openTunnel(
  settings: TunnelSettings,
  route: Route,
  request: IncomingMessage,
  client: Duplex,
  first: Buffer,
): void {
  const { upstream } = route
  const call = upgradeRequest(settings, route, request)
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
    client.write(headText(`HTTP/1.1 ${answer.statusCode} ${answer.statusMessage}`, headers))
    if (rest.length > 0) client.write(rest)
    for (const chunk of early) if (chunk.length > 0) socket.write(chunk)
    join(client, socket)
  })
  call.on('response', (answer) => passAnswer(client, answer))
  call.on('error', (error) => {
    if (client.destroyed) return
    const { status, code, message, detail } = failureOf(error, upstream)
    settings.emit({ kind: 'tunnel_failed', upstream: upstream.name, failure: code, detail })
    refuse(client, `${status} ${http.STATUS_CODES[status]}`, ['Connection', 'close'], message, code)
  })
  client.on('close', () => call.destroy())
  call.end()
}

/** Answers CONNECT, which a client sends if it uses Governor as a forward proxy, with the setting to use instead. */
function refuseConnect(server: http.Server): void {
  server.on('connect', (_: IncomingMessage, socket: Duplex) => {
    socket.on('error', () => socket.destroy())
    const message =
      'Governor opens no tunnels: set OPENAI_BASE_URL or ANTHROPIC_BASE_URL to it, not HTTPS_PROXY.'
    refuse(socket, '501 Not Implemented', ['Connection', 'close'], message, 'no_tunnels')
  })
}

/** Handles every request for an upgrade or a CONNECT tunnel on a server. */
export function handleUpgrades(server: http.Server, settings: TunnelSettings): void {
  refuseConnect(server)
  server.on('upgrade', (request: IncomingMessage, socket: Duplex, rest: Buffer) => {
    const target = request.url ?? '/'
    if (!asksForWebSocket(request) || settings.isOwnPath(target))
      return ignoreUpgrade(server, request, socket, rest)
    socket.on('error', () => socket.destroy())
    if (settings.isDraining()) {
      const message = 'Governor is shutting down: try again.'
      return refuse(socket, '503 Service Unavailable', ['Connection', 'close'], message, 'shutting_down')
    }
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
      openTunnel(settings, route, request, socket, rest)
    } catch {
      // Node throws on headers that it does not send, and no caller above this one catches.
      const message = 'Governor could not pass this upgrade on: its headers are not valid.'
      refuse(socket, '502 Bad Gateway', ['Connection', 'close'], message, 'upstream_broken')
    }
  })
}
