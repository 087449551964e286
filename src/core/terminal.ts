/** How a run ended. */
import { type LimitName, type LimitReason, type LimitState, METERS, type Meter } from './budget/meters.ts'

export type TerminalState = LimitState | 'loop_detected' | 'stopped'
export type TerminalReason = LimitReason | 'loop_guard' | 'operator'
/** How a run ended, including runs that Governor did not end. */
export type EndState = TerminalState | 'completed' | 'no_response' | 'context_overflow'

/** The `governor` object of a final response; its keys are part of the public contract. */
export interface Terminal {
  readonly terminal_state: TerminalState
  readonly terminal_reason: TerminalReason
  readonly has_final_answer: boolean
  /** The provider said that it cut the answer off; otherwise left out. */
  readonly truncated?: true
  readonly budget_used: number
  readonly budget_max: number
  readonly session: string
}

/** The recorded answer of a stopped run, for clients that ask again. */
export interface FinalAnswer {
  readonly text: string
  readonly model: string
  readonly terminal: Terminal
  /** The answer is a call of the tool that the agent forces it into; `text` contains the call's arguments. */
  readonly isCall?: true
  /** The provider's id of the response, if a client can continue from it. */
  readonly id?: string
  /** The loop that ended the run, as `x-governor-loop` states it: `repetition;count=8`. */
  readonly loop?: string
  /** The line that the client reads after `text`. */
  readonly footer?: string
  /** What the run had used when it ended, without the request for this answer; set when the run is ended. */
  readonly ended?: EndedAmounts
}

/** Amounts that do not change any more once a run has ended. */
export interface EndedAmounts {
  /** When the request for the final answer came, in milliseconds since the epoch. */
  readonly at: number
  readonly iterations: number
  readonly toolCalls: number
}

/** The limit that stopped a run. */
export interface Limit {
  readonly meter: Meter<LimitName>
  /** Set if the loop guard or an operator ended the run, and not the meter. */
  readonly reason?: 'loop_guard' | 'operator'
}

const STATES = { loop_guard: 'loop_detected', operator: 'stopped' } as const

/** Returns the terminal reason of a run whose meter is used up. */
export function reasonOf(meter: LimitName): TerminalReason {
  return METERS[meter].limit.reason
}

/** Returns the terminal object for a limit. `budget_used` never exceeds `budget_max`. `session`: the id as the client knows it. */
export function terminalOf(
  limit: Limit,
  session: string,
  hasFinalAnswer: boolean,
  isTruncated = false,
): Terminal {
  const { meter } = limit
  const { state, reason, rounded } = METERS[meter.name].limit
  const used = rounded(meter.used)
  return {
    terminal_state: limit.reason ? STATES[limit.reason] : state,
    terminal_reason: limit.reason ?? reason,
    has_final_answer: hasFinalAnswer,
    ...(isTruncated ? { truncated: true } : {}),
    budget_used: meter.max > 0 ? Math.min(used, meter.max) : used,
    budget_max: meter.max,
    session,
  }
}
