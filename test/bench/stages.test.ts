/** The measures that no other test starts: they use functions of the sources, which change. */
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import { expect, it } from 'vitest'

it('measures each stage of the guard over short, long and real requests', async () => {
  const { stdout } = await promisify(execFile)(process.execPath, ['bench/stages.mjs', '1'])
  const lines = stdout.trim().split('\n')
  expect(lines.map((line) => line.slice(0, line.indexOf(',')))).toEqual(['1KB', '32KB', 'steps'])
  const stages = (line: string) => [...line.matchAll(/(\w+) \d+\.\d/g)].map(([, name]) => name)
  expect(lines.map(stages)).toEqual(Array(3).fill(['tenant', 'hash', 'index', 'fold', 'facts', 'metrics', 'together']))
})
