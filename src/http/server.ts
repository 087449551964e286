/** The server that clients connect to: its limits, its connections, and answers to what can't be read as a request. */
import http, { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import { hasBody } from './body.ts'
import { breakOff, clientOf, reply } from './client.ts'
import { headText, type RawHeaders } from './headers.ts'

/** Bytes of a request's target and fields: more than Node's default, as agents put JSON into headers. */
export const MAX_HEAD = 65_536

/** The most milliseconds between two checks for clients that do not send their headers: Node's default. */
const HEADERS_CHECK = 30_000

/** Files and connections left to everything else: upstreams, Redis, the log. Or a share of all, if that is more. */
const LEAST_LEFT = 64
const SHARE_LEFT = 1 / 4
/** Milliseconds between two log lines about refused connections. */
const SILENCE = 60_000

interface ServerSettings {
  /** Milliseconds that a client may take for its headers, and may pause while it sends a body; 0: any time. */
  readonly clientIdle: number
  /** Returns false for a request whose wish to change the protocol is ignored; Node asks from 24.9 on. */
  readonly shouldUpgradeCallback?: (request: IncomingMessage) => boolean
  /** How many files and connections the process may have open; infinite if that is not known. */
  readonly maxOpenFiles: number
  /** Takes each connection that is refused because `open` are open; `isNews`: the first one in a minute. */
  readonly emit: (event: {
    readonly kind: 'connection_refused'
    readonly open: number
    readonly isNews: boolean
  }) => void
  /** Returns the JSON body of an error; `request`: unset if it could not be read. */
  readonly errorBody: (
    kind: 'timeout' | 'invalid_request',
    message: string,
    code: string,
    status: number,
    request?: IncomingMessage,
  ) => string
}

/**
 * Answers with an error in JSON where Node has no response for it, and closes the connection a second later: if it
 * closed while the client still sends, the client might never read the answer (RFC 9112, section 9.6). `more`: raw
 * headers.
 */
export function endWithError(
  socket: Duplex,
  status: number,
  body: string,
  more: RawHeaders = ['Connection', 'close'],
): void {
  const length = String(Buffer.byteLength(body))
  const headers = ['Content-Type', 'application/json', 'Content-Length', length, ...more]
  socket.end(headText(`HTTP/1.1 ${status} ${STATUS_CODES[status]}`, headers) + body)
  const timer = setTimeout(() => socket.destroy(), 1_000)
  socket.once('close', () => clearTimeout(timer))
}

/** Status, code and message for errors of Node's HTTP parser, by its codes. */
const UNREADABLE: Readonly<Record<string, readonly [status: number, code: string, message: string]>> = {
  ERR_HTTP_REQUEST_TIMEOUT: [408, 'request_timeout', 'The request did not come. See timeouts.client_idle.'],
  HPE_HEADER_OVERFLOW: [
    431,
    'headers_too_large',
    `The target and the header fields of a request may have ${MAX_HEAD} bytes in all.`,
  ],
}
const MALFORMED = [400, 'malformed_request', 'Governor could not read this as an HTTP/1.1 request.'] as const

const UPLOAD_STOPPED = 'The rest of the request did not come. See timeouts.client_idle.'

/** Checks for uploads in `clientIdle` milliseconds. */
const CHECKS = 4

/** A request whose response is not over. */
interface OpenRequest {
  readonly response: ServerResponse
  /** Bytes read from the connection when it was checked last. */
  read: number
  /** Checks in a row that found nothing new. */
  quiet: number
}

/** Creates the server, which has its limits and no listener for requests yet. */
function createServer({ clientIdle, maxOpenFiles, emit, shouldUpgradeCallback }: ServerSettings): http.Server {
  const options = {
    shouldUpgradeCallback,
    maxHeaderSize: MAX_HEAD,
    // Longer than the usual minute of a load balancer, so that Governor never closes first.
    keepAliveTimeout: 75_000,
    // A whole request may take any time. Without `headersTimeout`, Node would not limit the headers either.
    requestTimeout: 0,
    headersTimeout: clientIdle,
    connectionsCheckingInterval: Math.ceil(Math.min(HEADERS_CHECK, clientIdle / 4) || HEADERS_CHECK),
    noDelay: true,
  }
  const server = http.createServer(options)
  server.maxHeadersCount = 0
  if (!Number.isFinite(maxOpenFiles)) return server
  // Connections that are too many for the limit on open files are closed before nothing works any more.
  const open = Math.max(1, Math.floor(maxOpenFiles - Math.max(LEAST_LEFT, maxOpenFiles * SHARE_LEFT)))
  server.maxConnections = open
  let reportedAt = Number.NEGATIVE_INFINITY
  return server.on('drop', () => {
    const isNews = performance.now() - reportedAt >= SILENCE
    if (isNews) reportedAt = performance.now()
    emit({ kind: 'connection_refused', open, isNews })
  })
}

export function createClientServer(settings: ServerSettings) {
  const { clientIdle, errorBody } = settings
  const server = createServer(settings)
  // Several requests for one connection if a client sends them without waiting.
  const connections = new Map<Duplex, Set<OpenRequest>>()
  // All uploads share one timer, because one for each costs more than the check.
  let timer: NodeJS.Timeout | undefined
  let isClosing = false
  server.on('connection', (socket) => {
    // A server that closes would wait for the first request of this connection.
    if (isClosing) return socket.destroy()
    // An ignored upgrade makes its connection begin again.
    if (connections.has(socket)) return
    connections.set(socket, new Set())
    socket.once('close', () => connections.delete(socket))
  })
  server.on('request', (request, response) => {
    const open = { response, read: request.socket.bytesRead, quiet: 0 }
    const requests = connections.get(request.socket)?.add(open)
    response.once('close', () => requests?.delete(open))
    if (clientIdle === 0 || timer || request.complete || !hasBody(request.rawHeaders)) return
    timer = setInterval(() => {
      if (endQuietUploads(connections, errorBody)) return
      clearInterval(timer)
      timer = undefined
    }, clientIdle / CHECKS).unref()
  })
  return {
    server,
    /** Answers bytes that are no request. */
    refuseUnreadable(error: NodeJS.ErrnoException, socket: Duplex): void {
      const requests = connections.get(socket) ?? new Set()
      // An answer in the middle of a response would look like a part of it.
      for (const { response } of requests) if (response.headersSent) return breakOff(response)
      // The parser reports an error again for each further chunk.
      if (!socket.writable) return
      const [status, code, message] = UNREADABLE[error.code ?? ''] ?? MALFORMED
      const kind = status === 408 ? 'timeout' : 'invalid_request'
      endWithError(socket, status, errorBody(kind, message, code, status))
      // Nobody may answer the earlier requests of this connection any more.
      if (requests.size > 0) socket.destroy()
    },
    /** Destroys all connections, also those that come from now on; waits until the open ones are closed. */
    async destroyConnections(): Promise<void> {
      isClosing = true
      const closed: Promise<unknown>[] = []
      for (const [socket, requests] of connections) {
        closed.push(new Promise((resolve) => socket.once('close', resolve)))
        for (const { response } of requests) breakOff(response)
        socket.destroy()
      }
      await Promise.all(closed)
    },
  }
}

/**
 * Ends requests whose clients send nothing for a while, though nobody holds them back. Returns false if there are no
 * uploads any more. Counts checks and not time: after a pause of the whole process one check runs before what came
 * meanwhile is read.
 */
function endQuietUploads(
  connections: ReadonlyMap<Duplex, ReadonlySet<OpenRequest>>,
  errorBody: ServerSettings['errorBody'],
): boolean {
  let hasUploads = false
  for (const [socket, requests] of connections) {
    for (const open of requests) {
      const { response } = open
      const request = response.req
      if (request.complete || request.destroyed || !hasBody(request.rawHeaders)) continue
      hasUploads = true
      const isHeldBack = request.isPaused() || socket.isPaused()
      const { bytesRead } = request.socket
      open.quiet = bytesRead === open.read && !isHeldBack ? open.quiet + 1 : 0
      open.read = bytesRead
      // The first check may come at any time after the newest byte. Once ended, a request is left alone.
      if (open.quiet !== CHECKS + 1) continue
      if (response.headersSent) breakOff(response)
      else {
        // Closes the connection once it is sent: what follows on it would be taken for the rest.
        response.setHeader('connection', 'close')
        const body = errorBody('timeout', UPLOAD_STOPPED, 'request_timeout', 408, request)
        reply(clientOf(request, response), 408, 'application/json', body)
      }
    }
  }
  return hasUploads
}
