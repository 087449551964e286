/** How a run ended, and the last line of its answer that says so to clients that show no metadata. */

import { fill, type NoticeTexts } from './budget/budget-notices.ts'
import {
  ALL_LIMITS,
  type AnyLimitName,
  type LimitReason,
  METERS,
  type Meter,
  type MeterRow,
  type MeterTime,
} from './budget/meters.ts'
import type { ScopeName } from './budget/scopes.ts'
import type { Counts } from './counters.ts'
import type { Pattern } from './loop/patterns.ts'

/** How Governor ended a run: at a limit of steps, at one of cost, tokens or time, in a loop, or by an operator. */
type TerminalState = 'tool_limit_reached' | 'budget_exceeded' | 'loop_detected' | 'stopped'
/** What blocks calls (`guards.ts`) and may end a run with that. */
export type CallGuardName = keyof typeof GUARD_REASONS
export type TerminalReason = LimitReason | CallGuardName | 'operator' | 'paused'
/** How a run ended, including runs that Governor did not end. */
export type EndState = TerminalState | 'completed' | 'no_response' | 'context_overflow'

/** The `governor` object of a final response, part of the public contract. */
export interface Terminal {
  readonly terminal_state: TerminalState
  readonly terminal_reason: TerminalReason
  readonly has_final_answer: boolean
  /** The provider said that it cut the answer off; otherwise left out. */
  readonly truncated?: true
  readonly budget_used: number
  readonly budget_max: number
  /** Of the limit. */
  readonly scope: ScopeName
  /** When a limit of a scope of time begins anew (RFC 3339). */
  readonly resets_at?: string
  readonly session: string
}

/** The recorded answer of a stopped run, for clients that ask again. */
export interface FinalAnswer {
  readonly text: string
  readonly model: string
  readonly terminal: Terminal
  /** The answer is a call of the tool that the agent forces it into; `text` contains the call's arguments. */
  readonly isCall?: true | undefined
  /** The provider's id of the response, if a client can continue from it. */
  readonly id?: string | undefined
  /** The loop that ended the run, as `x-governor-loop` states it: `repetition;count=8`. */
  readonly loop?: string | undefined
  /** The line that the client reads after `text`. */
  readonly footer?: string | undefined
  /** What the run had used when it ended, without the request for this answer, which came `at` (milliseconds). */
  readonly ended?: { readonly at: number; readonly counts: Counts } | undefined
}

/** The limit that stopped a run. */
export interface Limit {
  readonly meter: Meter<AnyLimitName>
  /** Set if a guard or an operator ended the run, and not the meter. */
  readonly reason?: CallGuardName | 'operator' | 'paused'
}

/** Why and how a guard ends a run. */
export interface GuardEnd {
  readonly guard: CallGuardName
  /** The template that asks the model for its final answer. */
  readonly askText: string
  /** The answer that the client gets if the model gives none. */
  readonly fallback: string
  /** The loop, if it was one. */
  readonly loop?: { readonly pattern: Pattern; readonly count: number } | undefined
}

/** What follows from the reason why a run ended. */
interface ReasonRow {
  readonly state: TerminalState
  /**
   * The name of the text that asks the model for its final answer; unset for a guard, which has its own: `GuardEnd`.
   */
  readonly text?: keyof NoticeTexts
  /** The template of what the footer says. */
  readonly footer: string
  /** The run resumes when its limit is raised. */
  readonly mayResume?: true
  /** It is a command, which is carried out even if Governor only observes. */
  readonly isCommand?: true
}

/** How a text of Governor to a model begins and ends: what follows its end is not Governor's. */
export interface Notice {
  readonly text: string
  readonly end: string
}

/** How the texts end that ask for a final answer. */
export const STOPPED = 'without calling any more tools.'

/** How notices about the tree of agents begin and end. */
const AGENT_NOTICES: readonly Notice[] = [
  { text: '[GOVERNOR] This session already runs ', end: ' finish.' },
  { text: '[GOVERNOR] This session already runs ', end: 'with your tools.' },
  { text: '[GOVERNOR] Agents may stand ', end: 'with your tools.' },
  { text: "You've reached the limit on agents of this session.", end: STOPPED },
]

/** How runs end that a guard ends, by the guard's name; `notices`: all that it says to a model. */
export const GUARD_REASONS = {
  loop_guard: {
    state: 'loop_detected',
    footer: 'the agent was in a loop',
    notices: [
      { text: 'You appear to be repeating the same action', end: "'.)" },
      { text: 'Before you call it again, check whether its precondition is met', end: 'before polling again.' },
      { text: '[LOOP GUARD] Blocked: ', end: 'or give your final answer.' },
      { text: "You've been repeating the same action without progress.", end: STOPPED },
    ],
  },
  max_agents: { state: 'tool_limit_reached', footer: 'no more agents may be started', notices: AGENT_NOTICES },
  max_concurrent_agents: { state: 'tool_limit_reached', footer: 'too many agents run at once', notices: [] },
  max_depth: { state: 'tool_limit_reached', footer: 'its agents may start no others', notices: [] },
} as const satisfies Readonly<Record<string, ReasonRow & { readonly notices: readonly Notice[] }>>

/** The reasons why runs end. Those of limits come from the meters. */
export const REASONS: Readonly<Record<TerminalReason, ReasonRow>> = {
  ...(Object.fromEntries(
    ALL_LIMITS.map((name) => {
      const { isCounted, limit }: MeterRow = METERS[name]
      const state = isCounted ? 'tool_limit_reached' : 'budget_exceeded'
      const text = isCounted ? 'stop' : 'stopAtLimit'
      return [limit.reason, { state, text, footer: '{used} of {max} {unit} {period}', mayResume: true }]
    }),
  ) as Readonly<Record<LimitReason, ReasonRow>>),
  ...GUARD_REASONS,
  operator: {
    state: 'stopped',
    text: 'operatorStop',
    footer: 'an operator stopped the run',
    isCommand: true,
  },
  /** Of one request: nothing is recorded, and its run goes on once it is resumed. */
  paused: { state: 'stopped', footer: 'an operator has paused the agent', isCommand: true },
}

/** Returns why a run ends. */
export function reasonOf({ meter, reason }: Limit): TerminalReason {
  return reason ?? METERS[meter.name].limit.reason
}

/** Returns the amount that a run has used for clients: rounded, and not more than the limit. */
function usedAtEnd({ name, used, max }: Meter): number {
  const rounded = name === 'cost' ? Math.round(used * 1_000_000) / 1_000_000 : Math.floor(used)
  return max > 0 ? Math.min(rounded, max) : rounded
}

/** Returns when a limit begins anew, as clients read it. */
export function instantOf({ resetsAt }: MeterTime): string {
  return new Date(resetsAt).toISOString()
}

/** Returns the terminal object for a limit; `budget_used` is at most `budget_max`. `session`: the id for the client. */
export function terminalOf(limit: Limit, session: string, hasFinalAnswer: boolean, isTruncated = false): Terminal {
  const { meter } = limit
  const reason = reasonOf(limit)
  return {
    terminal_state: REASONS[reason].state,
    terminal_reason: reason,
    has_final_answer: hasFinalAnswer,
    ...(isTruncated ? { truncated: true } : {}),
    budget_used: usedAtEnd(meter),
    budget_max: meter.max,
    scope: meter.scope ?? 'run',
    ...(meter.time ? { resets_at: instantOf(meter.time) } : {}),
    session,
  }
}

/** How each footer begins. */
export const FOOTER_START = '— stopped by governor: '

/** Returns the footer for what ended a run, without a line break. The amount used never exceeds the limit. */
export function footerOf(limit: Limit): string {
  const { meter } = limit
  return FOOTER_START + fill(REASONS[reasonOf(limit)].footer, { ...meter, used: usedAtEnd(meter) })
}

/** Returns what has to follow a text so that the footer is its last line, once; `undefined` if nothing has to. */
export function footerAfter(text: string, footer: string | undefined): string | undefined {
  // A model that finds a footer in its history may end its own answer with one.
  if (footer === undefined || text.trimEnd().endsWith(footer)) return undefined
  return text.trim() === '' ? footer : `\n\n${footer}`
}

/** Returns a final answer as the client reads it: with its footer, if it has one. */
export function textWithFooter({ text, footer }: Pick<FinalAnswer, 'text' | 'footer'>): string {
  return text + (footerAfter(text, footer) ?? '')
}

/** Returns a text that a client sends back without the footer at its end. */
export function withoutFooter(text: string): string {
  const at = text.lastIndexOf(FOOTER_START)
  const isLastLine = at !== -1 && !text.slice(at).trimEnd().includes('\n')
  return isLastLine && (at === 0 || text[at - 1] === '\n') ? text.slice(0, at).trimEnd() : text
}
