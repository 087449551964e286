/** The connections to all upstreams. They are kept alive; there are as many as concurrent requests. */
import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { Agent, buildConnector, type Dispatcher, EnvHttpProxyAgent, errors, Pool } from 'undici'
import { pairsOf } from './headers.ts'

/** HTTP_PROXY, HTTPS_PROXY and NO_PROXY: the URL of a forward proxy by the scheme of the upstream. */
export interface Proxies {
  readonly http: string | undefined
  readonly https: string | undefined
  readonly noProxy: string | undefined
}

/** Time limits in milliseconds; 0 is no limit. */
export interface TransportSettings {
  readonly connect: number
  readonly firstByte: number
  readonly idle: number
  readonly proxies: Proxies | undefined
}

export type Transport = ReturnType<typeof createTransport>

/**
 * Milliseconds for which an idle connection is kept if the upstream does not state it: a new one costs two or three
 * round trips, load balancers mostly keep them for a minute. `short`: at upstreams that close them themselves; some do
 * after five seconds (uvicorn, and so vLLM), and a request that is sent meanwhile is lost.
 */
const PATIENCE = { long: 50_000, short: 4_000 }

/** Milliseconds for which an upstream counts as one that closes idle connections itself: an hour. */
const REMEMBERED_MS = 3_600_000

/** This machine, which is never reached through a proxy. */
const LOOPBACK = 'localhost,127.0.0.1,::1,[::1]'

/** Joins fields of one name (RFC 9110, section 5.3): undici's proxy agent would send only the last. */
function withoutRepeats(headers: readonly string[]): string[] {
  const values = new Map<string, string>()
  for (const [name, value] of pairsOf(headers)) {
    const before = values.get(name)
    const separator = name.toLowerCase() === 'cookie' ? '; ' : ', '
    values.set(name, before === undefined ? value : before + separator + value)
  }
  return [...values].flat()
}

/** Opens no connection before the first request. */
export function createTransport(settings: TransportSettings, patience = PATIENCE) {
  const { connect, firstByte, idle, proxies } = settings
  const connections: Connections = new WeakMap()
  const begin = (message: unknown) => {
    const connection = connections.get((message as { readonly socket: object }).socket)
    if (connection) connection.isHead = true
  }
  subscribe(REQUEST_BEGINS, begin)
  const pool: PoolFactory = (origin, poolOptions) => poolOf(origin, poolOptions, connections)
  const agentWith = (keepAliveTimeout: number, factory: PoolFactory): Dispatcher => {
    const options: Agent.Options = {
      connect: buildConnector({ timeout: connect }),
      headersTimeout: firstByte,
      bodyTimeout: idle,
      maxHeaderSize: 131_072,
      pipelining: 1,
      keepAliveTimeout,
      factory,
    }
    if (!proxies) return new Agent(options)
    const { http: httpProxy = '', https: httpsProxy = '', noProxy = '' } = proxies
    const direct = noProxy.split(/[,\s]/).includes('*') ? '*' : `${noProxy},${LOOPBACK}`
    return new EnvHttpProxyAgent({ ...options, httpProxy, httpsProxy, noProxy: direct })
  }
  // When an origin last closed a connection, on `performance.now()`.
  const closedAt = new Map<string, number>()
  const patient = agentWith(patience.long, (origin, options) =>
    pool(origin, options).on('disconnect', ({ origin: from }: URL, _: unknown, error: Error) => {
      const isClosedThere = error instanceof errors.SocketError || Reflect.get(error, 'code') === 'ECONNRESET'
      if (isClosedThere) closedAt.set(from, performance.now())
    }),
  )
  // For origins that close idle connections early: it closes them first.
  const brief = agentWith(patience.short, pool)
  return {
    dispatch(options: Dispatcher.DispatchOptions, handler: Dispatcher.DispatchHandler): boolean {
      const at = closedAt.get(String(options.origin))
      const closesEarly = at !== undefined && performance.now() < at + REMEMBERED_MS
      const request = proxies ? { ...options, headers: withoutRepeats(options.headers as string[]) } : options
      return (closesEarly ? brief : patient).dispatch(request, handler)
    },
    async destroy(): Promise<void> {
      unsubscribe(REQUEST_BEGINS, begin)
      await Promise.all([patient.destroy(), brief.destroy()])
    },
  }
}

/** A connection whose bytes are checked before undici reads them. */
interface CheckedConnection {
  /** Set as a request begins, until the head of its final response has come: a body may contain anything. */
  isHead: boolean
  /** The beginning of an incomplete informational head. */
  held: Buffer
}

/** The connections of a transport, by their sockets. */
type Connections = WeakMap<object, CheckedConnection>

/** Where undici says on which socket a request begins. */
const REQUEST_BEGINS = 'undici:client:sendHeaders'

type PoolFactory = (origin: string | URL, options: Pool.Options) => Pool

const NOTHING = Buffer.alloc(0)
const SAMPLE = 'HTTP/1.1 100'
const HEAD_END = '\r\n\r\n'
/** An informational head is small; undici reports a longer one as an error. */
const MAX_HELD = 16_384

/** Removes heads with status 100 from the start of a response; returns the bytes that undici may read now. */
function withoutContinue(connection: CheckedConnection, bytes: Buffer): Buffer {
  const kept: Buffer[] = []
  let rest = bytes
  connection.held = NOTHING
  for (;;) {
    const start = rest.toString('latin1', 0, SAMPLE.length)
    // It is, or may become, the status line of a 1xx response other than 101, which is final.
    const is1xx = /^HTTP\/1\.\d 1\d\d$/.test(start + SAMPLE.slice(start.length))
    const isInformational = is1xx && !start.endsWith(' 101')
    const end = isInformational ? rest.indexOf(HEAD_END) : -1
    if (end === -1) {
      connection.isHead = isInformational && rest.length <= MAX_HELD
      if (connection.isHead) connection.held = rest
      else kept.push(rest)
      break
    }
    const after = end + HEAD_END.length
    if (!start.endsWith(' 100')) kept.push(rest.subarray(0, after))
    rest = rest.subarray(after)
  }
  const [only] = kept
  return only && kept.length === 1 ? only : Buffer.concat(kept)
}

/**
 * Creates the connections to one origin, which skip a `100 Continue` that was not asked for (RFC 9110, section 15.2):
 * undici would close the connection.
 */
function poolOf(origin: string | URL, options: Pool.Options, connections: Connections): Pool {
  const { connect } = options
  // undici has made it a function by now, also for a proxy.
  if (typeof connect !== 'function') return new Pool(origin, options)
  const skipping: typeof connect = (to, callback) =>
    connect(to, (...[error, socket]) => {
      if (error) return callback(error, null)
      const connection = { isHead: false, held: NOTHING }
      connections.set(socket, connection)
      // This listener is called before undici's, which is added once undici has the connection.
      socket.on('readable', () => {
        const chunk: Buffer | null = connection.isHead ? socket.read() : null
        if (!chunk) return
        const bytes = connection.held.length > 0 ? Buffer.concat([connection.held, chunk]) : chunk
        const rest = withoutContinue(connection, bytes)
        if (rest.length > 0) socket.unshift(rest)
      })
      callback(null, socket)
    })
  return new Pool(origin, { ...options, connect: skipping })
}
