import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { namesOf } from '../../../src/core/names.ts'
import {
  endBefore,
  endOf,
  nextQuietEnd,
  QUIET_MS,
  recordOf,
  reportEnds,
  usedUntilEnd,
} from '../../../src/core/session/run.ts'
import { NEW_SESSION, type Run, type Session } from '../../../src/core/session/session.ts'
import { GUARD_REASONS, type Limit, terminalOf } from '../../../src/core/terminal.ts'
import { called, requestFacts, result, runWith, said, steps, system, threadWith, user } from '../transcript.ts'

const counts = { runs: 1, iterations: 4, tool_calls: 3, input: 300, output: 30, cost: 0.5 }
const runOf = (changes: Partial<Run> = {}): Run => runWith({ startedAt: 1_000, askedAt: 60_000, counts, ...changes })

const finalAnswer = (reason?: Limit['reason']) => ({
  text: 'Enough.',
  model: 'm',
  terminal: terminalOf({ meter: { name: 'iterations', used: 4, max: 3 }, ...(reason ? { reason } : {}) }, 's', true),
})

const sessionOf = (...runs: readonly Run[]): Session => ({
  ...NEW_SESSION,
  threads: runs.map((run, at) => threadWith(run, { name: String(at), number: at + 1 })),
})

/** What ends a run: a meter, a guard, or an operator. */
const ENDS = [undefined, 'operator' as const, ...namesOf(GUARD_REASONS)]

const over = 60_000 + QUIET_MS

describe('a run that Governor did not end', () => {
  it.each<[string | undefined, Partial<Run>]>([
    ['completed', { isAnswered: true }],
    ['no_response', { failedAs: 'no_response' }],
    ['context_overflow', { failedAs: 'context_overflow' }],
    [undefined, { isAnswered: false }],
    [undefined, {}],
  ])('is %s five minutes after the last thing that came, and not before: %j', (state, changes) => {
    const run = runOf(changes)
    expect([endOf(run, over - 1), endOf(run, over)]).toEqual([undefined, state])
  })

  it('ends five minutes after its answer, however long the model took for that', () => {
    const run = runOf({ isAnswered: true, quietSince: 900_000 })
    expect([endOf(run, 900_000 + QUIET_MS - 1), endOf(run, 900_000 + QUIET_MS)]).toEqual([undefined, 'completed'])
  })

  const before = [system('You are an agent.'), user('Go.'), ...steps('a', 1)]
  it.each<[string | undefined, string, Partial<Run>, readonly object[]]>([
    ['completed', 'after an answer', { isAnswered: true }, [said('Done.')]],
    ['completed', 'after an answer that only the transcript shows', {}, [said('Done.')]],
    [undefined, 'while tools were called', {}, [called('b'), result('b')]],
    [undefined, 'in the middle of an answer that broke off', { isAnswered: false }, [said('I thi')]],
    ['no_response', 'after a failure', { failedAs: 'no_response' }, []],
    ['context_overflow', 'after one that was too large', { failedAs: 'context_overflow' }, []],
  ])('is %s at once where a human speaks %s', (state, _, changes, messages) => {
    const facts = requestFacts([...before, ...(messages as typeof before), user('And?')])
    expect(endBefore(runOf(changes), facts)).toBe(state)
  })
})

describe('a run whose end the client knows', () => {
  it.each(ENDS)('has the terminal state that the client got, at once: %s', (reason) => {
    const run = runOf({ finalAnswer: finalAnswer(reason), isAnswered: true })
    const state = run.finalAnswer?.terminal.terminal_state
    expect(endOf(run, run.askedAt)).toBe(state)
    expect(endBefore(run, requestFacts([user('And?')]))).toBe(state)
  })

  it('has it also where the agent ended the run itself', () => {
    const { terminal } = finalAnswer()
    const run = runOf({ ownEnd: terminal, isAnswered: true })
    expect(endOf(run, run.askedAt)).toBe('tool_limit_reached')
    expect(recordOf(run, 1, endOf(run, over)).terminal).toEqual(terminal)
  })
})

describe('the clock of a run', () => {
  const ended = { at: 31_000, counts: {} }
  it.each<[string, number, Partial<Run>]>([
    ['goes on while its agent works', 99, {}],
    ['stops with its answer', 59, { isAnswered: true }],
    ['stops where its agent ended it', 59, { ownEnd: finalAnswer().terminal }],
    ['stops with a failure', 59, { failedAs: 'no_response' }],
    ['stops when Governor ended it', 30, { finalAnswer: { ...finalAnswer(), ended }, isAnswered: true }],
  ])('%s', (_, seconds, changes) => {
    expect(usedUntilEnd(runOf(changes), 100_000).seconds).toBe(seconds)
  })
})

describe('the record of a run', () => {
  it('has what it used, its model and its agent', () => {
    expect(recordOf(runOf({ model: 'gpt', agent: 'codex' }), 2, 'completed')).toEqual({
      thread: 2,
      startedAt: 1_000,
      endedAt: 60_000,
      counts: { runs: 1, iterations: 4, tool_calls: 3, input: 300, output: 30, cost: 0.5 },
      model: 'gpt',
      agent: 'codex',
      state: 'completed',
      terminal: undefined,
    })
  })

  it('has what was used since a reset', () => {
    const base = { at: 11_000, counts: { iterations: 3, tool_calls: 3, input: 280, output: 20, cost: 0.25 } }
    expect(recordOf(runOf({ operator: { base } }), 1, undefined)).toMatchObject({
      counts: { iterations: 1, input: 20, output: 10, cost: 0.25 },
    })
  })
})

describe('the report of ends', () => {
  const run = fc.record({
    askedAt: fc.constantFrom(0, 60_000, 200_000),
    isAnswered: fc.option(fc.boolean(), { nil: undefined }),
    failedAs: fc.constantFrom(undefined, 'no_response' as const, 'context_overflow' as const),
    finalAnswer: fc.constantFrom(undefined, finalAnswer()),
    isReported: fc.option(fc.constant(true), { nil: undefined }),
  })

  it('has each run that has ended once, whatever else the session holds and however often it is asked for', () => {
    fc.assert(
      fc.property(fc.array(run, { maxLength: 6 }), fc.nat(600_000), (runs, now) => {
        const session = sessionOf(...runs.map(runOf))
        const first = reportEnds(session, now)
        const wanted = session.threads.filter((one) => !one.run.isReported && endOf(one.run, now))
        expect(first.result.map(({ thread }) => thread)).toEqual(wanted.map(({ number }) => number))
        expect(reportEnds(first.session, now).result).toEqual([])
        expect(reportEnds(session, now)).toEqual(first)
        // What is left ends later, or never.
        const next = nextQuietEnd(first.session)
        expect(next === undefined || next > now).toBe(true)
        if (next !== undefined) {
          expect(reportEnds(first.session, next - 1).result).toEqual([])
          expect(reportEnds(first.session, next).result).not.toEqual([])
        }
      }),
    )
  })

  it('comes next for the run that is quiet the longest of those that answered or failed and were not reported', () => {
    const answered = (askedAt: number, more: Partial<Run> = {}) => runOf({ askedAt, isAnswered: true, ...more })
    const failed = runOf({ askedAt: 80_000, failedAs: 'no_response' })
    const others = [answered(1_000, { isReported: true }), answered(2_000, { finalAnswer: finalAnswer() }), runOf()]
    expect(nextQuietEnd(sessionOf(...others))).toBeUndefined()
    expect(nextQuietEnd(sessionOf(...others, failed, answered(90_000)))).toBe(80_000 + QUIET_MS)
    expect(nextQuietEnd(sessionOf(answered(90_000), answered(70_000)))).toBe(70_000 + QUIET_MS)
  })

  it('leaves a session as it is where there is nothing to report', () => {
    const session = sessionOf(runOf())
    expect(reportEnds(session, over).session).toBe(session)
  })
})
