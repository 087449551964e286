/** Prometheus metrics, made from events. The values of every label are a closed set or come from the configuration. */
import { AggregatorRegistry, Counter, collectDefaultMetrics, Gauge, Histogram, Registry, register } from 'prom-client'
import { isLabel, OTHER } from '../core/by-name.ts'
import { type Amount, type Labels, type Measure, type Metric, type ProxyEvent, ROWS } from './event.ts'

/** The current numbers for gauges. */
interface Levels {
  readonly sessions: number
  readonly openRequests: number
  readonly isStoreUp: boolean
  readonly pauses: number
}

/**
 * The most values that a label may have which clients or the configuration choose; all others count as `other`. `tool`,
 * `model`: clients choose the names. `quirk`: the rows of the overflow table, those of the configuration included.
 */
const MOST_VALUES: Readonly<Record<string, number>> = { tool: 100, model: 100, quirk: 200, key: 200 }

/** The values of the labels in `MOST_VALUES` that came first. */
type KnownValues = Record<string, Set<string | number>>

/** Returns labels whose values are known, or count as `other`. `open`: those that have many values. */
function bounded(known: KnownValues, labels: Labels, open: readonly string[]): Labels {
  let bound = labels
  for (const label of open) {
    const value = labels[label]
    known[label] ??= new Set()
    const values = known[label]
    if (value === undefined || values.has(value)) continue
    if (values.size < (MOST_VALUES[label] ?? 0) && isLabel(String(value))) values.add(value)
    else bound = { ...bound, [label]: OTHER }
  }
  return bound
}

/** How many events wait to be counted together, as long as nobody asks: each costs a third of what it costs alone. */
const MOST_WAITING = 128

type AnyMetric = Metric<ProxyEvent> | Measure<ProxyEvent>

/** A metric that an event counts in. */
interface Counted {
  readonly metric: AnyMetric
  /** Those of its labels that are in `MOST_VALUES`. */
  readonly open: readonly string[]
  readonly target: Counter | Histogram
}

/** Returns what an event adds to a metric. */
function amountsOf(metric: AnyMetric, event: ProxyEvent): readonly Amount[] {
  if ('amounts' in metric) return metric.amounts(event)
  const { labels = [], only, milliseconds, amount = milliseconds } = metric
  const fields: Readonly<Record<string, unknown>> = event
  const given = amount === undefined ? 1 : fields[amount]
  if ((only !== undefined && !fields[only]) || typeof given !== 'number') return []
  const values: Record<string, string> = {}
  for (const label of labels) values[label] = String(fields[label] ?? 'none')
  return [[values, milliseconds === undefined ? given : given / 1_000]]
}

/** `of`: what several processes are together: the store is one for all. */
const GAUGES: readonly (readonly [name: string, help: string, level: keyof Levels, of: 'sum' | 'min' | 'max'])[] = [
  ['governor_open_requests', 'Requests under way.', 'openRequests', 'sum'],
  [
    'governor_store_up',
    'Whether the store can be reached: 1, or 0 while sessions are kept in memory alone.',
    'isStoreUp',
    'min',
  ],
  ['governor_sessions', 'Sessions remembered.', 'sessions', 'max'],
  ['governor_pauses', 'Pauses that operators have set: above 0, some or all agents get no answers.', 'pauses', 'max'],
]

/** Returns the metrics in which events of each kind count, made in a registry. */
function metricsByKind(registry: Registry): ReadonlyMap<string, readonly Counted[]> {
  const byKind = new Map<string, Counted[]>()
  for (const [kind, { metrics = {} }] of Object.entries(ROWS)) {
    const ofKind = []
    for (const [name, metric] of Object.entries(metrics)) {
      const { help, labels = [], buckets } = metric
      const settings = { name, help, labelNames: labels, registers: [registry] }
      const open = labels.filter((label) => label in MOST_VALUES)
      // Several events may count in one metric.
      const known = registry.getSingleMetric(name)
      if (known instanceof Counter || known instanceof Histogram) ofKind.push({ metric, open, target: known })
      else if (buckets) ofKind.push({ metric, open, target: new Histogram({ ...settings, buckets: [...buckets] }) })
      else ofKind.push({ metric, open, target: new Counter(settings) })
    }
    byKind.set(kind, ofKind)
  }
  return byKind
}

/** Creates the metrics of one Governor, which read `levels` when rendered, beside those of the process, one for all. */
export function createMetrics(levels: Levels) {
  if (register.getMetricsAsArray().length === 0) collectDefaultMetrics()
  const registry = Registry.merge([register])
  for (const [name, help, level, aggregator] of GAUGES) {
    const gauge = new Gauge({
      name,
      help,
      registers: [],
      aggregator,
      collect() {
        this.set(Number(levels[level]))
      },
    })
    registry.registerMetric(gauge)
  }
  const known: KnownValues = {}
  const byKind = metricsByKind(registry)
  const count = (event: ProxyEvent): void => {
    for (const { metric, open, target } of byKind.get(event.kind) ?? []) {
      for (const [labels, amount = 1] of amountsOf(metric, event)) {
        const bound = bounded(known, labels, open)
        if (target instanceof Histogram) target.observe(bound, amount)
        else target.inc(bound, amount)
      }
    }
  }
  let waiting: ProxyEvent[] = []
  const countAll = (): void => {
    const events = waiting
    waiting = []
    for (const event of events) count(event)
  }
  return {
    record(event: ProxyEvent): void {
      if (waiting.push(event) === MOST_WAITING) countAll()
    },
    /** Returns the text of `GET /metrics` and its content type; `text`: that of several processes. */
    async render(text?: Promise<string>) {
      countAll()
      return { contentType: registry.contentType, text: await (text ?? registry.metrics()) }
    },
    /** Returns the same as data, for the process that adds up those of several. */
    data(): Promise<MetricsData> {
      countAll()
      return registry.getMetricsAsJSON()
    },
  }
}

/** The metrics of one process. */
export type MetricsData = Awaited<ReturnType<Registry['getMetricsAsJSON']>>

/** Returns the text of `GET /metrics` for several processes together. */
export function textOfAll(all: readonly MetricsData[]): Promise<string> {
  return AggregatorRegistry.aggregate([...all]).metrics()
}

/** Returns the sums of counters and histograms: what a process has counted still counts when it has ended. */
export function countersOf(all: readonly MetricsData[]): Promise<MetricsData> {
  const counted = all.map((metrics) => metrics.filter(({ type }) => String(type) !== 'gauge'))
  return AggregatorRegistry.aggregate(counted).getMetricsAsJSON()
}
