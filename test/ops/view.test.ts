import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { TimeAmounts } from '../../src/core/budget/ledger.ts'
import { type Amounts, LIMITS, NO_LIMITS, TIME_LIMITS } from '../../src/core/budget/meters.ts'
import { TIME_SCOPES } from '../../src/core/budget/scopes.ts'
import type { IterationRecord } from '../../src/core/operator/session-record.ts'
import { NEW_SESSION, type Run, type Session, type Thread } from '../../src/core/session/session.ts'
import { terminalOf } from '../../src/core/terminal.ts'
import { isAtWork, limitNote, limitText, stateOf } from '../../src/ops/sessions/labels.ts'
import { detailOf, rowOf, type UsedOf } from '../../src/ops/sessions/view.ts'
import { sessionKey } from '../../src/store/store.ts'
import { runWith, threadWith } from '../core/transcript.ts'

const NOW = 1_800_000_000_000
const MINUTE = 60_000

const runOf = (changes: Partial<Run> = {}): Run =>
  runWith({
    startedAt: NOW - MINUTE,
    askedAt: NOW,
    counts: { runs: 1, iterations: 4, tool_calls: 3 },
    limits: { run: { ...NO_LIMITS, iterations: 10 }, session: NO_LIMITS },
    upstream: 'openai',
    model: 'gpt',
    ...changes,
  })

const threadOf = (number: number, changes: Partial<Run> = {}, name = number === 1 ? '' : `agent ${number}`): Thread =>
  threadWith(runOf(changes), { name, number })

const sessionOf = (threads: readonly Thread[], iterations: readonly IterationRecord[] = []): Session => ({
  ...NEW_SESSION,
  threads,
  startedAt: NOW - 10 * MINUTE,
  counts: { iterations: 9, tool_calls: 8, acknowledged: 1, ignored: 2 },
  record: { name: 'mine', threads: threads.length, iterations, runs: [] },
})

const iteration = (changes: Partial<IterationRecord> = {}): IterationRecord => ({
  thread: 1,
  iteration: 1,
  at: NOW,
  durationMs: 1_000,
  status: 200,
  verdict: 'allow',
  tier: undefined,
  loop: undefined,
  overflow: undefined,
  tools: ['search'],
  counts: { input: 90, output: 10 },
  ...changes,
})

const finalAnswer = (text: string) => ({
  text,
  model: 'gpt',
  terminal: terminalOf({ meter: { name: 'iterations', used: 10, max: 10 } }, 's', true),
})
const noContext = () => undefined
const listed = (session: Session) => ({ key: sessionKey('0123456789abcdef', 'mine'), session })
const VIEWER = { now: NOW, seesNames: true }

describe('the state of a session', () => {
  it.each<[string, Partial<Run>]>([
    ['working', {}],
    ['near_limit', { counts: { iterations: 8 } }],
    ['answered', { isAnswered: true }],
    ['answered', { isAnswered: true, askedAt: NOW - 20 * MINUTE, quietSince: NOW - 4 * MINUTE }],
    ['completed', { isAnswered: true, askedAt: NOW - 5 * MINUTE }],
    ['working', { askedAt: NOW - 9 * MINUTE }],
    ['idle', { askedAt: NOW - 10 * MINUTE }],
    ['stopped', { finalAnswer: finalAnswer('Enough.') }],
    ['stopped', { ownEnd: finalAnswer('').terminal }],
  ])('is %s for a run with %j', (state, changes) => {
    const row = rowOf(listed(sessionOf([threadOf(1, changes)])), VIEWER)
    expect(row.state).toBe(state)
    const isOver = ['completed', 'stopped'].includes(state)
    expect(row.terminal_state).toBe(isOver ? (state === 'stopped' ? 'tool_limit_reached' : state) : null)
    if (isOver) expect(row.risk).toBe(0)
  })

  it.each([
    ['no_response', { status: 401, error: { status: 401, code: 'invalid_api_key' } }, 'failed: error 401'],
    ['no_response', { status: 0, error: { status: 502, code: 'upstream_unreachable' } }, 'failed: no answer'],
    ['context_overflow', { status: 400, overflow: 'shrink_context' }, 'failed: overflow'],
  ] as const)('is failed after %s with %j, and keeps the reason', (failedAs, how, words) => {
    for (const minutes of [0, 4, 5, 50]) {
      const thread = threadOf(1, { failedAs, askedAt: NOW - minutes * MINUTE })
      const row = rowOf(listed(sessionOf([thread], [iteration(how)])), VIEWER)
      const { error = { status: how.status } } = how as { error?: { status: number; code?: string } }
      expect(row).toMatchObject({
        state: 'failed',
        error: { code: null, ...error },
        cost_usd_per_minute: null,
        risk: 0,
      })
      expect(row).toMatchObject({ terminal_state: minutes < 5 ? null : failedAs, seconds_to_limit: null })
      expect([isAtWork(row), stateOf(row).text]).toEqual([false, words])
    }
  })

  it('is no failure where a client left in the middle of an answer', () => {
    const row = rowOf(listed(sessionOf([threadOf(1, { failedAs: 'no_response' })], [iteration()])), VIEWER)
    expect(row).toMatchObject({ state: 'idle', error: null, last_error: null })
  })

  it('has no rate, and reaches no limit, once the agent has answered', () => {
    const made = [1, 2, 3].map((minutes) => iteration({ at: NOW - minutes * MINUTE, counts: { cost: 1 } }))
    const shown = (isAnswered: boolean) => rowOf(listed(sessionOf([threadOf(1, { isAnswered })], made)), VIEWER)
    expect(shown(false).cost_usd_per_minute).toBeGreaterThan(0)
    expect(shown(false).seconds_to_limit).not.toBeNull()
    expect(shown(true)).toMatchObject({ state: 'answered', cost_usd_per_minute: null, seconds_to_limit: null })
  })

  it('is not on its way to a limit that it has reached', () => {
    const made = [1, 2, 3].map((minutes) => iteration({ at: NOW - minutes * MINUTE }))
    const limits = { run: { ...NO_LIMITS, iterations: 3 }, session: NO_LIMITS }
    const shown = (iterations: number) =>
      rowOf(listed(sessionOf([threadOf(1, { limits, counts: { iterations } })], made)), VIEWER)
    expect(shown(2).seconds_to_limit).toBeGreaterThan(0)
    expect(shown(3).seconds_to_limit).toBeNull()
  })

  it('names the limit that ended a run, also where more than a limit of the day is used by now', () => {
    const day = { iterations: 100, tokens: 0, cost: 0, runs: 0 }
    const timeLimits = [{ rule: { scope: 'day' as const, per: 'all', limits: day, isObserved: false }, subject: null }]
    const usedOf: UsedOf = () => ({ used: { ...day, iterations: 102 }, limits: day, start: NOW - MINUTE })
    const limitOf = (changes: Partial<Run>) => {
      const thread = threadOf(1, { counts: { iterations: 11 }, timeLimits, ...changes })
      return rowOf(listed(sessionOf([thread])), { ...VIEWER, usedOf }).limit
    }
    expect(limitOf({})).toMatchObject({ scope: 'run', share: 1.1 })
    expect(limitOf({ counts: { iterations: 1 } })).toMatchObject({ scope: 'day', share: 1.02 })
    expect(limitOf({ finalAnswer: finalAnswer('Enough.') })).toEqual({
      ...{ meter: 'iterations', scope: 'run', used: 10, max: 10, share: 1 },
    })
  })

  it('is that of the agent which needs attention most', () => {
    const calm = threadOf(1, { isAnswered: true })
    const near = threadOf(2, { counts: { iterations: 9 } })
    const gone = threadOf(3, { askedAt: NOW - 20 * MINUTE })
    expect(rowOf(listed(sessionOf([near, calm, gone])), VIEWER)).toMatchObject({
      state: 'near_limit',
      iteration: 9,
      risk: 0.9,
      risk_by: 'iterations',
      agents: { alive: 1, total: 3 },
    })
  })
})

describe('the limit that a session shows', () => {
  it('is the one with the largest share used, over all limits of its runs at work, of the session, of time and of the rate', () => {
    const amounts = fc.record(
      Object.fromEntries(LIMITS.map((name) => [name, fc.constantFrom(0, 1, 4, 10, 1e6)])),
    ) as fc.Arbitrary<Amounts>
    const timeAmounts = fc.record(
      Object.fromEntries(TIME_LIMITS.map((name) => [name, fc.constantFrom(0, 1, 4, 10, 1e6)])),
    ) as fc.Arbitrary<TimeAmounts>
    const timeLimit = fc.record({
      rule: fc.record({
        scope: fc.constantFrom(...TIME_SCOPES),
        per: fc.constantFrom('all', 'model'),
        limits: timeAmounts,
        isObserved: fc.constant(false),
      }),
      subject: fc.constantFrom(null, 'gpt'),
    })
    const velocity = fc.record({
      limits: fc.record({
        iterations: fc.constantFrom(0, 1, 4),
        tokens: fc.constantFrom(0, 1, 1e4),
        cost: fc.constantFrom(0, 0.01),
      }),
      minutes: fc.constantFrom(1, 5),
      slows: fc.boolean(),
      isObserved: fc.boolean(),
    })
    const minute = fc.record({
      at: fc.integer({ min: 0, max: 9 }).map((ago) => NOW - ago * MINUTE),
      counts: fc.record({
        iterations: fc.nat(9),
        input: fc.nat(1e5),
        cost: fc.double({ min: 0, max: 1, noNaN: true }),
      }),
    })
    const run = fc.record({
      velocity: fc.option(velocity, { nil: undefined }),
      isAnswered: fc.boolean(),
      askedAt: fc.constantFrom(NOW, NOW - MINUTE),
      timeLimits: fc.option(fc.array(timeLimit, { maxLength: 3 }), { nil: undefined }),
      limits: fc.record({ run: amounts, session: amounts }),
      counts: fc.record({
        iterations: fc.integer({ min: 1, max: 20 }),
        tool_calls: fc.nat(20),
        input: fc.nat(2e6),
        cost: fc.double({ min: 0, max: 9, noNaN: true }),
      }),
    })
    fc.assert(
      fc.property(
        fc.array(run, { minLength: 1, maxLength: 3 }),
        timeAmounts,
        fc.array(minute),
        (runs, used, minutes) => {
          const { record, ...others } = sessionOf(runs.map((one, at) => threadOf(at + 1, one)))
          const session: Session = { ...others, record: record && { ...record, minutes } }
          const usedOf: UsedOf = ({ rule: { limits } }) => ({ used, limits, start: NOW - MINUTE / 2 })
          const { limit, threads, meters } = detailOf(listed(session), { ...VIEWER, usedOf }, noContext)
          const working = threads.filter((one) => one.state === 'working' || one.state === 'near_limit')
          const counting = working.length > 0 ? working : threads.slice(-1)
          // Of a run that is over, the period that it counted in may be over too.
          const ofTime = counting.flatMap(({ thread }) => {
            const { timeLimits = [], askedAt = 0 } = runs[thread - 1] ?? {}
            return working.length > 0 || askedAt === NOW ? timeLimits : []
          })
          const timeMeters = ofTime.flatMap(({ rule }) =>
            TIME_LIMITS.map((name) => ({ name, used: used[name], max: rule.limits[name] })),
          )
          const rates = counting.flatMap(({ thread }) => {
            const { limits, minutes: over } = runs[thread - 1]?.velocity ?? { limits: {}, minutes: 1 }
            const made = minutes.filter(({ at }) => at > NOW - over * MINUTE).map(({ counts }) => counts)
            return Object.entries(limits).map(([name, max]) => {
              const of = name === 'tokens' ? 'input' : (name as 'cost' | 'iterations')
              const sum = made.reduce((total, counts) => total + counts[of], 0)
              return { name, used: Math.round((sum / over) * 1e6) / 1e6, max }
            })
          })
          const own = [...counting.flatMap((one) => one.meters), ...meters]
          const all = [...own, ...timeMeters, ...rates].filter(({ max }) => max > 0)
          const shares = all.map(({ used, max }) => (used ?? 0) / max)
          if (all.length === 0) expect(limit).toBeNull()
          else expect(limit?.share).toBeCloseTo(Math.max(...shares), 2)
          const shown = all.find(
            ({ name, used, max }) =>
              name === limit?.meter && max === limit.max && Math.abs((used ?? 0) - (limit.used ?? 0)) < 2e-6,
          )
          if (limit) expect(shown && (shown.used ?? 0) / shown.max).toBeCloseTo(limit.share, 2)
        },
      ),
    )
  })

  it('is the money of a run that has hardly begun to count its iterations', () => {
    const limits = { run: { ...NO_LIMITS, iterations: 300, cost: 2 }, session: NO_LIMITS }
    const counts = { iterations: 25, input: 900, output: 100, cost: 1.88 }
    const row = rowOf(listed(sessionOf([threadOf(1, { limits, counts })])), VIEWER)
    expect(row.limit).toEqual({ meter: 'cost', scope: 'run', used: 1.88, max: 2, share: 0.94 })
    expect(limitText(row)).toBe('$1.88 of $2.00')
    expect(limitText(row, '/', 9)).toBe('$1.88/$2')
    const limit = { ...row.limit, used: 18.2, max: 22.5, share: 0.809 } as NonNullable<typeof row.limit>
    const fitting = [13, 11, 10, 9].map((room) => limitText({ ...row, limit }, '/', room))
    expect(fitting).toEqual(['$18.20/$22.50', '81%/$22.50', '81%/$22.50', '81%'])
  })

  it('may be one of all runs of the session together, and is said to be', () => {
    const limits = { run: { ...NO_LIMITS, iterations: 300 }, session: { ...NO_LIMITS, tool_calls: 10 } }
    const row = rowOf(listed(sessionOf([threadOf(1, { limits })])), VIEWER)
    expect(row.limit).toMatchObject({ meter: 'tool_calls', scope: 'session', used: 8, max: 10, share: 0.8 })
    expect(`${limitText(row)} ${limitNote(row)}`).toBe('8 of 10 tool calls, this session')
  })
})

describe('the risk of a session', () => {
  it('is a share between 0 and 1, with its reason, whatever its runs and iterations are', () => {
    const amount = fc.constantFrom(0, 1, 9, 10, 11, 1e9)
    const run = fc.record({
      iteration: fc.nat(20),
      isAnswered: fc.boolean(),
      askedAt: fc.constantFrom(0, NOW - 6 * MINUTE, NOW, NOW + MINUTE),
    })
    const made = fc.record({
      at: fc.integer({ min: NOW - 10 * MINUTE, max: NOW }),
      cost: amount,
      input: amount,
    })
    fc.assert(
      fc.property(fc.array(run, { maxLength: 4 }), fc.array(made, { maxLength: 48 }), (runs, done) => {
        const threads = runs.map((one, at) => threadOf(at + 1, one))
        const iterations = done.map((one) => iteration(one))
        const row = rowOf(listed(sessionOf(threads, iterations)), VIEWER)
        expect(row.risk).toBeGreaterThanOrEqual(0)
        expect(row.risk).toBeLessThanOrEqual(1)
        expect(row.risk_by === null).toBe(row.risk === 0)
      }),
    )
  })

  it('grows with spend that is more than in the median minute', () => {
    const spends = (newest: number) =>
      [1, 2, 3, 4]
        .map((minutes) => iteration({ at: NOW - minutes * MINUTE - 1, counts: { cost: 1 } }))
        .concat(iteration({ counts: { cost: newest } }))
    const riskOf = (newest: number) => {
      const threads = [threadOf(1, { limits: undefined })]
      const { risk, risk_by: by } = rowOf(listed(sessionOf(threads, spends(newest))), VIEWER)
      return [risk, by]
    }
    expect([riskOf(1), riskOf(2), riskOf(10)]).toEqual([
      [0, null],
      [0.5, 'spend'],
      [0.9, 'spend'],
    ])
  })
})

describe('a session in full', () => {
  it('has the run that an agent is at and how it stands, and each run before', () => {
    const past = {
      thread: 1,
      startedAt: NOW - 5 * MINUTE,
      endedAt: NOW - 4 * MINUTE,
      counts: { runs: 1, iterations: 3, tool_calls: 2, input: 300, output: 30, cost: 0.123_456_789 },
      model: 'gpt',
      agent: 'codex',
      state: 'completed',
      terminal: undefined,
    } as const
    const session = sessionOf([threadOf(1, { agent: 'codex' })])
    const record = session.record && { ...session.record, runs: [past] }
    const { runs } = detailOf(listed({ ...session, record }), VIEWER, noContext)
    expect(runs).toEqual([
      {
        thread: 1,
        started_at: new Date(past.startedAt).toISOString(),
        ended_at: new Date(past.endedAt).toISOString(),
        iterations: 3,
        tool_calls: 2,
        tokens: 330,
        cost_usd: 0.123_457,
        price_known: true,
        cost_estimated: false,
        model: 'gpt',
        agent: 'codex',
        state: 'completed',
        terminal: null,
      },
      expect.objectContaining({
        ended_at: null,
        iterations: 4,
        model: 'gpt',
        agent: 'codex',
        state: 'working',
      }),
    ])
  })

  it('reads a run that was kept before runs had a model and an agent', () => {
    const past = { thread: 1, startedAt: 1, endedAt: 2, counts: { iterations: 1, input: 1 } }
    const session = sessionOf([threadOf(1)])
    const runs = [{ ...past, state: undefined, terminal: undefined }]
    const record = session.record && { ...session.record, runs }
    expect(detailOf(listed({ ...session, record }), VIEWER, noContext).runs[0]).toMatchObject({
      model: null,
      agent: null,
      state: null,
    })
  })

  it('counts no iteration for the request that a limit stopped, wherever it is shown', () => {
    const stopped = threadOf(1, { counts: { iterations: 11 }, finalAnswer: finalAnswer('Enough.') })
    const detail = detailOf(listed(sessionOf([stopped])), VIEWER, noContext)
    expect(detail.iteration).toBe(10)
    expect(detail.runs).toMatchObject([{ iterations: 10 }])
    expect(detail.threads).toMatchObject([{ iteration: 10 }])
    expect(detail.threads[0]?.meters).toContainEqual({ name: 'iterations', used: 10, max: 10 })
  })

  it('cuts a final answer to 64 KiB, between two characters', () => {
    fc.assert(
      fc.property(fc.constantFrom('a', 'é', '目', '🙂'), fc.integer({ min: 60_000, max: 70_000 }), (one, count) => {
        const text = one.repeat(count)
        const session = sessionOf([threadOf(1, { finalAnswer: finalAnswer(text) })])
        const shown = detailOf(listed(session), VIEWER, noContext).final_answer
        const bytes = Buffer.byteLength(shown?.text ?? '')
        expect(text.startsWith(shown?.text ?? '-')).toBe(true)
        expect(bytes).toBeLessThanOrEqual(65_536)
        expect(shown?.truncated).toBe(Buffer.byteLength(text) > 65_536)
        expect(bytes).toBeGreaterThan(Math.min(65_536, Buffer.byteLength(text)) - 4)
        // Half of a character would not come back from UTF-8.
        expect(Buffer.from(shown?.text ?? '').toString()).toBe(shown?.text)
      }),
      { numRuns: 30 },
    )
  })

  it('says of named agents that they work for the one without a name, where there is one', () => {
    const { threads } = detailOf(listed(sessionOf([threadOf(1), threadOf(2)])), VIEWER, noContext)
    expect(threads.map(({ thread, parent, name }) => [thread, parent, name])).toEqual([
      [1, null, null],
      [2, 1, 'agent 2'],
    ])
    const orphans = detailOf(listed(sessionOf([threadOf(2), threadOf(3)])), VIEWER, noContext).threads
    expect(orphans.map(({ parent }) => parent)).toEqual([null, null])
  })

  it('has a meter for each limit that can be set', () => {
    const { meters, threads } = detailOf(listed(sessionOf([threadOf(1)])), VIEWER, noContext)
    expect(meters.map(({ name }) => name)).toEqual(LIMITS)
    expect(threads[0]?.meters.map(({ name }) => name)).toEqual(LIMITS)
  })
})
