import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { COUNTERS, type Counts } from '../../src/core/counters.ts'
import { namesOf } from '../../src/core/names.ts'
import type { IterationRecord, MinuteRecord, SessionRecord } from '../../src/core/operator/session-record.ts'
import { NEW_SESSION, type Session } from '../../src/core/session/session.ts'
import { createSessionForm, createValueForm } from '../../src/store/stored-session.ts'

const count = fc.nat()
/** What answers may have counted: nothing of what is 0, costs in billionths of a dollar. */
const counts = fc
  .dictionary(
    fc.constantFrom(...namesOf(COUNTERS).filter((name) => name !== 'cost' && 'ofAnswer' in COUNTERS[name])),
    fc.integer({ min: 1 }),
  )
  .chain((whole) => fc.nat({ max: 1e12 }).map((nano): Counts => (nano > 0 ? { ...whole, cost: nano / 1e9 } : whole)))

const iteration: fc.Arbitrary<IterationRecord> = fc.record({
  thread: count,
  iteration: count,
  at: fc.nat({ max: 4e12 }),
  durationMs: count,
  status: fc.constantFrom(200, 200, 0, 400, 529),
  verdict: fc.constantFrom('allow' as const, 'allow' as const, 'warn' as const, 'block' as const, 'stop' as const),
  tier: fc.constantFrom(undefined, undefined, 'caution' as const, 'warning' as const),
  loop: fc.constantFrom(undefined, undefined, 'repetition' as const, 'cycle' as const),
  overflow: fc.constantFrom(undefined, undefined, 'shrink_context' as const),
  // A name that is cut to its bound may end in half a character.
  tools: fc.array(fc.oneof(fc.stringMatching(/^[\w-]{1,64}$/), fc.string({ unit: 'binary' }), fc.constant('\ud83d'))),
  said: fc.option(fc.string({ unit: 'binary' }), { nil: undefined }),
  counts,
})

const minute: fc.Arbitrary<MinuteRecord> = fc.record({
  at: fc.nat({ max: 100_000_000 }).map((minutes) => minutes * 60_000),
  // A minute counts its answers.
  counts: fc.tuple(counts, count).map(([one, iterations]) => (iterations > 0 ? { ...one, iterations } : one)),
})

const record: fc.Arbitrary<SessionRecord> = fc.record({
  name: fc.constant('mine'),
  threads: fc.constant(1),
  iterations: fc.array(iteration),
  runs: fc.constant([]),
  minutes: fc.array(minute),
})

const sessionWith = (one: SessionRecord): Session => ({ ...NEW_SESSION, record: one })
const overTheWire = (value: unknown): unknown => JSON.parse(JSON.stringify(value))

describe('the stored form of a session', () => {
  it('gives back any record to the replica that wrote it and to any other, and the same text for it again', () => {
    fc.assert(
      fc.property(record, (one) => {
        const [here, there] = [createSessionForm(), createSessionForm()]
        const stored = here.write(sessionWith(one))
        for (const form of [here, there]) {
          const read = form.read(overTheWire(stored))
          expect(read.record).toEqual(one)
          expect(form.write(read)).toEqual(overTheWire(stored))
        }
      }),
    )
  })

  it('is the same beside a link, and other values are stored as they are', () => {
    const { write, read } = createValueForm()
    fc.assert(
      fc.property(record, (one) => {
        const link = { id: 'a', begun: sessionWith(one) }
        expect(read(overTheWire(write(link)))).toEqual(overTheWire(link))
      }),
    )
    for (const value of [{ id: 'a' }, [1], 'text', null, { begun: undefined }])
      expect(read(write(value))).toEqual(value)
  })

  it('is read by a version that has its counters in another order', () => {
    const { read, write } = createSessionForm()
    const line = (tokens: string) => `1 2s 3 4 ${tokens} read`
    const stored = { counters: 'cost images input', iterations: [line('1jB 2 5')], name: 'mine', threads: 1, runs: [] }
    const session = read({ threads: [], counts: {}, record: stored })
    const entry = { thread: 1, at: 100, iteration: 3, durationMs: 4, tools: ['read'] }
    expect(session.record?.iterations).toMatchObject([{ ...entry, counts: { cost: 55e-9, images: 2, input: 5 } }])
    expect(read(write(session)).record?.iterations).toMatchObject([{ ...entry, counts: { cost: 55e-9, input: 5 } }])
  })

  it('of a session without a record is the session', () => {
    const { write, read } = createSessionForm()
    expect(read(overTheWire(write(NEW_SESSION)))).toEqual({ threads: [], counts: {} })
  })
})
