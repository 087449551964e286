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
  /** Its body as JSON text: the client's bytes after decompression. */
  readonly bytes: Buffer
  /** The x-governor headers of every reply to it. */
  readonly governorHeaders: GovernorHeaders
  /** The provider is asked to leave out reasoning that was made for another prompt. */
  readonly thinking: { isDropped: boolean }
}

/** Reports to the client that the upstream did not answer, and releases the iteration. Does nothing if the client left. */
export function failRequest(
  { exchange, evaluation, governorHeaders }: EvaluatedRequest,
  failure: Failure,
): void {
  if (exchange.isClientGone()) return
  void evaluation.handle.releaseIteration()
  exchange.fail(failure, governorHeaders)
}
