/** The budget: limits, what a model is told of them and how, and for whom they are different. */
import * as z from 'zod'
import { DEFAULT_TEXTS } from '../core/notice.ts'
import { overrideShape } from './override.ts'
import { template } from './texts.ts'
import { count, headerName } from './units.ts'

const share = z.number().min(0).max(1)
const limit = z.int().min(0)
const glob = z.string().min(1)

const limits = {
  max_tool_calls: limit.default(0).describe('Tool calls, parallel ones counted each; 0 is no limit.'),
  max_tokens: count
    .prefault(0)
    .describe(
      'Tokens of all prompts and answers, as the provider states them, else estimated, say 250k or 2M; 0 is no limit.',
    ),
  max_cost_usd: z
    .number()
    .min(0)
    .default(0)
    .describe('US dollars, for models whose price is known (see models); 0 is no limit.'),
  max_seconds: z.number().min(0).default(0).describe('Seconds since the first request; 0 is no limit.'),
}

const text = (fallback: string, what: string) => template.default(fallback).describe(what)

const texts = {
  caution: text(DEFAULT_TEXTS.caution, 'Said from the caution threshold on.'),
  warning: text(DEFAULT_TEXTS.warning, 'Said from the warning threshold on.'),
  countdown: text(DEFAULT_TEXTS.countdown, 'Style countdown: said when three or fewer are left.'),
  countdown_last: text(DEFAULT_TEXTS.countdownLast, 'Style countdown: said when one is left.'),
  tracker_begin: text(DEFAULT_TEXTS.trackerBegin, 'Style tracker: stated in the system text.'),
  tracker: text(DEFAULT_TEXTS.tracker, 'Style tracker: stated at the end of the input.'),
  tracker_last: text(DEFAULT_TEXTS.trackerLast, 'Style tracker: said in the last call.'),
  context_caution: text(DEFAULT_TEXTS.contextCaution, 'Said when the context window is four fifths full.'),
  context_warning: text(DEFAULT_TEXTS.contextWarning, 'Said when the context window is nearly full.'),
  announce: text(DEFAULT_TEXTS.announce, 'The announcement in the system text.'),
}

const keys = {
  enabled: z.boolean().default(true).describe('Off: no notices and no limits.'),
  max_iterations: limit
    .default(300)
    .describe(
      'Model calls per run, that is from one human message to the next; 0 is no limit. No recorded successful run needed more than 189.',
    ),
  caution_threshold: share
    .default(0.7)
    .describe('Share of the budget used from which the model is told to consolidate.'),
  warning_threshold: share
    .default(0.9)
    .describe('Share of the budget used from which the model is told to answer now.'),
  adaptive: z
    .boolean()
    .default(true)
    .describe(
      'At least 3 iterations or tool calls left when caution starts and 2 when warning starts, and at most 30 and 10, whatever the shares say: a budget of 5 is warned in time and one of 1,000 is not nagged for 300.',
    ),
  channel: z
    .enum(['auto', 'tool_result', 'system', 'user'])
    .default('auto')
    .describe(
      'Where notices go. auto: after the newest tool result or user message, whichever comes later; system, user: a last message of that role. A channel that a provider refuses is not used again for that upstream and model.',
    ),
  style: z
    .enum(['tiers', 'countdown', 'tracker'])
    .default('tiers')
    .describe(
      'tiers: caution and warning by the share used; countdown: only when three or fewer iterations or tool calls are left; tracker: the budget stated once in the system text, then neutral statements of what is used, and a sentence in the last call.',
    ),
  tracker: z
    .strictObject({
      every: z
        .int()
        .min(1)
        .max(10_000)
        .default(5)
        .describe('Iterations between two statements; with fewer than 20 left there is one in each.'),
    })
    .prefault({})
    .describe('Style tracker.'),
  announce: z
    .enum(['auto', 'always', 'never'])
    .default('auto')
    .describe(
      'State the budget once in the system text, the same in every request of a run. auto: with style tracker, or when the client declared the budget itself (x-governor-max-iterations).',
    ),
  caution_when: z
    .enum(['always', 'stagnating'])
    .default('always')
    .describe(
      'stagnating: caution only runs that make no progress, with no new call and result among the last 5. Warnings are given all the same.',
    ),
  escalate: z
    .boolean()
    .default(true)
    .describe(
      'A warning that was ignored comes back as a message of role user, where the upstream takes one. A model heeds a warning if its next message has text or calls no tool.',
    ),
  wrap_up: z
    .strictObject({
      drop_tools: z
        .array(glob)
        .default([])
        .describe('Globs of tools that are no longer offered once the warning tier is reached.'),
    })
    .prefault({})
    .describe('What else happens at the warning tier.'),
  client_override: z
    .union([z.boolean(), z.literal('lower_only')], { error: 'expected one of true, false, lower_only' })
    .default(true)
    .describe(
      'Honour the request headers x-governor-max-iterations and x-governor-max-tool-calls: always, only where they lower the limit, or never.',
    ),
  run: z.strictObject(limits).prefault({}).describe('Further limits per run.'),
  session: z
    .strictObject({
      max_iterations: limit.default(0).describe('Model calls of all runs together; 0 is no limit.'),
      ...limits,
    })
    .prefault({})
    .describe('Limits per session: all its runs and all its sub-agents together.'),
  texts: z
    .strictObject(texts)
    .prefault({})
    .describe(
      'What the model is told. Placeholders: {meter}, {unit}, {used} or {N}, {max} or {M}, {left} or {M-N}.',
    ),
}

/** What an override goes by: all that is given must match. */
export const overrideMatch = {
  model: glob.optional().describe('Glob of model names.'),
  upstream: z.string().min(1).optional().describe('Name of an upstream.'),
  header: z
    .record(headerName, z.string().min(1))
    .default({})
    .describe('Request headers that must be there, with globs of their values.'),
}

/** Any key of the budget. */
export const budgetOverride = z.strictObject(overrideShape(keys))

interface Thresholds {
  readonly caution_threshold: number
  readonly warning_threshold: number
}

/** Two thresholds in the wrong order would warn before they caution; says so, with what holds where one is not given. */
export function outOfOrder(
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
    ...keys,
    overrides: z
      .array(z.strictObject({ ...overrideMatch, ...budgetOverride.shape }))
      .default([])
      .describe(
        'Other budgets for some requests, as older files have them; the top-level overrides come first. The first entry that matches counts; what it does not say is as above.',
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
