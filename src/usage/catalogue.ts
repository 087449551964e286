/**
 * What models cost and how much they take in: from the configuration, else from the data that comes with
 * @pydantic/genai-prices. No network; loaded on first need, as it takes some 40 ms and 16 MB.
 */
import type { ModelInfo, Provider } from '@pydantic/genai-prices'
import { LRUCache } from 'lru-cache'
import { globMatches } from '../core/glob.ts'
import type { TokenUsage } from '../core/usage.ts'

/** What model calls cost at one upstream. */
export interface Price {
  /** US dollars. */
  costOf(usage: TokenUsage): number
}

/** Where a model is called. */
export interface CatalogueUpstream {
  readonly name: string
  /** Scheme, host and port. */
  readonly origin: string
  /** What stands before the path of every request. */
  readonly prefix: string
}

/** What the configuration says of the models that match; unset where it says nothing. */
export interface ModelSettings {
  /** A glob. */
  readonly model: string
  /** Unset: at every upstream. */
  readonly upstream?: string
  /** Tokens. */
  readonly contextWindow?: number
  /** US dollars per million tokens. */
  readonly price?: {
    readonly input: number
    readonly output: number
    /** Unset: as `input`. */
    readonly cachedInput?: number
    readonly cacheWrite?: number
  }
}

export interface Catalogue {
  /** Settles when everything is known; the same for all who ask. */
  load(): Promise<void>
  readonly isLoaded: boolean
  /** `undefined` where the price is not known, or not yet: asking has it loaded. */
  priceOf(model: string, upstream: CatalogueUpstream): Price | undefined
  /** Tokens of prompt and answer together; `undefined` where it is not known, or not yet. */
  contextWindowOf(model: string, upstream: CatalogueUpstream): number | undefined
}

type Package = typeof import('@pydantic/genai-prices')

const PER_MILLION = 1_000_000

/** Models known by name, at each upstream; a model name is the client's to choose. */
const MAX_KNOWN = 1_000
const MAX_NAME = 200

function configuredPrice({
  input,
  output,
  cachedInput,
  cacheWrite,
}: NonNullable<ModelSettings['price']>): Price {
  return {
    costOf(usage) {
      const cached = Math.min(usage.cachedInput ?? 0, usage.input)
      const written = Math.min(usage.cacheWrite ?? 0, usage.input - cached)
      const plain = usage.input - cached - written
      const dollars =
        plain * input +
        cached * (cachedInput ?? input) +
        written * (cacheWrite ?? input) +
        usage.output * output
      return dollars / PER_MILLION
    },
  }
}

/** A provider and the one of its models that a name stands for. */
interface Entry {
  readonly provider: Provider
  readonly model: ModelInfo
}

/** The same for every prompt and at any time, as most prices are: then there is nothing to look up. */
function fixedPrice({ prices }: ModelInfo): Price | undefined {
  if (Array.isArray(prices)) return undefined
  const {
    input_mtok: input,
    output_mtok: output,
    cache_read_mtok: cachedInput,
    cache_write_mtok: cacheWrite,
  } = prices
  const fixed = [input, output, cachedInput, cacheWrite]
  if (typeof input !== 'number' || typeof output !== 'number') return undefined
  if (fixed.some((one) => one !== undefined && typeof one !== 'number') || prices['requests_kcount'])
    return undefined
  return configuredPrice({
    input,
    output,
    ...(typeof cachedInput === 'number' ? { cachedInput } : {}),
    ...(typeof cacheWrite === 'number' ? { cacheWrite } : {}),
  })
}

/** Prices by the package's own rules: tiers by length, times of day, from when on. */
function catalogued({ calcPrice }: Package, { provider, model }: Entry): Price {
  // The one model, whatever it is asked by, so that the package does not go through all of them again.
  const only: Provider = { ...provider, models: [{ ...model, match: { contains: '' } }] }
  return {
    costOf({ input, output, cachedInput = 0, cacheWrite = 0 }) {
      const cached = Math.min(cachedInput, input)
      const usage = {
        input_tokens: input,
        output_tokens: output,
        cache_read_tokens: cached,
        cache_write_tokens: Math.min(cacheWrite, input - cached),
      }
      return calcPrice(usage, model.id, { provider: only })?.total_price ?? 0
    },
  }
}

/** The names under which the catalogue may know a model: its own, and without what gateways put before it. */
function namesOf(model: string): string[] {
  const last = model.slice(model.lastIndexOf('/') + 1)
  return last === model || last === '' ? [model] : [model, last]
}

/** Finds a model at the provider whose API it is called at, else at the one that its name tells. */
function find(
  { calcPrice, findProvider }: Package,
  model: string,
  { name, origin, prefix }: CatalogueUpstream,
): Entry | undefined {
  const nothing = { input_tokens: 0, output_tokens: 0 }
  const known =
    findProvider({ providerApiUrl: origin + prefix }) ?? findProvider({ providerId: name.toLowerCase() })
  for (const provider of [known, undefined]) {
    for (const candidate of namesOf(model)) {
      const found = calcPrice(nothing, candidate, provider ? { provider } : {})
      if (found) return { provider: found.provider, model: found.model }
    }
  }
  return undefined
}

/** What is known of one model at one upstream. */
interface Known {
  readonly price: Price | undefined
  readonly contextWindow: number | undefined
}

/** What is looked for may stand in any of the settings that match: a window in one, a price in another. */
function configured<K extends 'price' | 'contextWindow'>(
  settings: readonly ModelSettings[],
  model: string,
  upstream: string,
  key: K,
): ModelSettings[K] | undefined {
  return settings.find(
    (one) =>
      one[key] !== undefined &&
      (one.upstream === undefined || one.upstream === upstream) &&
      globMatches(one.model, model),
  )?.[key]
}

/** The context window that the configuration gives a model; `upstream` by its name. */
export function configuredWindow(
  settings: readonly ModelSettings[],
  model: string,
  upstream: string,
): number | undefined {
  return configured(settings, model.slice(0, MAX_NAME), upstream, 'contextWindow')
}

/** The catalogue with `settings` before it, the first that match first. */
export function createCatalogue(settings: readonly ModelSettings[]): Catalogue {
  /** By upstream, of which there are as many as are configured, and model. */
  const known = new Map<string, LRUCache<string, Known>>()
  let loaded: Package | undefined
  let loading: Promise<void> | undefined
  const load = (): Promise<void> => {
    loading ??= import('@pydantic/genai-prices').then((found) => {
      loaded = found
    })
    return loading
  }
  const foundIn = (found: Package, model: string, upstream: CatalogueUpstream): Entry | undefined => {
    try {
      return find(found, model, upstream)
    } catch {
      // Nothing is known of what the package stumbles over.
      return undefined
    }
  }

  const knownOf = (given: string, upstream: CatalogueUpstream): Known => {
    const model = given.slice(0, MAX_NAME)
    const before = known.get(upstream.name)?.get(model)
    if (before) return before
    const price = configured(settings, model, upstream.name, 'price')
    const contextWindow = configuredWindow(settings, model, upstream.name)
    const entry = loaded && model !== '' ? foundIn(loaded, model, upstream) : undefined
    const now: Known = {
      price: price
        ? configuredPrice(price)
        : loaded && entry && (fixedPrice(entry.model) ?? catalogued(loaded, entry)),
      contextWindow: contextWindow ?? entry?.model.context_window,
    }
    if (loaded) {
      const models = known.get(upstream.name) ?? new LRUCache({ max: MAX_KNOWN })
      known.set(upstream.name, models.set(model, now))
    } else if (now.price === undefined || now.contextWindow === undefined) load().catch(() => undefined)
    return now
  }
  return {
    load,
    get isLoaded() {
      return loaded !== undefined
    },
    priceOf: (model, upstream) => knownOf(model, upstream).price,
    contextWindowOf: (model, upstream) => knownOf(model, upstream).contextWindow,
  }
}
