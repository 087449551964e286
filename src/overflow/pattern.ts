/** Patterns that a user writes: of RE2's syntax, which no text can make slow. */
import { RE2JS } from 're2js'

/** Named groups of a match; a group that took no part has no value. */
export type Groups = ReadonlyMap<string, string | undefined>

export interface LinearPattern {
  /** The named groups of the first match; `undefined` where there is none. */
  match(text: string): Groups | undefined
}

/**
 * A pattern that matches in time that grows with the text, whatever the case of its letters.
 *
 * @throws {Error} saying what is wrong with it: no pattern, or one that only a backtracking engine could match.
 */
export function linearPattern(source: string): LinearPattern {
  const compiled = RE2JS.compile(source, RE2JS.CASE_INSENSITIVE)
  const groups = Object.keys(compiled.namedGroups())
  return {
    match(text) {
      const matcher = compiled.matcher(text)
      if (!matcher.find()) return undefined
      return new Map(groups.map((name) => [name, matcher.group(name) ?? undefined]))
    },
  }
}

/** The named groups of the first match of a pattern of either kind; `undefined` where it does not match. */
export function groupsIn(pattern: RegExp | LinearPattern, text: string): Groups | undefined {
  if (!(pattern instanceof RegExp)) return pattern.match(text)
  const found = pattern.exec(text)
  return found ? new Map(Object.entries(found.groups ?? {})) : undefined
}
