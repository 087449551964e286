import { describe, expect, it } from 'vitest'
import { ask } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'

const CALL = { id: 'call_1', type: 'function', function: { name: 'search', arguments: '{}' } }
const CAUTION =
  '[BUDGET: Iteration 14/20. You have 6 iterations left. Start consolidating your work and prepare to provide a final response.]'
const WARNING =
  '[BUDGET: Iteration 18/20. You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]'

describe.each([{ stream: false }, { stream: true }])(
  'a run that does not end by itself (stream: $stream)',
  ({ stream }) => {
    it('is cautioned, warned, and stopped with an answer at request 21 of 20', async () => {
      const { url, provider } = await startBoth(runaway(), { budget: { max_iterations: 20 } })
      const { steps } = await runAgent(url, START, { stream })
      expect(steps).toHaveLength(21)
      expect(steps.map((step) => step.headers.get('x-governor-iteration'))).toEqual([
        ...Array.from({ length: 20 }, (_, at) => `${at + 1}/20`),
        '20/20',
      ])
      expect(steps.map((step) => step.headers.get('x-governor-verdict'))).toEqual([
        ...Array(13).fill('allow'),
        ...Array(7).fill('warn'),
        'stop',
      ])
      const lastText = (at: number) => provider.requests[at]?.json.messages.at(-1)?.content
      expect(lastText(12)).toBe('the result of search')
      expect(lastText(13)).toBe(`the result of search\n\n${CAUTION}`)
      expect(lastText(17)).toBe(`the result of search\n\n${WARNING}`)
      const last = steps.at(-1)
      expect(last?.message.content).toBe('This is what I found so far.')
      expect(last?.finish).toBe('stop')
      expect(last?.governor).toEqual({
        terminal_state: 'tool_limit_reached',
        terminal_reason: 'max_iterations',
        has_final_answer: true,
        budget_used: 20,
        budget_max: 20,
        scope: 'run',
        session: last?.headers.get('x-governor-session'),
      })
      expect(last?.headers.get('x-governor-terminal-state')).toBe('tool_limit_reached')
      expect(last?.headers.get('x-governor-terminal-reason')).toBe('max_iterations')
    })
  },
)

it('a conversation of several megabytes reaches the provider complete, with its notice and the right content length', async () => {
  const { url, provider } = await startBoth(() => ({ text: 'Done.' }), { budget: { announce: 'never' } })
  const content = `${'päge '.repeat(400_000)}end`
  const messages = [
    ...START,
    { role: 'assistant', content: null, tool_calls: [CALL] },
    { role: 'tool', tool_call_id: 'call_1', content },
  ]
  const headers = { 'x-governor-max-iterations': '2' }
  const step = await callModel(url, messages, { headers })
  expect(step.headers.get('x-governor-verdict')).toBe('warn')
  const [received] = provider.requests
  expect(received?.json.messages.slice(0, -1)).toEqual(messages.slice(0, -1))
  expect(String(received?.json.messages.at(-1)?.content)).toMatch(/^(päge ){400000}end\n\n\[BUDGET: Iteration 2\/2\./)
  expect(received?.header('content-length')).toBe(String(received?.body.length))
  expect(received?.header('transfer-encoding')).toBeUndefined()
})

it('a run that begins after an answer has its tool calls whole, and a session counts each call once', async () => {
  const { url } = await startBoth(runaway(), { budget: { run: { max_tool_calls: 3 } } })
  for (const headers of [{ 'x-governor-session': 'named' }, {}] as const) {
    let messages = [...START, { role: 'user', content: JSON.stringify(headers) }]
    for (const text of ['One more task.', 'And another one.', 'The last one.']) {
      const run = await runAgent(url, messages, { headers })
      expect(run.steps.map(({ message }) => message.tool_calls?.length ?? 0)).toEqual([1, 1, 1, 0])
      messages = [...run.messages, { role: 'user', content: text }]
    }
  }
  const { json } = await ask(url, '/governor/sessions')
  expect(json).toMatchObject({ sessions: [{ tool_calls: 9 }, { tool_calls: 9 }] })
})
