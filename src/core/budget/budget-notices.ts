/**
 * The texts about budgets that Governor sends to a model, and the tiers: how urgent a notice is, by the share of the
 * budget that is used. Texts are templates: `{meter}` and `{unit}` name what is counted, `{limit}` its limit; `{used}`,
 * `{max}` and `{left}` are its numbers, also written `{N}`, `{M}` and `{M-N}`. `{period}` is `today` for a limit of a
 * day, `{reached}` its name in a sentence, such as `today's cost limit`, and `{resets}` its end.
 */
import { isNameIn, namesOf } from '../names.ts'
import { METERS, type Meter, type MeterRow } from './meters.ts'
import { scopeRow } from './scopes.ts'

/** A placeholder, and the space before it. */
const PLACEHOLDER = /( ?)\{([\w-]+)\}/g

/** The end of texts that ask for the final answer. */
export const ANSWER_NOW =
  "Please provide a final response summarizing what you've found and accomplished so far, " +
  'without calling any more tools.'

const PREPARE = 'Start consolidating your work and prepare to provide a final response.'
const FINISH = 'You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.'

/** The texts that are used unless the configuration sets others. */
export const DEFAULT_TEXTS = {
  caution: `[BUDGET: {meter} {used}/{max} {period}. You have {left} {unit} left. ${PREPARE}]`,
  warning: `[BUDGET: {meter} {used}/{max} {period}. ${FINISH}]`,
  countdown: '[budget: {left} of {max} {unit} left {period} — wrap up soon]',
  countdownLast: '[budget: {left} of {max} {unit} left {period} — finalize now]',
  /** Style tracker: once, in the system text. */
  trackerBegin:
    'Budget: {max} {unit} for this task. Explore early. From 30% left on, converge on an answer. ' +
    'From 10% left on, verify and write up. The budget need not be used up.',
  /** Style tracker: at the end of the input. */
  tracker: '[budget: {used} of {max} {unit} used {period}, {left} left]',
  trackerLast: 'This is the last call: give your answer, and say what is unfinished.',
  /** About a context window that is filling up. */
  contextCaution: `[CONTEXT: {used}/{max} tokens used. You have {left} tokens left. ${PREPARE}]`,
  contextWarning: `[CONTEXT: {used}/{max} tokens used. ${FINISH}]`,
  /** States the budget once, in the system text. */
  announce:
    "Tool budget: you have {max} {unit} total. Pace yourself: if you can't fully resolve the task, stop early " +
    'and return what you have plus the gap, rather than burning the budget on one branch.',
  /** Asks the model of a run that reached its limit on iterations or tool calls for its final answer. */
  stop: `You've reached the maximum number of tool-calling iterations allowed. ${ANSWER_NOW}`,
  /** The same at a limit on cost, tokens or time. */
  stopAtLimit: `You've reached {reached}. ${ANSWER_NOW}`,
  stopInLoop: `You've been repeating the same action without progress. ${ANSWER_NOW}`,
  /** The answer of a stopped run whose model gave none. */
  fallback: '(Reached max {unit} {period}: {max})',
  /** The answer of a run that may not go on, as the price of its model is not known. */
  unpriced:
    'This request was not sent to the model: its price is not known, and there is a limit on cost of {max}. ' +
    'Set a price for the model (models), or budget.unknown_price to warn or estimate.',
  /** The answer to what begins once a limit of a scope of time is reached. */
  closed:
    'Governor has not sent this request to the model: {reached}, {max}, is used up, or requests in flight hold the ' +
    'rest of it. It begins anew at {resets}; until then an operator can raise it (governor budget).',
  /** The same, above a limit on the rate. */
  tooFast:
    'Governor has not sent this request to the model: {reached}, {max}, is used up. Send the last message again at ' +
    '{resets}.',
  operatorStop:
    'An operator has stopped this run. Please provide a final response summarizing what you have found and ' +
    'accomplished so far, without calling any more tools.',
  operatorFallback: '(Stopped by an operator)',
  /** What a paused agent gets in place of an answer. */
  paused:
    'An operator has paused this agent: it gets no answer of the model until it is resumed. Nothing is lost: send ' +
    'the last message again then.',
}

export type NoticeTexts = Readonly<typeof DEFAULT_TEXTS>

/** Returns what each placeholder stands for. */
function wordsOf(meter: Meter) {
  const { word, unit, limit, format }: MeterRow = METERS[meter.name]
  const { used, max, left } = format(meter.used, meter.max)
  const noun = limit?.noun ?? ''
  const { words: period, limit: reached } = scopeRow(meter.scope)
  const numbers = { used, max, left, N: used, M: max, 'M-N': left }
  const ofScope = { period, reached: reached(noun), resets: meter.time?.resets ?? '' }
  return { meter: word, unit, limit: noun, ...numbers, ...ofScope }
}

/** The placeholders a template may use. */
export const PLACEHOLDERS: readonly string[] = namesOf(wordsOf({ name: 'iterations', used: 0, max: 0 }))

/** Returns the placeholders in `template` that do not exist. */
export function unknownPlaceholders(template: string): string[] {
  const names = [...template.matchAll(PLACEHOLDER)].map(([, , name = '']) => name)
  return names.filter((name) => !PLACEHOLDERS.includes(name))
}

/** Fills in a template with the numbers of one meter. An empty word goes with the space before it. */
export function fill(template: string, meter: Meter): string {
  const words = wordsOf(meter)
  return template.replace(PLACEHOLDER, (placeholder, space: string, key: string) => {
    const text = isNameIn(words, key) ? words[key] : placeholder.trimStart()
    return text === '' ? '' : space + text
  })
}

/** The urgency of a notice: `none` sends no notice. */
export type Tier = 'none' | 'caution' | 'warning'

/** `tiers`: by the share used. `countdown`: at the last three. `tracker`: the budget once, then what was used. */
type Style = 'tiers' | 'countdown' | 'tracker'

/** The settings that decide the tier of a meter. */
export interface Thresholds {
  readonly style: Style
  /** Shares of the budget, 0 to 1, at which the tiers start. */
  readonly caution: number
  readonly warning: number
  /** Tiers of small budgets start earlier, and those of large ones later: see `FLOORS`. */
  readonly adaptive: boolean
}

/**
 * How many units are left when a tier starts, with `adaptive`. With fixed shares, an agent with 5 iterations would hear
 * of it when one is left, which is too late, and one with 1,000 when 300 are left, which is nagging.
 */
const FLOORS = { caution: { least: 3, most: 30 }, warning: { least: 2, most: 10 } } as const

/** How many units are left when the tiers of a countdown start, and when a tracker begins to state each request. */
const COUNTDOWN = { caution: 3, warning: 1 } as const
const TRACKER_NEAR_END = 20

/**
 * How many steps of a run are left of a scope of time when a tier starts. By the share used, each run in the last part
 * of a day would have to end with its first request.
 */
const STEPS = { caution: 10, warning: 3 } as const

/** Shares of a limit on the rate at which its tiers start: the warning tells that it is reached. */
const RATE = { caution: 0.5, warning: 1 } as const

/** True if tier `name` is reached. It compares shares, not products: 42/60 and 0.7 are the same double. */
function reached(
  name: 'caution' | 'warning',
  { name: meter, used, max, scope, time }: Meter,
  thresholds: Thresholds,
): boolean {
  const { tiers, isCounted }: MeterRow = METERS[meter]
  const left = max - used
  if (scope === 'minute') return used / max >= RATE[name]
  if (time) return time.step !== undefined && time.left < STEPS[name] * time.step
  if (isCounted && thresholds.style === 'countdown') return left <= COUNTDOWN[name]
  if (isCounted && thresholds.adaptive) {
    const { least, most } = FLOORS[name]
    if (left <= least || left > most) return left <= least
  }
  return used / max >= (tiers?.[name].share ?? thresholds[name])
}

/** True if a tracker states this meter at this iteration (from 1). `every`: iterations between two statements. */
export function isStatementDue({ name, used, max }: Meter, iteration: number, every: number): boolean {
  const { isCounted }: MeterRow = METERS[name]
  return (isCounted && max - used < TRACKER_NEAR_END) || iteration % every === 0
}

/** True if this is certainly the last call before the run is stopped. Tokens, cost and time never tell it. */
export function isLastCall({ name, used, max }: Meter): boolean {
  const { isCounted, includesCurrent }: MeterRow = METERS[name]
  return isCounted === true && max - used <= (includesCurrent ? 0 : 1)
}

/** Returns the tier of one meter; `none` if nothing is used yet. */
export function tierOf(meter: Meter, thresholds: Thresholds): Tier {
  if (meter.max <= 0 || meter.used <= 0) return 'none'
  if (reached('warning', meter, thresholds)) return 'warning'
  return reached('caution', meter, thresholds) ? 'caution' : 'none'
}

/** Returns the highest tier, with the meter that has it; among equals, the one with the largest share used. */
export function pressureOf(meters: readonly Meter[], thresholds: Thresholds) {
  const ranks = { none: 0, caution: 1, warning: 2 }
  let highest: { readonly tier: Tier; readonly meter: Meter } | undefined
  for (const meter of meters) {
    const tier = tierOf(meter, thresholds)
    const above = highest ? ranks[tier] - ranks[highest.tier] : 1
    const isFuller = highest && meter.used / meter.max > highest.meter.used / highest.meter.max
    if (above > 0 || (above === 0 && isFuller)) highest = { tier, meter }
  }
  return highest
}

/** Returns the notice for a tier. For style `tracker` see `trackerNotice` in decide.ts. */
export function noticeFor(tier: Exclude<Tier, 'none'>, meter: Meter, texts: NoticeTexts, style?: Style): string {
  const { tiers }: MeterRow = METERS[meter.name]
  if (tiers) return fill(texts[tiers[tier].text], meter)
  if (style === 'countdown') return fill(tier === 'warning' ? texts.countdownLast : texts.countdown, meter)
  return fill(texts[tier], meter)
}
