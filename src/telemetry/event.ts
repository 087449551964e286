/**
 * Everything that happens to a request, as one union. Metrics and logs are folds over it: nobody calls them.
 * No field holds a key, a prompt or a tool argument, and what becomes a metric label comes from a closed set.
 */

import type { MeterName } from '../core/budget/meters.ts'
import type { Tier } from '../core/budget/tiers.ts'
import type { Channel } from '../core/decide.ts'
import type { Pattern } from '../core/loop/patterns.ts'
import type { Recovery } from '../core/overflow.ts'
import type { WarningReaction } from '../core/session/session.ts'
import type { TerminalReason } from '../core/terminal.ts'
import type { CallUsage } from '../core/usage.ts'

export type VerdictName = 'allow' | 'warn' | 'block' | 'stop'

/** Why a request that could have been guarded was not. */
export type FailOpenReason =
  | 'body_too_large'
  | 'no_room'
  | 'unreadable_body'
  | 'unknown_encoding'
  | 'store'
  | 'fault'

/** What judges a request on its own, so that a fault in it leaves the others judging. */
export type GuardName = 'budget' | 'loop_guard'

/** How a request ended for the client; `drained`: cut off as Governor ended before it. */
export type Outcome = 'completed' | 'client_gone' | 'upstream_failed' | 'refused' | 'drained'

/** One request from its first byte to its last; times in milliseconds. */
export interface RequestEnded {
  readonly kind: 'request_ended'
  readonly upstream: string
  /** `none`: relayed unread. */
  readonly dialect: string
  readonly method: string
  /** Without the query, which may hold a key. */
  readonly path: string
  readonly status: number
  readonly outcome: Outcome
  readonly totalMs: number
  /** From the call to the upstream's response headers, all tries together; unset where it was not called or did not answer. */
  readonly upstreamMs?: number | undefined
  /** What Governor took to judge, from the last byte of the request to the call. */
  readonly overheadMs?: number | undefined
  readonly session?: string | undefined
  readonly iteration?: number | undefined
  readonly maxIterations?: number | undefined
  readonly verdict?: VerdictName | undefined
  readonly tier?: Tier | undefined
  readonly loop?: Pattern | undefined
  readonly isRetry?: boolean | undefined
  readonly failure?: string | undefined
  /** What happened and at which address, in words. */
  readonly failureDetail?: string | undefined
}

export type ProxyEvent =
  | { readonly kind: 'request_began' }
  | RequestEnded
  /** An upgraded connection could not be opened; `detail` as of a request. */
  | {
      readonly kind: 'tunnel_failed'
      readonly upstream: string
      readonly failure: string
      readonly detail: string | undefined
    }
  /** `meter`: what the tier is about. */
  | {
      readonly kind: 'notice'
      readonly tier: Tier | 'loop'
      readonly channel: Channel
      readonly meter?: MeterName
    }
  /** A model has answered after it was warned. */
  | { readonly kind: 'warning_answered'; readonly reaction: WarningReaction }
  /** There is a limit on cost, and nothing is known of this model's price. */
  | { readonly kind: 'priceless'; readonly upstream: string; readonly model: string }
  /** A loop was found; `warnings`: how often the model has been told of it, this time included. */
  | {
      readonly kind: 'loop'
      readonly pattern: Pattern
      readonly tool: string
      readonly isTold: boolean
      readonly warnings: number
    }
  /** A call of a response was refused. */
  | { readonly kind: 'refused_call'; readonly pattern: Pattern; readonly tool: string }
  /** The model was asked again as all its calls were refused; `failed`: it gave no response, and the refused calls went through. */
  | { readonly kind: 'asked_again'; readonly outcome: 'answered' | 'failed' }
  | {
      readonly kind: 'stopped'
      readonly reason: TerminalReason
      /** Whose answer ended the run: the model's, none (the fallback text), or the agent's own request for one. */
      readonly by: 'model' | 'fallback' | 'agent'
      readonly session: string
    }
  /** A provider said that something was too large. */
  | {
      readonly kind: 'overflow'
      readonly upstream: string
      readonly recovery: Recovery
      readonly quirk: string
    }
  /** What was too large was asked for again; `refused`: in vain. */
  | { readonly kind: 'recovered'; readonly recovery: Recovery; readonly outcome: 'answered' | 'refused' }
  | { readonly kind: 'answer_repeated' }
  /** A request got the newest of many errors in a row, without the provider being asked. */
  | { readonly kind: 'storm_answered'; readonly upstream: string; readonly status: number }
  /** A request in the same bytes as before, which were answered again and again, counts as an iteration. */
  | { readonly kind: 'repeat_counted' }
  /** A model's answer has gone to the client. */
  | { readonly kind: 'answered'; readonly upstream: string; readonly usage: CallUsage }
  /** `guard`: the only one that failed. */
  | {
      readonly kind: 'failed_open'
      readonly reason: FailOpenReason
      readonly guard?: GuardName | undefined
      readonly fault?: string
    }
  | {
      readonly kind: 'alteration_refused'
      readonly upstream: string
      readonly model: string
      readonly alteration: Channel | 'announce' | 'tool_choice' | 'drop_tools'
      readonly status: number
    }
  | { readonly kind: 'webhook_sent'; readonly topic: WebhookTopic; readonly outcome: WebhookOutcome }

/** What a webhook tells about; the names of `events.webhook.on`. */
export const WEBHOOK_TOPICS = [
  'near_limit',
  'stopped',
  'loop_blocked',
  'overflow',
  'error_storm',
  'degraded',
] as const

export type WebhookTopic = (typeof WEBHOOK_TOPICS)[number]

/** What became of a webhook's message; `dropped`: the queue was full, or Governor ended. */
export type WebhookOutcome = 'delivered' | 'failed' | 'dropped'

export type Emit = (event: ProxyEvent) => void
