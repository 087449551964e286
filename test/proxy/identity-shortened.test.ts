/** An agent that shortens its history is counted and guarded like one that sends all of it. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { anyReducer, REDUCERS, type Reducer, whole } from '../support/reducers.ts'
import {
  type Agent,
  createAgent,
  human,
  keyOf,
  runShortened,
  type Shape,
  tableOf,
  verdictsOf,
} from '../support/shortened-agent.ts'
import { DIALECTS, type DialectName } from '../support/transcripts.ts'

const LIMIT = 5
/** A looping agent is warned, blocked and ended within so many requests. */
const LOOP_REQUESTS = 10

interface Case extends Shape {
  readonly dialect: DialectName
  readonly stream: boolean
  /** Its requests name a session. */
  readonly named: boolean
  readonly reducer: Reducer
}

const FAMILIES: Readonly<Record<string, readonly Reducer[]>> = {
  ...REDUCERS,
  'any parts are cut, pruned, cleared or told in words': fc.sample(
    fc.array(fc.nat(5), { minLength: 1, maxLength: 12 }).map(anyReducer),
    { numRuns: 18, seed: 38 },
  ),
}

const SHAPES = fc.record({
  stream: fc.boolean(),
  named: fc.boolean(),
  calls: fc.constantFrom(1, 2),
  speaks: fc.boolean(),
  reasons: fc.boolean(),
  isStubborn: fc.boolean(),
})

/** How many tests each family has: three in each dialect. */
const TESTS = 3 * DIALECTS.length

/** The cases of one test of a family, always the same ones. Its tests share its reducers, so that each is tried. */
function casesOf(family: string, dialect: DialectName, test: 0 | 1 | 2): readonly Case[] {
  const reducers = FAMILIES[family] ?? []
  const number = 3 * DIALECTS.indexOf(dialect) + test
  const own = reducers.filter((_, at) => at % TESTS === number % Math.min(TESTS, reducers.length))
  const seed = TESTS * Object.keys(FAMILIES).indexOf(family) + number
  const shapes = fc.sample(SHAPES, { numRuns: own.length, seed })
  return own.flatMap((reducer, at) => (shapes[at] ? [{ ...shapes[at], dialect, reducer }] : []))
}

/** An agent of its own tenant. */
function agentOf(url: string, { dialect, stream, named, reducer, ...shape }: Case): Agent {
  const session = named ? 'session' : undefined
  return createAgent({ url, dialect, stream, reducer, session, key: keyOf(shape) })
}

const nameOf = ({ dialect, stream, named, reducer, calls, speaks, reasons, isStubborn }: Case): string =>
  `${dialect}, ${stream ? 'streamed' : 'whole'}, ${named ? 'named' : 'derived'}, ${reducer.name}, ${calls} calls` +
  `${speaks ? ', speaks' : ''}${reasons ? ', reasons' : ''}${isStubborn ? ', stubborn' : ''}`

/** The verdicts on looping agents that send their whole history, by their case. */
const known = new Map<string, readonly string[]>()

describe.each(DIALECTS)('an agent over %s of whose history is left, before each request, only a part:', (dialect) => {
  const families = Object.keys(FAMILIES)

  it.each(families)('%s: request k is iteration k, and the limit stops the next one', async (family) => {
    const { url } = await startBeforeModel({ budget: { max_iterations: LIMIT } })
    for (const one of casesOf(family, dialect, 0)) {
      const seen = await runShortened(agentOf(url, one), LIMIT + 3)
      const shown = seen.map(({ iteration, reason }) => [iteration, reason].filter(Boolean).join(' '))
      const numbers = Array.from({ length: LIMIT }, (_, at) => `${at + 1}/${LIMIT}`)
      expect(shown, `${nameOf(one)}\n${tableOf(seen)}`).toEqual([...numbers, `${LIMIT}/${LIMIT} max_iterations`])
      expect(seen.at(-1)?.hasFinalAnswer, nameOf(one)).toBe(true)
    }
  })

  it.each(families)('%s: the loop guard does what it does with the whole history', async (family) => {
    const { url } = await startBeforeModel({})
    for (const one of casesOf(family, dialect, 1)) {
      const loop = { ...one, loops: true, reasons: false }
      const control = { ...loop, named: true, reducer: whole }
      const expected =
        known.get(nameOf(control)) ?? verdictsOf(await runShortened(agentOf(url, control), LOOP_REQUESTS))
      known.set(nameOf(control), expected)
      expect(expected.join()).toMatch(/warn.*(in place|loop_guard)/)
      const seen = await runShortened(agentOf(url, loop), LOOP_REQUESTS)
      expect(verdictsOf(seen), `${nameOf(one)}\n${tableOf(seen)}`).toEqual(expected)
    }
  })

  it.each(families)('%s: what a human says after some steps begins a run', async (family) => {
    const { url } = await startBeforeModel({ budget: { max_iterations: LIMIT } })
    for (const one of casesOf(family, dialect, 2)) {
      const agent = agentOf(url, one)
      await runShortened(agent, LIMIT + 1)
      agent.say(human('Now do the other thing.'))
      for (let at = 0; at < 3; at++) await agent.step()
      const after = agent.seen.slice(LIMIT + 1).map(({ iteration }) => iteration)
      expect(after, `${nameOf(one)}\n${tableOf(agent.seen)}`).toEqual([`1/${LIMIT}`, `2/${LIMIT}`, `3/${LIMIT}`])
    }
  })
})
