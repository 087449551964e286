/**
 * All events of requests, as one union; metrics, logs and webhooks are made from them. No field holds a key, a prompt or a
 * tool argument, and values of metric labels come from a closed set.
 */

import type { LimitName, Meter, MeterName } from '../core/budget/meters.ts'
import type { Tier } from '../core/budget/tiers.ts'
import type { Channel } from '../core/decide.ts'
import type { Pattern } from '../core/loop/patterns.ts'
import type { EndedRun } from '../core/operator/session-record.ts'
import type { Recovery } from '../core/overflow.ts'
import type { WarningReaction } from '../core/session/session.ts'
import type { EndState, TerminalReason } from '../core/terminal.ts'
import type { CallUsage } from '../core/usage.ts'

/** The verdict on a request, as in metrics and headers. */
export type VerdictName = 'allow' | 'warn' | 'block' | 'stop'

/** Why a request was relayed unguarded, or guarded only in part. */
export type FailOpenReason =
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
export interface RequestEnded {
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
  /** From the call to the upstream's response headers, all attempts together; unset if there was no call or no response. */
  readonly upstreamMs?: number | undefined
  /** Governor's own time, from the last byte of the request to the call. */
  readonly overheadMs?: number | undefined
  /** As the client named it. */
  readonly model?: string | undefined
  readonly session?: string | undefined
  readonly apiId?: string | undefined
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
  readonly failure?: string | undefined
  /** The failure and its address in words. */
  readonly failureDetail?: string | undefined
}

/** The end of a run is known: told once for each run, of its first end. */
export interface RunEnded {
  readonly kind: 'run_ended'
  readonly state: EndState
  readonly iterations: number
  readonly tokens: number
  /** US dollars; 0 if the price is not known. */
  readonly cost: number
}

/** Returns the event of a run that has ended. */
export function runEnded({ state, iterations, tokens, cost }: EndedRun): RunEnded {
  return { kind: 'run_ended', state, iterations, tokens, cost }
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
  /** A loop was found. `noticeSent`: the request carried the notice to the model; `warnings`: the number of warnings about this loop, this one included. */
  | {
      readonly kind: 'loop'
      readonly pattern: Pattern
      readonly tool: string
      readonly noticeSent: boolean
      readonly warnings: number
    }
  /** A call of a response was blocked. */
  | (OfSession & {
      readonly kind: 'call_blocked'
      readonly pattern: Pattern
      readonly tool: string
    })
  /** Governor asked the model again because all its calls were blocked; `failed`: there was no response, so the calls passed. */
  | { readonly kind: 'asked_again'; readonly outcome: 'answered' | 'failed' }
  | (OfSession & {
      readonly kind: 'stopped'
      readonly reason: TerminalReason
      /** What ended the run: an answer of the model, the fallback text, or the agent's own request for a last answer. */
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
  /** A model's response went to the client. */
  | { readonly kind: 'answered'; readonly upstream: string; readonly usage: CallUsage }
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
  /** A connection was closed because as many are open as the limit on open files allows. `isNews`: not said for a minute. */
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

/** The fate of a webhook message; `dropped`: too many were waiting, Governor ended, or the time of a question was over. */
export type WebhookOutcome = 'delivered' | 'failed' | 'dropped'

/** Records an event. Never throws. */
export type Emit = (event: ProxyEvent) => void
