/** Loads the configuration: flags win over the environment, it over the file, and the file over the defaults. */

import { isUtf8 } from 'node:buffer'
import { existsSync, readFileSync } from 'node:fs'
import { isDeepStrictEqual } from 'node:util'
import type * as z from 'zod'
import { isObject, type Json } from '../core/json-object.ts'
import { whyUnreadable } from '../core/thrown.ts'
import { didYouMean } from './did-you-mean.ts'
import { type Config, configSchema } from './schema.ts'
import { type FlagName, type Flags, SETTINGS, type Setting, variableOf } from './settings.ts'
import { DEFAULT_UPSTREAMS, upstreams } from './upstreams.ts'
import { ConfigError, type Environment, lineOf, parseYaml, type YamlFile } from './yaml-file.ts'

export { ConfigError, type Environment, type Flags }

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
    const before = inner[key]
    // Of a list of limits, what is meant is the one for all requests.
    const inList = Array.isArray(before)
      ? before.find((one) => isObject(one) && (one['per'] ?? 'all') === 'all')
      : before
    const inside: Json = isObject(inList) ? inList : {}
    if (Array.isArray(before)) {
      if (inside !== inList) before.push(inside)
    } else inner[key] = inside
    inner = inside
  }
  inner[path.at(-1) ?? ''] = value
}

/** A value that does not come from the file; `origin` is the flag or variable that set it, for messages. */
type SetValue = readonly [path: string, value: string, origin: string]

/** Returns what URLs and NAME=URLs set: one alone is that of all upstreams that have none of their own. */
function upstreamsBy(texts: readonly string[], origin: string): SetValue[] {
  const given = new Map<string, string>()
  for (const text of texts) {
    const [, name = '', url = text] = /^([A-Za-z0-9][\w-]*)=(.+)$/.exec(text) ?? []
    const { error } = upstreams.safeParse({ [name || 'openai']: { url } }, PARSING)
    const said = (error?.issues ?? []).map((issue) => {
      const { message } = (issue.code === 'invalid_key' && issue.issues[0]) || issue
      return `${origin}: found ${describe(text)}: ${message}`
    })
    if (given.has(name)) said.push(`${origin}: ${name || 'the address of all upstreams'} is given twice: keep one`)
    if (said.length > 0) throw new ConfigError(said.join('\n'))
    given.set(name, url)
  }
  const all = given.get('')
  if (all !== undefined) for (const name of Object.keys(DEFAULT_UPSTREAMS)) given.set(name, given.get(name) ?? all)
  given.delete('')
  return [...given].map(([name, url]) => [`upstreams.${name}.url`, url, origin])
}

function setBy({ path, words, isRepeated }: Setting, texts: readonly string[], origin: string): SetValue[] {
  if (isRepeated) return upstreamsBy(texts, origin)
  return texts.map((text) => [path, words?.[text.toLowerCase()] ?? text, origin])
}

/** Returns what the environment sets, and after it what the flags set, which win. */
function valuesSet(flags: Flags, env: Environment): readonly SetValue[] {
  const values: SetValue[] = []
  for (const setting of SETTINGS) {
    const variable = variableOf(setting)
    const text = env[variable]
    // An empty variable counts as not set, because compose files pass unset variables as empty.
    if (text) values.push(...setBy(setting, [setting.always ?? text], variable))
  }
  for (const setting of SETTINGS) {
    const given = setting.flag && flags[setting.flag as FlagName]
    values.push(...setBy(setting, [given ?? []].flat(), `--${setting.flag}`))
  }
  return values
}

/** Returns a value as messages show it; lists, objects and parts of URLs are hidden, as they may hold secrets. */
function describe(value: unknown): string {
  if (value === undefined) return 'nothing'
  if (Array.isArray(value)) return 'a list'
  if (isObject(value)) return 'keys and values'
  const text = typeof value === 'number' ? String(value) : (JSON.stringify(value) ?? String(value))
  // A password may hold any character, also where it makes the address wrong.
  const shown = text.replace(/^"((?:[\w-]+=)?[\w+.-]+:\/\/)?.*@/s, '"$1…@')
  const host = text.indexOf('://') + 3
  if (host < 3) return shown
  // Without an @, what stands in place of a port may be a password.
  const [before] = /^[^\s"/:[@]*:(?!\d{1,5}["/?#])/.exec(text.slice(host)) ?? []
  return before && !text.includes('@') ? `${text.slice(0, host)}${before}…"` : shown.replace(/\?[^"]+/, '?…')
}

/**
 * Paths whose values may be secrets: by their names, an upstream that is not written as keys and values, and the
 * address of a webhook. `redis.tls` names files, and a file's name is no secret.
 */
const SECRET =
  /^(?!redis\.tls\.).*(?:key|token(?!s)|secret|password|headers)|^upstreams\.[^.]*$|^events\.webhook\.url$/i

const TYPES: Readonly<Record<string, string>> = {
  string: 'a text',
  number: 'a number',
  int: 'a whole number',
  boolean: 'true or false',
  array: 'a list',
  object: 'keys and values',
  record: 'keys and values',
}

/** Returns the schemas of the keys of a section; none for any other value. */
function keysOf(schema: z.ZodType): Readonly<Record<string, z.ZodType>> {
  let inner = schema as z.ZodType & Partial<Pick<z.ZodObject, 'shape'>> & { unwrap?: () => z.ZodType }
  while (!inner.shape && inner.unwrap) inner = inner.unwrap()
  return (inner.shape ?? {}) as Readonly<Record<string, z.ZodType>>
}

/** Returns the paths of the keys of a section and of the sections in it, from its own ones down. */
function keysBelow(section: z.ZodType): string[] {
  const keys = Object.entries(keysOf(section))
  return [
    ...keys.map(([key]) => key),
    ...keys.flatMap(([key, inner]) => keysBelow(inner).map((path) => `${key}.${path}`)),
  ]
}

/** Returns a path of keys as the file has it. */
function nested(path: string): string {
  return path
    .split('.')
    .reduceRight((inner, key, at, { length }) => `${key}: ${at < length - 1 ? `{ ${inner} }` : inner}`, '…')
}

function unknownKey(key: string, section: z.ZodObject): string {
  const own = Object.keys(section.shape)
  const below = keysBelow(section)
  const expects = `unknown key: expected one of ${own.join(', ')}`
  // Pages and messages call a key by its path, which YAML takes for a name.
  if (key.includes('.') && below.includes(key)) return `${expects}: write ${nested(key)}`
  const inside = below.find((path) => path.endsWith(`.${key}`))
  // `upstream` is rather `upstreams` than the key of that name in another section.
  const meant = didYouMean(key, own, 1) || (inside ? `: did you mean ${inside}?` : didYouMean(key, own))
  return expects + meant
}

/** Returns what is expected where a value has none of several forms; `undefined` if that is said of its parts alone. */
function oneOfForms(errors: readonly (readonly z.core.$ZodIssue[])[]): string | undefined {
  const expects = errors.flat().flatMap(({ path, message }) => {
    const [, what] = /^expected (.+)$/.exec(message) ?? []
    return path.length === 0 && what !== undefined ? what : []
  })
  return expects.length > 0 ? `expected ${[...new Set(expects)].join(', or ')}` : undefined
}

/** The messages of issues about which the schema says nothing itself; one line for each unknown key. */
function expected(issue: z.core.$ZodRawIssue): string | undefined {
  switch (issue.code) {
    case 'invalid_type': {
      const keys = issue.expected === 'object' ? Object.keys(keysOf(issue.inst as unknown as z.ZodType)) : []
      return `expected ${TYPES[issue.expected] ?? issue.expected}${keys.length > 0 ? `: ${keys.join(', ')}` : ''}`
    }
    case 'invalid_value':
      return `expected one of ${issue.values.join(', ')}${didYouMean(String(issue.input), issue.values.map(String))}`
    case 'too_small':
      return issue.origin === 'string' || issue.origin === 'array'
        ? `expected ${TYPES[issue.origin]} that is not empty`
        : `expected at least ${issue.minimum}`
    case 'too_big':
      return `expected at most ${issue.maximum}`
    case 'unrecognized_keys':
      return issue.keys.map((key) => unknownKey(key, issue.inst as z.ZodObject)).join('\n')
    case 'invalid_union':
      return oneOfForms(issue.errors)
    default:
      return undefined
  }
}

function valueAt(tree: unknown, path: readonly PropertyKey[]): unknown {
  let value = tree
  for (const key of path) value = value !== null && typeof value === 'object' ? Reflect.get(value, key) : undefined
  return value
}

/** Where a tree comes from. */
interface Source {
  /** The flags and variables that set values, by the paths of these. */
  readonly origins?: ReadonlyMap<string, string>
  /** The values of variables and flags, and values that hold one: whether they are numbers only the schema knows. */
  readonly texts?: ReadonlySet<string>
  readonly yaml?: YamlFile | undefined
}

/** Returns issues; in place of one about a choice of forms, those about the form that the value has, if it has one. */
function inForm(issues: readonly z.core.$ZodIssue[], tree: Json): readonly z.core.$ZodIssue[] {
  return issues.flatMap((issue) => {
    if (issue.code !== 'invalid_union' || typeof valueAt(tree, issue.path) !== 'object') return issue
    const isOfForm = (one: z.core.$ZodIssue) => one.path.length > 0 || one.code !== 'invalid_type'
    const form = issue.errors.find((errors) => errors.length > 0 && errors.every(isOfForm))
    return form
      ? inForm(
          form.map((one) => ({ ...one, path: [...issue.path, ...one.path] })),
          tree,
        )
      : issue
  })
}

/** Returns the lines of a message about an issue. `name`: what messages call the tree. */
function messagesOf(issue: z.core.$ZodIssue, tree: Json, name: string, { origins, yaml }: Source): string[] {
  const path = issue.path.map(String).join('.')
  const origin = origins?.get(path)
  const value = valueAt(tree, issue.path)
  // Objects, and values that are missing or empty, are described without any content.
  const isHidden = SECRET.test(path) && typeof value !== 'object' && value !== undefined && value !== ''
  // A flag or a variable has words of its own for what the file has.
  const words = origin === undefined ? undefined : SETTINGS.find((setting) => setting.path === path)?.words
  const expects = words ? `expected one of ${Object.keys(words).join(', ')}` : issue.message
  let says = [`found ${isHidden ? TYPES[typeof value] : describe(value)}: ${expects}`]
  let places: readonly PropertyKey[][] = [issue.path]
  if (issue.code === 'invalid_key') says = [issue.issues[0]?.message ?? issue.message]
  if (issue.code === 'unrecognized_keys') {
    says = issue.message.split('\n')
    places = issue.keys.map((key) => [...issue.path, key])
  }
  return places.map((place, at) => {
    const line = origin === undefined && yaml ? lineOf(yaml, place) : undefined
    const inLine = line === undefined ? '' : ` (line ${line})`
    return `${origin ?? name}: ${place.map(String).join('.')}: ${says[at]}${inLine}`
  })
}

/**
 * Mends what the texts of files, variables and flags cannot say.
 * - A section that contains only comments is null: it gets its defaults.
 * - Where the schema expects no text, the number or the truth value that a text is written as takes its place.
 */
function mend(tree: Json, issues: readonly z.core.$ZodIssue[], texts: ReadonlySet<string> | undefined): void {
  for (const issue of inForm(issues, tree)) {
    if (issue.code !== 'invalid_type' && issue.code !== 'invalid_union') continue
    const value = valueAt(tree, issue.path)
    let mended = value
    if (value === null) {
      if (issue.code === 'invalid_type' && /^(?:object|record)$/.test(issue.expected)) mended = {}
    } else if (typeof value === 'string' && texts?.has(value)) {
      if (value === 'true' || value === 'false') mended = value === 'true'
      else if (value.trim() !== '' && !Number.isNaN(Number(value))) mended = Number(value)
    }
    Object.assign(valueAt(tree, issue.path.slice(0, -1)) as object, { [issue.path.at(-1) ?? '']: mended })
  }
}

/** A configuration is read once: zod compiles no functions for it, as that takes longer than all its other work. */
const PARSING = { error: expected, jitless: true }

/** Checks a configuration tree. Throws `ConfigError`: every wrong key, its value and what is expected. */
export function checkConfig(tree: Json, name: string, source: Source = {}): Config {
  const first = configSchema.safeParse(tree, PARSING)
  if (first.success) return first.data
  mend(tree, first.error.issues, source.texts)
  const { success, data, error } = configSchema.safeParse(tree, PARSING)
  if (success) return data
  const said = inForm(error.issues, tree).flatMap((issue) => messagesOf(issue, tree, name, source))
  throw new ConfigError(said.join('\n'))
}

export type Loaded = ReturnType<typeof loadConfig>

/**
 * Loads and checks the configuration; `file` is the name of the file, if there was one. `defaults`: values by path that
 * hold where nothing else sets them. Throws `ConfigError`.
 */
export function loadConfig(flags: Flags, env: Environment, defaults: Readonly<Record<string, unknown>> = {}) {
  const home = env['HOME'] || env['USERPROFILE']
  const inHome = home ? [`${home}/.config/governor/governor.yaml`] : []
  const usual = ['governor.yaml', 'config/governor.yaml', ...inHome]
  const file = flags.config ?? (env['GOVERNOR_CONFIG'] || usual.find(existsSync))
  const name = file ?? 'configuration'
  const yaml = file === undefined ? undefined : parseYaml(readText(file), file, env)
  const tree = yaml?.contents ?? {}
  if (!isObject(tree)) throw new ConfigError(`${name}: found ${describe(tree)}: expected keys and values`)
  for (const [path, value] of Object.entries(defaults)) {
    const keys = path.split('.')
    if (valueAt(tree, keys) === undefined) setAt(tree, keys, value)
  }
  const texts = new Set(yaml?.expanded)
  const origins = new Map<string, string>()
  for (const [path, value, origin] of valuesSet(flags, env)) {
    setAt(tree, path.split('.'), value)
    texts.add(value)
    origins.set(path, origin)
  }
  return { config: checkConfig(tree, name, { origins, texts, yaml }), file }
}

/**
 * Adds the paths of what differs, but for what a reload applies. `schema`: of the value; unset below what has keys of
 * any name.
 */
function addDiffering(before: unknown, after: unknown, schema: z.ZodType | undefined, path: string, paths: string[]) {
  if (schema?.meta()?.['reloaded']) return
  const keys = schema && keysOf(schema)
  if (isObject(before) && isObject(after))
    for (const key of new Set([...Object.keys(before), ...Object.keys(after)]))
      addDiffering(before[key], after[key], keys?.[key], path === '' ? key : `${path}.${key}`, paths)
  else if (!isDeepStrictEqual(before, after)) paths.push(path)
}

/** Returns the paths of at most 20 keys whose change only a restart applies, without their values. */
export function restartKeys(running: Config, changed: Config): string[] {
  const paths: string[] = []
  addDiffering(running, changed, configSchema, '', paths)
  return paths.slice(0, 20)
}
