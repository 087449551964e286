/** The server that clients connect to: its limits, its connections, and answers to what can't be read as a request. */
import http, { type IncomingMessage, type ServerResponse, STATUS_CODES } from 'node:http'
import type { Duplex } from 'node:stream'
import { hasBody } from './body.ts'
import { headText } from './headers.ts'
import { reply } from './response.ts'

/** Bytes of a request's target and fields: more than Node's default, as agents put JSON into headers. */
export const MAX_HEAD = 65_536

/** The most milliseconds between two checks for clients that do not send their headers: Node's default. */
const HEADERS_CHECK = 30_000

/** Files and connections left to everything else: upstreams, Redis, the log. Or a share of all, if that is more. */
const LEAST_LEFT = 64
const SHARE_LEFT = 1 / 4
/** Milliseconds between two log lines about refused connections. */
const SILENCE = 60_000

export interface ServerSettings {
  /** Milliseconds that a client may take for its headers. */
  readonly clientIdle: number
  /** How many files and connections the process may have open; infinite if that is not known. */
  readonly maxOpenFiles: number
  /** Called for each connection that is refused because `open` are open; `isNews`: the first one in a minute. */
  readonly refused: (open: number, isNews: boolean) => void
}

/**
 * Writes the last bytes to a connection and closes it a second later: if it closed while the client still sends, the
 * client might never read them (RFC 9112, section 9.6).
 */
export function endWith(socket: Duplex, bytes: string): void {
  socket.end(bytes)
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

/** Closes connections that are too many for the limit on open files, before nothing works any more. */
function limitConnections(server: http.Server, { maxOpenFiles, refused }: ServerSettings): void {
  if (!Number.isFinite(maxOpenFiles)) return
  const open = Math.max(1, Math.floor(maxOpenFiles - Math.max(LEAST_LEFT, maxOpenFiles * SHARE_LEFT)))
  server.maxConnections = open
  let reportedAt = Number.NEGATIVE_INFINITY
  server.on('drop', () => {
    const isNews = performance.now() - reportedAt >= SILENCE
    if (isNews) reportedAt = performance.now()
    refused(open, isNews)
  })
}

export function createClientServer(settings: ServerSettings) {
  const { clientIdle } = settings
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
  limitConnections(server, settings)
  // Several responses for one connection if a client sends requests without waiting.
  const connections = new Map<Duplex, Set<ServerResponse>>()
  server.on('connection', (socket) => {
    // An ignored upgrade makes its connection begin again.
    connections.set(socket, connections.get(socket) ?? new Set())
    socket.once('close', () => connections.delete(socket))
  })
  server.on('request', ({ socket }, response) => {
    const responses = connections.get(socket)?.add(response)
    response.once('close', () => responses?.delete(response))
  })
  return {
    server,
    /** Answers bytes that are no request. `errorBody` returns the JSON body of an error. */
    refuseUnreadable(
      error: NodeJS.ErrnoException,
      socket: Duplex,
      errorBody: (kind: 'timeout' | 'invalid_request', message: string, code: string) => string,
    ): void {
      const responses = [...(connections.get(socket) ?? [])]
      // An answer in the middle of a response would look like a part of it.
      if (responses.some(({ headersSent }) => headersSent)) return void socket.destroy()
      // The parser reports an error again for each further chunk.
      if (!socket.writable) return
      const [status, code, message] = UNREADABLE[error.code ?? ''] ?? MALFORMED
      const body = errorBody(status === 408 ? 'timeout' : 'invalid_request', message, code)
      const length = String(Buffer.byteLength(body))
      const fields = ['Content-Type', 'application/json', 'Content-Length', length, 'Connection', 'close']
      endWith(socket, headText(`HTTP/1.1 ${status} ${STATUS_CODES[status]}`, fields) + body)
      // Nobody may answer the earlier requests of this connection any more.
      if (responses.length > 0) socket.destroy()
    },
    /** Destroys all open connections and waits until they are closed. */
    async destroyConnections(): Promise<void> {
      const sockets = [...connections.keys()]
      await Promise.all(sockets.map((socket) => new Promise((resolve) => socket.once('close', resolve).destroy())))
    },
  }
}

const CHECKS = 4

/** A request whose body is still to come. */
interface Upload {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  readonly errorBody: () => string
  /** Bytes read from the connection when it was checked last. */
  read: number
  /** Checks in a row that found nothing new. */
  quiet: number
}

/**
 * Returns what ends requests whose clients send nothing for `idle` milliseconds, though nobody holds them back, with
 * the JSON of `errorBody`; 0: never. All share one timer, because one for each costs more than the check. Counts checks
 * and not time: after a pause of the whole process one check runs before what came meanwhile is read.
 */
export function createUploadWatch(idle: number) {
  const uploads = new Set<Upload>()
  let timer: NodeJS.Timeout | undefined
  const check = () => {
    for (const upload of uploads) {
      const { request, response, errorBody } = upload
      const { socket } = request
      const isHeldBack = request.isPaused() || socket.isPaused()
      upload.quiet = socket.bytesRead === upload.read && !isHeldBack ? upload.quiet + 1 : 0
      upload.read = socket.bytesRead
      // The first check may come at any time after the newest byte.
      if (upload.quiet <= CHECKS) continue
      uploads.delete(upload)
      if (response.headersSent) request.destroy()
      else {
        // Closes the connection once it is sent: what follows on it would be taken for the rest.
        response.setHeader('connection', 'close')
        reply(response, 408, 'application/json', errorBody())
      }
    }
    if (uploads.size > 0) return
    clearInterval(timer)
    timer = undefined
  }
  return (request: IncomingMessage, response: ServerResponse, errorBody: () => string): void => {
    if (idle === 0 || request.complete || !hasBody(request.rawHeaders)) return
    const { bytesRead: read } = request.socket
    const upload = { request, response, errorBody, read, quiet: 0 }
    uploads.add(upload)
    timer ??= setInterval(check, idle / CHECKS).unref()
    request.on('close', () => uploads.delete(upload))
  }
}
