/** Writes the log lines of events. */
import { type ProxyEvent, rowOf } from './event.ts'

/** The methods of a pino logger that Governor uses. */
export interface LogSink {
  info(facts: object, message: string): void
  warn(facts: object, message: string): void
  error(facts: object, message: string): void
}

/** Logs an event; most kinds give no line. */
export function logEvent(log: LogSink, event: ProxyEvent): void {
  const line = rowOf(event).log?.(event)
  if (!line) return
  const [level, facts, message] = line
  log[level](facts, message)
}
