/** Names that people mistype: of commands, flags, keys and values. */
import { closestMatch } from 'leven'

/** Returns `: did you mean NAME?` for the known name that is nearest to what was typed; empty if none is near. */
export function didYouMean(typed: string, known: readonly string[]): string {
  const near = closestMatch(typed, known, { maxDistance: Math.max(2, Math.floor(typed.length / 3)) })
  return near === undefined ? '' : `: did you mean ${near}?`
}
