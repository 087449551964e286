import { execFileSync } from 'node:child_process'
import {
  closeSync,
  constants,
  existsSync,
  mkdtempSync,
  openSync,
  readFileSync,
  readSync,
  rmSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { pino } from 'pino'
import { afterAll, describe, expect, it, onTestFinished, vi } from 'vitest'
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

/** Both ends of a named pipe, neither of which blocks, as Node opens the pipe it is given as standard output. */
function openPipe() {
  const pipe = join(folder, `${files++}.pipe`)
  execFileSync('mkfifo', [pipe])
  const reader = openSync(pipe, constants.O_RDONLY | constants.O_NONBLOCK)
  const writer = openSync(pipe, constants.O_WRONLY | constants.O_NONBLOCK)
  onTestFinished(() => closeSync(writer))
  const read = () => {
    const bytes = Buffer.alloc(4_194_304)
    try {
      return bytes.toString('utf8', 0, readSync(reader, bytes))
    } catch {
      return ''
    }
  }
  return { reader, writer, read }
}

/** A pipe takes 64 KB at a time. */
const PATIENT = { interval: 5, timeout: 10_000 }

describe('a log that is not taken', () => {
  it.skipIf(!existsSync('/dev/full'))('costs no more than its lines where the disk is full', () => {
    const full = openSync('/dev/full', 'w')
    onTestFinished(() => closeSync(full))
    const output = createLogOutput(full)
    for (let at = 0; at < 3; at++) {
      output.write('lost\n')
      expect(() => output.flush()).not.toThrow()
    }
  })

  it('waits for its reader, keeps nobody waiting, and loses whole lines only', async () => {
    const { writer, reader, read } = openPipe()
    onTestFinished(() => closeSync(reader))
    const output = createLogOutput(writer)
    const lines = Array.from({ length: 30_000 }, (_, at) => `${at} ${'x'.repeat(100)}\n`)
    for (const line of lines) output.write(line)
    let got = ''
    await vi.waitFor(() => {
      got += read()
      expect(got.length).toBeGreaterThan(1_048_576)
      expect(got.endsWith('\n')).toBe(true)
    }, PATIENT)
    expect(got).toBe(lines.join('').slice(0, got.length))
    output.write('heard\n')
    output.flush()
    await vi.waitFor(() => {
      got += read()
      expect(got).toMatch(/\nheard\n$/)
    }, PATIENT)
  })

  it('goes nowhere once its reader is gone', () => {
    const { writer, reader } = openPipe()
    closeSync(reader)
    const output = createLogOutput(writer)
    for (let at = 0; at < 3; at++) {
      output.write('lost\n')
      expect(() => output.flush()).not.toThrow()
    }
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
