/** Loads the configuration: flags win over the environment, it over the file, and the file over the defaults. */
import { isUtf8 } from 'node:buffer'
import { existsSync, readFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import type * as z from 'zod'
import { isObject, type Json } from '../core/json-object.ts'
import { type Config, configSchema, isReloaded } from './schema.ts'
import { type FlagName, type Flags, SETTINGS, type Setting, UPSTREAM, variableOf } from './settings.ts'
import { DEFAULT_UPSTREAMS } from './upstreams.ts'
import { ConfigError, type Environment, type LineFinder, parseYaml } from './yaml-file.ts'

export { ConfigError, type Environment, type Flags }

/** Removes sections that contain only comments, so that they get their defaults. */
function dropEmptySections(tree: Json, { shape = {} }: Inside = insideOf(configSchema)): void {
  for (const [key, schema] of Object.entries(shape)) {
    const inside = insideOf(schema)
    const value = tree[key]
    if (value === null && (inside.shape || inside.valueType)) delete tree[key]
    else if (isObject(value)) dropEmptySections(value, inside)
  }
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
  try {
    const bytes = readFileSync(file)
    if (isUtf8(bytes)) return bytes.toString()
  } catch (error) {
    const why = whyUnreadable(error)
    throw new ConfigError(`${file}: can't be read (${why}): check the path given with --config or GOVERNOR_CONFIG`)
  }
  throw new ConfigError(`${file}: is not in UTF-8: save it in that encoding`)
}

function setAt(tree: Json, path: readonly string[], value: unknown): void {
  let inner = tree
  for (const key of path.slice(0, -1)) {
    const next = inner[key]
    const inside = isObject(next) ? next : {}
    inner[key] = inside
    inner = inside
  }
  inner[path.at(-1) ?? ''] = value
}

/** A value that does not come from the file; `origin` is the flag or variable that set it, for messages. */
type Given = readonly [path: string, value: string, origin: string]

/** Returns the URL of an upstream, or of both upstreams that always exist. */
function upstreamsGiven(text: string, origin: string): Given[] {
  const [, name, url = text] = /^([A-Za-z0-9][\w-]*)=(.+)$/.exec(text) ?? []
  const names = name === undefined ? Object.keys(DEFAULT_UPSTREAMS) : [name]
  return names.map((one) => [`upstreams.${one}.url`, url, origin])
}

/** Returns what the environment sets, and after it what the flags set, which win. */
function valuesGiven(flags: Flags, env: Environment): readonly Given[] {
  const settings: readonly Setting[] = SETTINGS
  const given: Given[] = []
  // An empty variable counts as not set, because compose files pass unset variables as empty.
  const upstream = env[variableOf(UPSTREAM)]
  if (upstream) given.push(...upstreamsGiven(upstream, variableOf(UPSTREAM)))
  for (const setting of settings) {
    const value = env[variableOf(setting)]
    if (value) given.push([setting.path, setting.always ?? setting.words?.[value] ?? value, variableOf(setting)])
  }
  for (const text of flags.upstream ?? []) given.push(...upstreamsGiven(text, '--upstream'))
  for (const { path, flag, words } of settings) {
    const value = flag && flags[flag as FlagName]
    if (value !== undefined) given.push([path, words?.[String(value)] ?? value, `--${flag}`])
  }
  return given
}

/** Returns a value as messages show it; lists, objects and parts of URLs are hidden, as they may hold secrets. */
function describe(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'a list'
  if (isObject(value)) return 'keys and values'
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? String(value))
  return text.includes('://') ? text.replace(/\/\/[^/@]*@/g, '//…@').replace(/\?[^"]+/, '?…') : text
}

/** Paths whose values may be secrets: by their names, and an upstream that is not written as keys and values. */
const SECRET = /key|token(?!s)|secret|password|headers|^upstreams\.[^.]*$/i

const TYPES: Readonly<Record<string, string>> = {
  string: 'a text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  object: 'keys and values',
  record: 'keys and values',
}

/** The messages of issues about which the schema says nothing itself. */
function expected(issue: z.core.$ZodRawIssue): string | undefined {
  switch (issue.code) {
    case 'invalid_type':
      return `expected ${TYPES[issue.expected] ?? issue.expected}`
    case 'invalid_value':
      return `expected one of ${issue.values.map(String).join(', ')}`
    case 'too_small':
      return issue.origin === 'string' || issue.origin === 'array'
        ? `expected ${TYPES[issue.origin]} that is not empty`
        : `expected at least ${issue.minimum}`
    case 'too_big':
      return `expected at most ${issue.maximum}`
    default:
      return undefined
  }
}

function valueAt(tree: unknown, path: readonly PropertyKey[]): unknown {
  let value = tree
  for (const key of path) value = value !== null && typeof value === 'object' ? Reflect.get(value, key) : undefined
  return value
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

/** Where a tree comes from, for messages. */
interface Source {
  readonly name: string
  /** The flags and variables that set values, by the paths of these. */
  readonly origins?: ReadonlyMap<string, string>
  readonly lineOf?: LineFinder | undefined
}

/** Returns the lines of a message about an issue. */
function problem(issue: z.core.$ZodIssue, tree: Json, { name, origins, lineOf }: Source): string[] {
  const path = issue.path.map(String).join('.')
  const origin = origins?.get(path)
  const at = path === '' ? `${origin ?? name}: ` : `${origin ?? name}: ${path}: `
  const inLine = (place: readonly PropertyKey[]): string => {
    const line = origin === undefined ? lineOf?.(place) : undefined
    return line === undefined ? '' : ` (line ${line})`
  }
  if (issue.code === 'unrecognized_keys') {
    const known = keysAt(issue.path)
    const hint = known.length > 0 ? `: expected one of ${known.join(', ')}` : ''
    const before = path === '' ? at : `${at.slice(0, -2)}.`
    return issue.keys.map((key) => `${before}${key}: unknown key${hint}${inLine([...issue.path, key])}`)
  }
  if (issue.code === 'invalid_key') return issue.issues.map(({ message }) => at + message + inLine(issue.path))
  const value = valueAt(tree, issue.path)
  // Objects, and values that are missing or empty, are described without any content.
  const isHidden = SECRET.test(path) && typeof value !== 'object' && value !== undefined && value !== ''
  return [`${at}found ${isHidden ? TYPES[typeof value] : describe(value)}: ${issue.message}${inLine(issue.path)}`]
}

/** Checks a configuration tree. Throws `ConfigError`: every wrong key, its value and what is expected. */
export function checkConfig(tree: Json, name: string, source: Omit<Source, 'name'> = {}): Config {
  const upstreams = tree['upstreams']
  for (const [upstream, { url }] of Object.entries(DEFAULT_UPSTREAMS)) {
    const settings = isObject(upstreams) ? upstreams[upstream] : undefined
    // A file may set only a key or headers of the upstreams that always exist.
    if (isObject(settings) && settings['url'] === undefined) settings['url'] = url
  }
  const checked = configSchema.safeParse(tree, { error: expected })
  if (checked.success) return checked.data
  const problems = checked.error.issues.flatMap((issue) => problem(issue, tree, { name, ...source }))
  throw new ConfigError(problems.join('\n'))
}

/**
 * The value of a variable is a text. Where the schema expects no text, the number or the truth value that it is written
 * as takes its place.
 */
function typeVariables(tree: Json, expanded: ReadonlySet<string>): void {
  for (const { code, path } of configSchema.safeParse(tree).error?.issues ?? []) {
    const text = valueAt(tree, path)
    const isOtherType = code === 'invalid_type' || code === 'invalid_union'
    if (!isOtherType || typeof text !== 'string' || !expanded.has(text)) continue
    const isNumber = text.trim() !== '' && !Number.isNaN(Number(text))
    const typed = isNumber ? Number(text) : text === 'true' || (text === 'false' ? false : text)
    Object.assign(valueAt(tree, path.slice(0, -1)) as object, { [path.at(-1) ?? '']: typed })
  }
}

export interface Loaded {
  readonly config: Config
  /** The name of the file; `undefined` if there was none. */
  readonly file: string | undefined
}

/** Loads and checks the configuration. Throws `ConfigError`. */
export function loadConfig(flags: Flags, env: Environment): Loaded {
  const home = env['HOME'] || env['USERPROFILE']
  const inHome = home ? [`${home}/.config/governor/governor.yaml`] : []
  const usual = ['governor.yaml', 'config/governor.yaml', ...inHome]
  const file = flags.config ?? (env['GOVERNOR_CONFIG'] || usual.find((path) => existsSync(path)))
  const name = file ?? 'configuration'
  const parsed = file === undefined ? undefined : parseYaml(readText(file), file, env)
  const tree = parsed?.contents ?? {}
  if (!isObject(tree)) throw new ConfigError(`${name}: found ${describe(tree)}: expected keys and values`)
  dropEmptySections(tree)
  const texts = new Set(parsed?.expanded)
  const origins = new Map<string, string>()
  for (const [path, value, origin] of valuesGiven(flags, env)) {
    setAt(tree, path.split('.'), value)
    texts.add(value)
    origins.set(path, origin)
  }
  if (texts.size > 0) typeVariables(tree, texts)
  return { config: checkConfig(tree, name, { origins, lineOf: parsed?.lineOf }), file }
}

function addDiffering(before: unknown, after: unknown, path: string, paths: string[]): void {
  if (isObject(before) && isObject(after))
    for (const key of new Set([...Object.keys(before), ...Object.keys(after)]))
      addDiffering(before[key], after[key], `${path}.${key}`, paths)
  else if (!isDeepStrictEqual(before, after)) paths.push(path)
}

/** Returns the paths of at most 20 keys whose change only a restart applies, without their values. */
export function restartKeys(running: Config, changed: Config): string[] {
  const paths: string[] = []
  for (const section of Object.keys(running) as (keyof Config)[])
    if (!isReloaded(section)) addDiffering(running[section], changed[section], section, paths)
  return paths.slice(0, 20)
}
