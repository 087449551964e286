/** Agents whose first requests have equal bytes are counted and guarded alone, whatever each of them cuts off. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { anyReducer, REDUCERS, type Reducer, whole } from '../support/reducers.ts'
import {
  type Agent,
  createAgent,
  keyOf,
  numberIn,
  runShortened,
  tableOf,
  verdictsOf,
} from '../support/shortened-agent.ts'
import { DIALECTS, type DialectName } from '../support/transcripts.ts'

const AGENTS = 4

interface Case {
  readonly dialect: DialectName
  readonly stream: boolean
  /** All agents name one session; else none of them names one. */
  readonly named: boolean
  /** One for each agent. */
  readonly reducers: readonly Reducer[]
  /** Whose request comes next. */
  readonly order: readonly number[]
}

const anyOf = fc.oneof(
  fc.constantFrom(...Object.values(REDUCERS).flat()),
  fc.array(fc.nat(5), { minLength: 1, maxLength: 8 }).map(anyReducer),
)

/** Orders in which each agent makes so many requests; `together`: all make their first one before a second is made. */
function ordersOf(requests: number, together: boolean): fc.Arbitrary<number[]> {
  const agents = Array.from({ length: AGENTS }, (_, at) => at)
  const all = agents.flatMap((at) => Array.from({ length: requests - Number(together) }, () => at))
  const shuffled = fc.shuffledSubarray(all, { minLength: all.length })
  return together ? shuffled.map((rest) => [...agents, ...rest]) : shuffled
}

/** So many cases in a dialect, always the same ones: whole and streamed, with and without a session id, in turn. */
function casesOf(dialect: DialectName, order: fc.Arbitrary<number[]>, count: number): readonly Case[] {
  const reducers = fc.array(anyOf, { minLength: AGENTS, maxLength: AGENTS })
  const turn = DIALECTS.indexOf(dialect)
  const drawn = fc.sample(fc.record({ reducers, order }), { numRuns: count, seed: 38 + turn })
  return drawn.map((one, at) => ({
    ...one,
    dialect,
    stream: at % 2 === 0,
    named: (Math.floor(at / 2) + at + turn) % 2 === 0,
  }))
}

/** Lets the agents of a case make their requests, one after the other; an agent whose run has ended makes none. */
async function play(url: string, { dialect, stream, named, reducers, order }: Case, loops = false) {
  const options = { url, dialect, stream, key: keyOf({ loops }), session: named ? 'shared' : undefined }
  const agents = reducers.map((reducer) => createAgent({ ...options, reducer }))
  for (const at of order) {
    const agent = agents[at]
    if (agent && agent.seen.at(-1)?.answer.calls.length !== 0) await agent.step()
  }
  return agents
}

/** Says what each agent sent and got. */
const storyOf = (agents: readonly Agent[], { stream, named, reducers, order }: Case): string =>
  [
    `${stream ? 'streamed' : 'whole'}, ${named ? 'one session id' : 'no session id'}, order ${order.join('')}`,
    ...agents.map(({ seen }, at) => `agent ${at}, ${reducers[at]?.name}:\n${tableOf(seen)}`),
  ].join('\n')

describe.each(DIALECTS)(
  'four agents over %s with equal first requests, each with its own way to cut its history,',
  (dialect) => {
    it('read k at their k-th request, in any order', async () => {
      const { url } = await startBeforeModel({})
      for (const one of casesOf(dialect, ordersOf(6, false), 4)) {
        const agents = await play(url, one)
        const numbers = agents.map(({ seen }) => seen.map(numberIn))
        expect(numbers, storyOf(agents, one)).toEqual(agents.map(() => [1, 2, 3, 4, 5, 6]))
      }
    })

    it('never read more than k, also with their whole histories', async () => {
      const { url } = await startBeforeModel({})
      for (const drawn of casesOf(dialect, ordersOf(6, false), 2)) {
        const one = { ...drawn, reducers: drawn.reducers.map(() => whole) }
        const agents = await play(url, one)
        const numbers = agents.map(({ seen }) => seen.map(numberIn))
        expect(numbers, storyOf(agents, one)).toEqual(agents.map(() => [1, 2, 3, 4, 5, 6]))
      }
    })

    it('get as many iterations each as the limit allows', async () => {
      const { url } = await startBeforeModel({ budget: { max_iterations: 4 } })
      for (const one of casesOf(dialect, ordersOf(6, true), 4)) {
        const agents = await play(url, one)
        const seen = agents.map((agent) =>
          agent.seen.map(({ iteration, reason }) => [iteration, reason].join(' ').trim()),
        )
        const expected = ['1/4', '2/4', '3/4', '4/4', '4/4 max_iterations']
        expect(seen, storyOf(agents, one)).toEqual(agents.map(() => expected))
      }
    })

    it('are warned and blocked like one that runs alone with its whole history', async () => {
      const { url } = await startBeforeModel({})
      for (const one of casesOf(dialect, ordersOf(8, true), 2)) {
        const { stream } = one
        const options = { url, dialect, stream, reducer: whole, session: 'alone' }
        const alone = createAgent({ ...options, key: keyOf({ loops: true }) })
        const expected = verdictsOf(await runShortened(alone, 8))
        expect(expected.join()).toContain('in place')
        const agents = await play(url, one, true)
        for (const { seen } of agents) expect(verdictsOf(seen), storyOf(agents, one)).toEqual(expected)
      }
    })

    it('read k at their k-th request when all of them ask at once', async () => {
      const { url } = await startBeforeModel({})
      for (const isNamed of [true, false]) {
        const session = isNamed ? 'shared' : undefined
        const options = { url, dialect, stream: true, key: keyOf({}), session }
        const reducers = ['the last steps', 'a summary', 'no old calls and results', 'nothing is cut']
        const agents = reducers.map((name) => createAgent({ ...options, reducer: REDUCERS[name]?.[0] ?? whole }))
        for (let at = 0; at < 5; at++) await Promise.all(agents.map((agent) => agent.step()))
        const numbers = agents.map(({ seen }) => seen.map(numberIn))
        const story = agents.map(({ seen }, at) => `${reducers[at]}:\n${tableOf(seen)}`).join('\n')
        expect(numbers, story).toEqual(agents.map(() => [1, 2, 3, 4, 5]))
      }
    })
  },
)
