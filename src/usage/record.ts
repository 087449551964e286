/** Prices a model's response, at once or as soon as the catalogue of prices is loaded. */
import type { CallUsage } from '../core/usage.ts'
import type { Upstream } from '../http/upstream.ts'
import type { Catalogue } from './catalogue.ts'

/** The model and the upstream of a response, and where its usage goes. */
export interface UsageRecord {
  readonly catalogue: Catalogue
  readonly model: string
  readonly upstream: Upstream
  /** Takes the usage, with the cost in US dollars if the price is known. */
  readonly add: (usage: CallUsage) => void
  /** Takes a cost that became known later, with no tokens. */
  readonly addCost: (usage: CallUsage) => void
  /** Called if the catalogue has no price for the model. */
  readonly unpriced: () => void
  /** Called if the catalogue cannot be loaded. */
  readonly failed: () => void
}

function priced(usage: CallUsage, { catalogue, model, upstream }: UsageRecord): CallUsage {
  const cost = catalogue.priceOf(model, upstream)?.costOf(usage)
  return cost === undefined ? usage : { ...usage, cost }
}

/** Prices the usage of a response. Its tokens count at once, its cost as soon as it is known. */
export function recordUsage(record: UsageRecord, usage: CallUsage): void {
  const { catalogue, add, addCost, unpriced, failed } = record
  const known = priced(usage, record)
  add(known)
  if (known.cost !== undefined) return
  if (catalogue.isLoaded) return unpriced()
  catalogue.load().then(() => {
    const { cost } = priced(usage, record)
    if (cost !== undefined) addCost({ input: 0, output: 0, estimated: usage.estimated, cost })
  }, failed)
}
