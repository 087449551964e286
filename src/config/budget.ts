/** The budget: limits, what a model is told of them and how, and for whom they are different. */
import * as z from 'zod'
import { DEFAULT_TEXTS } from '../core/notice.ts'
import { template } from './texts.ts'
import { headerName } from './units.ts'

const share = z.number().min(0).max(1)
const limit = z.int().min(0)
const glob = z.string().min(1)

const limits = {
  max_tool_calls: limit.describe('Tool calls, parallel ones counted each; 0 is no limit.'),
  max_tokens: limit.describe(
    'Tokens of all prompts and answers, as the provider states them, else estimated; 0 is no limit.',
  ),
  max_cost_usd: z
    .number()
    .min(0)
    .describe('US dollars, for models whose price is known (see models); 0 is no limit.'),
  max_seconds: z.number().min(0).describe('Seconds since the first request; 0 is no limit.'),
}

const iterations = limit.describe(
  'Model calls per run, that is from one human message to the next; 0 is no limit.',
)

const sessionIterations = limit.describe('Model calls of all runs together; 0 is no limit.')

const texts = {
  caution: template.describe('Said from the caution threshold on.'),
  warning: template.describe('Said from the warning threshold on.'),
  countdown: template.describe('Style countdown: said when three or fewer are left.'),
  countdown_last: template.describe('Style countdown: said when one is left.'),
  context_caution: template.describe('Said when the context window is four fifths full.'),
  context_warning: template.describe('Said when the context window is nearly full.'),
  announce: template.describe('The announcement in the system text.'),
}

const keys = {
  enabled: z.boolean().describe('Off: no notices and no limits.'),
  max_iterations: iterations,
  caution_threshold: share.describe('Share of the budget used from which the model is told to consolidate.'),
  warning_threshold: share.describe('Share of the budget used from which the model is told to answer now.'),
  adaptive: z
    .boolean()
    .describe(
      'At least 3 iterations or tool calls left when caution starts and 2 when warning starts, and at most 30 and 10, whatever the shares say: a budget of 5 is warned in time and one of 1,000 is not nagged for 300.',
    ),
  channel: z
    .enum(['auto', 'tool_result', 'system', 'user'])
    .describe(
      'Where notices go. auto: after the newest tool result or user message, whichever comes later; system, user: a last message of that role. A channel that a provider refuses is not used again for that upstream and model.',
    ),
  style: z
    .enum(['tiers', 'countdown'])
    .describe(
      'tiers: caution and warning by the share used; countdown: only when three or fewer iterations or tool calls are left.',
    ),
  announce: z
    .enum(['auto', 'always', 'never'])
    .describe(
      'State the budget once in the system text, the same in every request of a run. auto: when the client declared the budget itself (x-governor-max-iterations).',
    ),
  caution_when: z
    .enum(['always', 'stagnating'])
    .describe(
      'stagnating: caution only runs that make no progress, with no new call and result among the last 5. Warnings are given all the same.',
    ),
  escalate: z
    .boolean()
    .describe(
      'A warning that was ignored comes back as a message of role user, where the upstream takes one. A model heeds a warning if its next message has text or calls no tool.',
    ),
  client_override: z
    .union([z.boolean(), z.literal('lower_only')], { error: 'expected one of true, false, lower_only' })
    .describe(
      'Honour the request headers x-governor-max-iterations and x-governor-max-tool-calls: always, only where they lower the limit, or never.',
    ),
}

const dropTools = z
  .array(glob)
  .describe('Globs of tools that are no longer offered once the warning tier is reached.')

type Shape = Readonly<Record<string, z.ZodType>>

/** The same keys, none of which has to be there. */
function optional<S extends Shape>(shape: S): { [K in keyof S]: z.ZodOptional<S[K]> } {
  const entries = Object.entries(shape).map(([key, schema]) => [key, schema.optional()])
  return Object.fromEntries(entries) as { [K in keyof S]: z.ZodOptional<S[K]> }
}

const override = z.strictObject({
  model: glob.optional().describe('Glob of model names.'),
  upstream: z.string().min(1).optional().describe('Name of an upstream.'),
  header: z
    .record(headerName, z.string().min(1))
    .default({})
    .describe('Request headers that must be there, with globs of their values.'),
  ...optional(keys),
  wrap_up: z.strictObject({ drop_tools: dropTools.optional() }).optional(),
  run: z.strictObject(optional(limits)).optional(),
  session: z.strictObject(optional({ max_iterations: sessionIterations, ...limits })).optional(),
  texts: z.strictObject(optional(texts)).optional(),
})

export type BudgetOverride = z.output<typeof override>

interface Thresholds {
  readonly caution_threshold: number
  readonly warning_threshold: number
}

/** Two thresholds in the wrong order would warn before they caution; says so, with what holds where one is not given. */
function outOfOrder(
  given: { readonly [key in keyof Thresholds]?: number | undefined },
  base: Thresholds,
): string | undefined {
  const caution = given.caution_threshold ?? base.caution_threshold
  const warning = given.warning_threshold ?? base.warning_threshold
  if (caution <= warning) return undefined
  return `${caution} is above warning_threshold, ${warning}: expected at most as much`
}

export const budget = z
  .strictObject({
    enabled: keys.enabled.default(true),
    max_iterations: keys.max_iterations.default(300),
    caution_threshold: keys.caution_threshold.default(0.7),
    warning_threshold: keys.warning_threshold.default(0.9),
    adaptive: keys.adaptive.default(true),
    channel: keys.channel.default('auto'),
    style: keys.style.default('tiers'),
    announce: keys.announce.default('auto'),
    caution_when: keys.caution_when.default('always'),
    escalate: keys.escalate.default(true),
    wrap_up: z
      .strictObject({ drop_tools: dropTools.default([]) })
      .prefault({})
      .describe('What else happens at the warning tier.'),
    client_override: keys.client_override.default(true),
    run: z
      .strictObject({
        max_tool_calls: limits.max_tool_calls.default(0),
        max_tokens: limits.max_tokens.default(0),
        max_cost_usd: limits.max_cost_usd.default(0),
        max_seconds: limits.max_seconds.default(0),
      })
      .prefault({})
      .describe('Further limits per run.'),
    session: z
      .strictObject({
        max_iterations: sessionIterations.default(0),
        max_tool_calls: limits.max_tool_calls.default(0),
        max_tokens: limits.max_tokens.default(0),
        max_cost_usd: limits.max_cost_usd.default(0),
        max_seconds: limits.max_seconds.default(0),
      })
      .prefault({})
      .describe('Limits per session: all its runs and all its sub-agents together.'),
    overrides: z
      .array(override)
      .default([])
      .describe(
        'Other budgets for some requests: any key of the budget, for a model, an upstream, or what a header says. The first entry that matches counts; what it does not say is as above.',
      ),
    texts: z
      .strictObject({
        caution: texts.caution.default(DEFAULT_TEXTS.caution),
        warning: texts.warning.default(DEFAULT_TEXTS.warning),
        countdown: texts.countdown.default(DEFAULT_TEXTS.countdown),
        countdown_last: texts.countdown_last.default(DEFAULT_TEXTS.countdownLast),
        context_caution: texts.context_caution.default(DEFAULT_TEXTS.contextCaution),
        context_warning: texts.context_warning.default(DEFAULT_TEXTS.contextWarning),
        announce: texts.announce.default(DEFAULT_TEXTS.announce),
      })
      .prefault({})
      .describe(
        'What the model is told. Placeholders: {meter}, {unit}, {used} or {N}, {max} or {M}, {left} or {M-N}.',
      ),
  })
  .superRefine((value, context) => {
    const message = outOfOrder(value, value)
    if (message) context.addIssue({ code: 'custom', path: ['caution_threshold'], message })
    for (const [at, one] of value.overrides.entries()) {
      const problem = outOfOrder(one, value)
      const path = ['overrides', at, 'caution_threshold']
      if (problem) context.addIssue({ code: 'custom', path, message: problem })
    }
  })

export type BudgetConfig = z.output<typeof budget>
