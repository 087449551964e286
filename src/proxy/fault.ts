/** Counts faults of Governor itself. A fault never costs a request. */

import { TooMuchToRead } from '../core/bounds/work.ts'
import { errorOf } from '../core/thrown.ts'
import type { SessionKey, Store, ValueKind } from '../store/store.ts'
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

/** True for a body that takes too long to read, or cannot be parsed: that is no fault of Governor. */
export function isOfBody(error: unknown): boolean {
  return error instanceof TooMuchToRead || error instanceof SyntaxError || errorOf(error).name === 'JsonScanError'
}

/** Counts a fault in evaluating a request. `guard`: the guard that failed, if the others still work. */
export function countFault(emit: Emit, error: unknown, guard?: GuardName): void {
  if (error instanceof TooMuchToRead) return emit({ kind: 'failed_open', reason: 'body_too_large', guard })
  if (isOfBody(error)) return emit({ kind: 'failed_open', reason: 'unreadable_body', guard })
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

/** Waits for the store; if it fails, reports that and returns `otherwise`, unless `lost` throws the fault. */
export function unlessLost<Result>(
  emit: Emit,
  stored: Promise<Result>,
  otherwise: Result,
  lost?: (fault: unknown) => void,
): Promise<Result> {
  return stored.catch((fault) => {
    lost?.(fault)
    emit({ kind: 'failed_open', reason: 'store' })
    return otherwise
  })
}

/** Changes a value for all processes. Never rejects: a store that fails is reported. */
export function changeValue<Value>(
  { store, emit }: { readonly store: Store; readonly emit: Emit },
  kind: ValueKind<Value>,
  key: SessionKey,
  by: (value: Value) => Value | undefined,
): Promise<void> {
  const changed = store.updateValue(kind, key, (value) => ({ value: by(value), result: undefined }))
  return unlessLost(emit, changed, undefined)
}
