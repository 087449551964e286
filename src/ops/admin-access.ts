/** Who may read and steer sessions: this machine, and clients that send the token. */
import { createHash, timingSafeEqual } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { FastifyReply } from 'fastify'
import { isLoopback } from '../http/urls.ts'
import { problemBody } from './problem.ts'
import type { SignIns } from './sign-ins.ts'

/** The section `ops` of the configuration. */
export interface AdminSettings {
  /** Unset: requests from loopback alone are allowed. */
  readonly admin_token?: string | undefined
  /** False if a reverse proxy on this machine passes on requests from other machines. */
  readonly trust_loopback: boolean
  /** `token`: only requests with the token see the names that clients chose for their sessions. */
  readonly names: 'all' | 'token'
  /** Everyone may read the metrics, even if there is a token. */
  readonly metrics_public: boolean
}

declare module 'fastify' {
  interface FastifyRequest {
    /** How it may use the API; the first hook sets it. */
    admin: AdminAccess
  }
}

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

const holds = () => true

/**
 * Returns how a request may read and steer sessions, if it may: what proved that, and whether it also sees the names
 * that clients chose for their sessions. A wrong token is refused from loopback as well. `holds`: whether it still may.
 */
export function adminAccess(request: IncomingMessage, settings: AdminSettings, signIns?: SignIns) {
  const { admin_token: token, trust_loopback, names } = settings
  const [, given] = /^bearer +([^ ].*)$/i.exec(request.headers.authorization ?? '') ?? []
  if (token !== undefined && given !== undefined)
    // In constant time, so that the time reveals nothing about the token.
    return timingSafeEqual(digest(given), digest(token)) ? { by: 'token' as const, seesNames: true, holds } : undefined
  const isSignedIn = token === undefined ? undefined : signIns?.of(request, token)
  if (isSignedIn) return { by: 'token' as const, seesNames: true, holds: isSignedIn }
  if (!trust_loopback || !isFromHere(request)) return undefined
  return { by: 'loopback' as const, seesNames: names === 'all', holds }
}

/** How a request may read and steer sessions. */
export type AdminAccess = NonNullable<ReturnType<typeof adminAccess>>

/** Sends 401 to a request that may not use the API, in the same way for existing and unknown sessions. */
export function unauthorized(reply: FastifyReply, { admin_token: token }: AdminSettings): FastifyReply {
  const isWrong = token !== undefined && reply.request.headers.authorization !== undefined
  const message = token
    ? `${isWrong ? 'This is not the admin token. ' : ''}Send that of GOVERNOR_ADMIN_TOKEN as Authorization: Bearer.`
    : 'Only requests from this machine may do this. Set GOVERNOR_ADMIN_TOKEN to allow others.'
  return reply
    .code(401)
    .header('www-authenticate', 'Bearer realm="governor"')
    .send(problemBody(401, 'unauthorized', message))
}
