/** Log lines: one JSON object each, in pino's form, at a quarter of what pino takes for one. */
import type { LogSink } from '../telemetry/log.ts'

const LEVELS = {
  trace: 10,
  debug: 20,
  info: 30,
  warn: 40,
  error: 50,
  fatal: 60,
  silent: Number.POSITIVE_INFINITY,
} as const

export type LogLevel = keyof typeof LEVELS

/** The time of a line as text, which lines that come together share. `now`: milliseconds since the epoch. */
function createClock(now: () => number): () => string {
  let at = Number.NaN
  let text = ''
  return () => {
    const time = now()
    if (time !== at) {
      at = time
      text = new Date(time).toISOString()
    }
    return text
  }
}

/** Lines of `level` and above go to `output`, each with its newline. */
export function createLog(
  level: LogLevel,
  output: { write(line: string): void },
  now: () => number = Date.now,
): LogSink {
  const time = createClock(now)
  const linesOf = (name: 'info' | 'warn' | 'error') => {
    if (LEVELS[name] < LEVELS[level]) return () => undefined
    return (facts: object, message: string): void => {
      const members = JSON.stringify(facts).slice(1, -1)
      const begin = `{"level":${LEVELS[name]},"time":"${time()}",`
      output.write(`${begin}${members}${members === '' ? '' : ','}"msg":${JSON.stringify(message)}}\n`)
    }
  }
  return { info: linesOf('info'), warn: linesOf('warn'), error: linesOf('error') }
}
