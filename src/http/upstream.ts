/** One call to an upstream over undici, and what can go wrong with it. */
import type { Readable } from 'node:stream'
import { type Dispatcher, errors } from 'undici'
import type { Recovery } from '../core/overflow.ts'
import { type RawHeaders, withoutGovernorHeaders } from './headers.ts'
import type { Transport } from './transport.ts'

/** A place requests go to. */
export interface Upstream {
  readonly name: string
  /** Scheme, host and port. */
  readonly origin: string
  /** Path put before every request's own; empty or without a trailing slash. */
  readonly prefix: string
  readonly apiKey: string | undefined
  readonly headers: Readonly<Record<string, string>>
  /** Does Governor add a key of its own to requests, as `api_key` or in a header? */
  readonly holdsKey: boolean
  /** Is the name, in front of a request's path, part of the path as well? */
  readonly keepsName: boolean
}

export interface UpstreamCall {
  readonly upstream: Upstream
  readonly method: string
  readonly path: string
  readonly headers: RawHeaders
  /** Several buffers stand for one body, whose length the headers tell. */
  readonly body: Buffer | readonly Buffer[] | Readable | null
}

/** Bytes of a body; 0 where that is not known before it was sent. */
export function lengthOf(body: UpstreamCall['body']): number {
  if (Buffer.isBuffer(body)) return body.length
  return Array.isArray(body) ? body.reduce((sum: number, piece: Buffer) => sum + piece.length, 0) : 0
}

/** Status line and headers of a response. */
export interface Head {
  readonly status: number
  readonly reason: string
  readonly headers: RawHeaders
  /** Set on a refusal that says that something is too large. */
  readonly overflow?: Recovery
}

/** Lets a receiver hold the upstream back while its own reader is slow. */
export interface Flow {
  pause(): void
  resume(): void
}

/** Takes a response as it comes. After `end` or `fail` nothing more is called. */
export interface Receiver {
  /** An informational response (1xx) before the one that counts. */
  inform?(head: Head): void
  start(head: Head, flow: Flow): void
  data(chunk: Buffer): void
  /** `trailers` as raw headers. */
  end(trailers: RawHeaders): void
  /** Before `start`: no response; after it: the response broke off. */
  fail(failure: Failure): void
}

/** A call that was sent. */
export interface InFlight {
  /** Closes the upstream connection, also before the first byte; nothing happens where the call is over. */
  abort(): void
}

/** Is told when a response begins. */
export interface AnswerClock {
  answerBegins(): void
}

/** Why an upstream did not answer. */
export interface Failure {
  /** 502: no (proper) answer; 504: none in time. */
  readonly status: 502 | 504
  readonly code: 'upstream_unreachable' | 'upstream_timeout' | 'upstream_tls' | 'upstream_broken' | 'aborted'
  /** Says to the client what happened and what to check; holds no credential, no body and no address. */
  readonly message: string
  /** The same with the address of the upstream, for the log alone. */
  readonly detail?: string
  readonly cause: Error
}

/** Network error codes by what they mean to a person. */
const REASONS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'connection refused',
  ECONNRESET: 'the connection was reset',
  EPIPE: 'the connection was closed',
  EHOSTUNREACH: 'no route to the host',
  ENETUNREACH: 'the network is unreachable',
  ENOTFOUND: 'the host name does not resolve',
  EAI_AGAIN: 'the host name does not resolve at the moment',
  UND_ERR_SOCKET: 'it closed the connection without a complete answer',
}

/** What an error says of itself; of several attempts to connect, the first. */
function detailOf(error: Error, key: 'code' | 'port' | 'hostname'): unknown {
  const nested = error instanceof AggregateError ? error.errors[0] : error
  return nested instanceof Error ? Reflect.get(nested, key) : undefined
}

function codeOf(error: Error): string {
  const code = detailOf(error, 'code')
  return typeof code === 'string' ? code : ''
}

/** Was it another place that could not be reached, a proxy on the way? */
function isElsewhere(error: Error, { origin }: Upstream): boolean {
  const { hostname, port, protocol } = new URL(origin)
  const [tried, asked] = [detailOf(error, 'port'), detailOf(error, 'hostname')]
  const own = Number(port || (protocol === 'https:' ? 443 : 80))
  return (typeof tried === 'number' && tried !== own) || (typeof asked === 'string' && asked !== hostname)
}

/** Codes of OpenSSL and of Node's certificate checks. */
function isTlsCode(code: string): boolean {
  return /^(ERR_TLS|ERR_SSL|CERT_|SELF_SIGNED|DEPTH_ZERO|UNABLE_TO_|EPROTO)/.test(code)
}

function isTimeout(error: Error, code: string): boolean {
  return (
    error instanceof errors.ConnectTimeoutError ||
    error instanceof errors.HeadersTimeoutError ||
    error instanceof errors.BodyTimeoutError ||
    code === 'ETIMEDOUT'
  )
}

/** What went wrong, said of an upstream as `where` calls it. */
type Told = (where: string) => string

function connectionFailure(error: Error, code: string, upstream: Upstream, check: string): Told {
  const refusal = /^Proxy response \((\d+)\)/.exec(error.message)?.[1]
  const reason = REASONS[code] ?? 'the connection failed'
  if (!refusal && !isElsewhere(error, upstream))
    return (where) => `Governor could not get an answer from ${where}: ${reason}. ${check}`
  const what = refusal ? `refused (${refusal})` : `can't be reached (${reason})`
  return (where) =>
    `Governor could not reach ${where}: the proxy on the way ${what}. Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.`
}

/** Turns a transport error into a failure that a client and an operator understand. */
export function failureOf(error: Error, upstream: Upstream): Failure {
  const code = codeOf(error)
  const check = `Check upstreams.${upstream.name}.url.`
  // Where an upstream is concerns the operator alone: a client may be anybody.
  const failure = (kind: Pick<Failure, 'status' | 'code'>, told: Told): Failure => ({
    ...kind,
    message: told(`upstream ${upstream.name}`),
    detail: told(`upstream ${upstream.name} at ${upstream.origin}`),
    cause: error,
  })
  if (isTimeout(error, code)) {
    const isConnecting = error instanceof errors.ConnectTimeoutError || code === 'ETIMEDOUT'
    return failure({ status: 504, code: 'upstream_timeout' }, (where) =>
      isConnecting
        ? `Governor could not connect to ${where} in time. ${check}`
        : `Governor waited for ${where}, which did not answer in time. See timeouts.first_byte and timeouts.idle.`,
    )
  }
  if (isTlsCode(code)) {
    return failure(
      { status: 502, code: 'upstream_tls' },
      (where) => `Governor could not make a secure connection to ${where} (${code}). ${check}`,
    )
  }
  if (
    code.startsWith('HPE_') ||
    error instanceof errors.HTTPParserError ||
    error instanceof errors.ResponseContentLengthMismatchError
  ) {
    // undici's parser has no codes for what it can't read, but words.
    const what = code || /\(([^()]{1,80})\)$/.exec(error.message)?.[1] || error.name
    return failure(
      { status: 502, code: 'upstream_broken' },
      (where) => `Governor got an answer from ${where} that is not valid HTTP (${what}). ${check}`,
    )
  }
  const told = connectionFailure(error, code, upstream, check)
  return failure({ status: 502, code: 'upstream_unreachable' }, told)
}

/** A field name and value are read out of one text: what undici gives are views of the chunk they came in. */
const MAX_HEAD = 65_536

/** undici hands raw headers over as buffers; bytes above ASCII are kept as they are by Latin-1. */
function rawList(headers: readonly (Buffer | string)[] | null): string[] {
  const list: string[] = []
  if (!headers || headers.length === 0) return list
  const [first] = headers
  const last = headers.at(-1)
  if (first instanceof Buffer && last instanceof Buffer) {
    const start = first.byteOffset
    const length = last.byteOffset + last.length - start
    if (first.buffer === last.buffer && length > 0 && length <= MAX_HEAD) {
      const text = Buffer.from(first.buffer, start, length).toString('latin1')
      for (const item of headers) {
        const at = item instanceof Buffer && item.buffer === first.buffer ? item.byteOffset - start : -1
        const isInside = at >= 0 && at + item.length <= length
        list.push(isInside ? text.slice(at, at + item.length) : latin1Of(item))
      }
      return list
    }
  }
  for (const item of headers) list.push(latin1Of(item))
  return list
}

function latin1Of(item: Buffer | string): string {
  return typeof item === 'string' ? item : item.toString('latin1')
}

/** undici reads a reason phrase as UTF-8; its bytes, like those of a header, are kept by Latin-1. */
function reasonOf(text: string | undefined): string {
  if (text === 'OK') return text
  return text === undefined || text.includes('\ufffd') ? '' : Buffer.from(text).toString('latin1')
}

/**
 * undici holds the length that a 304 states against the body it does not have (RFC 9110, section 8.6: it is that of
 * the 200 the client has).
 */
function isWholeAnyway(status: number, error: Error): boolean {
  return status === 304 && error instanceof errors.ResponseContentLengthMismatchError
}

/**
 * One call under way, as undici's dispatcher sees it. This is the kind of handler that undici's own clients use inside:
 * of the newer one it makes this, and an object of all headers besides, which nobody here reads.
 */
class CallUnderWay implements InFlight, Dispatcher.DispatchHandler, Flow {
  readonly #call: UpstreamCall
  readonly #receiver: Receiver
  readonly #clock: AnswerClock
  #abort: ((error: Error) => void) | undefined
  #resume: (() => void) | undefined
  #isPaused = false
  #isCalledOff = false
  #isOver = false
  #status = 0

  constructor(call: UpstreamCall, receiver: Receiver, clock: AnswerClock) {
    this.#call = call
    this.#receiver = receiver
    this.#clock = clock
  }

  onConnect(abort: (error?: Error) => void): void {
    this.#abort = abort
    if (this.#isCalledOff) abort(new errors.RequestAbortedError())
  }

  onHeaders(status: number, rawHeaders: Buffer[], resume: () => void, reason: string): boolean {
    const head = { status, reason: reasonOf(reason), headers: withoutGovernorHeaders(rawList(rawHeaders)) }
    this.#status = status
    this.#resume = resume
    if (status < 200) {
      this.#receiver.inform?.(head)
    } else {
      this.#clock.answerBegins()
      this.#receiver.start(head, this)
    }
    return !this.#isPaused
  }

  onData(chunk: Buffer): boolean {
    this.#receiver.data(chunk)
    return !this.#isPaused
  }

  onComplete(rawTrailers: string[] | null): void {
    this.#isOver = true
    this.#receiver.end(withoutGovernorHeaders(rawList(rawTrailers)))
  }

  onError(error: Error): void {
    if (!this.#isOver && isWholeAnyway(this.#status, error)) {
      this.#isOver = true
      this.#receiver.end([])
    } else {
      this.fail(error)
    }
  }

  pause(): void {
    this.#isPaused = true
  }

  resume(): void {
    if (!this.#isPaused) return
    this.#isPaused = false
    this.#resume?.()
  }

  fail(error: Error): void {
    if (this.#isOver) return
    this.#isOver = true
    const { body, upstream } = this.#call
    // undici leaves a body that it has not begun to send; its source would wait for ever.
    if (body && 'destroy' in body) body.destroy()
    const failure = failureOf(error, upstream)
    this.#receiver.fail(this.#isCalledOff ? { ...failure, code: 'aborted' } : failure)
  }

  abort(): void {
    if (this.#isOver || this.#isCalledOff) return
    this.#isCalledOff = true
    this.#abort?.(new errors.RequestAbortedError())
  }
}

/**
 * Sends a request. The receiver is called from undici's parser, chunk by chunk, with no promise in between.
 * Returns the way to call it off: it closes the upstream connection at once, also before the first byte.
 * Nothing is ever sent twice: the upstream may have acted on what it got (RFC 9110, section 9.2.2).
 */
export function send(
  transport: Transport,
  call: UpstreamCall,
  receiver: Receiver,
  clock: AnswerClock,
): InFlight {
  const underWay = new CallUnderWay(call, receiver, clock)
  try {
    const { upstream, method, path, headers, body } = call
    const options = {
      origin: upstream.origin,
      method,
      path,
      headers: headers as string[],
      body: body as Buffer,
    }
    transport.dispatch(options, underWay)
  } catch (error) {
    // undici throws on what it will not send at all, such as a path that is no path.
    underWay.fail(error as Error)
  }
  return underWay
}
