/** Ends requests whose clients stopped in the middle of them: nobody will ever send the rest, and their connections are held open. */
import type { IncomingMessage, ServerResponse } from 'node:http'
import { hasBody } from './body.ts'
import { reply } from './response.ts'

/** How often in its time it is looked whether a client goes on. */
const LOOKS = 4

function giveUp(request: IncomingMessage, response: ServerResponse, errorBody: string): void {
  if (response.headersSent) {
    request.destroy()
    return
  }
  // Closes the connection once it is sent: what follows on it would be taken for the rest.
  response.setHeader('connection', 'close')
  reply(response, 408, 'application/json', errorBody)
}

/**
 * Watches that the body of a request keeps coming. `idle`: milliseconds for which nothing may come, 0 for any time; what is waited
 * for by Governor or the upstream is not the client's. `errorBody` returns the JSON body of the reply.
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
  let since = performance.now()
  const look = setInterval(() => {
    const isHeldBack = request.isPaused() || socket.isPaused()
    if (socket.bytesRead !== read || isHeldBack) {
      read = socket.bytesRead
      since = performance.now()
    } else if (performance.now() - since >= idle) {
      clearInterval(look)
      giveUp(request, response, errorBody())
    }
  }, idle / LOOKS)
  const stop = () => clearInterval(look)
  request.once('end', stop)
  request.once('close', stop)
}
