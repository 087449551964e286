/** Prometheus metrics, made from events. The values of every label are a closed set or come from the configuration. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { EVENTS, type EventRow, type Metric, type ProxyEvent, rowOf } from './event.ts'

/** The metrics of one Governor. */
export interface Metrics {
  /** Counts an event. */
  record(event: ProxyEvent): void
  /** Returns the text of `GET /metrics` and its content type. */
  render(): Promise<{ readonly contentType: string; readonly text: string }>
}

/** The current numbers for gauges. */
export interface Levels {
  readonly sessions: () => number
  readonly open: () => number
  readonly isStoreUp: () => boolean
}

/**
 * The most values that a label may have which clients or the configuration choose; all others count as `other`.
 * `tool`, `model`: clients choose the names. `quirk`: the rows of the overflow table, those of the configuration included.
 */
const MOST_VALUES: Readonly<Record<string, number>> = { tool: 100, model: 100, quirk: 200 }

type Labels = Readonly<Record<string, string | number>>
type Bounds = (labels: Labels) => Labels

/**
 * Returns a function that bounds the values of the labels in `MOST_VALUES`: the first ones that fit into a label
 * are kept.
 */
function createBounds(): Bounds {
  const known: Record<string, Set<string | number>> = {}
  return (labels) => {
    const bounded: Record<string, string | number> = { ...labels }
    for (const [label, most] of Object.entries(MOST_VALUES)) {
      const value = labels[label]
      if (value === undefined) continue
      known[label] ??= new Set()
      const values = known[label]
      if (values.has(value)) continue
      if (values.size < most && /^[\w.:/@-]{1,64}$/.test(String(value))) values.add(value)
      else bounded[label] = 'other'
    }
    return bounded
  }
}

/** Creates the counter or the histogram of a metric; returns what adds to it. */
function adderOf(registry: Registry, metric: Metric<never>, bounds: Bounds) {
  const { name, help, labels, buckets } = metric
  const settings = { name, help, labelNames: labels, registers: [registry] }
  let add: (values: Labels, amount?: number) => void
  if (buckets) {
    const histogram = new Histogram({ ...settings, buckets: [...buckets] })
    add = (values, amount = 1) => histogram.observe(values, amount)
  } else {
    const counter = new Counter(settings)
    add = (values, amount) => counter.inc(values, amount)
  }
  const isBounded = labels.some((label) => label in MOST_VALUES)
  return isBounded ? (values: Labels, amount?: number) => add(bounds(values), amount) : add
}

function addGauges(registry: Registry, levels: Levels): void {
  const gauge = (name: string, help: string, level: () => number) =>
    new Gauge({
      name,
      help,
      registers: [registry],
      collect() {
        this.set(level())
      },
    })
  gauge('governor_open_requests', 'Requests under way.', levels.open)
  gauge('governor_store_up', 'Whether the store can be reached: 1, or 0 while sessions are kept in memory alone.', () =>
    Number(levels.isStoreUp()),
  )
  gauge('governor_sessions', 'Sessions remembered.', levels.sessions)
}

/** Creates the metrics of one Governor; they read `levels` each time they are rendered. */
export function createMetrics(levels: Levels): Metrics {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry })
  addGauges(registry, levels)
  const bounds = createBounds()
  const adders = new Map<string, ReturnType<typeof adderOf>>()
  for (const { metrics = [] } of Object.values<EventRow<never>>(EVENTS))
    for (const metric of metrics)
      if (!adders.has(metric.name)) adders.set(metric.name, adderOf(registry, metric, bounds))
  return {
    record(event) {
      for (const { name, record } of rowOf(event).metrics ?? [])
        record(event, (labels, amount) => adders.get(name)?.(labels, amount))
    },
    async render() {
      return { contentType: registry.contentType, text: await registry.metrics() }
    },
  }
}
