import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  DEFAULT_TEXTS,
  fill,
  isStatementDue,
  noticeFor,
  PLACEHOLDERS,
  pressureOf,
  unknownPlaceholders,
} from '../../../src/core/budget/budget-notices.ts'
import type { Meter } from '../../../src/core/budget/meters.ts'

const iterations = (used: number, max: number): Meter => ({ name: 'iterations', used, max })
const toolCalls = (used: number, max: number): Meter => ({ name: 'tool_calls', used, max })

describe('a notice', () => {
  it.each([
    [
      'caution',
      iterations(14, 20),
      '[BUDGET: Iteration 14/20. You have 6 iterations left. Start consolidating your work and prepare to provide a final response.]',
    ],
    [
      'warning',
      iterations(54, 60),
      '[BUDGET: Iteration 54/60. You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]',
    ],
    [
      'caution',
      toolCalls(14, 20),
      '[BUDGET: Tool call 14/20. You have 6 tool calls left. Start consolidating your work and prepare to provide a final response.]',
    ],
    [
      'warning',
      toolCalls(18, 20),
      '[BUDGET: Tool call 18/20. You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]',
    ],
  ] as const)('of tier %s for %o is %s', (tier, meter, text) => {
    expect(noticeFor(tier, meter, DEFAULT_TEXTS)).toBe(text)
  })

  it.each([
    ['caution', 'countdown', DEFAULT_TEXTS.countdown],
    ['warning', 'countdown', DEFAULT_TEXTS.countdownLast],
    ['caution', 'tiers', DEFAULT_TEXTS.caution],
    ['warning', 'tiers', DEFAULT_TEXTS.warning],
  ] as const)('of tier %s in the style %s has the text of both', (tier, style, text) => {
    const meter = iterations(58, 60)
    expect(noticeFor(tier, meter, DEFAULT_TEXTS, style)).toBe(fill(text, meter))
  })

  it.each([
    ['iterations', 41, 1, true],
    ['iterations', 40, 1, false],
    ['iterations', 40, 5, true],
    ['iterations', 30, 6, false],
    ['tokens', 59, 6, false],
    ['tokens', 59, 10, true],
  ] as const)(
    'of a tracker that states every fifth request, with %s at %i of 60, is due in request %i: %s',
    (...row) => {
      const [name, used, at, isDue] = row
      expect(isStatementDue({ name, used, max: 60 }, at, 5)).toBe(isDue)
    },
  )

  it('is about the meter of the highest tier; of several, about the one with the largest share used', () => {
    const thresholds = { style: 'tiers', caution: 0.7, warning: 0.9, adaptive: false } as const
    const meters = [iterations(75, 100), toolCalls(80, 100), iterations(10, 100), toolCalls(78, 100)]
    expect(pressureOf(meters, thresholds)).toEqual({ tier: 'caution', meter: toolCalls(80, 100) })
    expect(pressureOf([...meters, iterations(90, 100)], thresholds)).toEqual({
      ...{ tier: 'warning', meter: iterations(90, 100) },
    })
    expect(pressureOf([], thresholds)).toBeUndefined()
  })

  it('asks a stopped model for its answer, and replaces a missing answer', () => {
    expect(fill(DEFAULT_TEXTS.stop, iterations(61, 60))).toBe(
      "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools.",
    )
    expect(fill(DEFAULT_TEXTS.fallback, iterations(61, 60))).toBe('(Reached max iterations: 60)')
    expect(fill(DEFAULT_TEXTS.announce, iterations(1, 60))).toBe(
      "Tool budget: you have 60 iterations total. Pace yourself: if you can't fully resolve the task, stop early and return what you have plus the gap, rather than burning the budget on one branch.",
    )
  })
})

describe('a template', () => {
  it('may use every placeholder, and each is replaced by its value', () => {
    const values: Record<string, string> = Object.fromEntries(
      PLACEHOLDERS.map((name) => [name, fill(`{${name}}`, toolCalls(3, 20))]),
    )
    expect(values).toMatchObject({ meter: 'Tool call', unit: 'tool calls', used: '3', max: '20', left: '17' })
    for (const value of Object.values(values)) expect(value).not.toContain('{')
  })

  it.each([
    ['{used} of {maximum}', ['maximum']],
    ['{Used}{remaining}', ['Used', 'remaining']],
    ['{constructor} {__proto__}', ['constructor', '__proto__']],
    ['{"json": true} {} { used } {used}/{max}', []],
  ])('such as %j has the unknown placeholders %j', (template, unknown) => {
    expect(unknownPlaceholders(template)).toEqual(unknown)
  })

  it('keeps text that is not a placeholder', () => {
    expect(fill('{a} {constructor} {} $& {used}', iterations(3, 20))).toBe('{a} {constructor} {} $& 3')
  })

  it('never says that a negative amount is left', () => {
    fc.assert(
      fc.property(fc.nat({ max: 200 }), fc.integer({ min: 1, max: 100 }), (used, max) => {
        expect(fill('{left}', iterations(used, max))).toBe(String(Math.max(0, max - used)))
      }),
      { numRuns: 100 },
    )
  })
})
