/** The settings of the budget: limits, the notices about them, and overrides for some requests. */
import * as z from 'zod'
import { DEFAULT_TEXTS, PLACEHOLDERS, unknownPlaceholders } from '../core/budget/budget-notices.ts'
import { LIMITS, type LimitSetting, METERS } from '../core/budget/meters.ts'
import { scopeSections, timeZone, velocity } from './scopes.ts'
import { choice, count, dollars, filled, flag, key, seconds, section, whole } from './units.ts'

const share = z.number().min(0).max(1)
const limit = z.int().min(0)

const VALUES = {
  whole: limit.default(0),
  count: count.prefault(0),
  dollars: dollars.prefault(0),
  seconds: seconds.prefault(0),
}

/** The limits of a run, without iterations, whose limit stands one level higher. */
const limits = {} as Record<Exclude<LimitSetting, 'max_iterations'>, (typeof VALUES)[keyof typeof VALUES]>
const words = new Set<string>()
const units = new Set<string>()
for (const name of LIMITS) {
  const { word, unit, limit } = METERS[name]
  if (limit.setting !== 'max_iterations') limits[limit.setting] = VALUES[limit.value].describe(limit.help)
  words.add(word)
  if (unit !== '') units.add(unit)
}

/** The schema of a text to a model; an unknown placeholder in it is an error. */
export const text = (fallback: string) =>
  z
    .string()
    .min(1)
    .superRefine((template, context) => {
      const unknown = unknownPlaceholders(template)
      if (unknown.length === 0) return
      const message = `unknown placeholder {${unknown.join('}, {')}}: expected {${PLACEHOLDERS.join('}, {')}}`
      context.addIssue({ code: 'custom', message })
    })
    .default(fallback)

const texts = {
  caution: text(DEFAULT_TEXTS.caution).describe('From the caution threshold on.'),
  warning: text(DEFAULT_TEXTS.warning).describe('From the warning threshold on.'),
  countdown: text(DEFAULT_TEXTS.countdown).describe('Style countdown: when three or fewer are left.'),
  countdown_last: text(DEFAULT_TEXTS.countdownLast).describe('Style countdown: when one is left.'),
  tracker_begin: text(DEFAULT_TEXTS.trackerBegin).describe('Style tracker: in the system text.'),
  tracker: text(DEFAULT_TEXTS.tracker).describe('Style tracker: at the end of the input.'),
  tracker_last: text(DEFAULT_TEXTS.trackerLast).describe('Style tracker: in the last call.'),
  context_caution: text(DEFAULT_TEXTS.contextCaution).describe('When the context window is four fifths full.'),
  context_warning: text(DEFAULT_TEXTS.contextWarning).describe('When the context window is nearly full.'),
  announce: text(DEFAULT_TEXTS.announce).describe('The announcement in the system text.'),
}

export const budget = z.strictObject({
  enabled: flag(true).describe('Count and limit runs. false: no notices, and no limits but those of access keys.'),
  max_iterations: key(limit, 300).describe(
    'Model calls per run; 0 is no limit. A run lasts from one human message to the next. An agent must never be ' +
      'worse off with Governor in front: of 1,074 recorded successful runs none needed more than 189, while a limit ' +
      'of 60 would have cut 84 % of the long coding runs among them. For a limit of your own take the 95th ' +
      'percentile of your successful runs.',
  ),
  caution_threshold: key(share, 0.7).describe(
    'Share of the budget used from which Governor tells the model to consolidate.',
  ),
  warning_threshold: key(share, 0.9).describe(
    'Share of the budget used from which Governor tells the model to answer now.',
  ),
  adaptive: flag(true).describe(
    'Start caution with 3 to 30 iterations or tool calls left and warning with 2 to 10, whatever the shares say. ' +
      'So a budget of 5 gets its warning in time, and a budget of 1,000 gets no cautions for 300 iterations.',
  ),
  channel: choice(['auto', 'tool_result', 'system', 'user'], 'auto').describe(
    'Where notices go. auto and tool_result: after the newest tool result or user message, whichever comes later; ' +
      'system and user: in a last message of that role. Governor does not use a channel again for an upstream and ' +
      'model that refused it.',
  ),
  style: choice(['tiers', 'countdown', 'tracker'], 'tiers').describe(
    'When and how Governor states the budget. tiers: caution and warning by the share used. countdown: only when ' +
      'three or fewer iterations or tool calls are left; tokens, money and time have no last three, so they use the ' +
      'shares. tracker: the budget once in the system text, then neutral statements of what is used, and a sentence ' +
      "in the last call. If the model's reasoning is bound to the prompt, or the provider keeps the input, a tracker " +
      'sends only the first and the last of these.',
  ),
  tracker: section({
    every: whole(1, 10_000, 5).describe(
      'Style tracker: iterations between two statements. With fewer than 20 iterations or tool calls left, each ' +
        'request has one.',
    ),
  }).describe('For style tracker.'),
  announce: choice(['auto', 'always', 'never'], 'auto').describe(
    'State the budget once in the system text, the same in every request of a run. auto: with style tracker, or if ' +
      'the client declared the budget itself (x-governor-max-iterations); always, never: in every run, in none.',
  ),
  caution_when: choice(['always', 'stagnating'], 'always').describe(
    'Which runs get cautions. always: all runs; stagnating: only runs that make no progress, with no new call and ' +
      'result among the last 5 calls. Warnings go to all runs.',
  ),
  escalate: flag(true).describe(
    'Repeat an ignored warning as a message of role user, if the upstream accepts one. A model acknowledges a ' +
      'warning if its next message has text or calls no tool.',
  ),
  wrap_up: section({
    drop_tools: key(z.array(filled), [], ['web_*', 'spawn_agent']).describe(
      'Globs of tools that Governor no longer offers to the model from the warning tier on.',
    ),
  }).describe('What else happens at the warning tier.'),
  client_override: key(
    z.union([z.boolean(), z.literal('lower_only')], 'expected one of true, false, lower_only'),
    true,
  ).describe(
    'Honour the request headers x-governor-max-iterations and x-governor-max-tool-calls, and the task_budget of ' +
      'Messages: true, lower_only or false. lower_only: only if they lower the limit.',
  ),
  run: section(limits).describe(
    'Further limits per run; 0 is no limit. A run that reaches any of them ends with an answer.',
  ),
  session: section({
    max_iterations: key(limit, 0).describe('Model calls.'),
    ...limits,
    max_agents: key(limit, 0).describe(
      'Agents that the main one and its agents may start, all together. A call that would start another one is ' +
        'blocked; the other calls of the response pass, and the run goes on.',
    ),
    max_concurrent_agents: key(limit, 0).describe(
      'Agents that run at once, without the main one: each until it answers, Governor ends it, or it asks for ' +
        'nothing for five minutes. One that was started and has not shown up counts for a minute.',
    ),
    max_depth: key(limit, 0).describe(
      'Agents one below the other, without the main one; 1: only the main one starts agents.',
    ),
  }).describe(
    'Limits per session, all its runs and agents together, also agents with a session of their own that name their ' +
      'parent; 0 is no limit.',
  ),
  ...scopeSections,
  time_zone: timeZone,
  velocity,
  unknown_price: choice(['warn', 'estimate', 'refuse'], 'warn').describe(
    'What a limit on cost makes of a model whose price is not known. warn: its calls count nothing, which the log, ' +
      "the webhook, the API and the page say; estimate: they count as calls of the provider's dearest known model; " +
      'refuse: the request is not sent, and the run ends with stop.unpriced_text, as at its limit on cost.',
  ),
  texts: section(texts).describe(
    `What Governor says to the model. Placeholders: {meter} (${[...words].join(', ')}), ` +
      `{unit} (${[...units].join(', ')}; nothing if the numbers show it), {used} or {N}, {max} or {M}, ` +
      '{left} or {M-N}, {period} (today, this hour; nothing for a run). The texts of `stop` take the same ones, and ' +
      '{limit} (iteration, tool call, token, cost, time), ' +
      "{reached} (`the cost limit of this run`, `today's cost limit`), {resets} (the end of the period).",
  ),
})
