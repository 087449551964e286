/** Generates the documents about the configuration from its schema; `npm run schema` writes them to files. */
import { Document, Pair, Scalar, stringify, YAMLMap, YAMLSeq } from 'yaml'
import * as z from 'zod'
import { configSchema } from '../src/config/schema.ts'
import { SETTINGS, variableOf } from '../src/config/settings.ts'
import { isObject } from '../src/core/json-object.ts'

type Properties = Readonly<Record<string, Node>>

/** The parts of a JSON Schema that these documents use. */
interface Node {
  readonly description?: string
  readonly default?: unknown
  readonly examples?: readonly unknown[]
  readonly enum?: readonly unknown[]
  readonly properties?: Properties
  /** The schema of a record's values. */
  readonly additionalProperties?: Node | boolean
  readonly items?: Node
}

/** Returns the JSON Schema (draft 7) of a configuration file, for editors: `config/schema.json`. */
export function jsonSchema(): object {
  return z.toJSONSchema(configSchema, {
    io: 'input',
    target: 'draft-7',
    override: ({ zodSchema, jsonSchema }) => {
      // zod leaves out the examples of transformed values, as they need not match the result; these match the file.
      const { examples, reloaded, description } = z.globalRegistry.get(zodSchema) ?? {}
      if (Array.isArray(examples)) jsonSchema.examples = examples
      if (reloaded) jsonSchema.description = `${description} Reloaded on SIGHUP.`
      delete jsonSchema['reloaded']
    },
  })
}

const VARIABLES = SETTINGS.flatMap((one) => (one.always ? [] : [`  ${variableOf(one).padEnd(26)}${one.path}\n`]))

const HEAD = `yaml-language-server: $schema=./schema.json

Governor's configuration. Every key is here, with its default: leave out what you don't change.
This file is written by \`npm run schema\` from src/config.

Governor reads the file that --config or GOVERNOR_CONFIG names, else the first of governor.yaml and config/governor.yaml in the
directory it is started in, and ~/.config/governor/governor.yaml. A flag wins over the environment, the environment over this file, this file over the defaults.
${VARIABLES.join('')}REDIS_URL also sets store: redis; GOVERNOR_UPSTREAM sets all built-in upstreams, or one as NAME=URL.

Governor replaces \${VAR} and \${VAR:-default} in values; an empty variable counts as one that is not set.
$\${ is a plain \${.
Lengths of time: 500ms, 30s, 15m, 1h, 2d. Sizes: 512kb, 64mb, 1gb.

\`governor check-config\` says what is wrong with this file.
SIGHUP reloads the sections and keys that say so, from the next request on; a file with a mistake changes nothing. All
others need a restart, and the log names the keys that have changed.`

/** Characters in a line of the file. */
const WIDTH = 120
/** Characters from which a value takes several lines. */
const LONG = 80

/** Breaks a text into lines of at most `width` characters; all but the first begin with `indent` spaces. */
function wrapped(text: string, width: number, indent = 0): string {
  const lines: string[] = []
  for (const word of text.split(' ')) {
    const line = lines.at(-1)
    if (line !== undefined && line.length + 1 + word.length <= width) lines[lines.length - 1] = `${line} ${word}`
    else lines.push(line === undefined ? word : ' '.repeat(indent) + word)
  }
  return lines.join('\n')
}

/** Returns the keys of each value of a record; `undefined` for other nodes, and for records of texts. */
function recordOf({ additionalProperties: values }: Node): Properties | undefined {
  return typeof values === 'object' ? values.properties : undefined
}

function rootKeys(): Properties {
  return (jsonSchema() as Node).properties ?? {}
}

/** Returns the keys that an entry of a list of objects may have; empty for other nodes. */
function entryKeys({ items }: Node): [key: string, node: Node][] {
  return Object.entries(items?.properties ?? {})
}

const FLOW = { lineWidth: 0, singleQuote: true, collectionStyle: 'flow' } as const

/** Returns the lines of an example of a list of objects: one per entry, or one per key if that is too long. */
function exampleLines(example: readonly unknown[]): string[] {
  return example.flatMap((entry) => {
    const line = stringify(entry, FLOW).trimEnd()
    const isLong = line.length > WIDTH - 6
    const lines = isLong
      ? stringify(entry, { ...FLOW, collectionStyle: 'block' })
          .trimEnd()
          .split('\n')
      : [line]
    return lines.map((text, at) => (at === 0 ? `  - ${text}` : `    ${text}`))
  })
}

/** Returns the lines of a key's comment; the key begins at `column`. */
function commentOf(node: Node, column: number): string[] {
  const [example] = node.examples ?? []
  const keys = entryKeys(node)
  const width = WIDTH - column - 2
  const lines = [wrapped(node.description ?? '', width)]
  if (keys.length > 0) {
    const widest = Math.max(...keys.map(([key]) => key.length)) + 2
    lines.push('Keys of an entry:')
    for (const [key, { description }] of keys)
      lines.push(wrapped(`  ${key.padEnd(widest)}${description}`, width, widest + 2))
  }
  if (Array.isArray(example)) {
    if (keys.length > 0) lines.push('For example:', ...exampleLines(example))
    else lines.push(`For example: ${stringify(example, { ...FLOW, flowCollectionPadding: false }).trimEnd()}`)
  }
  return lines
}

/** Returns lines as the text of a YAML comment, with its blank lines. */
function comment(lines: readonly string[]): string {
  return lines.join('\n').replace(/^/gm, ' ')
}

/** The place in the file that is written. */
interface Place {
  /** Spaces before the keys. */
  readonly column: number
  /** Keys get comments; the second upstream does not repeat the comments of the first. */
  readonly isExplained: boolean
  /** Name of the upstream, for its examples. */
  readonly name?: string
}

function valueNode(value: unknown): Scalar | YAMLMap | YAMLSeq {
  if (Array.isArray(value)) {
    const list = new YAMLSeq()
    for (const item of value) list.add(item)
    list.flow = value.join(', ').length < LONG
    return list
  }
  if (isObject(value)) {
    const map = new YAMLMap()
    for (const [key, inner] of Object.entries(value)) map.set(key, inner)
    map.flow = true
    return map
  }
  const scalar = new Scalar(value)
  if (typeof value === 'string' && value.length > LONG) scalar.type = 'BLOCK_FOLDED'
  return scalar
}

/** Keys with another default under `governor run`: in the file they stand in a comment, so that it does not undo that. */
const UNSET: ReadonlySet<string> = new Set(['footer'])

/** Returns a map of all keys of a section; `values` win over the defaults. */
function sectionNode(properties: Properties, values: unknown, place: Place): YAMLMap {
  const map = new YAMLMap()
  let before: string[] = []
  for (const [key, node] of Object.entries(properties)) {
    const lines = [...before, ...(place.isExplained ? commentOf(node, place.column) : [])]
    const value = isObject(values) && Object.hasOwn(values, key) ? values[key] : node.default
    before = []
    if (value === undefined || UNSET.has(key)) {
      // A key without a default stands in a comment, which YAML attaches to the next key, or to the map.
      const [given = ''] = node.examples ?? [value]
      const example = isObject(given) ? stringify(given, FLOW).trimEnd() : given
      before = [...lines, `${key}: ${example}`.replace('NAME', (place.name ?? '').toUpperCase()).trimEnd()]
      continue
    }
    const name = new Scalar(key)
    if (lines.length > 0) name.commentBefore = comment(lines)
    name.spaceBefore = place.column === 0 && map.items.length > 0
    map.add(new Pair(name, nodeOf(node, value, place)))
  }
  if (before.length > 0) map.comment = comment(before)
  return map
}

function nodeOf(node: Node, value: unknown, place: Place): Scalar | YAMLMap | YAMLSeq {
  const inside = { ...place, column: place.column + 2 }
  if (node.properties) return sectionNode(node.properties, value, inside)
  const values = recordOf(node)
  if (!values || !isObject(value)) return valueNode(value)
  const map = new YAMLMap()
  for (const [at, [name, entry]] of Object.entries(value).entries()) {
    const entryPlace = { column: inside.column + 2, isExplained: at === 0, name }
    map.add(new Pair(new Scalar(name), sectionNode(values, entry, entryPlace)))
  }
  return map
}

/** Returns `config/governor.yaml`: every key of the configuration with its default and a comment about its effect. */
export function commentedFile(): string {
  const document = new Document()
  document.commentBefore = comment(HEAD.split('\n'))
  document.contents = sectionNode(rootKeys(), {}, { column: 0, isExplained: true })
  return document.toString({ lineWidth: 100, singleQuote: true, flowCollectionPadding: false })
}

function firstSentence(text: string): string {
  const [sentence = ''] = /^.*?(?=\.(?: |$)|$)/.exec(text) ?? []
  return sentence
}

const code = (text: string) => `\`${text}\``

/** Returns a default value as the table shows it. */
function defaultText(value: unknown): string {
  if (value === undefined) return 'none'
  if (typeof value === 'string' && value.includes(' ')) return 'see the file'
  return code(Array.isArray(value) ? `[${value.join(', ')}]` : isObject(value) ? '{}' : String(value))
}

interface Row {
  readonly keys: readonly string[]
  readonly defaults: readonly unknown[]
  readonly node: Node
}

/** Returns the rows of the table: one per key, and one for an inner section with several keys. */
function rowsOf(properties: Properties, path: readonly string[] = []): Row[] {
  return Object.entries(properties).flatMap(([key, child]): Row[] => {
    const at = [...path, key]
    const values = recordOf(child)
    if (values) {
      const entries = Object.values(child.default ?? {}).filter(isObject)
      return rowsOf(values, [...at, 'NAME']).map((row) => {
        const last = row.keys[0]?.split('.').at(-1) ?? ''
        const defaults = entries.flatMap((entry) => (Object.hasOwn(entry, last) ? [entry[last]] : []))
        return defaults.length === 0 ? row : { ...row, defaults }
      })
    }
    if (!child.properties) return [{ keys: [at.join('.')], defaults: [child.default], node: child }]
    const inner = rowsOf(child.properties, at)
    if (path.length === 0 || inner.length === 1) return inner
    return [
      {
        keys: inner.flatMap(({ keys }) => keys),
        defaults: inner.flatMap(({ defaults }) => defaults),
        node: child,
      },
    ]
  })
}

function rowText({ keys: [first = '', ...others], defaults, node }: Row): string {
  const names = [first, ...others.map((key) => key.slice(key.lastIndexOf('.')))]
  const cells = new Set(defaults.map(defaultText))
  const options = node.enum && node.enum.length > 1 ? node.enum.map(String) : []
  const keys = entryKeys(node).map(([key]) => key)
  const details = keys.length > 0 ? [`{${keys.join(', ')}}`] : options
  const effect =
    firstSentence(node.description ?? '') + (details.length === 0 ? '' : `: ${details.map(code).join(', ')}`)
  return `| ${names.map(code).join(', ')} | ${[...cells].join(', ')} | ${effect} |\n`
}

/** Returns the table of `docs/configuration.md`: every key, its default, and the first sentence of its description. */
export function configurationTable(): string {
  const rows = rowsOf(rootKeys()).map(rowText)
  return `| key | default | what it does |\n|---|---|---|\n${rows.join('')}`
}

/** Returns the table of `docs/commands.md`: every flag and variable that sets a key of the configuration. */
export function settingsTable(): string {
  const cell = (text: string | undefined) => (text ? code(text) : '')
  const rows = SETTINGS.filter(({ always }) => !always).map((one) => {
    const { flag, value, path, help = '' } = one
    const typed = flag && `--${flag}${value ? ` ${value}` : ''}`
    return `| ${cell(typed)} | ${cell(variableOf(one))} | ${cell(path)} | ${help} |\n`
  })
  return `| flag | variable | key | what it sets |\n|---|---|---|---|\n${rows.join('')}`
}

/** A client that was tried: what its user sets and sees. */
interface Tried {
  readonly package: string
  readonly version: string
  readonly setting: string
  readonly over: string
  readonly caution: string
  readonly block?: string
  readonly stop?: string
  readonly upgrade?: string
}

/** Returns the table of the clients that were tried, by their names: `test/agents/results.json` as Markdown. */
export function clientsTable(results: Readonly<Record<string, Tried>>): string {
  const rows = Object.entries(results)
    .sort(([one], [other]) => (one.toLowerCase() < other.toLowerCase() ? -1 : 1))
    .map(([client, { package: name, version, setting, over, caution, block = '', stop = '', upgrade = '' }]) => {
      const tried = `${code(name)} ${version}`
      return `| ${[client, tried, over, setting, caution, block, stop, upgrade].join(' | ')} |\n`
    })
  const head = ['client', 'tried with', 'over', 'set', 'budget low', 'call blocked', 'run stopped', 'our 426']
  return `| ${head.join(' | ')} |\n${'|---'.repeat(head.length)}|\n${rows.join('')}`
}
