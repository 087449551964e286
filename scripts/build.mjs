// Compiles src into dist when anything in src is newer than the last build; `--force` always does.
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync, statSync, utimesSync, writeFileSync } from 'node:fs'
import { createRequire } from 'node:module'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = join(dirname(fileURLToPath(import.meta.url)), '..')
const stamp = join(root, 'dist', '.built')

function newest(folder) {
  return readdirSync(folder, { withFileTypes: true, recursive: true })
    .filter((entry) => entry.isFile())
    .reduce(
      (time, entry) => Math.max(time, statSync(join(entry.parentPath ?? entry.path, entry.name)).mtimeMs),
      0,
    )
}

function builtAt() {
  try {
    return statSync(stamp).mtimeMs
  } catch {
    return 0
  }
}

function isStale() {
  const sources = Math.max(newest(join(root, 'src')), statSync(join(root, 'tsconfig.build.json')).mtimeMs)
  return process.argv.includes('--force') || builtAt() < sources
}

function compilerOf() {
  try {
    return join(dirname(createRequire(import.meta.url).resolve('typescript/package.json')), 'bin', 'tsc')
  } catch {
    return undefined
  }
}

function build() {
  const tsc = compilerOf()
  if (!tsc && existsSync(join(root, 'dist', 'main.js'))) return 0
  if (!tsc) {
    process.stderr.write('build: typescript is not installed and there is no dist: run npm ci\n')
    // An installation without development packages brings its dist later, or has no use for one.
    return process.env['npm_lifecycle_event'] === 'prepare' ? 0 : 1
  }
  const { status } = spawnSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')], {
    stdio: 'inherit',
  })
  if (status !== 0) return status ?? 1
  writeFileSync(stamp, '')
  utimesSync(stamp, new Date(), new Date())
  return 0
}

// An installed package has a dist and no sources: there is nothing to compile.
if (existsSync(join(root, 'src')) && isStale()) {
  const code = build()
  if (code !== 0) process.exit(code)
}
