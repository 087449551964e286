// Bundles src and the packages it uses into dist when anything of them is newer than the last build; `--force` always does.
// Types are not checked here, `npm run types` does.
import { execFileSync } from 'node:child_process'
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath, pathToFileURL } from 'node:url'
import { fetchTypes } from './fetch-types.mjs'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const dist = join(root, 'dist')
const stamp = join(dist, '.built')

/** What is run, and what a test imports, by its path in dist. */
const ENTRIES = {
  main: 'src/main.ts',
  'cli/engine': 'src/cli/engine.ts',
  'fetch/index': 'src/fetch/index.ts',
}

/** Not in the bundle: Fastify asks for them only for routes with schemas and requests without a socket, and Governor has neither. */
const NEVER_LOADED = ['@fastify/ajv-compiler', '@fastify/fast-json-stringify-compiler', 'light-my-request']

function timeOf(file) {
  return statSync(file, { throwIfNoEntry: false })?.mtimeMs ?? 0
}

function newest(folder) {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .reduce((time, entry) => Math.max(time, timeOf(join(entry.parentPath ?? entry.path, entry.name))), 0)
}

function isStale() {
  // npm writes the last of them whenever it installs other packages.
  const sources = Math.max(
    newest(join(root, 'src')),
    newest(join(root, 'scripts')),
    timeOf(join(root, 'node_modules', '.package-lock.json')),
  )
  return process.argv.includes('--force') || timeOf(stamp) < sources
}

const require = createRequire(import.meta.url)

function bundlerOf() {
  try {
    return pathToFileURL(require.resolve('esbuild')).href
  } catch {
    return undefined
  }
}

/** CommonJS in the bundle asks for Node's own modules. */
const REQUIRE = `import { createRequire as requireFrom } from 'node:module'
const require = requireFrom(import.meta.url)`

/** The folders of the packages whose code is in the bundle, sorted. */
function bundledPackages({ outputs }) {
  const files = Object.values(outputs).flatMap(({ inputs }) =>
    Object.entries(inputs).flatMap(([file, { bytesInOutput }]) => (bytesInOutput > 0 ? [file] : [])),
  )
  const folders = files.map((file) => /^.*node_modules\/(?:@[^/]+\/)?[^/]+/.exec(file)?.[0])
  return [...new Set(folders.filter((folder) => folder !== undefined))].sort()
}

/** The licences of the packages in the bundle: most of them allow copies of their code only together with their text. */
function licencesOf(metafile) {
  const texts = bundledPackages(metafile).map((folder) => {
    const path = join(root, folder)
    const { name, version, license } = JSON.parse(readFileSync(join(path, 'package.json'), 'utf8'))
    const files = readdirSync(path).filter((file) => /^(licen[cs]e|notice|copying)/i.test(file))
    const text = files.map((file) => readFileSync(join(path, file), 'utf8').trim()).join('\n\n')
    return `${name} ${version} (${license})\n\n${text || 'The package states its licence as above, without a text.'}\n`
  })
  return `Governor's bundle contains code of these packages.\n\n${texts.join(`\n${'-'.repeat(80)}\n\n`)}`
}

/** The files of the bundle, as `{ path, contents }`, and what esbuild says of them. */
async function bundle(esbuild) {
  const { outputFiles, metafile } = await esbuild.build({
    absWorkingDir: root,
    entryPoints: ENTRIES,
    outdir: dist,
    bundle: true,
    splitting: true,
    format: 'esm',
    platform: 'node',
    target: 'node20.18',
    external: NEVER_LOADED,
    banner: { js: REQUIRE },
    sourcemap: 'linked',
    // Names stay as they are, for stack traces and profiles: nothing is minified, as files are read from a disk.
    write: false,
    metafile: true,
    logLevel: 'warning',
  })
  return { files: outputFiles, metafile }
}

/** A library of the package, such as `agent-governor/overflow`: one file that imports nothing, and declarations of its types. */
async function buildLibrary(esbuild, library) {
  const out = join(dist, library)
  const entry = join(root, 'src', library, 'index.ts')
  const options = { bundle: true, format: 'esm', platform: 'neutral', target: 'es2023', logLevel: 'warning' }
  await esbuild.build({ ...options, entryPoints: [entry], outdir: out })
  const flags = '--ignoreConfig --declaration --emitDeclarationOnly --noCheck --module nodenext --target es2023'
  const tsc = join(dirname(require.resolve('typescript/package.json')), 'bin', 'tsc')
  execFileSync(process.execPath, [tsc, entry, ...flags.split(' '), '--outDir', out], { stdio: 'inherit' })
  for (const name of readdirSync(out).filter((file) => file.endsWith('.d.ts'))) {
    const file = join(out, name)
    // As the compiler leaves them, the paths name sources that are not in the package.
    writeFileSync(file, readFileSync(file, 'utf8').replace(/(from '\.[^']*)\.ts'/g, "$1.js'"))
  }
  rmSync(join(out, 'reader'), { recursive: true, force: true })
}

/** The same of `agent-governor/types` for CommonJS, where TypeScript knows the SDKs by declarations of their own. */
async function buildForCommonJs(esbuild) {
  const out = join(dist, 'types')
  const entry = join(root, 'src', 'types', 'index.ts')
  await esbuild.build({ entryPoints: [entry], outfile: join(out, 'index.cjs'), format: 'cjs', target: 'es2023' })
  copyFileSync(join(out, 'index.d.ts'), join(out, 'index.d.cts'))
}

/** The declarations of `agent-governor/fetch`. */
async function buildFetchTypes(esbuild) {
  const source = readFileSync(join(root, 'src', 'fetch', 'sections.ts'), 'utf8')
  const { code } = await esbuild.transform(source, { loader: 'ts', format: 'esm' })
  const { SECTIONS } = await import(`data:text/javascript,${encodeURIComponent(code)}`)
  const schema = JSON.parse(readFileSync(join(root, 'config', 'schema.json'), 'utf8'))
  writeFileSync(join(dist, 'fetch', 'index.d.ts'), fetchTypes(schema, SECTIONS))
}

/** The live page: a script, a style sheet and the page that loads them. */
async function buildPage(esbuild) {
  const source = join(root, 'src', 'dashboard', 'page')
  const out = join(dist, 'dashboard')
  const result = await esbuild.build({
    absWorkingDir: root,
    entryPoints: { page: join(source, 'main.tsx') },
    outdir: out,
    bundle: true,
    minify: true,
    format: 'esm',
    platform: 'browser',
    target: 'es2023',
    jsx: 'automatic',
    jsxImportSource: 'preact',
    metafile: true,
    logLevel: 'warning',
  })
  const style = { entryPoints: [join(source, 'page.css')], outdir: out, bundle: true, minify: true }
  await esbuild.build({ ...style, absWorkingDir: root, logLevel: 'warning' })
  copyFileSync(join(source, 'page.html'), join(out, 'page.html'))
  return result
}

async function build() {
  const bundler = bundlerOf()
  if (!bundler && existsSync(join(dist, 'main.js'))) return 0
  if (!bundler) {
    process.stderr.write('build: esbuild is not installed and there is no dist: run npm ci --include=dev\n')
    // An installation without development packages brings its dist later, or has no use for one.
    return process.env['npm_lifecycle_event'] === 'prepare' ? 0 : 1
  }
  const began = new Date()
  const esbuild = await import(bundler)
  const { files, metafile } = await bundle(esbuild)
  rmSync(dist, { recursive: true, force: true })
  for (const { path, contents } of files) {
    mkdirSync(dirname(path), { recursive: true })
    writeFileSync(path, contents)
  }
  for (const library of ['overflow', 'types']) await buildLibrary(esbuild, library)
  await buildForCommonJs(esbuild)
  await buildFetchTypes(esbuild)
  const page = await buildPage(esbuild)
  const outputs = { ...metafile.outputs, ...page.metafile.outputs }
  writeFileSync(join(dist, 'THIRD-PARTY-LICENSES'), licencesOf({ outputs }))
  // npm makes it a program when it links it, and a later build would take that away again.
  chmodSync(join(dist, 'main.js'), 0o755)
  writeFileSync(stamp, '')
  // What changed while it ran is newer.
  utimesSync(stamp, began, began)
  return 0
}

// An installed package has a dist and no sources: there is nothing to bundle.
if (existsSync(join(root, 'src')) && isStale()) {
  const code = await build()
  if (code !== 0) process.exit(code)
}
