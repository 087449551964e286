/**
 * All events of requests, as one union, and one row for each kind: log line, metrics, webhook message, span event.
 * No field holds a key, a prompt or a tool argument, and values of metric labels come from a closed set.
 */
import { type LimitName, METERS, type Meter, type MeterName } from '../core/budget/meters.ts'
import type { Tier } from '../core/budget/tiers.ts'
import type { Channel } from '../core/decide.ts'
import type { Pattern } from '../core/loop/patterns.ts'
import type { EndedRun } from '../core/operator/session-record.ts'
import type { WarningReaction } from '../core/session/session.ts'
import type { TerminalReason } from '../core/terminal.ts'
import type { CallUsage, ResponseFacts } from '../core/usage.ts'
import type { Recovery } from '../overflow/overflow.ts'

/** The verdict on a request, as in metrics and headers. */
export type VerdictName = 'allow' | 'warn' | 'block' | 'stop'

/** Why a request was relayed unguarded, or guarded only in part. */
type FailOpenReason =
  | 'body_too_large'
  | 'no_room'
  | 'unreadable_body'
  | 'unknown_encoding'
  | 'store'
  /** The package of prices can't be loaded; said once. */
  | 'prices'
  | 'fault'

/** The guards, and the transcript; a fault in one of them leaves the others at work. */
export type GuardName = 'budget' | 'loop_guard' | 'transcript'

/** How a request ended for the client. `refused`: by Governor; `drained`: cut off because Governor ended. */
export type Outcome = 'completed' | 'client_gone' | 'upstream_failed' | 'refused' | 'drained'

/** One request from its first byte to its last; times in milliseconds. */
export interface RequestEnded extends OfSession {
  readonly kind: 'request_ended'
  readonly upstream: string
  /** The name of the API; `none`: relayed unread. */
  readonly dialect: string
  readonly method: string
  /** Without the query, which may hold a key. */
  readonly path: string
  readonly status: number
  readonly outcome: Outcome
  readonly totalMs: number
  /** From the call to the upstream's response headers, all attempts together; unset without a response. */
  readonly upstreamMs?: number | undefined
  /** Governor's own time, from the last byte of the request to the call. */
  readonly overheadMs?: number | undefined
  /** As the client named it. */
  readonly model?: string | undefined
  readonly iteration?: number | undefined
  readonly maxIterations?: number | undefined
  readonly verdict?: VerdictName | undefined
  /** The verdict that it would have got if Governor did more than observe. */
  readonly observed?: VerdictName | undefined
  readonly tier?: Tier | undefined
  /** The meter that has the tier. */
  readonly meter?: Meter | undefined
  readonly loop?: Pattern | undefined
  readonly isRetry?: boolean | undefined
  /** Numbers that the request asks for, such as `temperature`; set if its span is recorded. */
  readonly parameters?: Readonly<Record<string, number>> | undefined
  readonly failure?: string | undefined
  /** The failure and its address in words. */
  readonly failureDetail?: string | undefined
}

/** The end of a run is known: told once for each run, of its first end. */
export type RunEnded = { readonly kind: 'run_ended'; readonly apiId: string } & Pick<
  EndedRun,
  'thread' | 'state' | 'iterations' | 'tokens' | 'cost'
>

/** A model answered a counted request. A cost that becomes known later comes in another event, without tokens. */
export interface Answered extends OfSession {
  readonly kind: 'answered'
  readonly upstream: string
  /** As the client named it. */
  readonly model: string
  /** The client's program; unset where it names none. */
  readonly client: string | undefined
  /** The number of its thread in the session. */
  readonly thread: number
  readonly isNewRun: boolean
  /** Of the run; 0 for the final answer that Governor asks for. */
  readonly iteration: number
  /** The tool calls of the run before this answer. */
  readonly toolCalls: number
  readonly usage: CallUsage
  /** Set if the span of the request is recorded. */
  readonly facts?: ResponseFacts | undefined
}

/** Returns the event of a run that has ended. */
export function runEnded({ thread, state, iterations, tokens, cost }: EndedRun, apiId: string): RunEnded {
  return { kind: 'run_ended', apiId, thread, state, iterations, tokens, cost }
}

/** The session of an event; both are unset where there is none. */
interface OfSession {
  /** As its client names it. */
  readonly session?: string | undefined
  /** Its id in the API: two tenants may use the same name. */
  readonly apiId?: string | undefined
}

/** One event. */
export type ProxyEvent =
  | { readonly kind: 'request_began' }
  | RequestEnded
  /** An upgraded connection could not be opened; `detail`: the failure and its address in words. */
  | {
      readonly kind: 'tunnel_failed'
      readonly upstream: string
      readonly failure: string
      readonly detail: string | undefined
    }
  /** A notice reached a model; `meter`: the meter that has the tier. */
  | {
      readonly kind: 'notice'
      readonly tier: Tier | 'loop'
      readonly channel: Channel
      readonly meter?: MeterName
    }
  /** A model answered after a warning about the budget. */
  | { readonly kind: 'warning_answered'; readonly reaction: WarningReaction }
  /** The price of this model is not known. `handling`: what becomes of the limit on cost; unset where there is none. */
  | {
      readonly kind: 'unpriced_model'
      readonly upstream: string
      readonly model: string
      readonly handling: UnpricedHandling | undefined
    }
  /** A loop was found. `noticeSent`: the request carries a notice; `warnings`: all about this loop, with this one. */
  | {
      readonly kind: 'loop'
      readonly pattern: Pattern
      readonly tool: string
      readonly noticeSent: boolean
      readonly warnings: number
    }
  /** A call of a response was blocked. `pattern`: of the loop. */
  | (OfSession & {
      readonly kind: 'call_blocked'
      readonly pattern: Pattern
      readonly tool: string
    })
  /** Governor asked the model again, as all its calls were blocked; `failed`: no response, so the calls passed. */
  | { readonly kind: 'asked_again'; readonly outcome: 'answered' | 'failed' }
  | (OfSession & {
      readonly kind: 'stopped'
      readonly reason: TerminalReason
      /** An answer of the model, the fallback text, or the agent's own request for a last answer ended the run. */
      readonly by: 'model' | 'fallback' | 'agent'
    })
  | RunEnded
  /** A provider reported an overflow. */
  | (OfSession & {
      readonly kind: 'overflow'
      readonly upstream: string
      readonly recovery: Recovery
      readonly quirk: string
    })
  /** A request that was too large was sent again in another form; `refused`: the provider refused that too. */
  | { readonly kind: 'recovered'; readonly recovery: Recovery; readonly outcome: 'answered' | 'refused' }
  /** A request of a stopped run got the recorded answer. */
  | { readonly kind: 'answer_repeated' }
  /** A request got the newest of many errors in a row; the provider was not asked. */
  | { readonly kind: 'storm_answered'; readonly upstream: string; readonly status: number }
  /** A repeated request counted as an iteration, because the same bytes had been answered many times. */
  | { readonly kind: 'repeat_counted' }
  | Answered
  /** A line of the journal of usage could not be written; said once until it can be again. */
  | { readonly kind: 'journal_failed'; readonly problem: string }
  /** A request was relayed unguarded, or guarded in part; `guard`: the only guard that failed. */
  | {
      readonly kind: 'failed_open'
      readonly reason: FailOpenReason
      readonly guard?: GuardName | undefined
      readonly fault?: string
    }
  /** A provider refused an edit of a request. */
  | {
      readonly kind: 'alteration_refused'
      readonly upstream: string
      readonly model: string
      readonly alteration: Channel | 'announce' | 'tool_choice' | 'drop_tools'
      readonly status: number
    }
  /** The store that replicas share can be reached, or not any more; `problem` says why not. */
  | { readonly kind: 'store_changed'; readonly isUp: boolean; readonly problem: string | undefined }
  /** The store answered a command after so many milliseconds. */
  | { readonly kind: 'store_answered'; readonly ms: number }
  /** An operator changed a session, known by its id in the API; `details` are numbers and words of closed sets. */
  | {
      readonly kind: 'operator_acted'
      readonly action: OperatorAction
      readonly session: string
      readonly thread: number | undefined
      readonly by: 'token' | 'loopback'
      readonly details: object
    }
  /** A request that a limit would stop waits for an operator, for at most `seconds`. */
  | (OfSession & {
      readonly kind: 'operator_asked'
      readonly meter: LimitName
      /** At most `max`: the request that waits does not count yet. */
      readonly used: number
      readonly max: number
      readonly seconds: number
      /** In milliseconds since the epoch. */
      readonly until: number
    })
  /** Such a request waits no more. */
  | (OfSession & { readonly kind: 'hold_ended'; readonly outcome: HoldOutcome })
  /** A request to the API of sessions failed for a reason of Governor's own. */
  | { readonly kind: 'ops_failed'; readonly fault: string }
  /** A connection was closed for the limit on open files. `isNews`: not said for a minute. */
  | { readonly kind: 'connection_refused'; readonly open: number; readonly isNews: boolean }
  | { readonly kind: 'webhook_sent'; readonly topic: WebhookTopic; readonly outcome: WebhookOutcome }

/** Why a request waits for an operator no more; `answered`: its run was extended or stopped. */
export type HoldOutcome = 'answered' | 'no_answer' | 'client_gone' | 'drained'

/** What a limit on cost makes of a model without a known price: nothing, an estimate, or a stop. */
export type UnpricedHandling = 'warn' | 'estimate' | 'refuse'

/** What an operator can do to a session. */
export type OperatorAction = 'stop' | 'reset' | 'extend' | 'budget' | 'loop_guard'

/** The topics of webhook messages; the names of `events.webhook.on`. */
export const WEBHOOK_TOPICS = [
  'near_limit',
  'stopped',
  'loop_blocked',
  'overflow',
  'error_storm',
  'degraded',
  'asking',
  'unknown_price',
] as const

/** What a webhook's secret begins with whose rest is base64. */
export const SECRET_PREFIX = 'whsec_'

/** One of the topics. */
export type WebhookTopic = (typeof WEBHOOK_TOPICS)[number]

/** `dropped`: too many messages were waiting, Governor ended, or the time of a question was over. */
export type WebhookOutcome = 'delivered' | 'failed' | 'dropped'

/** Records an event. Never throws. */
export type Emit = (event: ProxyEvent) => void

/** A log line. It never holds a key or a prompt. */
type LogLine = readonly [level: 'info' | 'warn' | 'error', facts: object, message: string]

type Labels = Readonly<Record<string, string | number>>

/** One metric: a histogram if it has buckets, else a counter. */
export interface Metric<Event> {
  readonly name: string
  readonly help: string
  readonly labels: readonly string[]
  readonly buckets?: readonly number[]
  /** Calls `add` for each amount; a counter adds 1 if it is unset. */
  readonly record: (event: Event, add: (labels: Labels, amount?: number) => void) => void
}

/** A message to the webhook's receiver. */
export interface Message {
  readonly type: WebhookTopic
  /** Identifies the occasion: a second message with the same subject is not sent. */
  readonly subject: string
  /** Each replica meets the occasion, and one of them sends the message. */
  readonly isShared?: boolean
  /** The message is worth nothing from then on, in milliseconds since the epoch; unset: always worth sending. */
  readonly until?: number
  readonly body: {
    /** One sentence for people; Slack and others show this field. */
    readonly text: string
    readonly [detail: string]: string | number | undefined
  }
}

/** What is made of the events of one kind. A part that is unset is not made. */
export interface EventRow<Event> {
  readonly log?: (event: Event) => LogLine | undefined
  readonly metrics?: readonly Metric<Event>[]
  readonly message?: (event: Event) => Message | undefined
  /** The event of the request's span: its name and its attributes, both without `governor.`. */
  readonly span?: (event: Event) => readonly [name: string, attributes: object]
}

/**
 * Returns a counter of the events of which `valuesOf` returns values, by default of all. The labels are fields of these
 * values; a field that is unset counts as `none`.
 */
function counter<Event extends object, Values extends object = Event>(
  name: string,
  help: string,
  labels: readonly Exclude<keyof Values & string, 'kind'>[] = [],
  valuesOf: (event: Event) => Values | false | undefined = (event) => event as unknown as Values,
): Metric<Event> {
  const record: Metric<Event>['record'] = (event, add) => {
    const values = valuesOf(event)
    if (!values) return
    const shown: Record<string, string> = {}
    for (const label of labels) shown[label] = (values[label] ?? 'none') as string
    add(shown)
  }
  return { name, help, labels, record }
}

/** Returns a histogram of what ended runs used. */
function ofRuns(name: string, what: string, buckets: number[], amountOf: (run: RunEnded) => number | undefined) {
  return {
    name,
    help: `${what}, by terminal state.`,
    labels: ['state'],
    buckets,
    record(run, add) {
      const amount = amountOf(run)
      if (amount !== undefined) add({ state: run.state }, amount)
    },
  } satisfies Metric<RunEnded>
}

/** Returns the session of an event by the names of the log and of webhook messages. */
const namesIn = ({ session, apiId }: OfSession) => ({ session, session_id: apiId })

function rounded(milliseconds: number | undefined): number | undefined {
  return milliseconds === undefined ? undefined : Math.round(milliseconds * 100) / 100
}

/** How many characters of a path and of a model are logged: a client may send 64 KB. */
const MAX_PATH = 500
const MAX_MODEL = 200
/** How many characters of a name stand in a sentence. */
const MAX_NAME = 64

/**
 * Returns a name that a client or a model chose, for a sentence: short, and without what turns text around or means
 * something to a chat: Slack tells everybody in a channel of `<!channel>`.
 */
function plain(name = ''): string {
  return name.slice(0, MAX_NAME).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}<>&]/gu, '·')
}

/** Returns a message about an event's session. `occasion`: identifies it within the session. */
function about(
  event: OfSession,
  type: WebhookTopic,
  occasion: string | number,
  text: string,
  details: Omit<Message['body'], 'text'>,
): Message {
  // The id in the API, as two tenants may use the same name.
  const subject = `${event.apiId ?? event.session ?? ''} ${occasion}`
  return { type, subject, body: { text, ...namesIn(event), ...details } }
}

/** Returns `6 of 8`, `$4.60 of $5.00`. */
function place({ name, used, max }: Meter): string {
  const amounts = METERS[name].format(used, max)
  return `${amounts.used} of ${amounts.max}`
}

const words = (meter: MeterName) => meter.replace('_', ' ')

/** What becomes of calls of a model without a known price: in the log, and in a message. */
const UNPRICED = {
  warn: { log: 'no limit on cost for this model', message: 'its calls count nothing' },
  estimate: {
    log: "the limit on cost counts the price of the provider's dearest model",
    message: "its calls count as calls of the provider's dearest model",
  },
  refuse: {
    log: 'the limit on cost stops all requests to this model',
    message: 'its requests are stopped',
  },
} as const

const METHODS = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'])

/** Seconds, from a tenth of a millisecond because Governor's own time is short. */
const OVERHEAD_BUCKETS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1]
/** Seconds, up to half an hour because reasoning models are slow. */
const UPSTREAM_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800]
/** Of whole runs. */
const ITERATIONS = [1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1_000]
const TOKENS = [1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8]
const DOLLARS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]

/** Returns the metric in which loops that were found and calls that were blocked count. */
const loops = <Event extends { readonly pattern: string; readonly tool: string }>(
  actionOf: (event: Event) => 'warned' | 'observed' | 'blocked',
) =>
  counter(
    'governor_loops_total',
    'Loops by pattern, tool and action: warned (the model got a notice), observed (it got none), ' +
      'blocked (a call was blocked).',
    ['pattern', 'tool', 'action'],
    (event: Event) => ({ pattern: event.pattern, tool: event.tool, action: actionOf(event) }),
  )

/** One row for each kind of event. */
export const EVENTS: {
  readonly [Kind in ProxyEvent['kind']]: EventRow<Extract<ProxyEvent, { kind: Kind }>>
} = {
  request_began: {},
  request_ended: {
    log: (event) => [
      event.outcome === 'upstream_failed' ? 'warn' : 'info',
      {
        upstream: event.upstream,
        dialect: event.dialect,
        method: event.method,
        path: event.path.slice(0, MAX_PATH),
        status: event.status,
        outcome: event.outcome,
        ...namesIn(event),
        verdict: event.verdict,
        observed: event.observed,
        tier: event.tier,
        meter: event.meter?.name,
        used: event.meter && rounded(event.meter.used),
        max: event.meter?.max,
        loop: event.loop,
        failure: event.failure,
        detail: event.failureDetail,
        iteration: event.iteration,
        max_iterations: event.maxIterations,
        retry: event.isRetry || undefined,
        upstream_ms: rounded(event.upstreamMs),
        overhead_ms: rounded(event.overheadMs),
        total_ms: rounded(event.totalMs),
      },
      event.outcome === 'upstream_failed' ? 'request failed' : 'request',
    ],
    metrics: [
      counter(
        'governor_requests_total',
        'Requests by upstream, dialect (none: relayed unread), method, status and outcome.',
        ['upstream', 'dialect', 'method', 'status', 'outcome'],
        (event) => (METHODS.has(event.method) ? event : { ...event, method: 'other' }),
      ),
      counter(
        'governor_verdicts_total',
        'Judged requests by verdict.',
        ['verdict'],
        ({ verdict }) => verdict && { verdict },
      ),
      counter(
        'governor_observed_verdicts_total',
        'Requests in mode observe that would have got another verdict than allow, by that verdict.',
        ['verdict'],
        ({ observed }) => observed && { verdict: observed },
      ),
      counter(
        'governor_retries_total',
        'Requests that repeated one already counted.',
        [],
        ({ isRetry }) => isRetry && {},
      ),
      {
        name: 'governor_overhead_seconds',
        help: 'Time from the last byte of a guarded request to the call upstream.',
        labels: [],
        buckets: OVERHEAD_BUCKETS,
        record: ({ overheadMs: ms }, add) => ms !== undefined && add({}, ms / 1_000),
      },
      {
        name: 'governor_upstream_seconds',
        help: 'Time from the call upstream to its response headers.',
        labels: ['upstream'],
        buckets: UPSTREAM_BUCKETS,
        record: ({ upstream, upstreamMs: ms }, add) => ms !== undefined && add({ upstream }, ms / 1_000),
      },
    ],
    message(event) {
      const { session, tier, meter, verdict, iteration, maxIterations: max_iterations } = event
      if (session === undefined || verdict === 'stop' || tier === undefined || !meter) return undefined
      const { name, used, max } = meter
      const text = `Session ${plain(session)} is near its limit of ${words(name)} (${tier}): ${place(meter)}.`
      const details = { tier, meter: name, used, max, iteration, max_iterations }
      return { ...about(event, 'near_limit', tier, text, details), isShared: true }
    },
  },
  tunnel_failed: { log: ({ kind: _, ...facts }) => ['warn', facts, 'upgrade failed'] },
  notice: {
    span: ({ tier, channel, meter }) => ['notice', { tier, channel, meter }],
    metrics: [
      counter(
        'governor_notices_total',
        'Notices that reached a model, by tier (loop: only about a loop; none: neutral), channel, ' +
          'and the limit that they are about.',
        ['tier', 'channel', 'meter'],
      ),
    ],
  },
  warning_answered: {
    metrics: [
      counter(
        'governor_warnings_answered_total',
        "Budget warnings by the model's reaction: acknowledged (its next message had text or " +
          'called no tool) or ignored.',
        ['reaction'],
      ),
    ],
  },
  unpriced_model: {
    log({ upstream, model, handling }) {
      const facts = { upstream, model: model.slice(0, MAX_MODEL) }
      if (!handling) return ['info', facts, 'price not known: the cost of this model is not counted']
      return ['warn', facts, `price not known: ${UNPRICED[handling].log}; see models in the configuration`]
    },
    message({ upstream, handling, model: name }) {
      if (!handling) return undefined
      const model = plain(name)
      const text =
        `There is a limit on cost, and the price of model ${model} at ${upstream} is not known: ` +
        `${UNPRICED[handling].message}.`
      const body = { text, upstream, model, unknown_price: handling }
      return { type: 'unknown_price', subject: `${upstream} ${name.slice(0, MAX_MODEL)}`, body }
    },
  },
  loop: { metrics: [loops(({ noticeSent }) => (noticeSent ? 'warned' : 'observed'))] },
  call_blocked: {
    span: ({ pattern, tool }) => ['block', { pattern, tool }],
    metrics: [loops(() => 'blocked')],
    message(event) {
      const { pattern, tool, session } = event
      const text = `Governor blocked a call of ${plain(tool)} (${pattern}) in session ${plain(session)}.`
      return about(event, 'loop_blocked', pattern, text, { loop: pattern, tool })
    },
  },
  asked_again: {
    metrics: [
      counter(
        'governor_reasks_total',
        'Models asked again because all calls of a response were blocked, by outcome (failed: the calls passed).',
        ['outcome'],
      ),
    ],
  },
  stopped: {
    span: ({ reason, by }) => ['stop', { reason, by }],
    log: ({ reason, by, ...event }) => ['info', { ...namesIn(event), reason, by }, 'run ended'],
    metrics: [
      counter('governor_stops_total', 'Ended runs by reason, and by the source of their last answer.', [
        'reason',
        'by',
      ]),
    ],
    message(event) {
      const { by, reason, session } = event
      if (by === 'agent') return undefined
      const text = `Governor stopped a run of session ${plain(session)}: ${reason}.`
      return about(event, 'stopped', reason, text, { reason })
    },
  },
  run_ended: {
    metrics: [
      ofRuns('governor_run_iterations', 'Iterations of runs that have ended', ITERATIONS, (run) => run.iterations),
      ofRuns('governor_run_tokens', 'Tokens of runs that have ended', TOKENS, ({ tokens }) => tokens),
      ofRuns(
        'governor_run_cost_usd',
        'US dollars of runs that have ended, where the price is known',
        DOLLARS,
        ({ cost }) => cost || undefined,
      ),
    ],
  },
  overflow: {
    span: ({ recovery, quirk }) => ['overflow', { recovery, quirk }],
    log({ upstream, recovery, quirk, ...event }) {
      return ['info', { upstream, recovery, quirk, ...namesIn(event) }, 'overflow']
    },
    metrics: [
      counter('governor_overflow_total', 'Overflow errors, by recovery and by the rule that recognised them.', [
        'recovery',
        'quirk',
      ]),
    ],
    message(event) {
      const { upstream, recovery, session } = event
      const of = session === undefined ? '' : ` of session ${plain(session)}`
      const what = recovery === 'loop_refused' ? 'was refused for its repeated calls' : `was too large: ${recovery}`
      const text = `A request${of} to ${upstream} ${what}.`
      return about(event, 'overflow', `${upstream} ${recovery}`, text, { upstream, recovery })
    },
  },
  recovered: {
    log: ({ kind: _, ...facts }) => ['info', facts, 'sent again after an overflow'],
    metrics: [
      counter(
        'governor_overflow_recoveries_total',
        'Requests that were too large and were sent again in a form that fits, by outcome.',
        ['recovery', 'outcome'],
      ),
    ],
  },
  answer_repeated: {
    metrics: [
      counter('governor_answers_repeated_total', 'Requests of a stopped run that got its recorded answer again.'),
    ],
  },
  storm_answered: {
    metrics: [
      counter(
        'governor_storm_replies_total',
        'Requests that Governor answered with the newest of many errors in a row, without asking the provider.',
        ['upstream', 'status'],
      ),
    ],
    message({ upstream, status }) {
      const text = `${upstream} answers with errors only; agents get ${status} at once and wait.`
      return { type: 'error_storm', subject: upstream, body: { text, upstream, status } }
    },
  },
  repeat_counted: {
    metrics: [
      counter(
        'governor_repeats_counted_total',
        'Repeated requests that counted as an iteration, because the same bytes had been answered ' +
          '32 times in their run.',
      ),
    ],
  },
  answered: {
    metrics: [
      {
        name: 'governor_tokens_total',
        help:
          'Tokens of guarded answers, by upstream, kind (cached_input is part of input), and whether ' +
          'the provider stated them.',
        labels: ['upstream', 'kind', 'source'],
        record({ upstream, usage }, add) {
          const source = usage.estimated ? 'estimated' : 'provider'
          add({ upstream, kind: 'input', source }, usage.input)
          add({ upstream, kind: 'output', source }, usage.output)
          if (usage.cachedInput) add({ upstream, kind: 'cached_input', source }, usage.cachedInput)
        },
      },
      {
        name: 'governor_cost_usd_total',
        help: 'US dollars that guarded answers cost, where the price is known, by upstream and model (other: beyond 100 of them).',
        labels: ['upstream', 'model'],
        record: ({ upstream, model, usage: { cost } }, add) => cost && add({ upstream, model }, cost),
      },
    ],
  },
  journal_failed: {
    log: ({ problem }) => ['warn', { problem }, 'journal of usage not written: what it lacks is lost'],
  },
  failed_open: {
    log({ reason, guard, fault }) {
      // A failing store is logged once, when it begins to fail.
      if (reason === 'store') return undefined
      const facts = { reason, guard, fault }
      if (reason === 'prices') return ['warn', facts, 'no prices and context windows but the configured ones are known']
      if (guard) return ['error', facts, 'request judged without this guard']
      return [reason === 'fault' ? 'error' : 'warn', facts, 'request relayed unguarded']
    },
    metrics: [
      counter(
        'governor_failed_open_total',
        'Requests that were relayed unguarded, or guarded in part, by reason and by the only guard ' +
          'that failed (none: no single one).',
        ['reason', 'guard'],
      ),
    ],
    message({ reason }) {
      if (reason !== 'store') return undefined
      const text = 'The session store fails: Governor counts from transcripts and memory alone.'
      return { type: 'degraded', subject: 'store', body: { text } }
    },
  },
  alteration_refused: {
    log: ({ kind: _, model, ...facts }) => [
      'warn',
      { ...facts, model: model.slice(0, MAX_MODEL) },
      'upstream refuses this alteration',
    ],
    metrics: [
      counter(
        'governor_alterations_refused_total',
        'Changes to a request that an upstream refused; they are not tried again for that model for a while.',
        ['upstream', 'alteration'],
      ),
    ],
  },
  store_changed: {
    log: ({ isUp, problem }) =>
      isUp
        ? ['info', {}, 'store in use']
        : ['warn', { problem }, 'store not reached: sessions are kept in memory until it is'],
  },
  store_answered: {
    metrics: [
      {
        name: 'governor_store_seconds',
        help: 'Time in which the store that replicas share answered a command.',
        labels: [],
        buckets: OVERHEAD_BUCKETS,
        record: ({ ms }, add) => add({}, ms / 1_000),
      },
    ],
  },
  operator_acted: {
    log: ({ action, session: session_id, thread, by, details }) => [
      'info',
      { action, session_id, thread, by, ...details },
      'operator acted',
    ],
    metrics: [counter('governor_operator_actions_total', 'What operators did to sessions.', ['action'])],
  },
  operator_asked: {
    log: ({ meter, used, max, seconds, ...event }) => [
      'warn',
      { ...namesIn(event), meter, used, max, seconds },
      'limit reached: waiting for an operator to extend or stop the run',
    ],
    message(event) {
      const { session, meter, used, max, seconds, until } = event
      const limit = `${words(meter)}: ${place({ name: meter, used, max })}`
      const text =
        `A run of session ${plain(session)} has reached a limit (${limit}). ` +
        `It waits ${seconds} s for an operator to extend or stop it.`
      return { ...about(event, 'asking', until, text, { meter, used, max, seconds }), until }
    },
  },
  hold_ended: {
    log: ({ outcome, ...event }) => ['info', { ...namesIn(event), outcome }, 'wait for an operator ended'],
    metrics: [
      counter(
        'governor_held_stops_total',
        'Requests that a limit would have stopped and that waited for an operator, by how the wait ended.',
        ['outcome'],
      ),
    ],
  },
  ops_failed: { log: ({ fault }) => ['error', { fault }, 'request to the API of sessions failed'] },
  connection_refused: {
    log({ isNews, open }) {
      if (!isNews) return undefined
      return ['warn', { open }, 'connections refused: the limit on open files allows no more']
    },
    metrics: [
      counter(
        'governor_connections_refused_total',
        'Connections of clients that were closed because the limit on open files allows no more.',
      ),
    ],
  },
  webhook_sent: {
    log({ topic, outcome }) {
      return outcome === 'delivered' ? undefined : ['warn', { topic, outcome }, 'webhook message lost']
    },
    metrics: [
      counter('governor_webhook_messages_total', 'Messages to the webhook by topic and outcome.', ['topic', 'outcome']),
    ],
  },
}

/** Returns the row of an event. */
export function rowOf(event: ProxyEvent): EventRow<ProxyEvent> {
  return EVENTS[event.kind] as EventRow<ProxyEvent>
}

/** The methods of a pino logger that Governor uses. */
type LogSink = Record<LogLine[0], (facts: object, message: string) => void>

/**
 * Logs an event; most kinds give no line. `pageOf`: a link to a session by its id in the API. It stands in lines that
 * a person may want to act on, and not in that of each request.
 */
export function logEvent(log: LogSink, event: ProxyEvent, pageOf: (id: string) => string): void {
  const line = rowOf(event).log?.(event)
  if (!line) return
  const [level, facts, message] = line
  const id = 'session_id' in facts ? facts.session_id : undefined
  const isNews = event.kind !== 'request_ended' || (event.verdict ?? 'allow') !== 'allow'
  log[level](typeof id === 'string' && isNews ? { ...facts, page: pageOf(id) } : facts, message)
}
