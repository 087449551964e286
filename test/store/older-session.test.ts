import { expect, it } from 'vitest'
import { LIMITS } from '../../src/core/budget/meters.ts'
import { usedUntilEnd } from '../../src/core/session/run.ts'
import { usedSinceReset } from '../../src/core/session/session.ts'
import { createSessionForm, createValueForm } from '../../src/store/stored-session.ts'

const { read } = createSessionForm()
const NOW = 100_000

const run = {
  startedAt: 1_000,
  askedAt: 60_000,
  iteration: 9,
  toolCalls: 8,
  recentRequests: [{ fingerprint: 'a', iteration: 9 }],
  usage: { input: 700, output: 50, cachedInput: 600, cost: 0.25, costGap: 'partial', estimated: true },
}
const threadOf = (inRun: object = {}) => ({ name: '', system: 's', userMessageHashes: [], run: { ...run, ...inRun } })
const sessionOf = (inRun: object = {}, more: object = {}) => ({
  threads: [threadOf(inRun)],
  usage: run.usage,
  totals: { startedAt: 1_000, iterations: 12, toolCalls: 10, acknowledged: 1, ignored: 2 },
  ...more,
})
const COUNTED = { input: 700, output: 50, cached_input: 600, cost: 0.25, unpriced_answers: 1 }

it('a session of a version with a place for each count has the same counts', () => {
  const session = read(sessionOf())
  const { totals: _, usage: _usage, ...kept } = sessionOf() as Record<string, unknown>
  expect(session).toMatchObject({ startedAt: 1_000, counts: { iterations: 12, tool_calls: 10, ...COUNTED } })
  expect(session.counts).toMatchObject({ acknowledged: 1, ignored: 2 })
  expect(session.threads[0]?.run.counts).toEqual({ runs: 1, iterations: 9, tool_calls: 8, ...COUNTED })
  expect(Object.keys(session).toSorted()).toEqual([...Object.keys(kept), 'counts', 'operator', 'startedAt'].toSorted())
  expect(read(session)).toEqual(session)
})

it('a run of such a version has the same amounts since its reset, at its end and of what it inherited', () => {
  const base = { iterations: 3, tool_calls: 2, tokens: 720, cost: 0.05, seconds: 10 }
  const inherited = { iterations: 2, toolCalls: 1 }
  const session = read(sessionOf({ operator: { base, isStopAsked: true }, inherited }, { operator: { base } }))
  const used = { iterations: 6, tool_calls: 6, tokens: 30, cost: 0.2, seconds: 89 }
  const [thread] = session.threads
  if (!thread) throw new Error('no thread')
  expect(usedSinceReset(thread.run, NOW)).toEqual(used)
  expect(usedSinceReset(session, NOW)).toEqual({ ...used, iterations: 9, tool_calls: 8 })
  expect(thread.run).toMatchObject({ operator: { isStopAsked: true }, inherited: { iterations: 2, tool_calls: 1 } })

  const finalAnswer = { text: 'done', ended: { at: 50_000, iterations: 8, toolCalls: 7 } }
  const [over] = read(sessionOf({ finalAnswer })).threads
  expect(over && usedUntilEnd(over.run, NOW)).toMatchObject({ iterations: 8, tool_calls: 7, tokens: 750, seconds: 49 })
  expect(over?.run.finalAnswer?.text).toBe('done')
})

it('a run that a message seemed to end, and the first state of a session beside a link, are read too', () => {
  const interrupted = { run, loopState: undefined }
  const session = read({ ...sessionOf(), threads: [{ ...threadOf(), interrupted }] })
  expect(session.threads[0]?.interrupted?.run.counts).toMatchObject({ iterations: 9, input: 700 })
  const link = createValueForm().read({ id: 'a', begun: sessionOf() })
  expect(link).toMatchObject({ id: 'a', begun: { counts: { iterations: 12 } } })
})

it('a session that an even older version stored uses 0 of each meter that it did not count', () => {
  // It counted no cost, and its operator reset it when no other meter than iterations was known.
  const usage = { input: 700, output: 50 }
  const operator = { base: { iterations: 2 } }
  const older = { startedAt: 1_000, iteration: 5, usage, operator, recentRequests: [] }
  const session = read({
    threads: [{ ...threadOf(), run: older }],
    totals: { startedAt: 1_000, iterations: 9 },
    usage,
    operator,
  })
  const used = { iterations: 3, tool_calls: 0, tokens: 750, cost: 0, seconds: 3 }
  expect(session.threads.map(({ run: one }) => usedSinceReset(one, 4_000))).toEqual([used])
  expect(usedSinceReset(session, 4_000)).toEqual({ ...used, iterations: 7 })
  expect(Object.keys(usedSinceReset(session, 4_000))).toEqual(LIMITS)
})

it('the record of such a session is read, whether it was kept in lines or in objects', () => {
  const inLines = {
    iterations: [
      '1 mgj6k3cw 6 15o 2i a 44ud8g 0 read edit',
      '1 mgj6k3cw 7 15o 2s 0 0 1 {"tools":[],"status":200,"verdict":"warn","tier":"caution","said":"Slow down."}',
      '1 mgj6k3cw 8 15o 32 k 1 2 read edit',
    ],
    minutes: ['hgpqt 96 44ud8g 1 ', 'hgpqu 0 0 0 '],
  }
  const spent = (input: number, output: number, cost: number, costGap?: string) => ({ input, output, cost, costGap })
  const of = {
    thread: 1,
    at: 1_760_000_000_000,
    durationMs: 1_500,
    status: 200,
    verdict: 'allow',
    tools: ['read', 'edit'],
  }
  const told = { tools: [], verdict: 'warn', tier: 'caution', said: 'Slow down.' }
  const inObjects = {
    iterations: [
      { ...of, iteration: 6, ...spent(90, 10, 0.25) },
      { ...of, iteration: 7, ...spent(100, 0, 0, 'partial'), ...told },
      { ...of, iteration: 8, ...spent(110, 20, 1e-9, 'estimate') },
    ],
    minutes: [
      { at: 1_759_999_980_000, tokens: 330, cost: 0.25, costGap: 'partial' },
      { at: 1_760_000_040_000, tokens: 0, cost: 0 },
    ],
  }
  const runs = [{ thread: 1, startedAt: 1, endedAt: 2, iterations: 3, toolCalls: 2, tokens: 330, cost: 0.25 }]
  for (const entries of [inLines, inObjects]) {
    const { record } = read(sessionOf({}, { record: { name: 'x', threads: 1, runs, ...entries } }))
    expect(record).toMatchObject({
      iterations: [
        { ...of, iteration: 6, counts: { input: 90, output: 10, cost: 0.25 } },
        { ...of, ...told, iteration: 7, counts: { input: 100, unpriced_answers: 1 } },
        { ...of, iteration: 8, counts: { input: 110, output: 20, cost: 1e-9, estimated_prices: 1 } },
      ],
      minutes: [
        { at: 1_759_999_980_000, counts: { input: 330, cost: 0.25, unpriced_answers: 1 } },
        { at: 1_760_000_040_000, counts: {} },
      ],
      runs: [{ thread: 1, startedAt: 1, endedAt: 2, counts: { iterations: 3, tool_calls: 2, input: 330, cost: 0.25 } }],
    })
    expect(
      read(createSessionForm().write(read(sessionOf({}, { record: { name: 'x', threads: 1, runs, ...entries } })))),
    ).toMatchObject({ record })
  }
})
