/** The output of log lines. pino writes in the background, so that no reader and no disk delays a request. */
import { pino } from 'pino'

/** The most bytes of waiting lines; further lines are dropped. */
const MAX_WAITING = 1_048_576
/** Milliseconds that a reader gets at the end to read the rest. */
const LAST_WAIT = 1_000

/**
 * Opens `target`, a file descriptor or a file name, for log lines. If a line can't be written (a full disk, a pipe
 * without a reader), pino tries again with the next line or a moment later; lines that still wait at the end are lost.
 * `onExit` registers a function that runs when the process ends without `close`.
 */
export function createLogOutput(target: number | string, onExit?: (handle: () => void) => void) {
  let isClosed = false
  let isFailing = false
  let lastRetry = Number.POSITIVE_INFINITY
  // Registered before pino's own handler, which flushes as well, and on a full disk never returns.
  onExit?.(() => {
    isClosed = true
    lastRetry = 0
    try {
      if (!isFailing) stream.flushSync()
    } catch {
      // There is no reader, or the stream is closed already.
    }
    stream.destroy()
  })
  const stream = pino.destination({
    dest: target,
    sync: false,
    maxLength: MAX_WAITING,
    retryEAGAIN: () => performance.now() < lastRetry,
  })
  stream.on('error', () => {
    isFailing = true
    if (isClosed) stream.destroy()
  })
  stream.on('write', () => {
    isFailing = false
  })
  return {
    write(line: string): void {
      if (!isClosed) stream.write(line)
    },
    /** Writes the waiting lines and closes, in the background; the process ends after that. Later lines are dropped. */
    close(): void {
      isClosed = true
      lastRetry = performance.now() + LAST_WAIT
      stream.end()
    },
  }
}
