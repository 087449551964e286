/** Prometheus metrics, made from events. The values of every label are a closed set or come from the configuration. */
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client'
import type { ProxyEvent, RunEnded } from './event.ts'

/** Seconds, from a tenth of a millisecond because Governor's own time is short. */
const OVERHEAD_BUCKETS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1]
/** Seconds, up to half an hour because reasoning models are slow. */
const UPSTREAM_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800]

const ITERATION_BUCKETS = [1, 2, 3, 5, 8, 12, 20, 30, 50, 75, 100, 150, 200, 300, 500, 1_000]
const TOKEN_BUCKETS = [1e3, 3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6, 1e7, 3e7, 1e8]
/** US dollars. */
const COST_BUCKETS = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100]

/** The metrics of one Governor. */
export interface Metrics {
  /** Counts an event. */
  record(event: ProxyEvent): void
  /** Returns the text of `GET /metrics` and its content type. */
  render(): Promise<{ readonly contentType: string; readonly text: string }>
}

const METHODS = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'])

/** The most tools with a label of their own, because clients choose the names; all others share one. */
const MAX_TOOLS = 100
/** The most rows of the overflow table with a label of their own, those of the configuration included. */
const MAX_QUIRKS = 200
const OTHER = 'other'

/** Returns a function that returns the first `max` different names that fit into a label, and `other` for all others. */
function createLabels(max: number): (name: string) => string {
  const labels = new Set<string>()
  return (name) => {
    if (labels.has(name)) return name
    if (labels.size >= max || !/^[\w.:/-]{1,64}$/.test(name)) return OTHER
    labels.add(name)
    return name
  }
}

/** The current numbers for gauges. */
export interface Levels {
  readonly sessions: () => number
  readonly open: () => number
  readonly isStoreUp: () => boolean
}

function counterIn(registry: Registry) {
  return <Label extends string>(name: string, help: string, labelNames: readonly Label[]) =>
    new Counter({ name, help, labelNames, registers: [registry] })
}

/** Counters of Governor's decisions. */
function decisionCounters(registry: Registry) {
  const counter = counterIn(registry)
  return {
    verdicts: counter('governor_verdicts_total', 'Judged requests by verdict.', ['verdict']),
    observed: counter(
      'governor_observed_verdicts_total',
      'Requests in mode observe that would have got another verdict than allow, by that verdict.',
      ['verdict'],
    ),
    notices: counter(
      'governor_notices_total',
      'Notices that reached a model, by tier (loop: only about a loop; none: neutral), channel, and the limit that they are about.',
      ['tier', 'channel', 'meter'],
    ),
    loops: counter(
      'governor_loops_total',
      'Loops by pattern, tool and action: warned (the model got a notice), observed (it got none), blocked (a call was blocked).',
      ['pattern', 'tool', 'action'],
    ),
    asked: counter(
      'governor_reasks_total',
      'Models asked again because all calls of a response were blocked, by outcome (failed: the calls passed).',
      ['outcome'],
    ),
    stops: counter('governor_stops_total', 'Ended runs by reason, and by the source of their last answer.', [
      'reason',
      'by',
    ]),
    warnings: counter(
      'governor_warnings_answered_total',
      "Budget warnings by the model's reaction: acknowledged (its next message had text or called no tool) or ignored.",
      ['reaction'],
    ),
    repeats: counter(
      'governor_answers_repeated_total',
      'Requests of a stopped run that got its recorded answer again.',
      [],
    ),
    retries: counter('governor_retries_total', 'Requests that repeated one already counted.', []),
    countedRepeats: counter(
      'governor_repeats_counted_total',
      'Repeated requests that counted as an iteration, because the same bytes had been answered 32 times in their run.',
      [],
    ),
  }
}

/** Counters of requests and of upstreams' responses. */
function trafficCounters(registry: Registry) {
  const counter = counterIn(registry)
  return {
    requests: counter(
      'governor_requests_total',
      'Requests by upstream, dialect (none: relayed unread), method, status and outcome.',
      ['upstream', 'dialect', 'method', 'status', 'outcome'],
    ),
    overflows: counter(
      'governor_overflow_total',
      'Overflow errors, by recovery and by the rule that recognised them.',
      ['recovery', 'quirk'],
    ),
    recoveries: counter(
      'governor_overflow_recoveries_total',
      'Requests that were too large and were sent again in a form that fits, by outcome.',
      ['recovery', 'outcome'],
    ),
    storms: counter(
      'governor_storm_replies_total',
      'Requests that Governor answered with the newest of many errors in a row, without asking the provider.',
      ['upstream', 'status'],
    ),
    tokens: counter(
      'governor_tokens_total',
      'Tokens of guarded answers, by upstream, kind (cached_input is part of input), and whether the provider stated them.',
      ['upstream', 'kind', 'source'],
    ),
    cost: counter(
      'governor_cost_usd_total',
      'US dollars that guarded answers cost, where the price is known, by upstream.',
      ['upstream'],
    ),
    failedOpen: counter(
      'governor_failed_open_total',
      'Requests that were relayed unguarded, or guarded in part, by reason and by the only guard that failed (none: no single one).',
      ['reason', 'guard'],
    ),
    operatorActions: counter('governor_operator_actions_total', 'What operators did to sessions.', [
      'action',
    ]),
    connectionsRefused: counter(
      'governor_connections_refused_total',
      'Connections of clients that were closed because the limit on open files allows no more.',
      [],
    ),
    holds: counter(
      'governor_held_stops_total',
      'Requests that a limit would have stopped and that waited for an operator, by how the wait ended.',
      ['outcome'],
    ),
    webhooks: counter('governor_webhook_messages_total', 'Messages to the webhook by topic and outcome.', [
      'topic',
      'outcome',
    ]),
    refused: counter(
      'governor_alterations_refused_total',
      'Changes to a request that an upstream refused; they are not tried again for that model for a while.',
      ['upstream', 'alteration'],
    ),
  }
}

function durationsIn(registry: Registry) {
  const registers = [registry]
  return {
    overhead: new Histogram({
      name: 'governor_overhead_seconds',
      help: 'Time from the last byte of a guarded request to the call upstream.',
      buckets: OVERHEAD_BUCKETS,
      registers,
    }),
    upstream: new Histogram({
      name: 'governor_upstream_seconds',
      help: 'Time from the call upstream to its response headers.',
      buckets: UPSTREAM_BUCKETS,
      labelNames: ['upstream'],
      registers,
    }),
    store: new Histogram({
      name: 'governor_store_seconds',
      help: 'Time in which the store that replicas share answered a command.',
      buckets: OVERHEAD_BUCKETS,
      registers,
    }),
  }
}

/** Histograms of runs, each observed once, at its first end. */
function runsIn(registry: Registry) {
  const labelNames = ['state'] as const
  const registers = [registry]
  return {
    iterations: new Histogram({
      name: 'governor_run_iterations',
      help: 'Iterations of runs that have ended, by terminal state.',
      buckets: ITERATION_BUCKETS,
      labelNames,
      registers,
    }),
    tokens: new Histogram({
      name: 'governor_run_tokens',
      help: 'Tokens of runs that have ended, by terminal state.',
      buckets: TOKEN_BUCKETS,
      labelNames,
      registers,
    }),
    cost: new Histogram({
      name: 'governor_run_cost_usd',
      help: 'US dollars of runs that have ended, where the price is known, by terminal state.',
      buckets: COST_BUCKETS,
      labelNames,
      registers,
    }),
  }
}

function recordRun({ state, iterations, tokens, cost }: RunEnded, runs: Runs): void {
  runs.iterations.observe({ state }, iterations)
  runs.tokens.observe({ state }, tokens)
  if (cost > 0) runs.cost.observe({ state }, cost)
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
  gauge(
    'governor_store_up',
    'Whether the store can be reached: 1, or 0 while sessions are kept in memory alone.',
    () => Number(levels.isStoreUp()),
  )
  gauge('governor_sessions', 'Sessions remembered.', levels.sessions)
}

type Traffic = ReturnType<typeof trafficCounters>
type Decisions = ReturnType<typeof decisionCounters>
type Durations = ReturnType<typeof durationsIn>
type Runs = ReturnType<typeof runsIn>

function recordRequest(
  event: Extract<ProxyEvent, { kind: 'request_ended' }>,
  { requests }: Traffic,
  { verdicts, observed, retries }: Decisions,
  durations: Durations,
): void {
  const method = METHODS.has(event.method) ? event.method : 'other'
  const { upstream, dialect, outcome, verdict } = event
  requests.inc({ upstream, dialect, method, status: String(event.status), outcome })
  if (verdict) verdicts.inc({ verdict })
  if (event.observed) observed.inc({ verdict: event.observed })
  if (event.isRetry) retries.inc()
  if (event.overheadMs !== undefined) durations.overhead.observe(event.overheadMs / 1000)
  if (event.upstreamMs !== undefined) durations.upstream.observe({ upstream }, event.upstreamMs / 1000)
}

function recordUsage(
  { upstream, usage }: Extract<ProxyEvent, { kind: 'answered' }>,
  { tokens, cost }: Traffic,
): void {
  const source = usage.estimated ? 'estimated' : 'provider'
  tokens.inc({ upstream, kind: 'input', source }, usage.input)
  tokens.inc({ upstream, kind: 'output', source }, usage.output)
  if (usage.cost) cost.inc({ upstream }, usage.cost)
  if (usage.cachedInput) tokens.inc({ upstream, kind: 'cached_input', source }, usage.cachedInput)
}

function recorderOf(
  traffic: Traffic,
  decisions: Decisions,
  durations: Durations,
  runs: Runs,
): Metrics['record'] {
  const toolLabel = createLabels(MAX_TOOLS)
  const quirkLabel = createLabels(MAX_QUIRKS)
  return (event) => {
    switch (event.kind) {
      case 'request_began':
      case 'unpriced_model':
      case 'tunnel_failed':
      case 'store_changed':
        return
      case 'store_answered':
        return durations.store.observe(event.ms / 1000)
      case 'request_ended':
        return recordRequest(event, traffic, decisions, durations)
      case 'answered':
        return recordUsage(event, traffic)
      case 'loop': {
        const { pattern, tool, noticeSent } = event
        const action = noticeSent ? 'warned' : 'observed'
        return decisions.loops.inc({ pattern, tool: toolLabel(tool), action })
      }
      case 'call_blocked': {
        const { pattern, tool } = event
        return decisions.loops.inc({ pattern, tool: toolLabel(tool), action: 'blocked' })
      }
      case 'asked_again':
        return decisions.asked.inc({ outcome: event.outcome })
      case 'notice': {
        const { tier, channel, meter = 'none' } = event
        return decisions.notices.inc({ tier, channel, meter })
      }
      case 'run_ended':
        return recordRun(event, runs)
      case 'stopped':
        return decisions.stops.inc({ reason: event.reason, by: event.by })
      case 'warning_answered':
        return decisions.warnings.inc({ reaction: event.reaction })
      case 'answer_repeated':
        return decisions.repeats.inc()
      case 'repeat_counted':
        return decisions.countedRepeats.inc()
      case 'overflow':
        return traffic.overflows.inc({ recovery: event.recovery, quirk: quirkLabel(event.quirk) })
      case 'recovered':
        return traffic.recoveries.inc({ recovery: event.recovery, outcome: event.outcome })
      case 'storm_answered':
        return traffic.storms.inc({ upstream: event.upstream, status: String(event.status) })
      case 'failed_open':
        return traffic.failedOpen.inc({ reason: event.reason, guard: event.guard ?? 'none' })
      case 'operator_acted':
        return traffic.operatorActions.inc({ action: event.action })
      case 'connection_refused':
        return traffic.connectionsRefused.inc()
      case 'hold_ended':
        return traffic.holds.inc({ outcome: event.outcome })
      case 'operator_asked':
      case 'ops_failed':
        return
      case 'webhook_sent':
        return traffic.webhooks.inc({ topic: event.topic, outcome: event.outcome })
      case 'alteration_refused':
        return traffic.refused.inc({ upstream: event.upstream, alteration: event.alteration })
    }
  }
}

/** Creates the metrics of one Governor; they read `levels` each time they are rendered. */
export function createMetrics(levels: Levels): Metrics {
  const registry = new Registry()
  collectDefaultMetrics({ register: registry })
  addGauges(registry, levels)
  const durations = durationsIn(registry)
  const runs = runsIn(registry)
  return {
    record: recorderOf(trafficCounters(registry), decisionCounters(registry), durations, runs),
    async render() {
      return { contentType: registry.contentType, text: await registry.metrics() }
    },
  }
}
