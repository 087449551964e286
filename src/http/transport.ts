/** The connections to all upstreams: kept alive, as many as there are requests at once. */
import { Agent, buildConnector, type Dispatcher, EnvHttpProxyAgent, errors, Pool } from 'undici'
import { readingOverContinue } from './continue.ts'

/** Proxies that upstreams are reached through, as HTTP_PROXY, HTTPS_PROXY and NO_PROXY name them. */
export interface Proxies {
  /** URLs, by the scheme of the upstream. */
  readonly http: string | undefined
  readonly https: string | undefined
  readonly noProxy: string | undefined
}

export interface TransportSettings {
  /** Milliseconds; 0 is no limit. */
  readonly connect: number
  readonly firstByte: number
  readonly idle: number
  readonly proxies: Proxies | undefined
}

export interface Transport {
  dispatch(options: Dispatcher.DispatchOptions, handler: Dispatcher.DispatchHandler): boolean
  destroy(): Promise<void>
}

/** How long connections are kept that nothing is sent on, in milliseconds, where an upstream does not say it. */
export interface Patience {
  readonly long: number
  /** At upstreams that close them themselves. */
  readonly short: number
}

/**
 * An agent's tools run for longer than a few seconds, and each new connection to a provider costs it two or three times
 * the way there and back. So they are kept, though not for as long as load balancers do, mostly a minute; some servers
 * close them after five seconds (uvicorn, and with it vLLM). A request that crosses the end of its connection is lost.
 */
const PATIENCE: Patience = { long: 50_000, short: 4_000 }

/** For so long an upstream is taken to do what it was seen to do: an hour. */
const REMEMBERED_MS = 3_600_000

const LOOPBACK = 'localhost,127.0.0.1,::1,[::1]'

/** A laptop's proxy never reaches a model server on the same laptop. A star stands for all, beside others as well. */
function reachedWithout(noProxy: string | undefined): string {
  if (!noProxy) return LOOPBACK
  return noProxy.split(/[,\s]/).includes('*') ? '*' : `${noProxy},${LOOPBACK}`
}

/** undici's proxies keep the last of several fields of one name: they become one field (RFC 9110, section 5.3). */
function withoutRepeats(headers: readonly string[]): string[] {
  const values = new Map<string, string>()
  for (let at = 0; at + 1 < headers.length; at += 2) {
    const name = headers[at] ?? ''
    const before = values.get(name)
    const separator = name.toLowerCase() === 'cookie' ? '; ' : ', '
    values.set(name, before === undefined ? (headers[at + 1] ?? '') : before + separator + headers[at + 1])
  }
  return [...values].flat()
}

export function createTransport(settings: TransportSettings, patience: Patience = PATIENCE): Transport {
  const { proxies } = settings
  const options: Agent.Options = {
    connect: buildConnector({ timeout: settings.connect }),
    headersTimeout: settings.firstByte,
    bodyTimeout: settings.idle,
    maxHeaderSize: 131_072,
    pipelining: 1,
  }
  const agentWith = (own: Agent.Options): Dispatcher => {
    if (!proxies) return new Agent({ ...options, ...own })
    return new EnvHttpProxyAgent({
      ...options,
      ...own,
      httpProxy: proxies.http ?? '',
      httpsProxy: proxies.https ?? '',
      noProxy: reachedWithout(proxies.noProxy),
    })
  }
  const connections = new Connections(agentWith, patience)
  if (!proxies) return connections
  return {
    dispatch: (sent, handler) =>
      connections.dispatch({ ...sent, headers: withoutRepeats(sent.headers as string[]) }, handler),
    destroy: () => connections.destroy(),
  }
}

/** Was a connection closed by the other side? */
function isClosedThere(error: Error): boolean {
  return error instanceof errors.SocketError || Reflect.get(error, 'code') === 'ECONNRESET'
}

/** Connections to one origin. `connect` is a function by now: the one given, or what goes through a proxy. */
function poolOf(origin: string | URL, options: Pool.Options): Pool {
  const { connect } = options
  return new Pool(
    origin,
    typeof connect === 'function' ? { ...options, connect: readingOverContinue(connect) } : options,
  )
}

class Connections implements Transport {
  readonly #patient: Dispatcher
  readonly #brief: Dispatcher
  /** Upstreams that close connections, by origin, and until when they are taken to. */
  readonly #hasty = new Map<string, number>()

  constructor(agentWith: (own: Agent.Options) => Dispatcher, { long, short }: Patience) {
    const factory = (origin: string | URL, options: object): Dispatcher =>
      poolOf(origin, options).on('disconnect', ({ origin: from }: URL, _: unknown, error: Error) => {
        if (isClosedThere(error)) this.#hasty.set(from, performance.now() + REMEMBERED_MS)
      })
    this.#patient = agentWith({ keepAliveTimeout: long, factory })
    this.#brief = agentWith({ keepAliveTimeout: short, factory: poolOf })
  }

  dispatch(options: Dispatcher.DispatchOptions, handler: Dispatcher.DispatchHandler): boolean {
    const isHasty = this.#hasty.size > 0 && this.#isHasty(String(options.origin))
    return (isHasty ? this.#brief : this.#patient).dispatch(options, handler)
  }

  #isHasty(origin: string): boolean {
    const until = this.#hasty.get(origin)
    if (until === undefined) return false
    if (performance.now() < until) return true
    this.#hasty.delete(origin)
    return false
  }

  async destroy(): Promise<void> {
    await Promise.all([this.#patient.destroy(), this.#brief.destroy()])
  }
}
