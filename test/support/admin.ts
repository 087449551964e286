/** Sends requests to Governor's own routes as an operator does, with any headers. */
import { once } from 'node:events'
import http, { type IncomingMessage } from 'node:http'
import type { SessionDetail, SessionRow } from '../../src/ops/sessions/api-schema.ts'

export interface RequestOptions {
  readonly method?: string
  readonly headers?: Readonly<Record<string, string>>
  /** Sent as JSON. */
  readonly body?: unknown
}

export interface Reply {
  readonly status: number
  readonly headers: IncomingMessage['headers']
  readonly text: string
  readonly json: unknown
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

/** Sends one request; `Host` and `Origin` may be any. */
export async function ask(
  url: string,
  path: string,
  { method = 'GET', headers = {}, body }: RequestOptions = {},
): Promise<Reply> {
  const { hostname, port } = new URL(url)
  const text = body === undefined ? undefined : JSON.stringify(body)
  const type = text === undefined ? {} : { 'content-type': 'application/json' }
  const request = http.request({ hostname, port, path, method, headers: { ...type, ...headers } })
  request.end(text)
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  let received = ''
  // A character may come in two chunks.
  response.setEncoding('utf8')
  for await (const chunk of response) received += String(chunk)
  return {
    status: response.statusCode ?? 0,
    headers: response.headers,
    text: received,
    json: parsed(received),
  }
}

export type Shown = SessionDetail

/** All sessions of a page. */
export async function listed(url: string, query = '', headers = {}): Promise<readonly SessionRow[]> {
  const { json } = await ask(url, `/governor/sessions${query}`, { headers })
  return (json as { sessions: readonly SessionRow[] }).sessions
}

/** The session with the highest risk, in full. */
export async function firstSession(url: string, headers = {}): Promise<Shown> {
  const [row] = await listed(url, '', headers)
  return (await ask(url, `/governor/sessions/${row?.id}`, { headers })).json as Shown
}

/** Sends an action for a session; returns the reply. */
export async function act(url: string, id: string, action: string, body?: unknown, headers = {}): Promise<Reply> {
  const method = action === 'budget' || action === 'loop-guard' ? 'PATCH' : 'POST'
  return ask(url, `/governor/sessions/${id}/${action}`, { method, body, headers })
}
