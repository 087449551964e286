import { LLMock } from '@copilotkit/aimock'
import type OpenAI from 'openai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { OPENAI_CLIENTS } from '../support/versions.ts'

/** An independent implementation of the provider's side: a tool call per request until none may be made. */
async function startAimock(): Promise<LLMock> {
  const mock = new LLMock({ port: 0, logLevel: 'silent' })
  const mayCall = (request: { tools?: unknown; tool_choice?: unknown }) =>
    request.tools !== undefined && request.tool_choice !== 'none'
  mock.on({ predicate: mayCall }, { toolCalls: [{ name: 'search', arguments: { query: 'more' } }] })
  mock.on({ predicate: (request) => !mayCall(request) }, { content: 'All I found.' })
  await mock.start()
  onTestFinished(() => mock.stop())
  return mock
}

const tools = [
  {
    type: 'function' as const,
    function: {
      name: 'search',
      description: 'Search',
      function: () => 'found',
      parameters: { type: 'object', properties: { query: { type: 'string' } } },
    },
  },
]

describe.each(OPENAI_CLIENTS.flatMap((client) => [false, true].map((stream) => ({ ...client, stream }))))(
  'a run of $name against an independent provider (stream: $stream)',
  ({ OpenAI: Client, stream }) => {
    it('is stopped with an answer that says so', async () => {
      const mock = await startAimock()
      const { url } = await startGovernor(mock.url, { budget: { max_iterations: 6 } })
      const client = new Client({ apiKey: 'sk-test', baseURL: `${url}/v1`, maxRetries: 0 })
      const params = { model: 'gpt-4o', messages: [{ role: 'user' as const, content: 'Find out.' }], tools }
      const runner = stream
        ? client.chat.completions.runTools({ ...params, stream: true }, { maxChatCompletions: 20 })
        : client.chat.completions.runTools(params, { maxChatCompletions: 20 })
      const last = (await runner.finalChatCompletion()) as OpenAI.ChatCompletion & { governor?: object }
      expect(last.choices[0]?.message.content).toBe('All I found.')
      expect(last.choices[0]?.finish_reason).toBe('stop')
      expect(runner.allChatCompletions()).toHaveLength(7)
      expect(mock.getRequests()).toHaveLength(7)
      if (!stream) expect(last.governor).toMatchObject({ terminal_state: 'tool_limit_reached', has_final_answer: true })
    })
  },
)
