/** Agents are never joined, whatever ids their calls have; forks and sub-agents are counted alone. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { lastSteps, promptAndLast, type Reducer, whole } from '../support/reducers.ts'
import {
  type Agent,
  createAgent,
  entryOf,
  human,
  keyOf,
  type Model,
  numberIn,
  resultsOf,
  runShortened,
  SETTINGS,
  SYSTEM,
  searcher,
  sendTranscript,
  tableOf,
} from '../support/shortened-agent.ts'
import type { Entry } from '../support/transcripts.ts'

/** What a provider that does not draw its ids gives to the calls of an answer; `step`: how many answers a request shows. */
const WEAK_IDS: Record<string, (step: number, at: number) => string> = {
  'the number of the call in its answer': (_, at) => `call_${at}`,
  'the number of the step': (step, at) => `call_${step}_${at}`,
  "the tool's name": () => 'search',
  nothing: () => '',
}

/** A model whose calls have such ids. It looks for something new in each answer. */
const withIds =
  (idOf: (step: number, at: number) => string): Model =>
  async (request) => {
    const answer = await searcher(request)
    const step = request.text.split(/"role":"assistant"|"type":"function_call"/).length
    return { ...answer, calls: (answer.calls ?? []).map((call, at) => ({ ...call, id: idOf(step, at) })) }
  }

const storyOf = (agents: readonly Agent[]) => agents.map(({ seen }, at) => `agent ${at}:\n${tableOf(seen)}`).join('\n')
const upTo = (count: number): number[] => Array.from({ length: count }, (_, at) => at + 1)

/** A random order in which each of so many agents makes so many requests. */
const ordersOf = (agents: number, requests: number): fc.Arbitrary<number[]> => {
  const all = Array.from({ length: agents * requests }, (_, at) => at % agents)
  return fc.shuffledSubarray(all, { minLength: all.length })
}

describe.each(Object.entries(WEAK_IDS))('agents whose provider gives as an id %s', (_title, idOf) => {
  const play = async (
    tasks: readonly string[],
    reducer: Reducer,
    check: (agents: readonly Agent[], story: string) => void,
  ) => {
    const { url } = await startBeforeModel({}, withIds(idOf))
    for (const [title, setting] of SETTINGS) {
      const property = fc.asyncProperty(ordersOf(tasks.length, 5), async (order) => {
        const key = keyOf({ calls: 2 })
        const agents = tasks.map((task) => createAgent({ url, ...setting, key, reducer, task }))
        for (const at of order) await agents[at]?.step()
        check(agents, `${title}, order ${order.join('')}\n${storyOf(agents)}`)
      })
      await fc.assert(property, { numRuns: 1, seed: 38 })
    }
  }

  it('read k at their k-th request, with tasks of their own and their whole histories', async () => {
    await play(['Find one.', 'Find two.', 'Find three.'], whole, (agents, story) => {
      for (const { seen } of agents) expect.soft(seen.map(numberIn), story).toEqual(upTo(5))
    })
  })

  it('never read more than k, with equal tasks and whatever they cut off', async () => {
    await play(['Find it.', 'Find it.', 'Find it.'], lastSteps(2), (agents, story) => {
      for (const { seen } of agents)
        for (const [at, one] of seen.entries()) expect.soft(numberIn(one), story).toBeLessThanOrEqual(at + 1)
    })
  })

  it('never read more than k, with tasks of their own and whatever they cut off', async () => {
    await play(['Find one.', 'Find two.', 'Find three.'], promptAndLast(1), (agents, story) => {
      for (const { seen } of agents)
        for (const [at, one] of seen.entries()) expect.soft(numberIn(one), story).toBeLessThanOrEqual(at + 1)
    })
  })
})

describe('agents of one session that say and call the same, without ids', () => {
  it('are counted apart where their system texts differ', async () => {
    const { url } = await startBeforeModel(
      {},
      withIds(() => ''),
    )
    const tasks = ['writer', 'critic', 'reader']
    const property = fc.asyncProperty(ordersOf(tasks.length, 5), async (order) => {
      for (const [title, setting] of SETTINGS) {
        const key = keyOf({ loops: true })
        const agents = tasks.map((name) => {
          const agent = createAgent({ url, ...setting, session: 'session', key, reducer: whole })
          agent.replace([{ kind: 'system', text: `You are a ${name}.` }, human('Find it.')])
          return agent
        })
        for (const at of order) await agents[at]?.step()
        const story = `${title}, order ${order.join('')}\n${storyOf(agents)}`
        for (const { seen } of agents) expect.soft(seen.map(numberIn), story).toEqual(upTo(5))
      }
    })
    await fc.assert(property, { numRuns: 3, seed: 38 })
  })

  it('begin runs of their own after loops, where an id was that of a blocked call of another agent', async () => {
    const { url } = await startBeforeModel(
      {},
      withIds((_, at) => `call_${at}`),
    )
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({ loops: true, isStubborn: true })
      const agents = ['writer', 'critic'].map((name) => {
        const agent = createAgent({ url, ...setting, session: 'session', key, reducer: whole })
        agent.replace([{ kind: 'system', text: `You are a ${name}.` }, human('Find it.')])
        return agent
      })
      for (const agent of agents) {
        await runShortened(agent, 10)
        expect.soft(agent.seen.at(-1)?.reason, `${title}\n${tableOf(agent.seen)}`).toBe('loop_guard')
        agent.say(human('Find the other thing.'))
      }
      const before = agents.map(({ seen }) => seen.length)
      for (const at of [1, 0, 1, 0]) await agents[at]?.step()
      const later = agents.map(({ seen }, at) => seen.slice(before[at]).map(numberIn))
      expect.soft(later, `${title}\n${storyOf(agents)}`).toEqual([upTo(2), upTo(2)])
    }
  })
})

describe('a transcript that shows the newest calls of an agent is not the agent', () => {
  /** Lets an agent make five requests; returns it. */
  const agentAt = async (url: string, setting: (typeof SETTINGS)[number][1], key: string, more = {}) => {
    const agent = createAgent({ url, ...setting, key, reducer: whole, ...more })
    await runShortened(agent, 5)
    return agent
  }
  /** What its newest step alone reads where nobody knows it. */
  const UNKNOWN = 2

  it('where another credential sends it', async () => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const agent = await agentAt(url, setting, keyOf({}))
      const other = await sendTranscript({ url, ...setting, key: keyOf({}) }, lastSteps(1).reduce(agent.history))
      expect.soft(numberIn(other), title).toBe(UNKNOWN)
      await agent.step()
      expect.soft(agent.seen.map(numberIn), `${title}\n${tableOf(agent.seen)}`).toEqual(upTo(6))
    }
  })

  it('where it names another session', async () => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({})
      const agent = await agentAt(url, setting, key)
      const sent = lastSteps(1).reduce(agent.history)
      const other = await sendTranscript({ url, ...setting, key, session: 'another' }, sent)
      expect.soft(numberIn(other), title).toBe(UNKNOWN)
      await agent.step()
      expect.soft(agent.seen.map(numberIn), `${title}\n${tableOf(agent.seen)}`).toEqual(upTo(6))
    }
  })

  it('where it names another thread', async () => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS.filter(([, { session }]) => session)) {
      const key = keyOf({})
      const agent = await agentAt(url, setting, key, { headers: { 'x-claude-code-agent-id': 'one' } })
      const headers = { 'x-claude-code-agent-id': 'two' }
      const other = createAgent({ url, ...setting, key, reducer: lastSteps(2), headers, task: 'Help with it.' })
      await runShortened(other, 3)
      await agent.step()
      expect.soft(agent.seen.map(numberIn), `${title}\n${tableOf(agent.seen)}`).toEqual(upTo(6))
      expect.soft(other.seen.map(numberIn), `${title}\n${tableOf(other.seen)}`).toEqual(upTo(3))
    }
  })
})

describe('a sub-agent that inherits the history of its parent', () => {
  it('has an iteration for each of its own answers, and its parent goes on with its own count', async () => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({})
      const parent = createAgent({ url, ...setting, key, reducer: whole })
      await runShortened(parent, 4)
      const children = ['first', 'second'].map((name) => {
        const child = createAgent({ url, ...setting, key, reducer: whole })
        child.replace([...parent.history, human(`You are the ${name} helper. Do your part.`)])
        return child
      })
      const agents = [parent, ...children]
      for (const at of [1, 0, 2, 1, 0, 1, 2, 0, 2]) await agents[at]?.step()
      const story = `${title}\n${storyOf(agents)}`
      expect
        .soft(
          children.map(({ seen }) => seen.map(numberIn)),
          story,
        )
        .toEqual([upTo(3), upTo(3)])
      expect.soft(parent.seen.map(numberIn), story).toEqual(upTo(7))
    }
  })
})

describe('of requests that follow one answer with different results', () => {
  it.each([
    ['with their whole histories', whole],
    ['with their newest step alone', lastSteps(1)],
  ])('the first one goes on, and each later one inherits the count and is counted alone, %s', async (_, reducer) => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({})
      const first = createAgent({ url, ...setting, key, reducer })
      await runShortened(first, 3)
      const newest = first.history.findLastIndex((entry) => entry.kind === 'answer')
      const forks = ['one', 'two'].map((name) => {
        const fork = createAgent({ url, ...setting, key, reducer })
        const tail = first.history
          .slice(newest + 1)
          .map((entry) => ({ ...entry, text: `Another result, ${name}.` }) as Entry)
        fork.replace([...first.history.slice(0, newest + 1), ...tail])
        return fork
      })
      const agents = [first, ...forks]
      for (const at of [0, 1, 2, 0, 2, 2, 1, 0, 1]) await agents[at]?.step()
      const story = `${title}\n${storyOf(agents)}`
      expect.soft(first.seen.map(numberIn), story).toEqual(upTo(6))
      for (const { seen } of forks) expect.soft(seen.map(numberIn), story).toEqual([4, 5, 6])
    }
  })
})

describe('two answers to equal requests of one agent', () => {
  it('stand beside each other: both branches are counted alone', async () => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({})
      const agents = [whole, lastSteps(1)].map((reducer) => createAgent({ url, ...setting, key, reducer }))
      const [one, two] = await Promise.all(agents.map((agent) => agent.send([SYSTEM, human('Find out everything.')])))
      for (const [at, seen] of [one, two].entries()) {
        const entry = entryOf(seen?.answer ?? { text: '', calls: [], hasEnded: false, governor: undefined }, 1)
        agents[at]?.replace([SYSTEM, human('Find out everything.'), entry, ...resultsOf(entry)])
      }
      for (const at of [0, 0, 1, 0, 1, 1]) await agents[at]?.step()
      const story = `${title}\n${storyOf(agents)}`
      expect
        .soft(
          agents.map(({ seen }) => seen.map(numberIn)),
          story,
        )
        .toEqual([
          [2, 3, 4],
          [2, 3, 4],
        ])
    }
  })
})
