/** Prometheus metrics, made from events. The values of every label are a closed set or come from the configuration. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import { type Emit, type Labels, type Measure, type Metric, type ProxyEvent, ROWS } from './event.ts'

/** The current numbers for gauges. */
export interface Levels {
  readonly sessions: number
  readonly openRequests: number
  readonly isStoreUp: boolean
}

/**
 * The most values that a label may have which clients or the configuration choose; all others count as `other`.
 * `tool`, `model`: clients choose the names. `quirk`: the rows of the overflow table, those of the configuration included.
 */
const MOST_VALUES: Readonly<Record<string, number>> = { tool: 100, model: 100, quirk: 200 }

/** Returns a function that bounds the values of the labels in `MOST_VALUES`: the first ones are kept. */
function createBounds(): (labels: Labels) => Labels {
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

/** Returns what adds an event to a metric, which events of several kinds may share. */
function recorderOf(
  registry: Registry,
  name: string,
  metric: Metric<ProxyEvent> | Measure<ProxyEvent>,
  bounds: (labels: Labels) => Labels,
): Emit {
  const { help, labels = [], buckets } = metric
  const settings = { name, help, labelNames: labels, registers: [registry] }
  const known = registry.getSingleMetric(name)
  const target = known ?? (buckets ? new Histogram({ ...settings, buckets: [...buckets] }) : new Counter(settings))
  const isBounded = labels.some((label) => label in MOST_VALUES)
  const add = (values: Labels, amount = 1) => {
    const shown = isBounded ? bounds(values) : values
    if (target instanceof Histogram) target.observe(shown, amount)
    else if (target instanceof Counter) target.inc(shown, amount)
  }
  if ('record' in metric) return (event) => metric.record(event, add)
  const { only, milliseconds, amount = milliseconds } = metric
  return (event: Readonly<Record<string, unknown>>) => {
    if (only !== undefined && !event[only]) return
    const given = amount === undefined ? 1 : event[amount]
    if (typeof given !== 'number') return
    const values: Record<string, string> = {}
    for (const label of labels) values[label] = (event[label] as string | undefined) ?? 'none'
    add(values, milliseconds === undefined ? given : given / 1_000)
  }
}

/** Creates the metrics of one Governor; they read `levels` each time they are rendered. */
export function createMetrics(levels: Levels) {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry })
  const gauge = (name: string, help: string, level: keyof Levels) =>
    new Gauge({
      name,
      help,
      registers: [registry],
      collect() {
        this.set(Number(levels[level]))
      },
    })
  gauge('governor_open_requests', 'Requests under way.', 'openRequests')
  gauge(
    'governor_store_up',
    'Whether the store can be reached: 1, or 0 while sessions are kept in memory alone.',
    'isStoreUp',
  )
  gauge('governor_sessions', 'Sessions remembered.', 'sessions')
  const bounds = createBounds()
  const recorders = new Map<string, readonly Emit[]>()
  for (const [kind, { metrics = {} }] of Object.entries(ROWS)) {
    const ofKind = Object.entries(metrics).map(([name, metric]) => recorderOf(registry, name, metric, bounds))
    recorders.set(kind, ofKind)
  }
  return {
    record(event: ProxyEvent): void {
      for (const record of recorders.get(event.kind) ?? []) record(event)
    },
    /** Returns the text of `GET /metrics` and its content type. */
    async render() {
      return { contentType: registry.contentType, text: await registry.metrics() }
    },
  }
}
