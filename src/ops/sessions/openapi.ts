/** The OpenAPI description of the API, made from the shapes of its requests and replies. */
import * as z from 'zod'
import { ACTIONS } from './actions.ts'
import { apiError, listQuery, sessionDetail, sessionPage, transcript } from './schema.ts'

type Json = Readonly<Record<string, unknown>>

const REPLIES = { SessionPage: sessionPage, SessionDetail: sessionDetail, Transcript: transcript, Error: apiError }

function schemaOf(schema: z.ZodType, io: 'input' | 'output'): Record<string, unknown> {
  const { $schema: _dialect, ...rest } = z.toJSONSchema(schema, { io })
  return rest
}

/** Schemas that others name stand in `components`. */
function componentsOf(): Json {
  const schemas: Record<string, unknown> = {}
  for (const [id, schema] of Object.entries(REPLIES)) {
    const { $defs, ...rest } = schemaOf(schema, 'output')
    Object.assign(schemas, $defs, { [id]: rest })
  }
  return JSON.parse(JSON.stringify(schemas).replaceAll('"#/$defs/', '"#/components/schemas/')) as Json
}

const reply = (description: string, name: keyof typeof REPLIES): Json => ({
  description,
  content: { 'application/json': { schema: { $ref: `#/components/schemas/${name}` } } },
})

const REFUSALS: Json = {
  400: reply('Something in the request is wrong; the message says what.', 'Error'),
  401: reply('Neither from loopback nor with the token.', 'Error'),
}
const UNKNOWN: Json = { 404: reply('No such session or agent.', 'Error') }

const ID = { name: 'id', in: 'path', required: true, schema: { type: 'string' } }
const IDEMPOTENCY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description: 'The same key for the same session changes nothing a second time.',
  schema: { type: 'string', maxLength: 200 },
}
const LOOP_GUARD_OFF: Json = { 409: reply('The loop guard is off in the configuration.', 'Error') }

/** Returns the paths of all actions. */
function actionPaths(session: string): Json {
  const paths: Record<string, Json> = {}
  for (const [path, { name, method, summary, body }] of Object.entries(ACTIONS)) {
    const required = !body.safeParse(undefined).success
    paths[`${session}/${path}`] = {
      [method.toLowerCase()]: {
        summary,
        parameters: name === 'extend' ? [ID, IDEMPOTENCY] : [ID],
        requestBody: { required, content: { 'application/json': { schema: schemaOf(body, 'input') } } },
        responses: {
          200: reply('The session after it.', 'SessionDetail'),
          ...REFUSALS,
          ...UNKNOWN,
          ...(name === 'loop_guard' && LOOP_GUARD_OFF),
        },
      },
    }
  }
  return paths
}

const EVENTS = {
  summary: 'Changes of sessions as they happen',
  description:
    'Server-sent events. `session`: the row of a session that changed; `ready`: what came since ' +
    'Last-Event-ID follows; `reload`: read the list, then go on; `ping`: a sign of life every five ' +
    'seconds.',
  parameters: [{ name: 'Last-Event-ID', in: 'header', required: false, schema: { type: 'string' } }],
  responses: {
    200: { description: 'Events, until the client leaves.', content: { 'text/event-stream': {} } },
    401: REFUSALS['401'],
  },
}

/** Returns the API as an OpenAPI 3.1 document. */
export function openApi(version: string): Json {
  const session = '/governor/sessions/{id}'
  const query = schemaOf(listQuery, 'input')['properties'] as Json
  return {
    openapi: '3.1.0',
    info: { title: 'Governor', version, description: 'Sessions of agents: see them, steer them.' },
    security: [{}, { token: [] }],
    paths: {
      '/governor/sessions': {
        get: {
          summary: 'Sessions, the one with the highest risk first',
          parameters: Object.entries(query).map(([name, schema]) => ({ name, in: 'query', required: false, schema })),
          responses: { 200: reply('A page of sessions.', 'SessionPage'), ...REFUSALS },
        },
      },
      [session]: {
        get: {
          summary: 'One session in full',
          parameters: [ID],
          responses: { 200: reply('The session.', 'SessionDetail'), ...REFUSALS, ...UNKNOWN },
        },
      },
      [`${session}/transcript`]: {
        get: {
          summary: 'What the user and the assistant said in one session',
          parameters: [ID],
          responses: {
            200: reply('Its transcript, which is empty until something is said.', 'Transcript'),
            ...REFUSALS,
            404: reply('No such session; or transcript_off: nothing is kept, as sessions.transcript is off.', 'Error'),
          },
        },
      },
      ...actionPaths(session),
      '/governor/events': { get: EVENTS },
    },
    components: {
      schemas: componentsOf(),
      securitySchemes: { token: { type: 'http', scheme: 'bearer', description: 'GOVERNOR_ADMIN_TOKEN' } },
    },
  }
}
