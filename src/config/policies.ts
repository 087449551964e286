/** Turns settings into what the core works with. */
import type { ModelSettings } from '../catalogue/catalogue.ts'
import type { LoopPolicy } from '../core/loop-guard.ts'
import { buildRegistry, type ScaffoldRegistry } from '../core/scaffolding.ts'
import { SCAFFOLDS, SUMMARY_REQUESTS } from '../core/scaffolds.ts'
import type { Config } from './schema.ts'

/** What is known to be a harness's word and not a human's: the built-in texts and those of the configuration. */
export function registryOf({ sessions: { scaffolding } }: Config): ScaffoldRegistry {
  const own = [
    ...scaffolding.tags.map((text) => ({ match: 'tag' as const, text })),
    ...scaffolding.prefixes.map((text) => ({ match: 'prefix' as const, text })),
    ...scaffolding.exact.map((text) => ({ match: 'exact' as const, text })),
  ]
  return buildRegistry([...SCAFFOLDS, ...own], [...SUMMARY_REQUESTS, ...scaffolding.summary_requests])
}

export function loopPolicyOf({ loop_guard: guard }: Config): LoopPolicy {
  return {
    enabled: guard.enabled,
    mode: guard.mode,
    windowSize: guard.window_size,
    repetitionThreshold: guard.repetition_threshold,
    maxWarningsBeforeBlock: guard.max_warnings_before_block,
    exemptTools: guard.exempt_tools,
    pollMultiplier: guard.poll_multiplier,
    sameCallThreshold: guard.same_call_any_result,
    volatile: guard.volatile,
  }
}

export function modelSettingsOf({ models }: Config): ModelSettings[] {
  return models.map(({ model, upstream, context_window: contextWindow, price }) => ({
    model,
    ...(upstream === undefined ? {} : { upstream }),
    ...(contextWindow === undefined ? {} : { contextWindow }),
    ...(price === undefined
      ? {}
      : {
          price: {
            input: price.input,
            output: price.output,
            ...(price.cached_input === undefined ? {} : { cachedInput: price.cached_input }),
            ...(price.cache_write === undefined ? {} : { cacheWrite: price.cache_write }),
          },
        }),
  }))
}
