/** Reports a decision to the log, the metrics, the session and the client's headers. */
import type { Decision } from '../core/decide.ts'
import type { GovernorHeaders } from '../http/response.ts'
import { isGone } from '../http/response.ts'
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import type { EvaluatedRequest } from './evaluated-request.ts'
import type { PlacedNotice } from './request-edits.ts'
import type { Services } from './services.ts'

/**
 * Reports a decision and returns the response headers that state it. Until the model got its notice, a warning is one that
 * nobody read: the verdict is `allow`.
 */
export function noteDecision(
  services: Services,
  exchange: Exchange,
  evaluation: Evaluation,
): GovernorHeaders {
  const { runState, decision, handle } = evaluation
  // All other decisions give the model another notice, or none: a stop, an agent's own last request, an error in a storm.
  if (!mayTell(decision)) noteLoop(services, evaluation, false)
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

function mayTell({ kind }: Decision): boolean {
  return kind === 'allow' || kind === 'warn' || kind === 'filter_calls'
}

/**
 * Reports that the model got the notice of a request, and returns the response headers that state it. Resolves when the
 * session knows it, so that the client's next request finds it there.
 */
export async function noteTold(x: EvaluatedRequest, { channel }: PlacedNotice): Promise<GovernorHeaders> {
  const { exchange, evaluation } = x
  const { tier, meter, notice } = evaluation.decision.speech ?? {}
  exchange.emit({
    kind: 'notice',
    tier: tier ?? (meter ? 'none' : 'loop'),
    channel,
    ...(meter ? { meter: meter.name } : {}),
  })
  exchange.noteVerdict('warn')
  await evaluation.handle.noteTold(tier === 'warning', notice)
  return { ...x.governorHeaders, 'x-governor-verdict': 'warn' }
}

/** Emits the loop that a request completed; a retry of the request completes none. */
export function noteLoop({ emit }: Services, { runState, decision }: Evaluation, isTold: boolean): void {
  const { loop, isRetry } = runState
  if (!loop || isRetry) return
  const noticeSent = isTold && decision.speech?.notice?.includes(loop.notice) === true
  const { pattern, tools, warnings } = loop
  emit({ kind: 'loop', pattern, tool: tools.at(-1) ?? '', noticeSent, warnings })
}

/** Returns the iterations of the run, this request included: one that is stopped or comes after the end is none. */
function iterationsMade({ runState: { iteration }, decision }: Evaluation): number {
  if (decision.kind === 'stop') return iteration - 1
  return decision.kind === 'replay' ? (decision.answer.ended?.iterations ?? iteration) : iteration
}

/** States a decision in the log and in the response headers. */
function stateDecision(exchange: Exchange, evaluation: Evaluation): GovernorHeaders {
  const { runState, policy, decision, sessionId } = evaluation
  const { speech } = decision
  const verdict = decision.verdict === 'warn' ? 'allow' : decision.verdict
  const { loop, resendCount, isRetry } = runState
  const max = policy.enabled ? policy.run.iterations : 0
  const observed = 'observed' in decision ? decision.observed : undefined
  const made = iterationsMade(evaluation)
  // A stopped run stays at its limit; a run that is only observed exceeds it.
  const iteration = max > 0 && observed === undefined ? Math.min(made, max) : made
  const tier = decision.verdict === 'warn' ? speech?.tier : undefined
  evaluation.handle.noteDecision({
    verdict,
    tier,
    loop: loop?.pattern,
    said: decision.kind === 'stop' ? speech?.notice : undefined,
  })
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
