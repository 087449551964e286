/** Reads the usage of a model's answer to a counted request and adds it to the run and the session. */
import { costLimit } from '../../core/budget/tiers.ts'
import { succeedInSession } from '../../core/context-window.ts'
import { type Head, lengthOf, type UpstreamCall } from '../../http/upstream.ts'
import type { ResponseObserver } from '../../http/upstream-response.ts'
import type { Emit } from '../../telemetry/event.ts'
import { type Answered, observeResponse } from '../../usage/observe.ts'
import { recordUsage } from '../../usage/record.ts'
import type { Exchange } from '../begin-exchange.ts'
import type { Evaluation } from '../evaluate.ts'
import { faultOf } from '../fault.ts'
import { keptName } from '../overflow/windows.ts'
import type { Services } from '../services.ts'

/** Returns an observer for the response to a counted request; `undefined` if it is not a model's answer. */
export function observeUsage(
  services: Services,
  { route, emit }: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  head: Head,
): ResponseObserver | undefined {
  const { dialect, upstream } = route
  if (head.status !== 200 || !dialect) return undefined
  const { decision, request, handle } = evaluation
  const withText = services.keepsTranscripts && !isEnd(decision)
  const isKept = request.isKept === true
  return observeResponse({
    dialect,
    head,
    requestBytes: lengthOf(call.body),
    withCalls: isKept,
    withId: isKept,
    withText,
    begin: (id) => handle.responseBegan(id),
    settle: (answer) => noteAnswer(services, emit, upstream, evaluation, answer),
    fault: (error) => services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) }),
  })
}

/** True if the run ends with the response: then the text that the client gets is kept, and not the provider's. */
function isEnd({ kind }: Evaluation['decision']): boolean {
  return kind === 'stop' || kind === 'self_stop'
}

function noteAnswer(
  services: Services,
  emit: Emit,
  upstream: Exchange['route']['upstream'],
  evaluation: Evaluation,
  answer: Answered,
): void {
  const { catalogue, noteUnpricedModel } = services
  const { handle, request, policy } = evaluation
  const { model } = request.conversation
  recordUsage(
    {
      catalogue,
      model,
      upstream,
      estimatesPrice: policy.unknownPrice === 'estimate',
      add(usage) {
        emit({ kind: 'answered', upstream: upstream.name, usage })
        handle.noteAnswer(usage, answer)
      },
      addCost(usage) {
        if (usage.cost !== undefined) emit({ kind: 'answered', upstream: upstream.name, usage })
        handle.noteAnswer(usage)
      },
      unpriced(gap) {
        const handling = gap === 'estimate' ? 'estimate' : 'warn'
        noteUnpricedModel(model, upstream, costLimit(policy) === undefined ? undefined : handling)
      },
    },
    answer.usage,
  )
  if (answer.text !== undefined) handle.noteText(answer.text, answer)
  if (!answer.usage.estimated) notePrompt(services, upstream, evaluation, answer.usage.input)
  if (answer.callsNothing && handle.wasWarned()) {
    emit({ kind: 'warning_answered', reaction: 'acknowledged' })
    void handle.noteAcknowledged()
  }
}

/** Notes that a prompt of so many tokens was accepted: a window that seemed to be smaller is larger. */
function notePrompt(
  { windows }: Services,
  upstream: Exchange['route']['upstream'],
  { runState, request, handle }: Evaluation,
  promptTokens: number,
): void {
  const { model } = request.conversation
  windows.succeed({ upstream, model }, promptTokens)
  const { reductions } = runState
  const key = { upstream: upstream.name, model: keptName(model) }
  if (reductions === undefined || succeedInSession(reductions, key, promptTokens) === reductions) return
  void handle.changeContexts((contexts) => ({
    ...contexts,
    reductions: succeedInSession(contexts.reductions, key, promptTokens),
  }))
}
