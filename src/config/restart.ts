/** Finds changes of the configuration that only a restart applies. */
import { isDeepStrictEqual } from 'node:util'
import { type Config, isReloaded } from './schema.ts'

/** The most keys that are named. */
const MAX_KEYS = 20

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The paths at which two trees differ, without the sections that a reload applies. */
function differing(before: unknown, after: unknown, path: readonly string[]): string[] {
  if (!isRecord(before) || !isRecord(after)) {
    return isDeepStrictEqual(before, after) ? [] : [path.join('.')]
  }
  const keys = new Set([...Object.keys(before), ...Object.keys(after)])
  return [...keys]
    .filter((key) => path.length > 0 || !isReloaded(key))
    .flatMap((key) => differing(before[key], after[key], [...path, key]))
}

/** Returns the paths of at most 20 keys whose change only a restart applies, without their values. */
export function restartKeys(running: Config, changed: Config): string[] {
  return differing(running, changed, []).slice(0, MAX_KEYS)
}
