/** Ends requests whose clients stopped in the middle of them, as they hold connections open. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { hasBody } from './body.ts'
import { reply } from './response.ts'

/** How often per time limit uploads are checked. */
const CHECKS = 4

/** A request whose body is still to come. */
interface Upload {
  readonly request: IncomingMessage
  readonly response: ServerResponse
  /** Returns the JSON body of the reply. */
  readonly errorBody: () => string
  /** Bytes read from the connection when it was checked last. */
  read: number
  /** Checks in a row that found nothing new. */
  quiet: number
}

/** Watches that the body of a request keeps coming; `errorBody` returns the JSON body of the reply. */
export type WatchUpload = (request: IncomingMessage, response: ServerResponse, errorBody: () => string) => void

/**
 * Ends an upload if nothing came for the whole limit, though nobody held the client back; returns true if it did. Counts
 * checks and not time: after a pause of the whole process one check runs before what came meanwhile is read.
 */
function endIfIdle(upload: Upload): boolean {
  const { request, response } = upload
  const { socket } = request
  const isHeldBack = request.isPaused() || socket.isPaused()
  const isQuiet = socket.bytesRead === upload.read && !isHeldBack
  upload.read = socket.bytesRead
  upload.quiet = isQuiet ? upload.quiet + 1 : 0
  // The first check may come at any time after the newest byte.
  if (upload.quiet <= CHECKS) return false
  if (response.headersSent) request.destroy()
  else {
    // Closes the connection once it is sent: what follows on it would be taken for the rest.
    response.setHeader('connection', 'close')
    reply(response, 408, 'application/json', upload.errorBody())
  }
  return true
}

/**
 * Creates a watch that ends requests whose clients send nothing for `idle` milliseconds; 0: never. All share
 * one timer, because one for each costs more than the check.
 */
export function createUploadWatch(idle: number): WatchUpload {
  const uploads = new Set<Upload>()
  let timer: NodeJS.Timeout | undefined
  const check = () => {
    for (const upload of uploads) if (endIfIdle(upload)) uploads.delete(upload)
    if (uploads.size > 0) return
    clearInterval(timer)
    timer = undefined
  }
  return (request, response, errorBody) => {
    if (idle === 0 || request.complete || !hasBody(request.rawHeaders)) return
    const { bytesRead: read } = request.socket
    const upload = { request, response, errorBody, read, quiet: 0 }
    uploads.add(upload)
    timer ??= setInterval(check, idle / CHECKS).unref()
    // Comes as soon as the body was read, or the client left.
    request.on('close', () => uploads.delete(upload))
  }
}
