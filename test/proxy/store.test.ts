import { describe, expect, it } from 'vitest'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'
import { failingStore } from '../support/stores.ts'

const config = { budget: { max_iterations: 4 } }

describe.each([false, true])('a store that fails (stream: %s)', (stream) => {
  it('costs no request, and the run is stopped by its transcript alone', async () => {
    const { url, events } = await startBoth(runaway(), config, { store: failingStore(() => true) })
    const { steps, messages } = await runAgent(url, START, { stream })
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration'))).toEqual(['1/4', '2/4', '3/4', '4/4', '4/4'])
    expect(steps.at(-1)?.governor).toMatchObject({
      terminal_reason: 'max_iterations',
      has_final_answer: true,
    })
    expect(events).toContainEqual({ kind: 'failed_open', reason: 'store' })
    const again = await callModel(url, messages.slice(0, -1), { stream })
    expect(again.governor).toMatchObject({ terminal_reason: 'max_iterations' })
  })

  it('that fails now and then loses nothing that the transcript shows', async () => {
    for (const every of [2, 3]) {
      const { url } = await startBoth(runaway(), config, {
        store: failingStore((call) => call % every === 0),
      })
      const { steps } = await runAgent(url, START, { stream })
      expect(steps).toHaveLength(5)
      expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations' })
    }
  })
})
