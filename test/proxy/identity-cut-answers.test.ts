/** An answer that did not end is no iteration, however its remains come back. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { whole } from '../support/reducers.ts'
import {
  type Agent,
  type BrokenEnd,
  createAgent,
  keyOf,
  type Model,
  numberIn,
  SETTINGS,
  type Seen,
  searcher,
  tableOf,
} from '../support/shortened-agent.ts'

const upTo = (count: number): number[] => Array.from({ length: count }, (_, at) => at + 1)

const LIMIT = 6

const BROKEN: readonly BrokenEnd[] = ['cut', 'no end', 'error']

/** A model whose answers with these numbers are broken after a share of their frames. */
const breaking =
  (numbers: readonly number[], broken: BrokenEnd, share: number): Model =>
  async (request) => ({
    ...(await searcher(request)),
    ...(numbers.includes(request.number) ? { broken, share } : {}),
  })

/** What clients do with the remains of an answer that did not end. */
const REMAINS: Record<string, (agent: Agent, seen: Seen) => void> = {
  'sends the same request again': () => {},
  'keeps the text that came': (agent, { answer: { text } }) => {
    if (text) agent.say({ kind: 'answer', text, calls: [] })
  },
}

const STREAMED = SETTINGS.filter(([, { stream }]) => stream)
const CASES = BROKEN.flatMap((broken) => Object.keys(REMAINS).map((remains) => [broken, remains] as const))

describe('an answer that does not end', () => {
  it.each(CASES)('is no iteration (%s), where the client %s', async (broken, remains) => {
    const keep = REMAINS[remains] as (agent: Agent, seen: Seen) => void
    for (const [title, setting] of STREAMED) {
      const check = fc.asyncProperty(
        // Without an id, a conversation is known from its first whole answer on.
        fc.uniqueArray(fc.integer({ min: setting.session === undefined ? 2 : 1, max: 8 }), {
          minLength: 1,
          maxLength: 4,
        }),
        fc.constantFrom(0.3, 0.6),
        async (numbers, share) => {
          const { url } = await startBeforeModel(
            { budget: { max_iterations: LIMIT } },
            breaking(numbers, broken, share),
          )
          const agent = createAgent({ url, ...setting, key: keyOf({ speaks: true }), reducer: whole })
          const expected: number[] = []
          let ended = 0
          while (ended < LIMIT) {
            const seen = await agent.step()
            expected.push(ended + 1)
            if (seen.answer.hasEnded) ended++
            else keep(agent, seen)
          }
          const story = `${title}, broken: ${numbers.join(' ')}\n${tableOf(agent.seen)}`
          expect(agent.seen.map(numberIn), story).toEqual(expected)
          expect(
            agent.seen.filter(({ reason }) => reason),
            story,
          ).toEqual([])
        },
      )
      await fc.assert(check, { numRuns: 2, seed: 38 })
    }
  })

  it.each(BROKEN)('is an iteration (%s) as soon as a request shows the result of one of its calls', async (broken) => {
    for (const [title, setting] of STREAMED) {
      const { url } = await startBeforeModel({}, breaking([2], broken, 1))
      const agent = createAgent({ url, ...setting, key: keyOf({ speaks: true }), reducer: whole, keepsBroken: true })
      for (let at = 0; at < 4; at++) await agent.step()
      const story = `${title}\n${tableOf(agent.seen)}`
      expect(agent.seen[1]?.answer, story).toMatchObject({ hasEnded: false, calls: [{ name: 'search' }] })
      expect.soft(agent.seen.map(numberIn), story).toEqual(upTo(4))
    }
  })
})
