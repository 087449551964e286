/** Ends requests whose clients stopped in the middle of them: nobody will ever send the rest, and their connections are held open. */
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
  /** When they were read, in milliseconds of `performance.now()`. */
  since: number
}

/** Watches that the body of a request keeps coming; `errorBody` returns the JSON body of the reply. */
export type WatchUpload = (
  request: IncomingMessage,
  response: ServerResponse,
  errorBody: () => string,
) => void

/** True if nothing came for `idle` milliseconds, and neither Governor nor the upstream held the client back. */
function isIdle(upload: Upload, idle: number): boolean {
  const { request } = upload
  const { socket } = request
  const isHeldBack = request.isPaused() || socket.isPaused()
  if (socket.bytesRead === upload.read && !isHeldBack) return performance.now() - upload.since >= idle
  upload.read = socket.bytesRead
  upload.since = performance.now()
  return false
}

function giveUp({ request, response, errorBody }: Upload): void {
  if (response.headersSent) {
    request.destroy()
    return
  }
  // Closes the connection once it is sent: what follows on it would be taken for the rest.
  response.setHeader('connection', 'close')
  reply(response, 408, 'application/json', errorBody())
}

/**
 * Creates a watch that ends requests whose clients send nothing for `idle` milliseconds; 0: they may take any time. All requests
 * share one timer, because one for each costs more than the check.
 */
export function createUploadWatch(idle: number): WatchUpload {
  const uploads = new Set<Upload>()
  let timer: NodeJS.Timeout | undefined
  const check = () => {
    for (const upload of uploads) {
      if (!isIdle(upload, idle)) continue
      uploads.delete(upload)
      giveUp(upload)
    }
    if (uploads.size > 0) return
    clearInterval(timer)
    timer = undefined
  }
  return (request, response, errorBody) => {
    if (idle === 0 || request.complete || !hasBody(request.rawHeaders)) return
    const { bytesRead: read } = request.socket
    const upload = { request, response, errorBody, read, since: performance.now() }
    uploads.add(upload)
    timer ??= setInterval(check, idle / CHECKS).unref()
    // Comes as soon as the body was read, or the client left.
    request.on('close', () => uploads.delete(upload))
  }
}
