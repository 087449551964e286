import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { blockText, loopNotice } from '../../../src/core/loop/loop-notices.ts'
import { maskVolatile, textHashes } from '../../../src/core/loop/tool-result.ts'

const maskedHash = (text: string, volatile: 'default' | 'none' = 'default') => textHashes(text, volatile).maskedHash
const isSame = (a: string, b: string) => maskedHash(a) === maskedHash(b)

describe('two results', () => {
  it.each([
    { what: 'times of day', a: 'done at 09:15:02', b: 'done at 17:44:59.120' },
    { what: 'clock times', a: 'now 9:05 am', b: 'now 11:59 pm' },
    { what: 'dates', a: '2026-03-04: ok', b: '2026-03-05: ok' },
    { what: 'time stamps', a: '[2026-03-04T09:15:02.123Z] up', b: '[2026-03-04T09:16:40+01:00] up' },
    {
      what: 'dates in words',
      a: 'Date: Wed, 4 Mar 2026 09:15:02 GMT',
      b: 'Date: Wed, 5 Mar 2026 10:00:00 GMT',
    },
    {
      what: 'dates of a listing',
      a: '-rw-r--r-- 1 a a 12 Mar  4 09:15 x',
      b: '-rw-r--r-- 1 a a 12 Mar 14 10:15 x',
    },
    { what: 'durations', a: '3 passed in 0.42s', b: '3 passed in 1.07s' },
    { what: 'durations in words', a: 'took 12 seconds', b: 'took 3 minutes' },
    { what: 'durations of a shell', a: 'real 0m1.204s', b: 'real 1m0.003s' },
    { what: 'durations with a comma', a: 'Dauer: 0,31 s', b: 'Dauer: 1,07 s' },
    {
      what: 'durations without a unit',
      a: '{"took":3,"elapsed_ms": 0.25}',
      b: '{"took":12,"elapsed_ms": 14}',
    },
    {
      what: 'UUIDs',
      a: 'id 123e4567-e89b-12d3-a456-426614174000',
      b: 'id 00000000-0000-4000-8000-00000000000a',
    },
    { what: 'addresses', a: '<Job object at 0x7f3a5c0010>', b: '<Job object at 0x55d0c0ffee>' },
    { what: 'hex ids', a: 'trace 4bf92f3577b34da6 ok', b: 'trace 00f067aa0ba902b7 ok' },
    { what: 'numbers of seven digits', a: 'ticket 4711815', b: 'ticket 4711816' },
    { what: 'long numbers', a: '{"ts":1772615702123}', b: '{"ts":1772615761999}' },
    { what: 'steps of an agent', a: 'Moved. Step 11/20', b: 'Moved. Step 12/20' },
    { what: 'steps before a colon', a: 'Step 3: clicked.', b: 'Step 4: clicked.' },
    { what: 'turns of an agent', a: 'ok (turn 3 out of 9)', b: 'ok (turn 4 out of 9)' },
    { what: 'attempts', a: '{"attempt": 2, "error": "closed"}', b: '{"attempt": 3, "error": "closed"}' },
    { what: 'what is no count', a: 'Thread 140234567890: no', b: 'Thread 140239876543: no' },
    { what: 'times that are said to be something', a: '{"sent":1772615702123}', b: '{"sent":1772615761999}' },
    { what: 'seconds since the epoch', a: 'at 1772615702.25', b: 'at 1772615761.983412' },
    { what: 'process ids', a: 'started (pid 4711)', b: 'started (pid 815)' },
    {
      what: "codex's head",
      a: 'Chunk ID: a1b2c3\nWall time: 0.0512 seconds\nok',
      b: 'Chunk ID: ffd001\nWall time: 11 seconds\nok',
    },
    {
      what: "gemini-cli's group",
      a: 'Output: ok\nProcess Group PGID: 15309',
      b: 'Output: ok\nProcess Group PGID: 912',
    },
    {
      what: "Claude Code's count-down",
      a: 'ok\n\n<system-reminder>\n<total_tokens>14200 tokens left</total_tokens>\n</system-reminder>',
      b: 'ok\n\n<system-reminder>\n<total_tokens>9 tokens left</total_tokens>\n</system-reminder>',
    },
    {
      what: 'what Claude Code reminds of now and then',
      a: 'ok\n\n<system-reminder>\n<total_tokens>9 tokens left</total_tokens>\n</system-reminder>',
      b: 'ok\n\n<system-reminder>\nUse <the> tasks.\n</system-reminder>\n\n<system-reminder>x</system-reminder>\n',
    },
    { what: 'a reminder alone', a: 'ok', b: 'ok\n\n<system-reminder>\nUse the tasks.\n</system-reminder>' },
    {
      what: 'a reminder after a line that ends',
      a: 'Wall time: 0.011 seconds\nok\n',
      b: 'Wall time: 0.073 seconds\nok\n\n\n<system-reminder>\nThat was the same call.\n</system-reminder>',
    },
    { what: 'the order of their lines', a: 'a.ts\nb.ts\nc.ts', b: 'c.ts\na.ts\nb.ts' },
  ])('that differ only in $what are equal', ({ a, b }) => {
    expect(isSame(a, b)).toBe(true)
    expect(maskedHash(a, 'none')).not.toBe(maskedHash(b, 'none'))
  })

  it('that differ only in a number beside a unit of time are equal, for any number, unit and side', () => {
    const seconds = fc.oneof(
      fc.constantFrom('0.000007211', '7.2e-06', '0.0000000000012', '1234567890.25'),
      fc.double({ min: 0, max: 1e12, noNaN: true }).map(String),
      fc.nat().map(String),
    )
    const shape = fc.constantFrom(
      (number: string) => `{"exit_code":0,"wall_time_seconds":${number},"output":"ok"}`,
      (number: string) => `wall_time_ms: ${number}\nok`,
      (number: string) => `user_ns=${number} ok`,
      (number: string) => `{'run_secs': ${number}}`,
      (number: string) => `Wall time: ${number} seconds`,
      (number: string) => `ran for ${number} microseconds`,
      (number: string) => `(${number}ms)`,
      (number: string) => `${number} msec, ok`,
    )
    fc.assert(
      fc.property(shape, seconds, seconds, (text, a, b) => {
        expect(maskVolatile(text(a))).toBe(maskVolatile(text(b)))
      }),
    )
  })

  it.each([
    { what: 'a count', a: '6 failed, 0 passed', b: '5 failed, 1 passed' },
    { what: 'a percentage', a: '40 % done', b: '80 % done' },
    { what: 'a line and a column', a: 'main.c:12:34: error', b: 'main.c:15:20: error' },
    { what: 'a measure', a: 'loss 0.12345678', b: 'loss 0.11111111' },
    { what: 'a share of the steps', a: 'steps: 40%', b: 'steps: 60%' },
    { what: 'the number of a file', a: 'step_3.txt', b: 'step_4.txt' },
    { what: 'a page', a: '{"page": 1, "items": []}', b: '{"page": 2, "items": []}' },
    { what: 'a number of six digits', a: 'ticket 471181', b: 'ticket 471182' },
    { what: 'a long count', a: '{"bytes": 104857600}', b: '{"bytes": 209715200}' },
    { what: 'another long count', a: 'rows=10485760', b: 'rows=20971520' },
    { what: 'what a duration is not', a: 'page_time: 3 of 7', b: 'page_time: 4 of 7' },
    { what: 'a number of work', a: 'process 120 of 900', b: 'process 240 of 900' },
    { what: 'what is left of the work', a: '12 files left', b: '9 files left' },
    { what: 'a least value', a: '{"x_min": 0.25}', b: '{"x_min": 0.5}' },
    { what: 'a share of the time', a: 'elapsed: 40%', b: 'elapsed: 60%' },
    { what: 'a word', a: 'deadbeef faced', b: 'deadbeef decade' },
    { what: 'a digest', a: `sha256 ${'a1'.repeat(32)}`, b: `sha256 ${'b2'.repeat(32)}` },
    { what: 'a commit', a: `at ${'a1'.repeat(20)}`, b: `at ${'b2'.repeat(20)}` },
    { what: 'how often a line is there', a: 'x\nx\ny', b: 'x\ny\ny' },
    { what: 'nothing and white space', a: '', b: '\n' },
  ])('that differ in $what are different', ({ a, b }) => {
    expect(isSame(a, b)).toBe(false)
  })

  it('that differ only in notices of Governor are equal', () => {
    const loop = { pattern: 'repetition', tools: ['ls'], count: 3, span: 3 } as const
    const notice = loopNotice(loop, loop.tools, undefined)
    const budget = '[BUDGET: Iteration 7/10. You have 3 iterations left.]'
    expect(isSame('a.ts', `a.ts\n\n${budget}`)).toBe(true)
    expect(isSame('a.ts\n\nb.ts', `a.ts\n\nb.ts\n\n${notice}\n\n${budget}`)).toBe(true)
    expect(isSame('a.ts', `a.ts\n\n${blockText('ls', 3)}`)).toBe(true)
    expect(isSame('a.ts', `a.ts\n\nI say: ${notice}`)).toBe(false)
  })
})

describe('masking', () => {
  it('masks a text of a megabyte at its beginning and at its end', () => {
    const filler = '1,'.repeat(500_000)
    expect(maskVolatile(`at 09:15 ${filler} at 09:16`)).toBe(maskVolatile(`at 10:15 ${filler} at 10:16`))
    expect(maskVolatile(`${filler} at 09:15 ${filler}`)).toContain(' at 09:15 ')
  })

  it('masks nothing more in a masked text, for any text', () => {
    const unit = fc.constantFrom(
      '0',
      '7',
      '12',
      'a',
      'f',
      ':',
      '-',
      '.',
      ' ',
      'T',
      's',
      'm',
      'pid',
      'Mar',
      '\n',
      '/',
      'x',
    )
    fc.assert(
      fc.property(fc.string({ unit, maxLength: 60 }), (text) => {
        expect(maskedHash(text)).toBe(maskedHash(text))
        expect(maskVolatile(text).length).toBeLessThanOrEqual(text.length)
      }),
    )
  })

  it.each([
    '0',
    'a',
    '1a',
    '12:',
    '1.',
    ' 1',
    '1-',
    '1m',
    'pid ',
    'pid: "',
    'Mar ',
    '0x',
    '<total_tokens>',
    '<system-reminder>',
    '<system-reminder>a</system-reminder>',
    '\n',
    '1,',
    'f:',
    '2026-01-01T',
    '1h1m',
    'took ',
    'run time',
    'count=',
    'count=1',
    '1.1',
    'pid=',
    // In quadratic time it would not end before the test times out.
  ])('masks a million characters made of %j', (piece) => {
    const text = piece.repeat(Math.floor(1_000_000 / piece.length))
    expect(maskVolatile(text).length).toBeLessThanOrEqual(text.length)
  })
})
