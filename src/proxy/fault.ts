/** Faults of Governor's own: each is counted, and none costs a request. */
import { TooMuchToRead } from '../core/work.ts'
import type { Emit, GuardName } from '../telemetry/event.ts'

/** The kind of an error and the place it came from, without its message. */
export function faultOf(error: Error): string {
  const place = error.stack?.split('\n').find((line) => line.trimStart().startsWith('at '))
  return `${error.name} ${place?.trim() ?? ''}`.trim()
}

/** Counts a fault in reading or judging a request. `guard`: the one that failed, where the others judge all the same. */
export function countFault(emit: Emit, error: Error, guard?: GuardName): void {
  if (error instanceof TooMuchToRead) return emit({ kind: 'failed_open', reason: 'body_too_large', guard })
  // A parser's message quotes what it could not parse: only the name is safe to tell.
  const isParser = error instanceof SyntaxError || error.name === 'JsonScanError'
  if (isParser) return emit({ kind: 'failed_open', reason: 'unreadable_body', guard })
  emit({ kind: 'failed_open', reason: 'fault', guard, fault: faultOf(error) })
}

/** Returns what one guard finds; `undefined` after a fault in it, which is counted as its own. */
export function isolated<Result>(emit: Emit, guard: GuardName, find: () => Result): Result | undefined {
  try {
    return find()
  } catch (error) {
    countFault(emit, error as Error, guard)
    return undefined
  }
}
