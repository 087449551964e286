/** Browsers that are signed in: each sent the admin token once, and has a cookie with a random id since then. */
import { createHash, randomBytes } from 'node:crypto'
import type { IncomingMessage } from 'node:http'
import type { FastifyInstance } from 'fastify'

/** How many there are at most; one more signs the oldest out. */
const MAX_SIGNED_IN = 100
/** How long a browser stays signed in. */
const LASTS_MS = 12 * 3_600_000

export type SignIns = ReturnType<typeof createSignIns>

const hashOf = (id: string) => createHash('sha256').update(id).digest('base64')

/** Returns the name of the cookie. All ports of a host share their cookies, so the port is in it. */
const nameFor = ({ socket }: IncomingMessage) => `governor-${socket.localPort}`

/** Returns the hashes of the ids that a request's cookies hold. */
function hashesIn(request: IncomingMessage): string[] {
  const start = `${nameFor(request)}=`
  const cookies = request.headers.cookie?.split(/; ?/) ?? []
  return cookies.filter((one) => one.startsWith(start)).map((one) => hashOf(one.slice(start.length)))
}

function cookieFor(request: IncomingMessage, id: string, more = ''): string {
  const isSecure = request.headers['x-forwarded-proto'] === 'https'
  return `${nameFor(request)}=${id}; Path=/governor; HttpOnly; SameSite=Strict${isSecure ? '; Secure' : ''}${more}`
}

/** True if a browser says that a page of Governor sends the request; older ones say it of changes, by `Origin`. */
function isOfOwnPage({ headers }: IncomingMessage): boolean {
  const { host = '', origin = '', 'sec-fetch-site': site } = headers
  if (site !== undefined) return site === 'same-origin'
  return URL.canParse(origin) && new URL(origin).host === host.toLowerCase()
}

/** Creates the sign-ins of a process, which nothing else knows. `now`: in milliseconds since the epoch. */
export function createSignIns(now: () => number) {
  const known = new Map<string, { readonly until: number; readonly token: string }>()
  const holds = (hash: string, token: string): boolean => {
    const one = known.get(hash)
    return one !== undefined && one.token === token && now() < one.until
  }
  return {
    /**
     * Signs a browser in that has sent the token; returns the header with its cookie, which ends with the browser.
     * `undefined` where browsers do not say which page sends a request: over plain HTTP from another machine.
     */
    begin(request: IncomingMessage, token: string): string | undefined {
      if (request.headers['sec-fetch-site'] !== 'same-origin') return undefined
      const id = randomBytes(24).toString('base64url')
      const [oldest] = known.keys()
      if (known.size >= MAX_SIGNED_IN && oldest !== undefined) known.delete(oldest)
      known.set(hashOf(id), { until: now() + LASTS_MS, token })
      return cookieFor(request, id)
    },
    /** Signs the browser of a request out; returns the header that removes its cookie. */
    end(request: IncomingMessage): string {
      for (const hash of hashesIn(request)) known.delete(hash)
      return cookieFor(request, '', '; Max-Age=0')
    },
    /** Returns what says whether the sign-in of a request still holds; `undefined` if it has none that does. */
    of(request: IncomingMessage, token: string): (() => boolean) | undefined {
      if (!isOfOwnPage(request)) return undefined
      const hash = hashesIn(request).find((one) => holds(one, token))
      return hash === undefined ? undefined : () => holds(hash, token)
    },
  }
}

/** Registers the routes with which the page signs in and out. `token`: the admin token, which clients have sent. */
export function signInRoutes(app: FastifyInstance, signIns: SignIns, token: string | undefined): void {
  app.post('/governor/sign-in', ({ raw }, reply) => {
    const cookie = token === undefined ? undefined : signIns.begin(raw, token)
    if (cookie !== undefined) reply.header('set-cookie', cookie)
    return { signed_in: cookie !== undefined }
  })
  app.post('/governor/sign-out', ({ raw }, reply) => {
    reply.header('set-cookie', signIns.end(raw))
    return { signed_in: false }
  })
}
