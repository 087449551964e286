/** Frameworks whose answer must have a form, behind a budget that stops their agents. */
import { tool as langTool } from '@langchain/core/tools'
import { createReactAgent } from '@langchain/langgraph/prebuilt'
import { ChatOpenAI } from '@langchain/openai'
import type { LanguageModel } from 'ai'
import { describe, expect, it } from 'vitest'
import { z } from 'zod'
import { startBoth } from '../support/governor.ts'
import type { ChatBody, Received, Script } from '../support/provider.ts'
import { AGENTS_SDKS, AI_SDKS } from '../support/versions.ts'

const budget = { max_iterations: 3, adaptive: false }
const City = z.object({ name: z.string(), arguments: z.object({ country: z.string() }) })
/** An object that looks like a written-out call. */
const ANSWER = { name: 'Oslo', arguments: { country: 'Norway' } }

interface AgentBody extends ChatBody {
  readonly text?: { readonly format?: { readonly type?: string } }
  readonly output_config?: { readonly format?: unknown }
}

const nameOf = (tool: unknown) => {
  const { name, function: called } = tool as { name?: string; function?: { name?: string } }
  return name ?? called?.name ?? ''
}

/** Returns the tool that a request names, or the only one besides `search` if a tool must be called at the stop. */
function forcedIn({ tool_choice: choice, tools = [] }: AgentBody): string | undefined {
  const {
    type,
    name,
    function: called,
  } = (choice ?? {}) as {
    type?: string
    name?: string
    function?: { name?: string }
  }
  if (called?.name ?? name) return called?.name ?? name
  return choice === 'required' || type === 'any' ? tools.map(nameOf).find((one) => one !== 'search') : undefined
}

/** A model that searches for ever; when it is stopped or forced, it answers in the requested form. */
const searching: Script = ({ json }: Received, number) => {
  const body = json as AgentBody
  const isStopped = JSON.stringify(json).includes('maximum number of tool-calling')
  const forced = forcedIn(body)
  const isNamed = JSON.stringify(body.tool_choice ?? '').includes(`"${forced}"`)
  if (forced !== undefined && (isStopped || isNamed)) return { calls: [{ name: forced, arguments: ANSWER }] }
  const hasTools = (body.tools ?? []).length > 0 && JSON.stringify(body.tool_choice ?? '').includes('none') === false
  if (hasTools) return { calls: [{ name: 'search', arguments: { query: `q${number}` } }] }
  const format = body['response_format'] ?? body.text?.format ?? body.output_config?.format
  const isObject = format !== undefined && (format as { type?: string }).type !== 'text'
  return { text: isObject ? JSON.stringify(ANSWER) : 'It is Oslo.' }
}

describe('LangGraph with a responseFormat', () => {
  const search = langTool(async ({ query }) => `found ${query}`, {
    name: 'search',
    description: 'Search',
    schema: z.object({ query: z.string() }),
  })

  const model = (url: string, useResponsesApi: boolean) =>
    new ChatOpenAI({
      model: 'gpt-4o',
      apiKey: 'k',
      maxRetries: 0,
      useResponsesApi,
      configuration: { baseURL: `${url}/v1` },
    })

  it.each([
    ['a JSON schema', false, City],
    ['a forced tool', false, { schema: City, method: 'functionCalling' }],
    ['a forced tool and a prompt of its own', false, { schema: City, method: 'functionCalling', prompt: 'Be exact.' }],
    ['a JSON schema over Responses', true, City],
  ] as const)('gets its object by %s, even if its run was stopped', async (_, useResponsesApi, responseFormat) => {
    for (const prompt of [undefined, 'You are a research agent.']) {
      const { url } = await startBoth(searching, { budget })
      const agent = createReactAgent({
        llm: model(url, useResponsesApi),
        tools: [search],
        responseFormat: responseFormat as typeof City,
        ...(prompt === undefined ? {} : { prompt }),
      })
      const result = await agent.invoke({ messages: [{ role: 'user', content: 'Which city?' }] })
      expect(result.structuredResponse).toEqual(ANSWER)
      expect(JSON.stringify(result.messages.at(-1)?.content)).toContain('It is Oslo.')
    }
  })
})

describe.each(AI_SDKS)('$name with Output.object', (sdk) => {
  const { generateText, Output, stepCountIs, streamText, tool } = sdk.ai
  const settings = (model: LanguageModel) => ({
    model,
    prompt: 'Which city?',
    maxRetries: 0,
    stopWhen: stepCountIs(20),
    output: Output.object({ schema: City }),
    tools: {
      search: tool({
        description: 'Search',
        inputSchema: z.object({ query: z.string() }),
        execute: async ({ query }) => `found ${query}`,
      }),
    },
  })

  it.each([
    ['Chat Completions', (url: string) => sdk.createOpenAI({ apiKey: 'k', baseURL: `${url}/v1` }).chat('gpt-4o')],
    ['Responses', (url: string) => sdk.createOpenAI({ apiKey: 'k', baseURL: `${url}/v1` }).responses('gpt-4o')],
    [
      'a compatible server',
      (url: string) =>
        sdk.createOpenAICompatible({
          name: 'x',
          apiKey: 'k',
          baseURL: `${url}/v1`,
          supportsStructuredOutputs: true,
        })('m'),
    ],
    [
      'Messages with a format',
      (url: string) => sdk.createAnthropic({ apiKey: 'k', baseURL: `${url}/v1` })('claude-sonnet-4-5'),
    ],
    [
      'Messages with a forced tool',
      (url: string) => sdk.createAnthropic({ apiKey: 'k', baseURL: `${url}/v1` })('claude-3-haiku-20240307'),
    ],
  ] as const)('gets its object over %s, even if its run was stopped', async (_, model) => {
    const { url, provider } = await startBoth(searching, { budget })
    const { output, steps } = await generateText(settings(model(url)))
    expect([output, steps.length, provider.requests.length]).toEqual([ANSWER, 4, 4])
    const other = await startBoth(searching, { budget })
    const streamed = streamText(settings(model(other.url)))
    await streamed.consumeStream()
    expect(await streamed.output).toEqual(ANSWER)
  })
})

describe.each(AGENTS_SDKS)('$name with an outputType', ({ agents, OpenAI }) => {
  const { Agent, OpenAIProvider, Runner, tool } = agents
  it.each([true, false])('get their object, even if their run was stopped (Responses: %s)', async (useResponses) => {
    for (const stream of [false, true]) {
      const { url } = await startBoth(searching, { budget })
      const client = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
      const runner = new Runner({
        modelProvider: new OpenAIProvider({ openAIClient: client, useResponses }),
        tracingDisabled: true,
      })
      const search = tool({
        name: 'search',
        description: 'Search',
        parameters: z.object({ query: z.string() }),
        execute: async ({ query }) => `found ${query}`,
      })
      const agent = new Agent({ name: 'A', model: 'gpt-4o', tools: [search], outputType: City })
      const result = stream
        ? await runner.run(agent, 'Which city?', { stream: true })
        : await runner.run(agent, 'Which city?')
      if ('completed' in result) await result.completed
      expect(result.finalOutput).toEqual(ANSWER)
    }
  })
})
