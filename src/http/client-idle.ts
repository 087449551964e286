/** Ends requests whose clients stopped sending in the middle, as their connections would stay open for ever. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { hasBody } from './body.ts'
import { reply } from './response.ts'

/** How often per time limit an upload is checked. */
const CHECKS = 4

function giveUp(request: IncomingMessage, response: ServerResponse, errorBody: string): void {
  if (response.headersSent) {
    request.destroy()
    return
  }
  // Node closes the connection after the reply: later bytes would be read as the rest of the body.
  response.setHeader('connection', 'close')
  reply(response, 408, 'application/json', errorBody)
}

/**
 * Ends a request with 408 if its body stops coming for `idle` milliseconds (0: no limit). Time in which Governor or the
 * upstream holds the body back does not count. `errorBody` returns the JSON body of the reply.
 */
export function watchUpload(
  request: IncomingMessage,
  response: ServerResponse,
  idle: number,
  errorBody: () => string,
): void {
  if (idle === 0 || request.complete || !hasBody(request.rawHeaders)) return
  const { socket } = request
  let read = socket.bytesRead
  let lastRead = performance.now()
  const check = setInterval(() => {
    const isHeldBack = request.isPaused() || socket.isPaused()
    if (socket.bytesRead !== read || isHeldBack) {
      read = socket.bytesRead
      lastRead = performance.now()
    } else if (performance.now() - lastRead >= idle) {
      clearInterval(check)
      giveUp(request, response, errorBody())
    }
  }, idle / CHECKS)
  const stop = () => clearInterval(check)
  request.once('end', stop)
  request.once('close', stop)
}
