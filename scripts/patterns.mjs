/** Finds every regular expression of src, so that no new one is left out of the tests and the benchmark. */
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs'
import { join, sep } from 'node:path'
import { pathToFileURL } from 'node:url'
import { build } from 'esbuild'
import { parseAst } from 'vitest/node'

const ROOT = join(import.meta.dirname, '..')
const SRC = join(ROOT, 'src')
const CONSTRUCTOR = 'new RegExp('

/** Calls `visit` for each node of a syntax tree. */
function walk(node, visit) {
  if (typeof node !== 'object' || node === null) return
  if (typeof node.type === 'string') visit(node)
  for (const child of Object.values(node)) walk(child, visit)
}

/** The regular expressions that stand in a source as literals, and how many others it makes. */
function readSource(file) {
  const source = readFileSync(join(SRC, file), 'utf8')
  const literals = []
  let made = 0
  walk(parseAst(source, { lang: file.endsWith('.ts') ? 'ts' : 'js' }), (node) => {
    if (node.type === 'Literal' && node.regex)
      literals.push({ file, source: node.regex.pattern, flags: node.regex.flags })
    if (/^(?:New|Call)Expression$/.test(node.type) && node.callee.name === 'RegExp') made++
  })
  if (source.split(CONSTRUCTOR).length - 1 !== made) throw new Error(`${file}: write ${CONSTRUCTOR}…)`)
  return { file, literals, made }
}

/** The regular expressions that files make while they are loaded: the files are bundled with a RegExp that keeps them. */
async function madeBy(files) {
  const found = []
  globalThis.keepPattern = (file, ...given) => {
    const { source, flags } = new RegExp(...given)
    found.push({ file, source, flags })
    return new RegExp(...given)
  }
  const outdir = mkdtempSync(join(ROOT, 'node_modules', '.patterns-'))
  const keeping = {
    name: 'keep-patterns',
    setup({ onLoad }) {
      onLoad({ filter: /src\/.*\.ts$/ }, ({ path }) => ({
        contents: readFileSync(path, 'utf8').replaceAll(
          CONSTRUCTOR,
          `globalThis.keepPattern(${JSON.stringify(path.slice(SRC.length + 1))}, `,
        ),
        loader: 'ts',
      }))
    },
  }
  const outfile = join(outdir, 'all.mjs')
  const contents = `${files.map((file) => `import ${JSON.stringify(`./${file}`)}`).join('\n')}
    import { buildRegistry } from './core/harness/match.ts'
    import { HARNESS_TEXTS, SUMMARY_REQUESTS } from './core/harness/texts.ts'
    buildRegistry(HARNESS_TEXTS, SUMMARY_REQUESTS)`
  try {
    await build({
      stdin: { contents, resolveDir: SRC },
      bundle: true,
      format: 'esm',
      platform: 'node',
      packages: 'external',
      plugins: [keeping],
      outfile,
      logLevel: 'error',
    })
    await import(pathToFileURL(outfile).href)
  } finally {
    rmSync(outdir, { recursive: true })
    delete globalThis.keepPattern
  }
  const silent = files.filter((file) => !found.some((pattern) => pattern.file === file))
  if (silent.length > 0) throw new Error(`no regular expression was made while loading ${silent.join(', ')}`)
  return found
}

/** Returns each regular expression of src once per file: `{ file, source, flags }`. */
export async function patternsOf() {
  const sources = readdirSync(SRC, { recursive: true })
    .map((file) => file.split(sep).join('/'))
    .filter((file) => /\.(?:ts|js)$/.test(file))
    .map(readSource)
  const made = await madeBy(sources.filter((source) => source.made > 0).map(({ file }) => file))
  const all = [...sources.flatMap(({ literals }) => literals), ...made]
  return [...new Map(all.map((one) => [`${one.file} ${one.source} ${one.flags}`, one])).values()]
}
