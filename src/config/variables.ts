/** Environment variables in the values of a file. */
import { type Document, isScalar, parseDocument, type Scalar, visit } from 'yaml'
import { ConfigError } from './config-error.ts'

export type Environment = Readonly<Record<string, string | undefined>>

/** A value that holds variables, and what it is read as where that is of no use. */
export interface Reading {
  readonly value: unknown
  readonly other: unknown
}

/** The reading of the value at a path; `undefined` where there is but one. */
export type ReadingFinder = (path: readonly PropertyKey[]) => Reading | undefined

/** Replaces `${VAR}` and `${VAR:-default}`; `$${` is a literal `${`. */
function expand(text: string, env: Environment, where: string): string {
  return text.replace(
    /\$(\$\{)|\$\{(\w+)(?::-([^}]*))?\}/g,
    (_, literal: string, name: string, fallback?: string) => {
      if (literal) return literal
      const value = env[name] || fallback
      if (value === undefined) {
        throw new ConfigError(
          `${where}: the environment variable ${name} is not set: set it, or write \${${name}:-default}`,
        )
      }
      return value
    },
  )
}

/** What a value is after expansion: a number, true, false or null where it is written as one, else text. */
function typedValue(expanded: string): unknown {
  const { contents } = parseDocument(expanded)
  // Only what YAML read in full: in a key such as `ab #1` it would see a comment.
  const isWhole = isScalar(contents) && contents.source === expanded && typeof contents.value !== 'string'
  return isWhole ? contents.value : expanded
}

/**
 * Puts the variables' values into a document. An unquoted `${PORT}` is a number first and a quoted one a text; a key may
 * look like a number, though, and a value in braces must be quoted. Returns how to find the values that could be read both
 * ways; `undefined` where there is none.
 */
export function expandVariables(
  document: Document,
  env: Environment,
  whereIs: (node: Scalar) => string,
): ReadingFinder | undefined {
  const readings = new Map<unknown, Reading>()
  visit(document, {
    Scalar(key, node) {
      if (key === 'key' || typeof node.value !== 'string' || !node.value.includes('${')) return
      const text = expand(node.value, env, whereIs(node))
      const typed = typedValue(text)
      const isPlain = node.type === 'PLAIN'
      node.value = isPlain ? typed : text
      if (typed !== text) readings.set(node, { value: node.value, other: isPlain ? text : typed })
    },
  })
  return readings.size === 0 ? undefined : (path) => readings.get(document.getIn(path, true))
}
