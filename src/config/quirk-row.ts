/** Rows of the configuration for overflow errors: as the built-in ones, with patterns in RE2's syntax, which no text can make slow. */
import { RE2JS } from 're2js'
import type { LinearPattern, Row } from '../overflow/rows.ts'

/** A row as a user writes it, with its patterns as texts. */
export interface RowSettings extends Omit<Row, 'code' | 'text' | 'unless'> {
  readonly code?: string | undefined
  readonly text?: string | undefined
  readonly unless?: string | undefined
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
      return Object.fromEntries(groups.map((name) => [name, matcher.group(name) ?? undefined]))
    },
  }
}

/** Returns a row for `classify`. Throws `Error` if one of its patterns is no RE2 pattern. */
export function customRow({ code, text, unless, ...row }: RowSettings): Row {
  const compiled = (source: string | undefined) => (source === undefined ? undefined : linearPattern(source))
  return { ...row, code: compiled(code), text: compiled(text), unless: compiled(unless) }
}
