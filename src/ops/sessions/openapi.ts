/** The OpenAPI description of the API, made from the shapes of its requests and replies. */
import * as z from 'zod'
import { scopeLimitBody } from '../budget.ts'
import { usageQuery } from '../usage.ts'
import { ACTIONS } from './actions.ts'
import { listQuery, pauseBody, resumeBody } from './api-schema.ts'

type Json = Readonly<Record<string, unknown>>

/** Where OpenAPI keeps the shapes that have an id. */
const uri = (id: string) => `#/components/schemas/${id}`

const reply = (description: string, id: string): Json => ({
  description,
  content: { 'application/json': { schema: { $ref: uri(id) } } },
})

const REFUSALS = {
  400: reply('Something in the request is wrong; the message says what.', 'Error'),
  401: reply('Neither from loopback nor with the token.', 'Error'),
}
const UNKNOWN = { ...REFUSALS, 404: reply('No such session or agent.', 'Error') }

const ID = { name: 'id', in: 'path', required: true, schema: { type: 'string' } }
const IDEMPOTENCY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description: 'The same key for the same session changes nothing a second time.',
  schema: { type: 'string', maxLength: 200 },
}

/** Returns what a request must have as its body, if it must have one. */
function bodyOf(shape: z.ZodType): Json {
  const { $schema: _dialect, ...schema } = z.toJSONSchema(shape, { io: 'input' })
  return { required: !shape.safeParse(undefined).success, content: { 'application/json': { schema } } }
}

function actionPaths(session: string): Json {
  const paths: Record<string, Json> = {}
  for (const [path, { name, method, summary, body }] of Object.entries(ACTIONS)) {
    paths[`${session}/${path}`] = {
      [method.toLowerCase()]: {
        summary,
        parameters: name === 'extend' ? [ID, IDEMPOTENCY] : [ID],
        requestBody: bodyOf(body),
        responses: {
          200: reply('The session after it.', 'SessionDetail'),
          ...UNKNOWN,
          ...(name === 'loop_guard' && { 409: reply('The loop guard is off in the configuration.', 'Error') }),
        },
      },
    }
  }
  return paths
}

function budgetPath(): Json {
  const summary = 'What is used of the limits of an hour, a day, a week and a month'
  return {
    get: { summary, responses: { 200: reply('A row for each limit and subject.', 'Budget'), 401: REFUSALS[401] } },
    patch: {
      summary: 'Set such a limit until its period ends',
      requestBody: bodyOf(scopeLimitBody),
      responses: {
        200: reply('The limit after it.', 'ScopeBudget'),
        ...REFUSALS,
        404: reply('The configuration has no such limit.', 'Error'),
        409: reply('Several limits fit.', 'Error'),
      },
    },
  }
}

const EVENTS = {
  summary: 'Changes of sessions as they happen',
  description:
    'Server-sent events. `session`: the row of a session that changed; `ready`: what came since Last-Event-ID ' +
    'follows; `reload`: read the list, then go on; `ping`: a sign of life every five seconds.',
  parameters: [{ name: 'Last-Event-ID', in: 'header', required: false, schema: { type: 'string' } }],
  responses: {
    200: { description: 'Events, until the client leaves.', content: { 'text/event-stream': {} } },
    401: REFUSALS[401],
  },
}

const PAUSED = { 200: reply('The pauses that hold.', 'Paused'), ...REFUSALS }

function pausePath(summary: string, body: z.ZodType): Json {
  const responses = {
    ...PAUSED,
    404: reply('No such session, key, upstream or pause.', 'Error'),
    409: reply('Several sessions have this name, or there are too many pauses.', 'Error'),
  }
  return { summary, requestBody: bodyOf(body), responses }
}

const TRANSCRIPT = {
  summary: 'What the user and the assistant said in one session',
  parameters: [ID],
  responses: {
    200: reply('Its transcript, which is empty until something is said.', 'Transcript'),
    ...REFUSALS,
    404: reply('No such session; or transcript_off: nothing is kept, as sessions.transcript is off.', 'Error'),
  },
}

function queryOf(shape: z.ZodType): readonly Json[] {
  const { properties = {} } = z.toJSONSchema(shape, { io: 'input' })
  return Object.entries(properties).map(([name, schema]) => ({ name, in: 'query', required: false, schema }))
}

export function openApi(version: string): Json {
  const session = '/governor/sessions/{id}'
  const usage = {
    summary: 'What agents used, out of the journal',
    parameters: queryOf(usageQuery),
    responses: {
      200: reply('Sums of each group and of each day.', 'Usage'),
      ...REFUSALS,
      404: reply('journal_off: no journal is kept.', 'Error'),
    },
  }
  const schemas: Record<string, Json> = {}
  for (const [name, described] of Object.entries(z.toJSONSchema(z.globalRegistry, { uri }).schemas)) {
    const { $schema: _dialect, $id: _uri, ...schema } = described
    schemas[name] = schema
  }
  const list = { 200: reply('A page of sessions.', 'SessionPage'), ...REFUSALS }
  const one = { 200: reply('The session.', 'SessionDetail'), ...UNKNOWN }
  return {
    openapi: '3.1.0',
    info: { title: 'Governor', version, description: 'Sessions of agents: see them, steer them.' },
    security: [{}, { token: [] }],
    paths: {
      '/governor/sessions': {
        get: {
          summary: 'Sessions, the one with the highest risk first',
          parameters: queryOf(listQuery),
          responses: list,
        },
      },
      [session]: { get: { summary: 'One session in full', parameters: [ID], responses: one } },
      [`${session}/transcript`]: { get: TRANSCRIPT },
      ...actionPaths(session),
      '/governor/pause': {
        get: { summary: 'What operators have paused', responses: PAUSED },
        post: pausePath('Pause agents: their requests get no answer of a model', pauseBody),
      },
      '/governor/resume': { post: pausePath('Resume agents', resumeBody) },
      '/governor/budget': budgetPath(),
      '/governor/usage': { get: usage },
      '/governor/events': { get: EVENTS },
    },
    components: {
      schemas,
      securitySchemes: { token: { type: 'http', scheme: 'bearer', description: 'GOVERNOR_ADMIN_TOKEN' } },
    },
  }
}
