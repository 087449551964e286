/** One last answer for a run, whichever replicas its requests reach. */
import { expect, it, onTestFinished } from 'vitest'
import type { Store } from '../../src/store/store.ts'
import { callModel, START } from '../support/agent.ts'
import { startGovernor } from '../support/governor.ts'
import { type ChatMessage, startProvider } from '../support/provider.ts'
import { createStore } from '../support/stores.ts'

const headers = { 'x-governor-session': 'one' }

/** A second step whose calls ran side by side: each request shows the task and one result. */
function stepOf(number: number): ChatMessage[] {
  const id = `call_${number}`
  const call = { id, type: 'function', function: { name: 'search', arguments: `{"query":"${number}"}` } }
  const made = { role: 'assistant', content: null, tool_calls: [call] }
  return [...START, made, { role: 'tool', tool_call_id: id, content: `result ${number}` }]
}

it('a request that was to be stopped gets the answer that another replica got meanwhile', async () => {
  const provider = await startProvider(() => ({ text: 'This is what I found so far.' }))
  onTestFinished(() => provider.close())
  const store = createStore()
  let isHeld = () => {}
  const held = new Promise<void>((resolve) => {
    isHeld = resolve
  })
  let open = () => {}
  const gate = new Promise<void>((resolve) => {
    open = resolve
  })
  // Its request is evaluated, and comes to ask for the last answer only when the gate is open.
  const slow: Store = {
    ...store,
    async updateValue(kind, key, change) {
      if (kind.name === 'stop_claims') {
        isHeld()
        await gate
      }
      return store.updateValue(kind, key, change)
    },
  }
  const config = { budget: { max_iterations: 1 } }
  const first = await startGovernor(provider.url, config, { store })
  const second = await startGovernor(provider.url, config, { store: slow })
  const late = callModel(second.url, stepOf(1), { headers })
  await held
  const early = await callModel(first.url, stepOf(1), { headers })
  open()
  const answers = [early, await late]
  expect(answers.map(({ governor }) => governor?.['has_final_answer'])).toEqual([true, true])
  expect(provider.requests).toHaveLength(1)
})
