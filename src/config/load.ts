/** Loads the configuration: a flag wins over the environment, the environment over the file, the file over the default. */
import { isUtf8 } from 'node:buffer'
import { existsSync, readFileSync } from 'node:fs'
import { type Document, LineCounter, parseDocument, type Scalar, visit } from 'yaml'
import type * as z from 'zod'
import { ConfigError } from './config-error.ts'
import { type LineFinder, lineFinder } from './lines.ts'
import { type Config, configSchema } from './schema.ts'
import { DEFAULT_UPSTREAMS } from './upstreams.ts'
import {
  type AmbiguousValueFinder,
  type Environment,
  expandVariables,
  protectVariables,
} from './variables.ts'

export { ConfigError, type Environment }

/** Settings from flags or the environment; `undefined`: not set there. */
export interface Overrides {
  readonly host?: string | undefined
  readonly port?: string | undefined
  readonly logLevel?: string | undefined
  readonly redisUrl?: string | undefined
  readonly adminToken?: string | undefined
  /** Upstream URLs by name. */
  readonly upstreams?: Readonly<Record<string, string>>
}

/** Where a configuration is looked for if none is named; the first that exists is read. */
function defaultFile(env: Environment): string | undefined {
  const home = env['HOME'] || env['USERPROFILE']
  const inHome = home ? [`${home}/.config/governor/governor.yaml`] : []
  return ['governor.yaml', 'config/governor.yaml', ...inHome].find((file) => existsSync(file))
}

type Tree = { [key: string]: unknown }

function isTree(value: unknown): value is Tree {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function treeOf(document: Document, file: string): unknown {
  try {
    return document.toJS() ?? {}
  } catch (error) {
    // An alias without an anchor, as in an unquoted glob that starts with a star.
    throw new ConfigError(
      `${file}: not valid YAML: ${(error as Error).message}: quote texts that start with *`,
    )
  }
}

/** Removes sections that contain only comments, so that they get their defaults. */
function dropEmptySections(tree: Tree, { shape = {} }: Inside = insideOf(configSchema)): void {
  for (const [key, schema] of Object.entries(shape)) {
    const inside = insideOf(schema)
    const value = tree[key]
    if (value === null && (inside.shape || inside.valueType)) delete tree[key]
    else if (isTree(value)) dropEmptySections(value, inside)
  }
}

/** Throws `ConfigError` for a key `__proto__`, which zod would silently remove from an upstream's or a header's names. */
function refusePrototypes(document: Document, whereIs: (node: Scalar) => string): void {
  visit(document, {
    Scalar(key, node) {
      if (key !== 'key' || node.value !== '__proto__') return
      throw new ConfigError(`${whereIs(node)}: no key may be named __proto__: choose another name`)
    },
  })
}

interface Parsed {
  readonly tree: Tree
  readonly lineOf?: LineFinder
  readonly ambiguousAt?: AmbiguousValueFinder | undefined
}

/** Parses the text of a file and expands variables in its values. Throws `ConfigError`. */
function parseFile(source: string, file: string, env: Environment): Parsed {
  const lines = new LineCounter()
  const document = parseDocument(protectVariables(source), { lineCounter: lines, prettyErrors: true })
  const [error] = document.errors
  if (error) {
    const [message = ''] = error.message
      .replace(/^Source contains multiple documents.* at/, 'a second document begins at')
      .split('\n')
    throw new ConfigError(`${file}: not valid YAML: ${message.replace(/:$/, '')}`)
  }
  const whereIs = (node: Scalar) => {
    const position = node.range ? lines.linePos(node.range[0]).line : '?'
    return `${file}, line ${position}`
  }
  refusePrototypes(document, whereIs)
  const ambiguousAt = expandVariables(document, env, whereIs)
  const tree = treeOf(document, file)
  if (!isTree(tree)) throw new ConfigError(`${file}: found ${describe(tree)}: expected keys and values`)
  dropEmptySections(tree)
  return { tree, lineOf: lineFinder(document, lines), ambiguousAt }
}

/** Returns why a file can't be read, in words, or Node's code for a rare reason. */
export function whyUnreadable(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException
  if (code === 'ENOENT') return 'no such file'
  if (code === 'EACCES') return 'permission denied'
  if (code === 'EISDIR') return 'a folder'
  return code ?? message
}

function readText(file: string): string {
  let bytes: Buffer
  try {
    bytes = readFileSync(file)
  } catch (error) {
    throw new ConfigError(
      `${file}: can't be read (${whyUnreadable(error)}): check the path given with --config or GOVERNOR_CONFIG`,
    )
  }
  if (!isUtf8(bytes)) throw new ConfigError(`${file}: is not in UTF-8: save it in that encoding`)
  return bytes.toString()
}

function branch(tree: Tree, key: string): Tree {
  const value = tree[key]
  if (isTree(value)) return value
  const fresh: Tree = {}
  tree[key] = fresh
  return fresh
}

/** The flag or variable that set a value, by the value's path; for messages. */
type Origins = ReadonlyMap<string, string>

/** The names of flags or variables. */
interface Names {
  readonly host: string
  readonly port: string
  readonly logLevel: string
  readonly redisUrl: string
  upstream(name: string): string
}

const FLAGS: Names = {
  host: '--host',
  port: '--port',
  logLevel: '--log-level',
  redisUrl: 'REDIS_URL',
  upstream: () => '--upstream',
}

const VARIABLES: Names = {
  host: 'HOST',
  port: 'PORT',
  logLevel: 'LOG_LEVEL',
  redisUrl: 'REDIS_URL',
  upstream: (name) => `${name.toUpperCase()}_UPSTREAM_URL`,
}

/** Not a flag: other users of the machine read flags in the list of processes. */
const ADMIN_TOKEN = 'GOVERNOR_ADMIN_TOKEN'

/** Sets the values of flags or variables in the tree, and notes their origins. */
function override(tree: Tree, overrides: Overrides, names: Names, origins: Map<string, string>): void {
  const { host, port, logLevel, redisUrl, adminToken, upstreams = {} } = overrides
  if (host !== undefined) {
    branch(tree, 'server')['host'] = host
    origins.set('server.host', names.host)
  }
  if (port !== undefined) {
    branch(tree, 'server')['port'] = /^-?\d+$/.test(port) ? Number(port) : port
    origins.set('server.port', names.port)
  }
  if (logLevel !== undefined) {
    branch(tree, 'log')['level'] = logLevel
    origins.set('log.level', names.logLevel)
  }
  if (redisUrl !== undefined) {
    branch(tree, 'redis')['url'] = redisUrl
    origins.set('redis.url', names.redisUrl)
    tree['store'] = 'redis'
  }
  if (adminToken !== undefined) {
    branch(tree, 'ops')['admin_token'] = adminToken
    origins.set('ops.admin_token', ADMIN_TOKEN)
  }
  for (const [name, url] of Object.entries(upstreams)) {
    branch(branch(tree, 'upstreams'), name)['url'] = url
    origins.set(`upstreams.${name}.url`, names.upstream(name))
  }
}

function fromEnvironment(env: Environment): Overrides {
  const urls: [string, string | undefined][] = [
    ['openai', env['OPENAI_UPSTREAM_URL']],
    ['anthropic', env['ANTHROPIC_UPSTREAM_URL']],
  ]
  return {
    // An empty variable counts as not set, because compose files pass unset variables as empty.
    host: env['HOST'] || undefined,
    port: env['PORT'] || undefined,
    logLevel: env['LOG_LEVEL'] || undefined,
    redisUrl: env['REDIS_URL'] || undefined,
    adminToken: env[ADMIN_TOKEN] || undefined,
    upstreams: Object.fromEntries(urls.filter((entry): entry is [string, string] => Boolean(entry[1]))),
  }
}

/** Returns a value as messages show it; lists, objects and parts of URLs are hidden, as they may hold secrets. */
function describe(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'a list'
  if (isTree(value)) return 'keys and values'
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? String(value))
  // A URL may hold a password or a key.
  return text.includes('://') ? text.replace(/\/\/[^/@]*@/g, '//…@').replace(/\?[^"]+/, '?…') : text
}

/** Paths whose values may be secrets: by their names, and an upstream that is not written as keys and values. */
const SECRET = /key|token(?!s)|secret|password|headers|^upstreams\.[^.]*$/i

/** Names of types in messages. */
const TYPES: Readonly<Record<string, string>> = {
  string: 'a text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  object: 'keys and values',
  record: 'keys and values',
}

function expected(issue: z.core.$ZodIssue): string {
  switch (issue.code) {
    case 'invalid_type':
      if (!issue.message.startsWith('Invalid input')) return issue.message
      return `expected ${TYPES[issue.expected] ?? issue.expected}`
    case 'invalid_value':
      return issue.message.startsWith('Invalid')
        ? `expected one of ${issue.values.map(String).join(', ')}`
        : issue.message
    case 'too_small':
      if (!issue.message.startsWith('Too small')) return issue.message
      if (issue.origin !== 'string' && issue.origin !== 'array') return `expected at least ${issue.minimum}`
      return `expected ${TYPES[issue.origin]} that is not empty`
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

/** The inner schemas of a schema; zod has a type for each kind, and these fields are common to those used here. */
interface Inside {
  readonly innerType?: z.core.$ZodType
  readonly in?: z.core.$ZodType
  readonly shape?: Readonly<Record<string, z.core.$ZodType>>
  readonly valueType?: z.core.$ZodType
  readonly element?: z.core.$ZodType
}

function insideOf(schema: z.core.$ZodType): Inside {
  const inside = schema._zod.def as Inside
  const inner = inside.innerType ?? inside.in
  return inner ? insideOf(inner) : inside
}

/** Returns the keys that an object at `path` may have; empty if there is no object, or if it may have any key. */
function keysAt(path: readonly PropertyKey[]): string[] {
  let inside = insideOf(configSchema)
  for (const key of path) {
    const next = inside.shape?.[String(key)] ?? inside.valueType ?? inside.element
    if (!next) return []
    inside = insideOf(next)
  }
  return Object.keys(inside.shape ?? {})
}

/** The source of a tree, for messages. */
interface Source {
  /** The name of the file, or a word for it. */
  readonly name: string
  readonly origins: Origins
  readonly lineOf?: LineFinder | undefined
}

/** Returns the lines of a message about an issue. */
function problem(issue: z.core.$ZodIssue, tree: Tree, { name, origins, lineOf }: Source): string[] {
  const path = issue.path.map(String).join('.')
  const origin = origins.get(path) ?? name
  const at = path === '' ? origin : `${origin}: ${path}`
  /** Returns the line in the file; empty if the value is not from the file. */
  const inLine = (place: readonly PropertyKey[]): string => {
    const line = origins.has(path) ? undefined : lineOf?.(place)
    return line === undefined ? '' : ` (line ${line})`
  }
  if (issue.code === 'unrecognized_keys') {
    const known = keysAt(issue.path)
    const hint = known.length > 0 ? `: expected one of ${known.join(', ')}` : ''
    return issue.keys.map(
      (key) =>
        `${origin}: ${[...issue.path.map(String), key].join('.')}: unknown key${hint}${inLine([...issue.path, key])}`,
    )
  }
  if (issue.code === 'invalid_key')
    return issue.issues.map((inner) => `${at}: ${inner.message}${inLine(issue.path)}`)
  const value = valueAt(tree, issue.path)
  // Objects, and values that are missing or empty, are described without any content.
  const isHidden = SECRET.test(path) && typeof value !== 'object' && value !== undefined && value !== ''
  const description = isHidden ? TYPES[typeof value] : describe(value)
  return [`${at}: found ${description}: ${expected(issue)}${inLine(issue.path)}`]
}

/** Sets the URLs of the upstreams that always exist, as a file may set only a key or headers of them. */
function fillInUrls(tree: Tree): void {
  const upstreams = tree['upstreams']
  for (const [name, { url }] of Object.entries(DEFAULT_UPSTREAMS)) {
    const settings = isTree(upstreams) ? upstreams[name] : undefined
    if (isTree(settings) && settings['url'] === undefined) settings['url'] = url
  }
}

/** Checks a configuration tree. Throws `ConfigError`, which names every wrong key with its value and what is expected. */
export function checkConfig(
  tree: Tree,
  name: string,
  origins: Origins = new Map(),
  lineOf?: LineFinder,
): Config {
  fillInUrls(tree)
  const checked = configSchema.safeParse(tree)
  if (checked.success) return checked.data
  throw new ConfigError(
    checked.error.issues.flatMap((issue) => problem(issue, tree, { name, origins, lineOf })).join('\n'),
  )
}

/** Replaces each ambiguous value of the wrong type by its alternative, if that is of the right type. */
function resolveAmbiguousValues(tree: Tree, ambiguousAt: AmbiguousValueFinder): void {
  const wrongPaths = () => configSchema.safeParse(tree).error?.issues.map(({ path }) => path) ?? []
  for (const path of wrongPaths()) {
    const ambiguous = ambiguousAt(path)
    const holder = valueAt(tree, path.slice(0, -1))
    const key = path.at(-1)
    // A value that a flag or a variable of Governor replaced stays.
    if (!ambiguous || key === undefined || valueAt(tree, path) !== ambiguous.value) continue
    Object.assign(holder as object, { [key]: ambiguous.alternative })
    const isWrong = wrongPaths().some((wrong) => wrong.join('.') === path.join('.'))
    if (isWrong) Object.assign(holder as object, { [key]: ambiguous.value })
  }
}

/** A loaded configuration. */
export interface Loaded {
  readonly config: Config
  /** The name of the file; `undefined` if there was none. */
  readonly file: string | undefined
}

/** Loads and checks the configuration. Throws `ConfigError`. */
export function loadConfig(
  flags: Overrides & { readonly config?: string | undefined },
  env: Environment,
): Loaded {
  const file = flags.config ?? (env['GOVERNOR_CONFIG'] || defaultFile(env))
  const name = file ?? 'configuration'
  const { tree, lineOf, ambiguousAt }: Parsed =
    file === undefined ? { tree: {} } : parseFile(readText(file), file, env)
  const origins = new Map<string, string>()
  override(tree, fromEnvironment(env), VARIABLES, origins)
  override(tree, flags, FLAGS, origins)
  if (ambiguousAt) resolveAmbiguousValues(tree, ambiguousAt)
  return { config: checkConfig(tree, name, origins, lineOf), file }
}
