/** What a session used minute by minute, as a curve. */
import { useEffect, useRef } from 'preact/hooks'
import UPlot from 'uplot'
import type { SessionDetail } from '../../ops/sessions/api-schema.ts'
import { amount } from '../../ops/sessions/labels.ts'

const MINUTE = 60_000
const HEIGHT = 110

type Minute = SessionDetail['minutes'][number]
type Field = 'tokens' | 'cost_usd'

const textOf = (field: Field, used: number) => amount(field === 'tokens' ? 'tokens' : 'cost', used)

/** Returns times in seconds and amounts, with 0 for minutes in which nothing was used; at least two of them. */
function pointsOf(minutes: readonly Minute[], field: Field): [number[], number[]] {
  const known = new Map(minutes.map((one) => [Date.parse(one.at), one[field] ?? 0]))
  const last = Math.max(...known.keys())
  const first = Math.max(Math.min(...known.keys()), last - 59 * MINUTE)
  const points: [number[], number[]] = [[], []]
  for (let at = first === last ? first - MINUTE : first; at <= last; at += MINUTE) {
    points[0].push(at / 1_000)
    points[1].push(known.get(at) ?? 0)
  }
  return points
}

function optionsOf(box: HTMLElement, field: Field): UPlot.Options {
  const style = getComputedStyle(box)
  const accent = style.getPropertyValue('--accent')
  const axis = {
    stroke: style.getPropertyValue('--quiet'),
    grid: { stroke: style.getPropertyValue('--line'), width: 1 },
    ticks: { show: false },
    font: '11px system-ui',
  }
  return {
    width: box.clientWidth,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    padding: [8, 8, 0, 0],
    scales: { y: { range: (_, __, most) => [0, most || 1] } },
    axes: [
      { ...axis, space: 70, size: 26, values: '{HH}:{mm}' as never },
      { ...axis, size: 52, space: 30, values: (_, ticks) => ticks.map((tick) => textOf(field, tick)) },
    ],
    series: [{}, { stroke: accent, fill: `${accent}26`, width: 2, points: { show: false } }],
  }
}

export function Chart({ minutes, field, title }: { minutes: readonly Minute[]; field: Field; title: string }) {
  const box = useRef<HTMLDivElement>(null)
  const plot = useRef<UPlot>(undefined)
  useEffect(() => {
    const { current } = box
    if (!current) return
    const draw = () => {
      // The newest data: `minutes` here are those of the first drawing.
      const data = plot.current?.data ?? pointsOf(minutes, field)
      plot.current?.destroy()
      plot.current = new UPlot(optionsOf(current, field), data, current)
    }
    const sized = new ResizeObserver(() => plot.current?.setSize({ width: current.clientWidth, height: HEIGHT }))
    const dark = matchMedia('(prefers-color-scheme: dark)')
    draw()
    sized.observe(current)
    dark.addEventListener('change', draw)
    return () => {
      sized.disconnect()
      dark.removeEventListener('change', draw)
      plot.current?.destroy()
    }
  }, [])
  useEffect(() => plot.current?.setData(pointsOf(minutes, field)), [minutes])
  const total = minutes.reduce((sum, one) => sum + (one[field] ?? 0), 0)
  return <div class="chart" role="img" aria-label={`${title}: ${textOf(field, total)} in all`} ref={box} />
}
