/** Rows of the configuration: as the built-in ones, with patterns in RE2's syntax. */
import { linearPattern } from './pattern.ts'
import type { Row } from './rows.ts'

/** A row as a user writes it, with its patterns as texts. */
export interface RowSettings extends Omit<Row, 'code' | 'text' | 'unless'> {
  readonly code?: string | undefined
  readonly text?: string | undefined
  readonly unless?: string | undefined
}

const compiled = (source: string | undefined) => (source === undefined ? undefined : linearPattern(source))

/** Returns a row for `classify`. Throws `Error` if one of its patterns is no RE2 pattern. */
export function customRow({ code, text, unless, ...row }: RowSettings): Row {
  return { ...row, code: compiled(code), text: compiled(text), unless: compiled(unless) }
}
