/** Opens guarded WebSockets: upstream first, so that the client gets the provider's own answer to the upgrade. */
import type { IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import { WebSocket, WebSocketServer } from 'ws'
import {
  headerOf,
  pairsOf,
  type RawHeaders,
  responseHeaders,
  withoutFields,
  withoutGovernorHeaders,
} from '../http/headers.ts'
import { endWithError } from '../http/server.ts'
import { failureOf } from '../http/upstream.ts'
import { accessKeyOf } from '../proxy/door/access-key.ts'
import { accessRefusal, type Route, upstreamHead } from '../proxy/door/route.ts'
import { passRefusal, useHttp } from '../proxy/door/tunnel.ts'
import type { Services } from '../proxy/services.ts'
import { carry, type SocketPair } from './connection.ts'

/** Milliseconds; 0 is no limit. */
interface SocketLimits {
  readonly connect: number
  readonly carry: SocketPair['limits']
}

/** The longest message, in bytes: where ChatGPT's backend closes a connection. */
const MAX_MESSAGE = 16 * 1024 * 1024

/** Milliseconds for which an upstream counts as one without WebSockets: clients use HTTP meanwhile. */
const REMEMBERED_MS = 600_000

/** Answers to an upgrade that say nothing against WebSockets. */
const PASSED: ReadonlySet<number | undefined> = new Set([401, 403, 429])

/** Fields of a handshake that each side makes for itself (RFC 6455, section 11.3). */
const HANDSHAKE = new Set(['key', 'accept', 'version', 'extensions', 'protocol'].map((name) => `sec-websocket-${name}`))

/** What both sides have in common. Compression would take six times the CPU. */
const OPTIONS = { perMessageDeflate: false, maxPayload: MAX_MESSAGE }

/** Begins a handshake with an upstream; returns `undefined` if it has fields that no handshake can have. */
function socketTo(url: string, protocols: readonly string[], headers: RawHeaders, connect: number) {
  const fields: Record<string, string[]> = Object.create(null)
  for (const [name, value] of pairsOf(withoutFields(headers, HANDSHAKE)))
    fields[name] = [...(fields[name] ?? []), value]
  const options = { ...OPTIONS, headers: fields, handshakeTimeout: connect || undefined }
  const names = protocols.map((name) => name.trim())
  try {
    return new WebSocket(url, names, options)
  } catch {
    return undefined
  }
}

/** Returns what answers a client's upgrade as the provider has: with its protocol and its headers. */
function serverLike(protocol: string, headers: RawHeaders): WebSocketServer {
  const server = new WebSocketServer({ ...OPTIONS, noServer: true, handleProtocols: () => protocol || false })
  const relayed = withoutFields(withoutGovernorHeaders(responseHeaders(headers)), HANDSHAKE)
  return server.on('headers', (lines) => {
    for (const [name, value] of pairsOf(relayed)) lines.push(`${name}: ${value}`)
  })
}

/** Returns what opens a guarded WebSocket for an upgrade, whose first bytes after the head are `first`. */
export function createSocketGuard(services: Services, limits: SocketLimits) {
  /** Until when the upstreams without WebSockets are remembered. */
  const refusedUntil = new Map<string, number>()
  return (request: IncomingMessage, client: Duplex, first: Buffer, route: Route): void => {
    const { rawHeaders: headers, url: target = '/' } = request
    const { upstream, dialect } = route
    const form = dialect?.socket
    const accessKey = accessKeyOf(services, route, headers)
    const refusal = accessRefusal(services, route, headers, accessKey)
    if (refusal) return endWithError(client, refusal.status, refusal.body)
    if (!form || services.now() < (refusedUntil.get(upstream.name) ?? 0)) return useHttp(client)
    const sent = upstreamHead(route, headers, services, accessKey?.key)
    const names = headerOf(headers, 'sec-websocket-protocol')?.split(',') ?? []
    const socket = socketTo(`${upstream.origin}${sent.path}`, names, sent.headers, limits.connect)
    if (!socket) return useHttp(client)
    const remember = () => void refusedUntil.set(upstream.name, services.now() + REMEMBERED_MS)
    // Node reports that a client left only on a connection that is read. It may send nothing before the 101.
    const leave = () => socket.terminate()
    const early = [first]
    const keep = (chunk: Buffer) => {
      early.push(chunk)
      client.pause()
    }
    client.on('data', keep).on('end', leave).on('close', leave)
    let answer: IncomingMessage | undefined
    socket.once('upgrade', (response) => {
      answer = response
    })
    socket.once('unexpected-response', (_, response) => {
      if (PASSED.has(response.statusCode)) return passRefusal(response, client)
      response.destroy()
      remember()
      useHttp(client)
    })
    const failed = (error: Error) => {
      if (client.destroyed) return
      const { code, detail } = failureOf(error, upstream)
      services.emit({ kind: 'tunnel_failed', upstream: upstream.name, failure: code, detail })
      if (/timed out/.test(error.message)) remember()
      useHttp(client)
    }
    // An error after it has opened is followed by its close.
    socket.on('error', () => undefined).once('error', failed)
    socket.once('open', () => {
      client.off('data', keep).off('end', leave).off('close', leave)
      socket.off('error', failed)
      const server = serverLike(socket.protocol, answer?.rawHeaders ?? [])
      client.once('close', leave)
      // The head that the package writes as a text: each byte of a header is one character.
      client.setDefaultEncoding('latin1')
      server.handleUpgrade(request, client, Buffer.concat(early), (accepted) => {
        client.off('close', leave).resume().setDefaultEncoding('utf8')
        const head = { target, headers }
        carry({ services, route, form, head, client: accepted, upstream: socket, limits: limits.carry })
      })
    })
  }
}
