/**
 * The requests and replies of the API of sessions. The types of views and of the command line and the OpenAPI
 * description are made from these shapes, and the tests compare real replies with them.
 */

import * as z from 'zod'
import { ALL_LIMITS, LIMITS, type LimitSetting, METERS } from '../../core/budget/meters.ts'
import { SCOPES } from '../../core/budget/scopes.ts'
import { GAPS } from '../../core/gaps.ts'
import { NAMES } from '../../core/loop/patterns.ts'
import { namesOf, tableBy } from '../../core/names.ts'
import { HIGHEST_LIMIT } from '../../core/operator/operator.ts'
import { GROUP_NAMES, MOST_SEARCHED, STATES } from './states.ts'

const time = z.iso.datetime()
const count = z.number().min(0)
const maybe = count.nullable()
const share = count.max(1)
const text = z.string().nullable()
const program = text.describe("The client's program: the first name in user-agent.")

/** Returns the shape of an object with no other keys; OpenAPI's name for it is `id`. */
function named<Shape extends z.ZodRawShape>(id: string, shape: Shape) {
  return z.strictObject(shape).meta({ id })
}

const states = z.enum(namesOf(STATES))
const state = states.meta({
  description:
    'asking: at a limit, and its request waits for a person to extend or stop the run; failed: its newest request ' +
    'got an error, and no other came since; working: a request is in flight, or its answer asks for more; ' +
    'going_round: in a loop; slowed: above a limit on its rate, and its request waits; near_limit: from 80 % of a ' +
    'limit of its run or session on; answered: the last answer called nothing; idle: left in the middle, ' +
    'for ten minutes; stopped: Governor ended the run, or the agent did at its own limit, terminal_reason says why; ' +
    'completed: answered, and nothing came for five minutes.',
})

const loop = named('Loop', {
  pattern: z.enum(NAMES),
  tools: z.array(z.string()),
  count: count.describe('How often each of its calls was made.'),
  warnings: count.describe('How many warnings the model got.'),
  blocked: z.boolean().describe('Governor blocks its calls.'),
  since: count.describe('Iteration since which nothing new came.'),
})

const asking = named('Question', {
  limit: z.enum(LIMITS),
  max: count,
  until: time.describe('Without extend or stop the run is stopped then.'),
  seconds_left: count,
})

const cost = {
  cost_usd: maybe.describe('null: no price is known. Calls without a known price count nothing, or an estimate.'),
  price_known: z.boolean().describe('false: cost_usd lacks calls without a known price, or estimates them.'),
  cost_estimated: z.boolean().describe("Calls without a known price count as calls of the provider's dearest model."),
}

const sums = { tool_calls: count, tokens: count, ...cost }

const meter = named('Meter', {
  name: z.enum(LIMITS),
  used: maybe.describe('null: nothing is known of the cost.'),
  max: count.describe('0: no limit.'),
})

const terminal = z
  .strictObject({
    terminal_state: z.string(),
    terminal_reason: z.string(),
    has_final_answer: z.boolean(),
    truncated: z.literal(true).optional(),
    budget_used: count,
    budget_max: count,
    scope: z.enum(namesOf(SCOPES)).optional(),
    resets_at: time.optional().describe('When a limit of an hour, a day, a week or a month begins anew.'),
    session: z.string(),
  })
  .meta({ id: 'Terminal', description: 'What the client got at the end of the run, letter by letter.' })

const limitUse = named('LimitUse', {
  meter: z.enum(ALL_LIMITS),
  scope: z
    .enum(namesOf(SCOPES))
    .describe('Whose limit it is: of its run, of the session, of a period of the calendar, or minute: of the rate.'),
  used: maybe.describe('null: nothing is known of the cost.'),
  max: count,
  share: count.describe('used / max; above 1 where Governor only observes.'),
})

/** What an agent has, and its session: that of the agent which needs attention most, but times of its own. */
const agent = {
  state,
  model: text,
  upstream: text,
  started_at: time,
  last_at: time.describe('When it asked for something last.'),
  iteration: count,
  max_iterations: count.describe('0: no limit.'),
  loop: loop.nullable(),
  asking: asking.nullable().describe('The question that a person may answer; see `stop.mode`.'),
}

const row = {
  id: z.string().describe('Opaque; good for as long as the session is remembered, in every replica.'),
  name: text.describe(
    "The client's own id. It may be a secret: with `ops.names: token` it is null unless the request has the token.",
  ),
  label: text.describe('What it is about, where `sessions.labels` opts into that; shown to those who see names.'),
  ...agent,
  iteration: count.describe('Of the agent that needs attention most.'),
  limit: limitUse
    .nullable()
    .describe(
      'The limit that counts: the fullest of all limits of the session, of its runs at work (where none is, of the ' +
        'newest), of the periods that they count in, and of the rate. null: there is no limit.',
    ),
  risk: share.describe(
    'The largest of: share of any limit of its runs or its own, how grave its loop is, spend of the last minute ' +
      'against the median minute. 0 where the session has ended.',
  ),
  risk_by: z.enum([...LIMITS, 'loop', 'spend']).nullable(),
  stopping: z.boolean().describe('An operator has asked for its end: its next request is the last.'),
  paused: z.boolean().describe('An operator has paused it: its requests get no answer of the model.'),
  terminal_state: text,
  terminal_reason: text,
  error: z
    .strictObject({ status: count, code: text })
    .nullable()
    .describe(
      'Of a session that failed. status: as the client got it, 0 where a response broke off; code: of the provider ' +
        'or of Governor, context_overflow for an overflow, null where none is known.',
    ),
  last_error: text.describe(
    'overflow, no answer, or error and its status: its newest request failed. null after an answer.',
  ),
  client: program,
  key: text.describe('The name of its access key; null for one without a name.'),
  total_iterations: count.describe('Of all runs and agents together, as the three below.'),
  ...sums,
  cost_usd_per_minute: maybe.describe('Over the last five minutes; null: no price is known, or it is not at work.'),
  seconds_to_limit: maybe.describe('At the pace of the last five minutes; null: it reaches none, or has reached one.'),
  tokens_per_iteration: z.array(count).describe('Of the newest iterations, oldest first.'),
  agents: z.strictObject({ alive: count, total: count }),
  last_tool: text,
  overflows: count.describe('Of the iterations that are kept.'),
  unguarded: z.array(z.enum(namesOf(GAPS))).describe('Why it was not guarded, or not in full; empty if it was.'),
}

const sessionRow = named('SessionRow', row)

const thread = named('Thread', {
  ...agent,
  thread: count.describe('Counts the agents of a session from 1.'),
  parent: maybe,
  name: text,
  stopping: z.boolean(),
  meters: z.array(meter),
  terminal: terminal.nullable(),
  loop_guard_mode: text.describe('As an operator has set it.'),
})

const run = named('Run', {
  thread: count,
  started_at: time,
  ended_at: time.nullable().describe('When it asked or was answered last; null: the current run of its thread.'),
  iterations: count,
  ...sums,
  model: text.describe('Of its newest request, as agent.'),
  agent: program,
  state: text.describe(
    'Its terminal state; of a current run without one, what its agent is doing. null: a human ' +
      'spoke while it was under way.',
  ),
  terminal: terminal.nullable(),
})

const iteration = named('Iteration', {
  thread: count,
  iteration: count,
  at: time,
  duration_ms: count,
  status: count.describe('HTTP status of the answer; 0: there was none.'),
  verdict: z.enum(['allow', 'warn', 'block', 'stop']),
  tier: z.enum(['caution', 'warning']).nullable(),
  loop: text,
  overflow: text.describe('The recovery, where the request was too large for the model.'),
  said: text.describe('What Governor said to the model: its first 400 characters.'),
  tools: z.array(z.string()).describe('Names alone; known once the next request shows them.'),
  usage: z.strictObject({ input: count, output: count, ...cost }),
})

const context = named('Context', {
  upstream: z.string(),
  model: z.string(),
  base: maybe.describe('Tokens that the model can take.'),
  source: z.enum(['config', 'provider', 'catalogue', 'unknown']),
  effective: maybe.describe('Tokens that this session may count on now.'),
  used: maybe.describe('Tokens in it after the newest answer that stated its usage.'),
  reason: text,
  until: time.nullable(),
})

const minute = named('Minute', { at: time.describe('When it began.'), tokens: count, ...cost })

const used = { input: count, output: count, ...cost }
const parts = named('Costs', {
  agents: z
    .array(z.strictObject({ thread: maybe.describe('0: requests without tools; null: agents beyond 24.'), ...used }))
    .describe('By agent.'),
  models: z.array(z.strictObject({ model: z.string().describe('other: beyond 24 models.'), ...used })),
  tools: z
    .array(
      z.strictObject({
        tool: text.describe('other: beyond 24 tools, or a name that is no label; null: all that is no result.'),
        input: count,
        ...cost,
        share: share.describe('Of the input of the session.'),
      }),
    )
    .describe(
      'By tool, what its results took of the input of each request, and what that cost: a share by bytes. With the ' +
        'last row, of tool null, the input adds up to that of the session.',
    ),
})

const answer = z.strictObject({ text: z.string(), truncated: z.boolean() }).nullable()

export const sessionDetail = named('SessionDetail', {
  ...row,
  threads: z.array(thread),
  runs: z.array(run).describe('Oldest first; the current run of each thread last.'),
  iterations: z.array(iteration).describe('The newest 48 of all threads, oldest first.'),
  minutes: z.array(minute).describe('The newest 60 minutes in which it used something, oldest first.'),
  meters: z.array(meter).describe('Of all runs together.'),
  costs: parts.describe('What costs it; each list has the dearest first.'),
  contexts: z.array(context),
  terminal: terminal.nullable(),
  final_answer: answer.describe(
    'What the model said when Governor ended the run, and with `sessions.transcript` also when ' +
      'the run was completed: the first 64 KiB.',
  ),
  warnings: z.strictObject({ acknowledged: count, ignored: count }),
  transcript: z.boolean().describe('What is said is kept: sessions.transcript is on.'),
})

const pauses = z
  .array(
    named('Pause', {
      session: text.describe('The id of the session; null: all sessions.'),
      key: text.describe('The name of the access key; null: all keys.'),
      upstream: text.describe('null: all upstreams.'),
      since: time,
      until: time.nullable().describe('null: until somebody resumes it.'),
      reason: text,
      hold: z.boolean().describe('Requests wait for its end, at most `stop.ask_timeout`.'),
    }),
  )
  .describe('What operators have paused.')

const spent = z.strictObject(cost)
const summary = named('Summary', {
  sessions: count,
  at_work: count,
  groups: z
    .strictObject(tableBy(namesOf(GROUP_NAMES), () => count))
    .describe(
      'Sessions in each group. In Redis, those that follow unsorted in a list by risk count as ended: nothing came ' +
        'for ten minutes.',
    ),
  need_you: count.describe('Asking, or in a loop.'),
  asking: count,
  per_minute: spent.describe('Of all sessions together, over the last five minutes.'),
  today: spent.extend({ since: time.describe('Midnight, or when the store began to count.') }),
  limits: z
    .array(limitUse.extend({ resets_at: time }).meta({ id: 'TimeLimitUse' }))
    .describe('Of each period with a limit for all requests together: the one with the largest share used.'),
  paused: pauses,
})

export const sessionPage = named('SessionPage', {
  sessions: z.array(sessionRow),
  next: text.describe('Give it as `cursor` for the next page.'),
  total: count.describe('Of all pages together.'),
  summary: summary.nullable().describe('Of all sessions, whatever the filters; null with `name`.'),
  mode: z.enum(['enforce', 'observe']).describe('observe: Governor only counts, and stops, blocks and tells nothing.'),
  signed_in: z.boolean().describe('The request came with the admin token, or with the cookie of a sign-in.'),
  complete: z.boolean().describe('False if the store could not be read to its end: sessions may be missing.'),
})

const entry = named('TranscriptEntry', {
  thread: count.describe('The agent that said or got it.'),
  role: z.enum(['user', 'assistant']),
  text: z.string().describe('The first 65,536 characters. It may contain anything: show it as text alone.'),
  truncated: z.boolean().describe('There was more of it.'),
  at: time.describe('When Governor saw it.'),
  terminal_state: text.describe(
    'How the run ended with this answer. completed: it called nothing, and a human spoke after ' +
      'it or nothing came for five minutes. null: the run went on, or is not over.',
  ),
  terminal: terminal.nullable(),
})

export const transcript = named('Transcript', {
  id: z.string(),
  entries: z
    .array(entry)
    .describe(
      'What users and assistants said, oldest first. Texts of a harness, requests that an agent ' +
        'makes to itself for a summary, notices of Governor and results of tools are left out.',
    ),
  truncated: z
    .boolean()
    .describe('Older texts were dropped: 200 texts are kept, and 262,144 characters of them together.'),
})

export const apiError = named('Error', {
  error: z.strictObject({ type: z.string(), code: z.string(), message: z.string() }),
})

export const listQuery = z.strictObject({
  limit: z.coerce.number().int().min(1).max(200).default(50),
  cursor: z.string().max(500).optional(),
  state: states.optional(),
  group: z.enum(namesOf(GROUP_NAMES)).optional(),
  model: z.string().max(200).optional().describe('A glob.'),
  upstream: z.string().max(200).optional(),
  key: z.string().max(200).optional().describe('The name of an access key.'),
  id: z.string().max(MOST_SEARCHED).optional().describe("How the id or the client's own id begins."),
  q: z
    .string()
    .max(MOST_SEARCHED)
    .optional()
    .describe('Words in the name, the client, the key, the model, the id or the state.'),
  sort: z
    .enum(['risk', 'cost', 'rate', 'iterations', 'newest', 'limit', 'tokens', 'name', 'client', 'key', 'model'])
    .optional()
    .describe('risk, the default: within each group, those that need a person first. Others: over all groups.'),
  direction: z
    .enum(['asc', 'desc'])
    .optional()
    .describe('desc, the highest first, unless it is given; of names, clients, keys and models asc.'),
  name: z.string().max(MOST_SEARCHED).optional().describe("The client's own id; newest first."),
})
export type ListQuery = z.output<typeof listQuery>

const pausedReply = named('Paused', { paused: pauses })

const scopeName = z.string().min(1).max(MOST_SEARCHED).optional()
export const resumeBody = z
  .strictObject({
    session: scopeName.describe('Its id, or the name that its client gave it.'),
    key: scopeName.describe('The name of an access key.'),
    upstream: scopeName,
  })
  .prefault({})
  .describe('What is resumed: the pause of this scope; nothing: every pause.')
export const pauseBody = resumeBody
  .unwrap()
  .extend({
    for: z
      .string()
      .regex(/^[1-9]\d{0,5}[smhd]$/, { error: 'expected how long, such as 30m, 2h or 1d' })
      .optional(),
    reason: z.string().max(1_000).optional().describe('For people; the first 200 characters.'),
    hold: z.boolean().optional().describe('Requests wait for the end of the pause before they get an end.'),
  })
  .prefault({})
  .describe('Whose requests get no answer of a model; nothing: those of all agents.')

const only = z.int().min(1).optional().describe('One agent alone; else all current runs of the session.')
const iterations = z.int().min(1, { error: 'expected 1 or more' }).max(1_000_000)
const percent = z.string().regex(/^(?=.*[1-9])\d{1,4}(?:\.\d{1,6})?%$/, {
  error: 'expected a share above 0, such as "25%", or a number of iterations',
})

export const threadBody = z.strictObject({ thread: only }).prefault({})
export type ThreadBody = z.output<typeof threadBody>
export const extendBody = z.union([
  z.strictObject({
    by: z
      .union([percent, iterations])
      .describe('"25%": of each limit, rounded up. A number: iterations. No limit rises above 10^12.'),
    thread: only,
  }),
  z.strictObject({ to: iterations.describe('Up to so many iterations.'), thread: only }),
])

const limit = z.number().min(0).max(HIGHEST_LIMIT).nullable().optional()
const wholeLimit = z.int().min(0).max(1_000_000_000).nullable().optional()
const limits = Object.fromEntries(
  LIMITS.map((name) => [METERS[name].limit.setting, METERS[name].limit.value === 'whole' ? wholeLimit : limit]),
) as Readonly<Record<LimitSetting, typeof limit>>
export const budgetBody = z
  .strictObject({ ...limits, thread: only })
  .describe('Limits of each run. 0: no limit; null: as the configuration and the client say.')
export const loopGuardBody = z.strictObject({
  mode: z.enum(['observe', 'warn', 'enforce']).nullable().describe('null: as the configuration says.'),
  thread: only,
})

/** A reply as its readers get it. */
type Frozen<Value> = Value extends readonly (infer Item)[]
  ? readonly Frozen<Item>[]
  : Value extends object
    ? { readonly [Key in keyof Value]: Frozen<Value[Key]> }
    : Value

export type SessionRow = Frozen<z.output<typeof sessionRow>>
export type SessionDetail = Frozen<z.output<typeof sessionDetail>>
export type RunView = SessionDetail['runs'][number]
export type SessionPage = Frozen<z.output<typeof sessionPage>>
export type Paused = Frozen<z.output<typeof pausedReply>>
export type Transcript = Frozen<z.output<typeof transcript>>
