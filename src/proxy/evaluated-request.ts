import type { GovernorHeaders } from '../http/response.ts'
import type { Failure, UpstreamCall } from '../http/upstream.ts'
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import type { Services } from './services.ts'

/** A request that was counted in its session and goes to the upstream, or is answered in its place. */
export interface EvaluatedRequest {
  readonly services: Services
  readonly exchange: Exchange
  readonly evaluation: Evaluation
  /** The request as it goes upstream when nothing is changed. */
  readonly call: UpstreamCall
  /** Its body as JSON text: the client's bytes, without a content coding. */
  readonly bytes: Buffer
  /** Of every reply to it. */
  readonly governorHeaders: GovernorHeaders
  /** Its provider is told to leave out reasoning that was made for another prompt. */
  readonly thinking: { isDropped: boolean }
}

/**
 * Gives an iteration back without keeping the client waiting; a store that fails forgets it. `status`: of the provider's
 * answer; unset where there was none.
 */
export function releaseIteration(evaluation: Evaluation, status?: number): void {
  void evaluation.handle.releaseIteration(status)
}

/** Tells the client that the upstream did not answer, and gives the iteration back; nothing for a client that left. */
export function failRequest(
  { exchange, evaluation, governorHeaders }: EvaluatedRequest,
  failure: Failure,
): void {
  if (exchange.isClientGone()) return
  releaseIteration(evaluation)
  exchange.fail(failure, governorHeaders)
}
