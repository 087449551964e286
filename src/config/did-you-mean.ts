/** Names that people mistype: of commands, flags, keys and values. */
import { closestMatch } from 'leven'

/**
 * Returns `: did you mean NAME?` for the known name that is nearest to what was typed; empty if none is near.
 * `maxDistance`: the letters that may differ; a third of them, and always two, if it is not given.
 */
export function didYouMean(
  typed: string,
  known: readonly string[],
  maxDistance = Math.max(2, Math.floor(typed.length / 3)),
): string {
  const near = closestMatch(typed, known, { maxDistance })
  return near === undefined ? '' : `: did you mean ${near}?`
}
