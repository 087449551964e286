import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { called, type Message, newSession, result, said, steps, system, user } from '../transcript.ts'

/** One agent's conversation: each request has one step more, and the system text may contain a clock. */
interface Agent {
  readonly name: string
  readonly hasClock: boolean
  readonly count: number
  /** After so many requests a human says something more; 0 for never. */
  readonly spokenTo: number
}

function requestOf({ name, hasClock, spokenTo }: Agent, at: number, time: number): Message[] {
  const isSpokenTo = spokenTo > 0 && at > spokenTo
  const before = isSpokenTo ? steps(`${name}-`, spokenTo - 1) : []
  const answered = isSpokenTo ? [...before, said(`Done, ${name}.`), user(`More, ${name}.`)] : []
  const since = isSpokenTo ? steps(`${name}+`, at - spokenTo - 1) : steps(`${name}-`, at - 1)
  const text = hasClock ? `You are an agent. It is ${time}.` : 'You are an agent.'
  return [system(text), user(`Task ${name}.`), ...answered, ...since]
}

/** Each agent's requests, in the order that `turns` gives by the agents' places. */
function total(agents: readonly Agent[], turns: readonly number[]): number {
  const session = newSession()
  const next = agents.map(() => 0)
  for (const [time, place] of turns.entries()) {
    const agent = agents[place]
    if (!agent) continue
    const at = (next[place] ?? 0) + 1
    next[place] = at
    session.see(requestOf(agent, at, time))
  }
  expect(JSON.parse(JSON.stringify(session.session))).toEqual(session.session)
  expect(session.session.threads.length).toBeLessThanOrEqual(64)
  return session.session.counts.iterations ?? 0
}

describe('the totals of a session', () => {
  it('count each model call once, in any order of any agents, with or without clocks in their system texts', () => {
    const agent = fc.record({
      hasClock: fc.boolean(),
      count: fc.integer({ min: 1, max: 8 }),
      spokenTo: fc.integer({ min: 0, max: 4 }),
    })
    const world = fc.array(agent, { minLength: 1, maxLength: 6 }).chain((list) => {
      const agents = list.map((one, at) => ({ ...one, name: `a${at}` }))
      const turns = agents.flatMap(({ count }, at) => Array.from({ length: count }, () => at))
      return fc.record({
        agents: fc.constant(agents),
        turns: fc.shuffledSubarray(turns, { minLength: turns.length }),
      })
    })
    fc.assert(
      fc.property(world, ({ agents, turns }) => {
        expect(total(agents, turns)).toBe(turns.length)
      }),
      { numRuns: 200 },
    )
  })

  it('count each call once even if there are more threads than are remembered', () => {
    const agents = Array.from({ length: 100 }, (_, at) => ({
      name: `a${at}`,
      hasClock: at % 10 === 0,
      count: 12,
      spokenTo: 0,
    }))
    const turns = Array.from({ length: 1_200 }, (_, at) => at % 100)
    expect(total(agents, turns)).toBe(1_200)
  })

  it('count the answers that were relayed, and calls that only a transcript shows, once', () => {
    const session = newSession()
    const task = [system('You are an agent.'), user('Fix the bug.')]
    session.see([...task, ...steps('a', 5)])
    expect(session.session.counts).toMatchObject({ iterations: 1, tool_calls: 5 })
    session.see([...task, ...steps('a', 9)])
    expect(session.session.counts).toMatchObject({ iterations: 2, tool_calls: 9 })
    session.see([system('You are an agent of another kind.'), user('Fix the bug.'), ...steps('a', 10)])
    expect(session.session.counts).toMatchObject({ iterations: 3, tool_calls: 10 })
  })

  it('count each of any number of equal calls once, whether ids tell them apart or not', () => {
    const idOf = { fresh: (at: number) => `call ${at}`, same: () => 'call', none: () => '' }
    const world = fc.record({
      ids: fc.constantFrom<keyof typeof idOf>('fresh', 'same', 'none'),
      // How many answers came before each human message, and whether the request after each of them was sent twice.
      runs: fc.array(fc.array(fc.boolean(), { minLength: 1, maxLength: 8 }), { minLength: 1, maxLength: 3 }),
    })
    fc.assert(
      fc.property(world, ({ ids, runs }) => {
        const session = newSession()
        const messages: Message[] = [system('You are an agent.')]
        let [total, at] = [0, 0]
        for (const [number, answers] of runs.entries()) {
          messages.push(user(`Task ${number}.`))
          expect(session.see(messages).toolCalls).toBe(0)
          for (const [before, isSentTwice] of answers.entries()) {
            const id = idOf[ids](at++)
            messages.push(called(id), result(id, `${at}`))
            for (let sent = 0; sent <= Number(isSentTwice); sent++)
              // Without ids of their own, other bytes with the same calls are another step.
              expect(session.see(messages, { extra: { temperature: ids === 'fresh' ? sent : 0 } }).toolCalls).toBe(
                before + 1,
              )
          }
          total += answers.length
          messages.push(said(`Done with ${number}.`))
        }
        expect(session.session.counts.tool_calls).toBe(total)
      }),
      { numRuns: 200 },
    )
  })

  it.each([
    ['', 3],
    ['', 5],
    ['call', 3],
    ['call', 5],
  ] as const)(
    'count each of equal calls with the id "%s" where the history is cut to the last %i steps',
    (id, kept) => {
      const session = newSession()
      const made: Message[] = []
      const seen = Array.from({ length: 12 }, (_, at) => {
        const shown = made.slice(-2 * kept)
        made.push(called(id), result(id, `${at}`))
        const { iteration, toolCalls } = session.see([system('You are an agent.'), user('Fix the bug.'), ...shown])
        return [iteration, toolCalls]
      })
      expect(seen).toEqual(seen.map((_, at) => [at + 1, at]))
    },
  )

  it.each(['', 'call'])(
    'count each of equal calls with the id "%s" where a harness speaks between them, for one request',
    (id) => {
      const session = newSession()
      const task = [system('You are an agent.'), user('Fix the bug.')]
      const step = [called(id), result(id, 'same')]
      const requests = [
        task,
        [...task, ...step],
        [...task, ...step, ...step, user('Go on.')],
        [...task, ...step, ...step, ...step],
      ]
      const { iteration, toolCalls } = requests.map((messages) => session.see(messages)).at(-1) ?? {}
      expect([iteration, toolCalls]).toEqual([4, 3])
    },
  )

  it('count the reaction to each warning, also where the model gives the same answer again', () => {
    const session = newSession()
    const messages: Message[] = [system('You are an agent.'), user('Fix the bug.')]
    const seen = [1, 2, 3].map((at) => {
      const { reaction } = session.see([...messages])
      session.change((one) => ({
        ...one,
        threads: one.threads.map((thread) => ({ ...thread, run: { ...thread.run, isWarned: true } })),
      }))
      messages.push(called(''), result('', `${at}`))
      return reaction
    })
    expect([...seen, session.see(messages).reaction]).toEqual([undefined, 'ignored', 'ignored', 'ignored'])
  })
})
