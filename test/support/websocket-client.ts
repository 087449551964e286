/** A client of Responses over WebSocket, which keeps every message that it gets. */
import { once } from 'node:events'
import { onTestFinished } from 'vitest'
import { type ClientOptions, WebSocket } from 'ws'
import type { Item } from './responses.ts'

export interface SocketClient {
  readonly socket: WebSocket
  /** Every message so far, as its text. */
  readonly messages: string[]
  /** Fields of the 101. */
  readonly headers: Readonly<Record<string, string | string[] | undefined>>
  /** Settles with the code when the connection is closed. */
  readonly closed: Promise<{ readonly code: number; readonly reason: string }>
  send(message: object | string): void
  /** Sends a request; returns its events, up to the last. */
  ask(request: object): Promise<Item[]>
  /** Waits until the messages meet a condition. */
  until<T>(find: (messages: readonly string[]) => T | undefined | false): Promise<T>
}

const ENDS = /^(?:response\.(?:completed|incomplete|failed)|error)$/

/** True for the last event of a response. */
export function isLast(event: Item): boolean {
  return ENDS.test(String(event['type']))
}

/** Opens a WebSocket for the current test. */
export async function openSocket(
  url: string,
  headers: Readonly<Record<string, string>> = {},
  options: ClientOptions = {},
): Promise<SocketClient> {
  const address = `${url.replace('http', 'ws')}/v1/responses`
  const socket = new WebSocket(address, { headers, perMessageDeflate: true, ...options })
  const messages: string[] = []
  const waiting = new Set<() => void>()
  let fields = {}
  onTestFinished(() => socket.terminate())
  socket.on('message', (data) => {
    messages.push(data.toString())
    for (const look of waiting) look()
  })
  socket.on('upgrade', (response) => {
    fields = response.headers
  })
  const closed = new Promise<{ code: number; reason: string }>((resolve) => {
    socket.once('close', (code, reason) => resolve({ code, reason: reason.toString() }))
  })
  await once(socket, 'open')
  socket.on('error', () => undefined)
  const until: SocketClient['until'] = (find) =>
    new Promise((resolve, reject) => {
      const look = () => {
        const found = find(messages)
        if (found === undefined || found === false) return
        waiting.delete(look)
        resolve(found)
      }
      waiting.add(look)
      closed.then(({ code }) => reject(new Error(`closed with ${code} after ${messages.length} messages`)))
      look()
    })
  const send = (message: object | string) =>
    socket.send(typeof message === 'string' ? message : JSON.stringify(message))
  return {
    socket,
    messages,
    get headers() {
      return fields
    },
    closed,
    send,
    async ask(request) {
      const from = messages.length
      send({ type: 'response.create', ...request })
      return until((all) => {
        const events = all.slice(from).map((text) => JSON.parse(text) as Item)
        const last = events.findIndex(isLast)
        return last !== -1 && events.slice(0, last + 1)
      })
    },
    until,
  }
}

/** Opens a WebSocket; returns the status and the body of the answer if that is no 101. */
export function refusedSocket(
  url: string,
  headers: Readonly<Record<string, string>> = {},
  path = '/v1/responses',
): Promise<{ readonly status: number; readonly body: string; header(name: string): string | undefined }> {
  const socket = new WebSocket(url.replace('http', 'ws') + path, { headers })
  return new Promise((resolve, reject) => {
    socket.once('open', () => {
      socket.terminate()
      reject(new Error('the upgrade was accepted'))
    })
    socket.once('error', reject)
    socket.once('unexpected-response', async (_, response) => {
      let body = ''
      for await (const chunk of response) body += chunk
      resolve({
        status: response.statusCode ?? 0,
        body,
        header: (name) => [response.headers[name]].flat()[0],
      })
    })
  })
}
