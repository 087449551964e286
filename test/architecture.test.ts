import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { join, posix, relative } from 'node:path'
import { describe, expect, it } from 'vitest'

const ROOT = join(import.meta.dirname, '..', 'src')

interface Source {
  /** Relative to `src`, with `/`. */
  readonly path: string
  readonly folder: string
  readonly text: string
  readonly code: string
  /** Packages by name, files of src by their path in it. */
  readonly imports: readonly string[]
}

/** The text without comments and without quoted strings. */
function codeOf(text: string): string {
  return text
    .replace(/\/\*[\s\S]*?\*\//g, '')
    .replace(/(^|\s)\/\/.*$/gm, '')
    .replace(/'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"/g, "''")
}

function importsOf(path: string, text: string): string[] {
  const found = text.matchAll(/^(?:import|export)\b[^'"]*?\bfrom ['"](.+)['"]|\bimport\(['"](.+?)['"]\)/gm)
  return [...found].map(([, fixed, lazy]) => {
    const name = fixed ?? lazy ?? ''
    return name.startsWith('.') ? posix.join(posix.dirname(path), name) : name
  })
}

const SOURCES: readonly Source[] = readdirSync(ROOT, { recursive: true, encoding: 'utf8' })
  .filter((path) => /\.tsx?$/.test(path))
  .map((found) => {
    const path = relative(ROOT, join(ROOT, found)).replaceAll('\\', '/')
    const text = readFileSync(join(ROOT, found), 'utf8')
    return { path, folder: posix.dirname(path), text, code: codeOf(text), imports: importsOf(path, text) }
  })

/** What the files of a room may import: rooms of src end in a slash, `node:` is all of Node. A file belongs to the deepest room. */
const ALLOWED: Readonly<Record<string, readonly string[]>> = {
  core: ['core/', 'overflow/meaning.ts', 'node:crypto', 'xxhash-wasm'],
  json: ['json/', 'core/json-object.ts', 'core/hash.ts', 'core/bounds/work.ts'],
  sse: [],
  // A library: nothing but itself.
  overflow: ['overflow/'],
  // A library as well.
  types: [],
  'overflow/reader': ['overflow/meaning.ts', 'overflow/reader/'],
  usage: [
    'core/',
    'json/',
    'dialect/',
    'http/',
    'store/shared-file.ts',
    'store/store.ts',
    'usage/',
    '@pydantic/genai-prices',
    'lru-cache',
    'node:',
  ],
  dialect: ['core/', 'json/', 'sse/', 'dialect/'],
  http: ['overflow/meaning.ts', 'http/', 'undici', 'node:'],
  store: [
    'core/',
    'store/',
    'lru-cache',
    '@redis/client',
    'node:crypto',
    'node:fs',
    'node:fs/promises',
    'node:path',
    'node:timers/promises',
  ],
  telemetry: [
    'core/',
    'overflow/meaning.ts',
    'store/shared-file.ts',
    'telemetry/',
    'prom-client',
    '@opentelemetry/api',
    'undici',
    'lru-cache',
    'node:crypto',
    'node:events',
    'node:fs',
    'node:fs/promises',
    'node:os',
    'node:path',
    'node:querystring',
    'node:timers/promises',
  ],
  proxy: [
    'core/',
    'json/',
    'sse/',
    'dialect/',
    'http/',
    'overflow/',
    'usage/',
    'store/store.ts',
    'store/shared-values.ts',
    'telemetry/event.ts',
    'telemetry/tracing.ts',
    'proxy/',
    'lru-cache',
    'node:',
  ],
  websocket: ['dialect/dialect.ts', 'http/', 'proxy/', 'sse/', 'websocket/', 'ws', 'node:'],
  dashboard: ['node:fs', 'fastify'],
  // What runs in the browser.
  'dashboard/page': [
    'dashboard/page/',
    'ops/budget.ts',
    'ops/usage.ts',
    'ops/sessions/api-schema.ts',
    'ops/sessions/labels.ts',
    'preact',
    'preact/hooks',
  ],
  ops: [
    'core/',
    'telemetry/',
    'store/store.ts',
    'usage/day-cost.ts',
    'usage/ledger.ts',
    'http/urls.ts',
    'ops/',
    'fastify',
    'lru-cache',
    'zod',
    'node:crypto',
    'node:http',
  ],
  config: [
    'config/',
    'core/',
    'overflow/',
    'http/urls.ts',
    'dialect/index.ts',
    'telemetry/event.ts',
    'zod',
    'yaml',
    'leven',
    're2js',
    'node:fs',
    'node:buffer',
    'node:util',
  ],
}

/** Returns the deepest room that a file is in; `undefined` for files that may import anything. */
function roomOf(folder: string): string | undefined {
  for (let room = folder; room !== '.'; room = posix.dirname(room)) if (ALLOWED[room]) return room
  return undefined
}

function isAllowed(name: string, allowed: readonly string[]): boolean {
  return allowed.some((entry) => (/[/:]$/.test(entry) ? name.startsWith(entry) : name === entry))
}

/** Returns the files that import themselves by way of others, types included. */
function filesInCycles(): string[] {
  const importsOfFile = new Map(SOURCES.map(({ path, imports }) => [path, imports]))
  const reaches = (from: string, to: string): boolean => {
    const seen = new Set<string>()
    const next = [...(importsOfFile.get(from) ?? [])]
    for (let file = next.pop(); file !== undefined; file = next.pop()) {
      if (file === to) return true
      if (seen.has(file)) continue
      seen.add(file)
      next.push(...(importsOfFile.get(file) ?? []))
    }
    return false
  }
  return SOURCES.map(({ path }) => path).filter((path) => reaches(path, path))
}

describe('the source code', () => {
  it.each(Object.entries(ALLOWED))('of %s imports only what that room may import', (room, allowed) => {
    const files = SOURCES.filter((source) => roomOf(source.folder) === room)
    expect(files.length).toBeGreaterThan(0)
    const foreign = files.flatMap(({ path, imports }) =>
      imports.filter((name) => !isAllowed(name, allowed)).map((name) => `${path} imports ${name}`),
    )
    expect(foreign).toEqual([])
  })

  it('of proxy and http contains no field, header or key of a provider', () => {
    const named =
      /anthropic-|x-api-key|api-key|x-goog|sk-ant|max_(?:completion_|output_|new_)tokens|max_tokens|budget_tokens|session_id|user_id|previous_response|prefix_mismatch|_error'|"(?:stream|model|messages|input|tools)"/
    const naming = SOURCES.filter(({ folder }) => ['proxy', 'proxy/usage', 'proxy/waiting', 'http'].includes(folder))
      .flatMap(({ path, text }) => text.split('\n').map((line, at) => ({ place: `${path}:${at + 1}`, line })))
      .filter(({ line }) => !/^\s*(?:\/?\*|\/\/)/.test(line) && named.test(line))
    expect(naming.map(({ place }) => place)).toEqual([])
  })

  it('has no import cycle', () => {
    expect(filesInCycles()).toEqual([])
  })

  it('is checked for every import of a file', () => {
    const counted = SOURCES.filter(({ code, imports }) => {
      const written = code.match(/^import\b|^export\b[^=;']*\bfrom ''|\bimport\(''/gm) ?? []
      return written.length !== imports.length
    })
    expect(counted.map(({ path }) => path)).toEqual([])
    expect(SOURCES.find(({ path }) => path === 'main.ts')?.imports).toContain('cli/cli.ts')
  })

  it.each(['docs/architecture.md', 'CONTRIBUTING.md', 'AGENTS.md'])('contains every file that %s names', (document) => {
    const text = readFileSync(join(ROOT, '..', document), 'utf8')
    const named = [...text.matchAll(/\b(?:src|test)\/[\w./-]*\w/g)].map(([path]) => path)
    expect(named.length).toBeGreaterThan(0)
    expect(named.filter((path) => !existsSync(join(ROOT, '..', path)))).toEqual([])
  })

  it('of proxy knows its client by the port alone, tunnels of upgraded connections excepted', () => {
    const knowing = SOURCES.filter(
      ({ path, imports }) => path.startsWith('proxy/') && imports.some((name) => /^node:(?:http|net)/.test(name)),
    )
    expect(knowing.map(({ path }) => path)).toEqual(['proxy/door/tunnel.ts'])
  })

  it('uses `process` only in main.ts, and its queue of the next tick in one more file', () => {
    const touching = SOURCES.filter(({ code }) => /\bprocess\./.test(code) || /\bnode:process\b/.test(code))
    expect(touching.map(({ path }) => path)).toEqual(['main.ts'])
    const importing = SOURCES.filter(({ imports }) => imports.includes('node:process'))
    expect(importing.map(({ path, text }) => [path, /import .* from 'node:process'/.exec(text)?.[0]])).toEqual([
      ['http/tick.ts', "import { nextTick } from 'node:process'"],
    ])
  })

  it('sets the flags of V8 before it loads any other module', () => {
    const main = SOURCES.find(({ path }) => path === 'main.ts')
    const atOnce = [...(main?.text ?? '').matchAll(/^import (?!type\b).*?\bfrom '(.+)'/gm)].map(([, name]) => name)
    expect(atOnce).toEqual(['./cli/engine.ts'])
    expect(main?.code.indexOf('tuneEngine()')).toBeLessThan(main?.code.indexOf('import(') ?? 0)
  })

  it('has at most 3 casts in 1,000 lines of code', () => {
    let lines = 0
    const casts: string[] = []
    for (const { path, code } of SOURCES) {
      // What a file imports or exports under another name is no cast.
      const plain = code.replace(/^(?:import|export) (?:type )?(?:\*|\{)[^}']*\}?/gm, '').split('\n')
      lines += plain.filter((line) => line.trim() !== '').length
      for (const line of plain)
        for (const _ of line.matchAll(/ as (?!const\b)[\w({[]/g)) casts.push(`${path}: ${line.trim()}`)
    }
    expect(casts.length, casts.join('\n')).toBeLessThanOrEqual((3 * lines) / 1_000)
  })

  it('names a concrete store only where a Governor is built', () => {
    const concrete = ['store/create.ts', 'store/memory.ts', 'store/redis-data.ts', 'store/replicated.ts']
    const knowing = SOURCES.filter(
      ({ folder, imports }) => folder !== 'store' && concrete.some((file) => imports.includes(file)),
    )
    expect(knowing.map(({ path }) => path).sort()).toEqual(['app.ts', 'fetch/index.ts'])
  })
})

describe('the index of what tests share', () => {
  it('names every file of test/support', () => {
    const folder = join(import.meta.dirname, 'support')
    const index = readFileSync(join(folder, 'README.md'), 'utf8')
    const files = readdirSync(folder).filter((file) => file.endsWith('.ts'))
    expect(files.filter((file) => !index.includes(`\`${file}\``))).toEqual([])
  })
})
