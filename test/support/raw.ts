/** Plain TCP on both sides of a Governor: the bytes that were really sent. Texts are bytes in Latin-1. */
import { once } from 'node:events'
import net, { type AddressInfo, type Socket } from 'node:net'
import { pino } from 'pino'
import { onTestFinished } from 'vitest'
import { buildGovernor } from '../../src/app.ts'
import { checkConfig } from '../../src/config/load.ts'

/** One end of a connection: bytes are taken in the order they came. */
export interface Wire {
  readonly socket: Socket
  /** Settles when the connection is closed for good; `reset` if it was reset. */
  readonly closed: Promise<'closed' | 'reset'>
  write(bytes: string | Buffer): void
  /** Takes all bytes up to and including the next `mark`; fewer if the peer ends first. */
  until(mark: string): Promise<Buffer>
  /** Takes `count` bytes; fewer when the peer ends first. */
  take(count: number): Promise<Buffer>
  /** Takes the next available bytes; none if the peer has ended. */
  some(): Promise<Buffer>
  /** Takes all bytes until the peer ends. */
  rest(): Promise<Buffer>
  /** Takes one whole message. `bodyless`: a response to HEAD. */
  message(bodyless?: boolean): Promise<Message>
}

/** A request or a response as it was on the wire. */
export interface Message {
  /** Request or status line. */
  readonly line: string
  /** Fields as they were received, `Name: value`. */
  readonly fields: readonly string[]
  /** Without its chunks. */
  readonly body: Buffer
  readonly trailers: readonly string[]
  /** False if the connection ended in the middle. */
  readonly isComplete: boolean
}

/** The value of a field by its lower-case name; of several, the first. */
export function fieldOf({ fields }: Pick<Message, 'fields'>, name: string): string | undefined {
  const field = fields.find((item) => item.toLowerCase().startsWith(`${name}:`))
  return field?.slice(name.length + 1).trim()
}

/** Fields in which two hops may differ: framing and connection. */
const HOP = /^(?:host|connection|keep-alive|content-length|transfer-encoding):/i

/** The fields that belong to the message and not to its hop, in their order. */
export function endToEnd({ fields }: Message): string[] {
  return fields.filter((field) => !HOP.test(field))
}

const EMPTY = Buffer.alloc(0)

export function wireOf(socket: Socket): Wire {
  let chunks: Buffer[] = []
  let length = 0
  let hasEnded = false
  let wake: (() => void) | undefined
  const closed = new Promise<'closed' | 'reset'>((resolve) => {
    let how: 'closed' | 'reset' = 'closed'
    socket.on('error', () => {
      how = 'reset'
    })
    socket.once('close', () => {
      hasEnded = true
      wake?.()
      resolve(how)
    })
  })
  socket.on('data', (chunk) => {
    chunks.push(chunk)
    length += chunk.length
    wake?.()
  })
  socket.once('end', () => {
    hasEnded = true
    wake?.()
  })
  const more = () =>
    new Promise<void>((resolve) => {
      wake = resolve
    })
  const cut = (count: number): Buffer => {
    const [only] = chunks
    const all = chunks.length === 1 && only ? only : Buffer.concat(chunks, length)
    const taken = all.subarray(0, count)
    const left = all.subarray(count)
    chunks = left.length > 0 ? [left] : []
    length = left.length
    return taken
  }
  const wire: Wire = {
    socket,
    closed,
    write(bytes) {
      socket.write(typeof bytes === 'string' ? Buffer.from(bytes, 'latin1') : bytes)
    },
    async until(mark) {
      for (;;) {
        const all = Buffer.concat(chunks, length)
        chunks = length > 0 ? [all] : []
        const at = all.indexOf(mark, 0, 'latin1')
        if (at !== -1) return cut(at + mark.length)
        if (hasEnded) return cut(length)
        await more()
      }
    },
    async take(count) {
      while (length < count && !hasEnded) await more()
      return cut(Math.min(count, length))
    },
    async some() {
      while (length === 0 && !hasEnded) await more()
      return cut(length)
    },
    async rest() {
      while (!hasEnded) await more()
      return cut(length)
    },
    message: (bodyless = false) => readMessage(wire, bodyless),
  }
  return wire
}

async function readFields(wire: Wire): Promise<string[] | undefined> {
  const fields: string[] = []
  for (;;) {
    const line = (await wire.until('\r\n')).toString('latin1')
    if (line === '\r\n') return fields
    if (!line.endsWith('\r\n')) return undefined
    fields.push(line.slice(0, -2))
  }
}

async function readMessage(wire: Wire, bodyless: boolean): Promise<Message> {
  const [line = '', ...fields] = (await wire.until('\r\n\r\n')).toString('latin1').split('\r\n').slice(0, -2)
  const message = { line, fields, body: EMPTY, trailers: [], isComplete: line !== '' }
  const [, status] = /^HTTP\/1\.\d (\d+)/.exec(line) ?? []
  if (bodyless || (status !== undefined && /^(?:1..|204|304)$/.test(status))) return message
  if (/chunked/i.test(fieldOf(message, 'transfer-encoding') ?? '')) {
    const parts: Buffer[] = []
    for (;;) {
      const size = Number.parseInt((await wire.until('\r\n')).toString('latin1'), 16)
      if (size === 0) break
      const data = await wire.take(size + 2)
      parts.push(data.subarray(0, size))
      if (Number.isNaN(size) || data.length < size + 2) {
        return { ...message, body: Buffer.concat(parts), isComplete: false }
      }
    }
    const trailers = await readFields(wire)
    const isComplete = trailers !== undefined
    return { ...message, body: Buffer.concat(parts), trailers: trailers ?? [], isComplete }
  }
  const size = fieldOf(message, 'content-length')
  if (size !== undefined) {
    const body = await wire.take(Number(size))
    return { ...message, body, isComplete: body.length === Number(size) }
  }
  // A response without a length ends with its connection; a request without one has no body.
  return status === undefined ? message : { ...message, body: await wire.rest() }
}

const clients = new Set<Socket>()

/** Ends what `connect` opened; for tests that share a Governor. */
export function closeClients(): void {
  for (const socket of clients) socket.destroy()
  clients.clear()
}

/** Closes every client, then what they and the Governor in between were connected to, in the order given. */
export async function closeRaw(...open: readonly { close(): Promise<void> }[]): Promise<void> {
  closeClients()
  for (const one of open) await one.close()
}

/** Opens a connection to an address such as `http://127.0.0.1:8787`. */
export function connect(url: string): Wire {
  const { hostname, port } = new URL(url)
  const socket = net.connect({ host: hostname, port: Number(port), noDelay: true })
  clients.add(socket)
  socket.once('close', () => clients.delete(socket))
  return wireOf(socket)
}

export interface RawUpstream {
  readonly url: string
  readonly port: number
  /** The next connection that receives bytes, oldest first; an idle connection does not count. */
  accept(): Promise<Wire>
  close(): Promise<void>
}

/** A TCP server on a free port that does nothing but accept. */
export async function listenRaw(): Promise<RawUpstream> {
  const server = net.createServer({ allowHalfOpen: true, noDelay: true })
  const sockets = new Set<Socket>()
  const ready: Wire[] = []
  const waiting: ((wire: Wire) => void)[] = []
  server.on('connection', (socket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    const wire = wireOf(socket)
    socket.once('data', () => {
      const next = waiting.shift()
      if (next) next(wire)
      else ready.push(wire)
    })
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  return {
    url: `http://127.0.0.1:${port}`,
    port,
    accept() {
      const wire = ready.shift()
      return wire ? Promise.resolve(wire) : new Promise((resolve) => waiting.push(resolve))
    },
    async close() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

/** The same for the current test only. */
export async function startRaw(): Promise<RawUpstream> {
  const upstream = await listenRaw()
  onTestFinished(async () => {
    closeClients()
    await upstream.close()
  })
  return upstream
}

/** An upstream that answers every request with the bytes in `reply`, and keeps the requests. */
export interface Answering extends RawUpstream {
  reply: string | Buffer
  /** Ends the connection after each reply. */
  closes: boolean
  /** Requests since it was last emptied. */
  readonly requests: Message[]
  /** Connections since the start. */
  readonly count: number
}

export async function listenAnswering(): Promise<Answering> {
  const upstream = await listenRaw()
  let count = 0
  const answering = {
    ...upstream,
    reply: 'HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n' as string | Buffer,
    closes: false,
    requests: [] as Message[],
    get count() {
      return count
    },
  }
  const serve = async (wire: Wire) => {
    for (;;) {
      const request = await wire.message()
      if (!request.isComplete) return wire.socket.end()
      answering.requests.push(request)
      wire.write(answering.reply)
      if (answering.closes) return wire.socket.end()
    }
  }
  const acceptAll = async () => {
    for (;;) {
      const wire = await upstream.accept()
      count++
      void serve(wire)
    }
  }
  void acceptAll()
  return answering
}

/** A Governor that several tests share; the caller closes it. */
export async function openGovernor(upstream: string, config: Record<string, unknown> = {}, server: object = {}) {
  const upstreams = { openai: { url: upstream }, anthropic: { url: upstream }, gemini: { url: upstream } }
  const checked = checkConfig({ upstreams, ...config, server: { port: 0, ...server } }, 'test')
  const governor = buildGovernor(checked, { log: pino({ level: 'silent' }) })
  const url = await governor.listen()
  return { url, routes: governor.routes, close: () => governor.close() }
}
