/** The package as npm packs it, and as it stands in a clone. */
import { readFileSync } from 'node:fs'
import { describe, expect, it } from 'vitest'

interface Manifest {
  readonly name: string
  readonly version: string
  readonly bin: Readonly<Record<string, string>>
  readonly scripts: Readonly<Record<string, string>>
}

const read = (file: string) => readFileSync(file, 'utf8')
const manifest = JSON.parse(read('package.json')) as Manifest

describe('the package', () => {
  it('is called agent-governor in the manifest and in the lock file, and its program governor', () => {
    const lock = JSON.parse(read('package-lock.json'))
    expect([manifest.name, lock.name, lock.packages[''].name]).toEqual(Array(3).fill('agent-governor'))
    expect(manifest.bin).toEqual({ governor: 'dist/main.js' })
    expect(lock.packages[''].bin).toEqual(manifest.bin)
  })
})
