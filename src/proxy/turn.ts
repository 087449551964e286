/** One turn of an agent: a request that was counted in its session, and the decision on it. */
import type { BudgetPolicy, Decision } from '../core/decide.ts'
import type { Request } from '../core/request.ts'
import type { RunState } from '../core/session/session.ts'
import type { Dialect, DialectRequest } from '../dialect/dialect.ts'
import type { GovernorHeaders } from '../http/response.ts'
import type { Failure, UpstreamCall } from '../http/upstream.ts'
import { type Exchange, failExchange } from './begin-exchange.ts'
import type { Services } from './services.ts'
import type { SessionHandle } from './session/session-handle.ts'

export interface Turn {
  readonly services: Services
  readonly exchange: Exchange
  readonly dialect: Dialect
  readonly request: Request
  /** The request as its dialect reads it, with the results that the provider waits for and the client does not know. */
  readonly sent: DialectRequest
  /** The request as it goes upstream when nothing is changed. */
  readonly call: UpstreamCall
  /** Its body as JSON text, after decompression. */
  readonly bytes: Buffer
  readonly handle: SessionHandle
  /** Where it stands in its session. */
  readonly runState: RunState
  /** The budget, with the limits that an operator has set. */
  readonly policy: BudgetPolicy
  readonly decision: Decision
  /** The x-governor headers of every reply to it; made when the decision is final. */
  governorHeaders: GovernorHeaders
  /** The provider is asked to leave out reasoning that was made for another prompt. */
  readonly thinking: { isDropped: boolean }
}

/** Tells the client that the upstream did not answer, and releases the iteration, unless the client left. */
export function failRequest({ exchange, handle, governorHeaders }: Turn, failure: Failure): void {
  if (exchange.isClientGone) return
  void handle.releaseIteration()
  failExchange(exchange, failure, governorHeaders)
}
