/** Prometheus metrics, folded from events. Every label has a closed set of values or comes from the configuration. */
import { collectDefaultMetrics, Gauge, Registry } from 'prom-client'
import type { ProxyEvent } from './event.ts'
import { Spreads, Tally } from './tally.ts'

/** Seconds; from a tenth of a millisecond, as Governor's own share is small. */
const OVERHEAD_BUCKETS = [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1]
/** Seconds; up to half an hour, as reasoning models are slow. */
const UPSTREAM_BUCKETS = [0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800]

export interface Metrics {
  record(event: ProxyEvent): void
  /** The text of `GET /metrics` and its content type. */
  render(): Promise<{ readonly contentType: string; readonly text: string }>
}

const METHODS = new Set(['GET', 'POST', 'PUT', 'PATCH', 'DELETE', 'HEAD', 'OPTIONS'])

/** Names come from clients: so many of them become labels, the others one. */
const MAX_TOOLS = 100
/** More than there are built in: those of the configuration have names too. */
const MAX_QUIRKS = 200
const OTHER = 'other'

/** Lets the first names through, as they come, and only such as a label can well be. */
function createLabels(max: number): (name: string) => string {
  const known = new Set<string>()
  return (name) => {
    if (known.has(name)) return name
    if (known.size >= max || !/^[\w.:/-]{1,64}$/.test(name)) return OTHER
    known.add(name)
    return name
  }
}

/** What is counted elsewhere. */
export interface Levels {
  readonly sessions: () => number
  readonly open: () => number
}

export function createMetrics(levels: Levels): Metrics {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  const counter = (name: string, help: string, ...labelNames: string[]) =>
    new Tally(registry, name, help, labelNames)
  const gauge = (name: string, help: string, level: () => number) =>
    new Gauge({
      name,
      help,
      registers,
      collect() {
        this.set(level())
      },
    })
  const requests = counter(
    'governor_requests_total',
    'Requests by upstream, dialect (none: relayed unread), method, status and outcome.',
    'upstream',
    'dialect',
    'method',
    'status',
    'outcome',
  )
  const verdicts = counter('governor_verdicts_total', 'Judged requests by verdict.', 'verdict')
  const notices = counter(
    'governor_notices_total',
    'Notices that reached a model, by tier (loop: about a loop alone; none: neutral), channel, and the limit they are about.',
    'tier',
    'channel',
    'meter',
  )
  const loops = counter(
    'governor_loops_total',
    'Loops by pattern, tool and action: warned (the model was told), observed (it was not told), blocked (a call was refused).',
    'pattern',
    'tool',
    'action',
  )
  const toolLabel = createLabels(MAX_TOOLS)
  const asked = counter(
    'governor_reasks_total',
    'Models asked again because all calls of a response were refused, by outcome (failed: the refused calls went through).',
    'outcome',
  )
  const stops = counter(
    'governor_stops_total',
    'Ended runs by reason, and by whose answer ended them.',
    'reason',
    'by',
  )
  const overflows = counter(
    'governor_overflow_total',
    'Errors that say that something is too large, by what to do about it and by the rule that recognised it.',
    'recovery',
    'quirk',
  )
  const quirkLabel = createLabels(MAX_QUIRKS)
  const recoveries = counter(
    'governor_overflow_recoveries_total',
    'Requests that were too large and were asked again in a form that fits, by outcome.',
    'recovery',
    'outcome',
  )
  const silentOverflows = counter(
    'governor_silent_overflow_total',
    'Answers of a provider that had read far less of the prompt than was sent.',
    'upstream',
  )
  const repeats = counter(
    'governor_answers_repeated_total',
    'Requests of a stopped run that got its recorded answer again.',
  )
  const storms = counter(
    'governor_storm_replies_total',
    'Requests that Governor answered with the newest of many errors in a row, without asking the provider.',
    'upstream',
    'status',
  )
  const countedRepeats = counter(
    'governor_repeats_counted_total',
    'Repeated requests that counted as an iteration, because the same bytes had been answered 32 times in their run.',
  )
  const tokens = counter(
    'governor_tokens_total',
    'Tokens of guarded answers, by upstream, kind (cached_input is part of input), and whether the provider stated them.',
    'upstream',
    'kind',
    'source',
  )
  const cost = counter(
    'governor_cost_usd_total',
    'US dollars that guarded answers cost, where the price is known, by upstream.',
    'upstream',
  )
  const warnings = counter(
    'governor_warnings_answered_total',
    'Budget warnings by what the model made of them: acknowledged (it said something, or called nothing) or ignored.',
    'heed',
  )
  const failedOpen = counter(
    'governor_failed_open_total',
    'Requests that were relayed unguarded, or guarded in part, by reason and by the only guard that failed (none: no single one).',
    'reason',
    'guard',
  )
  const refused = counter(
    'governor_alterations_refused_total',
    'Changes to a request that an upstream refused; they are not tried again for that model for a while.',
    'upstream',
    'alteration',
  )
  const retries = counter('governor_retries_total', 'Requests that repeated one already counted.')
  const overhead = new Spreads(
    registry,
    'governor_overhead_seconds',
    'Time from the last byte of a guarded request to the call upstream.',
    OVERHEAD_BUCKETS,
    [],
  )
  const upstream = new Spreads(
    registry,
    'governor_upstream_seconds',
    'Time from the call upstream to its response headers.',
    UPSTREAM_BUCKETS,
    ['upstream'],
  )
  gauge('governor_open_requests', 'Requests under way.', levels.open)
  gauge('governor_sessions', 'Sessions remembered.', levels.sessions)

  const recordRequest = (event: Extract<ProxyEvent, { kind: 'request_ended' }>): void => {
    const method = METHODS.has(event.method) ? event.method : 'other'
    const { upstream: name, dialect, outcome, status } = event
    requests.add(1, name, dialect, method, String(status), outcome)
    if (event.verdict) verdicts.add(1, event.verdict)
    if (event.isRetry) retries.add(1)
    if (event.overheadMs !== undefined) overhead.add(event.overheadMs / 1000)
    if (event.upstreamMs !== undefined) upstream.add(event.upstreamMs / 1000, name)
  }

  const recordUsage = ({ upstream: name, usage }: Extract<ProxyEvent, { kind: 'answered' }>): void => {
    const source = usage.estimated ? 'estimated' : 'provider'
    tokens.add(usage.input, name, 'input', source)
    tokens.add(usage.output, name, 'output', source)
    if (usage.cost) cost.add(usage.cost, name)
    if (usage.cachedInput) tokens.add(usage.cachedInput, name, 'cached_input', source)
  }

  return {
    record(event) {
      switch (event.kind) {
        case 'request_began':
          return
        case 'request_ended':
          return recordRequest(event)
        case 'loop':
          return loops.add(1, event.pattern, toolLabel(event.tool), event.isTold ? 'warned' : 'observed')
        case 'refused_call':
          return loops.add(1, event.pattern, toolLabel(event.tool), 'blocked')
        case 'asked_again':
          return asked.add(1, event.outcome)
        case 'notice':
          return notices.add(1, event.tier, event.channel, event.meter ?? 'none')
        case 'stopped':
          return stops.add(1, event.reason, event.by)
        case 'overflow':
          return overflows.add(1, event.recovery, quirkLabel(event.quirk))
        case 'recovered':
          return recoveries.add(1, event.recovery, event.outcome)
        case 'silent_overflow':
          return silentOverflows.add(1, event.upstream)
        case 'answer_repeated':
          return repeats.add(1)
        case 'storm_answered':
          return storms.add(1, event.upstream, String(event.status))
        case 'repeat_counted':
          return countedRepeats.add(1)
        case 'warning_answered':
          return warnings.add(1, event.heed)
        case 'priceless':
        case 'tunnel_failed':
          return
        case 'answered':
          return recordUsage(event)
        case 'failed_open':
          return failedOpen.add(1, event.reason, event.guard ?? 'none')
        case 'alteration_refused':
          return refused.add(1, event.upstream, event.alteration)
      }
    },
    async render() {
      return { contentType: registry.contentType, text: await registry.metrics() }
    },
  }
}
