/** Reads the configuration: flag over environment over file over default. */
import { readFileSync } from 'node:fs'
import { isScalar, LineCounter, parseDocument, visit } from 'yaml'
import type { z } from 'zod'
import { type Config, configSchema } from './schema.ts'

/** A configuration that can't be used; the message has one line per problem and says what to do. */
export class ConfigError extends Error {
  override readonly name = 'ConfigError'
}

/** What may be given outside the file. `undefined` is not given. */
export interface Overrides {
  readonly host?: string | undefined
  readonly port?: string | undefined
  readonly logLevel?: string | undefined
  /** Upstream URLs by name. */
  readonly upstreams?: Readonly<Record<string, string>>
}

export type Environment = Readonly<Record<string, string | undefined>>

const DEFAULT_FILE = 'config/governor.yaml'

type Tree = { [key: string]: unknown }

function isTree(value: unknown): value is Tree {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
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

/** Parses a file's text; variables stand in values only, and an unquoted value keeps YAML's types after expansion. */
function parseFile(source: string, file: string, env: Environment): Tree {
  const lines = new LineCounter()
  const document = parseDocument(source, { lineCounter: lines, prettyErrors: true })
  const [error] = document.errors
  if (error) throw new ConfigError(`${file}: not valid YAML: ${error.message.split('\n')[0]}`)
  visit(document, {
    Scalar(key, node) {
      if (key === 'key' || typeof node.value !== 'string' || !node.value.includes('${')) return
      const position = node.range ? lines.linePos(node.range[0]).line : '?'
      const expanded = expand(node.value, env, `${file}, line ${position}`)
      const typed = node.type === 'PLAIN' ? parseDocument(expanded).contents : undefined
      node.value = isScalar(typed) ? typed.value : expanded
    },
  })
  const tree: unknown = document.toJS() ?? {}
  if (!isTree(tree)) throw new ConfigError(`${file}: found ${describe(tree)}: expected keys and values`)
  return tree
}

function readText(file: string, isRequired: boolean): string | undefined {
  try {
    return readFileSync(file, 'utf8')
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code
    if (code === 'ENOENT' && !isRequired) return undefined
    const reason = code === 'ENOENT' ? 'no such file' : code === 'EACCES' ? 'permission denied' : String(code)
    throw new ConfigError(
      `${file}: can't be read (${reason}): check the path given with --config or GOVERNOR_CONFIG`,
    )
  }
}

function branch(tree: Tree, key: string): Tree {
  const value = tree[key]
  if (isTree(value)) return value
  const fresh: Tree = {}
  tree[key] = fresh
  return fresh
}

/** Puts what was given outside the file into the tree. */
function override(tree: Tree, given: Overrides): void {
  if (given.host !== undefined) branch(tree, 'server')['host'] = given.host
  if (given.port !== undefined) {
    branch(tree, 'server')['port'] = /^\d+$/.test(given.port) ? Number(given.port) : given.port
  }
  if (given.logLevel !== undefined) branch(tree, 'log')['level'] = given.logLevel
  for (const [name, url] of Object.entries(given.upstreams ?? {}))
    branch(branch(tree, 'upstreams'), name)['url'] = url
}

function fromEnvironment(env: Environment): Overrides {
  const urls: [string, string | undefined][] = [
    ['openai', env['OPENAI_UPSTREAM_URL']],
    ['anthropic', env['ANTHROPIC_UPSTREAM_URL']],
  ]
  return {
    // An empty variable is an unset one, as compose files pass them.
    host: env['HOST'] || undefined,
    port: env['PORT'] || undefined,
    logLevel: env['LOG_LEVEL'] || undefined,
    upstreams: Object.fromEntries(urls.filter((entry): entry is [string, string] => Boolean(entry[1]))),
  }
}

/** Shows a value in a message without its content where that may be a secret. */
function describe(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'a list'
  if (isTree(value)) return 'keys and values'
  return JSON.stringify(value) ?? String(value)
}

const SECRET = /key|token|secret|password|headers/i

function expected(issue: z.core.$ZodIssue): string {
  switch (issue.code) {
    case 'invalid_type':
      return `expected ${issue.expected === 'int' ? 'a whole number' : issue.expected}`
    case 'invalid_value':
      return issue.message.startsWith('Invalid')
        ? `expected one of ${issue.values.map(String).join(', ')}`
        : issue.message
    case 'too_small':
      return `expected ${issue.origin === 'string' || issue.origin === 'array' ? 'something' : `at least ${issue.minimum}`}`
    case 'too_big':
      return `expected at most ${issue.maximum}`
    default:
      return issue.message
  }
}

function valueAt(tree: unknown, path: readonly PropertyKey[]): unknown {
  return path.reduce<unknown>(
    (value, key) => (value !== null && typeof value === 'object' ? Reflect.get(value, key) : undefined),
    tree,
  )
}

/** The keys that an object at `path` may have. */
function keysAt(path: readonly PropertyKey[]): string[] {
  const shape = valueAt(
    jsonSchemaProperties(),
    path.flatMap((key) => [String(key), 'properties']),
  )
  return isTree(shape) ? Object.keys(shape) : []
}

let properties: unknown
function jsonSchemaProperties(): unknown {
  properties ??= shapeOf(configSchema)
  return properties
}

/** A tree of key names, as deep as there are objects. */
function shapeOf(schema: z.core.$ZodType): Tree {
  const inner = unwrap(schema)
  const shape =
    inner && 'shape' in inner._zod.def ? (inner._zod.def.shape as Record<string, z.core.$ZodType>) : undefined
  if (!shape) return {}
  return Object.fromEntries(
    Object.entries(shape).map(([key, value]) => [key, { properties: shapeOf(value) }]),
  )
}

/** Takes defaults and the like off a schema. */
function unwrap(schema: z.core.$ZodType): z.core.$ZodType {
  const def: { innerType?: z.core.$ZodType } = schema._zod.def as never
  return def.innerType ? unwrap(def.innerType) : schema
}

function problem(issue: z.core.$ZodIssue, tree: Tree, origin: string): string[] {
  const path = issue.path.map(String).join('.')
  const at = path === '' ? origin : `${origin}: ${path}`
  if (issue.code === 'unrecognized_keys') {
    const known = keysAt(issue.path)
    const hint = known.length > 0 ? `: expected one of ${known.join(', ')}` : ''
    return issue.keys.map(
      (key) => `${origin}: ${[...issue.path.map(String), key].join('.')}: unknown key${hint}`,
    )
  }
  if (issue.code === 'invalid_key') return issue.issues.map((inner) => `${at}: ${inner.message}`)
  const found = SECRET.test(path) ? '' : `found ${describe(valueAt(tree, issue.path))}: `
  return [`${at}: ${found}${expected(issue)}`]
}

/** Checks a configuration tree. @throws {ConfigError} naming every wrong key, what was found and what was expected. */
export function checkConfig(tree: Tree, origin: string): Config {
  const checked = configSchema.safeParse(tree)
  if (checked.success) return checked.data
  throw new ConfigError(checked.error.issues.flatMap((issue) => problem(issue, tree, origin)).join('\n'))
}

export interface Loaded {
  readonly config: Config
  /** The file that was read; `undefined` where there was none. */
  readonly file: string | undefined
}

/** Loads the configuration. @throws {ConfigError} */
export function loadConfig(
  flags: Overrides & { readonly config?: string | undefined },
  env: Environment,
): Loaded {
  const named = flags.config ?? (env['GOVERNOR_CONFIG'] || undefined)
  const file = named ?? DEFAULT_FILE
  const source = readText(file, named !== undefined)
  const tree = source === undefined ? {} : parseFile(source, file, env)
  override(tree, fromEnvironment(env))
  override(tree, flags)
  return {
    config: checkConfig(tree, source === undefined ? 'configuration' : file),
    file: source === undefined ? undefined : file,
  }
}
