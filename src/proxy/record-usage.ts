/** What a counted answer took: read beside the relay, priced, and added to its run and session. */

import type { CallUsage } from '../core/usage.ts'
import type { Dialect } from '../dialect/dialect.ts'
import type { Upstream } from '../http/upstream.ts'
import { type Head, lengthOf, type UpstreamCall } from '../http/upstream.ts'
import type { Catalogue } from '../usage/catalogue.ts'
import {
  type Answered,
  type ObserverTarget,
  observeResponse,
  type ResponseObserver,
} from '../usage/observe.ts'
import type { Exchange } from './begin-exchange.ts'
import type { Evaluation } from './evaluate.ts'
import { faultOf } from './fault.ts'
import { noteSuccess } from './learn-window.ts'
import type { Services } from './services.ts'

/** The usage with what it cost, where the price is known. */
function priced(usage: CallUsage, catalogue: Catalogue, model: string, upstream: Upstream): CallUsage {
  const cost = catalogue.priceOf(model, upstream)?.costOf(usage)
  if (cost === undefined) return usage
  return {
    input: usage.input,
    output: usage.output,
    cachedInput: usage.cachedInput,
    cacheWrite: usage.cacheWrite,
    reasoning: usage.reasoning,
    cost,
    estimated: usage.estimated,
  }
}

/** What one call to a model took: told, added to its session, and priced as soon as that can be done. */
class UsageRecorder implements ObserverTarget {
  readonly dialect: Dialect
  readonly head: Head
  readonly requestBytes: number
  readonly withCalls: boolean
  readonly withEnd: boolean
  readonly withId: boolean
  readonly #services: Services
  readonly #upstream: Upstream
  readonly #evaluation: Evaluation

  constructor(
    services: Services,
    upstream: Upstream,
    evaluation: Evaluation,
    call: UpstreamCall,
    dialect: Dialect,
    head: Head,
  ) {
    const { decision, request, handle } = evaluation
    this.dialect = dialect
    this.head = head
    this.requestBytes = lengthOf(call.body)
    this.withCalls = request.isKept === true
    this.withId = request.isKept === true
    this.withEnd = handle.hasName() || decision.speech?.tier === 'warning'
    this.#services = services
    this.#upstream = upstream
    this.#evaluation = evaluation
  }

  begin(id: string): void {
    this.#evaluation.handle.responseBegan(id)
  }

  settle(answer: Answered): void {
    const { catalogue, emit } = this.#services
    const upstream = this.#upstream
    const { handle, request } = this.#evaluation
    const { model } = request.conversation
    const usage = priced(answer.usage, catalogue, model, upstream)
    emit({ kind: 'answered', upstream: upstream.name, usage })
    handle.noteAnswer(usage, answer)
    if (!usage.estimated) noteSuccess(this.#services, this.#evaluation, { upstream, model }, usage.input)
    if (answer.callsNothing && handle.wasWarned()) {
      emit({ kind: 'warning_answered', reaction: 'acknowledged' })
      handle.noteAcknowledged().catch(() => emit({ kind: 'failed_open', reason: 'store' }))
    }
    if (usage.cost === undefined) this.#priceless(answer.usage, model)
  }

  fault(error: Error): void {
    this.#services.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  }

  /** Before the catalogue is there the tokens count at once, and what they cost as soon as it is known. */
  #priceless(usage: CallUsage, model: string): void {
    const { catalogue, emit, noteUnpricedModel } = this.#services
    const { run, session } = this.#evaluation.policy
    if (catalogue.isLoaded) {
      if (run.cost > 0 || session.cost > 0) noteUnpricedModel(model, this.#upstream)
      return
    }
    catalogue.load().then(
      () => this.#addCost(usage, model),
      () => emit({ kind: 'failed_open', reason: 'store' }),
    )
  }

  #addCost(usage: CallUsage, model: string): void {
    const { catalogue, emit } = this.#services
    const { cost } = priced(usage, catalogue, model, this.#upstream)
    if (cost === undefined) return
    const later = { input: 0, output: 0, estimated: usage.estimated, cost }
    emit({ kind: 'answered', upstream: this.#upstream.name, usage: later })
    this.#evaluation.handle.noteAnswer(later)
  }
}

/** Looks at the response to a counted request from beside; not where it is none of a model's. */
export function usageRecorderFor(
  services: Services,
  { route }: Exchange,
  evaluation: Evaluation,
  call: UpstreamCall,
  head: Head,
): ResponseObserver | undefined {
  if (head.status !== 200 || !route.dialect) return undefined
  return observeResponse(new UsageRecorder(services, route.upstream, evaluation, call, route.dialect, head))
}
