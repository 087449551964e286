/** A provider's own compaction is a compaction: a history from the newest one on is the same run. */
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { whole } from '../support/reducers.ts'
import {
  type Agent,
  createAgent,
  human,
  keyOf,
  type Model,
  note,
  numberIn,
  runShortened,
  SETTINGS,
  searcher,
  tableOf,
  verdictsOf,
} from '../support/shortened-agent.ts'
import { type Entry, FORMS } from '../support/transcripts.ts'

const LIMIT = 10
const COMPACTING = SETTINGS.filter(([, { dialect }]) => dialect !== 'chat')

/** A model that looks on, and compacts the history in each fourth of its answers. */
const compacting: Model = async (request) => {
  const answer = await searcher(request)
  if (request.mustAnswer || request.number % 4 !== 3) return answer
  const summary = `What was done before step ${request.number}.`
  const before = [{ type: 'compaction', id: `cmp_${request.number}`, encrypted_content: summary }]
  return { ...answer, before, blocks: [{ type: 'compaction', content: summary }] }
}

/** What the APIs allow to send: all from the newest compaction on. `keepsHuman`: after what the human said. */
const fromCompaction =
  (keepsHuman: boolean) =>
  (history: readonly Entry[]): readonly Entry[] => {
    const at = history.findLastIndex((entry) => entry.kind === 'answer' && entry.compaction !== undefined)
    if (at < 0) return history
    const kept = history.slice(0, at).filter(({ kind }) => kind === 'system' || (keepsHuman && kind === 'human'))
    return [...kept, ...history.slice(at)]
  }

describe.each([
  ['without what the human said', false],
  ['with what the human said', true],
])('a history from the newest compaction on, %s,', (_, keepsHuman) => {
  const form = fromCompaction(keepsHuman)

  it('is the same run: request k is iteration k, and the limit stops the next one', async () => {
    const { url } = await startBeforeModel({ budget: { max_iterations: LIMIT } }, compacting)
    for (const [title, setting] of COMPACTING) {
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: whole, form })
      const seen = await runShortened(agent, LIMIT + 3)
      const expected = [...Array.from({ length: LIMIT }, (_one, at) => at + 1), LIMIT]
      const story = `${title}\n${tableOf(seen)}`
      expect.soft(seen.map(numberIn), story).toEqual(expected)
      expect.soft(seen.at(-1)?.reason, story).toBe('max_iterations')
    }
  })

  it('does not hide a loop', async () => {
    let number = 0
    const { url } = await startBeforeModel({}, (request) => compacting({ ...request, number: ++number }))
    for (const [title, setting] of COMPACTING) {
      number = 0
      const options = { url, ...setting, reducer: whole }
      const control = await runShortened(
        createAgent({ ...options, key: keyOf({ loops: true }), session: 'control' }),
        8,
      )
      number = 0
      const seen = await runShortened(createAgent({ ...options, key: keyOf({ loops: true }), form }), 8)
      expect(verdictsOf(control).join(), tableOf(control)).toContain('in place')
      expect.soft(verdictsOf(seen), `${title}\n${tableOf(seen)}`).toEqual(verdictsOf(control))
    }
  })

  it('begins a run when a human speaks', async () => {
    const { url } = await startBeforeModel({}, compacting)
    for (const [title, setting] of COMPACTING) {
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: whole, form })
      for (let at = 0; at < 5; at++) await agent.step()
      agent.say({ kind: 'answer', text: 'It is done.', calls: [] }, human('Now do the other thing.'))
      for (let at = 0; at < 5; at++) await agent.step()
      const after = agent.seen.slice(5).map(numberIn)
      expect.soft(after, `${title}\n${tableOf(agent.seen)}`).toEqual([1, 2, 3, 4, 5])
    }
  })
})

describe('a compaction on its own', () => {
  /** Puts a compaction in place of the history of an agent, in the middle of its run. */
  const compact = (agent: Agent, compaction: object, keeps: (entry: Entry) => boolean) => {
    const kept = agent.history.filter((entry) => entry.kind === 'system' || keeps(entry))
    agent.replace([...kept, { kind: 'answer', text: '', calls: [], compaction }])
  }

  it('that a client asks for at /responses/compact keeps the count of the run', async () => {
    const item = { type: 'compaction', id: 'cmp_1', encrypted_content: 'What was done.' }
    const { url } = await startBeforeModel({}, (request) => {
      if (!request.path.endsWith('/compact')) return searcher(request)
      const output = [{ ...item, id: `cmp_${request.number}`, encrypted_content: `What ${request.number} did.` }]
      return { body: { id: `resp_${request.number}`, object: 'response.compaction', created_at: 1, output, usage: {} } }
    })
    for (const [title, setting] of SETTINGS.filter(([, { dialect }]) => dialect === 'responses')) {
      const key = keyOf({})
      const agent = createAgent({ url, ...setting, key, reducer: whole })
      for (let round = 0; round < 3; round++) {
        for (let at = 0; at < 3; at++) await agent.step()
        const { input, model } = FORMS.responses.body(agent.history)
        const response = await fetch(`${url}/v1/responses/compact`, {
          method: 'POST',
          headers: {
            'content-type': 'application/json',
            authorization: `Bearer ${key}`,
            ...(setting.session ? { 'x-governor-session': setting.session } : {}),
          },
          body: JSON.stringify({ model, input }),
        })
        const { output } = (await response.json()) as { output: [object] }
        compact(agent, output[0], ({ kind }) => kind === 'human')
      }
      const numbers = agent.seen.map(numberIn)
      expect.soft(numbers, `${title}\n${tableOf(agent.seen)}`).toEqual([1, 2, 3, 4, 5, 6, 7, 8, 9])
    }
  })

  it('never lowers the count where it is an answer of its own, with a pause after it', async () => {
    const { url } = await startBeforeModel({}, async (request) => {
      const answer = await searcher(request)
      if (request.mustAnswer || request.number % 4 !== 3) return answer
      return { finish: 'compaction', blocks: [{ type: 'compaction', content: `What ${request.number} did.` }] }
    })
    for (const [title, setting] of SETTINGS.filter(([, { dialect }]) => dialect === 'messages')) {
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: whole, form: fromCompaction(false) })
      for (let at = 0; at < 9; at++) await agent.step()
      const numbers = agent.seen.map(numberIn)
      const story = `${title}\n${tableOf(agent.seen)}`
      expect.soft(numbers, story).toEqual(numbers.toSorted((a, b) => a - b))
      expect.soft(numbers.at(-1), story).toBeGreaterThanOrEqual(7)
    }
  })
})

describe('an agent whose client names its thread, and whose harness asks for summaries in words of its own,', () => {
  const ASKED = 'Write down what was done so far.'
  const model: Model = (request) => (request.text.includes(ASKED) ? { text: 'Much was done.' } : searcher(request))

  it('gets no more than its limit', async () => {
    const { url } = await startBeforeModel({ budget: { max_iterations: LIMIT } }, model)
    for (const [title, setting] of SETTINGS) {
      const headers = { 'thread-id': 'one' }
      const agent = createAgent({ url, ...setting, key: keyOf({}), reducer: whole, headers })
      for (let at = 1; at <= LIMIT && agent.seen.at(-1)?.reason === undefined; at++) {
        await agent.step()
        if (at % 3 > 0) continue
        const [system, task] = agent.history
        const newest = agent.history.findLastIndex(({ kind }) => kind === 'answer')
        await agent.send([...agent.history, note(ASKED)])
        if (system && task) agent.replace([system, task, note('Much was done.'), ...agent.history.slice(newest)])
      }
      const story = `${title}\n${tableOf(agent.seen)}`
      // Nothing tells a request for a summary from another step.
      expect.soft(agent.seen.map(numberIn), story).toEqual([1, 2, 3, 5, 6, 7, 9, 10, 10])
      expect.soft(agent.seen.at(-1)?.reason, story).toBe('max_iterations')
    }
  })
})
