import { describe, expect, it } from 'vitest'
import { hashOf } from '../../../src/core/hash.ts'
import { mergeSessions } from '../../../src/core/session/merge.ts'
import type { Session, Thread } from '../../../src/core/session/session.ts'

const answers = (from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, at) => hashOf(`answer ${from + at}`))

function thread(iteration: number, changes: Partial<Thread>): Thread {
  return {
    name: '',
    system: hashOf('system'),
    userMessageHashes: [hashOf('go')],
    userMessageCount: 1,
    assistantHashes: [],
    run: { startedAt: 1, askedAt: iteration, iteration, toolCalls: 0, recentRequests: [] },
    ...changes,
  }
}

const session = (...threads: Thread[]): Session => ({ threads, usage: undefined, totals: undefined })
const iterations = ({ threads }: Session) => threads.map(({ run }) => run.iteration)

describe('two copies of a session', () => {
  it('are merged into one thread if one copy knows only the newest answers of a shortened history', () => {
    const whole = session(thread(20, { assistantHashes: answers(1, 19) }))
    const shortened = session(thread(3, { assistantHashes: answers(18, 20) }))
    expect(iterations(mergeSessions(undefined, whole, shortened))).toEqual([20])
  })

  it('keep two agents apart that began with the same prompt and got other answers', () => {
    const one = session(thread(5, { assistantHashes: answers(1, 4) }))
    const other = session(thread(3, { assistantHashes: answers(11, 12) }))
    expect(iterations(mergeSessions(undefined, one, other))).toEqual([3, 5])
  })

  it('are merged into one thread if one copy has seen only the prompt', () => {
    const one = session(thread(5, { assistantHashes: answers(1, 4) }))
    expect(iterations(mergeSessions(undefined, one, session(thread(1, {}))))).toEqual([5])
  })

  it('are merged to the larger amounts if the store has started the session again', () => {
    const used = (input: number) => ({
      input,
      output: 0,
      cachedInput: 0,
      cost: input / 100,
      estimated: false,
    })
    const copy = { ...session(thread(5, {})), usage: used(50) }
    for (const input of [20, 80]) {
      const stored = { ...session(thread(2, {})), usage: used(input) }
      expect(mergeSessions(stored, copy, stored).usage).toEqual(used(Math.max(50, input)))
    }
  })
})
