/** The OpenAPI description of the API, made from the shapes of its requests and replies. */
import * as z from 'zod'
import {
  apiError,
  budgetBody,
  extendBody,
  listQuery,
  loopGuardBody,
  sessionDetail,
  sessionPage,
  threadBody,
  transcript,
} from './schema.ts'

type Json = Readonly<Record<string, unknown>>

const REPLIES = {
  SessionPage: sessionPage,
  SessionDetail: sessionDetail,
  Transcript: transcript,
  Error: apiError,
} as const
type ReplyName = keyof typeof REPLIES

/** Schemas that others name stand in `components`. */
function componentsOf(): Json {
  const schemas: Record<string, unknown> = {}
  for (const [id, schema] of Object.entries(REPLIES)) {
    const { $schema: _dialect, $defs, ...rest } = z.toJSONSchema(schema) as Record<string, unknown>
    Object.assign(schemas, $defs, { [id]: rest })
  }
  return JSON.parse(JSON.stringify(schemas).replaceAll('"#/$defs/', '"#/components/schemas/')) as Json
}

function inputOf(schema: z.ZodType): Json {
  const { $schema: _dialect, ...rest } = z.toJSONSchema(schema, { io: 'input' }) as Record<string, unknown>
  return rest
}

const reply = (description: string, name: ReplyName): Json => ({
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

function action(
  summary: string,
  body: z.ZodType,
  isRequired: boolean,
  headers: readonly Json[] = [],
  otherReplies: Json = {},
): Json {
  return {
    summary,
    parameters: [ID, ...headers],
    requestBody: { required: isRequired, content: { 'application/json': { schema: inputOf(body) } } },
    responses: {
      200: reply('The session after it.', 'SessionDetail'),
      ...REFUSALS,
      ...UNKNOWN,
      ...otherReplies,
    },
  }
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
  const query = inputOf(listQuery)['properties'] as Json
  return {
    openapi: '3.1.0',
    info: { title: 'Governor', version, description: 'Sessions of agents: see them, steer them.' },
    security: [{}, { token: [] }],
    paths: {
      '/governor/sessions': {
        get: {
          summary: 'Sessions, the one with the highest risk first',
          parameters: Object.entries(query).map(([name, schema]) => ({
            name,
            in: 'query',
            required: false,
            schema,
          })),
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
      [`${session}/stop`]: { post: action('End current runs with an answer', threadBody, false) },
      [`${session}/reset`]: { post: action('Begin current runs anew', threadBody, false) },
      [`${session}/extend`]: {
        post: action('Raise the limits of current runs', extendBody, true, [IDEMPOTENCY]),
      },
      [`${session}/budget`]: { patch: action('Set limits of runs', budgetBody, true) },
      [`${session}/loop-guard`]: {
        patch: action('Set what happens in a loop', loopGuardBody, true, [], LOOP_GUARD_OFF),
      },
      '/governor/events': { get: EVENTS },
    },
    components: {
      schemas: componentsOf(),
      securitySchemes: { token: { type: 'http', scheme: 'bearer', description: 'GOVERNOR_ADMIN_TOKEN' } },
    },
  }
}
