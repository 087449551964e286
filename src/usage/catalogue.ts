/**
 * Prices and context windows of models: from the configuration, else from the data in @pydantic/genai-prices. Uses no
 * network. The package is loaded on first need, as that takes some 40 ms and 16 MB.
 */
import type { ModelInfo, Provider } from '@pydantic/genai-prices'
import { LRUCache } from 'lru-cache'
import { globMatches } from '../core/glob.ts'
import type { CallUsage, TokenUsage } from '../core/usage.ts'

/** The price of one model at one upstream: returns US dollars. */
export type Price = (usage: TokenUsage) => number

/** The upstream at which a model is called. */
export interface CatalogueUpstream {
  readonly name: string
  /** Scheme, host and port. */
  readonly origin: string
  /** Path that is prepended to the path of every request. */
  readonly prefix: string
}

/** The configuration of the models that match; what is not configured is unset. */
export interface ModelSettings {
  readonly model: string
  readonly upstream?: string | undefined
  readonly contextWindow?: number | undefined
  /** US dollars per million tokens. */
  readonly price?:
    | {
        readonly input: number
        readonly output: number
        /** Unset: as `input`. */
        readonly cachedInput?: number | undefined
        readonly cacheWrite?: number | undefined
      }
    | undefined
}

type Package = typeof import('@pydantic/genai-prices')

const PER_MILLION = 1_000_000

/** Models that are remembered per upstream; the client chooses the name. */
const MAX_KNOWN = 1_000
const MAX_NAME = 200

function configuredPrice(price: NonNullable<ModelSettings['price']>): Price {
  const { input, output, cachedInput = input, cacheWrite = input } = price
  return (usage) => {
    const cached = Math.min(usage.cachedInput ?? 0, usage.input)
    const written = Math.min(usage.cacheWrite ?? 0, usage.input - cached)
    const plain = usage.input - cached - written
    const dollars = plain * input + cached * cachedInput + written * cacheWrite + usage.output * output
    return dollars / PER_MILLION
  }
}

interface Entry {
  readonly provider: Provider
  readonly model: ModelInfo
}

/** Returns the price of a model in the package. */
function listedPrice({ calcPrice }: Package, { provider, model }: Entry): Price {
  const { prices } = model
  if (!Array.isArray(prices) && !prices['requests_kcount']) {
    const { input_mtok: input, output_mtok: output } = prices
    const { cache_read_mtok: cachedInput, cache_write_mtok: cacheWrite } = prices
    const isFixed = typeof cachedInput !== 'object' && typeof cacheWrite !== 'object'
    // The same for every prompt at any time, as most are.
    if (typeof input === 'number' && typeof output === 'number' && isFixed)
      return configuredPrice({ input, output, cachedInput, cacheWrite })
  }
  // Tiers by length, times of day, start dates. With only this model, the package does not search all of them again.
  const only: Provider = { ...provider, models: [{ ...model, match: { contains: '' } }] }
  return ({ input, output, cachedInput = 0, cacheWrite = 0 }) => {
    const cached = Math.min(cachedInput, input)
    const usage = {
      input_tokens: input,
      output_tokens: output,
      cache_read_tokens: cached,
      cache_write_tokens: Math.min(cacheWrite, input - cached),
    }
    return calcPrice(usage, model.id, { provider: only })?.total_price ?? 0
  }
}

function providerOf({ findProvider }: Package, { name, origin, prefix }: CatalogueUpstream): Provider | undefined {
  return findProvider({ providerApiUrl: origin + prefix }) ?? findProvider({ providerId: name.toLowerCase() })
}

const COMPARED: TokenUsage = { input: PER_MILLION, output: PER_MILLION }

/** Returns the price of the dearest model that the configuration or the package knows at an upstream. */
function dearest(found: Package, settings: readonly ModelSettings[], upstream: CatalogueUpstream): Price | undefined {
  const prices: Price[] = []
  for (const { price, upstream: only = upstream.name } of settings)
    if (price && only === upstream.name) prices.push(configuredPrice(price))
  const provider = providerOf(found, upstream)
  for (const model of provider?.models ?? []) if (provider) prices.push(listedPrice(found, { provider, model }))
  let most: Price | undefined
  for (const price of prices) if (price(COMPARED) > (most?.(COMPARED) ?? 0)) most = price
  return most
}

/** Finds a model at the provider of the upstream, else at any provider by its name. */
function find(library: Package, model: string, upstream: CatalogueUpstream): Entry | undefined {
  const nothing = { input_tokens: 0, output_tokens: 0 }
  // A gateway may put a prefix before the name that the package knows.
  const last = model.slice(model.lastIndexOf('/') + 1)
  try {
    for (const provider of [providerOf(library, upstream), undefined]) {
      for (const candidate of new Set([model, last || model])) {
        const found = library.calcPrice(nothing, candidate, provider ? { provider } : {})
        if (found) return { provider: found.provider, model: found.model }
      }
    }
  } catch {
    // A model on which the package fails is unknown.
  }
  return undefined
}

/** What is known of a model at an upstream. */
interface KnownModel {
  readonly price: Price | undefined
  /** Tokens of prompt and answer together. */
  readonly contextWindow: number | undefined
}

/**
 * Returns a value from the first matching settings that have it: a window may come from one, a price from another.
 * `upstream`: its name.
 */
export function configuredValue<K extends 'price' | 'contextWindow'>(
  settings: readonly ModelSettings[],
  name: string,
  upstream: string,
  key: K,
): ModelSettings[K] | undefined {
  const model = name.slice(0, MAX_NAME)
  for (const entry of settings) {
    const isAtUpstream = entry.upstream === undefined || entry.upstream === upstream
    if (entry[key] !== undefined && isAtUpstream && globMatches(entry.model, model)) return entry[key]
  }
  return undefined
}

/**
 * Creates the catalogue; `settings` come before the package's data, the first match first. `failed` is called once if
 * the package can't be loaded.
 */
export function createCatalogue(settings: readonly ModelSettings[], failed?: (error: Error) => void) {
  // By upstream, whose number the configuration bounds, and by model.
  const known = new Map<string, LRUCache<string, KnownModel>>()
  const dearestPrices = new Map<string, { readonly price: Price | undefined }>()
  let library: Package | undefined
  const loadOnce = async (): Promise<Error | undefined> => {
    try {
      library = await import('@pydantic/genai-prices')
      catalogue.isLoaded = true
      return undefined
    } catch (error) {
      failed?.(error as Error)
      return error as Error
    }
  }
  const catalogue = {
    isLoaded: false,
    /** Settles once the package is loaded, or cannot be: then every cost is known. Unset if nobody needed it yet. */
    loading: undefined as Promise<Error | undefined> | undefined,
    /** Loads the package, once. Resolves to the error if it can't be loaded; never rejects. */
    load(): Promise<Error | undefined> {
      catalogue.loading ??= loadOnce()
      return catalogue.loading
    },
    /** Returns the dearest known price of the upstream's provider; `undefined` if none is known, or not loaded yet. */
    dearestAt(upstream: CatalogueUpstream): Price | undefined {
      if (!library) return undefined
      const before = dearestPrices.get(upstream.name)
      if (before) return before.price
      const price = dearest(library, settings, upstream)
      dearestPrices.set(upstream.name, { price })
      return price
    },
    /** Returns what is known of a model. Starts to load the package if that lacks something. */
    modelAt(name: string, upstream: CatalogueUpstream): KnownModel {
      const model = name.slice(0, MAX_NAME)
      const before = known.get(upstream.name)?.get(model)
      if (before) return before
      const price = configuredValue(settings, model, upstream.name, 'price')
      const contextWindow = configuredValue(settings, model, upstream.name, 'contextWindow')
      const entry = library && model !== '' ? find(library, model, upstream) : undefined
      const now: KnownModel = {
        price: price ? configuredPrice(price) : library && entry && listedPrice(library, entry),
        contextWindow: contextWindow ?? entry?.model.context_window,
      }
      if (library) {
        const models = known.get(upstream.name) ?? new LRUCache({ max: MAX_KNOWN })
        known.set(upstream.name, models.set(model, now))
      } else if (now.price === undefined || now.contextWindow === undefined) void catalogue.load()
      return now
    },
  }
  return catalogue
}

/** Prices and context windows by model and upstream. */
export type Catalogue = Readonly<ReturnType<typeof createCatalogue>>

/** The model and the upstream of a response. */
interface PricedModel {
  readonly catalogue: Catalogue
  readonly model: string
  readonly upstream: CatalogueUpstream
  /** A call without a known price costs as much as the provider's dearest model would. */
  readonly estimatesPrice: boolean
}

type Cost = Pick<CallUsage, 'cost' | 'costGap'>

/** Returns what a response cost in US dollars, or why that is unknown; a promise of it until the prices are loaded. */
export function costOf(usage: TokenUsage, priced: PricedModel): Cost | Promise<Cost> {
  const { catalogue, model, upstream, estimatesPrice } = priced
  const { price } = catalogue.modelAt(model, upstream)
  if (price) return { cost: price(usage) }
  if (!catalogue.isLoaded)
    return catalogue.load().then((problem) => (problem ? { costGap: 'partial' } : costOf(usage, priced)))
  const dearest = estimatesPrice ? catalogue.dearestAt(upstream) : undefined
  return dearest ? { cost: dearest(usage), costGap: 'estimate' } : { costGap: 'partial' }
}
