/** Counts faults of Governor itself. A fault never costs a request. */

import { TooMuchToRead } from '../core/bounds/work.ts'
import { errorOf } from '../core/thrown.ts'
import type { Emit, GuardName } from '../telemetry/event.ts'

/** Returns an error's name and place in the code, without its message, which may quote the request. */
export function faultOf(thrown: unknown): string {
  const error = errorOf(thrown)
  const [place = ''] = /^ {1,8}at .+$/m.exec(error.stack ?? '') ?? []
  return `${error.name} ${place.trim()}`.trim()
}

/** Counts a fault that costs the request nothing. */
export function noteFault(emit: Emit, error: unknown): void {
  emit({ kind: 'failed_open', reason: 'fault', fault: faultOf(error) })
}

/** Counts a fault in evaluating a request. `guard`: the guard that failed, if the others still work. */
export function countFault(emit: Emit, error: unknown, guard?: GuardName): void {
  if (error instanceof TooMuchToRead) return emit({ kind: 'failed_open', reason: 'body_too_large', guard })
  // A body that cannot be parsed is no fault of Governor.
  const isParser = error instanceof SyntaxError || errorOf(error).name === 'JsonScanError'
  if (isParser) return emit({ kind: 'failed_open', reason: 'unreadable_body', guard })
  emit({ kind: 'failed_open', reason: 'fault', guard, fault: faultOf(error) })
}

/** Returns what one guard finds in `of`; `undefined` after a fault, which is counted for that guard. */
export function isolated<Of extends readonly unknown[], Result>(
  emit: Emit,
  guard: GuardName,
  find: (...of: Of) => Result,
  ...of: Of
): Result | undefined {
  try {
    return find(...of)
  } catch (error) {
    countFault(emit, error, guard)
    return undefined
  }
}

/** Waits for the store; if it fails, reports that and returns `otherwise`. */
export function unlessLost<Result>(emit: Emit, stored: Promise<Result>, otherwise: Result): Promise<Result> {
  return stored.catch(() => {
    emit({ kind: 'failed_open', reason: 'store' })
    return otherwise
  })
}
