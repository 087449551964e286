/** Prices a model's response, at once or as soon as the catalogue of prices is loaded. */
import type { CallUsage, CostGap } from '../core/usage.ts'
import type { Upstream } from '../http/upstream.ts'
import type { Catalogue } from './catalogue.ts'

/** The model and the upstream of a response, and where its usage goes. */
export interface UsageRecord {
  readonly catalogue: Catalogue
  readonly model: string
  readonly upstream: Upstream
  /** A call without a known price costs as much as the provider's dearest model would. */
  readonly estimatesPrice: boolean
  /** Takes the usage, with the cost in US dollars if the price is known. */
  readonly add: (usage: CallUsage) => void
  /** Takes what became known of the cost later, with no tokens. */
  readonly addCost: (usage: CallUsage) => void
  /** Called if the catalogue has no price for the model. */
  readonly unpriced: (gap: CostGap) => void
}

type Cost = Pick<CallUsage, 'cost' | 'costGap'>

/** Returns neither cost nor gap while the catalogue is not loaded, unless the price is configured. */
function costOf(usage: CallUsage, { catalogue, model, upstream, estimatesPrice }: UsageRecord): Cost {
  const price = catalogue.priceOf(model, upstream)
  if (price) return { cost: price.costOf(usage) }
  if (!catalogue.isLoaded) return {}
  const dearest = estimatesPrice ? catalogue.dearestAt(upstream) : undefined
  return dearest ? { cost: dearest.costOf(usage), costGap: 'estimate' } : { costGap: 'partial' }
}

/** Prices the usage of a response. Its tokens count at once, its cost as soon as it is known. */
export function recordUsage(record: UsageRecord, usage: CallUsage): void {
  const { catalogue, add, addCost, unpriced } = record
  const known = costOf(usage, record)
  add({ ...usage, ...known })
  if (known.costGap) return unpriced(known.costGap)
  if (known.cost !== undefined) return
  const addLater = (cost: Cost) => addCost({ input: 0, output: 0, estimated: usage.estimated, ...cost })
  catalogue.load().then(
    () => {
      const later = costOf(usage, record)
      addLater(later)
      if (later.costGap) unpriced(later.costGap)
    },
    () => addLater({ costGap: 'partial' }),
  )
}
