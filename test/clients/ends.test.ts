/** What frameworks take from the end of a response: why it ended, whether it was cut, and by what id it is kept. */
import Anthropic from '@anthropic-ai/sdk'
import { ChatAnthropic } from '@langchain/anthropic'
import { AIMessage, type AIMessageChunk, type BaseMessage, HumanMessage, ToolMessage } from '@langchain/core/messages'
import { tool } from '@langchain/core/tools'
import { messagesStateReducer } from '@langchain/langgraph'
import { ChatOpenAI } from '@langchain/openai'
import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { ASKED, runMessagesAgent } from '../support/messages.ts'
import type { Script } from '../support/provider.ts'
import { mayCall, readsBlock } from '../support/scripts.ts'
import { AGENTS_SDKS, OPENAI_CLIENTS } from '../support/versions.ts'

const budget = { max_iterations: 2, adaptive: false }
const STREAMS = [false, true]
const CUT = 'It is 42, as far as I'

describe.each(STREAMS)('the reason for which a response ended (stream: %s)', (stream) => {
  const same = { name: 'search', arguments: { query: 'the same' } }
  const other = (number: number) => ({ name: 'search', arguments: { query: `another ${number}` } })

  /** Models that make calls which Governor lets through, blocks in part or as a whole, or removes at a stop. */
  const MODELS: readonly (readonly [string, Script])[] = [
    ['makes new calls', (_, number) => ({ calls: [other(number), other(-number)] })],
    [
      'repeats a call until it is blocked',
      (request) => (readsBlock(request) ? { text: 'I give up.' } : { calls: [same] }),
    ],
    ['repeats a call for ever', () => ({ text: 'Again. ', calls: [same] })],
    ['adds a new call to the repeated one', (_, n) => ({ calls: n < 6 ? [same] : [same, other(n)] })],
    [
      'calls tools even if it may not',
      (request, number) => (mayCall(request) ? { calls: [other(number)] } : { text: 'Well.', calls: [same] }),
    ],
  ]

  it.each(MODELS)('says that tools are called exactly if calls remain, when a model %s', async (_, script) => {
    const config = { budget: { max_iterations: 12, adaptive: false } }
    const chat = await startBoth(script, config)
    const { steps } = await runAgent(chat.url, START, { stream, max: 15 })
    for (const { finish, message } of steps) expect(finish === 'tool_calls').toBe((message.tool_calls ?? []).length > 0)
    expect(steps.at(-1)?.finish).toBe('stop')
    const messages = await startBoth(script, config)
    const run = await runMessagesAgent(messages.url, ASKED, { stream, max: 15 })
    for (const { stop, message } of run.steps)
      expect(stop === 'tool_use').toBe(message.content.some(({ type }) => type === 'tool_use'))
    expect(run.steps.at(-1)?.stop).toBe('end_turn')
  })
})

describe.each(STREAMS)('the last answer of a stopped run that its provider cut (stream: %s)', (stream) => {
  /** Calls tools until it may not, and is cut in its answer. */
  const cutAs =
    (finish: string): Script =>
    (request, number) =>
      mayCall(request) ? { calls: [{ name: 'search', arguments: { query: `q${number}` } }] } : { text: CUT, finish }

  it.each(OPENAI_CLIENTS)('ends the tool loop of $name without an error', async ({ OpenAI }) => {
    const { url } = await startBoth(cutAs('length'), { budget })
    const client = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
    const called = {
      name: 'search',
      description: 'Search',
      parameters: { type: 'object', properties: {} },
      function: () => 'found',
    }
    const params = {
      model: 'm',
      messages: [{ role: 'user' as const, content: 'Go.' }],
      tools: [{ type: 'function' as const, function: called }],
    }
    const runner = stream
      ? client.chat.completions.runTools({ ...params, stream })
      : client.chat.completions.runTools(params)
    const last = (await runner.finalChatCompletion()) as { governor?: object; choices: { finish_reason: string }[] }
    expect(await runner.finalContent()).toBe(CUT)
    expect(last.choices[0]?.finish_reason).toBe('stop')
    if (!stream) expect(last.governor).toMatchObject({ terminal_state: 'tool_limit_reached', truncated: true })
  })

  it.each(AGENTS_SDKS.flatMap((sdk) => [true, false].map((useResponses) => ({ ...sdk, useResponses }))))(
    'ends an agent of $name without an error (Responses: $useResponses)',
    async ({ agents, OpenAI, useResponses }) => {
      const { url } = await startBoth(cutAs(useResponses ? 'incomplete' : 'length'), { budget })
      const client = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
      const modelProvider = new agents.OpenAIProvider({ openAIClient: client, useResponses })
      const runner = new agents.Runner({ modelProvider, tracingDisabled: true })
      const parameters = z.object({ query: z.string() })
      const tools = [agents.tool({ name: 'search', description: 'Search', parameters, execute: async () => 'found' })]
      const agent = new agents.Agent({ name: 'A', model: 'gpt-4o', tools })
      const result = stream ? await runner.run(agent, 'Go.', { stream }) : await runner.run(agent, 'Go.')
      if ('completed' in result) await result.completed
      expect(result.finalOutput).toBe(CUT)
    },
  )

  it('ends the tool runner of the Anthropic SDK as a whole answer does', async () => {
    const { url } = await startBoth(cutAs('max_tokens'), { budget })
    const runner = new Anthropic({ apiKey: 'k', baseURL: url, maxRetries: 0 }).beta.messages.toolRunner({
      model: 'claude-test',
      max_tokens: 100,
      messages: [{ role: 'user', content: 'Go.' }],
      tools: [
        { name: 'search', input_schema: { type: 'object' }, run: () => 'found', parse: (input: unknown) => input },
      ],
      stream,
      thread: false,
    })
    const last = await runner.runUntilDone()
    expect(last.content).toMatchObject([{ type: 'text', text: CUT }])
    expect(last.stop_reason).toBe('end_turn')
  })
})

const CHATS = [
  {
    api: 'Chat Completions',
    chat: (url: string) =>
      new ChatOpenAI({ model: 'm', apiKey: 'k', maxRetries: 0, configuration: { baseURL: `${url}/v1` } }),
  },
  {
    api: 'Responses',
    chat: (url: string) =>
      new ChatOpenAI({
        model: 'm',
        apiKey: 'k',
        maxRetries: 0,
        useResponsesApi: true,
        zdrEnabled: true,
        configuration: { baseURL: `${url}/v1` },
      }),
  },
  {
    api: 'Messages',
    chat: (url: string) =>
      new ChatAnthropic({ model: 'claude-test', apiKey: 'k', maxRetries: 0, anthropicApiUrl: url }),
  },
].flatMap((one) => STREAMS.map((stream) => ({ ...one, stream })))

describe.each(CHATS)('the recorded answer of a stopped run over $api (stream: $stream)', ({ chat, stream }) => {
  it('is a message of its own in the history of LangGraph each time that it is sent', async () => {
    const { url, provider } = await startBoth(() => ({ text: 'It is 42.' }), {
      budget: { max_iterations: 1, adaptive: false },
    })
    const bound = chat(url).bindTools([tool(async () => 'found', { name: 'search', schema: z.object({}) })])
    const asked: BaseMessage[] = [
      new HumanMessage('Go.'),
      new AIMessage({ content: '', tool_calls: [{ id: 'c1', name: 'search', args: {} }] }),
      new ToolMessage({ tool_call_id: 'c1', content: 'found' }),
    ]
    let history = messagesStateReducer([], asked)
    for (let time = 1; time <= 3; time++) {
      let answer: AIMessageChunk | undefined = stream ? undefined : await bound.invoke(asked)
      if (stream) for await (const chunk of await bound.stream(asked)) answer = answer?.concat(chunk) ?? chunk
      history = messagesStateReducer(history, answer ? [answer] : [])
      expect(history).toHaveLength(asked.length + time)
    }
    expect(provider.requests).toHaveLength(1)
  })
})
