/**
 * What Governor does about three kinds of refusals, each once: an output cap that is too large, a beta that is not
 * allowed, and reasoning that was made for another prompt.
 */
import { NO_CONTEXTS, reduce } from '../core/context-window.ts'
import { changeContexts } from '../core/session/transitions.ts'
import type { BoundThinking, Dialect } from '../dialect/dialect.ts'
import { decodedAtOnce } from '../http/body.ts'
import { contentEncoding, headerOf, withHeaders } from '../http/headers.ts'
import type { UpstreamCall } from '../http/upstream.ts'
import { peek, type UpstreamResponse } from '../http/upstream-response.ts'
import type { Classified } from '../overflow/classify.ts'
import type { Overflow } from '../overflow/overflow.ts'
import { noteFault } from './fault.ts'
import type { Annotation, WatchedRequest } from './overflow/explain.ts'
import { bodyOf, modelIn, recovered } from './overflow/recover.ts'
import { keptName } from './overflow/windows.ts'
import { withEdits } from './request-edits.ts'
import type { Turn } from './turn.ts'

/** A request on its way to a model; without a turn it goes there unchanged. */
export type ModelRequest = Pick<Turn, 'services' | 'exchange'> & {
  readonly turn?: Turn | undefined
}

/** Returns what is needed to explain an error in the response to a call. */
export function watchedRequest(x: ModelRequest, dialect: Dialect, call: UpstreamCall): WatchedRequest {
  const { services } = x
  return {
    call,
    dialect,
    policy: services.policies.overflow,
    loadWindows: async () => {
      if (!services.catalogue.isLoaded) await services.catalogue.load().catch(() => undefined)
    },
    note: (classified) => noteOverflow(x, call, classified),
    fault: (error) => noteFault(services.emit, error),
  }
}

/** Records an overflow: in the known window of the model, and in the effective context of this session. */
function noteOverflow(
  { services, exchange, turn }: ModelRequest,
  call: UpstreamCall,
  classified: Classified,
): Annotation {
  const { windows, now, policies } = services
  const { overflow, quirk } = classified
  const { upstream, dialect, asked } = exchange.route
  const named = turn?.request.conversation.model ?? (dialect && modelIn(dialect, asked, call))
  const model = named ?? ''
  const at = { upstream, model }
  windows.learn(at, overflow)
  const { recovery } = overflow
  if (turn && recovery !== 'loop_refused') turn.handle.state.overflow = recovery
  const refusal = {
    upstream: upstream.name,
    model: keptName(model),
    overflow,
    now: now(),
    ttl: policies.overflow.effectiveTtl,
  }
  void turn?.handle.change(changeContexts, (contexts) => ({
    ...contexts,
    reductions: reduce(contexts.reductions, refusal),
  }))
  exchange.emit({ kind: 'overflow', upstream: upstream.name, recovery, quirk, ...turn?.handle.names })
  const before = turn?.runState.reductions ?? NO_CONTEXTS.reductions
  return { classified, base: windows.base(at), effective: windows.effective(at, reduce(before, refusal)) }
}

/**
 * Returns the smaller request to send after an overflow, if Governor can make one. After a fault of Governor the client
 * gets the provider's error.
 */
export function smallerCall(
  { call, dialect, policy, fault }: WatchedRequest,
  overflow: Overflow,
): UpstreamCall | undefined {
  try {
    return recovered(dialect, call, overflow, policy)
  } catch (error) {
    fault(error as Error)
    return undefined
  }
}

/** Returns the response with a header that says how Governor changed its request. */
export function markedRecovered(response: UpstreamResponse, recovery: string): UpstreamResponse {
  const headers = withHeaders(response.head.headers, { 'x-governor-recovered': recovery })
  return { ...response, head: { ...response.head, headers } }
}

/** Errors about bound reasoning are small and arrive at once. */
const ERROR_LIMITS = { bytes: 65_536, ms: 1_000 }

/** Returns true if an error of status 400 says that reasoning in the history was made for another prompt. */
export async function isBoundThinkingError(response: UpstreamResponse, bound: BoundThinking): Promise<boolean> {
  const body = await peek(response, ERROR_LIMITS)
  if (!body) return false
  const coding = contentEncoding(response.head.headers)
  const plain = coding === 'identity' ? body : decodedAtOnce(body, coding, 16 * ERROR_LIMITS.bytes)
  return plain !== undefined && bound.isBoundThinkingError(plain)
}

/**
 * Returns the call with the setting that makes the provider drop bound reasoning; `undefined` if the API has no such
 * setting, or after a fault of Governor.
 */
export function withoutBoundThinking(
  { services, call, bytes }: Turn,
  bound: BoundThinking,
  sent: UpstreamCall,
): UpstreamCall | undefined {
  try {
    const body = sent.body === call.body ? bytes : bodyOf(sent)
    const removal = body && bound.dropBoundThinking(body)
    if (!removal) return undefined
    const changed = withEdits(sent, body, removal.edits)
    const { name, value } = removal.header
    const asked = headerOf(sent.headers, name)
    const headers = withHeaders(changed.headers, { [name]: asked ? `${asked},${value}` : value })
    return { ...changed, headers }
  } catch (error) {
    noteFault(services.emit, error as Error)
    return undefined
  }
}
