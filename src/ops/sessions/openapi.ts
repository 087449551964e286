/** The OpenAPI description of the API, made from the shapes of its requests and replies. */
import * as z from 'zod'
import { ACTIONS } from './actions.ts'
import { apiError, listQuery, sessionDetail, sessionPage, transcript } from './api-schema.ts'

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

const REFUSALS = {
  400: 'Something in the request is wrong; the message says what.',
  401: 'Neither from loopback nor with the token.',
}
const UNKNOWN = { 404: 'No such session or agent.' }

/** `problems`: what goes wrong besides, by status. */
function operation(summary: string, parameters: readonly Json[], done: Json, problems: Record<number, string>): Json {
  const responses: Record<string, Json> = { 200: done }
  for (const [status, text] of Object.entries({ ...REFUSALS, ...problems })) responses[status] = reply(text, 'Error')
  return { summary, parameters, responses }
}

const ID = { name: 'id', in: 'path', required: true, schema: { type: 'string' } }
const IDEMPOTENCY = {
  name: 'Idempotency-Key',
  in: 'header',
  required: false,
  description: 'The same key for the same session changes nothing a second time.',
  schema: { type: 'string', maxLength: 200 },
}

function actionPaths(session: string): Json {
  const paths: Record<string, Json> = {}
  for (const [path, { name, method, summary, body }] of Object.entries(ACTIONS)) {
    const parameters = name === 'extend' ? [ID, IDEMPOTENCY] : [ID]
    const off = name === 'loop_guard' && { 409: 'The loop guard is off in the configuration.' }
    const done = reply('The session after it.', 'SessionDetail')
    const required = !body.safeParse(undefined).success
    const requestBody = { required, content: { 'application/json': { schema: schemaOf(body, 'input') } } }
    paths[`${session}/${path}`] = {
      [method.toLowerCase()]: { ...operation(summary, parameters, done, { ...UNKNOWN, ...off }), requestBody },
    }
  }
  return paths
}

const EVENTS = {
  summary: 'Changes of sessions as they happen',
  description:
    'Server-sent events. `session`: the row of a session that changed; `ready`: what came since Last-Event-ID ' +
    'follows; `reload`: read the list, then go on; `ping`: a sign of life every five seconds.',
  parameters: [{ name: 'Last-Event-ID', in: 'header', required: false, schema: { type: 'string' } }],
  responses: {
    200: { description: 'Events, until the client leaves.', content: { 'text/event-stream': {} } },
    401: reply(REFUSALS[401], 'Error'),
  },
}

export function openApi(version: string): Json {
  const session = '/governor/sessions/{id}'
  const query = schemaOf(listQuery, 'input')['properties'] as Json
  const filters = Object.entries(query).map(([name, schema]) => ({ name, in: 'query', required: false, schema }))
  const page = reply('A page of sessions.', 'SessionPage')
  const texts = reply('Its transcript, which is empty until something is said.', 'Transcript')
  return {
    openapi: '3.1.0',
    info: { title: 'Governor', version, description: 'Sessions of agents: see them, steer them.' },
    security: [{}, { token: [] }],
    paths: {
      '/governor/sessions': { get: operation('Sessions, the one with the highest risk first', filters, page, {}) },
      [session]: { get: operation('One session in full', [ID], reply('The session.', 'SessionDetail'), UNKNOWN) },
      [`${session}/transcript`]: {
        get: operation('What the user and the assistant said in one session', [ID], texts, {
          404: 'No such session; or transcript_off: nothing is kept, as sessions.transcript is off.',
        }),
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
