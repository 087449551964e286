import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'
import { parseDocument } from 'yaml'
import { clientsTable, commentedFile, configurationTable, jsonSchema, settingsTable } from '../../scripts/documents.ts'
import { checkConfig, loadConfig, restartKeys } from '../../src/config/load.ts'
import { policiesOf } from '../../src/config/policies.ts'
import type { Config } from '../../src/config/schema.ts'
import { LIMITS, METERS } from '../../src/core/budget/meters.ts'
import { PROGRAMS } from '../agents/program.ts'

const RESULTS = JSON.parse(readFileSync('test/agents/results.json', 'utf8')) as Parameters<typeof clientsTable>[0]

const EXAMPLE = 'config/governor.yaml'

interface Node {
  readonly description?: string
  readonly properties?: Readonly<Record<string, Node>>
  readonly additionalProperties?: Node | boolean
}

const schema = jsonSchema() as Node

/** Every key that the schema names, with its path; NAME is any name. */
function keysOf(node: Node, path = ''): { readonly path: string; readonly node: Node }[] {
  const named = Object.entries(node.properties ?? {})
  const free = typeof node.additionalProperties === 'object' ? node.additionalProperties : undefined
  return [
    ...named.flatMap(([key, inner]) => [{ path: path + key, node: inner }, ...keysOf(inner, `${path + key}.`)]),
    ...(free ? keysOf(free, `${path}NAME.`) : []),
  ]
}

function isTree(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

/** The path of every key in a document; upstreams have any name. */
function pathsOf(tree: Record<string, unknown>, path = ''): string[] {
  return Object.entries(tree).flatMap(([key, value]) => {
    const name = path === 'upstreams.' ? 'NAME' : key
    const own = name === 'NAME' ? [] : [path + name]
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

  it('contains every key of the schema and no other, including those that are commented out', () => {
    const active = text
      .replace(/^( *)# ([a-z_]+: (?:\$\{\w+\}|https:\S+|\d+mb|false))$/gm, '$1$2')
      .replace(/^( *)# ([a-z_]+): \{ .* \}$/gm, '$1$2: 1')
    const document = parseDocument(active)
    expect(document.errors).toEqual([])
    const known = keysOf(schema).map(({ path }) => path)
    expect(new Set(pathsOf(document.toJS()))).toEqual(new Set(known))
  })

  it('names its schema for editors in the first line', () => {
    expect(text.split('\n')[0]).toBe('# yaml-language-server: $schema=./schema.json')
  })
})

/** The keys that the first cell of a row names: `.b` beside `a.c` is `a.b`. */
function keysOfRow([, cell = '']: readonly string[]): string[] {
  const names = [...cell.matchAll(/`(.+?)`/g)].map(([, name = '']) => name)
  const section = names[0]?.replace(/\.[^.]*$/, '') ?? ''
  return names.map((name) => (name.startsWith('.') ? section + name : name))
}

describe('the configuration table of the documents', () => {
  it('has a row for every key that holds a value', () => {
    const rows = [...configurationTable().matchAll(/^\| (`.*?`) \|/gm)]
    const values = keysOf(schema).filter(({ node }) => keysOf(node).length === 0)
    expect(rows.flatMap(keysOfRow)).toEqual(values.map(({ path }) => path))
  })
})

describe('npm run schema', () => {
  it.each([
    ['config/schema.json', `${JSON.stringify(schema, null, 2)}\n`],
    ['config/governor.yaml', commentedFile()],
    ['docs/configuration.md', configurationTable()],
    ['docs/commands.md', settingsTable()],
    ['docs/clients.md', clientsTable(RESULTS)],
  ])('has been run since the last change of what it writes: %s is up to date', (file, written) => {
    expect(readFileSync(file, 'utf8')).toContain(written)
  })
})

describe('the results of clients', () => {
  const versions = (name: string) => Object.values(RESULTS).filter((result) => result.package === name)

  it('are of the versions of agents that are installed to try them', () => {
    for (const { name, version } of Object.values(PROGRAMS))
      expect([name, ...new Set(versions(name).map((result) => result.version))]).toEqual([name, version])
  })

  it('are of the versions of libraries that the tests use', () => {
    const { devDependencies } = JSON.parse(readFileSync('package.json', 'utf8')) as {
      devDependencies: Record<string, string>
    }
    const used = new Map<string, string[]>()
    for (const [alias, range] of Object.entries(devDependencies)) {
      const [, name = alias, version = ''] = /^(?:npm:(.*)@)?[\^~]?([\d.]+)$/.exec(range) ?? []
      used.set(name, [...(used.get(name) ?? []), version])
    }
    const libraries = Object.values(RESULTS).filter((result) => used.has(result.package))
    expect(libraries.length).toBeGreaterThan(5)
    for (const { package: name, version } of libraries)
      expect([name, version]).toEqual([name, used.get(name)?.join(', ')])
  })

  it('say with what each client was tried, and what its user saw', () => {
    const keys = ['package', 'version', 'setting', 'over', 'caution']
    for (const [client, result] of Object.entries(RESULTS))
      expect([client, ...Object.keys(result)]).toEqual(expect.arrayContaining([client, ...keys]))
  })
})

describe('the configuration schema', () => {
  it('describes every key', () => {
    const silent = keysOf(schema).filter(({ node }) => !node.description)
    expect(silent.map(({ path }) => path)).toEqual([])
    expect(keysOf(schema).length).toBeGreaterThan(40)
  })
})

describe('the budget section of the configuration', () => {
  it.each(LIMITS)('limits the %s of a run and of a session by the key that METERS names', (name) => {
    const limits = { [METERS[name].limit.setting]: 5 }
    const run = name === 'iterations' ? limits : { run: limits }
    const { policy } = policiesOf(checkConfig({ budget: { ...run, session: limits } }, 'test')).budget.settings
    expect([policy.run[name], policy.session[name]]).toEqual([5, 5])
  })
})

/** Returns a tree with another value at a path. */
function withValue(tree: unknown, [key = '', ...inner]: readonly string[]): unknown {
  const before = isTree(tree) ? tree : {}
  return { ...before, [key]: inner.length === 0 ? 'changed' : withValue(before[key], inner) }
}

describe('the key of the configuration', () => {
  const config = checkConfig({}, 'test')
  const named = keysOf(schema).filter(({ path }) => !path.includes('NAME'))
  const reloaded = named.filter(({ node }) => node.description?.includes('Reloaded on SIGHUP')).map(({ path }) => path)
  it.each(named.map(({ path }) => path))(
    '%s needs a restart after a change, unless its description, or that of its section, says that SIGHUP reloads it',
    (path) => {
      const isReloaded = reloaded.some((one) => path === one || path.startsWith(`${one}.`))
      const found = restartKeys(config, withValue(config, path.split('.')) as Config)
      expect(found).toHaveLength(isReloaded ? 0 : 1)
      // Of a section that was not there before its first key is new, and so the section is named.
      for (const one of found) expect(path.startsWith(one)).toBe(true)
    },
  )

  it('server.access_keys is reloaded, though its section is not', () => {
    expect(reloaded).toContain('server.access_keys')
    expect(reloaded).not.toContain('server')
  })
})
