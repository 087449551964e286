/** A client of a running Governor's API of sessions. */
import type { Environment } from '../../config/load.ts'
import type { Json } from '../../core/json-object.ts'
import { withoutTrailingSlashes } from '../../http/urls.ts'
import type { SessionDetail, SessionPage } from '../../ops/sessions/api-schema.ts'
import { type Call, CommandError, DEFAULT_PORT } from '../command.ts'

const PATIENCE = 10_000

export type Connection = ReturnType<typeof connect>

/** Returns how to reach a Governor; `signal` ends the requests. Throws `CommandError`, as all functions here do. */
export function connect({ url, port }: Call['flags'], env: Environment, signal?: AbortSignal) {
  // By default the address that a Governor with these flags and this environment would use.
  const given = url ?? `http://127.0.0.1:${port ?? (env['PORT'] || DEFAULT_PORT)}`
  if (!/^https?:\/\//.test(given) || !URL.canParse(given))
    throw new CommandError(`--url ${given}: expected an address such as http://127.0.0.1:${DEFAULT_PORT}`)
  return { base: withoutTrailingSlashes(given), token: env['GOVERNOR_ADMIN_TOKEN'], signal }
}

/** Nothing answered at the address: what a key asked for may work later. */
export class NoAnswer extends CommandError {}

/** Asks the API, or posts a `body`. Throws `CommandError`, also if the reply lacks the list or object called `key`. */
export async function send<Reply extends object>(
  { base, token, signal }: Connection,
  path: string,
  key: keyof Reply & string,
  body?: object,
  method: 'POST' | 'PATCH' = 'POST',
): Promise<Reply> {
  const patience = AbortSignal.timeout(PATIENCE)
  let response: Response
  let text: string
  try {
    response = await fetch(`${base}/governor/${path}`, {
      headers: { 'content-type': 'application/json', ...(token ? { authorization: `Bearer ${token}` } : {}) },
      signal: signal ? AbortSignal.any([signal, patience]) : patience,
      ...(body ? { method, body: JSON.stringify(body) } : {}),
    })
    text = await response.text()
  } catch (cause) {
    throw new NoAnswer(`no Governor answers at ${base}: start one, or name it with --url`, { cause })
  }
  let reply: (Json & { readonly error?: { readonly message?: string } }) | undefined
  try {
    reply = JSON.parse(text)
  } catch {
    // It is no Governor, or something between refuses.
  }
  // What was typed is the body of the request.
  const problem = reply?.error?.message?.replace(/^body: /, '')
  const { status } = response
  if (status === 401) throw new CommandError(`${base} refuses: ${problem ?? 'set GOVERNOR_ADMIN_TOKEN'}`)
  if (!response.ok)
    throw Object.assign(new CommandError(problem ?? `${base} answered with ${status}: is it a Governor?`), { status })
  if (!reply) throw new CommandError(`${base} is no Governor: its answer is no JSON`)
  // Another server may answer everything with some JSON.
  if (typeof reply[key] !== 'object' || reply[key] === null)
    throw new CommandError(`${base} is no Governor: its answer has no ${key}`)
  return reply as Reply
}

/** Returns a page of sessions, the one with the highest risk first. */
export async function listSessions(connection: Connection, query: Readonly<Record<string, string>>) {
  const path = `sessions?${new URLSearchParams(query)}`
  return send<SessionPage>(connection, path, 'sessions').catch((error: unknown) => {
    // Each Governor has this path; another server says in words of its own that it does not.
    if (!(error instanceof CommandError && error.status === 404)) throw error
    throw new CommandError(`${connection.base} answered with 404: is it a Governor?`, { cause: error })
  })
}

/** Asks about one session, or does something to it if there is a `body`. */
export function askSession(connection: Connection, id: string, action = '', body?: object) {
  return send<SessionDetail>(connection, `sessions/${encodeURIComponent(id)}${action && '/'}${action}`, 'threads', body)
}

/** Returns the id of the session whose id or name begins with a text; of several, of the one whose whole name it is. */
export async function idOfSession(connection: Connection, text: string): Promise<string> {
  const [first, second] = (await listSessions(connection, { id: text, limit: '2' })).sessions
  if (first && (!second || first.id === text)) return first.id
  const [named, other] = (await listSessions(connection, { name: text, limit: '2' })).sessions
  if (first && (!named || other)) throw new CommandError(`several sessions begin with ${text}: give more of the id`)
  if (!named) throw new CommandError(`no session begins with ${text}, and no client calls one so`)
  return named.id
}

/** Pages of all sessions are read up to so many rows. */
const MOST = 10_000

export const INCOMPLETE = 'Governor could not read its store to the end: sessions may be missing'

/** Returns all sessions, those at highest risk first, and what is paused. `complete`: false if some may be missing. */
export async function allSessions(connection: Connection) {
  let page = await listSessions(connection, { limit: '200' })
  const { complete, summary } = page
  const rows = [...page.sessions]
  while (page.next !== null && rows.length < MOST) {
    page = await listSessions(connection, { limit: '200', cursor: page.next })
    rows.push(...page.sessions)
  }
  return { rows, complete, paused: summary?.paused ?? [] }
}
