import { describe, expect, it } from 'vitest'
import { lacking } from '../../../src/core/session/merge.ts'
import { releaseIteration } from '../../../src/core/session/transitions.ts'
import { called, countedOf, type Message, newSession, result, said, steps, system, user } from '../transcript.ts'

const SYSTEM = system('You are an agent.')
const TASK = [SYSTEM, user('Fix the bug.')]
const SUMMARY = user('This session is being continued from a previous conversation that ran out of context: …')
/** The same request in other bytes. */
const other = { extra: { temperature: 0 } }

/** A session whose agent has sent its task, and so many steps `a0`, `a1`, … one after the other. */
function worked(count: number, task: readonly Message[] = TASK) {
  const session = newSession()
  for (let at = 0; at <= count; at++) session.see([...task, ...steps('a', at)])
  return session
}

/** The iterations of each thread, the least recently used first. */
const iterations = ({ session }: ReturnType<typeof newSession>) =>
  session.threads.map(({ run }) => run.counts['iterations'])

describe('of several threads that a transcript fits', () => {
  it('it continues the one that knows the most of it, whichever was used last', () => {
    for (const isLastAhead of [true, false]) {
      const session = worked(2)
      // Another agent, whose model has answered with the same words.
      for (const at of [0, 1]) session.see([...TASK, ...steps('a', at)], other)
      if (isLastAhead) session.see([...TASK, ...steps('a', 2)])
      session.see([...TASK, ...steps('a', 3)])
      expect(iterations(session)).toEqual([2, 4])
    }
  })
})

describe('a message that its answer comes without', () => {
  it('was written by a harness also where no answer stood before it, but not if it is the only message', () => {
    const session = newSession()
    session.see([...TASK, user('Hurry.')])
    expect(session.see([...TASK, ...steps('a', 1)])).toMatchObject({ iteration: 2, isNewRun: false })
    expect(session.session.threads).toHaveLength(1)
    const single = newSession()
    single.see(TASK)
    single.see([SYSTEM, ...steps('a', 1)])
    expect(single.session.threads).toHaveLength(2)
  })

  it('was written by a harness also where the system text changes with each request, and calls have no ids', () => {
    const session = newSession()
    const seen = [0, 1, 2, 3, 4].map((count) => {
      const made = Array.from({ length: count }, (_, at) => [{ ...called(''), content: `Step ${at}.` }, result('')])
      const state = count > 0 ? [user(`Files are open: ${count}.`)] : []
      return session.iteration([system(`Request ${count}.`), user('Fix the bug.'), ...made.flat(), ...state])
    })
    // Before the second answer it may be another agent, that has got the same first one.
    expect(seen).toEqual([1, 1, 2, 3, 4])
  })

  it('was another’s if the history before it differs as well', () => {
    const session = newSession()
    session.see([...TASK, user('Hurry.')])
    session.see([SYSTEM, user('Find the docs.'), ...steps('a', 1)])
    expect(session.session.threads).toHaveLength(2)
    session.see([...TASK, user('Another task.'), ...steps('a', 1)])
    expect(session.session.threads).toHaveLength(3)
  })
})

describe('steps after answers that broke off', () => {
  /** A session whose newest request, after so many steps, got no whole answer. */
  const broken = (count: number) => {
    const session = worked(count)
    session.change((now) => releaseIteration(now, countedOf([...TASK, ...steps('a', count)])))
    return session
  }

  it('count, as they were executed; without calls they do not', () => {
    expect(broken(3).iteration([...TASK, ...steps('a', 3), ...steps('b', 1)])).toBe(5)
    expect(broken(3).iteration([...TASK, ...steps('a', 3), ...steps('b', 2)])).toBe(6)
    expect(broken(3).iteration([...TASK, ...steps('a', 3), said('I look.')])).toBe(4)
  })

  it('count once where the history before them was cut off', () => {
    const session = newSession()
    for (let at = 0; at <= 4; at++) session.see([...TASK, ...steps('a', at)], { thread: 'main' })
    const counted = countedOf([...TASK, ...steps('a', 4)], 'main')
    session.change((now) => releaseIteration(now, counted))
    const cut = [...TASK, ...steps('b', 3)]
    expect(session.iteration(cut, { thread: 'main' })).toBe(6)
  })
})

describe('a transcript with answers that were not relayed', () => {
  const relayed = (count: number) => {
    const session = newSession()
    for (let at = 0; at <= count; at++) {
      session.see([...TASK, ...steps('a', at)])
      session.relay([...TASK, ...steps('a', at)], [`a${at}`])
    }
    return session
  }

  it('counts as one request with one more of them, and as all of them with several', () => {
    const elsewhere = (count: number) => [...TASK, ...steps('a', 2), ...steps('x', count)]
    expect(relayed(1).iteration(elsewhere(0))).toBe(3)
    expect(relayed(1).iteration(elsewhere(1))).toBe(3)
    expect(relayed(1).iteration(elsewhere(2))).toBe(5)
  })

  it('counts each of them while other replicas may have relayed it, and one with calls as none after that', () => {
    const elsewhere = (...names: readonly string[]) => [
      ...TASK,
      ...steps('a', 2),
      ...names.flatMap((one) => steps(one, 1)),
    ]
    const session = relayed(1)
    session.change(lacking)
    expect(session.iteration(elsewhere('x'))).toBe(4)
    session.relay(elsewhere('x'), ['y0'])
    expect(session.iteration(elsewhere('x', 'y', 'z'))).toBe(5)
  })

  it('counts as all of them where there are so many that only the first one is known', () => {
    const elsewhere = [...TASK, ...steps('a', 4), ...steps('x', 9)]
    for (const count of [0, 1, 3]) expect(relayed(count).iteration(elsewhere)).toBe(14)
  })

  it('begins a run where there are many after new words, and only the first answer before those is known', () => {
    const elsewhere = [...TASK, ...steps('a', 12), said('Done.'), user('And the docs.'), ...steps('x', 9)]
    expect(relayed(11).see(elsewhere)).toMatchObject({ iteration: 10, isNewRun: true })
  })
})

describe('a newest step alone', () => {
  const newestStep = [...TASK, ...steps('z', 1)]

  it('goes on with its run also where a step before it was sent twice', () => {
    const session = worked(7)
    session.see([...TASK, ...steps('a', 7)])
    expect(session.see(newestStep)).toMatchObject({ iteration: 9, isNewRun: false })
  })

  it('begins a thread where the prompt was sent twice, and a step again after it', () => {
    const session = newSession()
    session.see(TASK)
    session.see(TASK)
    session.see(TASK)
    for (let at = 1; at <= 7; at++) session.see([...TASK, ...steps('a', at)])
    session.see([...TASK, ...steps('a', 7)])
    expect(session.iteration(newestStep)).toBe(2)
  })

  it('begins a thread if it is not shorter than the history, or shows a message that the thread has not', () => {
    expect(worked(1).iteration([...TASK, called('z'), result('z'), called('y'), result('y')])).toBe(3)
    expect(worked(7).iteration([SYSTEM, user('Find the docs.'), ...steps('z', 1)])).toBe(2)
    expect(worked(7).iteration([system('You review.'), user('Fix the bug.'), ...steps('z', 1)])).toBe(2)
  })
})

describe('a summary in place of a history', () => {
  const IDLE = 600_000

  it.each([
    [IDLE - 1, 4],
    [IDLE, 1],
  ])('%i ms after the newest request has the iteration %i', (later, iteration) => {
    const session = newSession()
    for (let at = 0; at <= 2; at++) session.see([...TASK, ...steps('a', at)], { now: 1_000 })
    expect(session.iteration([SYSTEM, SUMMARY], { now: 1_000 + later })).toBe(iteration)
  })

  it('goes on with no run if two conversations may have had it', () => {
    const session = worked(3)
    const find = [SYSTEM, user('Find the docs.')]
    for (let at = 0; at <= 3; at++) session.see([...find, ...steps('d', at)])
    expect(session.iteration([SYSTEM, SUMMARY])).toBe(1)
    expect(session.iteration([...TASK, SUMMARY])).toBe(5)
  })
})

describe('the threads of an agent that goes back', () => {
  it('have only the requests that they were sent', () => {
    const session = newSession()
    for (let at = 0; at <= 4; at++) {
      session.see([...TASK, ...steps('a', at)])
      session.relay([...TASK, ...steps('a', at)], [`a${at}`])
    }
    session.see([...TASK, ...steps('a', 1), called('a1'), result('a1', 'other')])
    expect(session.session.threads.map(({ run }) => run.recentRequests.length)).toEqual([4, 1])
  })
})

describe('a client that gives all calls new ids with each request', () => {
  /** A session whose agent has made so many steps, each request with ids of its own. */
  const renewed = (count: number) => {
    const session = newSession()
    for (let at = 0; at <= count; at++) {
      const messages = [...TASK, ...steps(`own${at}-`, at)]
      session.see(messages)
      session.relay(messages, [`drawn${at}`])
    }
    return session
  }

  it('continues the thread that has the newest answer but one at its place, with the same words and calls', () => {
    const session = renewed(3)
    expect(iterations(session)).toEqual([4])
    expect(session.iteration([...TASK, ...steps('new', 4), user('And now?')])).toBe(1)
    expect(iterations(session)).toEqual([1])
  })

  it('begins a thread where another answer stands there, where more are new, and where another message came', () => {
    const spoken: Message = { ...called('x'), content: 'I look.' }
    const all = [
      [...TASK, ...steps('new', 2), spoken, result('x'), ...steps('last', 1)],
      [...TASK, ...steps('new', 5)],
      [SYSTEM, user('Find the docs.'), ...steps('new', 4)],
      [system('You are another.'), TASK[1] as Message, ...steps('new', 4)],
    ]
    for (const messages of all) {
      const session = renewed(3)
      session.see(messages)
      expect(session.session.threads).toHaveLength(2)
    }
  })

  it('does not continue with the first step of another agent with the same prompt', () => {
    const session = renewed(8)
    expect(session.iteration([...TASK, { ...called('z'), content: 'I look.' }, result('z')])).toBe(2)
    expect(session.session.threads).toHaveLength(2)
  })

  it('continues none of several that said the same', () => {
    const session = newSession()
    session.see(TASK)
    session.see(TASK, other)
    for (const name of ['a', 'b']) {
      session.see([...TASK, ...steps(name, 1)])
      session.relay([...TASK, ...steps(name, 1)], [`drawn ${name}`])
    }
    session.see([...TASK, ...steps('c', 2)])
    expect(iterations(session)).toEqual([2, 2, 3])
  })

  it('continues none whose prompt came more than once: as many agents may have sent it', () => {
    const session = newSession()
    for (let at = 0; at < 2; at++) session.see(TASK)
    session.relay(TASK, ['drawn'])
    for (const at of [1, 2]) session.see([...TASK, ...steps(`own${at}-`, at)])
    expect(iterations(session)).toEqual([2, 3])
  })
})

describe('a summary alone in place of the history', () => {
  const text = (words: string) => ({ type: 'text', text: words })
  const words = 'This session is being continued from a previous conversation that ran out of context: …'
  const summary = user(words)

  it('leaves the run as it is also where it stands with the prompt in one message', () => {
    for (const parts of [
      [text(words), text('Fix the bug.')],
      [text('Fix the bug.'), text(`<system-reminder>It is late.</system-reminder>\n${words}`)],
    ]) {
      const session = worked(3)
      expect(session.iteration([SYSTEM, user(parts)])).toBe(5)
      expect(session.iteration([SYSTEM, user(parts), ...steps('b', 1)])).toBe(6)
    }
  })

  it('continues no thread where the prompt of the thread held one, nor where only a reminder is new', () => {
    const begun = [SYSTEM, user([text(words), text('Fix the bug.')])]
    const session = worked(3, begun)
    session.see(begun, other)
    expect(iterations(session)).toEqual([4, 1])
    const reminded = worked(3)
    reminded.see([SYSTEM, user([text('<system-reminder>It is late.</system-reminder>'), text('Fix the bug.')])])
    expect(iterations(reminded)).toEqual([4, 1])
  })

  /** An agent whose system text changes with each of these requests, and that has made as many steps but one. */
  const dated = (count: number) => {
    const session = newSession()
    for (let at = 0; at < count; at++) {
      const messages = [system(`Request ${at}.`), user('Fix the bug.'), ...steps('a', at)]
      session.see(messages)
      session.relay(messages, [`a${at}`])
    }
    return session
  }

  it('leaves the run as it is also where the system text changes with each request', () => {
    const session = dated(4)
    expect(session.iteration([system('Request 4.'), user('Fix the bug.'), summary])).toBe(5)
    expect(session.iteration([system('Request 5.'), user('Fix the bug.'), summary, ...steps('b', 1)])).toBe(6)
    expect(session.session.threads).toHaveLength(1)
  })

  it('is another agent’s where the system text of the run stayed the same, or the prompt is left out', () => {
    const another = system('You are another.')
    const same = worked(3)
    same.see([another, user('Fix the bug.'), summary])
    expect(iterations(same)).toEqual([4, 1])
    const changed = dated(3)
    changed.see([another, summary])
    expect(iterations(changed)).toEqual([3, 1])
    changed.see([another, user('Fix the bug.'), ...steps('z', 1)])
    expect(iterations(changed)).toEqual([3, 1, 2])
  })
})
