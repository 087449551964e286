/** Converts checked settings to the policies of the core. */
import { amountsBy, type LimitSetting, METERS } from '../core/budget/meters.ts'
import type { BudgetSettings, ByRule, Rule } from '../core/budget/policy.ts'
import { buildRegistry, type HarnessRegistry, type HarnessText } from '../core/harness/match.ts'
import { HARNESS_TEXTS, SUMMARY_REQUESTS } from '../core/harness/texts.ts'
import type { LoopPolicy } from '../core/loop/patterns.ts'
import { ROWS } from '../overflow/rows.ts'
import { withOverride } from './override.ts'
import type { Config } from './schema.ts'
import { calendarOf, scopesOf, velocityOf } from './scopes.ts'

/** What a configured text says if it stands for a history, or asks for a summary of one. */
const OF_HISTORY = /summar|compact|continued from/i

/** Returns the registry of the built-in harness texts and those of the configuration. */
export function registryOf({ sessions: { scaffolding } }: Config): HarnessRegistry {
  const { tags, prefixes, exact, summary_requests } = scaffolding
  const configured: HarnessText[] = [
    ...tags.map((text) => ({ match: 'tag', text }) as const),
    ...prefixes.map((row) => ({ match: 'prefix', ...(typeof row === 'string' ? { text: row } : row) }) as const),
    ...exact.map((text) => ({ match: 'exact', text }) as const),
  ]
  const own = configured.map((row) => ({ ...row, ofHistory: OF_HISTORY.test(row.text) }))
  return buildRegistry([...HARNESS_TEXTS, ...own], [...SUMMARY_REQUESTS, ...summary_requests])
}

type Camel<Key extends string> = Key extends `${infer First}_${infer Rest}` ? `${First}${Capitalize<Camel<Rest>>}` : Key

type CamelKeys<Section> = { readonly [Key in keyof Section as Camel<Key & string>]: Section[Key] }

/** Returns a section of the file with its keys as code writes them: `max_tokens` is `maxTokens`. */
function camelKeys<Section extends object>(section: Section): CamelKeys<Section> {
  const camel: Record<string, unknown> = {}
  for (const [key, value] of Object.entries(section))
    camel[key.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase())] = value
  return camel as CamelKeys<Section>
}

/** Returns the settings of a section, and those for the requests that its overrides match, in order. */
function byRule<Key extends 'budget' | 'loop_guard', Settings>(
  config: Config,
  key: Key,
  settingsOf: (section: Config[Key]) => Settings,
): ByRule<Settings> {
  const rules: Rule<Settings>[] = []
  for (const { [key]: changed, model, upstream, header } of config.overrides) {
    if (!changed) continue
    const settings = settingsOf(withOverride(config[key], changed))
    rules.push({ model, upstream, headers: Object.entries(header), settings })
  }
  return { settings: settingsOf(config[key]), rules }
}

function budgetOf(budget: Config['budget'], { stop, agents }: Config): BudgetSettings {
  const { announce, client_override, max_iterations, style, adaptive, tracker, wrap_up, ...others } = budget
  const { caution_threshold: caution, warning_threshold: warning, ...policy } = others
  const { max_agents, max_concurrent_agents, max_depth } = policy.session
  const amountsOf = (limits: Readonly<Record<LimitSetting, number>>) =>
    amountsBy((name) => limits[METERS[name].limit.setting])
  return {
    announce,
    clientOverride: client_override,
    policy: {
      ...camelKeys(policy),
      run: amountsOf({ ...policy.run, max_iterations }),
      session: amountsOf(policy.session),
      scopes: budget.enabled ? scopesOf(budget) : [],
      velocity: budget.enabled ? velocityOf(budget.velocity) : undefined,
      calendar: calendarOf(budget.time_zone),
      agents: { total: max_agents, concurrent: max_concurrent_agents, depth: max_depth },
      spawnTools: agents.spawn_tools,
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
        closed: stop.closed_text,
        tooFast: stop.rate_text,
        operatorStop: stop.operator_text,
        operatorFallback: stop.operator_fallback_text,
        paused: stop.paused_text,
      },
    },
  }
}

/** Returns the policies, which a reload changes. Rows of the configuration come before the built-in ones. */
export function policiesOf(config: Config) {
  const { overflow, storm, stop, mode } = config
  return {
    loop: byRule<'loop_guard', LoopPolicy>(config, 'loop_guard', camelKeys),
    budget: byRule(config, 'budget', (budget) => budgetOf(budget, config)),
    overflow: {
      enabled: overflow.enabled,
      quirks: [...overflow.quirks, ...ROWS],
      canonical: overflow.canonical,
      retriesClamped: overflow.clamp_output_only === 'retry',
      retriesWithoutBeta: overflow.tier_downgrade === 'retry_without_beta',
      effectiveTtl: overflow.effective_ttl,
    },
    storm,
    stop: { hasFooter: stop.footer, asks: stop.mode === 'ask', askTimeout: stop.ask_timeout },
    observesOnly: mode === 'observe',
  }
}
