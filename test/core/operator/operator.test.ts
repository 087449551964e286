import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type Amounts, amountsBy, LIMITS } from '../../../src/core/budget/meters.ts'
import { NO_LOOP } from '../../../src/core/loop/escalation.ts'
import { INITIAL_LOOP_STATE } from '../../../src/core/loop/loop-state.ts'
import {
  type Extension,
  extendRuns,
  HIGHEST_LIMIT,
  resetRuns,
  setBudget,
  setLoopMode,
  stopRuns,
} from '../../../src/core/operator/operator.ts'
import {
  limitsInForce,
  loopModeInForce,
  NEW_SESSION,
  type Run,
  type Session,
  type Thread,
  usedSinceReset,
} from '../../../src/core/session/session.ts'
import type { FinalAnswer } from '../../../src/core/terminal.ts'
import { tell } from '../loop/loop-story.ts'
import { runWith, threadWith } from '../transcript.ts'

const NONE: Amounts = amountsBy(() => 0)
const NOW = 1_800_000_000_000
const limitsOf = (iterations: number): Run['limits'] => ({ run: { ...NONE, iterations }, session: NONE })

const ENDED: FinalAnswer = {
  text: 'All I know.',
  model: 'm',
  terminal: {
    terminal_state: 'tool_limit_reached',
    terminal_reason: 'max_iterations',
    has_final_answer: true,
    budget_used: 10,
    budget_max: 10,
    scope: 'run',
    session: 's',
  },
}

function threadOf(number: number, run: Partial<Run> = {}): Thread {
  const counts = { runs: 1, iterations: 8, tool_calls: 7, input: 900, output: 100, cost: 0.5 }
  const limits = limitsOf(10)
  return threadWith(runWith({ startedAt: NOW - 60_000, askedAt: NOW, counts, limits, ...run }), {
    name: number === 1 ? '' : `agent ${number}`,
    number,
  })
}

const sessionOf = (...threads: readonly Thread[]): Session => ({ ...NEW_SESSION, threads })
const two = sessionOf(threadOf(1), threadOf(2))

/** What a run may use, as its next request finds it. */
function limitOf(session: Session, number: number): Amounts | undefined {
  const thread = session.threads.find((one) => one.number === number)
  return thread?.run.limits && limitsInForce(thread.run.limits, session, thread, thread.run).run
}

const asked = (session: Session) => session.threads.map(({ run }) => run.operator?.isStopAsked === true)

describe('a stop', () => {
  it('asks for the end of all current runs, or of one agent alone', () => {
    expect(asked(stopRuns(two, undefined))).toEqual([true, true])
    expect(asked(stopRuns(two, 2))).toEqual([false, true])
    expect(stopRuns(two, 3)).toEqual(two)
  })

  it('leaves a run that is over as it is', () => {
    const ended = sessionOf(threadOf(1, { finalAnswer: ENDED }), threadOf(2))
    expect(asked(stopRuns(ended, undefined))).toEqual([false, true])
  })

  it('keeps what an operator had set before', () => {
    const stopped = stopRuns(extendRuns(two, undefined, { to: 40 }, undefined), undefined)
    expect(limitOf(stopped, 1)?.iterations).toBe(40)
  })
})

describe('an extension', () => {
  it.each<[Extension, number]>([
    [{ share: 0.5 }, 15],
    [{ share: 0.25 }, 13],
    [{ share: 0.001 }, 11],
    [{ iterations: 5 }, 15],
    [{ to: 40 }, 40],
    [{ to: 4 }, 10],
  ])('by %j makes of 10 iterations %i', (by, expected) => {
    expect(limitOf(extendRuns(two, undefined, by, undefined), 1)?.iterations).toBe(expected)
  })

  it('raises no limit above the highest one, however often and by whatever it comes', () => {
    const extension: fc.Arbitrary<Extension> = fc.oneof(
      fc.record({ share: fc.double({ min: 1, max: 1e300, noNaN: true }) }),
      fc.record({ iterations: fc.constantFrom(1_000_000, Number.MAX_VALUE) }),
      fc.record({ to: fc.constant(Number.MAX_VALUE) }),
    )
    const limits = Object.fromEntries(LIMITS.map((name) => [name, 10])) as unknown as Amounts
    fc.assert(
      fc.property(fc.array(extension, { minLength: 1, maxLength: 60 }), (extensions) => {
        const start = sessionOf(threadOf(1, { limits: { run: limits, session: limits } }))
        const after = extensions.reduce((session, by) => extendRuns(session, undefined, by, undefined), start)
        for (const name of LIMITS) expect(limitOf(after, 1)?.[name]).toBeLessThanOrEqual(HIGHEST_LIMIT)
        expect(JSON.parse(JSON.stringify(after))).toEqual(JSON.parse(JSON.stringify(after), (_, value) => value ?? 0))
      }),
    )
  })

  it('raises limits that are set and sets none, and lowers none', () => {
    const amounts = fc.record(
      Object.fromEntries(LIMITS.map((name) => [name, fc.double({ min: 0, max: 1e6, noNaN: true })])),
    ) as fc.Arbitrary<Amounts>
    const extension: fc.Arbitrary<Extension> = fc.oneof(
      fc.record({ share: fc.double({ min: 0, max: 10, noNaN: true }) }),
      fc.record({ iterations: fc.integer({ min: 1, max: 1_000 }) }),
      fc.record({ to: fc.integer({ min: 1, max: 1_000_000 }) }),
    )
    fc.assert(
      fc.property(amounts, fc.array(extension, { maxLength: 4 }), (run, extensions) => {
        let session = sessionOf(threadOf(1, { limits: { run, session: run } }))
        for (const by of extensions) {
          const before = limitOf(session, 1)
          session = extendRuns(session, undefined, by, undefined)
          const after = limitOf(session, 1)
          for (const name of LIMITS) {
            if (run[name] === 0) expect(after?.[name]).toBe(0)
            else expect(after?.[name]).toBeGreaterThanOrEqual(before?.[name] ?? Number.POSITIVE_INFINITY)
          }
        }
      }),
    )
  })

  it('adds up, each from what the one before left', () => {
    const once = extendRuns(two, undefined, { share: 0.5 }, undefined)
    expect(limitOf(extendRuns(once, undefined, { share: 0.5 }, undefined), 1)?.iterations).toBe(23)
  })

  it('is for one agent alone where its number is given', () => {
    const extended = extendRuns(two, 2, { iterations: 5 }, undefined)
    expect([limitOf(extended, 1)?.iterations, limitOf(extended, 2)?.iterations]).toEqual([10, 15])
  })

  it('with a key changes nothing a second time, of which the newest 16 keys are known', () => {
    let session = extendRuns(two, undefined, { iterations: 1 }, 'first')
    expect(extendRuns(session, undefined, { iterations: 1 }, 'first')).toBe(session)
    for (let at = 0; at < 16; at++) session = extendRuns(session, undefined, { iterations: 1 }, `key ${at}`)
    expect(limitOf(session, 1)?.iterations).toBe(27)
    expect(extendRuns(session, undefined, { iterations: 1 }, 'key 0')).toBe(session)
    expect(session.operator?.done).toHaveLength(16)
    expect(limitOf(extendRuns(session, undefined, { iterations: 1 }, 'first'), 1)?.iterations).toBe(28)
  })

  it('raises the limits of the session as a whole, of which its newest request told', () => {
    const limits = { run: NONE, session: { ...NONE, tokens: 1_000 } }
    const session = sessionOf(threadOf(1, { limits }))
    const extended = extendRuns(session, undefined, { share: 0.5 }, undefined)
    expect(limitsInForce(limits, extended, undefined, undefined).session.tokens).toBe(1_500)
  })

  it('leaves a run alone of whose limits nothing is known', () => {
    const session = sessionOf(threadOf(1, { limits: undefined }))
    expect(extendRuns(session, undefined, { share: 0.5 }, undefined).threads).toEqual(session.threads)
  })
})

describe('a limit that an operator sets', () => {
  it('holds for this run and those after it, until it is given back', () => {
    const set = setBudget(two, undefined, { iterations: 90, cost: 2 })
    expect(limitOf(set, 1)).toMatchObject({ iterations: 90, cost: 2, tokens: 0 })
    // A run that is yet to begin has neither thread nor run of its own.
    expect(limitsInForce({ run: NONE, session: NONE }, set, undefined, undefined).run.iterations).toBe(90)
    expect(limitOf(setBudget(set, undefined, { iterations: null }), 1)).toMatchObject({
      iterations: 10,
      cost: 2,
    })
  })

  it('ends the extension of it, and of no other limit', () => {
    const limits = { run: { ...NONE, iterations: 10, tokens: 100 }, session: NONE }
    const extended = extendRuns(sessionOf(threadOf(1, { limits })), undefined, { share: 1 }, undefined)
    expect(limitOf(setBudget(extended, undefined, { iterations: 12 }), 1)).toMatchObject({
      iterations: 12,
      tokens: 200,
    })
  })

  it('for one agent wins over that for all', () => {
    const session = setBudget(setBudget(two, undefined, { iterations: 90 }), 2, { iterations: 4 })
    expect([limitOf(session, 1)?.iterations, limitOf(session, 2)?.iterations]).toEqual([90, 4])
  })
})

describe('a mode of the loop guard that an operator sets', () => {
  it('for one agent wins over that for all, and null gives it back', () => {
    const session = setLoopMode(setLoopMode(two, undefined, 'warn'), 2, 'observe')
    expect(session.threads.map((thread) => loopModeInForce(session, thread))).toEqual(['warn', 'observe'])
    const back = setLoopMode(session, undefined, null)
    expect(back.threads.map((thread) => loopModeInForce(back, thread))).toEqual([undefined, 'observe'])
  })
})

describe('a reset', () => {
  it('begins runs anew: nothing is used, and a run that was over goes on', () => {
    const stopped = stopRuns(sessionOf(threadOf(1, { finalAnswer: ENDED }), threadOf(2)), undefined)
    const fresh = resetRuns(stopped, undefined, NOW)
    for (const { run } of fresh.threads) {
      expect(usedSinceReset(run, NOW)).toEqual(NONE)
      expect(run.finalAnswer).toBeUndefined()
      expect(run.operator?.isStopAsked).toBeUndefined()
    }
    expect(usedSinceReset(fresh, NOW)).toEqual(NONE)
  })

  it('of one agent leaves the others and the session as they are', () => {
    const fresh = resetRuns(two, 2, NOW)
    expect(fresh.threads[0]).toBe(two.threads[0])
    expect(fresh.operator).toBeUndefined()
  })

  it('counts from there, and a second one from where it is then', () => {
    const fresh = resetRuns(two, undefined, NOW)
    const later = sessionOf(
      ...fresh.threads.map((thread) => ({
        ...thread,
        run: { ...thread.run, counts: { ...thread.run.counts, iterations: 11 } },
      })),
    )
    expect(later.threads.map(({ run }) => usedSinceReset(run, NOW).iterations)).toEqual([3, 3])
    const again = resetRuns(later, undefined, NOW)
    expect(again.threads.map(({ run }) => usedSinceReset(run, NOW).iterations)).toEqual([0, 0])
  })

  it('keeps limits and modes that an operator has set, and ends extensions', () => {
    const set = setLoopMode(setBudget(two, undefined, { tokens: 500 }), undefined, 'warn')
    const fresh = resetRuns(extendRuns(set, undefined, { iterations: 5 }, undefined), undefined, NOW)
    expect(limitOf(fresh, 1)).toMatchObject({ iterations: 10, tokens: 500 })
    expect(loopModeInForce(fresh, fresh.threads[0])).toBe('warn')
  })
})

it('each change of an operator gives the same when a store makes it twice, and changes nothing it was given', () => {
  const changes: readonly ((session: Session) => Session)[] = [
    (session) => stopRuns(session, undefined),
    (session) => extendRuns(session, undefined, { share: 0.5 }, 'key'),
    (session) => setBudget(session, 2, { iterations: 3 }),
    (session) => setLoopMode(session, 1, 'observe'),
    (session) => resetRuns(session, undefined, NOW),
  ]
  fc.assert(
    fc.property(fc.array(fc.nat(changes.length - 1), { maxLength: 8 }), (order) => {
      let session = two
      for (const at of order) {
        const change = changes[at] ?? ((same: Session) => same)
        const before = JSON.stringify(session)
        const first = change(session)
        expect(change(session)).toEqual(first)
        expect(JSON.stringify(session)).toBe(before)
        session = first
      }
    }),
  )
})

describe('the loop guard of a run that is reset', () => {
  it('forgets the calls of the run, and keeps what it has read', () => {
    const loopState = { ...INITIAL_LOOP_STATE, memory: tell('a=1 a=1 a=1').memory, newestIndex: 5, isWarned: true }
    const [thread] = resetRuns(sessionOf({ ...threadOf(1), loopState }), undefined, NOW).threads
    expect(thread?.loopState).toEqual({ ...loopState, memory: NO_LOOP, isWarned: false })
    expect(resetRuns(two, undefined, NOW).threads.map((one) => one.loopState)).toEqual([undefined, undefined])
  })
})
