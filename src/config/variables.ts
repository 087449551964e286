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

/** For the braces of a variable while YAML reads a file: one character each, so that lines and columns stay. */
const OPEN = '\ue000'
const CLOSE = '\ue001'
const PROTECTED = new RegExp(`\\$${OPEN}([^${CLOSE}]*)${CLOSE}`, 'g')

/** Hides the braces of variables from YAML, whose flow style would take them for its own; `expandVariables` restores them. */
export function protectVariables(source: string): string {
  return source.replace(/\$\{(\w+(?::-[^}\n]*)?)\}/g, `$$${OPEN}$1${CLOSE}`)
}

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
 * Puts the variables' values into a document of protected text. An unquoted `${PORT}` is a number first and a quoted one a
 * text; a key may look like a number, though, and quotes do no harm. Returns how to find the values that could be read
 * both ways; `undefined` where there is none.
 */
export function expandVariables(
  document: Document,
  env: Environment,
  whereIs: (node: Scalar) => string,
): ReadingFinder | undefined {
  const readings = new Map<unknown, Reading>()
  visit(document, {
    Scalar(key, node) {
      if (typeof node.value !== 'string') return
      const source = node.value.replace(PROTECTED, (_, inside: string) => `\${${inside}}`)
      node.value = source
      if (key === 'key' || !source.includes('${')) return
      const text = expand(source, env, whereIs(node))
      const typed = typedValue(text)
      const isPlain = node.type === 'PLAIN'
      node.value = isPlain ? typed : text
      if (typed !== text) readings.set(node, { value: node.value, other: isPlain ? text : typed })
    },
  })
  return readings.size === 0 ? undefined : (path) => readings.get(document.getIn(path, true))
}
