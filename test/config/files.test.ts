import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { parseDocument } from 'yaml'
import { jsonSchema } from '../../src/config/json-schema.ts'
import { checkConfig, loadConfig } from '../../src/config/load.ts'
import { restartKeys } from '../../src/config/restart.ts'

const EXAMPLE = 'config/governor.yaml'

interface Node {
  readonly description?: string
  readonly properties?: Readonly<Record<string, Node>>
  readonly additionalProperties?: Node | boolean
}

const schema = jsonSchema() as Node

/** Every key that the schema names, with its path; `*` is any name. */
function keysOf(node: Node, path = ''): { readonly path: string; readonly node: Node }[] {
  const named = Object.entries(node.properties ?? {})
  const free = typeof node.additionalProperties === 'object' ? node.additionalProperties : undefined
  return [
    ...named.flatMap(([key, inner]) => [
      { path: path + key, node: inner },
      ...keysOf(inner, `${path + key}.`),
    ]),
    ...(free ? keysOf(free, `${path}*.`) : []),
  ]
}

function isTree(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The path of every key in a document; upstreams have any name. */
function pathsOf(tree: Record<string, unknown>, path = ''): string[] {
  return Object.entries(tree).flatMap(([key, value]) => {
    const name = path === 'upstreams.' ? '*' : key
    const own = name === '*' ? [] : [path + name]
    return [...own, ...(isTree(value) ? pathsOf(value, `${path}${name}.`) : [])]
  })
}

describe('config/governor.yaml', () => {
  const text = readFileSync(EXAMPLE, 'utf8')

  it('is valid, and every value in it is the default', () => {
    const { config, file } = loadConfig({ config: EXAMPLE }, {})
    expect(file).toBe(EXAMPLE)
    expect(config).toEqual(checkConfig({}, 'nothing'))
  })

  it('has every key there is and no other, those that are commented out included', () => {
    // A commented key is a comment sign, one space and YAML that would fit if both were gone.
    const active = text.replace(/^( *)# ((?: {2})*[a-z_]+:(?: (?:\$\{\w+\}|false|true))?)$/gm, '$1$2')
    const document = parseDocument(active)
    expect(document.errors).toEqual([])
    const known = keysOf(schema).map(({ path }) => path)
    expect(new Set(pathsOf(document.toJS()))).toEqual(new Set(known))
  })

  it('tells editors where its schema is', () => {
    expect(text.split('\n')[0]).toBe('# yaml-language-server: $schema=./schema.json')
  })
})

describe('config/schema.json', () => {
  it('is what the configuration schema says: npm run schema writes it', () => {
    expect(JSON.parse(readFileSync('config/schema.json', 'utf8'))).toEqual(jsonSchema())
  })

  it('describes every key', () => {
    const silent = keysOf(schema).filter(({ node }) => !node.description)
    expect(silent.map(({ path }) => path)).toEqual([])
    expect(keysOf(schema).length).toBeGreaterThan(40)
  })
})

describe('a section of the configuration', () => {
  const config = checkConfig({}, 'test')
  it.each(Object.entries(schema.properties ?? {}))(
    '%s is named after a reload if it changed, unless its description says that it is reloaded',
    (name, { description = '' }) => {
      const changed = { ...config, [name]: 'changed' }
      expect(restartKeys(config, changed)).toEqual(description.includes('Reloaded on SIGHUP') ? [] : [name])
    },
  )
})
