/** Where log lines go: many at once, as a write of its own for every line costs more than the line. */
import { openSync, writeSync } from 'node:fs'
import type { DestinationStream } from 'pino'

/** Milliseconds a line may wait for others, and until what was not taken is tried again. */
const WAIT = 20
/** Characters that are written without waiting for more. */
const FULL = 16_384
/** Characters that wait while nothing is taken; lines beyond are dropped. */
const MOST = 1_048_576

const NOTHING = Buffer.alloc(0)

export interface LogOutput extends DestinationStream {
  /** Writes what is waiting. To be called before the process ends. */
  flush(): void
}

/** How many bytes a descriptor takes now; none while nobody reads or the disk is full, `undefined` once the reader is gone. */
function taken(descriptor: number, bytes: Buffer): number | undefined {
  try {
    return writeSync(descriptor, bytes)
  } catch (error) {
    return Reflect.get(error as Error, 'code') === 'EPIPE' ? undefined : 0
  }
}

/**
 * `target`: a file descriptor or a file name; its writes are done when they return. What is not taken is tried again
 * later, and lines that come meanwhile are dropped in the end: neither a full disk nor a reader that has stopped to read
 * may cost a request. (A pipe that Node has opened does not block, and pino's own destination sleeps until it is read.)
 */
export function createLogOutput(target: number | string): LogOutput {
  const descriptor = typeof target === 'number' ? target : openSync(target, 'a')
  let waiting = ''
  let unwritten: Buffer = NOTHING
  let timer: NodeJS.Timeout | undefined
  let isStuck = false
  let isGone = false
  const flush = () => {
    clearTimeout(timer)
    timer = undefined
    isStuck = false
    while (!isGone && (unwritten.length > 0 || waiting !== '')) {
      if (unwritten.length === 0) {
        unwritten = Buffer.from(waiting)
        waiting = ''
      }
      const count = taken(descriptor, unwritten)
      if (count === 0) {
        isStuck = true
        timer = setTimeout(flush, WAIT).unref()
        return
      }
      isGone = count === undefined
      unwritten = unwritten.subarray(count ?? unwritten.length)
    }
  }
  return {
    write(line) {
      if (isGone || waiting.length >= MOST) return
      waiting += line
      if (waiting.length < FULL || isStuck) timer ??= setTimeout(flush, WAIT)
      else flush()
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
