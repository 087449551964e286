/** Who may read and steer sessions: this machine, and clients that send the token. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { FastifyReply } from 'fastify'
import { isLoopback } from '../http/loopback.ts'

export interface AdminSettings {
  /** Unset: requests from loopback alone are allowed. */
  readonly token: string | undefined
  /** False where a reverse proxy on this machine passes requests of others on. */
  readonly trustsLoopback: boolean
}

/** How a request showed that it may; `undefined` where it did not. */
export type AdminAccess = 'token' | 'loopback' | undefined

const digest = (text: string) => createHash('sha256').update(text).digest()

/** Takes as long for a token that is nearly right as for any other. */
function isSame(given: string, token: string): boolean {
  return timingSafeEqual(digest(given), digest(token))
}

/** Returns a host name without port and brackets, in lower case; `undefined` where there is none. */
function hostnameOf(host: string | undefined): string | undefined {
  const url = `http://${host}`
  if (host === undefined || !URL.canParse(url)) return undefined
  return new URL(url).hostname.replace(/^\[|\]$/g, '')
}

/** Headers that a reverse proxy adds: the request comes from somebody else than its connection. */
const FORWARDED = ['forwarded', 'via', 'x-forwarded-for', 'x-forwarded-host', 'x-real-ip'] as const

/**
 * Does a request come from a program or a page of this machine? A web page can send requests here, and can make a name of
 * its own point here: then `Host`, `Origin` or `Sec-Fetch-Site` say so.
 */
function isFromHere({ headers, socket }: IncomingMessage): boolean {
  if (!isLoopback((socket.remoteAddress ?? '').replace(/^::ffff:/i, ''))) return false
  if (FORWARDED.some((name) => headers[name] !== undefined)) return false
  const { host, origin } = headers
  const hostname = hostnameOf(host)
  if (hostname === undefined || !isLoopback(hostname)) return false
  if (origin !== undefined && origin.toLowerCase() !== `http://${host}`.toLowerCase()) return false
  const site = headers['sec-fetch-site']
  return site === undefined || site === 'same-origin' || site === 'none'
}

/** Tells whether a request may read and steer sessions. A wrong token is refused from loopback as well. */
export function adminAccess(request: IncomingMessage, { token, trustsLoopback }: AdminSettings): AdminAccess {
  const [, given] = /^bearer +([^ ].*)$/i.exec(request.headers.authorization ?? '') ?? []
  if (token !== undefined && given !== undefined) return isSame(given, token) ? 'token' : undefined
  return trustsLoopback && isFromHere(request) ? 'loopback' : undefined
}

const TYPES: Readonly<Record<number, string>> = { 401: 'authentication_error', 404: 'not_found_error' }

/** Returns the body of an error reply. */
export function problemBody(statusCode: number, code: string, message: string): object {
  return { error: { type: TYPES[statusCode] ?? 'invalid_request_error', code, message } }
}

/** Replies to a request that may not do what it asks, whether there is anything to be had or not. */
export function unauthorized(reply: FastifyReply, { token }: AdminSettings): FastifyReply {
  const message = token
    ? 'Send the admin token as Authorization: Bearer.'
    : 'Only requests from this machine may do this. Set GOVERNOR_ADMIN_TOKEN to allow others.'
  return reply
    .code(401)
    .header('www-authenticate', 'Bearer realm="governor"')
    .send(problemBody(401, 'unauthorized', message))
}
