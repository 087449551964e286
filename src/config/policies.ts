/** Converts checked settings to the policies of the core. */

import { amountsBy, type LimitSetting, METERS } from '../core/budget/meters.ts'
import type { BudgetSettings, ByRule } from '../core/budget/policy.ts'
import { buildRegistry, type HarnessRegistry } from '../core/harness/match.ts'
import { HARNESS_TEXTS, SUMMARY_REQUESTS } from '../core/harness/texts.ts'
import type { LoopPolicy } from '../core/loop/patterns.ts'
import { ROWS } from '../overflow/rows.ts'
import type { ModelSettings } from '../usage/catalogue.ts'
import { withOverride } from './override.ts'
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
  return buildRegistry([...HARNESS_TEXTS, ...configured], [...SUMMARY_REQUESTS, ...scaffolding.summary_requests])
}

type Camel<Key extends string> = Key extends `${infer First}_${infer Rest}` ? `${First}${Capitalize<Camel<Rest>>}` : Key

type CamelKeys<Section> = { readonly [Key in keyof Section as Camel<Key & string>]: Section[Key] }

/** Returns a section of the file with its keys as code writes them: `max_tokens` is `maxTokens`. */
function camelKeys<Section extends object>(section: Section): CamelKeys<Section> {
  const camel = (key: string) => key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase())
  const entries = Object.entries(section).map(([key, value]) => [camel(key), value])
  return Object.fromEntries(entries) as CamelKeys<Section>
}

/** Returns the settings of a section, and those for the requests that its overrides match, in order. */
function byRule<Key extends 'budget' | 'loop_guard', Settings>(
  config: Config,
  key: Key,
  settingsOf: (section: Config[Key]) => Settings,
): ByRule<Settings> {
  const rules = config.overrides.flatMap(({ [key]: changed, model, upstream, header }) => {
    if (!changed) return []
    const headers = Object.entries(header).map(([name, value]) => [name.toLowerCase(), value] as const)
    return [{ model, upstream, headers, settings: settingsOf(withOverride(config[key], changed)) }]
  })
  return { settings: settingsOf(config[key]), rules }
}

/** Returns the loop policy and its overrides, in order. */
export function loopGuardOf(config: Config): ByRule<LoopPolicy> {
  return byRule(config, 'loop_guard', camelKeys<Config['loop_guard']>)
}

/** Returns the loop policy without its overrides. */
export function loopPolicyOf(config: Config): LoopPolicy {
  return camelKeys(config.loop_guard)
}

/** Returns the prices and windows of the configuration, in order. */
export function modelSettingsOf({ models }: Config): ModelSettings[] {
  return models.map((entry) => ({ ...camelKeys(entry), price: entry.price && camelKeys(entry.price) }))
}

/** Returns the budget and its overrides, in order. */
export function budgetOf(config: Config): ByRule<BudgetSettings> {
  const { stop } = config
  const amountsOf = (limits: Readonly<Record<LimitSetting, number>>) =>
    amountsBy((name) => limits[METERS[name].limit.setting])
  return byRule(config, 'budget', (budget) => {
    const { announce, client_override, max_iterations, style, adaptive, tracker, wrap_up, ...others } = budget
    const { caution_threshold: caution, warning_threshold: warning, ...policy } = others
    return {
      announce,
      clientOverride: client_override,
      policy: {
        ...camelKeys(policy),
        run: amountsOf({ ...policy.run, max_iterations }),
        session: amountsOf(policy.session),
        thresholds: { style, caution, warning, adaptive },
        trackerEvery: tracker.every,
        announce: [],
        dropTools: wrap_up.drop_tools,
        texts: {
          ...camelKeys(policy.texts),
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
  })
}

/** Returns what happens at the end of a run. */
export function stopPolicyOf({ stop }: Config) {
  return { hasFooter: stop.footer, asks: stop.mode === 'ask', askTimeout: stop.ask_timeout }
}

/** Returns the overflow policy; rows of the configuration come before the built-in ones. */
export function overflowPolicyOf({ overflow }: Config) {
  return {
    enabled: overflow.enabled,
    quirks: [...overflow.quirks, ...ROWS],
    canonical: overflow.canonical,
    retriesClamped: overflow.clamp_output_only === 'retry',
    retriesWithoutBeta: overflow.tier_downgrade === 'retry_without_beta',
    effectiveTtl: overflow.effective_ttl,
  }
}
