/** The connections to all upstreams: kept alive, as many as there are requests at once. */
import { Agent, type Dispatcher, EnvHttpProxyAgent, errors, Pool } from 'undici'

export interface TransportSettings {
  /** Milliseconds; 0 is no limit. */
  readonly connect: number
  readonly firstByte: number
  readonly idle: number
  /** Use HTTP_PROXY, HTTPS_PROXY and NO_PROXY. */
  readonly useProxyEnvironment: boolean
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

/** `noProxy`: the value of NO_PROXY. */
export function createTransport(
  settings: TransportSettings,
  noProxy: string | undefined,
  patience: Patience = PATIENCE,
): Transport {
  const options: Agent.Options = {
    connect: { timeout: settings.connect },
    headersTimeout: settings.firstByte,
    bodyTimeout: settings.idle,
    maxHeaderSize: 131_072,
    pipelining: 1,
  }
  const agentWith = (own: Agent.Options): Dispatcher => {
    if (!settings.useProxyEnvironment) return new Agent({ ...options, ...own })
    // A laptop's proxy never reaches a model server on the same laptop.
    const local = noProxy ? `${noProxy},${LOOPBACK}` : LOOPBACK
    return new EnvHttpProxyAgent({ ...options, ...own, noProxy: local })
  }
  return new Connections(agentWith, patience)
}

/** Was a connection closed by the other side? */
function isClosedThere(error: Error): boolean {
  return error instanceof errors.SocketError || Reflect.get(error, 'code') === 'ECONNRESET'
}

class Connections implements Transport {
  readonly #patient: Dispatcher
  readonly #brief: Dispatcher
  /** Upstreams that close connections, by origin, and until when they are taken to. */
  readonly #hasty = new Map<string, number>()

  constructor(agentWith: (own: Agent.Options) => Dispatcher, { long, short }: Patience) {
    const factory = (origin: string | URL, options: object): Dispatcher =>
      new Pool(origin, options).on('disconnect', ({ origin: from }: URL, _: unknown, error: Error) => {
        if (isClosedThere(error)) this.#hasty.set(from, performance.now() + REMEMBERED_MS)
      })
    this.#patient = agentWith({ keepAliveTimeout: long, factory })
    this.#brief = agentWith({ keepAliveTimeout: short })
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
