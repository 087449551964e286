/** How much of something, in the words a model is told. */
import type { MeterName } from './budget.ts'

/** What each meter is called, and what it counts; a sum of money is its own unit. */
const WORDS: Readonly<Record<MeterName, { readonly meter: string; readonly unit: string }>> = {
  iterations: { meter: 'Iteration', unit: 'iterations' },
  tool_calls: { meter: 'Tool call', unit: 'tool calls' },
  tokens: { meter: 'Tokens', unit: 'tokens' },
  cost: { meter: 'Cost', unit: '' },
  seconds: { meter: 'Time', unit: '' },
  context: { meter: 'Context', unit: 'tokens' },
}

export function wordsOf(name: MeterName): { readonly meter: string; readonly unit: string } {
  return WORDS[name]
}

/** Cuts off what is beyond `decimals`; a hair more than it is worth, as sums of money are never quite round. */
function cut(value: number, decimals: number): number {
  const scale = 10 ** decimals
  return Math.floor(value * scale + 1e-6) / scale
}

/** 850, 12.3k, 850k, 1.4M: never more than there is. */
function short(tokens: number, decimals: number): string {
  if (tokens < 1_000) return String(Math.floor(tokens))
  const [value, letter] = tokens < 1_000_000 ? [tokens / 1_000, 'k'] : [tokens / 1_000_000, 'M']
  const shown = cut(value, letter === 'k' && value >= 100 ? Math.max(0, decimals - 1) : decimals)
  return `${shown}${letter}`
}

/** Limits are said as they are. */
const LIMIT_DECIMALS = 3

/** Cents, unless the whole limit is a few of them. */
function dollarDecimals(max: number): number {
  return max < 0.1 ? 4 : 2
}

export interface Amounts {
  readonly used: string
  readonly max: string
  readonly left: string
}

/** The numbers of a meter as they are said. What is left is never less than nothing. */
export function amountsOf(name: MeterName, used: number, max: number): Amounts {
  const left = Math.max(0, max - used)
  switch (name) {
    case 'iterations':
    case 'tool_calls':
      return { used: String(used), max: String(max), left: String(left) }
    case 'tokens':
    case 'context':
      return { used: short(used, 1), max: short(max, LIMIT_DECIMALS), left: short(left, 1) }
    case 'cost': {
      const decimals = dollarDecimals(max)
      const dollars = (value: number) => `$${cut(value, decimals).toFixed(decimals)}`
      return { used: dollars(used), max: dollars(max), left: dollars(Math.max(0, max - cut(used, decimals))) }
    }
    case 'seconds': {
      const whole = Math.floor(used)
      return { used: `${whole}s`, max: `${max}s`, left: `${Math.max(0, Math.ceil(max - whole))}s` }
    }
  }
}
