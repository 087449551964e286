// Compiles src into dist when anything in src is newer than the last build; `--force` always does.
import { spawnSync } from 'node:child_process'
import { readdirSync, statSync, utimesSync, writeFileSync } from 'node:fs'
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

const sources = Math.max(newest(join(root, 'src')), statSync(join(root, 'tsconfig.build.json')).mtimeMs)
if (process.argv.includes('--force') || builtAt() < sources) {
  const manifest = createRequire(import.meta.url).resolve('typescript/package.json')
  const tsc = join(dirname(manifest), 'bin', 'tsc')
  const { status } = spawnSync(process.execPath, [tsc, '-p', join(root, 'tsconfig.build.json')], {
    stdio: 'inherit',
  })
  if (status !== 0) process.exit(status ?? 1)
  writeFileSync(stamp, '')
  utimesSync(stamp, new Date(), new Date())
}
