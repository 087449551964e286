/** The API of sessions: read them, steer them. */
import type { FastifyInstance, FastifyPluginAsync, FastifyRequest } from 'fastify'
import { idOf, type ListedSession, type Store, TRANSCRIPTS } from '../../store/store.ts'
import type { Emit } from '../../telemetry/event.ts'
import type { DayCost } from '../../usage/day-cost.ts'
import { type AdminAccess, type AdminSettings, adminAccess, unauthorized } from '../admin-access.ts'
import { type BudgetSources, budgetRoutes, readUses } from '../budget.ts'
import { problem, problemBody, RequestProblem, replyToProblem } from '../problem.ts'
import { createSignIns, signInRoutes } from '../sign-ins.ts'
import { type UsageSource, usageRoutes } from '../usage.ts'
import { ACTIONS, type Action, type ActionContext } from './actions.ts'
import { listQuery, type SessionDetail, type SessionPage } from './api-schema.ts'
import { createSessionEvents } from './event-streams.ts'
import { openApi } from './openapi.ts'
import { type PauseSources, pauseRoutes } from './pauses.ts'
import { sessionIn, validated } from './session-in.ts'
import { createSessionList } from './session-list.ts'
import { answerView, type ContextOf, detailOf, transcriptOf } from './view.ts'

interface SessionSources extends Omit<ActionContext, 'idempotencyKey'>, PauseSources, BudgetSources {
  readonly version: string
  readonly store: Store
  readonly access: AdminSettings
  readonly newId: () => string
  readonly contextOf: ContextOf
  readonly emit: Emit
  /** Whether Governor acts on its decisions, or only observes. */
  readonly mode: () => SessionPage['mode']
  /** What users and assistants say is kept. */
  readonly keepsTranscripts: boolean
  readonly dayCost: Pick<DayCost, 'today'>
  /** The journal of usage; unset where none is kept. */
  readonly usage: UsageSource | undefined
}

const idIn = ({ params }: FastifyRequest) => (params as { readonly id: string }).id

async function showDetail(sources: SessionSources, listed: ListedSession, admin: AdminAccess): Promise<SessionDetail> {
  const { store, keepsTranscripts, now, contextOf, pauses } = sources
  const usedOf = await readUses(sources, listed.session)
  const detail = detailOf(listed, { now: now(), pauses: pauses.current, usedOf, ...admin }, contextOf)
  const shown = { ...detail, transcript: keepsTranscripts }
  const completed = shown.threads.findLast(({ state }) => state === 'completed')
  if (!keepsTranscripts || !completed || shown.final_answer) return shown
  const entries = await store.value(TRANSCRIPTS, listed.key)
  const last = entries.findLast(({ thread }) => thread === completed.thread)
  if (last?.role !== 'assistant' || !last.callsNothing) return shown
  return { ...shown, final_answer: answerView(last.text, last.truncated) }
}

/** Changes a session as an operator asks; returns it as it is then. */
async function act(
  sources: SessionSources,
  request: FastifyRequest,
  { name, body, change }: Action,
): Promise<SessionDetail> {
  const given = validated(body, request.body ?? undefined, 'body')
  const { thread, ...details } = given
  const idempotencyKey = request.headers['idempotency-key']?.toString()
  const { key } = await sessionIn(sources.store, idIn(request))
  const session = await sources.store.update(key, (before) => {
    if (!before) throw problem('unknown_session')
    if (thread !== undefined && !before.threads.some(({ number }) => number === thread)) throw problem('unknown_thread')
    const after = change(before, given, { ...sources, idempotencyKey })
    return { session: after, result: after }
  })
  const { by } = request.admin
  sources.emit({ kind: 'operator_acted', action: name, session: idOf(key), thread, by, details })
  return showDetail(sources, { key, session }, request.admin)
}

/** Serves the changes of sessions as they happen. */
function eventRoutes(app: FastifyInstance, sources: SessionSources): void {
  const events = createSessionEvents(sources)
  const unsubscribe = sources.pauses.subscribe(events.reload)
  // `preClose`: a stream that stays open would keep the server from closing.
  app.addHook('preClose', async () => {
    unsubscribe()
    events.close()
  })
  app.get('/governor/events', { exposeHeadRoute: false }, async ({ raw, admin }, reply) => {
    reply.hijack()
    if (await events.open(raw, { response: reply.raw, ...admin })) return
    reply.raw.writeHead(503, { 'content-type': 'application/json', 'retry-after': '10' })
    reply.raw.end(JSON.stringify(problemBody(503, 'too_many_streams', 'Too many pages are open: close one.')))
  })
}

/** Serves the API to clients that may use it; all others get 401, also for unknown sessions. */
export const sessionRoutes: FastifyPluginAsync<SessionSources> = async (app, sources) => {
  const { version, store, access, now, emit, keepsTranscripts } = sources
  app.removeContentTypeParser(['text/plain', 'application/json'])
  app.addContentTypeParser('application/json', { parseAs: 'string', bodyLimit: 16_384 }, (_, text, parsed) => {
    try {
      parsed(null, text === '' ? undefined : JSON.parse(String(text)))
    } catch {
      parsed(new RequestProblem(400, 'invalid_json', 'body: not valid JSON'), undefined)
    }
  })
  const signIns = createSignIns(now)
  app.decorateRequest('admin')
  app.addHook('onRequest', async (request, reply) => {
    reply.header('cache-control', 'no-store')
    const admin = adminAccess(request.raw, access, signIns)
    // Where there is a token, an agent with a shell on this machine must not raise its own limits.
    const isChange = request.method !== 'GET' && request.method !== 'HEAD'
    if (!admin || (isChange && access.admin_token !== undefined && admin.by !== 'token'))
      return unauthorized(reply, access)
    request.admin = admin
  })
  app.setErrorHandler<Error & { statusCode?: number }>((error, _request, reply) => {
    if ((error.statusCode ?? 500) >= 500) emit({ kind: 'ops_failed', fault: error.message.slice(0, 200) })
    return replyToProblem(error, reply)
  })
  const list = createSessionList(sources)
  app.get('/governor/sessions', async ({ query, admin }): Promise<SessionPage> => {
    const page = await list(validated(listQuery, query, 'query'), admin.seesNames)
    return { ...page, mode: sources.mode(), signed_in: admin.by === 'token' }
  })
  pauseRoutes(app, sources)
  const path = '/governor/sessions/:id'
  app.get(path, async (request) => showDetail(sources, await sessionIn(store, idIn(request)), request.admin))
  app.get(`${path}/transcript`, async (request) => {
    const listed = await sessionIn(store, idIn(request))
    if (!keepsTranscripts) throw problem('transcript_off')
    return transcriptOf(listed, await store.value(TRANSCRIPTS, listed.key), { now: now(), ...request.admin })
  })
  for (const [name, action] of Object.entries(ACTIONS))
    app.route({ method: action.method, url: `${path}/${name}`, handler: (request) => act(sources, request, action) })
  budgetRoutes(app, sources)
  signInRoutes(app, signIns, access.admin_token)
  usageRoutes(app, sources.usage, now)
  app.get('/governor/openapi.json', () => openApi(version))
  eventRoutes(app, sources)
  const onRequest = async () => {
    throw problem('not_found')
  }
  app.all('/governor/*', { onRequest }, onRequest)
}
