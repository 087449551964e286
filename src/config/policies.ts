/** Converts checked settings to the policies of the core. */

import { type Amounts, amountsBy, type LimitSetting, METERS } from '../core/budget/meters.ts'
import type { BudgetSettings, ByRule, Rule } from '../core/budget/policy.ts'
import { buildRegistry, type HarnessRegistry } from '../core/harness/match.ts'
import { HARNESS_TEXTS, SUMMARY_REQUESTS } from '../core/harness/texts.ts'
import type { LoopPolicy } from '../core/loop/policy.ts'
import { ROWS } from '../overflow/rows.ts'
import type { ModelSettings } from '../usage/catalogue.ts'
import type { BudgetConfig } from './budget.ts'
import { withOverride } from './override.ts'
import { customRow } from './quirk-row.ts'
import type { Config } from './schema.ts'

/** Returns the registry of the built-in harness texts and those of the configuration. */
export function registryOf({ sessions: { scaffolding } }: Config): HarnessRegistry {
  const configured = [
    ...scaffolding.tags.map((text) => ({ match: 'tag' as const, text })),
    ...scaffolding.prefixes.map((row) => ({
      match: 'prefix' as const,
      ...(typeof row === 'string' ? { text: row } : row),
    })),
    ...scaffolding.exact.map((text) => ({ match: 'exact' as const, text })),
  ]
  return buildRegistry(
    [...HARNESS_TEXTS, ...configured],
    [...SUMMARY_REQUESTS, ...scaffolding.summary_requests],
  )
}

/** Returns the loop policy and its overrides, in order. */
export function loopGuardOf(config: Config): ByRule<LoopPolicy> {
  const rules = config.overrides.flatMap((override) => {
    if (!override.loop_guard) return []
    const changed = { loop_guard: withOverride(config.loop_guard, override.loop_guard) }
    return [ruleOf(override, loopPolicyOf(changed))]
  })
  return { settings: loopPolicyOf(config), rules }
}

/** Returns the loop policy without its overrides. */
export function loopPolicyOf({ loop_guard: guard }: Pick<Config, 'loop_guard'>): LoopPolicy {
  return {
    enabled: guard.enabled,
    mode: guard.mode,
    repetitionThreshold: guard.repetition_threshold,
    maxWarningsBeforeBlock: guard.max_warnings_before_block,
    exemptTools: guard.exempt_tools,
    standstill: guard.standstill,
    pollMultiplier: guard.poll_multiplier,
    sameCallThreshold: guard.same_call_any_result,
    volatile: guard.volatile,
  }
}

/** Returns the prices and windows of the configuration, in order. */
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

function amountsOf(limits: Readonly<Record<LimitSetting, number>>): Amounts {
  return amountsBy((name) => limits[METERS[name].limit.setting])
}

function settingsOf(budget: BudgetConfig, stop: Config['stop']): BudgetSettings {
  const { texts } = budget
  return {
    announce: budget.announce,
    clientOverride: budget.client_override,
    policy: {
      enabled: budget.enabled,
      run: amountsOf({ ...budget.run, max_iterations: budget.max_iterations }),
      session: amountsOf(budget.session),
      thresholds: {
        style: budget.style,
        caution: budget.caution_threshold,
        warning: budget.warning_threshold,
        adaptive: budget.adaptive,
      },
      trackerEvery: budget.tracker.every,
      channel: budget.channel,
      announce: [],
      cautionWhen: budget.caution_when,
      escalate: budget.escalate,
      dropTools: budget.wrap_up.drop_tools,
      unknownPrice: budget.unknown_price,
      texts: {
        caution: texts.caution,
        warning: texts.warning,
        countdown: texts.countdown,
        countdownLast: texts.countdown_last,
        trackerBegin: texts.tracker_begin,
        tracker: texts.tracker,
        trackerLast: texts.tracker_last,
        contextCaution: texts.context_caution,
        contextWarning: texts.context_warning,
        announce: texts.announce,
        stop: stop.text,
        stopAtLimit: stop.limit_text,
        stopInLoop: stop.loop_text,
        fallback: stop.fallback_text,
        unpriced: stop.unpriced_text,
        operatorStop: stop.operator_text,
        operatorFallback: stop.operator_fallback_text,
      },
    },
  }
}

type Match = Pick<Config['overrides'][number], 'model' | 'upstream' | 'header'>

function ruleOf<Settings>({ model, upstream, header }: Match, settings: Settings): Rule<Settings> {
  const headers = Object.entries(header).map(([name, value]) => [name.toLowerCase(), value] as const)
  return { model, upstream, headers, settings }
}

/** Returns the budget and its overrides, in order. */
export function budgetOf({ budget, stop, overrides }: Config): ByRule<BudgetSettings> {
  const rules = overrides.flatMap((override) => {
    if (!override.budget) return []
    return [ruleOf(override, settingsOf(withOverride(budget, override.budget), stop))]
  })
  return { settings: settingsOf(budget, stop), rules }
}

/** Returns what happens at the end of a run. */
export function stopPolicyOf({ stop }: Config) {
  return { hasFooter: stop.footer, asks: stop.mode === 'ask', askTimeout: stop.ask_timeout }
}

/** Returns the overflow policy; rows of the configuration come before the built-in ones. */
export function overflowPolicyOf({ overflow }: Config) {
  return {
    enabled: overflow.enabled,
    quirks: [...overflow.quirks.map(customRow), ...ROWS],
    canonical: overflow.canonical,
    retriesClamped: overflow.clamp_output_only === 'retry',
    retriesWithoutBeta: overflow.tier_downgrade === 'retry_without_beta',
    effectiveTtl: overflow.effective_ttl,
  }
}
