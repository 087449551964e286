/** Agents that shorten their history, with the means of their framework: their runs are counted and guarded as with a whole one. */
import Anthropic from '@anthropic-ai/sdk'
import { ChatAnthropic } from '@langchain/anthropic'
import { type BaseMessage, trimMessages } from '@langchain/core/messages'
import { createReactAgent } from '@langchain/langgraph/prebuilt'
import { ChatOpenAI } from '@langchain/openai'
import type { AgentInputItem } from '@openai/agents'
import type { LanguageModel, ModelMessage } from 'ai'
import { createAgent, createMiddleware, tool as langTool, summarizationMiddleware } from 'langchain'
import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { listed } from '../support/admin.ts'
import { startBoth } from '../support/governor.ts'
import { mayCall } from '../support/scripts.ts'
import { AGENTS_SDKS, type AgentsSdk, AI_SDKS, type AiSdk } from '../support/versions.ts'

/** How a client reaches Governor. */
interface Access {
  readonly url: string
  readonly fetch: typeof fetch
  readonly headers: Record<string, string>
}

/** Runs to its end with one tool, `search`, at most `LIMIT` requests. */
type Run = (access: Access, stream: boolean) => Promise<unknown>

interface Case {
  readonly framework: string
  readonly window: string
  readonly run: Run
}

const QUESTION = 'Find out.'
const LIMIT = 12
const found = () => 'nothing was found'
const schema = z.object({ query: z.string() })

// The AI SDK.

type Prune = (sdk: AiSdk, messages: ModelMessage[]) => ModelMessage[]

const AI_WINDOWS: readonly (readonly [string, Prune])[] = [
  ['its whole history', (_, messages) => messages],
  ['pruneMessages', ({ ai }, messages) => ai.pruneMessages({ messages, toolCalls: 'before-last-2-messages' })],
  ['the prompt and the last two steps', (_, [prompt, ...others]) => (prompt ? [prompt, ...others.slice(-4)] : [])],
  ['the last step alone', (_, messages) => messages.slice(-2)],
]

const AI_MODELS: readonly (readonly [string, (sdk: AiSdk, access: Access) => LanguageModel])[] = [
  ['chat', (sdk, { url, ...more }) => sdk.createOpenAI({ apiKey: 'k', baseURL: `${url}/v1`, ...more }).chat('gpt-4o')],
  ['Responses', (sdk, { url, ...more }) => sdk.createOpenAI({ apiKey: 'k', baseURL: `${url}/v1`, ...more })('gpt-4o')],
  [
    'Messages',
    (sdk, { url, ...more }) => sdk.createAnthropic({ apiKey: 'k', baseURL: `${url}/v1`, ...more })('claude-test'),
  ],
]

const aiRun =
  (sdk: AiSdk, model: (typeof AI_MODELS)[number][1], prune: Prune): Run =>
  async (access, stream) => {
    const { generateText, stepCountIs, streamText, tool } = sdk.ai
    const settings = {
      model: model(sdk, access),
      prompt: QUESTION,
      maxRetries: 0,
      stopWhen: stepCountIs(LIMIT),
      providerOptions: { openai: { store: false } },
      tools: { search: tool({ description: 'Search', inputSchema: schema, execute: async () => found() }) },
      prepareStep: ({ messages }: { messages: ModelMessage[] }) => ({ messages: prune(sdk, messages) }),
    }
    if (stream) await streamText(settings).consumeStream()
    else await generateText(settings)
  }

// The older version sends the same bodies, so that one API is enough.
const AI_CASES = AI_SDKS.flatMap((sdk, at) =>
  AI_MODELS.slice(0, at === 0 ? 1 : undefined).flatMap(([api, model]) =>
    AI_WINDOWS.map(([window, prune]): Case => {
      return { framework: `${sdk.name} over ${api}`, window, run: aiRun(sdk, model, prune) }
    }),
  ),
)

// LangChain and LangGraph.

const search = langTool(found, { name: 'search', description: 'Search', schema })

const LANG_MODELS: readonly (readonly [string, (access: Access) => ChatOpenAI | ChatAnthropic])[] = [
  ...[false, true].map(
    (useResponsesApi) =>
      [
        useResponsesApi ? 'Responses' : 'chat',
        ({ url, headers, fetch }: Access) =>
          new ChatOpenAI({
            model: 'gpt-4o',
            apiKey: 'k',
            maxRetries: 0,
            useResponsesApi,
            configuration: { baseURL: `${url}/v1`, defaultHeaders: headers, fetch },
          }),
      ] as const,
  ),
  [
    'Messages',
    ({ url, headers, fetch }) =>
      new ChatAnthropic({
        model: 'claude-test',
        apiKey: 'k',
        maxRetries: 0,
        anthropicApiUrl: url,
        clientOptions: { defaultHeaders: headers, fetch },
      }),
  ],
]

/** The newest steps of a history, and its system text. */
const trimmed = (messages: BaseMessage[], steps: number) =>
  trimMessages(messages, {
    strategy: 'last',
    maxTokens: 2 * steps,
    tokenCounter: (some) => some.length,
    startOn: ['human', 'ai'],
    endOn: ['human', 'tool'],
    includeSystem: true,
  })

const trimming = (steps: number) =>
  createMiddleware({
    name: 'Trimming',
    wrapModelCall: async (request, handler) =>
      handler({ ...request, messages: await trimmed(request.messages, steps) }),
  })

type Middleware = (
  model: ChatOpenAI | ChatAnthropic,
) => ReturnType<typeof trimming> | ReturnType<typeof summarizationMiddleware>

const LANG_WINDOWS: readonly (readonly [string, Middleware])[] = [
  ['its whole history', () => trimming(2 * LIMIT)],
  ['trimMessages to one step', () => trimming(1)],
  [
    'the summarization middleware',
    (model) => {
      const options = { model, trigger: { messages: 7 }, keep: { messages: 4 } }
      return summarizationMiddleware(options as Parameters<typeof summarizationMiddleware>[0])
    },
  ],
]

/** Runs an agent to its end. `stream`: its model streams; with the option of the model it would download a table to count tokens. */
async function consume(agent: ReturnType<typeof createAgent> | ReturnType<typeof createReactAgent>, stream: boolean) {
  const input = { messages: [{ role: 'user' as const, content: QUESTION }] }
  if (!stream) return void (await agent.invoke(input as never, { recursionLimit: 100 }))
  const chunks = await agent.stream(input as never, { recursionLimit: 100, streamMode: 'messages' } as never)
  for await (const _ of chunks);
}

const langRun =
  (model: (typeof LANG_MODELS)[number][1], middleware: Middleware): Run =>
  async (access, stream) => {
    const llm = model(access)
    const agent = createAgent({
      model: llm,
      tools: [search],
      systemPrompt: 'You are a research agent.',
      middleware: [middleware(llm)],
    })
    await consume(agent, stream)
  }

const graphRun =
  (steps: number): Run =>
  async (access, stream) => {
    const [, model] = LANG_MODELS[0] ?? []
    const agent = createReactAgent({
      llm: model?.(access) as ChatOpenAI,
      tools: [search],
      preModelHook: async ({ messages }) => ({ llmInputMessages: await trimmed(messages, steps) }),
    })
    await consume(agent, stream)
  }

const LANG_CASES = [
  ...LANG_MODELS.flatMap(([api, model]) =>
    LANG_WINDOWS.map(([window, middleware]): Case => {
      return { framework: `LangChain over ${api}`, window, run: langRun(model, middleware) }
    }),
  ),
  { framework: 'LangGraph over chat', window: 'a hook before the model', run: graphRun(2) },
]

// OpenAI Agents.

type Filter = (items: AgentInputItem[]) => AgentInputItem[]

const AGENTS_WINDOWS: readonly (readonly [string, Filter])[] = [
  ['its whole history', (items) => items],
  [
    'callModelInputFilter with the question and two steps',
    ([question, ...others]) => (question ? [question, ...others.slice(-4)] : []),
  ],
  ['callModelInputFilter with the last step alone', (items) => items.slice(-2)],
]

const agentsRun =
  ({ agents, OpenAI }: AgentsSdk, useResponses: boolean, filter: Filter): Run =>
  async ({ url, headers, fetch }, stream) => {
    const { Agent, OpenAIProvider, Runner, tool } = agents
    const client = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0, defaultHeaders: headers, fetch })
    const runner = new Runner({
      modelProvider: new OpenAIProvider({ openAIClient: client, useResponses }),
      tracingDisabled: true,
      callModelInputFilter: ({ modelData }) => ({ ...modelData, input: filter(modelData.input) }),
    })
    const find = tool({ name: 'search', description: 'Search', parameters: schema, execute: async () => found() })
    const agent = new Agent({ name: 'A', instructions: 'Be good.', model: 'gpt-4o', tools: [find] })
    const result = stream
      ? await runner.run(agent, QUESTION, { maxTurns: LIMIT, stream: true })
      : await runner.run(agent, QUESTION, { maxTurns: LIMIT })
    if ('completed' in result) await result.completed
  }

const AGENTS_CASES = AGENTS_SDKS.flatMap((sdk, at) =>
  (at === 0 ? [true] : [true, false]).flatMap((useResponses) =>
    AGENTS_WINDOWS.map(([window, filter]): Case => {
      const framework = `${sdk.name} over ${useResponses ? 'Responses' : 'chat'}`
      return { framework, window, run: agentsRun(sdk, useResponses, filter) }
    }),
  ),
)

// The tool runner of the Anthropic SDK.

const runnerRun =
  (window: (messages: Anthropic.Beta.BetaMessageParam[]) => Anthropic.Beta.BetaMessageParam[]): Run =>
  async ({ url, headers, fetch }, stream) => {
    const sdk = new Anthropic({ apiKey: 'k', baseURL: url, maxRetries: 0, defaultHeaders: headers, fetch })
    const runner = sdk.beta.messages.toolRunner({
      model: 'claude-test',
      max_tokens: 1000,
      messages: [{ role: 'user', content: QUESTION }],
      tools: [
        {
          name: 'search',
          input_schema: { type: 'object', properties: { query: { type: 'string' } } },
          run: found,
          parse: (input: unknown) => input,
        },
      ],
      max_iterations: LIMIT,
      stream,
      thread: false,
    })
    for await (const step of runner) {
      const { content } = 'finalMessage' in step ? await step.finalMessage() : step
      const results = await runner.generateToolResponse()
      if (!results) continue
      const answer = { role: 'assistant' as const, content: content as Anthropic.Beta.BetaContentBlockParam[] }
      runner.setMessagesParams((params) => ({ ...params, messages: window([...params.messages, answer, results]) }))
    }
  }

const RUNNER_CASES = (
  [
    [
      'edited params with the question and two steps',
      ([question, ...others]) => (question ? [question, ...others.slice(-4)] : []),
    ],
    [
      'edited params with the question and the last step',
      ([question, ...others]) => (question ? [question, ...others.slice(-2)] : []),
    ],
  ] as const satisfies readonly (readonly [string, Parameters<typeof runnerRun>[0]])[]
).map(
  ([window, keep]): Case => ({
    framework: 'the Anthropic SDK’s tool runner',
    window,
    run: runnerRun(keep),
  }),
)

const CASES = [...AI_CASES, ...LANG_CASES, ...AGENTS_CASES, ...RUNNER_CASES].flatMap((one, at) =>
  // Each case is streamed in one of its two ways.
  [true, false].map((isNamed) => ({ ...one, isNamed, id: isNamed ? 'a' : 'no', stream: (at % 2 === 0) === isNamed })),
)

/** Runs an agent whose model searches `steps` times, for a new query each time or always for the same, and answers then. */
async function outcome(run: Run, isNamed: boolean, stream: boolean, steps: number, isLoop: boolean) {
  let searches = 0
  const { url } = await startBoth((request) => {
    if (!request.json.tools?.length) return { text: 'A summary of what happened so far.' }
    if (!mayCall(request) || searches === steps) return { text: 'It is 42.' }
    searches++
    return { calls: [{ name: 'search', arguments: { query: isLoop ? 'the same' : `query ${searches}` } }] }
  })
  const iterations: (string | null)[] = []
  const verdicts: (string | null)[] = []
  let reason: string | null = null
  await run(
    {
      url,
      headers: isNamed ? { 'x-governor-session': 'mine' } : {},
      async fetch(...request) {
        const response = await fetch(...request)
        if (!String(request[1]?.body).includes('"tools"')) return response
        iterations.push(response.headers.get('x-governor-iteration'))
        verdicts.push(response.headers.get('x-governor-verdict'))
        reason = response.headers.get('x-governor-terminal-reason')
        return response
      },
    },
    stream,
  )
  return { iterations, verdicts, reason, sessions: (await listed(url)).length }
}

describe.each(CASES)('$framework with $id session id and $window (stream: $stream)', ({ run, isNamed, stream }) => {
  it('is counted as one run of one session', async () => {
    const { iterations, verdicts, sessions } = await outcome(run, isNamed, stream, 7, false)
    expect(iterations).toEqual([1, 2, 3, 4, 5, 6, 7, 8].map((k) => `${k}/300`))
    expect(new Set(verdicts)).toEqual(new Set(['allow']))
    expect(sessions).toBe(1)
  })

  it('is ended in a loop by the verdicts that a whole history gets', async () => {
    const { verdicts, reason, sessions } = await outcome(run, isNamed, stream, LIMIT, true)
    expect(verdicts).toEqual(['allow', 'allow', 'allow', 'warn', 'allow', 'warn', 'stop'])
    expect(reason).toBe('loop_guard')
    expect(sessions).toBe(1)
  })
})
