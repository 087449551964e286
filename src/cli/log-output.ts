/** Where log lines go: many at once, as a write of its own for every line costs more than the line. */
import { type DestinationStream, destination } from 'pino'

/** Milliseconds a line may wait for others. */
const WAIT = 20
/** Characters that are written without waiting for more. */
const FULL = 16_384

export interface LogOutput extends DestinationStream {
  /** Writes what is waiting. To be called before the process ends. */
  flush(): void
}

/** `target`: a file descriptor or a file name; its writes are done when they return. */
export function createLogOutput(target: number | string): LogOutput {
  const sink = destination({ dest: target, sync: true })
  let waiting = ''
  let timer: NodeJS.Timeout | undefined
  const flush = () => {
    clearTimeout(timer)
    timer = undefined
    if (waiting === '') return
    const text = waiting
    waiting = ''
    sink.write(text)
  }
  return {
    write(line) {
      waiting += line
      if (waiting.length >= FULL) flush()
      else timer ??= setTimeout(flush, WAIT)
    },
    flush,
  }
}

/** The time of a line as pino's `isoTime` writes it. Lines of one millisecond share its text. `now`: milliseconds since the epoch. */
export function createTimestamp(now: () => number = Date.now): () => string {
  let at = Number.NaN
  let text = ''
  return () => {
    const time = now()
    if (time !== at) {
      at = time
      text = `,"time":"${new Date(time).toISOString()}"`
    }
    return text
  }
}
