/** One request of an agent: read once, then counted in its session and decided on. */
import type { SubjectLimits } from './budget/ledger.ts'
import type { LimitPair } from './budget/meters.ts'
import type { Conversation } from './conversation/conversation.ts'
import type { BudgetPolicy } from './decide.ts'
import type { HarnessRegistry } from './harness/match.ts'
import type { Hash } from './hash.ts'
import type { LoopPolicy } from './loop/patterns.ts'
import type { RequestFacts } from './session/request-facts.ts'

export interface Request {
  /** When it was read, in milliseconds since the epoch. */
  readonly now: number
  /** A name of its own over all replicas: the run and the thread that it begins keep it. */
  readonly operation: string
  readonly conversation: Conversation
  readonly registry: HarnessRegistry
  readonly facts: RequestFacts
  /** What it demands besides plain text. */
  readonly demands: readonly Hash[]
  /** Names of the tools that the newest answer called. */
  readonly tools: readonly string[]
  /** The client's name for the thread; empty if it sends none. */
  readonly thread: string
  /** The client's name for the thread of the agent that started this one; unset if it names none. */
  readonly parent?: string | undefined
  /** The client's own name for the session, which may be a secret; unset if it sends none. */
  readonly name?: string | undefined
  /** What its session is about, see `labelIn`; unset where labels are off. */
  readonly label?: (() => string) | undefined
  /** The client sent no session id: the session is identified by its prompt and first answer. */
  readonly isDerived: boolean
  /** The client's program; unset where it names none. */
  readonly agent?: string | undefined
  /** The name of its access key; unset for one without a name. */
  readonly key?: string | undefined
  readonly upstream: string
  /** The model in the form that is kept. */
  readonly model: string
  readonly loop: LoopPolicy
  readonly budget: BudgetPolicy
  /** The limits by the configuration and the client. */
  readonly limits: LimitPair
  /** The limits of scopes of time; unset if none applies. */
  readonly timeLimits?: readonly SubjectLimits[] | undefined
  /** Governor adds, blocks and stops nothing. */
  readonly observesOnly: boolean
}
