/** How a run ended. */
import type { Meter, MeterName } from './budget.ts'

export type TerminalState = 'tool_limit_reached' | 'loop_detected'
export type TerminalReason = 'max_iterations' | 'max_tool_calls' | 'loop_guard'

/** The object that a final response carries as `governor`; keys are part of the public contract. */
export interface Terminal {
  readonly terminal_state: TerminalState
  readonly terminal_reason: TerminalReason
  readonly has_final_answer: boolean
  readonly budget_used: number
  readonly budget_max: number
  readonly session: string
}

/** What a stopped run answered, kept so that a client that lost it can have it again. */
export interface FinalAnswer {
  readonly text: string
  readonly model: string
  readonly terminal: Terminal
}

/** The limit that stopped a run. No terminal state yet: whether there is an answer is known once there is a response. */
export interface Limit {
  readonly meter: Meter
  /** Set where it was not the meter that ended the run. */
  readonly reason?: 'loop_guard'
}

const REASONS: Record<MeterName, TerminalReason> = {
  iterations: 'max_iterations',
  tool_calls: 'max_tool_calls',
}

/** Why a run ends when a meter is used up. */
export function reasonOf(meter: MeterName): TerminalReason {
  return REASONS[meter]
}

/** Completes a limit into what the client is told. A budget is never said to be used beyond its maximum. */
export function terminalOf(limit: Limit, session: string, hasFinalAnswer: boolean): Terminal {
  const { meter, reason } = limit
  return {
    terminal_state: reason === 'loop_guard' ? 'loop_detected' : 'tool_limit_reached',
    terminal_reason: reason ?? reasonOf(meter.name),
    has_final_answer: hasFinalAnswer,
    budget_used: meter.max > 0 ? Math.min(meter.used, meter.max) : meter.used,
    budget_max: meter.max,
    session,
  }
}
