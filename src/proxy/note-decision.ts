/** Reports a decision to the log, the metrics, the session and the client's headers. */
import { noteDelivery, noticeReachedModel, noticeRefused, resumeRun } from '../core/session/transitions.ts'
import { isSuccess } from '../http/upstream.ts'
import { noteEnd } from './at-limit.ts'
import { emitFor, noteVerdict } from './begin-exchange.ts'
import { isolated } from './fault.ts'
import { noteGap } from './note-gap.ts'
import { type PlacedNotice, placesFor } from './request-edits.ts'
import { changeSession, type Turn } from './turn.ts'

/** Reports a decision. Until the model got its notice, a warning is one that nobody read: the verdict is `allow`. */
export function noteDecision(turn: Turn): void {
  const { services, exchange, request, names, runState, policy, decision } = turn
  const { kind, verdict, speech } = decision
  const { isRetry, resendCount, reaction } = runState
  isolated(services.emit, 'budget', noteEnd, turn)
  const loop = kind === 'stop' ? (decision.loop ?? runState.loop) : runState.loop
  // All other decisions give the model another notice, or none.
  if (kind !== 'allow' && kind !== 'warn' && kind !== 'filter_calls') noteLoop(turn, false)
  if (resendCount !== undefined) services.emit({ kind: 'repeat_counted' })
  if (reaction) services.emit({ kind: 'warning_answered', reaction })
  const { memory } = runState.thread.loopState ?? {}
  const isFailedBlock = memory?.failedAt !== undefined && memory.failedAt === memory.history.steps
  if (isFailedBlock && !isRetry && !memory.attempted?.isMute) void noteGap(services, 'calls_unreadable', turn.found)
  if ('resumesRun' in decision && decision.resumesRun) void changeSession(turn, resumeRun, [])
  // Bytes that are sent again though their answer has arrived count as an iteration after a while. The count assumes
  // that a first request is answered and that a retry fails.
  const { client } = exchange
  client.onClose(() => {
    const isAnswered = !client.isGone() && isSuccess({ status: client.status() })
    if (isAnswered === isRetry) void changeSession(turn, noteDelivery, [isAnswered])
  })
  const observed = 'observed' in decision ? decision.observed : undefined
  const max = policy.enabled ? policy.run.iterations : 0
  // A request that is stopped or comes after the end is no iteration.
  const ended = decision.kind === 'replay' ? decision.answer.ended : undefined
  const made = kind === 'stop' ? runState.iteration - 1 : (ended?.counts.iterations ?? runState.iteration)
  // A stopped run stays at its limit; a run that is only observed exceeds it.
  const iteration = max > 0 && !observed ? Math.min(made, max) : made
  const stated = {
    verdict: verdict === 'warn' ? 'allow' : verdict,
    tier: verdict === 'warn' ? speech?.tier : undefined,
    loop: loop?.pattern,
  } as const
  turn.state.decided = { said: kind === 'stop' ? speech?.notice : undefined, ...stated }
  exchange.decided = {
    model: request.conversation.model,
    observed,
    iteration,
    maxIterations: max > 0 ? max : undefined,
    meter: stated.tier && speech?.meter,
    isRetry,
    parameters: exchange.span && turn.sent.parameters?.(),
    ...stated,
    ...names,
  }
  turn.governorHeaders = {
    'x-governor-iteration': max > 0 ? `${iteration}/${max}` : String(iteration),
    'x-governor-verdict': stated.verdict,
    'x-governor-observed': observed,
    'x-governor-session': names.session,
    'x-governor-tier': stated.tier,
    'x-governor-slowed': exchange.slowedMs === undefined ? undefined : (exchange.slowedMs / 1_000).toFixed(1),
    'x-governor-repeat': resendCount === undefined ? undefined : String(resendCount),
    'x-governor-loop': loop ? `${loop.pattern};count=${loop.count}` : undefined,
  }
}

/** Reports that the model got the notice. Resolves once the next request finds it so. */
export async function noteNotice(turn: Turn, { channel }: PlacedNotice): Promise<void> {
  const { exchange, state, runState, decision } = turn
  const { tier, meter, notice } = decision.speech ?? {}
  emitFor(exchange, { kind: 'notice', tier: tier ?? (meter ? 'none' : 'loop'), channel, meter: meter?.name })
  noteVerdict(exchange, 'warn')
  // A warning says that the budget is about to end.
  const isWarning = tier === 'warning'
  state.decided = { ...state.decided, verdict: 'warn', said: notice }
  if (isWarning) state.isWarned = true
  if (isWarning || runState.loop) await changeSession(turn, noticeReachedModel, [isWarning])
  turn.governorHeaders = { ...turn.governorHeaders, 'x-governor-verdict': 'warn' }
}

/** Reports that the model did not get a notice. Resolves once the next request finds it so. */
export async function noteNoNotice(turn: Turn, text: string): Promise<void> {
  const isMute = placesFor(turn, text).next().done === true
  if (turn.runState.loop) await changeSession(turn, noticeRefused, [isMute])
  if (isMute) void noteGap(turn.services, 'no_channel', turn.found)
}

/** Emits the loop that a request completed; a retry of the request completes none. */
export function noteLoop({ services, runState: { loop, isRetry }, decision }: Turn, isNoticeSent: boolean): void {
  if (!loop || isRetry) return
  const noticeSent = isNoticeSent && decision.speech?.notice?.includes(loop.notice) === true
  const { pattern, tools, warnings } = loop
  services.emit({ kind: 'loop', pattern, tool: tools.at(-1) ?? '', noticeSent, warnings })
}
