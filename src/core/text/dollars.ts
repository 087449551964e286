/** Amounts of dollars as people read them. */

/** Returns `$0.0050` or `$1,234.50`, with so many decimals. */
export function dollarText(amount: number, decimals: number): string {
  const fixed = amount.toFixed(decimals)
  // Formatting for a language takes fifteen microseconds.
  return `$${amount < 999 ? fixed : Number(fixed).toLocaleString('en-US', { minimumFractionDigits: decimals })}`
}
