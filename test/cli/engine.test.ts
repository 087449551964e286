/** Which compiled code V8 keeps. It is measured in a separate process, because the setting holds for a whole process. */
import { spawnSync } from 'node:child_process'
import { resolve } from 'node:path'
import { pathToFileURL } from 'node:url'
import { describe, expect, it } from 'vitest'

const engine = pathToFileURL(resolve('dist/cli/engine.js')).href

/** Runs functions once, causes garbage collections while they are idle, and prints the share of their code that is left. */
const REST = `
import { PerformanceObserver, constants } from 'node:perf_hooks'
import { getHeapCodeStatistics } from 'node:v8'

const COUNT = 200
const COLLECTIONS = 12
const size = () => getHeapCodeStatistics().bytecode_and_metadata_size

const sum = (n) => Array.from({ length: 300 }, (_, at) => '(x + ' + (at + n) + ')').join('+')
const text = Array.from({ length: COUNT }, (_, n) => 'function f' + n + '(x) { return ' + sum(n) + ' }').join(';')
const names = Array.from({ length: COUNT }, (_, n) => 'f' + n)
const empty = size()
const functions = new Function(text + '; return [' + names + ']')()
for (const run of functions) run(1)
const made = size() - empty

let collections = 0
new PerformanceObserver((list) => {
  for (const { detail } of list.getEntries()) {
    if (detail.kind === constants.NODE_PERFORMANCE_GC_MAJOR) collections++
  }
}).observe({ entryTypes: ['gc'] })
const held = []
for (let at = 0; collections < COLLECTIONS; at++) {
  held[at % 64] = Buffer.allocUnsafeSlow(524_288)
  if (at % 20 === 0) await new Promise(setImmediate)
}
process.stdout.write(String((size() - empty) / made) + ' ' + functions.length)
`

/** Returns which share of the code of idle functions is left after several garbage collections. */
function codeLeft(before: string): number {
  const { stdout } = spawnSync(
    process.execPath,
    ['--input-type=module', '--eval', REST.replace('const COUNT', `${before}\nconst COUNT`)],
    { encoding: 'utf8' },
  )
  return Number.parseFloat(stdout)
}

describe('tuneEngine', () => {
  it('keeps the compiled code of functions that are idle, which V8 would discard by default', () => {
    expect(codeLeft('')).toBeLessThan(0.5)
    expect(codeLeft(`(await import('${engine}')).tuneEngine()`)).toBeGreaterThan(0.8)
  })
})
