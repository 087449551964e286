/** One call to an upstream over undici, and what can go wrong with it. */
import type { Readable } from 'node:stream'
import { Agent, type Dispatcher, EnvHttpProxyAgent, errors } from 'undici'
import type { Recovery } from '../core/overflow.ts'
import type { RawHeaders } from './headers.ts'
import type { Upstream } from './route.ts'

export interface UpstreamCall {
  readonly upstream: Upstream
  readonly method: string
  readonly path: string
  readonly headers: string[]
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

/** Why an upstream did not answer, in words for the person who runs Governor. */
export interface Failure {
  /** 502: no (proper) answer; 504: none in time. */
  readonly status: 502 | 504
  readonly code: 'upstream_unreachable' | 'upstream_timeout' | 'upstream_tls' | 'upstream_broken' | 'aborted'
  /** Says what happened and what to check; holds no credential and no body. */
  readonly message: string
  readonly cause: Error
}

export interface TransportSettings {
  /** Milliseconds; 0 is no limit. */
  readonly connect: number
  readonly firstByte: number
  readonly idle: number
  /** Use HTTP_PROXY, HTTPS_PROXY and NO_PROXY. */
  readonly useProxyEnvironment: boolean
}

const LOOPBACK = 'localhost,127.0.0.1,::1,[::1]'

/** The connections to all upstreams: kept alive, as many as there are requests at once. */
export function createTransport(settings: TransportSettings, noProxy: string | undefined): Dispatcher {
  const options: Agent.Options = {
    connect: { timeout: settings.connect },
    headersTimeout: settings.firstByte,
    bodyTimeout: settings.idle,
    maxHeaderSize: 131_072,
    pipelining: 1,
  }
  if (!settings.useProxyEnvironment) return new Agent(options)
  // A laptop's proxy never reaches a model server on the same laptop.
  return new EnvHttpProxyAgent({ ...options, noProxy: noProxy ? `${noProxy},${LOOPBACK}` : LOOPBACK })
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

function codeOf(error: Error): string {
  const nested = error instanceof AggregateError ? error.errors[0] : error
  const code = nested instanceof Error ? Reflect.get(nested, 'code') : undefined
  return typeof code === 'string' ? code : ''
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

/** Turns a transport error into a failure that a client and an operator understand. */
export function failureOf(error: Error, upstream: Upstream): Failure {
  const code = codeOf(error)
  const where = `upstream ${upstream.name} at ${upstream.origin}`
  const check = `Check upstreams.${upstream.name}.url.`
  if (isTimeout(error, code)) {
    const message =
      error instanceof errors.ConnectTimeoutError || code === 'ETIMEDOUT'
        ? `Governor could not connect to ${where} in time. ${check}`
        : `Governor waited for ${where}, which did not answer in time. See timeouts.first_byte and timeouts.idle.`
    return { status: 504, code: 'upstream_timeout', message, cause: error }
  }
  if (isTlsCode(code)) {
    const message = `Governor could not make a secure connection to ${where} (${code}). ${check}`
    return { status: 502, code: 'upstream_tls', message, cause: error }
  }
  if (
    code.startsWith('HPE_') ||
    error instanceof errors.HTTPParserError ||
    error instanceof errors.ResponseContentLengthMismatchError
  ) {
    const message = `Governor got an answer from ${where} that is not valid HTTP (${code}). ${check}`
    return { status: 502, code: 'upstream_broken', message, cause: error }
  }
  const reason = REASONS[code] ?? 'the connection failed'
  const message = `Governor could not get an answer from ${where}: ${reason}. ${check}`
  return { status: 502, code: 'upstream_unreachable', message, cause: error }
}

function rawList(headers: Dispatcher.DispatchController['rawHeaders']): string[] {
  // undici hands raw headers over as buffers; bytes above ASCII are kept as they are by Latin-1.
  if (!Array.isArray(headers)) return []
  return headers.map((item: Buffer | string) => (typeof item === 'string' ? item : item.toString('latin1')))
}

/** undici reads a reason phrase as UTF-8; its bytes, like those of a header, are kept by Latin-1. */
function reasonOf(text: string | undefined): string {
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
 * Sends a request. The receiver is called from undici's parser, chunk by chunk, with no promise in between.
 * Returns the way to call it off: it closes the upstream connection at once, also before the first byte.
 * Nothing is ever sent twice: the upstream may have acted on what it got (RFC 9110, section 9.2.2).
 */
export function send(transport: Dispatcher, call: UpstreamCall, receiver: Receiver): () => void {
  let controller: Dispatcher.DispatchController | undefined
  let isCalledOff = false
  let isOver = false
  let answered = 0
  const fail = (error: Error) => {
    if (isOver) return
    isOver = true
    // undici leaves a body that it has not begun to send; its source would wait for ever.
    if (call.body && 'destroy' in call.body) call.body.destroy()
    const failure = failureOf(error, call.upstream)
    receiver.fail(isCalledOff ? { ...failure, code: 'aborted' } : failure)
  }
  const callOff = () => {
    if (isOver || isCalledOff) return
    isCalledOff = true
    controller?.abort(new errors.RequestAbortedError())
  }
  const handler: Dispatcher.DispatchHandler = {
    onRequestStart(started) {
      controller = started
      if (isCalledOff) started.abort(new errors.RequestAbortedError())
    },
    onResponseStart(started, status, _headers, reason) {
      const head = { status, reason: reasonOf(reason), headers: rawList(started.rawHeaders) }
      answered = status
      if (status < 200) receiver.inform?.(head)
      else receiver.start(head, { pause: () => started.pause(), resume: () => started.resume() })
    },
    onResponseData(_, chunk) {
      receiver.data(chunk)
    },
    onResponseEnd(ended) {
      isOver = true
      receiver.end(rawList(ended.rawTrailers))
    },
    onResponseError(_, error) {
      if (!isOver && isWholeAnyway(answered, error)) {
        isOver = true
        receiver.end([])
      } else {
        fail(error)
      }
    },
  }
  try {
    const { upstream, method, path, headers, body } = call
    transport.dispatch({ origin: upstream.origin, method, path, headers, body: body as Buffer }, handler)
  } catch (error) {
    // undici throws on what it will not send at all, such as a path that is no path.
    fail(error as Error)
  }
  return callOff
}
