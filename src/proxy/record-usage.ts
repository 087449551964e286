/** What a counted answer took: read beside the relay, priced, and added to its run and session. */

import type { CallUsage } from '../core/usage.ts'
import type { Dialect } from '../dialect/dialect.ts'
import type { Upstream } from '../http/upstream.ts'
import { type Head, lengthOf, type UpstreamCall } from '../http/upstream.ts'
import type { Catalogue } from '../usage/catalogue.ts'
import { type Answered, openTap, type Tap, type TapTarget } from '../usage/observe.ts'
import type { Trip } from './begin-exchange.ts'
import type { Judgement } from './evaluate.ts'
import { faultOf } from './fault.ts'
import { noteSuccess } from './learn-window.ts'
import type { ProxyContext } from './services.ts'

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
class Bill implements TapTarget {
  readonly dialect: Dialect
  readonly head: Head
  readonly requestBytes: number
  readonly withCalls: boolean
  readonly withEnd: boolean
  readonly withId: boolean
  readonly #context: ProxyContext
  readonly #upstream: Upstream
  readonly #judgement: Judgement

  constructor(
    context: ProxyContext,
    upstream: Upstream,
    judgement: Judgement,
    call: UpstreamCall,
    dialect: Dialect,
    head: Head,
  ) {
    const { verdict, request, remembered } = judgement
    this.dialect = dialect
    this.head = head
    this.requestBytes = lengthOf(call.body)
    this.withCalls = request.isKept === true
    this.withId = request.isKept === true
    this.withEnd = remembered.hasName() || (verdict.kind === 'warn' && verdict.tier === 'warning')
    this.#context = context
    this.#upstream = upstream
    this.#judgement = judgement
  }

  begin(id: string): void {
    this.#judgement.remembered.began(id)
  }

  settle(answer: Answered): void {
    const { catalogue, emit } = this.#context
    const upstream = this.#upstream
    const { remembered, request } = this.#judgement
    const { model } = request.conversation
    const usage = priced(answer.usage, catalogue, model, upstream)
    emit({ kind: 'answered', upstream: upstream.name, usage })
    remembered.answered(usage, answer)
    if (!usage.estimated) noteSuccess(this.#context, this.#judgement, { upstream, model }, usage.input)
    if (answer.callsNothing && remembered.wasWarned()) {
      emit({ kind: 'warning_answered', heed: 'acknowledged' })
      remembered.acknowledged().catch(() => emit({ kind: 'failed_open', reason: 'store' }))
    }
    if (usage.cost === undefined) this.#priceless(answer.usage, model)
  }

  fault(error: Error): void {
    this.#context.emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
  }

  /** Before the catalogue is there the tokens count at once, and what they cost as soon as it is known. */
  #priceless(usage: CallUsage, model: string): void {
    const { catalogue, emit, notePriceless } = this.#context
    const { run, session } = this.#judgement.policy
    if (catalogue.isLoaded) {
      if (run.cost > 0 || session.cost > 0) notePriceless(model, this.#upstream)
      return
    }
    catalogue.load().then(
      () => this.#addCost(usage, model),
      () => emit({ kind: 'failed_open', reason: 'store' }),
    )
  }

  #addCost(usage: CallUsage, model: string): void {
    const { catalogue, emit } = this.#context
    const { cost } = priced(usage, catalogue, model, this.#upstream)
    if (cost === undefined) return
    const later = { input: 0, output: 0, estimated: usage.estimated, cost }
    emit({ kind: 'answered', upstream: this.#upstream.name, usage: later })
    this.#judgement.remembered.answered(later)
  }
}

/** Looks at the response to a counted request from beside; not where it is none of a model's. */
export function tapFor(
  context: ProxyContext,
  { route }: Trip,
  judgement: Judgement,
  call: UpstreamCall,
  head: Head,
): Tap | undefined {
  if (head.status !== 200 || !route.dialect) return undefined
  return openTap(new Bill(context, route.upstream, judgement, call, route.dialect, head))
}
