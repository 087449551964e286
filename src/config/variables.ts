/** Expands environment variables in the values of a file. */
import { type Document, isScalar, parseDocument, type Scalar, visit } from 'yaml'
import { ConfigError } from './config-error.ts'

/** The environment variables of a process. */
export type Environment = Readonly<Record<string, string | undefined>>

/** A value with variables that can be parsed in two ways: as a number, true, false or null, and as a text. */
export interface AmbiguousValue {
  readonly value: unknown
  readonly alternative: unknown
}

/** Returns the ambiguous value at a path; `undefined` if the value there is not ambiguous. */
export type AmbiguousValueFinder = (path: readonly PropertyKey[]) => AmbiguousValue | undefined

/** Characters in place of a variable's braces while YAML parses a file, so that lines and columns stay. */
const OPEN = '\ue000'
const CLOSE = '\ue001'
const PROTECTED = new RegExp(`\\$${OPEN}([^${CLOSE}]*)${CLOSE}`, 'g')

/** Hides the braces of variables from YAML, in whose flow style braces are maps; `expandVariables` restores them. */
export function protectVariables(source: string): string {
  return source.replace(/\$\{(\w+(?::-[^}\n]*)?)\}/g, `$$${OPEN}$1${CLOSE}`)
}

/** Replaces `${VAR}` and `${VAR:-default}`; `$${` is a literal `${`. Throws `ConfigError` for a variable that is not set. */
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

/** Returns an expanded value as a number, true, false or null if it is written as one, else as text. */
function typedValue(expanded: string): unknown {
  const { contents } = parseDocument(expanded)
  // Only if YAML parsed all of it: in a key such as `ab #1` it would see a comment.
  const isWhole = isScalar(contents) && contents.source === expanded && typeof contents.value !== 'string'
  return isWhole ? contents.value : expanded
}

/**
 * Replaces the variables in a document of protected text. An unquoted `${PORT}` becomes a number and a quoted one a text,
 * but a key may look like a number, and a number may be quoted. Returns a finder of the values that can be parsed both
 * ways; `undefined` if there are none. Throws `ConfigError` for a variable that is not set.
 */
export function expandVariables(
  document: Document,
  env: Environment,
  whereIs: (node: Scalar) => string,
): AmbiguousValueFinder | undefined {
  const ambiguous = new Map<unknown, AmbiguousValue>()
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
      if (typed !== text) ambiguous.set(node, { value: node.value, alternative: isPlain ? text : typed })
    },
  })
  return ambiguous.size === 0 ? undefined : (path) => ambiguous.get(document.getIn(path, true))
}
