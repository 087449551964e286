/** Where log lines go: pino's destination, which writes in the background, so that no reader and no disk holds a request up. */
import { type DestinationStream, pino } from 'pino'

/** Bytes of lines that wait while nothing is written; further lines are dropped. */
const MAX_WAITING = 1_048_576
/** Milliseconds that a reader has at the end to take what is left. */
const LAST_WAIT = 1_000

export interface LogOutput extends DestinationStream {
  /** Writes what is left and closes, in the background: the process ends after that. Later lines are dropped. */
  close(): void
}

/**
 * Opens `target`, a file descriptor or a file name, for log lines. What can't be written (a full disk, a pipe that nobody
 * reads) is tried again with the next line or a moment later, and lost at the end. `onExit` registers what runs when the
 * process ends without `close`.
 */
export function createLogOutput(
  target: number | string,
  onExit: (handle: () => void) => void = () => {},
): LogOutput {
  let isClosed = false
  let isFailing = false
  let lastRetry = Number.POSITIVE_INFINITY
  // Before pino registers its own handler: that one flushes as well, and on a full disk never returns.
  onExit(() => {
    isClosed = true
    lastRetry = 0
    try {
      if (!isFailing) stream.flushSync()
    } catch {
      // Nobody reads, or all is written and closed.
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
    write(line) {
      if (!isClosed) stream.write(line)
    },
    close() {
      isClosed = true
      lastRetry = performance.now() + LAST_WAIT
      stream.end()
    },
  }
}
