/** Reads the configuration: flag over environment over file over default. */
import { isUtf8 } from 'node:buffer'
import { readFileSync } from 'node:fs'
import { type Document, LineCounter, parseDocument, type Scalar, visit } from 'yaml'
import type * as z from 'zod'
import { ConfigError } from './config-error.ts'
import { type LineFinder, lineFinder } from './lines.ts'
import { type Config, configSchema } from './schema.ts'
import { DEFAULT_UPSTREAMS } from './upstreams.ts'
import { type Environment, expandVariables, protectVariables, type ReadingFinder } from './variables.ts'

export { ConfigError, type Environment }

/** What may be given outside the file. `undefined` is not given. */
export interface Overrides {
  readonly host?: string | undefined
  readonly port?: string | undefined
  readonly logLevel?: string | undefined
  /** Upstream URLs by name. */
  readonly upstreams?: Readonly<Record<string, string>>
}

const DEFAULT_FILE = 'config/governor.yaml'

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

/** Takes sections out that have nothing but comments in them, so that they are as if they were not there. */
function dropEmptySections(tree: Tree, { shape = {} }: Inside = insideOf(configSchema)): void {
  for (const [key, schema] of Object.entries(shape)) {
    const inside = insideOf(schema)
    const value = tree[key]
    if (value === null && (inside.shape || inside.valueType)) delete tree[key]
    else if (isTree(value)) dropEmptySections(value, inside)
  }
}

/** zod takes `__proto__` out of records and says nothing: an upstream or a header of that name would be lost. */
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
  readonly readingOf?: ReadingFinder | undefined
}

/** Parses a file's text; variables stand in values only. */
function parseFile(source: string, file: string, env: Environment): Parsed {
  const lines = new LineCounter()
  const document = parseDocument(protectVariables(source), { lineCounter: lines, prettyErrors: true })
  const [error] = document.errors
  if (error) {
    const told = error.message.replace(
      /^Source contains multiple documents.* at/,
      'a second document begins at',
    )
    const what = told.split('\n')[0]?.replace(/:$/, '')
    throw new ConfigError(`${file}: not valid YAML: ${what}`)
  }
  const whereIs = (node: Scalar) => {
    const position = node.range ? lines.linePos(node.range[0]).line : '?'
    return `${file}, line ${position}`
  }
  refusePrototypes(document, whereIs)
  const readingOf = expandVariables(document, env, whereIs)
  const tree = treeOf(document, file)
  if (!isTree(tree)) throw new ConfigError(`${file}: found ${describe(tree)}: expected keys and values`)
  dropEmptySections(tree)
  return { tree, lineOf: lineFinder(document, lines), readingOf }
}

/** Why a file can't be read, in words where these are known, else Node's code for it. */
export function whyUnreadable(error: unknown): string {
  const { code, message } = error as NodeJS.ErrnoException
  if (code === 'ENOENT') return 'no such file'
  if (code === 'EACCES') return 'permission denied'
  if (code === 'EISDIR') return 'a folder'
  return code ?? message
}

function readBytes(file: string, isRequired: boolean): Buffer | undefined {
  try {
    return readFileSync(file)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT' && !isRequired) return undefined
    throw new ConfigError(
      `${file}: can't be read (${whyUnreadable(error)}): check the path given with --config or GOVERNOR_CONFIG`,
    )
  }
}

function readText(file: string, isRequired: boolean): string | undefined {
  const bytes = readBytes(file, isRequired)
  if (bytes && !isUtf8(bytes)) throw new ConfigError(`${file}: is not in UTF-8: save it in that encoding`)
  return bytes?.toString()
}

function branch(tree: Tree, key: string): Tree {
  const value = tree[key]
  if (isTree(value)) return value
  const fresh: Tree = {}
  tree[key] = fresh
  return fresh
}

/** Where a value came from when it was not the file, by its path; for messages. */
type Origins = ReadonlyMap<string, string>

/** What flags and variables are called. */
interface Names {
  readonly host: string
  readonly port: string
  readonly logLevel: string
  upstream(name: string): string
}

const FLAGS: Names = {
  host: '--host',
  port: '--port',
  logLevel: '--log-level',
  upstream: () => '--upstream',
}

const VARIABLES: Names = {
  host: 'HOST',
  port: 'PORT',
  logLevel: 'LOG_LEVEL',
  upstream: (name) => `${name.toUpperCase()}_UPSTREAM_URL`,
}

/** Puts what was given outside the file into the tree, and notes where it came from. */
function override(tree: Tree, given: Overrides, names: Names, origins: Map<string, string>): void {
  if (given.host !== undefined) {
    branch(tree, 'server')['host'] = given.host
    origins.set('server.host', names.host)
  }
  if (given.port !== undefined) {
    branch(tree, 'server')['port'] = /^-?\d+$/.test(given.port) ? Number(given.port) : given.port
    origins.set('server.port', names.port)
  }
  if (given.logLevel !== undefined) {
    branch(tree, 'log')['level'] = given.logLevel
    origins.set('log.level', names.logLevel)
  }
  for (const [name, url] of Object.entries(given.upstreams ?? {})) {
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
  // A URL may hold a password, and a key.
  const shown = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? String(value))
  return shown.includes('://') ? shown.replace(/\/\/[^/@]*@/g, '//…@').replace(/\?[^"]+/, '?…') : shown
}

/** Paths under which a secret may stand: those named so, and an upstream that is not written as keys and values. */
const SECRET = /key|token(?!s)|secret|password|headers|^upstreams\.[^.]*$/i

/** Types in words. */
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

/** What is known of a schema's insides; zod has a type for each kind, and these are common to those used here. */
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

/** The keys that an object at `path` may have; none where there is no object, or any key may stand. */
function keysAt(path: readonly PropertyKey[]): string[] {
  let inside = insideOf(configSchema)
  for (const key of path) {
    const next = inside.shape?.[String(key)] ?? inside.valueType ?? inside.element
    if (!next) return []
    inside = insideOf(next)
  }
  return Object.keys(inside.shape ?? {})
}

/** Where a tree came from. */
interface Source {
  /** The file's name, or what stands for it. */
  readonly name: string
  readonly origins: Origins
  readonly lineOf?: LineFinder | undefined
}

function problem(issue: z.core.$ZodIssue, tree: Tree, { name, origins, lineOf }: Source): string[] {
  const path = issue.path.map(String).join('.')
  const origin = origins.get(path) ?? name
  const at = path === '' ? origin : `${origin}: ${path}`
  /** The line, where that is the file's. */
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
  // Lists, keys and nothing are described without what is in them.
  const isHidden = SECRET.test(path) && typeof value !== 'object' && value !== undefined && value !== ''
  const found = isHidden ? TYPES[typeof value] : describe(value)
  return [`${at}: found ${found}: ${expected(issue)}${inLine(issue.path)}`]
}

/** Of the upstreams that are always there, a file may set a key or headers alone. */
function fillInUrls(tree: Tree): void {
  const upstreams = tree['upstreams']
  for (const [name, { url }] of Object.entries(DEFAULT_UPSTREAMS)) {
    const given = isTree(upstreams) ? upstreams[name] : undefined
    if (isTree(given) && given['url'] === undefined) given['url'] = url
  }
}

/** Checks a configuration tree. @throws {ConfigError} naming every wrong key, what was found and what was expected. */
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

/** Where a value that holds variables is none of the type that is wanted, it is read the other way. */
function rereadVariables(tree: Tree, readingOf: ReadingFinder): void {
  const wrongPaths = () => configSchema.safeParse(tree).error?.issues.map(({ path }) => path) ?? []
  for (const path of wrongPaths()) {
    const reading = readingOf(path)
    const holder = valueAt(tree, path.slice(0, -1))
    const key = path.at(-1)
    // What a flag or a variable of Governor's own put there stays.
    if (!reading || key === undefined || valueAt(tree, path) !== reading.value) continue
    Object.assign(holder as object, { [key]: reading.other })
    const isWrong = wrongPaths().some((other) => other.join('.') === path.join('.'))
    if (isWrong) Object.assign(holder as object, { [key]: reading.value })
  }
}

/** Keys that are gone, by their paths, and what is there instead: accepted, and of no effect, until the next minor version. */
const GONE: Readonly<Record<string, string>> = {
  'loop_guard.window_size':
    'loop_guard.standstill says after how many responses without anything new a run is in a loop',
}

/** Takes keys out that are gone, and says of each in one line what to use instead. */
function dropGoneKeys(tree: Tree, name: string, lineOf: LineFinder | undefined): string[] {
  return Object.entries(GONE).flatMap(([gone, successor]) => {
    const path = gone.split('.')
    const holder = valueAt(tree, path.slice(0, -1))
    const key = path.at(-1) ?? ''
    if (!isTree(holder) || !Object.hasOwn(holder, key)) return []
    const line = lineOf?.(path)
    delete holder[key]
    return [`${name}: ${gone} is no longer used: ${successor}${line === undefined ? '' : ` (line ${line})`}`]
  })
}

export interface Loaded {
  readonly config: Config
  /** One line for each key that is no longer used. */
  readonly warnings: readonly string[]
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
  const { tree, lineOf, readingOf }: Parsed =
    source === undefined ? { tree: {} } : parseFile(source, file, env)
  const origins = new Map<string, string>()
  override(tree, fromEnvironment(env), VARIABLES, origins)
  override(tree, flags, FLAGS, origins)
  const warnings = dropGoneKeys(tree, file, lineOf)
  if (readingOf) rereadVariables(tree, readingOf)
  return {
    config: checkConfig(tree, source === undefined ? 'configuration' : file, origins, lineOf),
    warnings,
    file: source === undefined ? undefined : file,
  }
}
