/**
 * Every sentence Governor says to a model. The texts are templates. `{meter}` and `{unit}` name what is counted;
 * `{used}`, `{max}` and `{left}` are its numbers, which may also be written `{N}`, `{M}` and `{M-N}`.
 */
import type { Meter, MeterName, Tier } from './budget.ts'

export interface NoticeTexts {
  readonly caution: string
  readonly warning: string
  /** The budget stated once, in the system text. */
  readonly announce: string
  /** Asks for the final answer when a run is stopped. */
  readonly stop: string
  /** Stands in where a stopped model gave no answer. */
  readonly fallback: string
}

/** The placeholders a template may use. */
export const PLACEHOLDERS = ['meter', 'unit', 'used', 'max', 'left', 'N', 'M', 'M-N'] as const

const PLACEHOLDER = /\{([\w-]+)\}/g

export const DEFAULT_TEXTS: NoticeTexts = {
  caution:
    '[BUDGET: {meter} {used}/{max}. You have {left} {unit} left. Start consolidating your work and prepare to provide a final response.]',
  warning:
    '[BUDGET: {meter} {used}/{max}. You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]',
  announce:
    "Tool budget: you have {max} {unit} total. Pace yourself: if you can't fully resolve the task, stop early and return what you have plus the gap, rather than burning the budget on one branch.",
  stop: "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools.",
  fallback: '(Reached max {unit}: {max})',
}

const WORDS: Record<MeterName, { readonly meter: string; readonly unit: string }> = {
  iterations: { meter: 'Iteration', unit: 'iterations' },
  tool_calls: { meter: 'Tool call', unit: 'tool calls' },
}

/** The placeholders in `template` that do not exist; empty when all do. */
export function unknownPlaceholders(template: string): string[] {
  const known: readonly string[] = PLACEHOLDERS
  return [...template.matchAll(PLACEHOLDER)].flatMap(([, name = '']) => (known.includes(name) ? [] : [name]))
}

/** Fills a template in with one meter's numbers; what is left is never said to be less than nothing. */
export function fill(template: string, meter: Meter): string {
  const { meter: name, unit } = WORDS[meter.name]
  const used = String(meter.used)
  const max = String(meter.max)
  const left = String(Math.max(0, meter.max - meter.used))
  const values: Record<string, string> = { meter: name, unit, used, max, left, N: used, M: max, 'M-N': left }
  return template.replace(PLACEHOLDER, (whole, key: string) =>
    Object.hasOwn(values, key) ? (values[key] ?? whole) : whole,
  )
}

/** What the model is told at a tier; nothing below caution. */
export function noticeFor(tier: Tier, meter: Meter, texts: NoticeTexts): string | undefined {
  switch (tier) {
    case 'none':
      return undefined
    case 'caution':
      return fill(texts.caution, meter)
    case 'warning':
      return fill(texts.warning, meter)
  }
}
