import { expect, it } from 'vitest'
import { runAgent, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'

it.each(['inner', 'outer'])(
  'a loop that the %s one of two chained Governors blocks ends with one answer',
  async (by) => {
    const guard = (name: string) => ({ loop_guard: { max_warnings_before_block: name === by ? 1 : 2 } })
    const same = { calls: [{ name: 'search', arguments: '{"query":"the same"}' }] }
    const inner = await startBoth(
      ({ json }) => (json.tool_choice === 'none' ? { text: 'I could not find it.' } : same),
      guard('inner'),
    )
    const outer = await startGovernor(inner.url, guard('outer'))
    const { steps } = await runAgent(outer.url, START, { max: 20 })
    expect(steps.at(-1)?.message.content).toBe('I could not find it.')
    expect(steps.at(-1)?.governor).toMatchObject({ terminal_state: 'loop_detected', has_final_answer: true })
    expect(steps.length).toBeLessThan(9)
  },
)

it('the notices of a Governor use up no budget of a second Governor behind it', async () => {
  const budget = { max_iterations: 6 }
  const inner = await startBoth(runaway(), { budget })
  const outer = await startGovernor(inner.url, { budget })
  const { steps } = await runAgent(outer.url, START, { max: 10 })
  expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations', budget_used: 6 })
  expect(inner.events.some((event) => event.kind === 'notice' && event.channel === 'user')).toBe(true)
  const iterations = inner.events.flatMap((event) => (event.kind === 'request_ended' ? [event.iteration] : []))
  expect(iterations).toEqual([1, 2, 3, 4, 5, 6, 6])
})
