import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { usedSinceReset } from '../../../src/core/session/session.ts'
import { endRun, releaseIteration } from '../../../src/core/session/transitions.ts'
import { terminalOf } from '../../../src/core/terminal.ts'
import { called, type Message, newSession, requestFacts, result, said, steps, system, user } from '../transcript.ts'

const SYSTEM = system('You are an agent.')
const TASK = [SYSTEM, user('Fix the bug.')]
const REMINDER = user('<system-reminder>Mind the style guide.</system-reminder>')
const SUMMARY = user('This session is being continued from a previous conversation that ran out of context: …')

/** The requests of a run of `count` iterations, each with one step more than the one before. */
const growing = (start: readonly Message[], name: string, count: number): Message[][] =>
  Array.from({ length: count }, (_, at) => [...start, ...steps(name, at)])

/** Checks for any order of the requests of all conversations that each is a thread with its own count. */
function expectToBeCountedApart(
  conversations: readonly (readonly Message[][])[],
  options?: { readonly isDerived: boolean },
): void {
  const turns = conversations.flatMap((requests, at) => requests.map(() => at))
  fc.assert(
    fc.property(fc.shuffledSubarray(turns, { minLength: turns.length }), (order: number[]) => {
      const session = newSession()
      const next = conversations.map(() => 0)
      for (const conversation of order) {
        const at = next[conversation] ?? 0
        next[conversation] = at + 1
        expect(session.iteration(conversations[conversation]?.[at] ?? [], options)).toBe(at + 1)
      }
      expect(session.session.threads).toHaveLength(conversations.length)
    }),
    { numRuns: 50 },
  )
}

describe('a run', () => {
  it('counts its requests', () => {
    const session = newSession()
    const recentRequests = growing(TASK, 'a', 5).map((messages) => session.see(messages))
    expect(recentRequests.map(({ iteration }) => iteration)).toEqual([1, 2, 3, 4, 5])
    expect(recentRequests.map(({ isNewRun }) => isNewRun)).toEqual([true, false, false, false, false])
    expect(recentRequests.map(({ toolCalls }) => toolCalls)).toEqual([0, 1, 2, 3, 4])
  })

  it('treats the same bytes as a retry that uses nothing', () => {
    const session = newSession()
    const requests = growing(TASK, 'a', 3)
    const recentRequests = requests.flatMap((messages) => [
      session.see(messages),
      session.see(messages),
      session.see(messages),
    ])
    expect(recentRequests.map(({ iteration }) => iteration)).toEqual([1, 1, 1, 2, 2, 2, 3, 3, 3])
    expect(recentRequests.map(({ toolCalls }) => toolCalls)).toEqual([0, 0, 0, 1, 1, 1, 2, 2, 2])
    expect(recentRequests.filter(({ isRetry }) => isRetry)).toHaveLength(6)
  })

  it('takes its count from the transcript when that shows more than the store remembers', () => {
    const session = newSession()
    session.see(TASK)
    expect(session.iteration([...TASK, ...steps('a', 7)])).toBe(8)
    expect(newSession().iteration([...TASK, ...steps('a', 7)])).toBe(8)
  })

  it('ends with a human message', () => {
    const session = newSession()
    for (const messages of growing(TASK, 'a', 4)) session.see(messages)
    const next = [...TASK, ...steps('a', 4), said('Done.'), user('Now the tests.')]
    expect(session.see(next)).toMatchObject({ iteration: 1, toolCalls: 0, isNewRun: true })
    expect(session.see([...next, ...steps('b', 1)])).toMatchObject({
      iteration: 2,
      toolCalls: 1,
      isNewRun: false,
    })
  })

  it('ends with every human message, also with the same words', () => {
    const session = newSession()
    let transcript: readonly Message[] = TASK
    for (let time = 0; time < 4; time++) {
      transcript = [...transcript, ...steps(`t${time}-`, 2), said('Stopped.'), user('continue')]
      expect(session.see(transcript)).toMatchObject({ iteration: 1, isNewRun: true })
      expect(session.iteration([...transcript, ...steps('x', 1)])).toBe(2)
    }
  })

  it.each([
    ['scaffolding', REMINDER],
    ['a tool result', result('a1')],
    ['a summary', SUMMARY],
  ])('does not end with %s', (_, message) => {
    const session = newSession()
    for (const messages of growing(TASK, 'a', 3)) session.see(messages)
    expect(session.see([...TASK, ...steps('a', 2), message])).toMatchObject({
      iteration: 4,
      isNewRun: false,
    })
  })

  it('of any growing transcript counts each assistant message once', () => {
    const messages = fc.array(fc.constantFrom('call', 'calls', 'reminder', 'retry'), { maxLength: 14 })
    fc.assert(
      fc.property(messages, (kinds) => {
        const session = newSession()
        let transcript: readonly Message[] = TASK
        let iteration = 1
        expect(session.iteration(transcript)).toBe(1)
        for (const [at, kind] of kinds.entries()) {
          if (kind === 'call') transcript = [...transcript, ...steps(`a${at}`, 1)]
          if (kind === 'calls')
            transcript = [...transcript, called(`b${at}`, 'c'), result(`b${at}`), result('c'), REMINDER]
          if (kind === 'reminder') transcript = [...transcript, ...steps(`d${at}`, 1), REMINDER]
          if (kind !== 'retry') iteration++
          expect(session.see(transcript)).toMatchObject({ iteration, isRetry: kind === 'retry' })
        }
      }),
      { numRuns: 50 },
    )
  })
})

describe('a run whose history became shorter', () => {
  const begun = () => {
    const session = newSession()
    for (const messages of growing(TASK, 'a', 8)) session.see(messages)
    return session
  }

  it.each<[string, Message[]]>([
    ['was compacted under its old first message', [...TASK, SUMMARY]],
    ['was compacted into a summary alone', [SYSTEM, SUMMARY]],
    ['was compacted into a summary with the last steps', [SYSTEM, SUMMARY, ...steps('a', 8).slice(-4)]],
    ['lost its beginning', [SYSTEM, ...steps('a', 8).slice(-6)]],
    ['lost its middle', [...TASK, ...steps('a', 8).slice(-4)]],
  ])('and %s keeps its count', (_, transcript) => {
    const session = begun()
    expect(session.see(transcript)).toMatchObject({ iteration: 9, isNewRun: false })
    expect(session.see([...transcript, ...steps('b', 1)])).toMatchObject({ iteration: 10, isNewRun: false })
    expect(session.see([...transcript, ...steps('b', 1), user('Next.')])).toMatchObject({ iteration: 1 })
    expect(session.session.threads).toHaveLength(1)
  })

  it('and shows only its newest step keeps its count, unless another agent has the same prompt', () => {
    const newestStep = [...TASK, ...steps('z', 1)]
    const other = [SYSTEM, user('Find the docs.')]
    const session = begun()
    for (let sent = 0; sent < 2; sent++) session.see(other)
    expect(session.see(newestStep)).toMatchObject({ iteration: 9, isNewRun: false })
    const doubtful = newSession()
    doubtful.see(TASK)
    for (const messages of growing(TASK, 'a', 8)) doubtful.see(messages)
    expect(doubtful.iteration(newestStep)).toBe(2)
  })

  it('keeps its count of tool calls', () => {
    const session = begun()
    expect(session.see([SYSTEM, SUMMARY]).toolCalls).toBe(7)
    expect(session.see([SYSTEM, SUMMARY, called('x', 'y'), result('x'), result('y')]).toolCalls).toBe(9)
  })

  it('keeps the count of a later run, down to its first human message', () => {
    const session = newSession()
    const second = [...TASK, ...steps('a', 2), user('Now the tests.')]
    for (const messages of growing(second, 'b', 4)) session.see(messages)
    expect(session.see([...TASK, SUMMARY])).toMatchObject({ iteration: 5, isNewRun: false })
  })

  it('counts every request while the history slides over any number of messages', () => {
    const session = newSession()
    const all = [user('Fix the bug.'), ...steps('a', 30)]
    const recentRequests = Array.from({ length: 30 }, (_, at) => {
      const shown = all.slice(0, 1 + 2 * at)
      return session.iteration([SYSTEM, ...shown.slice(-6)])
    })
    expect(recentRequests).toEqual(Array.from({ length: 30 }, (_, at) => at + 1))
  })

  it('continues its count in a conversation with hundreds of human messages', () => {
    const session = newSession()
    const long = Array.from({ length: 300 }, (_, at) => [user(`Question ${at}`), said(`Answer ${at}`)]).flat()
    const start = [SYSTEM, ...long, user('And now work.')]
    const recentRequests = growing(start, 'a', 6).map((messages) => session.see(messages))
    expect(recentRequests.map(({ iteration, isNewRun }) => [iteration, isNewRun])).toEqual([
      [1, true],
      [2, false],
      [3, false],
      [4, false],
      [5, false],
      [6, false],
    ])
  })

  it('recognizes the newest human message after hundreds were dropped from the history', () => {
    const session = newSession()
    for (let at = 1; at <= 140; at++) {
      const shown = [SYSTEM, user(`Question ${at - 1}`), said('Answer'), user(`Question ${at}`)]
      expect(session.iteration(shown)).toBe(1)
      expect(session.see([...shown, ...steps(`s${at}-`, 1)])).toMatchObject({
        iteration: 2,
        isNewRun: false,
      })
    }
  })
})

describe('a conversation that starts over with the same messages', () => {
  const shownAgain = (isDerived: boolean) => {
    const session = newSession()
    const requests = growing(TASK, 'a', 8)
    for (const messages of requests.slice(1)) session.see(messages, { isDerived })
    return requests.slice(1, 4).map((messages) => session.see(messages, { isDerived }).iteration)
  }

  it('is a new run if the session is identified only by how it began', () => {
    expect(shownAgain(true)).toEqual([2, 3, 4])
  })

  it('is a new run too if the client names the session', () => {
    expect(shownAgain(false)).toEqual([2, 3, 4])
  })
})

describe('conversations that began with the same words and have no session id', () => {
  const GREETED = [SYSTEM, user('Hi.'), said('Hello! How can I help?')]
  const conversation = (name: string, count: number) => growing([...GREETED, user(`Task ${name}.`)], name, count)
  const isDerived = true

  it('are counted separately, in any order of their requests', () => {
    const talks = ['a', 'b', 'c'].map((name) => conversation(name, 6))
    expectToBeCountedApart(talks, { isDerived })
  })

  it('each continue with what a human says next', () => {
    const session = newSession()
    const [a = [], b = []] = [conversation('a', 4), conversation('b', 3)].map((requests) => {
      for (const messages of requests) session.see(messages, { isDerived })
      return [...(requests.at(-1) ?? []), said('Done.'), user('And the tests?')]
    })
    expect(session.iteration(a, { isDerived })).toBe(1)
    expect(session.iteration(b, { isDerived })).toBe(1)
    expect(session.iteration([...a, ...steps('x', 1)], { isDerived })).toBe(2)
    expect(session.iteration([...a, ...steps('x', 2)], { isDerived })).toBe(3)
    expect(session.session.threads).toHaveLength(2)
  })

  it('keep their count when a history lost its middle', () => {
    const session = newSession()
    for (const messages of conversation('a', 6)) session.see(messages, { isDerived })
    for (const messages of conversation('b', 2)) session.see(messages, { isDerived })
    const newest = steps('a', 6).slice(-4)
    expect(session.iteration([...GREETED, ...newest], { isDerived })).toBe(7)
  })
})

describe('agents with the same prompt', () => {
  it('are counted apart where their requests differ in bytes, also if their models answer with the same words', () => {
    const session = newSession()
    const own = { extra: { temperature: 0 } }
    for (const [at, messages] of growing(TASK, 'a', 3).entries()) expect(session.iteration(messages)).toBe(at + 1)
    for (const [at, messages] of growing(TASK, 'a', 3).entries()) expect(session.iteration(messages, own)).toBe(at + 1)
    expect(session.session.threads.map(({ run }) => run.counts['iterations'])).toEqual([3, 3])
  })
})

describe('threads of one session', () => {
  const OTHER = [SYSTEM, user('Find the docs.')]

  it('are distinguished by system text and first human message, and do not affect each other', () => {
    const threads = [TASK, OTHER, [system('You are a reviewer.'), user('Fix the bug.')]].map((start, at) =>
      growing(start, `t${at}-`, 5),
    )
    expectToBeCountedApart(threads)
  })

  it('are distinguished by the name that the client gives them, whether their words are equal or not', () => {
    const session = newSession()
    for (const messages of growing(TASK, 'a', 4)) {
      const counts = ['', 'one', 'two'].map((thread) => session.iteration(messages, { thread }))
      expect(new Set(counts).size).toBe(1)
    }
    expect(session.iteration([SYSTEM, SUMMARY], { thread: 'one' })).toBe(5)
    expect(session.iteration([...OTHER, ...steps('b', 1)], { thread: 'two' })).toBe(2)
    expect(session.session.threads).toHaveLength(3)
  })

  it('are bounded in number; the least recently used are dropped first', () => {
    const session = newSession()
    for (const messages of growing(TASK, 'a', 3)) session.see(messages)
    for (let at = 0; at < 70; at++) {
      session.see([SYSTEM, user(`Question ${at}`)])
      session.see([...TASK, ...steps('a', 3 + at)])
    }
    expect(session.session.threads).toHaveLength(64)
    expect(session.iteration([...TASK, SUMMARY])).toBe(74)
  })

  it('keep no more of a transcript than they need', () => {
    const session = newSession()
    const long = Array.from({ length: 1000 }, (_, at) => [user(`Question ${at}`), said(`Answer ${at}`)]).flat()
    for (let at = 100; at <= 2000; at += 100) session.see([SYSTEM, ...long.slice(0, at)])
    const size = JSON.stringify(session.session).length
    expect(size).toBeLessThan(21_250)
  })
})

describe('a request that failed', () => {
  const failed = (messages: readonly Message[]) => ({
    fingerprint: requestFacts(messages).fingerprint,
    thread: '',
  })

  it('uses no iteration, however often it is retried and whatever replaces it', () => {
    const session = newSession()
    const [first = [], second = [], third = []] = growing(TASK, 'a', 3)
    session.see(first)
    for (let attempt = 0; attempt < 3; attempt++) {
      expect(session.iteration(second)).toBe(2)
      session.change((now) => releaseIteration(now, failed(second)))
    }
    expect(session.see(second, { extra: { temperature: 0 } })).toMatchObject({ iteration: 2, toolCalls: 1 })
    expect(session.see(third)).toMatchObject({ iteration: 3, toolCalls: 2 })
  })

  it('releases nothing if its iteration is not the newest', () => {
    const session = newSession()
    const [first = [], second = []] = growing(TASK, 'a', 2)
    session.see(first)
    session.see(second)
    session.change((now) => releaseIteration(now, failed(first)))
    expect(session.iteration([SYSTEM, SUMMARY])).toBe(3)
  })

  it('releases nothing in a session that does not remember it', () => {
    const session = newSession()
    session.see(TASK)
    const before = session.session
    session.change((now) => releaseIteration(now, failed([...TASK, ...steps('z', 9)])))
    expect(session.session).toEqual(before)
  })

  it('is released once, although another request has its number by then', () => {
    const session = newSession()
    const [first = [], second = []] = growing(TASK, 'a', 2)
    session.see(first)
    session.see(second)
    session.change((now) => releaseIteration(now, failed(second)))
    expect(session.iteration(second, { extra: { temperature: 0 } })).toBe(2)
    session.change((now) => releaseIteration(now, failed(second)))
    expect(session.session.threads[0]?.run.counts['iterations']).toBe(2)
  })

  it('is released once if it was sent twice at the same time', () => {
    const session = newSession()
    const [first = [], second = []] = growing(TASK, 'a', 2)
    expect([session.iteration(first), session.iteration(first)]).toEqual([1, 1])
    expect([session.iteration(second), session.iteration(second)]).toEqual([2, 2])
    for (let attempt = 0; attempt < 2; attempt++) session.change((now) => releaseIteration(now, failed(second)))
    expect(session.iteration([SYSTEM, SUMMARY])).toBe(2)
  })
})

describe('a run that was stopped', () => {
  const meter = { name: 'iterations', used: 4, max: 3 } as const
  const answer = { text: 'So far.', model: 'gpt-4o', terminal: terminalOf({ meter }, 's', true) }
  const stopped = () => {
    const session = newSession()
    for (const messages of growing(TASK, 'a', 4)) session.see(messages)
    const { fingerprint } = requestFacts([...TASK, ...steps('a', 3)])
    session.change((now) => endRun(now, { fingerprint, thread: '' }, answer))
    return session
  }

  it('repeats its answer for every further request', () => {
    const session = stopped()
    expect(session.see([...TASK, ...steps('a', 3)]).finalAnswer).toMatchObject(answer)
    expect(session.see([...TASK, ...steps('a', 4)]).finalAnswer).toMatchObject(answer)
    expect(session.see([...TASK, ...steps('a', 4), REMINDER]).finalAnswer).toMatchObject(answer)
  })

  it('stays stopped when its history became a summary, but gets an answer of its own', () => {
    const runState = stopped().see([SYSTEM, SUMMARY])
    expect(runState).toMatchObject({ iteration: 4, isNewRun: false, finalAnswer: undefined })
  })

  it('repeats its answer where that summary is sent again', () => {
    const session = stopped()
    session.see([SYSTEM, SUMMARY])
    expect(session.see([SYSTEM, SUMMARY]).finalAnswer).toMatchObject(answer)
  })

  it('repeats its answer where the provider keeps the history', () => {
    const session = newSession()
    for (const messages of growing(TASK, 'a', 4)) session.see(messages, { thread: 'main' })
    const { fingerprint } = requestFacts([...TASK, ...steps('a', 3)])
    session.change((now) => endRun(now, { fingerprint, thread: 'main' }, answer))
    const next = session.see([called('b'), result('b')].slice(1), { thread: 'main', previous: 'r4' })
    expect(next.finalAnswer).toMatchObject(answer)
  })

  it.each(['Now the tests.', 'Fix the bug.'])('is over when a human says %j', (words) => {
    const session = stopped()
    const runState = session.see([...TASK, ...steps('a', 3), said('So far.'), user(words)])
    expect(runState).toMatchObject({ iteration: 1, isNewRun: true })
    expect(runState.finalAnswer).toBeUndefined()
  })

  it('is over when a human repeats the first message after a history that lost its beginning', () => {
    const runState = stopped().see([SYSTEM, said('So far.'), user('Fix the bug.')])
    expect(runState).toMatchObject({ iteration: 1, isNewRun: true })
  })

  it('does not affect other threads', () => {
    expect(stopped().see([SYSTEM, user('Find the docs.')]).finalAnswer).toBeUndefined()
  })
})

it('a run that was reset by a replica with a slower clock has used time since it began', () => {
  const operator = { base: { at: 40_000, counts: {} } }
  expect(usedSinceReset({ startedAt: 100_000, counts: {}, operator }, 130_000).seconds).toBe(30)
  expect(usedSinceReset({ startedAt: 10_000, counts: {}, operator }, 130_000).seconds).toBe(90)
})

it('a session of replicas whose clocks differ has used no negative time', () => {
  const session = newSession()
  const [first = [], second = []] = growing(TASK, 'a', 2)
  session.see(first, { now: 100_000 })
  const { used: run, usedBySession: whole } = session.see(second, { now: 40_000 })
  expect([run.seconds, whole.seconds]).toEqual([0, 0])
})

describe('a conversation in which a human’s message was replaced after its answer', () => {
  const FIRST = [SYSTEM, user('Fix the bug.'), said('It is fixed.')]
  it.each<[string, Message[], boolean]>([
    ['an answer without calls', [said('The tests pass.')], true],
    ['a call and its result', steps('a', 1), false],
  ])('has a new run only where the next message follows no call, here %s', (_, answer, isNewRun) => {
    const session = newSession()
    session.see(FIRST.slice(0, 2))
    session.see([...FIRST, user('Run the tests.')])
    expect(session.see([...FIRST, ...answer, user('And now the docs.')]).isNewRun).toBe(isNewRun)
    expect(session.session.threads).toHaveLength(1)
  })
})

describe('a request that is sent again', () => {
  it.each([
    ['is', 'a prompt', true, TASK],
    ['is not', 'a later step', undefined, [...TASK, ...steps('a', 1)]],
  ])('%s a sign of another agent with the same task where it is %s', (_is, _what, isPromptRepeated, messages) => {
    const session = newSession()
    for (const sent of [messages, messages]) session.see(sent)
    expect(session.session.threads.map((thread) => thread.isPromptRepeated || undefined)).toEqual([isPromptRepeated])
  })
})
