import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Hash } from '../../src/core/hash.ts'
import { mergeSessions } from '../../src/core/session/merge.ts'
import type { Run, Session, Thread } from '../../src/core/session/session.ts'
import { terminalOf } from '../../src/core/terminal.ts'

const usageOf = (input: number) => ({
  input,
  output: input,
  cachedInput: 0,
  cost: input / 100,
  estimated: false,
})

const runOf = (iteration: number, tokens: number, changes: Partial<Run> = {}): Run => ({
  startedAt: 1,
  askedAt: iteration,
  iteration,
  toolCalls: iteration,
  recentRequests: [{ fingerprint: `f${iteration}`, iteration }],
  usage: usageOf(tokens),
  ...changes,
})

const threadOf = (run: Run, humans: readonly string[] = ['go'], name = ''): Thread => ({
  name,
  system: 'system' as Hash,
  userMessageHashes: humans as readonly Hash[],
  userMessageCount: humans.length,
  assistantHashes: [],
  run,
})

const sessionOf = (threads: readonly Thread[], tokens: number, iterations: number): Session => ({
  threads,
  usage: usageOf(tokens),
  totals: { startedAt: 1, iterations, toolCalls: iterations, acknowledged: 0, ignored: 0 },
})

/** A session of one run. */
const single = (iteration: number, tokens: number, changes: Partial<Run> = {}) =>
  sessionOf([threadOf(runOf(iteration, tokens, changes))], tokens, iteration)

describe('a session that two replicas counted separately', () => {
  it('merges to the larger iteration and the usage of both, counted once', () => {
    const amount = fc.record({ steps: fc.nat(50), tokens: fc.nat(1_000) })
    fc.assert(
      fc.property(amount, amount, amount, (before, here, there) => {
        const base = single(before.steps, before.tokens)
        const local = single(before.steps + here.steps, before.tokens + here.tokens)
        const remote = single(before.steps + there.steps, before.tokens + there.tokens)
        const joined = mergeSessions(base, local, remote)
        const tokens = before.tokens + here.tokens + there.tokens
        const steps = before.steps + Math.max(here.steps, there.steps)
        expect(joined.usage?.input).toBe(tokens)
        expect(joined.usage?.cost).toBeCloseTo(tokens / 100, 6)
        expect(joined.totals).toMatchObject({ iterations: steps, toolCalls: steps })
        expect(joined.threads).toHaveLength(1)
        expect(joined.threads[0]?.run).toMatchObject({ iteration: steps, toolCalls: steps })
        expect(joined.threads[0]?.run.usage?.input).toBe(tokens)
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
      totals: { iterations: 5 },
      threads: [{ run: { iteration: 5 } }],
    })
    expect(mergeSessions(counted, given, single(7, 60)).threads[0]?.run.iteration).toBe(6)
    expect(mergeSessions(counted, single(8, 60), single(7, 60)).threads[0]?.run.iteration).toBe(8)
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
    const next = sessionOf([threadOf(runOf(1, 10), ['go', 'more'])], 40, 4)
    const late = single(4, 50)
    for (const joined of [mergeSessions(base, next, late), mergeSessions(base, late, next)]) {
      expect(joined.threads).toHaveLength(1)
      expect(joined.threads[0]?.run).toMatchObject({ iteration: 1, usage: usageOf(10) })
      expect(joined.usage?.input).toBe(60)
    }
  })

  it('keeps the threads of both replicas', () => {
    const base = single(1, 10)
    const [first] = base.threads
    const threads = first ? [first] : []
    const local = sessionOf([...threads, threadOf(runOf(2, 5), ['go'], 'one')], 15, 3)
    const remote = sessionOf([...threads, threadOf(runOf(3, 7), ['go'], 'two')], 17, 4)
    const joined = mergeSessions(base, local, remote)
    expect(joined.threads.map(({ name }) => name)).toEqual(['', 'one', 'two'])
    expect(joined.usage?.input).toBe(22)
  })
})

const answersOf = (from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, at) => `answer ${from + at}` as Hash)

const copyOf = (iteration: number, assistantHashes: readonly Hash[] = []) =>
  sessionOf([{ ...threadOf(runOf(iteration, 0)), assistantHashes }], 0, iteration)

const iterationsOf = ({ threads }: Session) => threads.map(({ run }) => run.iteration)

describe('two copies of a thread without a name', () => {
  it('are merged into one thread if one copy knows only the newest answers of a shortened history', () => {
    const whole = copyOf(20, answersOf(1, 19))
    const shortened = copyOf(3, answersOf(18, 20))
    expect(iterationsOf(mergeSessions(undefined, whole, shortened))).toEqual([20])
  })

  it('keep two agents apart that began with the same prompt and got other answers', () => {
    const one = copyOf(5, answersOf(1, 4))
    const other = copyOf(3, answersOf(11, 12))
    expect(iterationsOf(mergeSessions(undefined, one, other))).toEqual([3, 5])
  })

  it('are merged into one thread if one copy has seen only the prompt', () => {
    const one = copyOf(5, answersOf(1, 4))
    expect(iterationsOf(mergeSessions(undefined, one, copyOf(1)))).toEqual([5])
  })

  it('are merged to the larger amounts if the store has started the session again', () => {
    const copy = { ...copyOf(5), usage: usageOf(50) }
    for (const input of [20, 80]) {
      const stored = { ...copyOf(2), usage: usageOf(input) }
      expect(mergeSessions(stored, copy, stored).usage).toEqual(usageOf(Math.max(50, input)))
    }
  })
})
