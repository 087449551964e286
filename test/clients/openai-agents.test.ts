import { describe, expect, it, onTestFinished } from 'vitest'
import { startBoth, startGovernor } from '../support/governor.ts'
import { type Received, runaway, type Script, startProvider } from '../support/provider.ts'
import { readsBlock } from '../support/scripts.ts'
import { AGENTS_SDKS, type AgentsSdk } from '../support/versions.ts'

const same = { name: 'search', arguments: { query: 'the same' } }
/** The conversation before the run. */
const isBefore = ({ json }: Received) => json['input'] === 'Remember 42.'

/** Answers the requests of the run by number, and those before the run with one word. */
const inRun = (script: Script): Script => {
  let number = 0
  return (request) => (isBefore(request) ? { text: 'Yes.' } : script(request, ++number))
}

const research: Script = (_, number) =>
  [
    { reasoning: 'x', calls: [{ name: 'search', arguments: { query: 'it' } }] },
    { text: 'Two more. ', calls: [1, 2].map((n) => ({ name: 'search', arguments: { query: `part ${n}` } })) },
    { text: 'It is — after all — 42. 🎉' },
  ][number - 1] ?? { text: 'Nothing more.' }

interface How extends AgentsSdk {
  readonly stream: boolean
  /** Who keeps the history: the agent, or the provider in a conversation or by the previous response. */
  readonly state: 'history' | 'conversation' | 'response'
}

async function run(baseURL: string, { agents, OpenAI, stream, state }: How) {
  const { Agent, OpenAIProvider, Runner, tool } = agents
  const client = new OpenAI({ apiKey: 'sk-test', baseURL: `${baseURL}/v1`, maxRetries: 0 })
  const runner = new Runner({
    modelProvider: new OpenAIProvider({ openAIClient: client, useResponses: true }),
    tracingDisabled: true,
  })
  const search = tool({
    name: 'search',
    description: 'Search',
    strict: false,
    parameters: {
      type: 'object',
      properties: { query: { type: 'string' } },
      required: ['query'],
      additionalProperties: true,
    },
    execute: (input) => `found ${JSON.stringify(input)}`,
  })
  const agent = new Agent({
    name: 'Researcher',
    instructions: 'Be good.',
    model: 'gpt-test',
    tools: [search],
  })
  const before = state === 'response' ? await client.responses.create({ model: 'm', input: 'Remember 42.' }) : null
  const options = {
    maxTurns: 20,
    ...(state === 'conversation' ? { conversationId: 'conv_1' } : {}),
    ...(before ? { previousResponseId: before.id } : {}),
  }
  if (!stream) {
    const result = await runner.run(agent, 'What is it?', options)
    return { answer: result.finalOutput, turns: result.rawResponses.length, items: kindsOf(result.newItems) }
  }
  const result = await runner.run(agent, 'What is it?', { ...options, stream: true })
  await result.completed
  return { answer: result.finalOutput, turns: result.rawResponses.length, items: kindsOf(result.newItems) }
}

function kindsOf(items: readonly { readonly type: string }[]): string[] {
  return items.map(({ type }) => type)
}

const HOWS = AGENTS_SDKS.flatMap((sdk) =>
  (['history', 'conversation', 'response'] as const).flatMap((state) =>
    [false, true].map((stream): How => ({ ...sdk, stream, state })),
  ),
)

describe.each(HOWS)('$name (stream: $stream, state: $state)', (how) => {
  it('give the same answer by the same steps, and send the provider the same bytes, as without Governor', async () => {
    const direct = await startProvider(inRun(research))
    const behind = await startProvider(inRun(research))
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url } = await startGovernor(behind.url)
    const without = await run(direct.url, how)
    expect(await run(url, how)).toEqual(without)
    expect(without).toMatchObject({ answer: 'It is — after all — 42. 🎉', turns: 3 })
    expect(behind.requests.map(({ body }) => body.toString())).toEqual(
      direct.requests.map(({ body }) => body.toString()),
    )
  })

  it('end with an answer and without an error when their run is stopped', async () => {
    const { url, provider } = await startBoth(inRun(runaway()), {
      budget: { max_iterations: 5, adaptive: false },
    })
    expect(await run(url, how)).toMatchObject({ answer: 'This is what I found so far.', turns: 6 })
    const steps = provider.requests.filter((request) => !isBefore(request))
    expect(steps).toHaveLength(6)
    const warned = steps.map(({ body }) => body.includes('[BUDGET: Iteration'))
    expect(warned).toEqual([false, false, false, true, true, false])
  })

  it('continue with the model’s next answer when their calls are blocked', async () => {
    const { url, provider } = await startBoth(
      inRun((request) => (readsBlock(request) ? { text: 'I give up.' } : { reasoning: 'x', calls: [same] })),
    )
    expect(await run(url, how)).toMatchObject({ answer: 'I give up.', turns: 7 })
    expect(provider.requests.filter((request) => !isBefore(request))).toHaveLength(8)
  })
})
