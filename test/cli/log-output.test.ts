import { execFileSync } from 'node:child_process'
import { closeSync, constants, mkdtempSync, openSync, readFileSync, readSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, describe, expect, it, onTestFinished, vi } from 'vitest'
import { createLogOutput } from '../../src/cli/start/log-output.ts'
import { createTerminalLog } from '../../src/cli/start/terminal-log.ts'

const folder = mkdtempSync(join(tmpdir(), 'governor-log-'))
afterAll(() => rmSync(folder, { recursive: true }))

let files = 0
function newOutput() {
  const file = join(folder, `${files++}.log`)
  let exit = () => {}
  const output = createLogOutput(openSync(file, 'a'), (handle) => {
    exit = handle
  })
  return { output, read: () => readFileSync(file, 'utf8'), exit: () => exit() }
}

describe('the log output', () => {
  it('writes all lines in order, including those written just before it is closed', async () => {
    const { output, read } = newOutput()
    const lines = Array.from({ length: 5_000 }, (_, at) => `${at}\n`).join('')
    for (const line of lines.split(/(?<=\n)/)) output.write(line)
    await vi.waitFor(() => expect(read()).toBe(lines), 20_000)
    output.write('last\n')
    output.close()
    output.write('too late\n')
    await vi.waitFor(() => expect(read()).toBe(`${lines}last\n`), 20_000)
  })

  it('writes the buffered lines when the process exits without closing it', async () => {
    const { output, read, exit } = newOutput()
    output.write('first\n')
    await vi.waitFor(() => expect(read()).toBe('first\n'), 20_000)
    for (let at = 0; at < 100; at++) output.write('x\n')
    exit()
    await vi.waitFor(() => expect(read()).toHaveLength(206), 20_000)
  })
})

/** Both ends of a named pipe, neither of which blocks, as Node opens the pipe it is given as standard output. */
function openPipe() {
  const pipe = join(folder, `${files++}.pipe`)
  execFileSync('mkfifo', [pipe])
  const reader = openSync(pipe, constants.O_RDONLY | constants.O_NONBLOCK)
  const writer = openSync(pipe, constants.O_WRONLY | constants.O_NONBLOCK)
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

describe('a log that its reader does not read', () => {
  it('blocks no writer, continues once it is read again, and loses only whole lines', async () => {
    const { writer, reader, read } = openPipe()
    onTestFinished(() => closeSync(reader))
    const output = createLogOutput(writer)
    const lines = Array.from({ length: 30_000 }, (_, at) => `${at} ${'x'.repeat(100)}\n`)
    for (const line of lines) output.write(line)
    let got = ''
    await vi.waitFor(() => {
      got += read()
      expect(got.length).toBeGreaterThan(1_000_000)
      expect(got.endsWith('\n')).toBe(true)
    }, PATIENT)
    expect(got).toBe(lines.join('').slice(0, got.length))
    output.write('heard\n')
    output.close()
    await vi.waitFor(() => {
      got += read()
      expect(got).toMatch(/\nheard\n$/)
    }, PATIENT)
  })
})

describe('log lines on a terminal', () => {
  const at = (seconds: number) => new Date(Date.UTC(2026, 10, 28, 12, 0, seconds)).toISOString()

  it('say an equal warning once a minute, then with how many there were, and other lines each time', () => {
    let said = ''
    const log = createTerminalLog((text) => {
      said += text.slice(9)
    })
    const write = (seconds: number, level: number, msg: string, more: object = {}) =>
      log.write(JSON.stringify({ level, time: at(seconds), msg, ...more }))
    for (const seconds of [0, 1, 2, 59]) write(seconds, 40, 'request relayed unguarded', { reason: 'unreadable_body' })
    write(3, 40, 'request relayed unguarded', { reason: 'no_room' })
    write(60, 40, 'request relayed unguarded', { reason: 'unreadable_body' })
    write(60, 30, 'draining')
    write(60, 30, 'draining')
    expect(said.split('\n')).toEqual([
      'request relayed unguarded {"reason":"unreadable_body"}',
      'request relayed unguarded {"reason":"no_room"}',
      'request relayed unguarded {"reason":"unreadable_body"} (and 3 more before)',
      'draining {}',
      'draining {}',
      '',
    ])
  })

  it('say why a request failed in words, whatever else the line has', () => {
    let said = ''
    const log = createTerminalLog((text) => {
      said += text
    })
    const failed = { level: 40, msg: 'request failed', detail: 'connection refused\u001b[2J', status: 502 }
    log.write(JSON.stringify({ ...failed, time: at(0), total_ms: 1 }))
    log.write(JSON.stringify({ ...failed, time: at(1), total_ms: 2 }))
    expect(said).toMatch(/^\d\d:\d\d:00 request failed: connection refused·\[2J\n$/)
  })
})
