/** Reports a decision to the log, the metrics, the session and the client's headers. */
import type { GovernorHeaders } from '../http/response.ts'
import { isGone } from '../http/response.ts'
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import type { Services } from './services.ts'

/** Reports a decision and returns the response headers that state it. */
export function noteDecision(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
): GovernorHeaders {
  const { runState, decision, handle } = evaluation
  emitLoop(services, evaluation)
  if (runState.resendCount !== undefined) services.emit({ kind: 'repeat_counted' })
  if (runState.reaction) services.emit({ kind: 'warning_answered', reaction: runState.reaction })
  if ('resumesRun' in decision && decision.resumesRun) void handle.resumeRun()
  // Bytes that are sent again though their answer has arrived count as an iteration after a while.
  const { response } = exchange
  response.once('close', () => {
    void handle.noteDelivery(
      isGone(response) ? 'client_left' : response.statusCode === 200 ? 'whole' : 'failed',
    )
  })
  return stateDecision(exchange, evaluation)
}

/** Emits the loop that a request completed; a retry of the request completes none. */
function emitLoop({ emit }: Services, { runState, decision: { kind, speech } }: Evaluation): void {
  const { loop, isRetry } = runState
  if (!loop || isRetry) return
  // All other decisions send another notice, or none: a stop, an agent's own last request, an error in a storm.
  const sendsNotice = kind === 'warn' || kind === 'filter_calls'
  const noticeSent = sendsNotice && speech?.notice?.includes(loop.notice) === true
  const { pattern, tools, warnings } = loop
  emit({ kind: 'loop', pattern, tool: tools.at(-1) ?? '', noticeSent, warnings })
}

/** States a decision in the log and in the response headers. */
function stateDecision(exchange: Exchange, evaluation: Evaluation): GovernorHeaders {
  const { runState, policy, decision, sessionId } = evaluation
  const { verdict, speech } = decision
  const { loop, resendCount, isRetry } = runState
  const max = policy.enabled ? policy.run.iterations : 0
  const observed = 'observed' in decision ? decision.observed : undefined
  // A stopped run stays at its limit; a run that is only observed exceeds it.
  const isCapped = max > 0 && observed === undefined
  const iteration = isCapped ? Math.min(runState.iteration, max) : runState.iteration
  const tier = verdict === 'warn' ? speech?.tier : undefined
  evaluation.handle.noteDecision({ verdict, tier, loop: loop?.pattern })
  exchange.decided({
    model: evaluation.request.conversation.model,
    observed,
    ...evaluation.handle.names,
    iteration,
    maxIterations: max > 0 ? max : undefined,
    verdict,
    tier,
    meter: tier && speech?.meter,
    loop: loop?.pattern,
    isRetry,
  })
  return {
    'x-governor-iteration': max > 0 ? `${iteration}/${max}` : String(iteration),
    'x-governor-verdict': verdict,
    'x-governor-observed': observed,
    'x-governor-session': sessionId,
    'x-governor-tier': tier,
    'x-governor-repeat': resendCount === undefined ? undefined : String(resendCount),
    'x-governor-loop': loop ? `${loop.pattern};count=${loop.count}` : undefined,
  }
}
