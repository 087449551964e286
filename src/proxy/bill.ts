/** What a counted answer took: read beside the relay, priced, and added to its run and session. */
import type { Catalogue } from '../catalogue/catalogue.ts'
import type { CallUsage } from '../core/usage.ts'
import type { Emit } from '../telemetry/event.ts'
import type { ProxyContext } from './context.ts'
import type { Judgement } from './judge.ts'
import type { Upstream } from './route.ts'
import { noteSuccess } from './success.ts'
import { openTap, type Tap } from './tap.ts'
import { faultOf, type Trip } from './trip.ts'
import { type Head, lengthOf, type UpstreamCall } from './upstream.ts'

/** Says once for each upstream and model that nothing is known of its price, though there is a limit on it. */
export type NotePriceless = (model: string, upstream: Upstream) => void

/** Model names are the client's to choose: more of them are not told apart. */
const MAX_NOTED = 1_000

export function createPriceless(emit: Emit): NotePriceless {
  const noted = new Set<string>()
  return (model, { name }) => {
    const key = `${name} ${model.slice(0, 200)}`
    if (noted.has(key) || noted.size >= MAX_NOTED) return
    noted.add(key)
    emit({ kind: 'priceless', upstream: name, model })
  }
}

function priced(usage: CallUsage, catalogue: Catalogue, model: string, upstream: Upstream): CallUsage {
  const cost = catalogue.priceOf(model, upstream)?.costOf(usage)
  return cost === undefined ? usage : { ...usage, cost }
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
  const { catalogue, emit } = context
  const { upstream } = route
  const { model } = judgement.request.conversation
  const { run, session } = judgement.policy
  const isWarned = judgement.verdict.kind === 'warn' && judgement.verdict.tier === 'warning'
  const forget = () => emit({ kind: 'failed_open', reason: 'store' })
  /** Before the catalogue is there the tokens count at once, and what they cost as soon as it is known. */
  const addCost = (usage: CallUsage) => {
    const { cost } = priced(usage, catalogue, model, upstream)
    if (cost === undefined) return
    const later = { input: 0, output: 0, estimated: usage.estimated, cost }
    emit({ kind: 'answered', upstream: upstream.name, usage: later })
    judgement.remembered.answered({ usage: later })
  }
  return openTap({
    dialect: route.dialect,
    head,
    requestBytes: lengthOf(call.body),
    withCalls: judgement.request.isKept === true,
    withEnd: isWarned,
    settle(answer) {
      const usage = priced(answer.usage, catalogue, model, upstream)
      emit({ kind: 'answered', upstream: upstream.name, usage })
      judgement.remembered.answered(usage === answer.usage ? answer : { ...answer, usage })
      if (!usage.estimated) noteSuccess(context, judgement, { upstream, model }, usage.input, call)
      if (answer.callsNothing && judgement.remembered.wasWarned()) {
        emit({ kind: 'warning_answered', heed: 'acknowledged' })
        judgement.remembered.acknowledged().catch(forget)
      }
      if (usage.cost !== undefined) return
      if (!catalogue.isLoaded) catalogue.load().then(() => addCost(answer.usage), forget)
      else if (run.cost > 0 || session.cost > 0) context.notePriceless(model, upstream)
    },
    fault: (error) => emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) }),
  })
}
