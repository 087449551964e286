/** What an answer cost: known at once, or as soon as the catalogue of prices is loaded. */
import type { CallUsage } from '../core/usage.ts'
import type { Upstream } from '../http/upstream.ts'
import type { Catalogue } from './catalogue.ts'

/** Whose answer it is, and what is done with what it took. */
export interface UsageRecord {
  readonly catalogue: Catalogue
  readonly model: string
  readonly upstream: Upstream
  /** Takes the usage of the answer, with its cost where the price is known. */
  readonly add: (usage: CallUsage) => void
  /** Takes a cost that was not known at first, with no tokens. */
  readonly addCost: (usage: CallUsage) => void
  /** The catalogue has no price for the model. */
  readonly unpriced: () => void
  /** The catalogue can't be loaded. */
  readonly failed: () => void
}

function priced(usage: CallUsage, { catalogue, model, upstream }: UsageRecord): CallUsage {
  const cost = catalogue.priceOf(model, upstream)?.costOf(usage)
  return cost === undefined ? usage : { ...usage, cost }
}

/** Prices the usage of an answer. Its tokens count at once, its cost as soon as it is known. */
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
