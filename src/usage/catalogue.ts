/**
 * Prices and context windows of models: from the configuration, else from the data in @pydantic/genai-prices. Uses no
 * network. The package is loaded on first need, as that takes some 40 ms and 16 MB.
 */

import type { PriceCalculation, Provider } from '@pydantic/genai-prices'
import { LRUCache } from 'lru-cache'
import { tableBy } from '../core/names.ts'
import { addedTokens, type PromptBytes, type PromptTokens, resultTokens } from '../core/session/result-tokens.ts'
import type { Thread } from '../core/session/session.ts'
import { globMatches } from '../core/text/glob.ts'
import { errorOf } from '../core/thrown.ts'
import type { CallUsage, StatedBill, TokenUsage } from '../core/usage.ts'
import type { Upstream } from '../http/upstream.ts'

/** The price of one model at one upstream: returns US dollars. */
type Price = (usage: TokenUsage) => number

/** The upstream at which a model is called. */
export type CatalogueUpstream = Pick<Upstream, 'name' | 'origin' | 'prefix'>

/** US dollars per million tokens; without prices of their own, cached tokens cost as much as others. */
interface Prices {
  readonly input: number
  readonly output: number
  readonly cached_input?: number | undefined
  readonly cache_write?: number | undefined
  /** Of tokens that the cache keeps for an hour. */
  readonly cache_write_1h?: number | undefined
}

/** Those of the package: audio costs as much as text without prices of its own. */
interface ListedPrices extends Prices {
  readonly audio_input?: number | undefined
  readonly audio_output?: number | undefined
}

/** The configuration of the models that match; what is not configured is unset. */
export interface ModelSettings {
  readonly model: string
  readonly upstream?: string | undefined
  readonly context_window?: number | undefined
  readonly price?: Prices | undefined
}

type Package = typeof import('@pydantic/genai-prices')

const PER_MILLION = 1_000_000

/** Models that are remembered per upstream; the client chooses the name. */
const MAX_KNOWN = 1_000
const MAX_NAME = 200

/** Returns the parts of a prompt that were read from a cache, written to it, and of those written for an hour. */
function cacheParts({ input, cachedInput = 0, cacheWrite = 0, hourWrite = 0 }: TokenUsage) {
  const cached = Math.min(cachedInput, input)
  const written = Math.min(cacheWrite, input - cached)
  return { cached, written, hour: Math.min(hourWrite, written) }
}

/** What a token written for an hour costs, in tokens of input, where nobody states a price of it: Anthropic's. */
const HOUR_WRITE = 2

function fixedPrice({ input, output, cached_input = input, cache_write, ...others }: ListedPrices): Price {
  const { cache_write_1h, audio_input = input, audio_output = output } = others
  const write = cache_write ?? input
  const hourWrite = cache_write_1h ?? (cache_write === undefined ? input : input * HOUR_WRITE)
  return (usage) => {
    const { cached, written, hour } = cacheParts(usage)
    const plain = usage.input - cached - written
    const writing = (written - hour) * write + hour * hourWrite
    // More than there is at all may be stated.
    const heard = Math.min(usage.audioInput ?? 0, plain) * (audio_input - input)
    const spoken = Math.min(usage.audioOutput ?? 0, usage.output) * (audio_output - output)
    return (plain * input + heard + cached * cached_input + writing + usage.output * output + spoken) / PER_MILLION
  }
}

type Entry = Pick<PriceCalculation, 'provider' | 'model'>

/** Returns the price of a model in the package. */
function listedPrice({ calcPrice }: Package, { provider, model }: Entry): Price {
  const { prices } = model
  if (!Array.isArray(prices) && !prices['requests_kcount']) {
    const { input_mtok: input, output_mtok: output } = prices
    const { cache_read_mtok: cached_input, cache_write_mtok: cache_write, cache_write_1h_mtok: cache_write_1h } = prices
    const { input_audio_mtok: audio_input, output_audio_mtok: audio_output } = prices
    const others = { cached_input, cache_write, cache_write_1h, audio_input, audio_output }
    const isFixed = !Object.values(others).some((one) => typeof one === 'object')
    // The same for every prompt at any time, as most are.
    if (typeof input === 'number' && typeof output === 'number' && isFixed)
      return fixedPrice({ input, output, ...others } as ListedPrices)
  }
  // Tiers by length, times of day, start dates. With only this model, the package does not search all of them again.
  const only: Provider = { ...provider, models: [{ ...model, match: { contains: '' } }] }
  return (used) => {
    const { cached, written, hour } = cacheParts(used)
    const usage = {
      input_tokens: used.input,
      output_tokens: used.output,
      cache_read_tokens: cached,
      cache_write_tokens: written,
      cache_write_1h_tokens: hour,
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
    if (price && only === upstream.name) prices.push(fixedPrice(price))
  const provider = providerOf(found, upstream)
  for (const model of provider?.models ?? []) if (provider) prices.push(listedPrice(found, { provider, model }))
  return prices.reduce<Price | undefined>(
    (most, one) => (one(COMPARED) > (most?.(COMPARED) ?? 0) ? one : most),
    undefined,
  )
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
        if (found) return found
      }
    }
  } catch {
    // A model on which the package fails is unknown.
  }
  return undefined
}

/** How much more an answer costs by its service tier; others, and those not stated, cost the listed price. */
const TIERS = new Map(Object.entries({ priority: 2, fast: 2, ultrafast: 6, flex: 0.5, batch: 0.5 }))
/** The same of Anthropic's fast mode, and of an answer that it made in the region that the client demanded. */
const FAST = 6
const REGIONAL = 1.1
const NO_REGION: ReadonlySet<string> = new Set(['global', 'not_available'])

interface KnownModel {
  readonly price: Price | undefined
  /** The price stands in the configuration. */
  readonly isConfigured: boolean
  /** Returns US dollars for a search of the web by the provider; unset with a configured price, which is all. */
  readonly perSearch: (() => number) | undefined
  /** Tokens of prompt and answer together. */
  readonly contextWindow: number | undefined
}

/** Returns what looks up the price of a search of the web in the package, in US dollars; 0 if that fails. */
function searchPrice({ calcPrice }: Package, { provider, model }: Entry): () => number {
  const priceOf = (web_searches: number) =>
    calcPrice({ input_tokens: 0, output_tokens: 0, web_searches }, model.id, { provider })?.total_price ?? 0
  return () => {
    try {
      return priceOf(1) - priceOf(0)
    } catch {
      return 0
    }
  }
}

/** Returns a value from the first matching settings that have it: a window may come from one, a price from another. */
export function configuredValue<K extends 'price' | 'context_window'>(
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

/** Creates the catalogue. The first of the `settings` that match win; `failed` is called once if loading fails. */
export function createCatalogue(settings: readonly ModelSettings[], failed?: (error: Error) => void) {
  // By upstream, whose number the configuration bounds, and by model.
  const known = new Map<string, LRUCache<string, KnownModel>>()
  const dearestPrices = new Map<string, Price | undefined>()
  let library: Package | undefined
  let loading: Promise<Error | undefined> | undefined
  const loadOnce = async (): Promise<Error | undefined> => {
    try {
      library = await import('@pydantic/genai-prices')
      catalogue.isLoaded = true
      return undefined
    } catch (error) {
      const problem = errorOf(error)
      failed?.(problem)
      return problem
    }
  }
  const catalogue = {
    isLoaded: false,
    /** Settles once the package is loaded, or cannot be: then every cost is known. Unset if nobody needed it yet. */
    get loading() {
      return loading
    },
    /** Loads the package, once. Resolves to the error if it can't be loaded; never rejects. */
    load(): Promise<Error | undefined> {
      loading ??= loadOnce()
      return loading
    },
    /** Returns the dearest known price of the upstream's provider; `undefined` if none is known, or not loaded yet. */
    dearestAt(upstream: CatalogueUpstream): Price | undefined {
      const { name } = upstream
      if (library && !dearestPrices.has(name)) dearestPrices.set(name, dearest(library, settings, upstream))
      return dearestPrices.get(name)
    },
    /** Returns what is known of a model. Starts to load the package if that lacks something. */
    modelAt(name: string, upstream: CatalogueUpstream): KnownModel {
      const model = name.slice(0, MAX_NAME)
      const before = known.get(upstream.name)?.get(model)
      if (before) return before
      const price = configuredValue(settings, model, upstream.name, 'price')
      const contextWindow = configuredValue(settings, model, upstream.name, 'context_window')
      const entry = library && model !== '' ? find(library, model, upstream) : undefined
      const now: KnownModel = {
        price: price ? fixedPrice(price) : library && entry && listedPrice(library, entry),
        isConfigured: price !== undefined,
        perSearch: library && entry && !price ? searchPrice(library, entry) : undefined,
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

/** Returns what the prompt of an answer held; its share of the cost goes by tokens where no price is known. */
export function promptTokens(
  of: PromptBytes,
  context: Thread['context'],
  usage: TokenUsage,
  catalogue: Catalogue,
  model: string,
  upstream: CatalogueUpstream,
): PromptTokens {
  const { input, lastInput: tokens = input } = usage
  const added = of.size === undefined ? undefined : addedTokens(of, context, tokens)
  const results = resultTokens(of, context, tokens)
  if (results.length === 0) return { tokens, added, results, share: 0 }
  const { price = ({ input, output }: TokenUsage) => input + output } = catalogue.modelAt(model, upstream)
  const whole = price(usage)
  const share = whole > 0 ? Math.min(1, price({ ...usage, output: 0 }) / whole) : 0
  return { tokens, added, results, share }
}

/** True if the prices are loaded and a model has none. */
export function lacksPrice(catalogue: Catalogue, model: string, upstream: CatalogueUpstream): boolean {
  return catalogue.isLoaded && catalogue.modelAt(model, upstream).price === undefined
}

const PRICED = ['input', 'output', 'cachedInput', 'cacheWrite', 'hourWrite'] as const

/** Returns what of usage is left without the parts that other models used. */
function withoutOthers({ ofOthers = [], ...all }: TokenUsage): TokenUsage {
  return tableBy(PRICED, (key) => {
    const left = ofOthers.reduce((rest, part) => rest - (part[key] ?? 0), all[key] ?? 0)
    return Math.max(0, left)
  })
}

/** What a response cost in US dollars, or why that is unknown. */
export type Cost = Pick<CallUsage, 'cost' | 'costGap'>

const NO_PRICE: Cost = { costGap: 'partial' }

/**
 * Returns what a response cost in US dollars, or why that is unknown; a promise of it until the prices are loaded. A
 * stated 0 counts only where no price is known; `estimates`: such a call then costs what the dearest model would.
 */
export function costOf(
  usage: TokenUsage,
  bill: StatedBill,
  catalogue: Catalogue,
  model: string,
  upstream: CatalogueUpstream,
  estimates: boolean,
): Cost | Promise<Cost> {
  if (bill.cost) return { cost: bill.cost }
  const asked = catalogue.modelAt(model, upstream)
  // The model that the response names counts, once that has a price.
  const named = bill.model ? catalogue.modelAt(bill.model, upstream) : asked
  const { price, perSearch } = named.price && (named.isConfigured || !asked.isConfigured) ? named : asked
  if (price) {
    const region = !bill.region || NO_REGION.has(bill.region) ? 1 : REGIONAL
    const { ofOthers = [] } = usage
    let all = price(ofOthers.length > 0 ? withoutOthers(usage) : usage)
    for (const part of ofOthers) all += (catalogue.modelAt(part.model, upstream).price ?? price)(part)
    const ofTokens = all * (bill.speed === 'fast' ? FAST : 1) * (TIERS.get(bill.tier ?? '') ?? 1) * region
    return { cost: bill.searches && perSearch ? ofTokens + bill.searches * perSearch() : ofTokens }
  }
  if (!catalogue.isLoaded) {
    const again = (problem?: Error) => (problem ? NO_PRICE : costOf(usage, bill, catalogue, model, upstream, estimates))
    return catalogue.load().then(again)
  }
  if (bill.cost === 0) return { cost: 0 }
  const dearest = estimates ? catalogue.dearestAt(upstream) : undefined
  return dearest ? { cost: dearest(usage), costGap: 'estimate' } : NO_PRICE
}
