/** A provider of Responses over WebSocket: it does what a script says and keeps what a connection keeps. */
import type { IncomingMessage } from 'node:http'
import { setImmediate } from 'node:timers/promises'
import { type WebSocket, WebSocketServer } from 'ws'
import { type Answer, type ChatBody, serve } from './provider.ts'
import { eventTexts, faultOf, type Item, inputOf, responseEvents, responseObject } from './responses.ts'

/** A message as the provider got it. */
export interface ReceivedMessage {
  readonly connection: number
  readonly text: string
  readonly json: ChatBody
  /** Everything that the model sees; unset if the message is no request, or one that was refused. */
  readonly items?: readonly Item[]
  readonly headers: IncomingMessage['headers']
}

/** The model's answer: as over HTTP, or the messages themselves. A text of `messages` is sent as it is. */
export type SocketAnswer = Answer & { readonly messages?: readonly (string | Item)[] }

export type SocketScript = (
  message: ReceivedMessage,
  number: number,
  socket: WebSocket,
) => SocketAnswer | Promise<SocketAnswer>

export interface SocketProvider {
  readonly url: string
  /** Every message so far, oldest first. */
  readonly received: ReceivedMessage[]
  /** Every message that it sent so far, by connection. */
  readonly sent: string[][]
  /** The connections, in the order in which they opened. */
  readonly connections: WebSocket[]
  /** Targets of the requests that were no upgrade. */
  readonly posts: string[]
  close(): Promise<void>
}

export interface SocketProviderOptions {
  /** Fields of the 101. */
  readonly headers?: readonly string[]
  /** It answers no ping. */
  readonly isSilent?: boolean
  /** Answers an upgrade with this status instead. */
  readonly refuses?: (request: IncomingMessage) => { status: number; body?: string; headers?: string } | undefined
}

const NOT_FOUND = 'previous_response_not_found'

/** Returns the events of an answer as the objects that a socket carries. */
export function eventsOf(request: ChatBody, answer: Answer, number: number): Item[] {
  const frames = eventTexts(responseEvents(responseObject(request, answer, number)))
  return frames.map((frame) => JSON.parse(frame.slice(frame.indexOf('data: ') + 6)) as Item)
}

/** What one connection keeps: the newest response of each lane, and those that were stored. */
interface Lane {
  busy: Promise<void>
  newest?: { readonly id: string; readonly items: readonly Item[] } | undefined
}

/** Starts a provider whose `script` answers request after request, numbered from 1 over all connections. */
export async function startSocketProvider(
  script: SocketScript,
  options: SocketProviderOptions = {},
): Promise<SocketProvider> {
  const received: ReceivedMessage[] = []
  const sent: string[][] = []
  const connections: WebSocket[] = []
  const posts: string[] = []
  const stored = new Map<string, readonly Item[]>()
  let number = 0
  const { url, server, close } = await serve((request, response) => {
    posts.push(request.url ?? '')
    request.resume()
    response.writeHead(404, { 'content-type': 'application/json' }).end('{"error":{"message":"no such path"}}')
  })
  const sockets = new WebSocketServer({
    noServer: true,
    perMessageDeflate: true,
    maxPayload: 64 * 1024 * 1024,
    autoPong: options.isSilent !== true,
  })
  sockets.on('headers', (lines) => lines.push(...(options.headers ?? [])))
  const attach = (socket: WebSocket, { headers }: IncomingMessage) => {
    const connection = connections.push(socket) - 1
    const lanes = new Map<unknown, Lane>()
    const log: string[] = []
    sent.push(log)
    const send = (text: string) => {
      log.push(text)
      socket.send(text)
    }
    const answerTo = async (message: ReceivedMessage, lane: Lane) => {
      const { json } = message
      const { stream_id: stream, previous_response_id: previous } = json
      const inLane = (event: Item) => (stream === undefined ? event : { ...event, stream_id: stream })
      const known = [...lanes.values()].find(({ newest }) => newest?.id === previous)?.newest?.items
      const before = typeof previous === 'string' ? (known ?? stored.get(previous)) : []
      if (!before) {
        const error = { type: 'invalid_request_error', code: NOT_FOUND, message: 'Previous response not found.' }
        return send(
          JSON.stringify(inLane({ type: 'error', status: 400, error: { ...error, param: 'previous_response_id' } })),
        )
      }
      const items = [...before, ...inputOf(json)]
      const fault = json['generate'] === false ? undefined : faultOf(items)
      if (fault) {
        if (lane.newest?.id === previous) lane.newest = undefined
        const error = { type: 'invalid_request_error', code: null, message: fault, param: 'input' }
        return send(JSON.stringify(inLane({ type: 'error', status: 400, error })))
      }
      const seen = Object.assign(message, { items })
      const at = ++number
      const answer = json['generate'] === false ? {} : await script(seen, at, socket)
      if (answer.status !== undefined) {
        if (lane.newest?.id === previous) lane.newest = undefined
        const { error } = answer.body as { error: object }
        return send(JSON.stringify(inLane({ type: 'error', status: answer.status, error })))
      }
      const whole = responseObject(json, answer, at)
      const events = answer.messages ?? eventsOf(json, answer, at)
      for (const event of events) {
        if (socket.readyState !== socket.OPEN) return
        send(typeof event === 'string' ? event : JSON.stringify(inLane(event)))
        // Several messages in one packet, and one message alone, both occur.
        if (log.length % 3 === 0) await setImmediate()
      }
      const all = [...items, ...(whole['output'] as Item[])]
      lane.newest = { id: String(whole['id']), items: all }
      if (json['store'] !== false) stored.set(String(whole['id']), all)
    }
    socket.on('error', () => undefined)
    socket.on('message', (data) => {
      const text = data.toString()
      let json = {} as ChatBody
      try {
        json = JSON.parse(text) as ChatBody
      } catch {}
      const message: ReceivedMessage = { connection, text, json, headers }
      received.push(message)
      if (json['type'] !== 'response.create') return
      const lane = lanes.get(json['stream_id']) ?? { busy: Promise.resolve() }
      lanes.set(json['stream_id'], lane)
      lane.busy = lane.busy.then(() => answerTo(message, lane))
    })
  }
  server.on('upgrade', (request, socket, head) => {
    const refusal = options.refuses?.(request)
    if (!refusal) return sockets.handleUpgrade(request, socket, head, attach)
    const { status, body = '', headers = '' } = refusal
    socket.end(
      `HTTP/1.1 ${status} Refused\r\ncontent-type: application/json\r\ncontent-length: ${body.length}\r\n${headers}\r\n${body}`,
    )
  })
  return {
    url,
    received,
    sent,
    connections,
    posts,
    async close() {
      for (const socket of connections) socket.terminate()
      await close()
    },
  }
}
