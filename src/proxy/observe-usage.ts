/** Reads the usage of a model's answer to a counted request and adds it to the run and the session. */
import { costLimit } from '../core/budget/tiers.ts'
import { succeed, succeedInSession } from '../core/context-window.ts'
import { changeContexts, noteAcknowledged } from '../core/session/transitions.ts'
import type { CallUsage } from '../core/usage.ts'
import { type Head, lengthOf, type UpstreamCall } from '../http/upstream.ts'
import type { ResponseObserver } from '../http/upstream-response.ts'
import type { Emit } from '../telemetry/event.ts'
import { recordUsage } from '../usage/catalogue.ts'
import { type Answered, observeResponse } from '../usage/response-observer.ts'
import { emitFor } from './begin-exchange.ts'
import { noteFault } from './fault.ts'
import { keptName } from './overflow/windows.ts'
import type { NoteUnpricedModel } from './services.ts'
import { keepAnswer } from './session/keep-transcript.ts'
import { noteResponseBegan, recordAnswer } from './session/record-answer.ts'
import { changeSession, type Turn } from './turn.ts'

/** Returns an observer for the response to a counted request; `undefined` if it is not a model's answer. */
export function observeUsage(x: Turn, call: UpstreamCall, head: Head): ResponseObserver | undefined {
  const { services, exchange, dialect, decision, sent } = x
  if (head.status !== 200) return undefined
  // Where the run ends with the response, the text that the client gets is kept, and not the provider's.
  const isEnd = decision.kind === 'stop' || decision.kind === 'self_stop'
  return observeResponse({
    dialect,
    head,
    requestBytes: lengthOf(call.body),
    withFacts: exchange.span !== undefined,
    withText: services.keepsTranscripts && !isEnd,
    begin: sent.isKept ? (id) => noteResponseBegan(x, id) : undefined,
    settle: (answer) => noteAnswer(x, answer),
    fault: (error) => noteFault(services.emit, error),
  })
}

function noteAnswer(turn: Turn, answer: Answered): void {
  const { services, exchange, names, state, request, policy, runState, decision } = turn
  const { catalogue, noteUnpricedModel, windows } = services
  const { upstream } = exchange.route
  const { model } = request.conversation
  const { run, thread, isNewRun, iteration } = runState
  const answered = (usage: CallUsage): void =>
    emitFor(exchange, {
      kind: 'answered',
      upstream: upstream.name,
      model,
      client: request.agent,
      ...names,
      thread: thread.number ?? 0,
      isNewRun,
      iteration: decision.kind === 'stop' ? 0 : iteration,
      toolCalls: run.toolCalls,
      usage,
      facts: answer.facts,
    })
  recordUsage(
    {
      catalogue,
      model,
      upstream,
      estimatesPrice: policy.unknownPrice === 'estimate',
      add(usage) {
        answered(usage)
        recordAnswer(turn, usage, answer)
      },
      addCost(usage) {
        if (usage.cost !== undefined) answered(usage)
        recordAnswer(turn, usage)
      },
      unpriced(gap) {
        const handling = gap === 'estimate' ? 'estimate' : 'warn'
        noteUnpricedModel(model, upstream, costLimit(policy) === undefined ? undefined : handling)
      },
    },
    answer.usage,
  )
  if (answer.text !== undefined) keepAnswer(turn, answer.text, answer)
  if (!answer.usage.estimated) {
    // A prompt of so many tokens was accepted: a window that seemed to be smaller is larger.
    const tokens = answer.usage.input
    windows.change({ upstream, model }, succeed, tokens)
    const { reductions } = runState
    const key = { upstream: upstream.name, model: keptName(model) }
    if (reductions !== undefined && succeedInSession(reductions, key, tokens) !== reductions)
      void changeSession(turn, changeContexts, (contexts) => ({
        ...contexts,
        reductions: succeedInSession(contexts.reductions, key, tokens),
      }))
  }
  if (answer.callsNothing && state.isWarned) {
    emitFor(exchange, { kind: 'warning_answered', reaction: 'acknowledged' })
    void changeSession(turn, noteAcknowledged)
  }
}

/** How many models are reported: clients choose their names. */
const MAX_NOTED = 1_000

/** Creates the memory of the models whose unknown price was reported. */
export function createUnpricedModels(emit: Emit): NoteUnpricedModel {
  const noted = new Set<string>()
  return (model, { name }, handling) => {
    const key = `${handling} ${name} ${model.slice(0, 200)}`
    if (noted.has(key) || noted.size >= MAX_NOTED) return
    noted.add(key)
    emit({ kind: 'unpriced_model', upstream: name, model, handling })
  }
}
