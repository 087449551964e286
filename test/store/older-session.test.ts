import { expect, it } from 'vitest'
import { LIMITS } from '../../src/core/budget/meters.ts'
import { usedUntilEnd } from '../../src/core/session/run.ts'
import { NEW_SESSION, usedSinceReset } from '../../src/core/session/session.ts'
import { createSessionForm, PLAIN } from '../../src/store/stored-session.ts'

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
  const link = PLAIN.read({ id: 'a', begun: sessionOf() })
  expect(link).toMatchObject({ id: 'a', begun: { counts: { iterations: 12 } } })
  for (const value of [{ id: 'a' }, [1], 'text', null, { begun: NEW_SESSION }]) expect(PLAIN.read(value)).toEqual(value)
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
