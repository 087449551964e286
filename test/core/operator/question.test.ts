import { beforeEach, describe, expect, it } from 'vitest'
import { amountsBy } from '../../../src/core/budget/meters.ts'
import {
  askOperator,
  extendRuns,
  isAnswered,
  openQuestion,
  resetRuns,
  setBudget,
  stopRuns,
} from '../../../src/core/operator/operator.ts'
import { NEW_SESSION, type Run, type Session } from '../../../src/core/session/session.ts'
import { terminalOf } from '../../../src/core/terminal.ts'
import { runWith, threadWith } from '../transcript.ts'

const AMOUNTS = amountsBy(() => 0)
const limits = { run: { ...AMOUNTS, iterations: 3 }, session: AMOUNTS }
const request = { fingerprint: 'f', thread: '' }
const limit = { name: 'iterations', used: 4, max: 3 } as const
const NOW = 1_000_000

const run = runWith({
  startedAt: NOW,
  askedAt: NOW,
  counts: { iterations: 4, tool_calls: 3 },
  recentRequests: [{ fingerprint: 'f', iteration: 4 }],
  limits,
})
const session = { ...NEW_SESSION, threads: [threadWith(run)] }
const ask = () => askOperator(session, request, limit, NOW + 20_000)
let asked: ReturnType<typeof ask>
beforeEach(() => {
  asked = ask()
})
const open = (of: Session, now = NOW) => {
  const [thread] = of.threads
  return thread && openQuestion(of, thread, now)
}

describe('the question whether a run may go on', () => {
  it('is open until its time is over, and is joined by those who come later', () => {
    expect(asked.result).toEqual({ until: NOW + 20_000, isNew: true })
    expect(open(asked.session)).toEqual({ meter: 'iterations', max: 3, until: NOW + 20_000 })
    expect(open(asked.session, NOW + 20_000)).toBeUndefined()
    const joined = askOperator(asked.session, request, limit, NOW + 30_000)
    expect(joined).toEqual({ session: asked.session, result: { until: NOW + 20_000, isNew: false } })
    expect(isAnswered(asked.session, request, NOW, 'iterations')).toBe(false)
  })

  it('is asked anew about a limit that was raised', () => {
    const again = askOperator(asked.session, request, { ...limit, max: 5 }, NOW + 30_000)
    expect(again.result).toEqual({ until: NOW + 30_000, isNew: true })
  })

  it.each<[string, (before: Session) => Session]>([
    ['an extension', (before) => extendRuns(before, undefined, { iterations: 1 }, undefined)],
    ['a limit', (before) => setBudget(before, undefined, { iterations: 9 })],
    ['a stop', (before) => stopRuns(before, undefined)],
    ['a reset', (before) => resetRuns(before, undefined, NOW)],
  ])('is answered by %s', (_, change) => {
    const after = change(asked.session)
    expect(isAnswered(after, request, NOW, 'iterations')).toBe(true)
    expect(open(after)).toBeUndefined()
  })

  const runIs = (change: Partial<Run>) => ({
    ...asked.session,
    threads: asked.session.threads.map((thread) => ({ ...thread, run: { ...thread.run, ...change } })),
  })

  it('is not answered by an extension of another agent, nor by one that does not reach far enough', () => {
    const after = extendRuns(runIs({ counts: { iterations: 9 } }), undefined, { iterations: 5 }, undefined)
    expect(isAnswered(after, request, NOW, 'iterations')).toBe(false)
    const other = extendRuns(asked.session, 2, { iterations: 5 }, undefined)
    expect(isAnswered(other, request, NOW, 'iterations')).toBe(false)
  })

  it('is answered where the run is below that limit, though it has reached another one', () => {
    const limited = runIs({ limits: { ...limits, run: { ...limits.run, tool_calls: 2 } } })
    const after = extendRuns(limited, undefined, { iterations: 5 }, undefined)
    expect(isAnswered(after, request, NOW, 'iterations')).toBe(true)
    expect(open(after)).toBeUndefined()
    expect(isAnswered(after, request, NOW, 'tool_calls')).toBe(false)
  })

  it('is not answered before it is asked, so that one who listens early waits for it', () => {
    expect(isAnswered(session, request, NOW, 'iterations')).toBe(false)
    expect(open(session)).toBeUndefined()
  })

  it('is answered by the final answer at that limit, and not by one from before the limit was raised', () => {
    const endedAt = (max: number) => ({
      ...asked.session,
      threads: asked.session.threads.map((thread) => ({
        ...thread,
        run: {
          ...thread.run,
          finalAnswer: {
            text: 'Done.',
            model: 'm',
            terminal: terminalOf({ meter: { ...limit, max } }, 's', true),
          },
        },
      })),
    })
    expect(isAnswered(endedAt(3), request, NOW, 'iterations')).toBe(true)
    expect(isAnswered(endedAt(2), request, NOW, 'iterations')).toBe(false)
  })

  it('is neither asked about a run that is forgotten, nor answered for it', () => {
    const forgotten = { ...session, threads: [] }
    expect(askOperator(forgotten, request, limit, NOW + 1).result).toBeUndefined()
    expect(isAnswered(forgotten, request, NOW, 'iterations')).toBe(false)
    expect(isAnswered(undefined, request, NOW, 'iterations')).toBe(false)
  })
})
