/** Turns settings into what the core works with. */
import type { ModelSettings } from '../catalogue/catalogue.ts'
import type { Amounts } from '../core/budget.ts'
import type { LoopPolicy } from '../core/loop-guard.ts'
import type { BudgetRule, BudgetSettings, BudgetSettingsByRule } from '../core/policy.ts'
import { buildRegistry, type ScaffoldRegistry } from '../core/scaffolding.ts'
import { SCAFFOLDS, SUMMARY_REQUESTS } from '../core/scaffolds.ts'
import { customQuirk } from '../overflow/custom.ts'
import { QUIRKS } from '../overflow/quirks/index.ts'
import type { BudgetConfig, BudgetOverride } from './budget.ts'
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

interface Limits {
  readonly max_tool_calls: number
  readonly max_tokens: number
  readonly max_cost_usd: number
  readonly max_seconds: number
}

function amountsOf(iterations: number, limits: Limits): Amounts {
  return {
    iterations,
    tool_calls: limits.max_tool_calls,
    tokens: limits.max_tokens,
    cost: limits.max_cost_usd,
    seconds: limits.max_seconds,
  }
}

type Budget = Omit<BudgetConfig, 'overrides'>

function settingsOf(budget: Budget, stop: Config['stop']): BudgetSettings {
  const { texts } = budget
  return {
    announce: budget.announce,
    clientOverride: budget.client_override,
    policy: {
      enabled: budget.enabled,
      run: amountsOf(budget.max_iterations, budget.run),
      session: amountsOf(budget.session.max_iterations, budget.session),
      thresholds: {
        style: budget.style,
        caution: budget.caution_threshold,
        warning: budget.warning_threshold,
        adaptive: budget.adaptive,
      },
      channel: budget.channel,
      announce: [],
      cautionWhen: budget.caution_when,
      escalate: budget.escalate,
      dropTools: budget.wrap_up.drop_tools,
      texts: {
        caution: texts.caution,
        warning: texts.warning,
        countdown: texts.countdown,
        countdownLast: texts.countdown_last,
        contextCaution: texts.context_caution,
        contextWarning: texts.context_warning,
        announce: texts.announce,
        stop: stop.text,
        fallback: stop.fallback_text,
      },
    },
  }
}

/** What is given, without the keys that are not. */
function given<T extends object>(keys: T): { [K in keyof T]?: Exclude<T[K], undefined> } {
  const entries = Object.entries(keys).filter(([, value]) => value !== undefined)
  return Object.fromEntries(entries) as { [K in keyof T]?: Exclude<T[K], undefined> }
}

/** A budget with some keys said otherwise. */
function changed(budget: Budget, override: BudgetOverride): Budget {
  const { model: _model, upstream: _upstream, header: _header, ...keys } = override
  const { wrap_up, run, session, texts, ...plain } = keys
  return {
    ...budget,
    ...given(plain),
    wrap_up: { ...budget.wrap_up, ...given(wrap_up ?? {}) },
    run: { ...budget.run, ...given(run ?? {}) },
    session: { ...budget.session, ...given(session ?? {}) },
    texts: { ...budget.texts, ...given(texts ?? {}) },
  }
}

/** The budget and its overrides, in order. */
export function budgetOf({ budget, stop }: Config): BudgetSettingsByRule {
  const rules = budget.overrides.map(
    (override): BudgetRule => ({
      headers: Object.entries(override.header).map(([name, value]) => [name.toLowerCase(), value] as const),
      ...given({ model: override.model, upstream: override.upstream }),
      settings: settingsOf(changed(budget, override), stop),
    }),
  )
  return { ...settingsOf(budget, stop), rules }
}

/** The user's own quirks come before the built-in ones. */
export function overflowPolicyOf({ overflow }: Config) {
  const own = overflow.quirks.map(({ id, match: { status, code, text }, recovery, limit_from: limitFrom }) =>
    customQuirk({
      id,
      match: {
        ...(status === undefined ? {} : { status }),
        ...(code === undefined ? {} : { code }),
        ...(text === undefined ? {} : { text }),
      },
      recovery,
      ...(limitFrom === undefined ? {} : { limitFrom }),
    }),
  )
  return {
    enabled: overflow.enabled,
    quirks: [...own, ...QUIRKS],
    canonical: overflow.canonical,
    retriesClamped: overflow.clamp_output_only === 'retry',
    retriesWithoutBeta: overflow.tier_downgrade === 'retry_without_beta',
    effectiveTtl: overflow.effective_ttl,
  }
}
