/** Only a human begins a run: what a harness keeps between results and the next answer does not. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { clearedResults, humansAndLast, lastSteps, promptAndLast, type Reducer, whole } from '../support/reducers.ts'
import {
  type Agent,
  createAgent,
  human,
  keyOf,
  note,
  numberIn,
  runShortened,
  SETTINGS,
  searcher,
  tableOf,
  verdictsOf,
} from '../support/shortened-agent.ts'
import type { Entry } from '../support/transcripts.ts'

/** What harnesses say after the results of an answer, and keep. */
const SAID: Record<string, (number: number) => readonly Entry[]> = {
  'the same words': () => [note('Go on with the next step of the plan.')],
  'other words each time': (number) => [note(`Status: ${number} files were read, and ${100 - number} % is left.`)],
  'a picture with a line of text': (number) => [
    { kind: 'note', text: `The screen after action ${number}.`, picture: true },
  ],
  'a list of tasks': (number) => [
    note(`<todos>\n- [${number > 2 ? 'x' : ' '}] read\n- [ ] write\n</todos>\nUpdate your list of tasks.`),
  ],
  'other words each time, and a reminder after them': (number) => [
    note(`${number} of 100 steps are done. Go on.`),
    note('<system-reminder>Keep your list of tasks.</system-reminder>'),
  ],
  'two messages': (number) => [note(`Files open: ${number}.`), note('Do not ask the user.')],
}

/** From this request on such messages are known to be the harness's. */
const FROM = 4
const LIMIT = 6
/** A looper of which the guard knows nothing before that ends within so many requests more than one whose words are few. */
const LATER = FROM - 1

const KEEPING: readonly Reducer[] = [whole, lastSteps(3), humansAndLast(2), promptAndLast(3), clearedResults(1)]

describe.each(Object.entries(SAID))('a harness that says, after the results of each answer, %s', (_title, after) => {
  it('is no human from the third such step on, and the run ends at its limit', async () => {
    const { url, model } = await startBeforeModel({ budget: { max_iterations: LIMIT } })
    for (const [title, setting] of SETTINGS) {
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: whole, after })
      const seen = await runShortened(agent, LIMIT + 4)
      const story = `${title}\n${tableOf(seen)}`
      const late = seen.slice(FROM - 1).map(({ iteration }) => iteration)
      expect.soft(late, story).toEqual(['4/6', '5/6', '6/6', '6/6'])
      expect.soft(seen.at(-1)?.reason, story).toBe('max_iterations')
    }
    expect(model.requests.length).toBeGreaterThan(0)
  })

  it('does not hide a loop, although its history is cut', async () => {
    const { url } = await startBeforeModel({})
    const check = fc.asyncProperty(
      fc.constantFrom(...SETTINGS),
      fc.constantFrom(...KEEPING),
      async ([title, setting], reducer) => {
        const options = { url, ...setting, key: keyOf({ loops: true }) }
        const control = verdictsOf(
          await runShortened(createAgent({ ...options, session: 'control', reducer: whole }), 8),
        )
        const agent = createAgent({ ...options, key: keyOf({ loops: true }), reducer, after })
        const verdicts = verdictsOf(await runShortened(agent, 8 + LATER))
        const story = `${title}, ${reducer.name}\n${tableOf(agent.seen)}`
        const firstOf = (all: readonly string[], what: string) => all.findIndex((one) => one.includes(what))
        for (const what of ['warn', 'in place']) {
          const at = firstOf(verdicts, what)
          expect(at, `${what}: ${story}`).toBeGreaterThan(0)
          expect(at, `${what}: ${story}`).toBeLessThanOrEqual(firstOf(control, what) + LATER)
        }
      },
    )
    await fc.assert(check, { numRuns: 4, seed: 38 })
  })
})

/** Returns a history in which what a harness says stands before the results of an answer, or behind the first of them. */
const beforeResults =
  (isFirst: boolean) =>
  (history: readonly Entry[]): readonly Entry[] => {
    const moved = [...history]
    for (const [at, entry] of history.entries()) {
      if (entry.kind !== 'note') continue
      const answer = moved.slice(0, at).findLastIndex(({ kind }) => kind === 'answer')
      moved.splice(at, 1)
      moved.splice(answer + (isFirst ? 1 : 2), 0, entry)
    }
    return moved
  }

describe.each([
  ['before', true],
  ['between', false],
])('a harness that says something %s the results of each answer', (_title, isFirst) => {
  it('is no human from the third such step on, and the run ends at its limit', async () => {
    const { url } = await startBeforeModel({ budget: { max_iterations: LIMIT } })
    const after = (number: number) => [note(`The screen after action ${number}.`)]
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({ calls: 2 })
      const agent = createAgent({ url, ...setting, key, reducer: whole, after, form: beforeResults(isFirst) })
      const seen = await runShortened(agent, LIMIT + 4)
      const story = `${title}\n${tableOf(seen)}`
      expect
        .soft(
          seen.slice(FROM - 1).map(({ iteration }) => iteration),
          story,
        )
        .toEqual(['4/6', '5/6', '6/6', '6/6'])
      expect.soft(seen.at(-1)?.reason, story).toBe('max_iterations')
    }
  })
})

describe('a human', () => {
  it('who interrupts once begins a run, and so does one who interrupts again after some steps', async () => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: whole })
      for (let at = 0; at < 3; at++) await agent.step()
      agent.say(human('Stop that, and look at the other file.'))
      for (let at = 0; at < 4; at++) await agent.step()
      agent.say(human('And now write it down.'))
      for (let at = 0; at < 5; at++) await agent.step()
      expect
        .soft(agent.seen.map(numberIn), `${title}\n${tableOf(agent.seen)}`)
        .toEqual([1, 2, 3, 1, 2, 3, 4, 1, 2, 3, 4, 5])
    }
  })

  it('begins a run also where a harness speaks in every step', async () => {
    const { url } = await startBeforeModel({})
    const after = (number: number) => [note(`Status: ${number} files were read.`)]
    for (const [title, setting] of SETTINGS) {
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: whole, after })
      for (let at = 0; at < 5; at++) await agent.step()
      agent.say({ kind: 'answer', text: 'It is done.', calls: [] }, human('Now do the other thing.'))
      await agent.step()
      expect.soft(numberIn(agent.seen.at(-1) as never), `${title}\n${tableOf(agent.seen)}`).toBe(1)
    }
  })
})

describe('a request that says who begins it', () => {
  /** Lets an agent make three steps, then send a user message under a header, and two steps more. */
  const runWith = async (url: string, setting: (typeof SETTINGS)[number][1], initiator: string): Promise<Agent> => {
    const headers: Record<string, string> = {}
    const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: whole, headers })
    for (let at = 0; at < 3; at++) await agent.step()
    headers['x-initiator'] = initiator
    agent.say(note('Please go on with your work.'))
    await agent.step()
    headers['x-initiator'] = 'agent'
    for (let at = 0; at < 2; at++) await agent.step()
    return agent
  }

  it.each([
    ['agent', [1, 2, 3, 4, 5, 6]],
    ['user', [1, 2, 3, 1, 2, 3]],
  ])('(x-initiator: %s) begins a run only for a user', async (initiator, expected) => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const agent = await runWith(url, setting, initiator)
      expect.soft(agent.seen.map(numberIn), `${title}\n${tableOf(agent.seen)}`).toEqual(expected)
    }
  })
})

describe('after a stop', () => {
  const LENGTH = { chat: 'length', messages: 'max_tokens', responses: 'incomplete' } as const
  /** Lets an agent run into a limit of 2; `finish`: how the model's last answer ends. Then somebody speaks. */
  const speakAfterStop = async (isCut: boolean, words: Entry) => {
    const { url, model } = await startBeforeModel({ budget: { max_iterations: 2 } }, async (request) => ({
      ...(await searcher(request)),
      ...(request.mustAnswer && isCut ? { finish: LENGTH[request.dialect] } : {}),
    }))
    const agents: (readonly [string, Agent, () => number])[] = []
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({})
      const agent = createAgent({ url, ...setting, key, reducer: whole, keepsBroken: true })
      await runShortened(agent, 4)
      for (let at = 0; at < 3; at++) {
        agent.say(words)
        await runShortened(agent, agent.seen.length + 3)
      }
      const calls = () => model.requests.filter((request) => request.key === key && !request.mustAnswer).length
      agents.push([title, agent, calls])
    }
    return agents
  }

  it("whose answer was cut, a harness's `continue` begins no run", async () => {
    for (const [title, agent, calls] of await speakAfterStop(true, note('Continue from where you left off.')))
      expect.soft(calls(), `${title}\n${tableOf(agent.seen)}`).toBe(2)
  })

  it('whose answer is whole, a human begins one', async () => {
    for (const [title, agent, calls] of await speakAfterStop(false, human('Now do the other thing.')))
      expect.soft(calls(), `${title}\n${tableOf(agent.seen)}`).toBeGreaterThan(2)
  })
})
