/** Amounts as a model reads them: how much is used, the limit, and what is left, which is never less than nothing. */

/** Cuts off what is beyond `decimals`; a hair more than it is worth, as sums of money are never quite round. */
function cut(value: number, decimals: number): number {
  const scale = 10 ** decimals
  return Math.floor(value * scale + 1e-6) / scale
}

/** 850, 12.3k, 850k, 1.4M: never more than there is. */
function short(amount: number, decimals: number): string {
  if (amount < 1_000) return String(Math.floor(amount))
  const [value, letter] = amount < 1_000_000 ? [amount / 1_000, 'k'] : [amount / 1_000_000, 'M']
  const shown = cut(value, letter === 'k' && value >= 100 ? Math.max(0, decimals - 1) : decimals)
  return `${shown}${letter}`
}

/** Limits are said as they are. */
const LIMIT_DECIMALS = 3

/** Cents, unless the whole limit is a few of them. */
function dollarDecimals(max: number): number {
  return max < 0.1 ? 4 : 2
}

export interface FormattedAmounts {
  readonly used: string
  readonly max: string
  readonly left: string
}

const leftOf = (used: number, max: number) => Math.max(0, max - used)

export function whole(used: number, max: number): FormattedAmounts {
  return { used: String(used), max: String(max), left: String(leftOf(used, max)) }
}

export function tokens(used: number, max: number): FormattedAmounts {
  return { used: short(used, 1), max: short(max, LIMIT_DECIMALS), left: short(leftOf(used, max), 1) }
}

export function dollars(used: number, max: number): FormattedAmounts {
  const decimals = dollarDecimals(max)
  const shown = (value: number) => `$${cut(value, decimals).toFixed(decimals)}`
  return { used: shown(used), max: shown(max), left: shown(leftOf(cut(used, decimals), max)) }
}

export function seconds(used: number, max: number): FormattedAmounts {
  const passed = Math.floor(used)
  return { used: `${passed}s`, max: `${max}s`, left: `${Math.ceil(leftOf(passed, max))}s` }
}
