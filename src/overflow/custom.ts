/** Rows of the configuration: of the same shape as the built-in ones, their patterns in RE2's syntax. */
import { linearPattern } from './pattern.ts'
import type { Row } from './rows.ts'

/** A row as a user writes it. */
export interface RowSettings extends Omit<Row, 'code' | 'text' | 'unless'> {
  readonly code?: string | undefined
  readonly text?: string | undefined
  readonly unless?: string | undefined
}

const compiled = (source: string | undefined) => (source === undefined ? undefined : linearPattern(source))

/**
 * A row that `classify` reads.
 *
 * @throws {Error} when one of its patterns is none, or not linear.
 */
export function customRow({ code, text, unless, ...row }: RowSettings): Row {
  return { ...row, code: compiled(code), text: compiled(text), unless: compiled(unless) }
}
