/** Patterns that a user writes, in RE2's syntax: no text can make them slow. */
import { RE2JS } from 're2js'

/** The named groups of a match; a group that matched nothing has no value. */
export type Groups = ReadonlyMap<string, string | undefined>

/** A pattern that matches any text in linear time. */
export interface LinearPattern {
  /** Returns the named groups of the first match; `undefined` if there is none. */
  match(text: string): Groups | undefined
}

/**
 * Compiles a pattern that ignores case. Throws `Error`, which says what is wrong, if the source is no pattern, or one that
 * only a backtracking engine could match.
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

/** Returns the named groups of the first match of a pattern of either kind; `undefined` if there is none. */
export function groupsIn(pattern: RegExp | LinearPattern, text: string): Groups | undefined {
  if (!(pattern instanceof RegExp)) return pattern.match(text)
  const match = pattern.exec(text)
  return match ? new Map(Object.entries(match.groups ?? {})) : undefined
}
