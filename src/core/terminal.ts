/** How a run ended. */
import { type LimitName, type LimitReason, type LimitState, METERS, type Meter } from './budget/meters.ts'

export type TerminalState = LimitState | 'loop_detected'
export type TerminalReason = LimitReason | 'loop_guard'

/** The object that a final response carries as `governor`; keys are part of the public contract. */
export interface Terminal {
  readonly terminal_state: TerminalState
  readonly terminal_reason: TerminalReason
  readonly has_final_answer: boolean
  /** The provider says that it cut the answer off; left out where it does not. */
  readonly truncated?: true
  readonly budget_used: number
  readonly budget_max: number
  readonly session: string
}

/** What a stopped run answered, kept so that a client that lost it can have it again. */
export interface FinalAnswer {
  readonly text: string
  readonly model: string
  readonly terminal: Terminal
  /** It is a call of the tool that the agent forces its answer into; the text is what it was called with. */
  readonly isCall?: true
  /** The provider's id of the response, where a client can go on from it. */
  readonly id?: string
  /** The loop that ended the run, as clients are told of it: `repetition;count=8`. */
  readonly loop?: string
}

/** The limit that stopped a run. No terminal state yet: whether there is an answer is known once there is a response. */
export interface Limit {
  readonly meter: Meter<LimitName>
  /** Set where it was not the meter that ended the run. */
  readonly reason?: 'loop_guard'
}

/** Why a run ends when a meter is used up. */
export function reasonOf(meter: LimitName): TerminalReason {
  return METERS[meter].limit.reason
}

/** Completes a limit into what the client is told. A budget is never said to be used beyond its maximum. */
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
    terminal_state: limit.reason === 'loop_guard' ? 'loop_detected' : state,
    terminal_reason: limit.reason ?? reason,
    has_final_answer: hasFinalAnswer,
    ...(isTruncated ? { truncated: true } : {}),
    budget_used: meter.max > 0 ? Math.min(used, meter.max) : used,
    budget_max: meter.max,
    session,
  }
}
