/** Parses the text of a configuration file, and expands environment variables in its values. */

import { type Document, isMap, isNode, isScalar, isSeq, LineCounter, parseDocument, visit } from 'yaml'
import { errorOf } from '../core/thrown.ts'

/** Thrown for a configuration that can't be used; the message has one line per problem and says what to do. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError'
}

export type Environment = Readonly<Record<string, string | undefined>>

export type YamlFile = ReturnType<typeof parseYaml>

/** A variable. One without its last brace is taken up to the end, so that no text is read again from each start. */
const VARIABLE = /\$(\$\{)|\$\{(\w+)(?::-([^}]*))?(\}?)/g
/** The same in the text of a file, where a variable ends with its line. */
const IN_FILE = /\$\{(\w+(?::-[^}\n]*)?)(\}?)/g

/** Characters in place of a variable's braces while YAML parses a file, so that lines and columns stay. */
const OPEN = '\ue000'
const CLOSE = '\ue001'
const PROTECTED = new RegExp(`\\$${OPEN}([^${CLOSE}]*)(${CLOSE}?)`, 'g')

/** Replaces `${VAR}` and `${VAR:-default}`; `$${` is a literal `${`. Throws if a variable is not set. */
function expand(text: string, env: Environment, where: string): string {
  return text.replace(VARIABLE, (found, literal: string, name: string, fallback: string | undefined, end: string) => {
    if (literal) return literal
    if (end === '') return found.replaceAll('$${', '${')
    const value = env[name] || fallback
    if (value === undefined)
      throw new ConfigError(
        `${where}: the environment variable ${name} is not set: set it, or write \${${name}:-default}`,
      )
    return value
  })
}

/** Replaces the variables in a document; returns the texts that hold one: only the schema knows which are numbers. */
function expandVariables(document: Document, lines: LineCounter, file: string, env: Environment) {
  const expanded = new Set<string>()
  visit(document, {
    Scalar(key, node) {
      if (typeof node.value !== 'string') return
      const where = `${file}, line ${lines.linePos(node.range?.[0] ?? 0).line}`
      // zod would silently remove it from the names of upstreams and headers.
      if (key === 'key' && node.value === '__proto__')
        throw new ConfigError(`${where}: no key may be named __proto__: choose another name`)
      const source = node.value.replace(PROTECTED, (found, inside: string, end) => (end ? `\${${inside}}` : found))
      const hasVariable = key !== 'key' && source.includes('${')
      const text = hasVariable ? expand(source, env, where) : source
      node.value = text
      if (hasVariable) expanded.add(text)
    },
  })
  return expanded
}

/** Returns the 1-based line of the value at `path`, or of its nearest existing parent; `undefined` if there is none. */
export function lineOf({ document, lines }: YamlFile, path: readonly PropertyKey[]): number | undefined {
  let node: unknown = document.contents
  let offset: number | undefined
  for (const key of path) {
    const pair = isMap(node)
      ? node.items.find((one) => isScalar(one.key) && String(one.key.value) === String(key))
      : undefined
    const item = isSeq(node) ? node.items[Number(key)] : undefined
    const mark = pair?.key ?? item
    if (mark === undefined) break
    if (isNode(mark)) offset = mark.range?.[0] ?? offset
    node = pair ? pair.value : item
  }
  return offset === undefined ? undefined : lines.linePos(offset).line
}

/** Parses a file that is called `file` in messages. Throws `ConfigError`. */
export function parseYaml(source: string, file: string, env: Environment) {
  const lines = new LineCounter()
  // In flow style, braces are maps.
  const hidden = source.replace(IN_FILE, (found, inside: string, end) => (end ? `$${OPEN}${inside}${CLOSE}` : found))
  const document = parseDocument(hidden, { lineCounter: lines, prettyErrors: true })
  const [error] = document.errors
  if (error) {
    const [message = ''] = error.message
      .replace(/^Source contains multiple documents.* at/, 'a second document begins at')
      .split('\n')
    throw new ConfigError(`${file}: not valid YAML: ${message.replace(/:$/, '')}`)
  }
  const expanded = expandVariables(document, lines, file, env)
  try {
    const contents: unknown = document.toJS() ?? {}
    return { contents, document, lines, expanded }
  } catch (error) {
    // An alias without an anchor, as in an unquoted glob that starts with a star.
    throw new ConfigError(`${file}: not valid YAML: ${errorOf(error).message}: quote texts that start with *`)
  }
}
