import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  EMPTY_RECORD,
  type IterationFacts,
  MAX_ITERATIONS_KEPT,
  MAX_RUNS_KEPT,
  type RunRecord,
  type SessionRecord,
  withIteration,
  withRun,
  withTools,
} from '../../../src/core/operator/session-record.ts'

const facts = (changes: Partial<IterationFacts> = {}): IterationFacts => ({
  askedAt: 1_000,
  endedAt: 1_500,
  status: 200,
  verdict: 'allow',
  tier: undefined,
  loop: undefined,
  overflow: undefined,
  ...changes,
})

const usage = (input: number, output: number, cost?: number) => ({ input, output, cost, estimated: false })

const run = (startedAt: number): RunRecord => ({
  thread: 1,
  startedAt,
  endedAt: startedAt + 1,
  counts: { runs: 1, iterations: 1 },
  state: 'completed',
  terminal: undefined,
})

describe('the record of an iteration', () => {
  it('has when it was asked for, how long it took, what became of it and what it used', () => {
    const { iterations } = withIteration(
      EMPTY_RECORD,
      2,
      7,
      facts({ verdict: 'warn', tier: 'caution', loop: 'cycle' }),
      usage(90, 10, 0.5),
    )
    expect(iterations).toEqual([
      {
        thread: 2,
        iteration: 7,
        at: 1_000,
        durationMs: 500,
        status: 200,
        verdict: 'warn',
        tier: 'caution',
        loop: 'cycle',
        overflow: undefined,
        tools: [],
        counts: { input: 90, output: 10, cost: 0.5 },
      },
    ])
  })

  it('adds up the answers to one request: a model that was asked again, a price that came late', () => {
    let record = withIteration(EMPTY_RECORD, 1, 1, facts(), usage(90, 10))
    record = withTools(record, 1, ['search'])
    record = withIteration(record, 1, 1, facts({ endedAt: 3_000, verdict: 'block' }), usage(50, 5))
    record = withIteration(record, 1, 1, facts({ endedAt: 3_000, verdict: 'block' }), usage(0, 0, 0.25))
    expect(record.iterations).toMatchObject([
      { durationMs: 2_000, verdict: 'block', tools: ['search'], counts: { input: 140, output: 15, cost: 0.25 } },
    ])
  })

  it('gets a cost that became known after later iterations, of any number and in any order', () => {
    const prices = fc.uniqueArray(fc.integer({ min: 1, max: 12 }), { minLength: 1 })
    fc.assert(
      fc.property(prices, (late) => {
        const asked = (one: number) => facts({ askedAt: 1_000 * one, endedAt: 1_000 * one + 500 })
        let record = EMPTY_RECORD
        for (let one = 1; one <= 12; one++) record = withIteration(record, 1, one, asked(one), usage(90, 10))
        // A request that the run has forgotten has the number of the newest.
        for (const one of late)
          record = withIteration(record, 1, one > 8 ? one : 12, { ...asked(one), endedAt: 99_000 }, usage(0, 0, one))
        expect(
          record.iterations.map(({ iteration, counts, durationMs }) => [iteration, counts.cost, durationMs]),
        ).toEqual(Array.from({ length: 12 }, (_, at) => [at + 1, late.includes(at + 1) ? at + 1 : undefined, 500]))
      }),
    )
  })

  it('is another one for another request of the same number, as one that failed was not counted', () => {
    const failed = withIteration(EMPTY_RECORD, 1, 1, facts({ status: 500 }), undefined)
    const record = withIteration(failed, 1, 1, facts({ askedAt: 2_000, endedAt: 2_100 }), usage(1, 1))
    expect(record.iterations).toMatchObject([
      { iteration: 1, status: 500, counts: {} },
      { iteration: 1, status: 200, counts: { input: 1 } },
    ])
  })

  it('takes no time where the clock went back', () => {
    const { iterations } = withIteration(EMPTY_RECORD, 1, 1, facts({ endedAt: 0 }), undefined)
    expect(iterations).toMatchObject([{ durationMs: 0 }])
  })

  it('has the names of the tools that it called, once and cut to their bounds', () => {
    const begun = withIteration(EMPTY_RECORD, 1, 1, facts(), undefined)
    const names = Array.from({ length: 20 }, (_, at) => `${at}`.padEnd(100, 'x'))
    const record = withTools(begun, 1, names)
    expect(record.iterations[0]?.tools).toEqual(names.slice(0, 8).map((name) => name.slice(0, 64)))
    expect(withTools(record, 1, ['other'])).toBe(record)
  })

  it.each([
    ['another thread', EMPTY_RECORD, 2],
    ['a request that failed', withIteration(EMPTY_RECORD, 1, 1, facts({ status: 500 }), undefined), 1],
  ])('has no tools of %s', (_, record: SessionRecord, thread) => {
    expect(withTools(record, thread, ['search'])).toBe(record)
  })
})

describe('the record of a session', () => {
  it('keeps the newest iterations of all threads together, and the newest runs, in order', () => {
    const step = fc.record({ thread: fc.integer({ min: 1, max: 3 }), isRun: fc.boolean() })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 150 }), (steps) => {
        let record: SessionRecord = EMPTY_RECORD
        for (const [at, { thread, isRun }] of steps.entries())
          record = isRun
            ? withRun(record, run(at))
            : withIteration(record, thread, at, facts({ askedAt: at }), undefined)
        const places = steps.map((one, at) => ({ ...one, at }))
        const runs = places.filter(({ isRun }) => isRun).slice(-MAX_RUNS_KEPT)
        const iterations = places.filter(({ isRun }) => !isRun).slice(-MAX_ITERATIONS_KEPT)
        expect(record.runs.map(({ startedAt }) => startedAt)).toEqual(runs.map(({ at }) => at))
        expect(record.iterations.map((one) => one.at)).toEqual(iterations.map(({ at }) => at))
      }),
      { numRuns: 50 },
    )
  })
})

describe('the minutes of a record', () => {
  const minutesOf = (record: SessionRecord) => record.minutes?.map(({ counts }) => counts)

  it('count an iteration once, and none for a price that became known later', () => {
    const first = withIteration(EMPTY_RECORD, 1, 1, facts(), usage(90, 10))
    expect(minutesOf(first)).toEqual([{ iterations: 1, input: 90, output: 10 }])
    const again = withIteration(first, 1, 1, facts(), usage(50, 5))
    expect(minutesOf(again)).toEqual([{ iterations: 1, input: 140, output: 15 }])
    expect(minutesOf(withIteration(EMPTY_RECORD, 1, 1, facts(), usage(0, 0, 0.25)))).toMatchObject([{ cost: 0.25 }])
    expect(minutesOf(withIteration(EMPTY_RECORD, 1, 1, facts(), usage(0, 0, 0.25)))?.[0]?.iterations).toBeUndefined()
  })
})
