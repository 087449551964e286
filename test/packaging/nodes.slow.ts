/** The packed package on every version of Node that Governor supports; the `node` package of npm holds their programs. */
import { execFileSync } from 'node:child_process'
import { join } from 'node:path'
import { describe, expect, it } from 'vitest'
import { emptyFolder, healthOf, installPacked, npm } from '../support/installed.ts'

/** The oldest one that package.json allows, and the newest of each even version. */
const VERSIONS = ['20.18.1', '20', '22', '24', '26']

describe('the packed package', () => {
  it.each(VERSIONS)('is installed and answers /health on Node %s', async (version) => {
    const folder = emptyFolder()
    await npm(process.execPath, ['install', `node@${version}`], folder)
    const node = join(folder, 'node_modules', 'node', 'bin', 'node')
    const exact = execFileSync(node, ['--version'], { encoding: 'utf8' }).trim()
    expect(exact.startsWith(`v${version}`)).toBe(true)
    const installed = await installPacked(node)
    expect(await healthOf(installed, node)).toMatchObject({ status: 200, code: 0 })
    process.stdout.write(`Node ${exact}: ${(installed.size / 1e6).toFixed(1)} MB installed\n`)
  })
})
