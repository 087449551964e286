/** The API of sessions: read them, steer them. */
import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from 'fastify'
import type * as z from 'zod'
import { LIMITS, METERS } from '../../core/budget/meters.ts'
import { hashOf } from '../../core/hash.ts'
import {
  type BudgetChange,
  type Extension,
  extendRuns,
  resetRuns,
  setBudget,
  setLoopMode,
  stopRuns,
} from '../../core/operator/operator.ts'
import type { Session } from '../../core/session/session.ts'
import { idOf, idsNamed, keyOf } from '../../store/session-id.ts'
import { type SessionKey, type Store, TRANSCRIPTS } from '../../store/store.ts'
import type { Emit, OperatorAction } from '../../telemetry/event.ts'
import { type AdminSettings, adminAccess, problemBody, seesNames, unauthorized } from '../admin-access.ts'
import type { DayCost } from './day-cost.ts'
import { createSessionEvents } from './event-streams.ts'
import { openApi } from './openapi.ts'
import {
  budgetBody,
  extendBody,
  listQuery,
  loopGuardBody,
  type SessionDetail,
  type Transcript,
  threadBody,
} from './schema.ts'
import { createSessionList, shownRow } from './session-list.ts'
import { completedAnswer, transcriptOf } from './transcript-view.ts'
import { type ContextOf, detailOf } from './view.ts'

export interface SessionSources {
  readonly version: string
  readonly store: Store
  readonly access: AdminSettings
  /** Milliseconds since the epoch. */
  readonly now: () => number
  readonly newId: () => string
  readonly contextOf: (session: Session) => ContextOf
  /** True if the loop guard is off for every request. */
  readonly isLoopGuardOff: () => boolean
  readonly emit: Emit
  /** What users and assistants say is kept. */
  readonly keepsTranscripts: boolean
  readonly dayCost: Pick<DayCost, 'today'>
}

/** The reason why a request is rejected. */
class RequestProblem extends Error {
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
  ambiguous_name: [409, 'Several clients call a session so: give the id of one.'],
  unknown_thread: [404, 'The session has no agent of this number.'],
  not_found: [404, 'There is nothing here: GET /governor/openapi.json says what there is.'],
  transcript_off: [
    404,
    'No transcripts are kept. Set sessions.transcript: true in the configuration to keep what is said from then on.',
  ],
  loop_guard_off: [
    409,
    'Nothing looks for loops: the configuration has loop_guard.enabled: false. Set it to true first.',
  ],
  invalid_cursor: [400, 'query: cursor: not one that a page gave as next'],
} as const

function problem(code: keyof typeof PROBLEMS): RequestProblem {
  const [status, message] = PROBLEMS[code]
  return new RequestProblem(status, code, message)
}

/** Returns the problem of a request to one of Governor's own paths where there is nothing. */
export const notFound = () => problem('not_found')

function parse<Shape extends z.ZodType>(shape: Shape, given: unknown, what: string): z.output<Shape> {
  const { success, data, error } = shape.safeParse(given)
  if (success) return data
  const [issue] = error.issues
  const where = issue && issue.path.length > 0 ? `${issue.path.join('.')}: ` : ''
  throw new RequestProblem(400, 'invalid_request', `${what}: ${where}${issue?.message ?? 'not valid'}`)
}

type Ended = { readonly terminal: SessionDetail['terminal'] }

/** Returns a function that puts the id of the API in the place of the client's name for the session. */
const hideName =
  (id: string) =>
  <One extends Ended>(ended: One): One =>
    ended.terminal ? { ...ended, terminal: { ...ended.terminal, session: id } } : ended

/** Removes the names that clients chose. */
function withoutNames(session: SessionDetail): SessionDetail {
  const hide = hideName(session.id)
  return {
    ...hide(session),
    name: null,
    threads: session.threads.map((thread) => ({ ...hide(thread), name: null })),
    runs: session.runs.map(hide),
  }
}

/** Returns the session that a path names: by its id in the API, or as header, log and webhook call it. */
async function keyIn({ store }: SessionSources, request: FastifyRequest): Promise<SessionKey> {
  const { id } = request.params as { readonly id: string }
  const key = keyOf(id)
  if (key && (await store.get(key))) return key
  const keys: SessionKey[] = []
  for await (const named of store.all(idsNamed(id))) keys.push(named.key)
  if (keys.length > 1) throw problem('ambiguous_name')
  if (!keys[0]) throw problem('unknown_session')
  return keys[0]
}

async function showDetail(
  sources: SessionSources,
  key: SessionKey,
  session: Session,
  hasNames: boolean,
): Promise<SessionDetail> {
  const { store, keepsTranscripts, now, contextOf } = sources
  const detail = detailOf(session, now(), contextOf(session))
  const isCompleted = detail.threads.some(({ state }) => state === 'completed')
  const isAsked = keepsTranscripts && isCompleted && !detail.final_answer
  const final_answer = isAsked ? completedAnswer(await store.value(TRANSCRIPTS, key), detail) : detail.final_answer
  const shown = { id: idOf(key), ...detail, final_answer, transcript: keepsTranscripts }
  return hasNames ? shown : withoutNames(shown)
}

async function showTranscript(
  { store, keepsTranscripts, now, contextOf }: SessionSources,
  key: SessionKey,
  hasNames: boolean,
): Promise<Transcript> {
  if (!keepsTranscripts) throw problem('transcript_off')
  const [session, entries] = await Promise.all([store.get(key), store.value(TRANSCRIPTS, key)])
  if (!session) throw problem('unknown_session')
  const id = idOf(key)
  const shown = transcriptOf(entries, detailOf(session, now(), contextOf(session)))
  return { id, ...shown, entries: hasNames ? shown.entries : shown.entries.map(hideName(id)) }
}

/** An action of an operator. */
interface Action {
  readonly name: OperatorAction
  readonly thread: number | undefined
  /** The parameters of the action, for the log. */
  readonly details: object
  readonly change: (session: Session) => Session
}

async function act(sources: SessionSources, request: FastifyRequest, action: Action): Promise<SessionDetail> {
  const key = await keyIn(sources, request)
  const by = adminAccess(request.raw, sources.access)
  const { thread, change } = action
  const session = await sources.store.update(key, (before) => {
    if (!before) throw problem('unknown_session')
    if (thread !== undefined && !before.threads.some(({ number }) => number === thread)) throw problem('unknown_thread')
    const after = change(before)
    return { session: after, result: after }
  })
  sources.emit({
    kind: 'operator_acted',
    action: action.name,
    session: idOf(key),
    thread,
    by: by ?? 'loopback',
    details: action.details,
  })
  return showDetail(sources, key, session, seesNames(request.raw, sources.access))
}

function readRoutes(app: FastifyInstance, sources: SessionSources): void {
  const { store, access, now, newId, version } = sources
  const list = createSessionList(store, now, newId, sources.dayCost.today)
  app.get('/governor/sessions', async (request) => {
    const query = parse(listQuery, request.query, 'query')
    const page = await list.page(query, seesNames(request.raw, access))
    if (!page) throw problem('invalid_cursor')
    return page
  })
  app.get('/governor/sessions/:id', async (request) => {
    const key = await keyIn(sources, request)
    const session = await store.get(key)
    if (!session) throw problem('unknown_session')
    return showDetail(sources, key, session, seesNames(request.raw, access))
  })
  app.get('/governor/sessions/:id/transcript', async (request) =>
    showTranscript(sources, await keyIn(sources, request), seesNames(request.raw, access)),
  )
  app.get('/governor/openapi.json', () => openApi(version))
}

function actionRoutes(app: FastifyInstance, sources: SessionSources): void {
  const session = '/governor/sessions/:id'
  app.post(`${session}/stop`, (request) => {
    const { thread } = parse(threadBody, request.body ?? {}, 'body')
    return act(sources, request, {
      name: 'stop',
      thread,
      details: {},
      change: (before) => stopRuns(before, thread),
    })
  })
  app.post(`${session}/reset`, (request) => {
    const { thread } = parse(threadBody, request.body ?? {}, 'body')
    const change = (before: Session) => resetRuns(before, thread, sources.now())
    return act(sources, request, { name: 'reset', thread, details: {}, change })
  })
  app.post(`${session}/extend`, (request) => {
    const body = parse(extendBody, request.body, 'body')
    const { thread, ...details } = body
    const given = request.headers['idempotency-key']
    const key = typeof given === 'string' ? hashOf(given) : undefined
    let by: Extension
    if ('to' in body) by = { to: body.to }
    else if (typeof body.by === 'number') by = { iterations: body.by }
    else by = { share: Number.parseFloat(body.by) / 100 }
    const change = (before: Session) => extendRuns(before, thread, by, key)
    return act(sources, request, { name: 'extend', thread, details, change })
  })
  app.patch(`${session}/budget`, (request) => {
    const body = parse(budgetBody, request.body, 'body')
    const { thread, ...details } = body
    const limits: BudgetChange = Object.fromEntries(LIMITS.map((name) => [name, body[METERS[name].limit.setting]]))
    const change = (before: Session) => setBudget(before, thread, limits)
    return act(sources, request, { name: 'budget', thread, details, change })
  })
  app.patch(`${session}/loop-guard`, (request) => {
    const { thread, mode } = parse(loopGuardBody, request.body, 'body')
    if (mode !== null && sources.isLoopGuardOff()) throw problem('loop_guard_off')
    const change = (before: Session) => setLoopMode(before, thread, mode)
    return act(sources, request, { name: 'loop_guard', thread, details: { mode }, change })
  })
}

function eventRoute(app: FastifyInstance, sources: SessionSources): void {
  const { store, access, now, newId, emit } = sources
  const failed = (error: unknown) => emit({ kind: 'ops_failed', fault: String(error).slice(0, 200) })
  const show = async (key: SessionKey, hasNames: boolean) => {
    const session = await store.get(key)
    return session && JSON.stringify(shownRow({ key, session }, now(), hasNames))
  }
  const events = createSessionEvents(store, show, newId(), failed)
  // `preClose`: a stream that stays open would keep the server from closing.
  app.addHook('preClose', async () => events.close())
  app.get('/governor/events', { exposeHeadRoute: false }, async (request, reply) => {
    const hasNames = seesNames(request.raw, access)
    reply.hijack()
    const isOpen = await events.open(request.raw, { response: reply.raw, hasNames })
    if (isOpen) return
    reply.raw.writeHead(503, { 'content-type': 'application/json', 'retry-after': '10' })
    reply.raw.end(JSON.stringify(problemBody(503, 'too_many_streams', 'Too many pages are open: close one.')))
  })
}

/** Sends an error as JSON. A fault of Governor's own is not described. */
export function replyToProblem(
  error: Error & { statusCode?: number; code?: string },
  reply: FastifyReply,
): FastifyReply {
  const status = error.statusCode ?? 500
  const code = error instanceof RequestProblem ? error.code : status < 500 ? 'invalid_request' : 'internal_error'
  const message = status < 500 ? error.message : 'Governor could not do this. Its log names the fault.'
  return reply.code(status).send(problemBody(status, code, message))
}

/** Serves the API to clients that may use it; all others get 401, also for unknown sessions. */
export const sessionRoutes: FastifyPluginCallback<SessionSources> = (app, sources, done) => {
  app.removeContentTypeParser(['text/plain', 'application/json'])
  app.addContentTypeParser('application/json', { parseAs: 'string', bodyLimit: 16_384 }, (_, text, parsed) => {
    try {
      parsed(null, text === '' ? undefined : JSON.parse(String(text)))
    } catch {
      parsed(new RequestProblem(400, 'invalid_json', 'body: not valid JSON'), undefined)
    }
  })
  app.addHook('onRequest', async (request, reply) => {
    reply.header('cache-control', 'no-store')
    if (!adminAccess(request.raw, sources.access)) return unauthorized(reply, sources.access)
  })
  app.setErrorHandler<Error & { statusCode?: number }>((error, _request, reply) => {
    if ((error.statusCode ?? 500) >= 500) sources.emit({ kind: 'ops_failed', fault: error.message.slice(0, 200) })
    return replyToProblem(error, reply)
  })
  readRoutes(app, sources)
  actionRoutes(app, sources)
  eventRoute(app, sources)
  const onRequest = async () => {
    throw notFound()
  }
  app.all('/governor/*', { onRequest }, notFound)
  done()
}
