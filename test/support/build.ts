/** Builds the program once before all tests: they run in parallel, and a build would replace the files that another test runs. */
import { spawnSync } from 'node:child_process'

export default function build(): void {
  const { status } = spawnSync(process.execPath, ['scripts/build.mjs'], { stdio: 'inherit' })
  if (status !== 0) throw new Error('the build failed')
}
