import { readdirSync, readFileSync } from 'node:fs'
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

/** The text without comments and without what stands in quotes. */
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
  .filter((path) => path.endsWith('.ts'))
  .map((found) => {
    const path = relative(ROOT, join(ROOT, found)).replaceAll('\\', '/')
    const text = readFileSync(join(ROOT, found), 'utf8')
    return { path, folder: posix.dirname(path), text, code: codeOf(text), imports: importsOf(path, text) }
  })

/** What a folder may import: folders of src end in a slash, `node:` is all of Node. */
const ALLOWED: Readonly<Record<string, readonly string[]>> = {
  core: ['core/', 'node:crypto', 'xxhash-wasm'],
  json: ['json/', 'core/foreign-json.ts', 'core/hash.ts', 'core/work.ts'],
  sse: [],
  overflow: ['core/', 'overflow/', 're2js'],
  'overflow/reader': ['core/overflow.ts', 'overflow/reader/'],
  catalogue: ['core/', 'catalogue/', '@pydantic/genai-prices', 'lru-cache'],
  dialect: ['core/', 'json/', 'sse/', 'dialect/'],
  'dialect/shared': ['core/', 'json/', 'sse/', 'dialect/'],
  store: ['core/', 'store/', 'lru-cache'],
  telemetry: ['core/', 'telemetry/', 'prom-client'],
  proxy: [
    'core/',
    'json/',
    'sse/',
    'dialect/',
    'store/store.ts',
    'catalogue/catalogue.ts',
    'telemetry/event.ts',
    'overflow/',
    'proxy/',
    'undici',
    'lru-cache',
    'node:',
  ],
  ops: ['telemetry/', 'store/store.ts', 'ops/', 'fastify'],
  config: [
    'config/',
    'core/',
    'catalogue/',
    'overflow/',
    'zod',
    'yaml',
    'node:fs',
    'node:buffer',
    'node:util',
  ],
}

function isAllowed(name: string, allowed: readonly string[]): boolean {
  return allowed.some((entry) => (/[/:]$/.test(entry) ? name.startsWith(entry) : name === entry))
}

describe('the shape of the source', () => {
  it.each(Object.entries(ALLOWED))('%s imports nothing but what it may', (folder, allowed) => {
    const files = SOURCES.filter((source) => source.folder === folder)
    expect(files.length).toBeGreaterThan(0)
    const foreign = files.flatMap(({ path, imports }) =>
      imports.filter((name) => !isAllowed(name, allowed)).map((name) => `${path} imports ${name}`),
    )
    expect(foreign).toEqual([])
  })

  it('reads every import that a file has', () => {
    const counted = SOURCES.filter(({ code, imports }) => {
      const written = code.match(/^import\b|^export\b[^=;]*\bfrom ''|\bimport\(''/gm) ?? []
      return written.length !== imports.length
    })
    expect(counted.map(({ path }) => path)).toEqual([])
    expect(SOURCES.find(({ path }) => path === 'main.ts')?.imports).toContain('cli/cli.ts')
  })

  it('touches the process in main.ts alone', () => {
    const touching = SOURCES.filter(({ code }) => /\bprocess\./.test(code) || /\bnode:process\b/.test(code))
    expect(touching.map(({ path }) => path)).toEqual(['main.ts'])
    const importing = SOURCES.filter(({ imports }) => imports.includes('node:process'))
    expect(importing.map(({ path }) => path)).toEqual([])
  })

  it('loads nothing before V8 is told how to treat it', () => {
    const main = SOURCES.find(({ path }) => path === 'main.ts')
    const atOnce = [...(main?.text ?? '').matchAll(/^import (?!type\b).*?\bfrom '(.+)'/gm)].map(
      ([, name]) => name,
    )
    expect(atOnce).toEqual(['./cli/engine.ts'])
    expect(main?.code.indexOf('tuneEngine()')).toBeLessThan(main?.code.indexOf('import(') ?? 0)
  })

  it('knows a concrete store in app.ts alone', () => {
    const knowing = SOURCES.filter(({ imports }) => imports.includes('store/memory.ts'))
    expect(knowing.map(({ path }) => path)).toEqual(['app.ts'])
  })
})
