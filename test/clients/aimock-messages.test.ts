import Anthropic from '@anthropic-ai/sdk'
import { LLMock } from '@copilotkit/aimock'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'

/** An independent implementation of the provider's side: a tool call per request until none may be made. */
async function startAimock(): Promise<LLMock> {
  const mock = new LLMock({ port: 0, logLevel: 'silent' })
  const noticeSent = (request: { messages: readonly unknown[] }) =>
    JSON.stringify(request.messages).includes('maximum number of tool-calling iterations')
  mock.on(
    { predicate: (request) => !noticeSent(request) },
    { toolCalls: [{ name: 'search', arguments: { query: 'more' } }] },
  )
  mock.on({ predicate: noticeSent }, { content: 'All I found.' })
  await mock.start()
  onTestFinished(() => mock.stop())
  return mock
}

describe.each([{ stream: false }, { stream: true }])(
  'a run against an independent provider of Messages (stream: $stream)',
  ({ stream }) => {
    it('is stopped with an answer that says so', async () => {
      const mock = await startAimock()
      const { url } = await startGovernor(mock.url, { budget: { max_iterations: 6 } })
      const client = new Anthropic({ apiKey: 'sk-test', baseURL: url, maxRetries: 0 })
      const runner = client.beta.messages.toolRunner({
        model: 'claude-test',
        max_tokens: 1000,
        messages: [{ role: 'user', content: 'Find out.' }],
        tools: [
          {
            name: 'search',
            input_schema: { type: 'object', properties: { query: { type: 'string' } } },
            run: () => 'found',
            parse: (input: unknown) => input,
          },
        ],
        max_iterations: 20,
        stream,
        thread: false,
      })
      const last = await runner.runUntilDone()
      expect(last.content).toMatchObject([{ type: 'text', text: 'All I found.' }])
      expect(last.stop_reason).toBe('end_turn')
      expect(mock.getRequests()).toHaveLength(7)
      if (!stream) expect(last).toMatchObject({ governor: { terminal_state: 'tool_limit_reached' } })
    })
  },
)
