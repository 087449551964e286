/** Who may read and steer sessions: this machine, and clients that send the token. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { FastifyReply } from 'fastify'
import { isLoopback } from '../http/loopback.ts'

export interface AdminSettings {
  /** Unset: requests from loopback alone are allowed. */
  readonly token: string | undefined
  /** False if a reverse proxy on this machine passes on requests from other machines. */
  readonly trustsLoopback: boolean
  /** Only requests with the token see the names that clients chose for their sessions. */
  readonly namesNeedToken: boolean
}

/** How a request proved that it may use the API; `undefined` if it did not. */
export type AdminAccess = 'token' | 'loopback' | undefined

const digest = (text: string) => createHash('sha256').update(text).digest()

/** With one of these headers of a reverse proxy, the request may come from another machine than its connection. */
const FORWARDED = ['forwarded', 'via', 'x-forwarded-for', 'x-forwarded-host', 'x-real-ip'] as const

/**
 * Returns true if a request comes from a program on this machine or from Governor's own page. A page from elsewhere
 * can send requests here, and can make its host name resolve to this machine: `Host`, `Origin` or `Sec-Fetch-Site`
 * show that.
 */
function isFromHere({ headers, socket }: IncomingMessage): boolean {
  if (!isLoopback((socket.remoteAddress ?? '').replace(/^::ffff:/i, ''))) return false
  if (FORWARDED.some((name) => headers[name] !== undefined)) return false
  const { host, origin } = headers
  const url = `http://${host}`
  if (host === undefined || !URL.canParse(url)) return false
  if (!isLoopback(new URL(url).hostname.replace(/^\[|\]$/g, ''))) return false
  if (origin !== undefined && origin.toLowerCase() !== `http://${host}`.toLowerCase()) return false
  const site = headers['sec-fetch-site']
  return site === undefined || site === 'same-origin' || site === 'none'
}

/** Returns how a request may read and steer sessions, if it may. A wrong token is refused from loopback as well. */
export function adminAccess(request: IncomingMessage, { token, trustsLoopback }: AdminSettings): AdminAccess {
  const [, given] = /^bearer +([^ ].*)$/i.exec(request.headers.authorization ?? '') ?? []
  if (token !== undefined && given !== undefined)
    // In constant time, so that the time reveals nothing about the token.
    return timingSafeEqual(digest(given), digest(token)) ? 'token' : undefined
  return trustsLoopback && isFromHere(request) ? 'loopback' : undefined
}

/** Returns true if a request that may use the API also sees the names that clients chose for their sessions. */
export function seesNames(request: IncomingMessage, settings: AdminSettings): boolean {
  const by = adminAccess(request, settings)
  return by === 'token' || (by === 'loopback' && !settings.namesNeedToken)
}

const TYPES: Readonly<Record<number, string>> = { 401: 'authentication_error', 404: 'not_found_error' }

/** Returns the body of an error reply. */
export function problemBody(statusCode: number, code: string, message: string): object {
  return { error: { type: TYPES[statusCode] ?? 'invalid_request_error', code, message } }
}

/** Sends 401 to a request that may not use the API, in the same way for existing and unknown sessions. */
export function unauthorized(reply: FastifyReply, { token }: AdminSettings): FastifyReply {
  const message = token
    ? 'Send the admin token as Authorization: Bearer.'
    : 'Only requests from this machine may do this. Set GOVERNOR_ADMIN_TOKEN to allow others.'
  return reply
    .code(401)
    .header('www-authenticate', 'Bearer realm="governor"')
    .send(problemBody(401, 'unauthorized', message))
}
