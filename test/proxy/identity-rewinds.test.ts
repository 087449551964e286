/** A client that goes back in its history, without a human, never gets a lower count. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { lastSteps, promptAndLast, summarised, whole } from '../support/reducers.ts'
import { createAgent, human, keyOf, note, numberIn, SETTINGS, SYSTEM, tableOf } from '../support/shortened-agent.ts'
import type { Entry } from '../support/transcripts.ts'

/** Sends the history of an agent once more without its newest `back` steps. */
function rewound(history: readonly Entry[], back: number): readonly Entry[] {
  const answers = history.flatMap((entry, at) => (entry.kind === 'answer' ? [at] : []))
  const cut = answers[Math.max(1, answers.length - back)]
  return cut === undefined ? history : history.slice(0, cut)
}

describe.each(SETTINGS)('an agent that goes back over %s', (_title, { dialect, stream, session }) => {
  it('never lowers its count, and each new request is one more', async () => {
    const { url } = await startBeforeModel({})
    const moves = fc.array(fc.oneof({ arbitrary: fc.constant(0), weight: 3 }, { arbitrary: fc.nat(6), weight: 1 }), {
      minLength: 6,
      maxLength: 14,
    })
    const reducers = fc.constantFrom(whole, promptAndLast(2), lastSteps(1), summarised('user', 1, true))
    const check = fc.asyncProperty(moves, reducers, async (backs, reducer) => {
      const agent = createAgent({ url, dialect, stream, session, key: keyOf({}), reducer })
      await agent.step()
      const sent = new Set<string>()
      let most = 1
      for (const back of backs) {
        if (back > 0) agent.replace(rewound(agent.history, back))
        const request = JSON.stringify(reducer.reduce(agent.history))
        const number = numberIn(await agent.step())
        const story = `back ${backs.join(' ')}, ${reducer}\n${tableOf(agent.seen)}`
        // The same bytes again are a retry: it may get the number that it had.
        if (sent.has(request)) expect(number, story).toBeLessThanOrEqual(most + 1)
        else expect(number, story).toBe(most + 1)
        most = Math.max(most, number)
        sent.add(request)
      }
    })
    await fc.assert(check, { numRuns: 3, seed: 38 })
  })
})

describe('an agent that goes back again and again', () => {
  it.each([1, 2, 3, 5])('by %i steps gets no more than its limit', async (back) => {
    const { url, model } = await startBeforeModel({ budget: { max_iterations: 10 } })
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({})
      const agent = createAgent({ url, ...setting, key, reducer: whole })
      const sent = new Set<string>()
      let repeats = 0
      for (let at = 0; at < 60; at++) {
        if (at > 0 && at % (back + 1) === 0) agent.replace(rewound(agent.history, back))
        const request = JSON.stringify(agent.history)
        if (sent.has(request)) repeats++
        sent.add(request)
        const { answer } = await agent.step()
        if (answer.calls.length === 0) break
      }
      const calls = model.requests.filter((request) => request.key === key && !request.mustAnswer).length
      const story = `${title}\n${tableOf(agent.seen)}`
      expect.soft(calls, story).toBeLessThanOrEqual(10 + repeats)
      expect.soft(agent.seen.at(-1)?.reason, story).toBe('max_iterations')
    }
  })
})

describe('the message of a human who interrupts an agent', () => {
  it('begins a run of its own when it is sent again in other bytes', async () => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({})
      let others = 0
      const form = ([system, ...rest]: readonly Entry[]): readonly Entry[] => [
        system ?? SYSTEM,
        ...rest.map((entry) =>
          entry.kind === 'note' ? note(`<system-reminder>${++others}</system-reminder>`) : entry,
        ),
      ]
      const agent = createAgent({ url, ...setting, key, reducer: whole, form })
      for (let at = 0; at < 4; at++) await agent.step()
      agent.say(human('Stop that, and look at the other file.'), note(''))
      await agent.step()
      agent.replace(rewound(agent.history, 1))
      for (let at = 0; at < 3; at++) await agent.step()
      const story = `${title}\n${tableOf(agent.seen)}`
      expect.soft(agent.seen.map(numberIn), story).toEqual([1, 2, 3, 4, 1, 1, 2, 3])
    }
  })
})
