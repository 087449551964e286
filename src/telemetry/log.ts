/** Log lines, made from events: the facts as an object, then a constant message. They never hold keys or prompts. */
import type { ProxyEvent } from './event.ts'

/** The methods of a pino logger that Governor uses. */
export interface LogSink {
  info(facts: object, message: string): void
  warn(facts: object, message: string): void
  error(facts: object, message: string): void
}

function rounded(milliseconds: number | undefined): number | undefined {
  return milliseconds === undefined ? undefined : Math.round(milliseconds * 100) / 100
}

/** The session of an event, as log lines name it. */
function namesIn({
  session,
  apiId,
}: {
  readonly session?: string | undefined
  readonly apiId?: string | undefined
}) {
  return { session, session_id: apiId }
}

/** How many characters of a path are logged: a client may send 64 KB. */
const MAX_PATH = 500

function logRequest(log: LogSink, event: Extract<ProxyEvent, { kind: 'request_ended' }>): void {
  const line = {
    upstream: event.upstream,
    dialect: event.dialect,
    method: event.method,
    path: event.path.slice(0, MAX_PATH),
    status: event.status,
    outcome: event.outcome,
    session: event.session,
    session_id: event.apiId,
    verdict: event.verdict,
    observed: event.observed,
    tier: event.tier,
    meter: event.meter?.name,
    used: event.meter && rounded(event.meter.used),
    max: event.meter?.max,
    loop: event.loop,
    failure: event.failure,
    detail: event.failureDetail,
    iteration: event.iteration,
    max_iterations: event.maxIterations,
    retry: event.isRetry || undefined,
    upstream_ms: rounded(event.upstreamMs),
    overhead_ms: rounded(event.overheadMs),
    total_ms: rounded(event.totalMs),
  }
  if (event.outcome === 'upstream_failed') log.warn(line, 'request failed')
  else log.info(line, 'request')
}

function logFailedOpen(
  log: LogSink,
  { reason, guard, fault }: Extract<ProxyEvent, { kind: 'failed_open' }>,
): void {
  // A failing store is logged once, when it begins to fail.
  if (reason === 'store') return
  const facts = { reason, guard, fault }
  if (reason === 'prices')
    return log.warn(facts, 'no prices and context windows but the configured ones are known')
  if (guard) return log.error(facts, 'request judged without this guard')
  if (reason === 'fault') log.error(facts, 'request relayed unguarded')
  else log.warn(facts, 'request relayed unguarded')
}

const UNPRICED = {
  warn: 'no limit on cost for this model',
  estimate: "the limit on cost counts the price of the provider's dearest model",
  refuse: 'the limit on cost stops all requests to this model',
} as const

/** Logs an event; most kinds give no line. */
export function logEvent(log: LogSink, event: ProxyEvent): void {
  switch (event.kind) {
    case 'request_ended':
      return logRequest(log, event)
    case 'request_began':
    case 'loop':
    case 'notice':
    case 'call_blocked':
    case 'asked_again':
    case 'answer_repeated':
    case 'storm_answered':
    case 'repeat_counted':
    case 'answered':
    case 'warning_answered':
    case 'store_answered':
    case 'run_ended':
      return
    case 'webhook_sent':
      if (event.outcome === 'delivered') return
      return log.warn({ topic: event.topic, outcome: event.outcome }, 'webhook message lost')
    case 'connection_refused':
      if (!event.isNews) return
      return log.warn({ open: event.open }, 'connections refused: the limit on open files allows no more')
    case 'operator_acted': {
      const { action, session, thread, by, details } = event
      return log.info({ action, session_id: session, thread, by, ...details }, 'operator acted')
    }
    case 'operator_asked': {
      const { meter, used, max, seconds } = event
      return log.warn(
        { ...namesIn(event), meter, used, max, seconds },
        'limit reached: waiting for an operator to extend or stop the run',
      )
    }
    case 'hold_ended':
      return log.info({ ...namesIn(event), outcome: event.outcome }, 'wait for an operator ended')
    case 'ops_failed':
      return log.error({ fault: event.fault }, 'request to the API of sessions failed')
    case 'tunnel_failed': {
      const { kind: _kind, ...facts } = event
      return log.warn(facts, 'upgrade failed')
    }
    case 'overflow': {
      const { upstream, recovery, quirk } = event
      return log.info({ upstream, recovery, quirk, ...namesIn(event) }, 'overflow')
    }
    case 'recovered': {
      const { kind: _kind, ...facts } = event
      return log.info(facts, 'sent again after an overflow')
    }
    case 'stopped':
      return log.info({ ...namesIn(event), reason: event.reason, by: event.by }, 'run ended')
    case 'store_changed':
      return event.isUp
        ? log.info({}, 'store in use')
        : log.warn({ problem: event.problem }, 'store not reached: sessions are kept in memory until it is')
    case 'failed_open':
      return logFailedOpen(log, event)
    case 'unpriced_model': {
      const facts = { upstream: event.upstream, model: event.model.slice(0, 200) }
      const { handling } = event
      if (handling)
        return log.warn(facts, `price not known: ${UNPRICED[handling]}; see models in the configuration`)
      return log.info(facts, 'price not known: the cost of this model is not counted')
    }
    case 'alteration_refused': {
      const { kind: _kind, ...facts } = event
      return log.warn({ ...facts, model: facts.model.slice(0, 200) }, 'upstream refuses this alteration')
    }
  }
}
