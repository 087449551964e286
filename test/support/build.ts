/** Builds what is run, once before all tests: they run side by side, and a build replaces what another is running. */
import { spawnSync } from 'node:child_process'

export default function build(): void {
  const { status } = spawnSync(process.execPath, ['scripts/build.mjs'], { stdio: 'inherit' })
  if (status !== 0) throw new Error('the build failed')
}
