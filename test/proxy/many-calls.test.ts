/** Answers with more calls than are remembered by their ids. */
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { whole } from '../support/reducers.ts'
import { createAgent, keyOf, runShortened, SETTINGS, tableOf, verdictsOf } from '../support/shortened-agent.ts'

describe.each([2, 17, 40, 100])('an agent whose answers have %i calls each', (calls) => {
  it('ends as soon as its tool calls have reached their limit', async () => {
    const { url } = await startBeforeModel({ budget: { run: { max_tool_calls: 3 * calls } } })
    for (const [title, setting] of SETTINGS) {
      const seen = await runShortened(createAgent({ url, ...setting, key: keyOf({ calls }), reducer: whole }), 8)
      const story = `${title}\n${tableOf(seen)}`
      expect
        .soft(
          seen.map(({ reason }) => reason),
          story,
        )
        .toEqual([undefined, undefined, undefined, 'max_tool_calls'])
    }
  })

  it('ends in a loop at its seventh request, like one with a single call', async () => {
    const { url } = await startBeforeModel({})
    for (const [title, setting] of SETTINGS) {
      const key = keyOf({ calls, loops: true, isStubborn: true })
      const seen = await runShortened(createAgent({ url, ...setting, key, reducer: whole }), 12)
      const story = `${title}\n${tableOf(seen)}`
      const told = verdictsOf(seen).map((verdict) => verdict.split(' ')[0])
      expect.soft(told.slice(0, 6), story).toEqual(['allow', 'allow', 'allow', 'warn', 'allow', 'warn'])
      expect.soft(seen[6]?.reason, story).toBe('loop_guard')
    }
  })
})

it('tells the model how often the responses made a call that it was not warned about by itself', async () => {
  const { url, model } = await startBeforeModel({})
  const key = keyOf({ calls: 2, loops: true, isStubborn: true })
  await runShortened(createAgent({ url, dialect: 'chat', stream: false, session: 'one', key, reducer: whole }), 8)
  const texts = model.requests.map(({ text }) => text).filter((text) => text.includes('[LOOP GUARD] Blocked'))
  expect(texts.length).toBeGreaterThan(0)
  for (const text of texts)
    for (const [, times] of text.matchAll(/was called (\d+) times/g)) expect(Number(times)).toBeGreaterThanOrEqual(4)
})
