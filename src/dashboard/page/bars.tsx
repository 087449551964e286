/** Amounts over time as bars. The numbers stand beside them, in the legend or in a table. */

/** One bar: what it is of, and its parts from the bottom up, each with the class that has its colour. */
export interface StackedBar {
  readonly title: string
  readonly parts: readonly { readonly amount: number; readonly tone: string }[]
}

/** Returns 1, 2, 4, 6 or 8 times a power of ten, whose halves are round too: the first that is not below the amount. */
function roundedUp(amount: number): number {
  const power = 10 ** Math.floor(Math.log10(amount))
  return ([1, 2, 4, 6, 8].find((one) => one * power >= amount * 0.999_999) ?? 10) * power
}

const MOST_LABELS = 5

/** Returns the indexes of at most five bars, equally far from each other, whose titles stand below. */
function labelled(count: number): readonly number[] {
  const step = Math.max(1, Math.ceil((count - 1) / (MOST_LABELS - 1)))
  const shown: number[] = []
  for (let at = count - 1; at >= 0; at -= step) shown.unshift(at)
  return shown
}

/** `label`: says in words what the bars show; `format`: writes an amount at the scale. */
export function Bars(props: { bars: readonly StackedBar[]; label: string; format: (amount: number) => string }) {
  const { bars, label, format } = props
  const sums = bars.map(({ parts }) => parts.reduce((sum, { amount }) => sum + amount, 0))
  const top = roundedUp(Math.max(...sums, 1e-6))
  return (
    <div class="bars" role="img" aria-label={label}>
      <span class="scale">
        <span>{format(top)}</span>
        <span>{format(top / 2)}</span>
        <span>0</span>
      </span>
      <svg viewBox={`0 0 ${bars.length * 10} 100`} preserveAspectRatio="none" aria-hidden="true">
        {bars.map(({ title, parts }, at) => {
          let from = 100
          return (
            <g key={title}>
              <title>{`${title}: ${format(sums[at] ?? 0)}`}</title>
              <rect class="hit" x={at * 10} y={0} width={10} height={100} />
              {parts.map(({ amount, tone }, part) => {
                const height = (amount / top) * 100
                from -= height
                return <rect key={part} class={tone} x={at * 10 + 1.5} y={from} width={7} height={height} />
              })}
            </g>
          )
        })}
      </svg>
      <span class="times">
        {labelled(bars.length).map((at) => {
          const [from, to] = [(at / bars.length) * 100, ((at + 1) / bars.length) * 100]
          // In the middle below its bar; at the ends within them, so that it is never cut.
          const place =
            from < 6 ? { left: `${from}%` } : to > 94 ? { right: `${100 - to}%` } : { left: `${(from + to) / 2}%` }
          return (
            <span key={at} class={from >= 6 && to <= 94 ? 'middle' : ''} style={place}>
              {bars[at]?.title}
            </span>
          )
        })}
      </span>
    </div>
  )
}
