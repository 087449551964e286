/**
 * All events of requests: one row for each kind, with its fields, and what is made of it: log line, metrics, webhook
 * message, span event. No field holds a key, a prompt or a tool argument; metric labels have a closed set of values.
 */

import type { Tier } from '../core/budget/budget-notices.ts'
import {
  type Amounts,
  type AnyLimitName,
  amountsOf,
  type LimitName,
  METERS,
  type Meter,
  type MeterName,
} from '../core/budget/meters.ts'
import { scopeRow, type TimeScope } from '../core/budget/scopes.ts'
import type { Named } from '../core/by-name.ts'
import type { Counts } from '../core/counters.ts'
import type { Channel } from '../core/decide.ts'
import { GAPS, type Gap } from '../core/gaps.ts'
import type { Pattern } from '../core/loop/patterns.ts'
import { isNameIn } from '../core/names.ts'
import { type Pause, pausedWhom } from '../core/operator/pause.ts'
import type { EndedRun } from '../core/operator/session-record.ts'
import type { WarningReaction } from '../core/session/session.ts'
import type { CallGuardName, Terminal, TerminalReason } from '../core/terminal.ts'
import type { CallUsage, ResponseFacts } from '../core/usage.ts'
import type { Recovery } from '../overflow/meaning.ts'

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
  | Gap

/** The guards, and the transcript; a fault in one of them leaves the others at work. */
export type GuardName = 'budget' | CallGuardName | 'transcript' | 'label'

/** How a request ended for the client. `refused`: by Governor; `drained`: cut off because Governor ended. */
export type Outcome = 'completed' | 'client_gone' | 'upstream_failed' | 'refused' | 'drained'

/** Why a request waits for an operator no more; `answered`: its run was extended or stopped. */
export type HoldOutcome = 'answered' | 'reloaded' | 'no_answer' | 'client_gone' | 'drained'

/** What a limit on cost makes of a model without a known price: nothing, an estimate, or a stop. */
export type UnpricedHandling = 'warn' | 'estimate' | 'refuse'

/** What an operator can do to a session. */
export type OperatorAction = 'stop' | 'reset' | 'extend' | 'budget' | 'loop_guard'

/** The topics of webhook messages, by their names in `events.webhook.on`: what a message is about. */
export const WEBHOOK_TOPICS = {
  near_limit: 'a warning about a limit',
  stopped: 'a stopped run',
  loop_blocked: 'a blocked call',
  overflow: 'an overflow',
  error_storm: 'a storm of errors',
  degraded: 'a session store that fails',
  asking: 'a run at its limit that waits for an operator (see `stop.mode`)',
  paused: 'agents that an operator pauses or resumes',
  slowed: 'a session whose requests wait, as it is above a limit on its rate',
  unknown_price: 'a model without a known price where there is a limit on cost',
} as const

/** One of the topics. */
export type WebhookTopic = keyof typeof WEBHOOK_TOPICS

/** `dropped`: too many messages were waiting, Governor ended, or the time of a question was over. */
export type WebhookOutcome = 'delivered' | 'failed' | 'dropped'

/** The forms of a webhook's messages, by their names in `events.webhook.format`: the body of a message. */
export const WEBHOOK_FORMATS = {
  standard: (fields: object) => fields,
  slack: (_: object, text: string, page?: string) => ({ text: page ? `${text} <${page}|Open it>` : text }),
  // Nobody is called by it, and no link has another text, whatever a client named its session.
  discord: (_: object, text: string, page = '') => ({
    content: `${text.replace(/[\\*_~`|[\]]/g, '\\$&')} ${page}`.trimEnd(),
    allowed_mentions: { parse: [] },
  }),
} as const satisfies Readonly<Record<string, (fields: object, text: string, page?: string) => object>>

/** What a webhook's secret begins with whose rest is base64. */
export const SECRET_PREFIX = 'whsec_'

/** The session of an event; both are unset where there is none. */
interface OfSession {
  /** As its client names it. */
  readonly session?: string | undefined
  /** Its id in the API: two tenants may use the same name. */
  readonly apiId?: string | undefined
}

/** An event that its person wants to know of; `client`: its program, if it names one. */
export interface OfAgent extends OfSession {
  readonly client?: string | undefined
}

/** What the log says of a question; a terminal shows it in other words. */
export const ASKING = 'limit reached: waiting for an operator to extend or stop the run'

/** One request from its first byte to its last; times in milliseconds. */
export interface RequestEnded extends OfSession {
  readonly kind: 'request_ended'
  readonly upstream: string
  /** The name of the access key; unset for one without a name. */
  readonly key?: string | undefined
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
  /** It waited for so long, as its session was above a limit on its rate. */
  readonly slowedMs?: number | undefined
  /** As the client named it. */
  readonly model?: string | undefined
  readonly iteration?: number | undefined
  readonly maxIterations?: number | undefined
  readonly verdict?: VerdictName | undefined
  /** The verdict that it would have got if Governor did more than observe. */
  readonly observed?: VerdictName | 'slow' | undefined
  readonly tier?: Tier | undefined
  readonly meter?: Meter | undefined
  readonly loop?: Pattern | undefined
  readonly isRetry?: boolean | undefined
  /** Numbers that the request asks for, such as `temperature`; set if its span is recorded. */
  readonly parameters?: Readonly<Record<string, number>> | undefined
  readonly failure?: string | undefined
  readonly failureDetail?: string | undefined
}

/** The end of a run is known: told once for each run, of its first end. */
export type RunEnded = Pick<EndedRun, 'thread' | 'state'> &
  Pick<Amounts, 'iterations' | 'tokens' | 'cost'> & { readonly kind: 'run_ended'; readonly apiId: string }

/** A model answered a counted request. A cost that becomes known later comes in another event, without tokens. */
export interface Answered extends OfSession {
  readonly kind: 'answered'
  readonly upstream: string
  /** As the client named it. */
  readonly model: string
  /** The client's program; unset where it names none. */
  readonly client: string | undefined
  /** The name of the access key; unset for one without a name. */
  readonly key?: string | undefined
  readonly thread: number
  /** How many agents stand above that of the thread; unset for none. */
  readonly depth?: number | undefined
  readonly isNewRun: boolean
  /** Names the run in all processes; unset for a request that is no step of one. */
  readonly run?: string
  /** Of the run; 0 for the final answer that Governor asks for. */
  readonly iteration: number
  /** What its run had counted before this answer. */
  readonly counts: Counts
  /** How many of the calls in `counts` its request, or one like it that got no answer, showed first; unset for none. */
  readonly newCalls?: number
  /** It is the second of a session that its client does not name, whose first had no id yet. */
  readonly isSecond?: boolean
  readonly usage: CallUsage
  /** The input, and its cost, that results of tools took, by tool. */
  readonly tools?: readonly Named<Counts>[]
  /** Set if the span of the request is recorded. */
  readonly facts?: ResponseFacts | undefined
}

/** Returns the event of a run that has ended. */
export function runEnded({ thread, state, counts }: EndedRun, apiId: string): RunEnded {
  const { iterations, tokens, cost } = amountsOf(counts, 0)
  return { kind: 'run_ended', apiId, thread, state, iterations, tokens, cost }
}

/** Returns level and message of a log line, and its facts, if those are not the fields of the event. */
type Line = readonly [level: 'info' | 'warn' | 'error', message: string, facts?: object]

/** Values of a metric's labels. */
export type Labels = Readonly<Record<string, string | number>>

/**
 * One metric: a histogram if it has buckets, else a counter. Its labels are fields of the event: `none` where one is
 * unset.
 */
export interface Metric<Event> {
  readonly help: string
  readonly labels?: readonly (keyof Event & string)[]
  readonly buckets?: readonly number[]
  /** The metric counts an event only if this field of it is set, and is neither 0 nor false. */
  readonly only?: keyof Event & string
  /** The field that is added, if it is set, in place of 1; in the metric, milliseconds are seconds. */
  readonly amount?: keyof Event & string
  readonly milliseconds?: keyof Event & string
}

/** What an event adds to a metric: 1 if the amount is unset. */
export type Amount = readonly [labels: Labels, amount?: number]

/** A metric of other labels or amounts than the fields of the event. */
export interface Measure<Event> extends Pick<Metric<Event>, 'help' | 'buckets'> {
  readonly labels?: readonly string[]
  readonly amounts: (event: Event) => readonly Amount[]
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
interface EventRow<Event> {
  /** A log line never holds a key or a prompt. */
  readonly log?: Line | ((event: Event) => Line | undefined)
  readonly metrics?: Readonly<Record<string, Metric<Event> | Measure<Event>>>
  readonly message?: (event: Event) => Message | undefined
  /** The event of the request's span: its name, and the fields that are its attributes; both without `governor.`. */
  readonly span?: readonly [name: string, ...fields: (keyof Event & string)[]]
}

/** Types the row of the events with these fields. */
function row<Event extends object>(made: EventRow<Event>): EventRow<Event> {
  return made
}

function rounded(milliseconds: number | undefined): number | undefined {
  return milliseconds === undefined ? undefined : Math.round(milliseconds * 100) / 100
}

/** How many characters of a path and of a model are logged: a client may send 64 KB. */
const MAX_PATH = 500
const MAX_MODEL = 200
const MAX_NAME = 64

/**
 * Returns a name that a client or a model chose, for a sentence: short, and without what turns text around or means
 * something to a chat: Slack tells everybody in a channel of `<!channel>`.
 */
function plain(name = ''): string {
  return name.slice(0, MAX_NAME).replace(/[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}<>&]/gu, '·')
}

function about(
  { session, apiId }: OfSession,
  type: WebhookTopic,
  occasion: string | number,
  text: string,
  details: Omit<Message['body'], 'text'>,
): Message {
  // The id in the API, as two tenants may use the same name.
  const subject = `${apiId ?? session ?? ''} ${occasion}`
  return { type, subject, body: { text, session, session_id: apiId, ...details } }
}

/** Returns `6 of 8`, `$4.60 of $5.00`. */
function place({ name, used, max }: Meter): string {
  const amounts = METERS[name].format(used, max)
  return `${amounts.used} of ${amounts.max}`
}

const words = (meter: MeterName) => meter.replace('_', ' ')

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

const METHODS = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS', 'WEBSOCKET'])

/** Seconds, from a tenth of a millisecond because Governor's own time is short. */
const OVERHEAD_BUCKETS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1]
/** Seconds, up to half an hour because reasoning models are slow. */
const UPSTREAM_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800]
const ITERATIONS = [1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1_000]
const TOKENS = [1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8]
const DOLLARS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]

const LOOPS = {
  help:
    'Loops by pattern, tool and action: warned (the model got a notice), observed (it got none), ' +
    'blocked (a call was blocked).',
  labels: ['pattern', 'tool', 'action'],
}

const OPERATOR_ACTIONS = {
  help: 'What operators did.',
  labels: ['action'] as const,
}

/** One row for each kind of event. Its fields stand before it. */
const EVENTS = {
  request_began: row<object>({}),
  request_ended: row<RequestEnded>({
    log(event) {
      const facts = {
        upstream: event.upstream,
        key: event.key,
        dialect: event.dialect,
        method: event.method,
        path: event.path.slice(0, MAX_PATH),
        status: event.status,
        outcome: event.outcome,
        session: event.session,
        session_id: event.apiId,
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
      }
      return event.outcome === 'upstream_failed' ? ['warn', 'request failed', facts] : ['info', 'request', facts]
    },
    metrics: {
      governor_requests_total: {
        help: 'Requests by upstream, dialect (none: relayed unread), method, status and outcome.',
        labels: ['upstream', 'dialect', 'method', 'status', 'outcome'],
        amounts({ upstream, dialect, method, status, outcome }) {
          return [[{ upstream, dialect, method: METHODS.has(method) ? method : 'other', status, outcome }]]
        },
      },
      governor_key_requests_total: {
        help: 'Requests with a named access key, by its name and by status.',
        labels: ['key', 'status'],
        only: 'key',
      },
      governor_verdicts_total: {
        help: 'Judged requests by verdict.',
        labels: ['verdict'],
        only: 'verdict',
      },
      governor_observed_verdicts_total: {
        help: 'Requests in mode observe that would have got another verdict than allow, by that verdict.',
        labels: ['verdict'],
        amounts: ({ observed }) => (observed ? [[{ verdict: observed }]] : []),
      },
      governor_retries_total: {
        help: 'Requests that repeated one already counted.',
        only: 'isRetry',
      },
      governor_overhead_seconds: {
        help: 'Time from the last byte of a guarded request to the call upstream.',
        buckets: OVERHEAD_BUCKETS,
        milliseconds: 'overheadMs',
      },
      governor_upstream_seconds: {
        help: 'Time from the call upstream to its response headers.',
        labels: ['upstream'],
        buckets: UPSTREAM_BUCKETS,
        milliseconds: 'upstreamMs',
      },
    },
    message(event) {
      const { session, tier, meter, verdict, iteration, maxIterations: max_iterations } = event
      if (session === undefined || verdict === 'stop' || tier === undefined || !meter) return undefined
      const { name, used, max, scope = 'run' } = meter
      const { words: period, time } = scopeRow(scope)
      // A limit of time counts many sessions together: `scope_filled` tells of it, once for all.
      if (time) return undefined
      const limit = period === '' ? `its limit of ${words(name)}` : `the limit of ${words(name)} ${period}`
      const text = `Session ${plain(session)} is near ${limit} (${tier}): ${place(meter)}.`
      const details = { tier, meter: name, scope, used, max, iteration, max_iterations }
      return { ...about(event, 'near_limit', tier, text, details), isShared: true }
    },
  }),
  /** An upgraded connection could not be opened; `detail`: the failure and its address in words. */
  tunnel_failed: row<{ upstream: string; failure: string; detail: string | undefined }>({
    log: ['warn', 'upgrade failed'],
  }),
  /** A notice reached a model; `meter`: the meter that has the tier. */
  notice: row<{ tier: Tier | 'loop'; channel: Channel; meter: MeterName | undefined }>({
    span: ['notice', 'tier', 'channel', 'meter'],
    metrics: {
      governor_notices_total: {
        help:
          'Notices that reached a model, by tier (loop: only about a loop; none: neutral), channel, ' +
          'and the limit that they are about.',
        labels: ['tier', 'channel', 'meter'],
      },
    },
  }),
  warning_answered: row<{ reaction: WarningReaction }>({
    metrics: {
      governor_warnings_answered_total: {
        help:
          "Budget warnings by the model's reaction: acknowledged (its next message had text or " +
          'called no tool) or ignored.',
        labels: ['reaction'],
      },
    },
  }),
  /** The price of this model is not known. `handling`: what becomes of the limit on cost; unset where there is none. */
  unpriced_model: row<{ upstream: string; model: string; handling: UnpricedHandling | undefined }>({
    log({ upstream, model, handling }) {
      const facts = { upstream, model: model.slice(0, MAX_MODEL) }
      if (!handling) return ['info', 'price not known: the cost of this model is not counted', facts]
      return ['warn', `price not known: ${UNPRICED[handling].log}; see models in the configuration`, facts]
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
  }),
  /** A loop was found. `noticeSent`: the request carries a notice; `warnings`: all about this loop, with this one. */
  loop: row<{ pattern: Pattern; tool: string; noticeSent: boolean; warnings: number }>({
    metrics: {
      governor_loops_total: {
        ...LOOPS,
        amounts: ({ pattern, tool, noticeSent }) => [[{ pattern, tool, action: noticeSent ? 'warned' : 'observed' }]],
      },
    },
  }),
  /** A call of a response was blocked. `pattern`: of the loop, or the guard that blocks calls for another reason. */
  call_blocked: row<OfAgent & { pattern: Pattern | CallGuardName; tool: string }>({
    span: ['block', 'pattern', 'tool'],
    log({ session, apiId: session_id, pattern, tool }) {
      return ['info', 'call blocked', { session, session_id, pattern, tool: tool.slice(0, MAX_NAME) }]
    },
    metrics: {
      governor_loops_total: {
        ...LOOPS,
        amounts: ({ pattern, tool }) => [[{ pattern, tool, action: 'blocked' }]],
      },
    },
    message(event) {
      const { pattern, tool, session } = event
      const text = `Governor blocked a call of ${plain(tool)} (${pattern}) in session ${plain(session)}.`
      return about(event, 'loop_blocked', pattern, text, { loop: pattern, tool })
    },
  }),
  /** Governor asked the model again, as all its calls were blocked; `failed`: no response that can be read. */
  asked_again: row<{ outcome: 'answered' | 'failed' }>({
    metrics: {
      governor_reasks_total: {
        help:
          'Models asked again because all calls of a response were blocked, by outcome (failed: no response to ' +
          'read).',
        labels: ['outcome'],
      },
    },
  }),
  /** `by`: an answer of the model, the fallback text, or the agent's own request for a last answer ended the run. */
  stopped: row<OfAgent & { reason: TerminalReason; by: 'model' | 'fallback' | 'agent'; terminal?: Terminal }>({
    span: ['stop', 'reason', 'by'],
    log: ({ session, apiId: session_id, reason, by }) => ['info', 'run ended', { session, session_id, reason, by }],
    metrics: {
      governor_stops_total: {
        help: 'Ended runs by reason, and by the source of their last answer.',
        labels: ['reason', 'by'],
      },
    },
    message(event) {
      const { by, reason, session } = event
      if (by === 'agent') return undefined
      const text = `Governor stopped a run of session ${plain(session)}: ${reason}.`
      return about(event, 'stopped', reason, text, { reason })
    },
  }),
  /**
   * So large a share of a limit of a scope of time is used; said once for each limit and period, by the process that
   * reaches it.
   */
  scope_filled: row<{
    scope: TimeScope
    per: string
    subject: string | null
    meter: AnyLimitName
    used: number
    max: number
    share: number
    resetsAt: number
    isObserved: boolean
  }>({
    log({ share, scope, per, subject, meter, used, max, resetsAt, isObserved: observed }) {
      const resets_at = new Date(resetsAt).toISOString()
      const facts = { scope, per, subject, meter, used: rounded(used), max, share, resets_at, observed }
      return ['warn', `${Math.round(share * 100)} % of a limit is used`, facts]
    },
    metrics: {
      governor_scope_shares_total: {
        help:
          'Periods in which 75 % and 95 % of a limit of an hour, a day, a week or a month were used, by scope ' +
          'and share.',
        labels: ['scope', 'share'],
      },
    },
    message({ scope, per, subject, meter, used, max, share, resetsAt }) {
      const { words: period } = scopeRow(scope)
      const of = subject === null ? '' : ` of ${plain(per.replace(/^header:/, ''))} ${plain(subject)}`
      const limit = `${place({ name: meter, used, max })} ${words(meter)} ${period}`
      const resets_at = new Date(resetsAt).toISOString()
      const text = `${Math.round(share * 100)} % of a limit${of} is used: ${limit}. It begins anew at ${resets_at}.`
      const facts = { scope, per, subject: subject ?? undefined, meter, used, max, share, resets_at }
      return {
        type: 'near_limit',
        // An operator may raise the limit before its period ends.
        subject: `${scope} ${per} ${subject} ${meter} ${max} ${share} ${resetsAt}`,
        body: { text, ...facts },
      }
    },
  }),
  run_ended: row<RunEnded>({
    metrics: {
      governor_run_iterations: {
        help: 'Iterations of runs that have ended, by terminal state.',
        labels: ['state'],
        buckets: ITERATIONS,
        amount: 'iterations',
      },
      governor_run_tokens: {
        help: 'Tokens of runs that have ended, by terminal state.',
        labels: ['state'],
        buckets: TOKENS,
        amount: 'tokens',
      },
      governor_run_cost_usd: {
        help: 'US dollars of runs that have ended, where the price is known, by terminal state.',
        labels: ['state'],
        buckets: DOLLARS,
        only: 'cost',
        amount: 'cost',
      },
    },
  }),
  overflow: row<OfSession & { upstream: string; recovery: Recovery; quirk: string }>({
    span: ['overflow', 'recovery', 'quirk'],
    log: ['info', 'overflow'],
    metrics: {
      governor_overflow_total: {
        help: 'Overflow errors, by recovery and by the rule that recognised them.',
        labels: ['recovery', 'quirk'],
      },
    },
    message(event) {
      const { upstream, recovery, session } = event
      const of = session === undefined ? '' : ` of session ${plain(session)}`
      const what = recovery === 'loop_refused' ? 'was refused for its repeated calls' : `was too large: ${recovery}`
      const text = `A request${of} to ${upstream} ${what}.`
      return about(event, 'overflow', `${upstream} ${recovery}`, text, { upstream, recovery })
    },
  }),
  /** A request that was too large was sent again in another form; `refused`: the provider refused that too. */
  recovered: row<{ recovery: Recovery; outcome: 'answered' | 'refused' }>({
    log: ['info', 'sent again after an overflow'],
    metrics: {
      governor_overflow_recoveries_total: {
        help: 'Requests that were too large and were sent again in a form that fits, by outcome.',
        labels: ['recovery', 'outcome'],
      },
    },
  }),
  answer_repeated: row<object>({
    metrics: {
      governor_answers_repeated_total: { help: 'Requests of a stopped run that got its recorded answer again.' },
    },
  }),
  storm_answered: row<{ upstream: string; status: number }>({
    metrics: {
      governor_storm_replies_total: {
        help: 'Requests that Governor answered with the newest of many errors in a row, without asking the provider.',
        labels: ['upstream', 'status'],
      },
    },
    message({ upstream, status }) {
      const text = `${upstream} answers with errors only; agents get ${status} at once and wait.`
      return { type: 'error_storm', subject: upstream, body: { text, upstream, status } }
    },
  }),
  repeat_counted: row<object>({
    metrics: {
      governor_repeats_counted_total: {
        help:
          'Repeated requests that counted as an iteration, because the same bytes had been answered ' +
          '32 times in their run.',
      },
    },
  }),
  answered: row<Answered>({
    metrics: {
      governor_tokens_total: {
        help:
          'Tokens of guarded answers, by upstream, kind (cached_input is part of input), and whether ' +
          'the provider stated them.',
        labels: ['upstream', 'kind', 'source'],
        amounts({ upstream, usage }) {
          const source = usage.estimated ? 'estimated' : 'provider'
          const { input, output, cachedInput } = usage
          const all: Amount[] = [
            [{ upstream, kind: 'input', source }, input],
            [{ upstream, kind: 'output', source }, output],
          ]
          return cachedInput ? [...all, [{ upstream, kind: 'cached_input', source }, cachedInput]] : all
        },
      },
      governor_key_tokens_total: {
        help: 'Tokens of guarded answers to requests with a named access key.',
        labels: ['key'],
        amounts: ({ key, usage: { input, output } }) => (key ? [[{ key }, input + output]] : []),
      },
      governor_key_cost_usd_total: {
        help: 'US dollars of the same, where the price is known.',
        labels: ['key'],
        amounts: ({ key, usage: { cost } }) => (key && cost ? [[{ key }, cost]] : []),
      },
      governor_cost_usd_total: {
        help:
          'US dollars that guarded answers cost, where the price is known, by upstream and model (other: beyond ' +
          '100 of them).',
        labels: ['upstream', 'model'],
        amounts: ({ upstream, model, usage: { cost } }) => (cost ? [[{ upstream, model }, cost]] : []),
      },
    },
  }),
  /** The sums of scopes of time could not be written to their file; said once until they can be again. */
  sums_not_kept: row<{ problem: string }>({
    log: ['warn', 'sums of limits of an hour, a day, a week or a month are kept in memory alone'],
  }),
  /** The file of sums was torn, or not one of Governor's; `file`: its new name. */
  sums_set_aside: row<{ file: string }>({
    log: ['warn', 'the file of sums could not be read: it has another name now, and the sums begin anew'],
  }),
  /** An operator set limits until their period ends; `details`: numbers. */
  scope_limit_set: row<{
    scope: TimeScope
    per: string
    subject: string | null
    by: 'token' | 'loopback'
    details: object
  }>({
    log: ({ scope, per, subject, by, details }) => ['info', 'limits set', { scope, per, subject, by, ...details }],
    metrics: { governor_operator_actions_total: { ...OPERATOR_ACTIONS, amounts: () => [[{ action: 'scope' }]] } },
  }),
  /** A line of the journal of usage could not be written; said once until it can be again. */
  journal_failed: row<{ problem: string }>({
    log: ['warn', 'journal of usage not written: its lines wait, and are lost if Governor ends before'],
  }),
  /**
   * A request was relayed unguarded, or guarded in part; `guard`: the only guard that failed. `isNews`: false once a
   * gap was said of its session.
   */
  failed_open: row<
    OfSession & { reason: FailOpenReason; guard?: GuardName | undefined; fault?: string; isNews?: boolean }
  >({
    log({ reason, guard, isNews, session, apiId: session_id }) {
      if (isNameIn(GAPS, reason))
        return isNews ? ['warn', `not guarded: ${GAPS[reason]}`, { reason, session, session_id }] : undefined
      // A failing store is logged once, when it begins to fail.
      if (reason === 'store') return undefined
      if (reason === 'prices') return ['warn', 'no prices and context windows but the configured ones are known']
      if (guard) return ['error', 'request judged without this guard']
      return [reason === 'fault' ? 'error' : 'warn', 'request relayed unguarded']
    },
    metrics: {
      governor_failed_open_total: {
        help:
          'Requests that were relayed unguarded, or guarded in part, by reason and by the only guard ' +
          'that failed (none: no single one).',
        labels: ['reason', 'guard'],
      },
    },
    message({ reason }) {
      if (reason !== 'store') return undefined
      const text = 'The session store fails: Governor counts from transcripts and memory alone.'
      return { type: 'degraded', subject: 'store', body: { text } }
    },
  }),
  alteration_refused: row<{
    upstream: string
    model: string
    alteration: Channel | 'announce' | 'tool_choice' | 'drop_tools'
    status: number
  }>({
    log: ({ upstream, model, alteration, status }) => [
      'warn',
      'upstream refuses this alteration',
      { upstream, model: model.slice(0, MAX_MODEL), alteration, status },
    ],
    metrics: {
      governor_alterations_refused_total: {
        help: 'Changes to a request that an upstream refused; they are not tried again for that model for a while.',
        labels: ['upstream', 'alteration'],
      },
    },
  }),
  /** The store that replicas share can be reached, or not any more; `problem` says why not. */
  store_changed: row<{ isUp: boolean; problem: string | undefined }>({
    log: ({ isUp, problem }) =>
      isUp
        ? ['info', 'store in use', {}]
        : ['warn', 'store not reached: sessions are kept in memory until it is', { problem }],
  }),
  store_answered: row<{ ms: number }>({
    metrics: {
      governor_store_seconds: {
        help: 'Time in which the store that replicas share answered a command.',
        buckets: OVERHEAD_BUCKETS,
        milliseconds: 'ms',
      },
    },
  }),
  /** An operator changed a session, known by its id in the API; `details` are numbers and words of closed sets. */
  operator_acted: row<{
    action: OperatorAction
    session: string
    thread: number | undefined
    by: 'token' | 'loopback'
    details: object
  }>({
    log({ action, session: session_id, thread, by, details }) {
      // Who did it, and by how much.
      const { by: extended_by, ...others }: { readonly by?: unknown } = details
      return ['info', 'operator acted', { action, session_id, thread, by, extended_by, ...others }]
    },
    metrics: {
      governor_operator_actions_total: OPERATOR_ACTIONS,
    },
  }),
  /**
   * A request that a limit would stop waits for an operator, for at most `seconds`, until then in milliseconds since
   * the epoch. `used` is at most `max`: the request that waits does not count yet.
   */
  operator_asked: row<OfAgent & { meter: LimitName; used: number; max: number; seconds: number; until: number }>({
    log: ({ session, apiId: session_id, meter, used, max, seconds }) => [
      'warn',
      ASKING,
      { session, session_id, meter, used, max, seconds },
    ],
    message(event) {
      const { session, meter, used, max, seconds, until } = event
      const limit = `${words(meter)}: ${place({ name: meter, used, max })}`
      const text =
        `A run of session ${plain(session)} has reached a limit (${limit}). ` +
        `It waits ${seconds} s for an operator to extend or stop it.`
      return { ...about(event, 'asking', until, text, { meter, used, max, seconds }), until }
    },
  }),
  /** A request waits, as its session is above a limit on its rate. */
  slowed: row<OfAgent & { meter: AnyLimitName; used: number; max: number }>({
    log: ({ session, apiId: session_id, meter, used, max }) => [
      'warn',
      'session slowed: its rate is above the limit',
      { session, session_id, meter, used: rounded(used), max },
    ],
    message(event) {
      const { session, meter, used, max } = event
      const rate = `${place({ name: meter, used, max })} ${words(meter)} ${scopeRow('minute').words}`
      const text = `Requests of session ${plain(session)} wait: its rate is above the limit (${rate}).`
      return { ...about(event, 'slowed', meter, text, { meter, used, max }), isShared: true }
    },
  }),
  /** The wait is over: the rate is below the limit, the time was over, the client left, or Governor ends. */
  slowing_ended: row<OfSession & { outcome: 'below' | 'time_over' | 'client_gone' | 'drained'; ms: number }>({
    span: ['slowed', 'outcome', 'ms'],
    metrics: {
      governor_slowed_requests_total: {
        help: 'Requests that waited, as their session was above a limit on its rate, by how the wait ended.',
        labels: ['outcome'],
      },
      governor_slowed_seconds_total: { help: 'Time that they waited.', milliseconds: 'ms' },
    },
  }),
  hold_ended: row<OfSession & { outcome: HoldOutcome }>({
    log: ['info', 'wait for an operator ended'],
    metrics: {
      governor_held_stops_total: {
        help: 'Requests that a limit would have stopped and that waited for an operator, by how the wait ended.',
        labels: ['outcome'],
      },
    },
  }),
  /** An operator paused or resumed agents. */
  pause_acted: row<Omit<Pause, 'since'> & { action: 'pause' | 'resume'; at: number; by: 'token' | 'loopback' }>({
    log: ({ kind: _, action, at: __, ...facts }: object & { kind?: string; action: string; at: number }) => [
      'warn',
      action === 'pause' ? 'operator paused agents' : 'operator resumed agents',
      facts,
    ],
    metrics: { governor_operator_actions_total: OPERATOR_ACTIONS },
    message({ action, at, until, session, reason, ...scope }) {
      const whom = plain(pausedWhom({ ...scope, session: session?.slice(0, 9) }))
      const end = until === undefined ? '' : ` until ${new Date(until).toISOString()}`
      const why = action === 'pause' && reason ? `: ${plain(reason)}` : ''
      const text = `An operator has ${action === 'pause' ? `paused ${whom}${end}` : `resumed ${whom}`}${why}.`
      const { key, upstream } = scope
      return { type: 'paused', subject: `${action} ${at}`, body: { text, action, session_id: session, key, upstream } }
    },
  }),
  /** What is paused has changed, here or in another process. */
  pauses_changed: row<{ pauses: number }>({
    log: ({ pauses }) => (pauses > 0 ? ['warn', 'agents are paused', { pauses }] : ['info', 'no agent is paused', {}]),
  }),
  /** The file of pauses can't be used: a restart forgets them. */
  pauses_failed: row<{ problem: string }>({ log: ['warn', 'pauses are kept in memory alone'] }),
  /** A paused request got Governor's text, or an error as it can't be read; `resumed`: it waited and went on. */
  paused_request: row<OfSession & { outcome: 'answered' | 'refused' | 'resumed' }>({
    span: ['paused', 'outcome'],
    metrics: {
      governor_paused_requests_total: {
        help:
          'Requests of paused agents by outcome (refused: with 503, as they cannot be read; resumed: after a ' +
          'wait).',
        labels: ['outcome'],
      },
    },
  }),
  ops_failed: row<{ fault: string }>({ log: ['error', 'request to the API of sessions failed'] }),
  /** A connection was closed for the limit on open files. `isNews`: not said for a minute. */
  connection_refused: row<{ open: number; isNews: boolean }>({
    log({ isNews, open }) {
      return isNews ? ['warn', 'connections refused: the limit on open files allows no more', { open }] : undefined
    },
    metrics: {
      governor_connections_refused_total: {
        help: 'Connections of clients that were closed because the limit on open files allows no more.',
      },
    },
  }),
  webhook_sent: row<{ topic: WebhookTopic; outcome: WebhookOutcome }>({
    log: ({ outcome }) => (outcome === 'delivered' ? undefined : ['warn', 'webhook message lost']),
    metrics: {
      governor_webhook_messages_total: {
        help: 'Messages to the webhook by topic and outcome.',
        labels: ['topic', 'outcome'],
      },
    },
  }),
}

/** One event: its kind, and the fields of its row. */
export type ProxyEvent = {
  [Kind in keyof typeof EVENTS]: { readonly kind: Kind } & Readonly<FieldsOf<(typeof EVENTS)[Kind]>>
}[keyof typeof EVENTS]

type FieldsOf<Row> = Row extends EventRow<infer Event> ? Event : never

/** Records an event. Never throws. */
export type Emit = (event: ProxyEvent) => void

/** The rows, for an event of any kind: each gets only events of its own kind. */
export const ROWS = EVENTS as Readonly<Record<ProxyEvent['kind'], EventRow<ProxyEvent>>>

type LogSink = Record<Line[0], (facts: object, message: string) => void>

/** Returns what the line of an event says where its row does not state that. */
function fieldsOf({ kind: _, apiId, ...fields }: ProxyEvent & OfSession) {
  return { session_id: apiId, ...fields }
}

/**
 * Logs an event; most kinds give no line. `pageOf`: a link to a session by its id in the API. It stands in lines that
 * a person may want to act on, and not in that of each request.
 */
export function logEvent(log: LogSink, event: ProxyEvent, pageOf: (id: string) => string): void {
  const { log: made } = ROWS[event.kind]
  const line = typeof made === 'function' ? made(event) : made
  if (!line) return
  const [level, message, facts = fieldsOf(event)] = line
  const id = 'session_id' in facts ? facts.session_id : undefined
  const isNews = event.kind !== 'request_ended' || (event.verdict ?? 'allow') !== 'allow'
  log[level](typeof id === 'string' && isNews ? { ...facts, page: pageOf(id) } : facts, message)
}
