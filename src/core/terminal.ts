/** How a run ended. */
import type { LimitName, Meter } from './budget.ts'

export type TerminalState = 'tool_limit_reached' | 'budget_exceeded' | 'loop_detected'
export type TerminalReason =
  | 'max_iterations'
  | 'max_tool_calls'
  | 'max_tokens'
  | 'max_cost'
  | 'max_seconds'
  | 'loop_guard'

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

const REASONS: Readonly<Record<LimitName, TerminalReason>> = {
  iterations: 'max_iterations',
  tool_calls: 'max_tool_calls',
  tokens: 'max_tokens',
  cost: 'max_cost',
  seconds: 'max_seconds',
}

const STATES: Readonly<Record<TerminalReason, TerminalState>> = {
  max_iterations: 'tool_limit_reached',
  max_tool_calls: 'tool_limit_reached',
  max_tokens: 'budget_exceeded',
  max_cost: 'budget_exceeded',
  max_seconds: 'budget_exceeded',
  loop_guard: 'loop_detected',
}

/** Millionths of a dollar are the smallest prices there are; of seconds nobody needs fractions. */
function rounded({ name, used }: Meter): number {
  if (name === 'seconds') return Math.floor(used)
  return Math.round(used * 1_000_000) / 1_000_000
}

/** Why a run ends when a meter is used up. */
export function reasonOf(meter: LimitName): TerminalReason {
  return REASONS[meter]
}

/** Completes a limit into what the client is told. A budget is never said to be used beyond its maximum. */
export function terminalOf(
  limit: Limit,
  session: string,
  hasFinalAnswer: boolean,
  isTruncated = false,
): Terminal {
  const { meter } = limit
  const reason = limit.reason ?? reasonOf(meter.name)
  const used = rounded(meter)
  return {
    terminal_state: STATES[reason],
    terminal_reason: reason,
    has_final_answer: hasFinalAnswer,
    ...(isTruncated ? { truncated: true } : {}),
    budget_used: meter.max > 0 ? Math.min(used, meter.max) : used,
    budget_max: meter.max,
    session,
  }
}
