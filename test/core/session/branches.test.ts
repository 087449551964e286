import { describe, expect, it } from 'vitest'
import { releaseIteration } from '../../../src/core/session/transitions.ts'
import { called, countedOf, type Message, newSession, result, said, steps, system, user } from '../transcript.ts'

const TASK = [system('You are an agent.'), user('Fix the bug.')]
const HELLO = said('I look.')

/** A step whose result has words of its own, as an agent gets it that makes the same call again. */
const stepWith = (id: string, content: string): Message[] => [called(id), result(id, content)]

/** A session whose agent has made so many steps `a0`, `a1`, …, and has got an answer to its newest request as well. */
function worked(count: number) {
  const session = newSession()
  for (let at = 0; at <= count; at++) {
    const messages = [...TASK, ...steps('a', at)]
    session.see(messages, { now: at })
    session.relay(messages, [`a${at}`], at === 0 ? { isFirst: true } : {})
  }
  return session
}

const back = (at: number, words = 'other'): Message[] => [...TASK, ...steps('a', at), ...stepWith(`a${at}`, words)]

describe('an agent that goes back to an older answer', () => {
  it('keeps the count of its run, and goes on in a thread of its own', () => {
    const session = worked(4)
    expect(session.see(back(1), { now: 10 })).toMatchObject({ iteration: 6, isNewRun: false })
    session.relay(back(1), ['b0'])
    expect(session.iteration([...back(1), ...steps('b', 1)], { now: 11 })).toBe(7)
    expect(session.session.threads).toHaveLength(2)
    const [, branch] = session.session.threads
    const { fingerprint } = countedOf(back(1))
    expect(branch?.run.recentRequests).toMatchObject([{ fingerprint, iteration: 6 }, { iteration: 7 }])
    // It is no agent that another one has started.
    expect(session.session.threads.map(({ depth }) => depth)).toEqual([undefined, undefined])
    expect(session.session.guards).toBeUndefined()
  })

  it('keeps it each time that it goes back, also to where it has been already', () => {
    const session = worked(4)
    for (const [time, iteration] of [6, 7, 8].entries()) {
      const messages = back(1, `time ${time}`)
      expect(session.iteration(messages, { now: 10 + time })).toBe(iteration)
      session.relay(messages, [`b${time}`])
    }
    const first = back(1, 'time 0')
    expect(session.iteration([...first, ...stepWith('b0', 'ok')], { now: 20 })).toBe(7)
  })

  it('does not get its count back where the run that it left repeats a request', () => {
    const session = worked(4)
    session.see(back(1), { now: 10 })
    session.relay(back(1), ['b0'])
    session.see([...TASK, ...steps('a', 4)], { now: 20 })
    session.see([...TASK, ...steps('a', 5)], { now: 30 })
    expect(session.iteration([...back(1), ...steps('b', 1)], { now: 40 })).toBe(7)
  })

  it('before a message in the middle of its run, has the count of the run that the message seemed to end', () => {
    const session = worked(2)
    const message = [...TASK, ...steps('a', 3), user('Hurry.')]
    expect(session.see(message, { now: 10 })).toMatchObject({ iteration: 1, isNewRun: true })
    session.relay(message, ['c0'])
    expect(session.iteration(back(0), { now: 11 })).toBe(4)
  })
})

describe('agents that share a history', () => {
  it('go on from its newest answer, each with its own count; the fourth is taken for one that went back', () => {
    const session = worked(3)
    const counts = [1, 2, 3, 4].map((agent) => {
      const messages = back(2, `agent ${agent}`)
      const iteration = session.iteration(messages, { now: 10 + agent })
      session.relay(messages, [`agent${agent}`])
      return iteration
    })
    expect(counts).toEqual([4, 4, 4, 5])
  })

  it('lose what they inherited once the thread that they left goes on itself, as they are not its agent', () => {
    const session = worked(4)
    expect(session.iteration(back(1), { now: 10 })).toBe(6)
    session.relay(back(1), ['b0'])
    session.see([...TASK, ...steps('a', 5)], { now: 11 })
    expect(session.iteration([...back(1), ...steps('b', 1)], { now: 12 })).toBe(4)
  })

  it('are counted apart where they sent the same prompt and got different answers', () => {
    const session = newSession()
    for (const agent of ['x', 'y']) {
      session.see(TASK)
      session.relay(TASK, [`${agent}0`], { isFirst: true })
    }
    for (const [at, iteration] of [2, 3, 4].entries())
      for (const agent of ['y', 'x']) {
        const messages = [...TASK, ...steps(agent, at + 1)]
        expect(session.see(messages)).toMatchObject({ iteration, toolCalls: at + 1 })
        session.relay(messages, [`${agent}${at + 1}`])
      }
    expect(session.session.threads).toHaveLength(2)
    const operations = session.session.threads.map(({ relayed = [] }) => relayed.map(({ operation }) => operation))
    expect(operations).toEqual([
      ['y0', 'y1', 'y2', 'y3'],
      ['x0', 'x1', 'x2', 'x3'],
    ])
  })

  it('are counted apart from one whose newest request is in flight', () => {
    const session = worked(2)
    session.see([...TASK, ...steps('a', 3)])
    expect(session.see(back(2))).toMatchObject({ iteration: 4, isNewRun: true })
    expect(session.session.threads).toHaveLength(2)
  })

  it('are one agent where the newest request got no answer and is made anew', () => {
    const session = worked(2)
    const failed = [...TASK, ...steps('a', 3)]
    session.see(failed)
    session.change((now) => releaseIteration(now, countedOf(failed)))
    expect(session.see(back(2))).toMatchObject({ iteration: 4, isNewRun: false })
    expect(session.session.threads).toHaveLength(1)
  })
})

describe('a message at the end of a history', () => {
  const H2 = user('Now the tests.')
  const sent = [...TASK, ...steps('a', 2), H2]
  const asked = (isRelayed: boolean) => {
    const session = worked(1)
    expect(session.see(sent)).toMatchObject({ iteration: 1, isNewRun: true })
    if (isRelayed) session.relay(sent, ['c0'])
    return session
  }

  it.each([true, false])('was a harness’s where its answer comes without it; answers have ids: %s', (isRelayed) => {
    const session = asked(isRelayed)
    const shown = [...TASK, ...steps('a', 2), ...steps('c', 1)]
    expect(session.see(shown)).toMatchObject({ iteration: 4, isNewRun: false })
    expect(session.session.threads).toHaveLength(1)
  })

  it('begins no other run when it comes again in other bytes; another message does', () => {
    const session = asked(false)
    session.change((now) => releaseIteration(now, countedOf(sent)))
    const changed = [...TASK, ...steps('a', 1), ...stepWith('a1', 'shorter')]
    expect(session.see([...changed, H2])).toMatchObject({ iteration: 1, isNewRun: false })
    session.change((now) => releaseIteration(now, countedOf([...changed, H2])))
    expect(session.see([...changed, user('No, the docs.')])).toMatchObject({ iteration: 1, isNewRun: true })
    expect(session.session.threads).toHaveLength(1)
  })

  it('begins a run after its own answer as well', () => {
    const session = asked(true)
    const next = [...TASK, ...steps('a', 2), H2, ...steps('c', 1), HELLO, user('Go on.')]
    expect(session.see(next)).toMatchObject({ iteration: 1, isNewRun: true })
  })
})

describe('a thread that the client names', () => {
  it('begins after the history of another thread, with a count of its own', () => {
    const session = newSession()
    const history = [...TASK, ...steps('a', 3)]
    for (let at = 0; at <= 3; at++) session.see([...TASK, ...steps('a', at)], { thread: 'main' })
    const first = [...history, user('You are the reviewer.')]
    expect(session.see(history, { thread: 'reviewer' })).toMatchObject({ iteration: 1, toolCalls: 0 })
    expect(session.see([...history, ...steps('r', 1)], { thread: 'reviewer' })).toMatchObject({ iteration: 2 })
    expect(session.see(first, { thread: 'other' })).toMatchObject({ iteration: 1, toolCalls: 0 })
  })

  it('begins with its whole transcript where no thread is known that has shown it', () => {
    const session = newSession()
    session.see(TASK, { thread: 'main' })
    expect(session.iteration([...TASK, ...steps('z', 3)], { thread: 'reviewer' })).toBe(4)
  })

  it('continues from what the provider keeps: results go on, and a human’s words begin a run', () => {
    const session = newSession()
    const options = { thread: 'main', previous: 'r1' }
    session.see(TASK, { thread: 'main' })
    expect(session.see([result('a0')], options)).toMatchObject({ iteration: 2, toolCalls: 1, isNewRun: false })
    expect(session.see([user('More.')], { ...options, previous: 'r2' })).toMatchObject({ iteration: 1, isNewRun: true })
  })
})
