/** The page's requests to Governor's API of sessions. */
import type { SessionDetail } from '../../ops/sessions/api-schema.ts'

/** Governor does not let this page read sessions without a token, or with the one it has. */
export class RefusedError extends Error {
  override readonly name = 'RefusedError'
}

/** There is no connection to Governor. */
export class UnreachableError extends Error {
  override readonly name = 'UnreachableError'

  constructor() {
    super("Governor can't be reached")
  }
}

/** Governor answers, and says why not. */
export class AnswerError extends Error {
  override readonly name = 'AnswerError'
  readonly status: number

  constructor(status: number, message = `HTTP ${status}`) {
    super(message)
    this.status = status
  }
}

/** One visit: from signing in until Governor refuses, or another token is given. */
export interface Visit {
  /** Only here, so that nothing else in this origin can read it; after a reload a cookie stands for it. */
  readonly token: string
  /** Ends everything that is under way. */
  readonly over: AbortController
  /** Ends what is under way on connections over which nothing comes any more; then another one stands here. */
  line: AbortController
}

/** Begins a visit; without a token, as a browser that is signed in, or as this machine. */
export function visitWith(token: string): Visit {
  const visit = { token, over: new AbortController(), line: new AbortController() }
  visit.over.signal.addEventListener('abort', () => visit.line.abort())
  return visit
}

/** Ends all requests that wait, so that the next ones get connections that are alive. */
export function hangUp(visit: Visit): void {
  const { line } = visit
  visit.line = new AbortController()
  line.abort()
}

async function fetchAs({ token, line }: Visit, path: string, options: RequestInit = {}): Promise<Response> {
  const headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) }
  const response = await fetch(path, { ...options, headers, cache: 'no-store', signal: line.signal }).catch((error) => {
    // Each browser has words of its own for it.
    throw error instanceof TypeError ? new UnreachableError() : error
  })
  if (response.status === 401) throw new RefusedError()
  return response
}

/** Asks the API for a file. */
export async function askText(visit: Visit, path: string): Promise<string> {
  const response = await fetchAs(visit, path)
  if (!response.ok) throw new AnswerError(response.status)
  return response.text()
}

/** Asks the API for a reply, or to do something; the error says why Governor does not. */
export async function askJson<Reply>(visit: Visit, path: string, options?: RequestInit): Promise<Reply> {
  const response = await fetchAs(visit, path, options)
  const reply = await response.json()
  if (!response.ok) throw new AnswerError(response.status, reply.error?.message)
  return reply
}

/** Has the browser keep a cookie in place of the token, or ends that. */
export async function sign(visit: Visit, direction: 'in' | 'out'): Promise<void> {
  await fetchAs(visit, `sign-${direction}`, { method: 'POST' })
}

export type ActionName = 'stop' | 'extend' | 'reset' | 'loop-guard'

/** Does something to a session; returns the session after it. */
export function act(visit: Visit, id: string, action: ActionName, body: object): Promise<SessionDetail> {
  const method = action === 'loop-guard' ? 'PATCH' : 'POST'
  // No randomUUID on a page that did not come over TLS or from this machine.
  const key = [...crypto.getRandomValues(new Uint32Array(4))].join('-')
  const headers = { 'content-type': 'application/json', 'idempotency-key': key }
  return askJson(visit, `sessions/${encodeURIComponent(id)}/${action}`, { method, headers, body: JSON.stringify(body) })
}

/** Pauses or resumes agents, or raises a limit of an hour, a day, a week or a month. */
export function steerAll(visit: Visit, action: 'pause' | 'resume' | 'budget', body: object): Promise<unknown> {
  const headers = { 'content-type': 'application/json' }
  const method = action === 'budget' ? 'PATCH' : 'POST'
  return askJson(visit, action, { method, headers, body: JSON.stringify(body) })
}

export type StreamEvent = Readonly<Record<string, string>>

/** Calls back with each event after the one with this id, until the stream ends. */
export async function follow(visit: Visit, lastId: string, take: (event: StreamEvent) => void): Promise<void> {
  const response = await fetchAs(visit, 'events', { headers: lastId ? { 'last-event-id': lastId } : {} })
  if (!response.ok || !response.body) throw new Error(`HTTP ${response.status}`)
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader()
  let text = ''
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    text += value
    const events = text.split('\n\n')
    text = events.pop() ?? ''
    for (const lines of events)
      take(Object.fromEntries(lines.split('\n').map((line) => line.split(/: (.*)/s).slice(0, 2))))
  }
}
