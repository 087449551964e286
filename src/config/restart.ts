/** What of a changed configuration a reload leaves as it was. */
import { isDeepStrictEqual } from 'node:util'
import type { Config } from './schema.ts'

/** Sections that a reload puts in force. */
const RELOADED: ReadonlySet<string> = new Set([
  'budget',
  'loop_guard',
  'overflow',
  'overrides',
  'stop',
  'storm',
])

/** So many keys are named, and no more. */
const MAX_KEYS = 20

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** Paths at which two trees differ, as deep as both have keys. */
function differing(before: unknown, after: unknown, path: readonly string[]): string[] {
  if (!isRecord(before) || !isRecord(after)) {
    return isDeepStrictEqual(before, after) ? [] : [path.join('.')]
  }
  const keys = new Set([...Object.keys(before), ...Object.keys(after)])
  return [...keys]
    .filter((key) => path.length > 0 || !RELOADED.has(key))
    .flatMap((key) => differing(before[key], after[key], [...path, key]))
}

/** Returns the paths of at most 20 keys that differ and that only a restart puts in force, without their values. */
export function restartKeys(running: Config, read: Config): string[] {
  return differing(running, read, []).slice(0, MAX_KEYS)
}
