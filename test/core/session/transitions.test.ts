import { describe, expect, it } from 'vitest'
import { hashOf } from '../../../src/core/hash.ts'
import type { IterationFacts } from '../../../src/core/operator/session-record.ts'
import { isHopeless, isLastTry, NO_STOP_ATTEMPTS } from '../../../src/core/session/run.ts'
import { type Session, withRelayed } from '../../../src/core/session/session.ts'
import {
  type AnswerFacts,
  adoptFirst,
  changeReductions,
  changeThread,
  endRun,
  noteAcknowledged,
  noteAnswer,
  noteDelivery,
  noteStopAttempt,
  noticeReachedModel,
  releaseIteration,
  responseBegan,
  resumeRun,
} from '../../../src/core/session/transitions.ts'
import { terminalOf } from '../../../src/core/terminal.ts'
import { countedOf, type Message, newSession, requestFacts, result, said, steps, system, user } from '../transcript.ts'

const TASK = [system('You are an agent.'), user('Fix the bug.')]
const at = (count: number): Message[] => [...TASK, ...steps('a', count)]
const FORGOTTEN = countedOf(at(99))

/** A session of one run of so many requests. */
function begun(count: number) {
  const session = newSession()
  for (let step = 0; step < count; step++) session.see(at(step), { now: step * 1_000 })
  return session
}

const runIn = ({ threads }: Session) => threads.at(-1)?.run
const usage = { input: 100, output: 10, estimated: false }
const answer = (more: Partial<AnswerFacts> = {}): AnswerFacts => ({ usage, ids: [], requestBytes: 1_000, ...more })
const iteration: IterationFacts = {
  askedAt: 0,
  endedAt: 5_000,
  status: 200,
  verdict: 'allow',
  tier: undefined,
  loop: undefined,
  overflow: undefined,
}

describe('an answer', () => {
  it('fills the context window with its prompt and itself, unless its tokens are estimated or not known', () => {
    const session = begun(1)
    const contextOf = () => session.session.threads[0]?.context
    session.change((now) => noteAnswer(now, countedOf(TASK), answer()))
    expect(contextOf()).toEqual({ tokens: 110, requestBytes: 1_000, results: undefined })
    for (const unknown of [
      { ...usage, input: 0 },
      { ...usage, input: 900, estimated: true },
    ])
      session.change((now) => noteAnswer(now, countedOf(TASK), answer({ usage: unknown })))
    expect(contextOf()?.tokens).toBe(110)
    session.change((now) => noteAnswer(now, countedOf(TASK), answer({ usage: { ...usage, lastInput: 30 } })))
    expect(contextOf()?.tokens).toBe(40)
  })

  it('fills as much of the context window before the next request, in proportion where that is shorter', () => {
    const session = begun(1)
    session.change((now) => noteAnswer(now, countedOf(TASK), answer()))
    const tokensOf = (bytes: number | undefined, previous?: string) => {
      const messages = at(1)
      const facts = { ...requestFacts(messages, { bytes, previous }), bytes, previous }
      return session.see(messages, { more: { facts } }).contextTokens
    }
    expect(tokensOf(500)).toBe(55)
    expect([tokensOf(undefined), tokensOf(1_000), tokensOf(2_000)]).toEqual([110, 110, 110])
  })

  it('shows that the run is over only if it belongs to its newest request', () => {
    const session = begun(2)
    const note = (step: number, callsNothing?: boolean) => {
      session.change((now) => noteAnswer(now, countedOf(at(step)), answer({ callsNothing })))
      return runIn(session.session)?.isAnswered
    }
    expect([note(0, true), note(1, true), note(1), note(0, false), note(1, false)]).toEqual([
      ...[undefined, true, true, true, false],
    ])
  })

  it('is counted in the run, in the session and in the parts of that, and ends what failed before', () => {
    const session = begun(1)
    session.change((now) => releaseIteration(now, countedOf(TASK), undefined, 'no_response'))
    expect(runIn(session.session)?.failedAs).toBe('no_response')
    session.change((now) => noteAnswer(now, countedOf(TASK), answer({ iteration })))
    expect(runIn(session.session)).toMatchObject({ failedAs: undefined, quietSince: 5_000, counts: { input: 100 } })
    expect(session.session.counts).toMatchObject({ input: 100, output: 10 })
    expect(session.session.parts?.agents).toMatchObject([{ name: '1', amount: { input: 100 } }])
    expect(session.session.parts?.models).toMatchObject([{ name: 'gpt-4o', amount: { input: 100 } }])
  })

  it('whose thread the session has forgotten is counted in the session alone', () => {
    const session = begun(1)
    session.change((now) => noteAnswer(now, FORGOTTEN, answer()))
    expect(session.session.counts).toMatchObject({ input: 100 })
    expect(session.session.parts?.agents).toMatchObject([{ name: '0' }])
    expect(runIn(session.session)?.counts['input']).toBeUndefined()
  })

  it('that broke off is no answer, and one that was released before stays released', () => {
    const outcomeAfter = (...changes: ((now: Session) => Session)[]) => {
      const session = begun(1)
      for (const change of changes) session.change(change)
      return runIn(session.session)?.recentRequests.at(-1)?.outcome
    }
    const whole = (now: Session) => noteAnswer(now, countedOf(TASK), answer())
    const cut = (now: Session) => noteAnswer(now, countedOf(TASK), answer({ isCut: true }))
    const released = (now: Session) => releaseIteration(now, countedOf(TASK))
    expect([outcomeAfter(whole), outcomeAfter(cut)]).toEqual(['answered', undefined])
    expect([outcomeAfter(released, whole), outcomeAfter(cut, released)]).toEqual(['released', 'released'])
  })

  it('stands in the record by its iteration since the reset; the last answer stands beside the last iteration', () => {
    const session = begun(3)
    const recordedAt = (facts: IterationFacts = iteration) => {
      session.change((now) => noteAnswer(now, countedOf(at(2)), answer({ iteration: facts })))
      return session.session.record?.iterations.at(-1)?.iteration
    }
    expect([recordedAt(), recordedAt({ ...iteration, verdict: 'stop' })]).toEqual([3, 2])
    const operator = { base: { at: 0, counts: { iterations: 1 } } }
    session.change((now) => changeThread(now, countedOf(at(2)), {}, { operator }))
    expect(recordedAt()).toBe(2)
  })

  it('is known by its ids as soon as it has begun', () => {
    const session = begun(1)
    session.change((now) => responseBegan(now, countedOf(TASK), ['r1', 'r2']))
    session.change((now) => responseBegan(now, countedOf(TASK), ['r2', 'r3']))
    expect(session.session.threads[0]?.responses).toEqual(['r1', 'r2', 'r3'])
    expect(responseBegan(session.session, FORGOTTEN, ['r4'])).toBe(session.session)
    // The thread is found by such an id, whatever else stands between.
    session.see([system('Other.'), user('Other.')])
    expect(session.see([result('a0')], { previous: 'r2' })).toMatchObject({ iteration: 2, isNewRun: false })
  })
})

describe('the sendings of one request', () => {
  it('are one iteration up to 32 whole answers; each further one is an iteration', () => {
    const session = begun(1)
    for (let answers = 2; answers <= 32; answers++) {
      expect(session.see(TASK)).toMatchObject({ iteration: 1, resendCount: undefined })
      session.change((now) => noteDelivery(now, countedOf(TASK), true))
    }
    expect(session.see(TASK)).toMatchObject({ iteration: 2, resendCount: 33 })
  })

  it('count no answer where the first of them got none', () => {
    const session = begun(1)
    session.change((now) => noteDelivery(now, countedOf(TASK), false))
    expect(runIn(session.session)?.recentRequests).toMatchObject([{ answered: 0 }])
    session.change((now) => noteDelivery(now, countedOf(TASK), true))
    expect(runIn(session.session)?.recentRequests).toMatchObject([{ answered: 1 }])
    expect(noteDelivery(session.session, FORGOTTEN, true)).toBe(session.session)
  })

  it('stay one iteration where the session is known only by its prompt, as several agents may send that', () => {
    const session = newSession()
    for (let answers = 1; answers <= 40; answers++) {
      expect(session.see(TASK, { isDerived: true }).iteration).toBe(1)
      session.change((now) => noteDelivery(now, countedOf(TASK), true))
    }
  })

  it('stay one iteration after the end of the run', () => {
    const session = begun(4)
    for (let answers = 1; answers <= 40; answers++) session.change((now) => noteDelivery(now, countedOf(at(3)), true))
    session.change((now) => endRun(now, countedOf(at(3)), ended()))
    expect(session.see(at(3))).toMatchObject({ iteration: 4, resendCount: undefined })
  })
})

describe('a warning', () => {
  const warned = () => {
    const session = begun(2)
    session.change((now) => noticeReachedModel(now, countedOf(at(1)), true))
    return session
  }

  it('was ignored by a model that makes its next call without a word, and acknowledged by one that speaks', () => {
    expect(warned().see(at(2))).toMatchObject({ reaction: 'ignored', run: { isWarned: false, wasIgnored: true } })
    const speaks = { ...steps('a', 2).at(2), content: 'I finish soon.' }
    const shown = [...at(1), speaks, result('a1')]
    expect(warned().see(shown)).toMatchObject({ reaction: 'acknowledged', run: { isWarned: false, wasIgnored: false } })
    expect(warned().see([...at(1), said('Done.'), user('Thanks.')]).reaction).toBe('acknowledged')
  })

  it('waits for an answer that shows the reaction: the same bytes, or no newer answer, show none', () => {
    const session = warned()
    expect([session.see(at(1)).reaction, session.see([...at(1), result('more')]).reaction]).toEqual([
      undefined,
      undefined,
    ])
    expect(runIn(session.session)?.isWarned).toBe(true)
    expect(session.see(at(2)).reaction).toBe('ignored')
    expect(session.see(at(3)).reaction).toBeUndefined()
    expect(session.session.counts).toMatchObject({ ignored: 1 })
  })

  it('that the model answered without a call counts at once, and is not counted again', () => {
    const session = warned()
    session.change((now) => noteAcknowledged(now, countedOf(at(1))))
    expect(session.session.counts).toMatchObject({ acknowledged: 1 })
    expect(session.see(at(2)).reaction).toBeUndefined()
  })

  it('that is only about a loop warns of no end', () => {
    const session = begun(2)
    session.change((now) => noticeReachedModel(now, countedOf(at(1)), false))
    expect(session.see(at(2)).reaction).toBeUndefined()
    expect(noticeReachedModel(session.session, FORGOTTEN, true)).toBe(session.session)
  })
})

const meter = { name: 'iterations', used: 4, max: 3 } as const
const ended = () => ({ text: 'So far.', model: 'gpt-4o', terminal: terminalOf({ meter }, 's', true) })

describe('the end of a run', () => {
  it('takes back the iteration of its request once, and keeps what was used when it came first', () => {
    const session = begun(4)
    expect(session.session.counts['iterations']).toBe(4)
    session.change((now) => endRun(now, countedOf(at(3)), ended()))
    const first = runIn(session.session)?.finalAnswer?.ended
    expect(first).toMatchObject({ at: 3_000, counts: { iterations: 3 } })
    expect(session.session.counts['iterations']).toBe(3)
    session.see(at(4), { now: 9_000 })
    session.change((now) => endRun(now, countedOf(at(4)), { ...ended(), text: 'More.' }))
    expect(runIn(session.session)?.finalAnswer).toMatchObject({ text: 'More.', ended: first })
    expect(session.session.counts['iterations']).toBe(3)
    expect(endRun(session.session, FORGOTTEN, ended())).toBe(session.session)
  })

  it('within an iteration counts that iteration', () => {
    const session = begun(4)
    session.change((now) => endRun(now, countedOf(at(3)), ended(), false))
    expect(runIn(session.session)?.finalAnswer?.ended?.counts['iterations']).toBe(4)
    expect(session.session.counts['iterations']).toBe(4)
  })

  it('is over once its limit is raised, for its newest request alone, which counts again', () => {
    const session = begun(4)
    session.change((now) => endRun(now, countedOf(at(3)), ended()))
    expect(resumeRun(session.session, countedOf(at(2)))).toBe(session.session)
    expect(resumeRun(session.session, FORGOTTEN)).toBe(session.session)
    session.change((now) => resumeRun(now, countedOf(at(3))))
    expect(runIn(session.session)?.finalAnswer).toBeUndefined()
    expect(session.session.counts['iterations']).toBe(4)
    expect(resumeRun(session.session, countedOf(at(3)))).toBe(session.session)
    expect(session.see(at(4))).toMatchObject({ iteration: 5 })
  })

  it('stands: requests after it count no iteration and no call, and a failure among them gives none back', () => {
    const session = begun(4)
    session.change((now) => endRun(now, countedOf(at(3)), ended()))
    const { counts } = session.session
    expect(session.see(at(4))).toMatchObject({ iteration: 4, usedBySession: { iterations: 4 } })
    expect(session.session.counts).toEqual(counts)
    session.change((now) => releaseIteration(now, countedOf(at(4))))
    expect(session.session.counts).toEqual(counts)
  })

  it('relays at most four requests that ask for the answer in another form, each once', () => {
    const session = begun(4)
    session.change((now) => endRun(now, countedOf(at(3)), ended()))
    const { fingerprint: form } = countedOf(TASK)
    const ask = (step: number) =>
      session.see(at(3), {
        extra: { step },
        more: { demands: [`${form} ${step}` as never], facts: requestFacts(at(3), { step }) },
      }).asksForOtherForm
    expect([1, 2, 3, 4, 5].map(ask)).toEqual([true, true, true, true, false])
    expect(ask(4)).toBe(true)
    expect(session.session.counts['iterations']).toBe(7)
    expect(session.see(at(3)).asksForOtherForm).toBe(false)
  })

  it('gives back the iteration of a request in another form that failed', () => {
    const session = begun(4)
    session.change((now) => endRun(now, countedOf(at(3)), ended()))
    const facts = requestFacts(at(3), { step: 1 })
    session.see(at(3), { more: { facts, demands: [facts.system] } })
    expect(session.session.counts['iterations']).toBe(4)
    session.change((now) => releaseIteration(now, { fingerprint: facts.fingerprint, thread: '' }))
    expect(session.session.counts['iterations']).toBe(3)
  })
})

describe('requests for the last answer that fail', () => {
  it('are counted by the form that failed last, from the first failure on; incomplete answers apart', () => {
    const session = begun(1)
    const note = (tried: Parameters<typeof noteStopAttempt>[2]) => {
      const { session: after, result: all } = noteStopAttempt(session.session, countedOf(TASK), tried)
      session.change(() => after)
      return all
    }
    expect(note({ variant: 'a', failedAt: 500 })).toEqual({
      ...{ failedForms: ['a'], failures: 1, failingSince: 500, truncated: 0 },
    })
    expect(note({ variant: 'b', failedAt: 900 })).toMatchObject({ failedForms: ['a', 'b'], failingSince: 500 })
    expect(note({ variant: 'a', failedAt: 400 })).toMatchObject({ failedForms: ['b', 'a'], failingSince: 400 })
    expect(note({ variant: 'c' })).toMatchObject({ failedForms: ['b', 'a', 'c'], failures: 3 })
    expect(note({ isIncomplete: true })).toMatchObject({ failures: 3, truncated: 1 })
    expect(noteStopAttempt(session.session, FORGOTTEN, { failedAt: 1 })).toEqual({
      ...{ session: session.session, result: NO_STOP_ATTEMPTS },
    })
  })

  it.each([
    [2, 10_000, false],
    [3, 9_999, false],
    [3, 10_000, true],
  ])('mean that the provider is down after 3 in 10 seconds: %i in %i ms: %s', (failures, ms, expected) => {
    expect(isHopeless({ ...NO_STOP_ATTEMPTS, failures, failingSince: 1_000 }, 1_000 + ms)).toBe(expected)
  })

  it('are made again for three incomplete answers; the fourth is the answer', () => {
    const last = [1, 2, 3, 4].map((truncated) => isLastTry({ ...NO_STOP_ATTEMPTS, truncated }))
    expect(last).toEqual([false, false, false, true])
  })
})

describe('a first answer whose session has just got its id', () => {
  it('is added to the run, which began with it, and to the record', () => {
    const session = newSession()
    const runState = session.see(at(1), { now: 9_000, more: { tools: ['read'] } })
    const first = { askedAt: 1_000, usage, endedAt: 4_000 }
    const adopted = adoptFirst(session.session, countedOf(at(1)), runState, first, 9_000, ['search'])
    expect(adopted.session).toMatchObject({ startedAt: 1_000, counts: { iterations: 2, input: 100, output: 10 } })
    expect(runIn(adopted.session)).toMatchObject({ startedAt: 1_000, counts: { input: 100 } })
    expect(adopted.session.record?.iterations).toMatchObject([{ thread: 1, iteration: 1, at: 1_000 }])
    expect(adopted.session.parts?.models).toMatchObject([{ name: 'gpt-4o' }])
    expect(adopted.result.used).toMatchObject({ iterations: 2, seconds: 8, tokens: 110 })
    expect(adopted.result.usedBySession).toMatchObject({ iterations: 2, seconds: 8, tokens: 110 })
    expect(adopted.result.thread.run).toBe(adopted.result.run)
  })
})

describe('what a session remembers', () => {
  it('of the answers of a thread is the first and the newest seven, with 16 calls each', () => {
    const callIds = Array.from({ length: 20 }, (_, id) => hashOf(String(id)))
    let known: ReturnType<typeof withRelayed>
    for (let one = 0; one < 10; one++)
      known = withRelayed(known, { operation: `o${one}`, fingerprint: 'f', iteration: one, callIds })
    expect(known?.map(({ operation }) => operation)).toEqual(['o0', 'o3', 'o4', 'o5', 'o6', 'o7', 'o8', 'o9'])
    expect(known?.map((one) => one.callIds.length)).toEqual(new Array(8).fill(16))
    expect(known?.[0]?.callIds).toEqual(callIds.slice(-16))
    const more = withRelayed(known, { operation: 'o4', fingerprint: 'f', iteration: 4, callIds: callIds.slice(0, 2) })
    expect(more?.at(-1)).toMatchObject({ operation: 'o4', callIds: [...callIds.slice(-14), ...callIds.slice(0, 2)] })
    expect(more).toHaveLength(8)
  })

  it('of smaller context windows is what the change makes of them', () => {
    const session = begun(1)
    const added = changeReductions(session.session, countedOf(TASK), (known) => [...known, 'new' as never])
    expect(added.reductions).toEqual(['new'])
  })
})
