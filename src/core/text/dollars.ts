/** Amounts of dollars as people read them. */

/** Returns `$0.0050` or `$1,234.50`, with so many decimals. */
export function dollarText(amount: number, decimals: number): string {
  return `$${amount.toFixed(decimals).replace(/(?<!\.\d*)\d(?=(?:\d{3})+(?!\d))/g, '$&,')}`
}
