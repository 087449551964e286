/** A call to an upstream, the head of its response, and what can go wrong with it. */
import type { Readable } from 'node:stream'
import type { Recovery } from '../overflow/meaning.ts'
import type { RawHeaders } from './headers.ts'

export interface Upstream {
  readonly name: string
  readonly origin: string
  /** Path that is prepended to the path of every request; empty or without a trailing slash. */
  readonly prefix: string
  readonly apiKey: string | undefined
  readonly headers: Readonly<Record<string, string>>
  /** True if Governor adds a key to requests, from `api_key` or in a header. */
  readonly holdsKey: boolean
  /** True if the name at the beginning of a request's path is sent upstream as well. */
  readonly keepsName: boolean
}

export interface UpstreamCall {
  readonly upstream: Upstream
  readonly method: string
  readonly path: string
  readonly headers: RawHeaders
  /** Several buffers are the pieces of one body, whose length is in the headers. */
  readonly body: Buffer | readonly Buffer[] | Readable | null
}

export interface Head {
  readonly status: number
  readonly reason: string
  readonly headers: RawHeaders
  /** Set on an error that says that something is too large. */
  readonly overflow?: Recovery
  /** By how many tokens the request is too large, if the provider states that. */
  readonly excess?: number | undefined
}

/** Returns true for every status of success (2xx): providers and gateways do not only send 200. */
export function isSuccess({ status }: Pick<Head, 'status'>): boolean {
  return status >= 200 && status < 300
}

export interface Failure {
  /** 502: no answer or an invalid one; 503: this machine could not ask; 504: no answer in time. */
  readonly status: 502 | 503 | 504
  readonly code:
    | 'upstream_unreachable'
    | 'upstream_timeout'
    | 'upstream_tls'
    | 'upstream_broken'
    | 'upstream_undecodable'
    | 'out_of_connections'
    | 'aborted'
  /** Tells the client what happened and what to check, without credentials, bodies or addresses. */
  readonly message: string
  /** The same with the address of the upstream, for the log only. */
  readonly detail?: string
  readonly cause: Error
}

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

/** Returns a field of a network error; after several attempts to connect, of the first one's error. */
function detailOf(error: Error, key: 'code' | 'port' | 'hostname'): unknown {
  const nested = error instanceof AggregateError ? error.errors[0] : error
  return nested instanceof Error ? Reflect.get(nested, key) : undefined
}

/**
 * The name and the code that undici gives errors about answers: what cannot be parsed, and a body of another length.
 */
const MALFORMED = 'HTTPParserError'
export const WRONG_LENGTH = 'UND_ERR_RES_CONTENT_LENGTH_MISMATCH'

/** Codes of OpenSSL and of Node's certificate checks. */
const TLS_CODE = /^(ERR_TLS|ERR_SSL|CERT_|SELF_SIGNED|DEPTH_ZERO|UNABLE_TO_|EPROTO)/

const UNKNOWN_AUTHORITY =
  'its certificate is of an authority that Node does not know. Start Governor with NODE_EXTRA_CA_CERTS=FILE, the ' +
  'certificate of that authority'

/** What the codes mean that an operator can mend, and how. */
const TLS_PROBLEMS: Readonly<Record<string, string>> = {
  SELF_SIGNED_CERT_IN_CHAIN: UNKNOWN_AUTHORITY,
  DEPTH_ZERO_SELF_SIGNED_CERT: UNKNOWN_AUTHORITY,
  UNABLE_TO_GET_ISSUER_CERT: UNKNOWN_AUTHORITY,
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: UNKNOWN_AUTHORITY,
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: UNKNOWN_AUTHORITY,
  CERT_HAS_EXPIRED: 'its certificate has expired, or the clock of this machine is wrong',
  CERT_NOT_YET_VALID: 'its certificate is not valid yet, or the clock of this machine is wrong',
  ERR_TLS_CERT_ALTNAME_INVALID: 'its certificate is of another host',
  ERR_SSL_WRONG_VERSION_NUMBER: 'it speaks no TLS there',
}

/** Codes of limits of this machine: open files of the process, of the system, and memory for sockets. */
const EXHAUSTED = /^(EMFILE|ENFILE|ENOBUFS)$/

/** Returns what kind of failure an error is, and its message, which describes the upstream by `where`. */
function kindOf(error: Error, upstream: Upstream, where: string): Pick<Failure, 'status' | 'code' | 'message'> {
  const code = String(detailOf(error, 'code') ?? '')
  const check = `Check upstreams.${upstream.name}.url.`
  if (EXHAUSTED.test(code)) {
    const advice = 'send the request again. Its operator can raise the limit on open files.'
    const message = `Governor has no connection left for ${where} (${code}): ${advice}`
    return { status: 503, code: 'out_of_connections', message }
  }
  if (code === 'ETIMEDOUT' || code === 'UND_ERR_CONNECT_TIMEOUT') {
    const message = `Governor could not connect to ${where} in time. ${check}`
    return { status: 504, code: 'upstream_timeout', message }
  }
  if (code === 'UND_ERR_HEADERS_TIMEOUT' || code === 'UND_ERR_BODY_TIMEOUT') {
    const limits = 'See timeouts.first_byte and timeouts.idle.'
    const message = `Governor waited for ${where}, which did not answer in time. ${limits}`
    return { status: 504, code: 'upstream_timeout', message }
  }
  if (TLS_CODE.test(code)) {
    const problem = Object.hasOwn(TLS_PROBLEMS, code) ? `${TLS_PROBLEMS[code]} (${code})` : code
    const message = `Governor could not make a secure connection to ${where}: ${problem}. ${check}`
    return { status: 502, code: 'upstream_tls', message }
  }
  const isMalformed = code.startsWith('HPE_') || error.name === MALFORMED
  if (isMalformed || code === WRONG_LENGTH) {
    // undici's parser describes errors in words and has no codes for them.
    const problem = code || /\(([^()]{1,80})\)$/.exec(error.message)?.[1] || error.name
    const message = `Governor got an answer from ${where} that is not valid HTTP (${problem}). ${check}`
    return { status: 502, code: 'upstream_broken', message }
  }
  const refusal = /^Proxy response \((\d+)\)/.exec(error.message)?.[1]
  const reason = REASONS[code] ?? 'the connection failed'
  let message = `Governor could not get an answer from ${where}: ${reason}. ${check}`
  const { hostname, port, protocol } = new URL(upstream.origin)
  const expected = Number(port || (protocol === 'https:' ? 443 : 80))
  const isThere =
    (detailOf(error, 'port') ?? expected) === expected && (detailOf(error, 'hostname') ?? hostname) === hostname
  // An error about another server than the upstream is one about a forward proxy.
  if (refusal || !isThere) {
    const problem = refusal ? `refused (${refusal})` : `can't be reached (${reason})`
    const settings = 'Check HTTPS_PROXY, HTTP_PROXY and NO_PROXY.'
    message = `Governor could not reach ${where}: the proxy on the way ${problem}. ${settings}`
  }
  return { status: 502, code: 'upstream_unreachable', message }
}

/** Returns an error for a status that no HTTP response has (RFC 9110, section 15), as parsers read any three digits. */
export function invalidStatus(status = 0): Error | undefined {
  if (status >= 100) return undefined
  return Object.assign(new Error('Invalid status (a status below 100)'), { name: MALFORMED })
}

export function failureOf(error: Error, upstream: Upstream): Failure {
  // Only the operator may see the address of an upstream: a client may be anybody.
  const { message: detail } = kindOf(error, upstream, `upstream ${upstream.name} at ${upstream.origin}`)
  return { ...kindOf(error, upstream, `upstream ${upstream.name}`), detail, cause: error }
}
