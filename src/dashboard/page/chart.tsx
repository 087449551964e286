/** What a session used minute by minute, as a curve. */
import { useEffect, useRef } from 'preact/hooks'
import UPlot from 'uplot'
import { compact, money } from '../../ops/sessions/words.ts'
import type { SessionDetail } from './api.ts'

const MINUTE = 60_000
const HEIGHT = 110

type Minute = SessionDetail['minutes'][number]
type Amount = 'tokens' | 'cost_usd'

const dollars = (cost: number) => money({ cost_usd: cost, price_known: true, cost_estimated: false })

/** Returns times in seconds and amounts, with 0 for minutes in which nothing was used; at least two of them. */
function pointsOf(minutes: readonly Minute[], amount: Amount): [number[], number[]] {
  const known = new Map(minutes.map((one) => [Date.parse(one.at), one[amount] ?? 0]))
  const last = Math.max(...known.keys())
  const first = Math.max(Math.min(...known.keys()), last - 59 * MINUTE)
  const begin = first === last ? first - MINUTE : first
  const times = Array.from({ length: (last - begin) / MINUTE + 1 }, (_, at) => begin + at * MINUTE)
  return [times.map((at) => at / 1_000), times.map((at) => known.get(at) ?? 0)]
}

function optionsOf(box: HTMLElement, amount: Amount): UPlot.Options {
  const style = getComputedStyle(box)
  const colour = (name: string) => style.getPropertyValue(name)
  const axis = {
    stroke: colour('--quiet'),
    grid: { stroke: colour('--line'), width: 1 },
    ticks: { show: false },
    font: '11px system-ui',
  }
  const text = amount === 'tokens' ? compact : dollars
  return {
    width: box.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 8, 0, 0],
    scales: { y: { range: (_, __, most) => [0, most || 1] } },
    axes: [
      { ...axis, space: 70, size: 26, values: '{HH}:{mm}' as never },
      { ...axis, size: 52, space: 30, values: (_, ticks) => ticks.map((tick) => text(tick)) },
    ],
    series: [{}, { stroke: colour('--accent'), fill: `${colour('--accent')}26`, width: 2, points: { show: false } }],
  }
}

export function Chart({ minutes, amount, title }: { minutes: readonly Minute[]; amount: Amount; title: string }) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<UPlot>(undefined)
  useEffect(() => {
    const { current } = box
    if (!current) return
    const made = () => {
      plot.current?.destroy()
      plot.current = new UPlot(optionsOf(current, amount), pointsOf(minutes, amount), current)
    }
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: current.clientWidth, height: HEIGHT }))
    const dark = matchMedia('(prefers-color-scheme: dark)')
    made()
    sized.observe(current)
    dark.addEventListener('change', made)
    return () => {
      sized.disconnect()
      dark.removeEventListener('change', made)
      plot.current?.destroy()
    }
  }, [])
  useEffect(() => plot.current?.setData(pointsOf(minutes, amount)), [minutes])
  const total = minutes.reduce((sum, one) => sum + (one[amount] ?? 0), 0)
  const label = `${title}: ${amount === 'tokens' ? compact(total) : dollars(total)} in all`
  return <div class="chart" role="img" aria-label={label} ref={box} />
}
