/**
 * One guarded WebSocket: requests of the client become exchanges, each with the response that the provider sends in the
 * same lane. All other messages pass as they are.
 */
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import type WebSocket from 'ws'
import { type SocketEvent, type SocketForm, STEERED } from '../dialect/dialect.ts'
import { pairsOf, type RawHeaders, withoutBodyFields } from '../http/headers.ts'
import type { Transport } from '../http/transport.ts'
import type { Route } from '../proxy/door/route.ts'
import { exchange } from '../proxy/exchange.ts'
import type { Services } from '../proxy/services.ts'
import { createEventClient, createFraming, type EventSink } from './event-client.ts'

/** How many requests of one connection wait for the end of their responses, as at OpenAI. */
const MAX_OPEN = 16
/** Messages that wait for a request before them, or for the end of a response, at most. */
const MAX_WAITING = 64
/** Bytes of such messages beyond which the client is not read: as many as the longest message has. */
const MAX_WAITING_BYTES = 16_777_216
/** Bytes that a side has not read yet: then the other side is not read either. */
const MAX_UNREAD = 1_048_576
/** How many pings in a row a side may leave without any sign of life. */
const MAX_SILENT = 2

type Dispatch = Parameters<Transport['dispatch']>

/** A message upstream that asks for a response. */
interface Attempt {
  readonly handler: Dispatch[1]
  readonly request: OpenRequest
  /** Returns a message as an event of its response. */
  readonly frame: (message: Buffer) => Buffer
  hasHead: boolean
  isPaused: boolean
  /** Nobody reads its response any more, which comes nevertheless. */
  isAborted: boolean
  /** When something came for it, on `performance.now()`. */
  heardAt: number
}

/** A request whose response is not over. */
interface OpenRequest {
  readonly leave: () => void
  /** A message for it went upstream, or nothing will. */
  isSent: boolean
  /** The provider has ended a response to it. */
  hasEnded: boolean
  /** What came of a response that has begun, until somebody reads it. */
  early: Message[] | undefined
}

/** A message of the client that waits for the requests before it; without one, a request. */
interface Passing {
  readonly message?: Message
  readonly request?: OpenRequest
}

interface Message {
  readonly data: Buffer
  readonly isBinary: boolean
}

/** What a response answers. */
interface Asked {
  readonly message: Buffer
  readonly headers: RawHeaders
  /** Its response has begun, so that the request must not be sent. */
  readonly hasBegun?: true
}

/** Requests one after the other, as the provider answers them. */
interface Lane {
  readonly name: string
  /** The provider names the lane in its events. */
  isNamed: boolean
  readonly queue: Asked[]
  current: OpenRequest | undefined
  /** The newest request, its response, and what may follow that without a request. */
  asked: Asked | undefined
  response: string
  steered: Asked | undefined
  /** Those upstream, oldest first: events belong to the first. */
  readonly attempts: Attempt[]
  /** What came for the lane after the end of a response that the client does not have yet. */
  readonly after: Message[]
}

/** Both sides of a connection, and what it was opened with. */
export interface SocketPair {
  readonly services: Services
  readonly route: Route
  readonly form: SocketForm
  readonly head: { readonly target: string; readonly headers: RawHeaders }
  readonly client: WebSocket
  readonly upstream: WebSocket
  /** Milliseconds; 0 is no limit. */
  readonly limits: { readonly silence: number; readonly firstByte: number; readonly idle: number }
}

interface Connection extends SocketPair {
  readonly lanes: Map<string, Lane>
  /** Requests that wait or run, and those that run. */
  open: number
  running: number
  passing: Passing[]
  /** Writers that wait until the client has read. */
  unread: (() => void)[]
  /** How the upstream ended the connection. */
  ending: { readonly code: number; readonly reason: Buffer } | undefined
  readonly silent: { client: number; upstream: number }
}

/** Carries the messages of a connection until it ends. */
export function carry(pair: SocketPair): void {
  const { client, upstream, services, limits } = pair
  const c: Connection = {
    ...pair,
    lanes: new Map(),
    open: 0,
    running: 0,
    passing: [],
    unread: [],
    ending: undefined,
    silent: { client: 0, upstream: 0 },
  }
  const { draining } = services
  const timer = limits.silence > 0 ? setInterval(check, limits.silence / MAX_SILENT, c).unref() : undefined
  const drain = () => {
    for (const lane of c.lanes.values()) dropQueue(c, lane)
    endIfDone(c)
  }
  draining.addEventListener('abort', drain)
  client.on('message', (data: Buffer, isBinary) => fromClient(c, { data, isBinary }))
  upstream.on('message', (data: Buffer, isBinary) => fromUpstream(c, { data, isBinary }))
  for (const side of ['client', 'upstream'] as const) {
    const heard = () => {
      c.silent[side] = 0
    }
    c[side].on('message', heard).on('ping', heard).on('pong', heard)
  }
  upstream.on('error', (error) => {
    if (Reflect.get(error, 'code') === 'WS_ERR_UNSUPPORTED_MESSAGE_LENGTH') closeWith(client, 1009, Buffer.alloc(0))
  })
  client.on('error', () => undefined)
  upstream.once('close', (code, reason) => upstreamLeft(c, code, reason))
  client.once('close', (code, reason) => {
    draining.removeEventListener('abort', drain)
    clearInterval(timer)
    for (const lane of c.lanes.values()) {
      dropQueue(c, lane)
      lane.current?.leave()
    }
    closeWith(upstream, code, reason)
  })
  if (draining.aborted) drain()
}

/** Closes one side as the other was closed. */
function closeWith(socket: WebSocket, code: number, reason: Buffer): void {
  // Codes of endings without a close message (RFC 6455, section 7.4.1).
  if (code === 1005) socket.close()
  else if (code === 1006 || code === 1015) socket.terminate()
  else socket.close(code, reason)
}

/** Looks for sides that are gone without a word, and for responses that do not go on. */
function check(c: Connection): void {
  const { limits, lanes } = c
  for (const side of ['client', 'upstream'] as const) {
    const socket = c[side]
    if (socket.readyState !== socket.OPEN || socket.isPaused) continue
    if (c.silent[side]++ >= MAX_SILENT) socket.terminate()
    else socket.ping()
  }
  for (const { attempts } of lanes.values()) {
    const [first] = attempts
    if (!first || first.isAborted || first.isPaused) continue
    const limit = first.hasHead ? limits.idle : limits.firstByte
    if (limit === 0 || performance.now() - first.heardAt < limit) continue
    const code = first.hasHead ? 'UND_ERR_BODY_TIMEOUT' : 'UND_ERR_HEADERS_TIMEOUT'
    abort(c, first, Object.assign(new Error('no event in time'), { code }))
  }
}

function send(c: Connection, to: WebSocket, { data, isBinary }: Message): void {
  if (to.readyState !== to.OPEN) return
  const isMuch = to.bufferedAmount + data.length > MAX_UNREAD
  to.send(data, { binary: isBinary }, isMuch ? () => balance(c) : undefined)
  if (isMuch) balance(c)
}

/** Reads a side only while the other side reads. */
function balance(c: Connection): void {
  const { client, upstream, lanes, unread } = c
  const isHeld = [...lanes.values()].some(
    ({ attempts, current }) => attempts.some(({ isPaused }) => isPaused) || (current?.early?.length ?? 0) > MAX_WAITING,
  )
  const isFull = c.open >= MAX_OPEN || c.passing.length >= MAX_WAITING || waitingBytes(c) > MAX_WAITING_BYTES
  setPaused(client, isFull || upstream.bufferedAmount > MAX_UNREAD)
  setPaused(upstream, isHeld || client.bufferedAmount > MAX_UNREAD)
  if (client.readyState === client.OPEN && client.bufferedAmount > MAX_UNREAD) return
  c.unread = []
  for (const call of unread) call()
}

function waitingBytes({ passing, lanes }: Connection): number {
  let bytes = 0
  for (const { message } of passing) bytes += message?.data.length ?? 0
  for (const { queue } of lanes.values()) for (const { message } of queue) bytes += message.length
  return bytes
}

function setPaused(socket: WebSocket, isPaused: boolean): void {
  if (socket.readyState !== socket.OPEN || socket.isPaused === isPaused) return
  if (isPaused) socket.pause()
  else socket.resume()
}

function laneOf({ lanes }: Connection, name: string): Lane {
  const empty = { queue: [], attempts: [], after: [], current: undefined, asked: undefined, steered: undefined }
  const lane = lanes.get(name) ?? { name, isNamed: name !== '', response: '', ...empty }
  lanes.set(name, lane)
  return lane
}

function fromClient(c: Connection, message: Message): void {
  const request = message.isBinary ? undefined : c.form.readRequest(message.data)
  if (!request) {
    if (!message.isBinary) steer(c, message.data)
    c.passing.push({ message })
    return pass(c)
  }
  if (c.services.draining.aborted || c.ending) return
  const lane = laneOf(c, request.lane)
  lane.queue.push({ message: message.data, headers: request.headers })
  lane.steered = undefined
  c.open++
  balance(c)
  begin(c, lane)
}

/** Remembers what a response answers that may follow one under way without a request. */
function steer({ form, lanes }: Connection, message: Buffer): void {
  const id = form.steeredBy(message)
  const lane = id ? [...lanes.values()].find(({ current, response }) => current && response === id) : undefined
  if (!lane?.asked) return
  const { message: request, headers } = lane.asked
  lane.steered = { message: form.steered(request, message), headers, hasBegun: true }
}

/** Sends what waits for no request any more. */
function pass(c: Connection): void {
  for (let [first] = c.passing; first && first.request?.isSent !== false; [first] = c.passing) {
    c.passing.shift()
    if (first.message) send(c, c.upstream, first.message)
  }
  balance(c)
}

function begin(c: Connection, lane: Lane): void {
  // What came together is read together, however soon the client is paused.
  const next = lane.current || c.running >= MAX_OPEN ? undefined : lane.queue.shift()
  if (next) beginWith(c, lane, next)
}

/** Begins a request in a lane that has none. */
function beginWith(c: Connection, lane: Lane, next: Asked): void {
  c.running++
  lane.asked = next
  const { services, route, form, head } = c
  const { frame, message } = createFraming()
  const secret = new Set(services.credentialPlaces.headers)
  const stated = pairsOf(next.headers).filter(([name]) => !secret.has(name.toLowerCase()))
  const headers = [...stated.flat(), ...head.headers]
  const sink: EventSink = {
    send: (event) => send(c, c.client, { data: lane.isNamed ? form.inLane(event, lane.name) : event, isBinary: false }),
    whenRead(call) {
      if (c.client.bufferedAmount > MAX_UNREAD) c.unread.push(call)
      else call()
    },
    isEnding: () => c.ending !== undefined,
    brokenOff: () =>
      form.errorEvent(502, Buffer.from(route.api.errorBody('no_response', BROKEN, 'upstream_broken', 502))),
  }
  const client = createEventClient({ ...head, method: 'WEBSOCKET', headers }, next.message, form, message, sink)
  const early = next.hasBegun && []
  const request: OpenRequest = { leave: client.leave, isSent: false, hasEnded: false, early }
  lane.current = request
  c.passing.push({ request })
  const transport: Transport = {
    dispatch: ({ body }, handler) => dispatch(c, lane, { handler, request, frame, ...UNSENT }, body),
    destroy: async () => {},
  }
  // What may change while the request runs is read where it changes.
  const own: Services = Object.assign(Object.create(services), { transport })
  const at = next.hasBegun ? { ...route, asked: route.asked + STEERED } : route
  exchange(own, client, at).catch(() => {
    sink.send(sink.brokenOff())
    client.leave()
  })
  client.onClose(() => finish(c, lane, request))
}

const BROKEN = 'The response broke off.'
const UNSENT = { hasHead: false, isPaused: false, isAborted: false, heardAt: 0 }
const CLOSED = Object.assign(new Error('the WebSocket is closed'), { code: 'UND_ERR_SOCKET' })

/** Sends a request upstream, whose response comes as that of any transport. */
function dispatch(c: Connection, lane: Lane, attempt: Attempt, body: Dispatch[0]['body']): boolean {
  const { handler, request } = attempt
  const failed = (error: Error) => handler.onError?.(error)
  const go = (data: Buffer) => {
    if (attempt.isAborted) return
    if (c.upstream.readyState !== c.upstream.OPEN) return failed(CLOSED)
    attempt.heardAt = performance.now()
    lane.attempts.push(attempt)
    const { early } = request
    request.early = undefined
    request.isSent = true
    if (!early) send(c, c.upstream, { data, isBinary: false })
    else for (const message of early) fromUpstream(c, message)
    pass(c)
  }
  handler.onConnect?.((reason = CLOSED) => abort(c, attempt, reason))
  if (body instanceof Readable) buffer(body).then(go, failed)
  else go(Buffer.isBuffer(body) ? body : Buffer.concat([body as Buffer].flat()))
  return true
}

/** Reads no more of a response, whose rest is dropped as it comes: a connection has no other way to end one. */
function abort(c: Connection, attempt: Attempt, reason: Error): void {
  if (attempt.isAborted) return
  attempt.isAborted = true
  attempt.isPaused = false
  attempt.handler.onError?.(reason)
  balance(c)
}

function fromUpstream(c: Connection, message: Message): void {
  const { lanes } = c
  if (message.isBinary) return send(c, c.client, message)
  const event = c.form.readEvent(message.data)
  const isFree = event.kind === 'other' || event.kind === 'unsteered'
  // A provider that knows no lanes names none, nor does an error of the whole connection.
  const [only] = lanes.size === 1 && !isFree ? lanes.values() : []
  const lane = event.lane === undefined ? (lanes.get('') ?? only) : lanes.get(event.lane)
  const [attempt] = lane?.attempts ?? []
  if (lane && event.kind === 'unsteered') lane.steered = undefined
  if (lane && attempt && (attempt.hasHead || !isFree)) return take(c, lane, attempt, event, message.data)
  if (lane?.steered && !lane.current && event.kind === 'begin') {
    const { steered } = lane
    lane.steered = undefined
    c.open++
    beginWith(c, lane, steered)
  }
  const { early } = lane?.current ?? {}
  if (early) {
    early.push(message)
    return balance(c)
  }
  // What comes before a response needs no waiting; what comes after one must not arrive before its end.
  if (lane?.current?.hasEnded && lane.after.length < MAX_WAITING) lane.after.push(message)
  else send(c, c.client, message)
}

function take(c: Connection, lane: Lane, attempt: Attempt, event: SocketEvent, data: Buffer): void {
  const isEnd = event.kind === 'end' || event.kind === 'error'
  if (event.kind === 'begin') lane.response = event.id ?? ''
  if (event.lane === undefined) lane.isNamed = false
  attempt.heardAt = performance.now()
  if (isEnd) {
    lane.attempts.shift()
    attempt.request.hasEnded = true
  }
  if (!attempt.isAborted) give(c, attempt, event, data, isEnd)
  if (isEnd) tidy(c, lane)
}

const EVENT_STREAM = ['content-type', 'text/event-stream']
const JSON_BODY = ['content-type', 'application/json']

/** Gives an event to the reader of the response: an error that comes first is a reply with its status. */
function give(c: Connection, attempt: Attempt, event: SocketEvent, data: Buffer, isEnd: boolean): void {
  const { handler, hasHead, frame } = attempt
  const isReply = !hasHead && event.kind === 'error'
  const resume = () => {
    attempt.isPaused = false
    balance(c)
  }
  if (!hasHead) {
    const { status = 200, headers = [] } = event
    const raw = isReply ? [...JSON_BODY, ...withoutBodyFields(headers)] : EVENT_STREAM
    attempt.hasHead = true
    handler.onHeaders?.(
      status,
      raw.map((text) => Buffer.from(text, 'latin1')),
      resume,
      '',
    )
  }
  const goesOn = handler.onData?.(isReply ? data : frame(data))
  if (isEnd) handler.onComplete?.([])
  else if (goesOn === false) {
    attempt.isPaused = true
    balance(c)
  }
}

/** The response to a request is over for the client. */
function finish(c: Connection, lane: Lane, request: OpenRequest): void {
  lane.current = undefined
  request.isSent = true
  c.open--
  c.running--
  for (const message of lane.after.splice(0)) fromUpstream(c, message)
  pass(c)
  for (const other of c.lanes.values()) begin(c, other)
  tidy(c, lane)
  endIfDone(c)
}

function dropQueue(c: Connection, { queue }: Lane): void {
  c.open -= queue.splice(0).length
}

function tidy({ lanes }: Connection, { name, current, queue, attempts, steered }: Lane): void {
  if (!current && !steered && queue.length + attempts.length === 0) lanes.delete(name)
}

function upstreamLeft(c: Connection, code: number, reason: Buffer): void {
  c.ending = { code, reason }
  for (const lane of c.lanes.values()) {
    dropQueue(c, lane)
    for (const attempt of lane.attempts.splice(0)) abort(c, attempt, CLOSED)
    if (lane.current?.isSent === false) lane.current.leave()
  }
  endIfDone(c)
}

/** Ends the connection of the client, if the upstream or Governor has ended and no response is left. */
function endIfDone({ open, ending, client, services }: Connection): void {
  if (open > 0) return
  if (ending) closeWith(client, ending.code, ending.reason)
  else if (services.draining.aborted) client.close(1012, 'Governor is shutting down: connect again.')
}
