/** Errors of Governor's own routes, and the replies that describe them. */
import type { FastifyReply } from 'fastify'

export class RequestProblem extends Error {
  override readonly name = 'RequestProblem'
  readonly statusCode: number
  readonly code: string

  constructor(statusCode: number, code: string, message: string) {
    super(message)
    this.statusCode = statusCode
    this.code = code
  }
}

const PROBLEMS = {
  unknown_session: [404, 'No session has this id or name. GET /governor/sessions lists those there are.'],
  store_unreachable: [
    503,
    'Redis does not answer, and this replica does not know the session: try again, or ask the replica that serves it.',
  ],
  ambiguous_name: [409, 'Several clients call a session so: give the id of one.'],
  unknown_thread: [404, 'The session has no agent of this number.'],
  not_found: [404, 'There is nothing here: GET /governor/openapi.json says what there is.'],
  transcript_off: [
    404,
    'No transcripts are kept. Set sessions.transcript: true in the configuration to keep what is said from then on.',
  ],
  journal_off: [
    404,
    'No journal is kept. Start Governor with --journal FILE, or set usage.journal to a file, to keep what agents use ' +
      'from then on.',
  ],
  loop_guard_off: [
    409,
    'Nothing looks for loops: the configuration has loop_guard.enabled: false. Set it to true first.',
  ],
  unknown_upstream: [404, 'No upstream has this name.'],
  unknown_key: [404, 'No entry of server.access_keys has this name.'],
  unknown_pause: [404, 'There is no such pause. GET /governor/pause lists those that hold.'],
  too_many_pauses: [409, 'There are 100 pauses: resume some first.'],
  invalid_cursor: [400, 'query: cursor: not one that a page gave as next'],
} as const

export function problem(code: keyof typeof PROBLEMS): RequestProblem {
  const [status, message] = PROBLEMS[code]
  return new RequestProblem(status, code, message)
}

const TYPES: Readonly<Record<number, string>> = { 401: 'authentication_error', 404: 'not_found_error' }

export function problemBody(statusCode: number, code: string, message: string): object {
  return { error: { type: TYPES[statusCode] ?? 'invalid_request_error', code, message } }
}

/** Sends an error as JSON. A fault of Governor's own is not described. */
export function replyToProblem(error: Error & { statusCode?: number }, reply: FastifyReply): FastifyReply {
  const { statusCode: status = 500, message } = error
  if (status >= 500 && !(error instanceof RequestProblem)) {
    const hint = 'Governor could not do this. Its log names the fault.'
    return reply.code(status).send(problemBody(status, 'internal_error', hint))
  }
  const code = error instanceof RequestProblem ? error.code : 'invalid_request'
  const said = status === 415 ? 'body: send it with content-type: application/json' : message
  return reply.code(status).send(problemBody(status, code, said))
}
