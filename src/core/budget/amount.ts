/** Amounts as a model reads them: how much is used, the limit, and how much is left, which is never negative. */

/** Cuts a value off after `decimals`. A hair is added first, because sums of money are never quite round. */
function cut(value: number, decimals: number): number {
  const scale = 10 ** decimals
  return Math.floor(value * scale + 1e-6) / scale
}

/** Returns 850, 12.3k, 850k or 1.4M: rounded down. */
function short(amount: number, decimals: number): string {
  if (amount < 1_000) return String(Math.floor(amount))
  const [value, letter] = amount < 1_000_000 ? [amount / 1_000, 'k'] : [amount / 1_000_000, 'M']
  return `${cut(value, letter === 'k' && value >= 100 ? Math.max(0, decimals - 1) : decimals)}${letter}`
}

/** Decimals of limits, so that they stand as they are configured. */
const LIMIT_DECIMALS = 3

/** The numbers of a meter as texts with their unit sign, such as `$1.20` or `12.3k`. */
export interface FormattedAmounts {
  readonly used: string
  readonly max: string
  readonly left: string
}

const leftOf = (used: number, max: number) => Math.max(0, max - used)

/** Formats counts. */
export function whole(used: number, max: number): FormattedAmounts {
  return { used: String(used), max: String(max), left: String(leftOf(used, max)) }
}

/** Formats tokens: `12.3k`, `1.4M`. */
export function tokens(used: number, max: number): FormattedAmounts {
  return { used: short(used, 1), max: short(max, LIMIT_DECIMALS), left: short(leftOf(used, max), 1) }
}

/** Formats US dollars: `$1.20`. */
export function dollars(used: number, max: number): FormattedAmounts {
  // Cents, unless the whole limit is only a few cents.
  const decimals = max < 0.1 ? 4 : 2
  const format = (value: number) => `$${cut(value, decimals).toFixed(decimals)}`
  return { used: format(used), max: format(max), left: format(leftOf(cut(used, decimals), max)) }
}

/** Formats seconds: `90s`. */
export function seconds(used: number, max: number): FormattedAmounts {
  const passed = Math.floor(used)
  return { used: `${passed}s`, max: `${max}s`, left: `${Math.ceil(leftOf(passed, max))}s` }
}
