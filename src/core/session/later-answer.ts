/** Answers that a provider makes in the background: their client fetches them later, by the ids of their responses. */
import type { IterationFacts } from '../operator/session-record.ts'
import type { PromptBytes } from './result-tokens.ts'
import type { CountedRequest, Delivered } from './transitions.ts'

/** What is known of a request until its client fetches the answer. */
export interface LaterAnswer {
  readonly counted: CountedRequest
  readonly model: string
  /** What the record of its session says of it so far. */
  readonly facts: Omit<IterationFacts, 'endedAt'>
  /** How its session was found: see `FoundSession`. */
  readonly isNamed: boolean
  readonly conversation?: string | undefined
  readonly isNewRun: boolean
  readonly newCalls: number
  readonly relayed: Pick<Delivered, 'operation' | 'isFirst'>
  /** Results of earlier calls come with those of this answer. */
  readonly isOnly: boolean
  readonly prompt: PromptBytes
}
