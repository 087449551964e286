import { LLMock } from '@copilotkit/aimock'
import type OpenAI from 'openai'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'
import { readsBlock } from '../support/scripts.ts'
import { OPENAI_CLIENTS } from '../support/versions.ts'

type Input = OpenAI.Responses.ResponseInputItem
type Params = OpenAI.Responses.ResponseCreateParamsNonStreaming

/** Looks three things up, two of them at once, then answers. */
const research: Script = (_, number) =>
  [
    { reasoning: 'x', calls: [{ name: 'search', arguments: { query: 'größe 9007199254740993' } }] },
    { text: 'Two more. ', calls: [1, 2].map((n) => ({ name: 'search', arguments: { query: `part ${n}` } })) },
    { text: 'It is — after all — 42. 🎉' },
  ][number - 1] ?? { text: 'Nothing more.' }

const tools = [
  {
    type: 'function' as const,
    name: 'search',
    strict: false,
    parameters: { type: 'object', properties: { query: { type: 'string' } } },
  },
]

interface How {
  readonly OpenAI: typeof OpenAI
  readonly stateful: boolean
  readonly stream: boolean
}

async function once(client: OpenAI, params: Params, stream: boolean): Promise<OpenAI.Responses.Response> {
  if (!stream) return client.responses.create(params)
  return client.responses.stream({ ...params, stream: true }).finalResponse()
}

/** The loop of OpenAI's own guides: sends the output back, or continues from the response. */
async function run(baseURL: string, { OpenAI: Client, stateful, stream }: How, max = 20) {
  const client = new Client({ apiKey: 'sk-test', baseURL: `${baseURL}/v1`, maxRetries: 0 })
  const history: Input[] = []
  const seen: unknown[] = []
  let next: Input[] = [{ role: 'user', content: 'What is it?' }]
  let previous: string | undefined
  for (let calls = 1; ; calls++) {
    const params: Params = stateful
      ? { model: 'gpt-test', tools, input: next, ...(previous ? { previous_response_id: previous } : {}) }
      : { model: 'gpt-test', tools, input: [...history, ...next], store: false }
    const response = await once(client, params, stream)
    previous = response.id
    history.push(...next, ...(response.output as Input[]))
    seen.push(response.output)
    next = response.output.flatMap((item) =>
      item.type === 'function_call'
        ? [
            {
              type: 'function_call_output' as const,
              call_id: item.call_id,
              output: `found ${item.arguments}`,
            },
          ]
        : [],
    )
    if (next.length === 0 || calls === max) {
      const { governor } = response as { governor?: object }
      return { answer: response.output_text, calls, seen, governor, status: response.status }
    }
  }
}

const HOWS = OPENAI_CLIENTS.flatMap((client) =>
  [false, true].flatMap((stateful) => [false, true].map((stream) => ({ ...client, stateful, stream }))),
)

describe.each(HOWS)('$name over Responses (stateful: $stateful, stream: $stream)', (how) => {
  it('gives the same answer by the same steps, and sends the provider the same bytes, as without Governor', async () => {
    const direct = await startProvider(research)
    const behind = await startProvider(research)
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url } = await startGovernor(behind.url)
    const without = await run(direct.url, how)
    expect(await run(url, how)).toEqual(without)
    expect(without).toMatchObject({ answer: 'It is — after all — 42. 🎉', calls: 3 })
    expect(behind.requests.map(({ body }) => body.toString())).toEqual(
      direct.requests.map(({ body }) => body.toString()),
    )
  })

  it('gets an answer and no error when its run is stopped', async () => {
    const { url, provider } = await startBoth(runaway(), { budget: { max_iterations: 5 } })
    expect(await run(url, how)).toMatchObject({
      answer: 'This is what I found so far.',
      calls: 6,
      status: 'completed',
      governor: { terminal_state: 'tool_limit_reached', has_final_answer: true },
    })
    expect(provider.requests).toHaveLength(6)
  })

  it.each([undefined, 'Once more. '])(
    'continues with the model’s next answer when its calls are blocked after the text %s',
    async (text) => {
      const same = { name: 'search', arguments: { query: 'the same' } }
      const { url, provider } = await startBoth((request) =>
        readsBlock(request)
          ? { text: 'I give up.' }
          : { reasoning: 'x', calls: [same], ...(text === undefined ? {} : { text }) },
      )
      const { answer, calls, status } = await run(url, how)
      expect([answer, calls, status]).toEqual([`${text ?? ''}I give up.`, 7, 'completed'])
      expect(provider.requests).toHaveLength(8)
    },
  )

  it('gets an answer from a model that ignores all notices', async () => {
    const stubborn: Script = ({ json }, number) =>
      json.tools
        ? { reasoning: 'x', calls: [{ name: 'search', arguments: { query: `q${number}` } }] }
        : { text: 'All I found.' }
    const { url } = await startBoth(stubborn, { budget: { max_iterations: 2 } })
    expect(await run(url, how)).toMatchObject({ answer: 'All I found.', calls: 3, status: 'completed' })
  })

  it('is stopped when it uses an independent provider', async () => {
    const mock = new LLMock({ port: 0, logLevel: 'silent' })
    const mayCall = (request: { tools?: unknown; tool_choice?: unknown }) =>
      request.tools !== undefined && request.tool_choice !== 'none'
    mock.on({ predicate: mayCall }, { toolCalls: [{ name: 'search', arguments: { query: 'more' } }] })
    mock.on({ predicate: (request) => !mayCall(request) }, { content: 'All I found.' })
    await mock.start()
    onTestFinished(() => mock.stop())
    const { url } = await startGovernor(mock.url, { budget: { max_iterations: 4 } })
    expect(await run(url, how)).toMatchObject({
      answer: 'All I found.',
      calls: 5,
      governor: { terminal_state: 'tool_limit_reached' },
    })
    expect(mock.getRequests()).toHaveLength(5)
  })
})
