import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { amountsBy } from '../../src/core/budget/meters.ts'
import { add, type Counts } from '../../src/core/counters.ts'
import { hashOf } from '../../src/core/hash.ts'
import { INITIAL_LOOP_STATE } from '../../src/core/loop/loop-state.ts'
import { doubted, mergeSessions } from '../../src/core/session/merge.ts'
import { NEW_SESSION, type RecentRequest, type Run, type Session, type Thread } from '../../src/core/session/session.ts'
import { terminalOf } from '../../src/core/terminal.ts'
import { runWith, threadWith } from './transcript.ts'

/** What answers of so many tokens have counted. */
const answersOf = (input: number): Counts => (input > 0 ? { input, output: input, cost: input / 100 } : {})
/** What so many steps and tokens have counted. */
const countsOf = (steps: number, tokens: number): Counts =>
  add({ iterations: steps, tool_calls: steps }, answersOf(tokens))

const runOf = (iteration: number, tokens: number, changes: Partial<Run> = {}): Run =>
  runWith({
    id: 'run 1',
    startedAt: 1,
    askedAt: iteration,
    counts: countsOf(iteration, tokens),
    recentRequests: [{ fingerprint: `f${iteration}`, iteration }],
    ...changes,
  })

const threadOf = (run: Run, userMessages: readonly string[] = ['go'], id = 'thread 1'): Thread =>
  threadWith(run, {
    id,
    userMessageHashes: userMessages.map((text) => hashOf(text)),
    userMessageCount: userMessages.length,
  })

const sessionOf = (threads: readonly Thread[], tokens: number, iterations: number): Session => ({
  ...NEW_SESSION,
  threads,
  startedAt: 1,
  counts: countsOf(iterations, tokens),
})

/** A session of one run. */
const single = (iteration: number, tokens: number, changes: Partial<Run> = {}) =>
  sessionOf([threadOf(runOf(iteration, tokens, changes))], tokens, iteration)

describe('a session that two replicas counted separately', () => {
  it('merges to the larger iteration of each run and the usage of both; the session adds all that both have counted', () => {
    const amount = fc.record({ steps: fc.nat(50), tokens: fc.nat(1_000) })
    fc.assert(
      fc.property(amount, amount, amount, (before, here, there) => {
        const base = single(before.steps, before.tokens)
        const local = single(before.steps + here.steps, before.tokens + here.tokens)
        const remote = single(before.steps + there.steps, before.tokens + there.tokens)
        const joined = mergeSessions(base, local, remote)
        const tokens = before.tokens + here.tokens + there.tokens
        const steps = before.steps + Math.max(here.steps, there.steps)
        expect(joined.counts).toEqual(add(countsOf(before.steps + here.steps + there.steps, tokens), {}))
        expect(joined.threads).toHaveLength(1)
        expect(joined.threads[0]?.run.counts).toEqual(add(countsOf(steps, tokens), {}))
      }),
    )
  })

  it('keeps the side that changed if only one side changed', () => {
    const requests = [3, 5].map((iteration) => ({ fingerprint: `f${iteration}`, iteration }))
    const [old, now] = [single(3, 30), single(5, 50, { recentRequests: requests })]
    expect(mergeSessions(old, old, now)).toEqual(now)
    expect(mergeSessions(old, now, old)).toEqual(now)
  })

  it('keeps what the replica gave back of a request that got no answer, also where another one counted since', () => {
    const [counted, given] = [single(6, 50), single(5, 50)]
    expect(mergeSessions(counted, given, counted)).toMatchObject({
      counts: { iterations: 5 },
      threads: [{ run: { counts: { iterations: 5 } } }],
    })
    expect(mergeSessions(counted, given, single(7, 60)).threads[0]?.run.counts.iterations).toBe(6)
    expect(mergeSessions(counted, single(8, 60), single(7, 60)).threads[0]?.run.counts.iterations).toBe(8)
  })

  it('keeps what became of the newest request in the replica that sent it', () => {
    const copy = (outcome?: 'answered' | 'released') =>
      single(6, 50, { recentRequests: [{ fingerprint: 'f6', iteration: 6, outcome }] })
    for (const outcome of ['answered', 'released'] as const) {
      const [thread] = mergeSessions(copy(), copy(outcome), copy()).threads
      expect(thread?.run.recentRequests).toMatchObject([{ fingerprint: 'f6', outcome }])
    }
  })

  it('counts two requests that were answered in two replicas as two, also where both got the same number', () => {
    const answered = (fingerprint: string, iteration: number) =>
      ({ fingerprint, iteration, outcome: 'answered' }) as const
    const [before, lone] = [answered('f6', 6), answered('lone', 7)]
    const copy = (iteration: number, ...recentRequests: readonly RecentRequest[]) =>
      single(iteration, 50, { recentRequests })
    const base = copy(6, before)
    const counted = (local: Session, remote: Session, from = base) =>
      [mergeSessions(from, local, remote), mergeSessions(from, remote, local)].map(
        ({ threads }) => threads[0]?.run.counts.iterations,
      )
    expect(counted(copy(7, before, lone), copy(7, before, answered('other', 7)))).toEqual([8, 8])
    // The second one has read the first from the transcript.
    expect(counted(copy(7, before, lone), copy(8, before, answered('other', 8)))).toEqual([8, 8])
    // The same request again, and one that got no answer, are no steps.
    expect(counted(copy(7, before, lone), copy(7, before, lone))).toEqual([7, 7])
    expect(counted(copy(7, before, lone), copy(7, { fingerprint: 'other', iteration: 7 }))).toEqual([7, 7])
    const inFlight = copy(7, before, { fingerprint: 'lone', iteration: 7 })
    expect(counted(copy(7, before, lone), copy(7, before, lone, answered('other', 7)), inFlight)).toEqual([8, 8])
  })

  it('keeps a stop of either replica', () => {
    const meter = { name: 'iterations', used: 3, max: 3 } as const
    const finalAnswer = { text: 'done', model: 'm', terminal: terminalOf({ meter }, 's', true) }
    const [base, stopped, other] = [single(3, 30), single(3, 40, { finalAnswer }), single(9, 90)]
    expect(mergeSessions(base, stopped, other).threads[0]?.run.finalAnswer).toEqual(finalAnswer)
    expect(mergeSessions(base, other, stopped).threads[0]?.run.finalAnswer).toEqual(finalAnswer)
  })

  it('continues the run that began later, and adds the usage of the other run to the session only', () => {
    const base = single(3, 30)
    const next = sessionOf([threadOf(runOf(1, 10, { id: 'run 2', startedAt: 3 }), ['go', 'more'])], 40, 4)
    const late = single(4, 50)
    for (const joined of [mergeSessions(base, next, late), mergeSessions(base, late, next)]) {
      expect(joined.threads).toHaveLength(1)
      expect(joined.threads[0]?.run).toMatchObject({ counts: countsOf(1, 10) })
      expect(joined.counts.input).toBe(60)
    }
  })

  it('keeps the threads of both replicas', () => {
    const base = single(1, 10)
    const [first] = base.threads
    const threads = first ? [first] : []
    const local = sessionOf([...threads, threadOf(runOf(2, 5, { id: 'run 2' }), ['go'], 'thread 2')], 15, 3)
    const remote = sessionOf([...threads, threadOf(runOf(3, 7, { id: 'run 3' }), ['go'], 'thread 3')], 17, 4)
    const joined = mergeSessions(base, local, remote)
    expect(joined.threads.map(({ id }) => id)).toEqual(['thread 1', 'thread 2', 'thread 3'])
    expect(joined.counts.input).toBe(22)
  })
})

const LIMIT = amountsBy((name) => (name === 'iterations' ? 9 : 0))

describe('two copies of a session', () => {
  it('keep two runs apart that different operations began, whatever their messages have in common', () => {
    fc.assert(
      fc.property(fc.nat(50), fc.nat(50), fc.boolean(), fc.boolean(), (here, there, isOneThread, isLost) => {
        const run = runOf(here, 10, { id: 'run 2', startedAt: 2 })
        const local = sessionOf([threadOf(run, ['go'], isOneThread ? 'thread 1' : 'thread 2')], 10, here)
        const joined = mergeSessions(undefined, local, single(there, 20), isLost)
        const runs = new Map(joined.threads.map(({ run: { id, ...amounts } }) => [id, amounts]))
        expect(runs.get('run 2')).toMatchObject({ counts: add(countsOf(here, 10), {}) })
        if (isOneThread) expect(runs.has('run 1')).toBe(false)
        else expect(runs.get('run 1')).toMatchObject({ counts: add(countsOf(there, 20), {}) })
      }),
    )
  })

  it('merge to the larger amounts if the store has lost its data since, whichever copy is older', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 50 }), fc.nat(50), (here, there) => {
        const joined = mergeSessions(undefined, single(here, here), single(there, there), true)
        const larger = Math.max(here, there)
        expect(joined.counts).toEqual(countsOf(larger, larger))
        expect(joined.threads).toHaveLength(1)
        expect(joined.threads[0]?.run.counts).toEqual(countsOf(larger, larger))
      }),
    )
  })

  it('keep what an operator changed in either of them, whichever was used last', () => {
    const base = single(3, 30, { operator: { isStopAsked: false, extended: {} } })
    const changed = single(3, 30, { operator: { isStopAsked: true, extended: {} } })
    const used = {
      ...single(8, 80, { operator: { isStopAsked: false, extended: LIMIT } }),
      operator: { done: ['a'] },
    }
    for (const joined of [mergeSessions(base, changed, used), mergeSessions(base, used, changed)]) {
      expect(joined.threads[0]?.run.operator).toEqual({ isStopAsked: true, extended: LIMIT })
      expect(joined.operator).toEqual({ done: ['a'] })
    }
  })

  it('resume a run that was over if an operator reset it in either of them', () => {
    const meter = { name: 'iterations', used: 3, max: 3 } as const
    const finalAnswer = { text: 'done', model: 'm', terminal: terminalOf({ meter }, 's', true) }
    const over = single(3, 30, { finalAnswer, operator: { isStopAsked: true } })
    const reset = single(3, 30, { operator: { base: { at: 9, counts: { iterations: 3 } } } })
    for (const joined of [mergeSessions(over, over, reset), mergeSessions(over, reset, over)]) {
      expect(joined.threads[0]?.run.finalAnswer).toBeUndefined()
      expect(joined.threads[0]?.run.operator).toEqual({ base: { at: 9, counts: { iterations: 3 } } })
    }
  })

  it('keep what only one of them knows of a thread, of its run and of the session, whichever was used last', () => {
    const meter = { name: 'iterations', used: 3, max: 3 } as const
    const inThread: Partial<Thread> = {
      responses: ['r1'],
      continuedFrom: ['r0'],
      loopState: INITIAL_LOOP_STATE,
      noticeSent: true,
      dropsThinking: true,
      operator: { loopMode: 'warn' },
    }
    const inRun: Partial<Run> = {
      finalAnswer: { text: 'done', model: 'm', terminal: terminalOf({ meter }, 's', true) },
      isReported: true,
      operator: { isStopAsked: true },
    }
    const inSession: Partial<Session> = {
      reductions: [],
      gaps: ['no_channel'],
      record: { name: 'n', threads: 1, iterations: [], runs: [], minutes: [] },
      operator: { done: ['a'] },
    }
    for (const [here, there] of [
      [8, 5],
      [5, 8],
    ] as const) {
      const [plain] = single(there, 10).threads
      const [thread] = single(here, 10).threads
      if (!plain || !thread) throw new Error('no thread')
      const knowing = {
        ...single(here, 10),
        ...inSession,
        threads: [{ ...thread, ...inThread, run: { ...thread.run, ...inRun } }],
      }
      const other = single(there, 10)
      for (const joined of [mergeSessions(undefined, knowing, other), mergeSessions(undefined, other, knowing)]) {
        expect(joined).toMatchObject(inSession)
        expect(joined.threads[0]).toMatchObject(inThread)
        expect(joined.threads[0]?.run).toMatchObject(inRun)
      }
    }
  })

  it('keep what the one that was used last says, where both know it', () => {
    const copy = (iteration: number) => {
      const loopState = { ...INITIAL_LOOP_STATE, pendingNotice: `after ${iteration}` }
      return sessionOf([{ ...threadOf(runOf(iteration, 10)), responses: [`r${iteration}`], loopState }], 10, iteration)
    }
    const [older, newer] = [copy(5), copy(8)]
    for (const joined of [mergeSessions(undefined, older, newer), mergeSessions(undefined, newer, older)])
      expect(joined.threads[0]).toMatchObject({ responses: ['r5', 'r8'], loopState: { pendingNotice: 'after 8' } })
  })

  it('keep what only the older one of two copies knows', () => {
    const known = { loopState: INITIAL_LOOP_STATE, noticeSent: true, dropsThinking: true } as const
    const older = sessionOf([{ ...threadOf(runOf(5, 10, { isReported: true })), ...known }], 10, 5)
    const newer = single(8, 10)
    for (const joined of [mergeSessions(undefined, older, newer), mergeSessions(undefined, newer, older)])
      expect(joined.threads[0]).toMatchObject({ ...known, run: { askedAt: 8, isReported: true } })
  })

  it('have each request once, and begin with the first of both', () => {
    const [one, other] = [single(5, 10), single(6, 10, { recentRequests: runOf(5, 10).recentRequests })]
    for (const [local, remote] of [
      [one, other],
      [other, one],
    ] as const) {
      expect(mergeSessions(undefined, local, remote).threads[0]?.run.recentRequests).toHaveLength(1)
      expect(mergeSessions(undefined, { ...local, startedAt: 9 }, { ...remote, startedAt: 3 }).startedAt).toBe(3)
    }
  })

  it('count apart from the copy of another run, and of two runs of a thread the one that began later goes on', () => {
    const base = single(7, 70, { id: 'run 0' })
    const joined = mergeSessions(base, single(5, 50), single(6, 60))
    expect(joined.threads[0]?.run.counts).toMatchObject({ iterations: 6, input: 110 })
    const [early, late] = [single(9, 10), single(4, 10, { id: 'run 2', startedAt: 3 })]
    for (const both of [mergeSessions(undefined, early, late), mergeSessions(undefined, late, early)])
      expect(both.threads[0]?.run.id).toBe('run 2')
  })

  it('have the settings that were changed, and after a loss of data those of the store', () => {
    const set = (loopMode: 'warn' | 'enforce' | 'observe'): Session => ({ ...single(5, 10), operator: { loopMode } })
    const [base, here, there] = [set('warn'), set('enforce'), set('observe')]
    const modeOf = (...copies: readonly [Session, Session, Session, boolean]) =>
      mergeSessions(...copies).operator?.loopMode
    expect([modeOf(base, here, there, false), modeOf(base, base, there, false)]).toEqual(['enforce', 'observe'])
    expect(modeOf(base, here, there, true)).toBe('observe')
  })

  it('have the smaller windows that the replica found, else those of the store', () => {
    const windows = (tokens: number): Session => ({
      ...single(5, 10),
      reductions: [{ upstream: 'openai', model: 'm', tokens, reason: 'stated_limit', until: 9 }],
    })
    const [base, here, there] = [windows(1), windows(2), windows(3)]
    expect(mergeSessions(base, base, there).reductions).toBe(there.reductions)
    expect(mergeSessions(base, here, there).reductions).toBe(here.reductions)
    expect(mergeSessions(base, { ...here, reductions: undefined }, there).reductions).toBe(there.reductions)
  })

  it('have what the store has of a thread whose newest request came at the same time in both', () => {
    const noted = (sent: string): Session => ({ ...NEW_SESSION, threads: [{ ...threadOf(runOf(5, 1)), name: sent }] })
    expect(mergeSessions(undefined, noted('here'), noted('there')).threads[0]?.name).toBe('there')
  })

  it('have the gaps, the name and the number of threads of both, and the smaller windows that the replica found', () => {
    const record = { name: undefined, threads: 1, iterations: [], runs: [] }
    const one: Session = { ...single(5, 10), gaps: ['no_identity'], record: { ...record, name: 'mine', threads: 3 } }
    const other: Session = { ...single(6, 10), gaps: ['no_channel'], record }
    for (const joined of [mergeSessions(undefined, one, other), mergeSessions(undefined, other, one)]) {
      expect(joined.gaps?.toSorted()).toEqual(['no_channel', 'no_identity'])
      expect(joined.record).toMatchObject({ name: 'mine', threads: 3 })
    }
  })
})

describe('a copy that the store could not confirm', () => {
  it('is the same but for the newest run of each thread, which is in doubt', () => {
    const session = sessionOf([threadOf(runOf(2, 1)), threadOf(runOf(3, 1), ['go'], 'thread 2')], 2, 5)
    const { threads, ...rest } = doubted(session)
    expect(rest).toEqual({ ...session, threads: undefined })
    expect(threads).toEqual(session.threads.map((one) => ({ ...one, run: { ...one.run, isDoubted: true } })))
    expect(doubted(doubted(session))).toEqual(doubted(session))
  })
})
