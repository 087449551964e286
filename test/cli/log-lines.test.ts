import { pino } from 'pino'
import { afterEach, describe, expect, it, vi } from 'vitest'
import { createLog, type LogLevel } from '../../src/cli/log-lines.ts'

afterEach(() => void vi.useRealTimers())

const FACTS = [
  {},
  { a: undefined },
  { text: 'plain', quoted: 'a "b" \\ \n \u0007 \u2028 \ud800 ß 日本語', 'key "x"': true },
  { whole: 3, part: 0.1, large: 1e21, none: null, not: Number.NaN, no: undefined, yes: false },
  { list: ['a', 1], nested: { b: 'c', d: undefined } },
]

/** What both write for the same calls. */
function written(level: LogLevel) {
  vi.useFakeTimers({ now: 1_750_000_000_123 })
  const [own, theirs]: [string[], string[]] = [[], []]
  const logs = [
    createLog(level, { write: (line) => void own.push(line) }),
    pino(
      { level, base: null, timestamp: pino.stdTimeFunctions.isoTime },
      { write: (line: string) => void theirs.push(line) },
    ),
  ]
  for (const facts of FACTS) {
    for (const log of logs) {
      log.info(facts, 'info')
      log.warn(facts, 'a "warning"')
      log.error(facts, 'error')
    }
    vi.advanceTimersByTime(7)
  }
  return { own, theirs }
}

describe('log lines', () => {
  it.each([
    ['trace', 15],
    ['info', 15],
    ['warn', 10],
    ['error', 5],
    ['fatal', 0],
    ['silent', 0],
  ] as const)('are those that pino writes, at level %s', (level, count) => {
    const { own, theirs } = written(level)
    expect(own).toEqual(theirs)
    expect(own).toHaveLength(count)
  })
})
