/** Patterns that a user writes: of RE2's syntax, which no text can make slow. */
import { RE2JS } from 're2js'

export interface LinearPattern {
  /** Names of its groups. */
  readonly groups: readonly string[]
  /** The named groups of the first match; `undefined` where there is none. */
  match(text: string): ReadonlyMap<string, string> | undefined
}

/** @throws {Error} saying what is wrong with it: no pattern, or one that only a backtracking engine could match. */
export function linearPattern(source: string): LinearPattern {
  const compiled = RE2JS.compile(source, RE2JS.CASE_INSENSITIVE)
  const groups = Object.keys(compiled.namedGroups())
  return {
    groups,
    match(text) {
      const matcher = compiled.matcher(text)
      if (!matcher.find()) return undefined
      return new Map(
        groups.flatMap((name) => {
          const found = matcher.group(name)
          return found === null || found === undefined ? [] : [[name, found] as const]
        }),
      )
    },
  }
}
