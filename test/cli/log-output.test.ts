import { mkdtempSync, readFileSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterAll, describe, expect, it, vi } from 'vitest'
import { createLogOutput, createTimestamp } from '../../src/cli/log-output.ts'

const folder = mkdtempSync(join(tmpdir(), 'governor-log-'))
afterAll(() => rmSync(folder, { recursive: true }))

let files = 0
function newOutput() {
  const file = join(folder, `${files++}.log`)
  const output = createLogOutput(file)
  return { output, read: () => readFileSync(file, 'utf8') }
}

describe('the log output', () => {
  it('writes lines that come together in one go, in order, a moment after the first', async () => {
    const { output, read } = newOutput()
    for (let at = 0; at < 100; at++) output.write(`${at}\n`)
    expect(read()).toBe('')
    await vi.waitFor(() => expect(read()).not.toBe(''))
    expect(read()).toBe(Array.from({ length: 100 }, (_, at) => `${at}\n`).join(''))
    output.write('later\n')
    await vi.waitFor(() => expect(read()).toMatch(/\nlater\n$/))
  })

  it('does not wait when there is much to write', () => {
    const { output, read } = newOutput()
    const line = `${'x'.repeat(1023)}\n`
    for (let at = 0; at < 20; at++) output.write(line)
    expect(read().length).toBeGreaterThanOrEqual(16_384)
    output.flush()
    expect(read()).toBe(line.repeat(20))
  })

  it('writes what is left when it is told to, and nothing twice', () => {
    const { output, read } = newOutput()
    output.flush()
    output.write('last\n')
    output.flush()
    output.flush()
    expect(read()).toBe('last\n')
  })
})

describe('the time of a line', () => {
  it('is the one that pino writes, whether or not another line had the same', () => {
    const times = [0, 1_750_000_000_123, 1_750_000_000_123, 1_750_000_000_124, 1_750_000_000_123]
    let at = 0
    const timestamp = createTimestamp(() => times[at] ?? 0)
    vi.useFakeTimers()
    for (at = 0; at < times.length; at++) {
      vi.setSystemTime(times[at] ?? 0)
      expect(timestamp()).toBe(pino.stdTimeFunctions.isoTime())
    }
    vi.useRealTimers()
  })
})
