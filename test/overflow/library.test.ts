/** The packed package, unpacked without any other package beside it. */
import { execFileSync, spawnSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { classify } from '../../src/overflow/index.ts'

const folder = mkdtempSync(join(tmpdir(), 'governor-library-'))

beforeAll(() => {
  execFileSync('npm', ['pack', '--ignore-scripts', '--pack-destination', folder], { stdio: 'ignore' })
  const [tarball = ''] = readdirSync(folder)
  const unpacked = join(folder, 'node_modules', 'agent-governor')
  mkdirSync(unpacked, { recursive: true })
  execFileSync('tar', ['xzf', join(folder, tarball), '-C', unpacked, '--strip-components=1'])
})
afterAll(() => rmSync(folder, { recursive: true }))

/** Writes a file beside the unpacked package and runs a program of Node on it. */
function runOn(name: string, text: string, ...command: readonly string[]) {
  writeFileSync(join(folder, name), text)
  const { status, stdout } = spawnSync(process.execPath, [...command, name], {
    cwd: folder,
    encoding: 'utf8',
  })
  return { status, stdout }
}

const compiled = (text: string, moduleKind: string, resolution: string) => {
  const flags = ['--noEmit', '--strict', '--exactOptionalPropertyTypes', '--target', 'es2023', '--lib', 'es2023']
  const kinds = ['--module', moduleKind, '--moduleResolution', resolution]
  return runOn('agent.mts', text, resolve('node_modules/typescript/bin/tsc'), ...flags, ...kinds)
}

describe('the library agent-governor/overflow', () => {
  it('classifies every example of a reply as the proxy does', () => {
    const path = resolve('test/overflow/replies.jsonl')
    const script = `
      import { readFileSync } from 'node:fs'
      import { classify } from 'agent-governor/overflow'
      const lines = readFileSync(${JSON.stringify(path)}, 'utf8').trim().split('\\n')
      console.log(JSON.stringify(lines.map((line) => classify(JSON.parse(line)) ?? null)))`
    const { status, stdout } = runOn('agent.mjs', script)
    const lines = readFileSync(path, 'utf8').trim().split('\n')
    expect(status).toBe(0)
    expect(JSON.parse(stdout)).toEqual(lines.map((line) => classify(JSON.parse(line)) ?? null))
  })

  it.each([
    ['nodenext', 'nodenext'],
    ['esnext', 'bundler'],
  ])('has types for a TypeScript agent with the module kind %s and the resolution %s', (kind, resolution) => {
    const agent = `
      import { classify, type Overflow, ROWS, type Row, statedNumbers } from 'agent-governor/overflow'
      const own: Row = { id: 'own', status: [400], text: /budget of (?<limit>\\d+) units/, means: 'shrink_context' }
      const sent = JSON.stringify({ messages: [] })
      const found = classify({ status: 400, body: 'any text' }, { rows: [own, ...ROWS], request: () => sent })
      const overflow: Overflow | undefined = found?.overflow
      export const limit: number | undefined = overflow && statedNumbers(overflow).limit
      export const isShrink = overflow?.recovery === 'shrink_context' && overflow.limit > 0
      // @ts-expect-error: a status is a number
      classify({ status: '400', body: '' })
      // @ts-expect-error: no such meaning
      export const wrong: Row = { id: 'own', means: 'nothing' }`
    expect(compiled(agent, kind, resolution)).toEqual({ status: 0, stdout: '' })
  })

  it('the package exports no module of the proxy itself', () => {
    const { status } = runOn('agent.mjs', `import 'agent-governor/dist/main.js'`)
    expect(status).toBe(1)
  })
})
