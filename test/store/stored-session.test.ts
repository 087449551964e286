import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { IterationRecord, MinuteRecord, SessionRecord } from '../../src/core/operator/session-record.ts'
import { NEW_SESSION, type Session } from '../../src/core/session/session.ts'
import { createSessionForm } from '../../src/store/stored-session.ts'

const count = fc.nat()
const cost = fc.nat({ max: 1e12 }).map((billionths) => billionths / 1e9)
const costGap = fc.constantFrom(undefined, 'partial' as const, 'estimate' as const)

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
  input: count,
  output: count,
  cost,
  costGap,
})

const minute: fc.Arbitrary<MinuteRecord> = fc.record({
  at: fc.nat({ max: 100_000_000 }).map((minutes) => minutes * 60_000),
  tokens: count,
  cost,
  costGap,
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

  it('of a version that stored iterations and minutes as objects is read whole', () => {
    fc.assert(
      fc.property(record, (one) => {
        expect(createSessionForm().read(overTheWire(sessionWith(one))).record).toEqual(overTheWire(one))
      }),
    )
  })

  it('of a session without a record is the session', () => {
    const { write, read } = createSessionForm()
    expect(read(overTheWire(write(NEW_SESSION)))).toEqual({ threads: [], counts: {} })
  })
})
