/** The package's export `agent-governor/fetch`: Governor inside a program, without a process or a port. */

import { setMaxListeners } from 'node:events'
import { PassThrough, Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import type * as z from 'zod'
import { didYouMean } from '../config/did-you-mean.ts'
import { ConfigError, checkConfig } from '../config/load.ts'
import type { configSchema } from '../config/schema.ts'
import { limitsCost } from '../core/budget/policy.ts'
import { ignore } from '../core/thrown.ts'
import { createServices, createSteadyClock } from '../create-services.ts'
import { type Client, writerTo } from '../http/client.ts'
import { pairsOf, replyHeaders, responseHeaders, withoutBodyFields, withoutGovernorHeaders } from '../http/headers.ts'
import { routeOf } from '../proxy/door/route.ts'
import { exchange } from '../proxy/exchange.ts'
import type { Services } from '../proxy/services.ts'
import { fetchedBy } from '../proxy/usage/later-answer.ts'
import { createMemoryStore } from '../store/memory.ts'
import type { ProxyEvent } from '../telemetry/event.ts'
import { SECTIONS } from './sections.ts'

type Fetch = typeof globalThis.fetch

/** Sections of `governor.yaml`, and who gets the events that it logs and counts. */
export interface GovernedOptions extends Pick<z.input<typeof configSchema>, (typeof SECTIONS)[number]> {
  readonly onEvent?: (event: ProxyEvent) => void
}

/**
 * Sends calls with a `fetch`, which undoes content codings. `init`: what its caller asks for besides the request;
 * `came` gets the address of each response, after redirects.
 */
function transportOver(
  fetch: Fetch,
  init: RequestInit | undefined,
  came: (url: string) => void = ignore,
): Services['transport'] {
  return {
    dispatch({ origin, path, method, headers, body }, handler) {
      const call = new AbortController()
      handler.onConnect?.((reason) => call.abort(reason))
      const failed = (error: Error) => handler.onError?.(error)
      const send = async () => {
        const bytes = body instanceof Readable ? await buffer(body) : Buffer.concat([(body ?? []) as Buffer].flat())
        const sent = new Headers(pairsOf(headers as string[]))
        // It is that of the bytes, which `fetch` counts itself.
        sent.delete('content-length')
        const asked = { ...init, method, headers: sent, ...(body && { body: bytes }), signal: call.signal }
        const { status, statusText, headers: got, body: stream, url } = await fetch(`${origin}${path}`, asked)
        came(url)
        const fields = got.has('content-encoding') ? withoutBodyFields([...got].flat()) : [...got].flat()
        const chunks = Readable.from(stream ?? [])
        const raw = fields.map((field) => Buffer.from(field, 'latin1'))
        handler.onHeaders?.(status, raw, () => void chunks.resume(), statusText)
        chunks.once('end', () => handler.onComplete?.([])).once('error', failed)
        chunks.on('data', (chunk: Uint8Array) => handler.onData?.(Buffer.from(chunk)) || chunks.pause())
      }
      send().catch(failed)
      return true
    },
    destroy: async () => {},
  }
}

/** Returns the client that has called `governed(fetch)`, whose response settles its promise. */
function clientInside(
  head: Client['head'],
  body: Buffer,
  signal: AbortSignal | null | undefined,
  url: () => string,
  resolve: (response: Response) => void,
  reject: (error: unknown) => void,
): Client {
  const to = new PassThrough()
  const { close, ...writer } = writerTo(to)
  let status = 0
  const fail = (error: Error) => {
    reject(error)
    to.destroy(error)
    return true
  }
  const abort = () => fail(signal?.reason)
  to.once('close', close).once('finish', close).on('error', ignore)
  signal?.addEventListener('abort', abort)
  writer.onClose(() => signal?.removeEventListener('abort', abort))
  const begin: Client['begin'] = (begun, governorHeaders) => {
    status = begun.status
    const headers = pairsOf(replyHeaders(responseHeaders(begun.headers), governorHeaders, false))
    const hasBody = ![204, 205, 304].includes(status)
    const response = new Response(hasBody ? Readable.toWeb(to) : null, { status, statusText: begun.reason, headers })
    // A response that is made has none, and clients read it.
    resolve(Object.defineProperty(response, 'url', { value: url() }))
  }
  return {
    ...writer,
    head,
    body: Readable.from([body]),
    status: () => status,
    inform() {},
    begin,
    end: (_trailers, last) => void to.end(last),
    fail,
  }
}

/**
 * Returns what a request that is not guarded asks for, without Governor's own headers. The others are the caller's:
 * those of a `Request` that was made of them may name another boundary of form data.
 */
function forProvider(input: Parameters<Fetch>[0], init: RequestInit | undefined): RequestInit | undefined {
  const headers = [...new Headers(init?.headers ?? (input instanceof Request ? input.headers : undefined))].flat()
  const kept = withoutGovernorHeaders(headers)
  return kept.length === headers.length ? init : { ...init, headers: pairsOf(kept) }
}

/**
 * Returns a `fetch` whose requests to models are guarded as Governor guards them: it counts, warns, blocks and stops
 * runs of agents. What it does not guard goes to the given `fetch` as it is. @throws {ConfigError} on a wrong option.
 */
export function governed(fetch: Fetch = globalThis.fetch, options: GovernedOptions = {}): Fetch {
  if (typeof fetch !== 'function') throw new ConfigError('governed: expected a fetch, and the options behind it')
  const { onEvent: emit = () => undefined, ...sections } = options
  // A section about a server or a file would be valid, and do nothing here.
  const wrong = Object.keys(sections).find((name) => !SECTIONS.some((one) => one === name))
  if (wrong !== undefined)
    throw new ConfigError(`governed: ${wrong}: expected one of ${SECTIONS.join(', ')}${didYouMean(wrong, SECTIONS)}`)
  const config = checkConfig(sections, 'governed')
  const { max, ttl, max_bytes: maxBytes } = config.sessions
  const { signal: draining } = new AbortController()
  setMaxListeners(0, draining)
  const now = createSteadyClock()
  const store = createMemoryStore({ max, ttl, maxBytes }, now)
  const transport = transportOver(fetch, {})
  const services = createServices(config, { store, transport, emit, draining, now, calendarNow: Date.now })
  // A limit on cost can't wait until the first response asks for its price.
  const prices = limitsCost(services.policies.budget) ? services.catalogue.load() : undefined
  return async (input, init) => {
    const request = new Request(input instanceof Request ? input.clone() : input, init)
    const { origin, host, pathname, search } = new URL(request.url)
    const head = { method: request.method, target: pathname + search, headers: [...request.headers].flat() }
    const route = routeOf(services, head)
    if (!route.dialect && !(await fetchedBy(services, head.headers, route)))
      return fetch(input, forProvider(input, init))
    const name = [...services.upstreams.values()].find((known) => known.origin === origin)?.name ?? host
    const upstream = { ...route.upstream, name, origin, prefix: '' }
    const signal = init?.signal ?? (input instanceof Request ? input.signal : undefined)
    signal?.throwIfAborted()
    const body = Buffer.from(await request.arrayBuffer())
    await prices
    return new Promise((resolve, reject) => {
      // Governor's own answers come from where the request went.
      let from = origin + head.target
      const came = (url: string) => {
        from = url || from
      }
      const client = clientInside(head, body, signal, () => from, resolve, reject)
      const at = { ...route, upstream, path: head.target, unknownName: undefined, leavesPrefix: false }
      exchange({ ...services, transport: transportOver(fetch, init, came) }, client, at).catch(reject)
    })
  }
}
