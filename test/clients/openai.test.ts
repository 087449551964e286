import { describe, expect, it, onTestFinished } from 'vitest'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'
import { OPENAI_CLIENTS } from '../support/versions.ts'

/** Looks three things up, two of them at once, then answers. */
const research: Script = (_, number) =>
  [
    { calls: [{ name: 'search', arguments: { query: 'größe 9007199254740993' } }] },
    { text: 'Two more. ', calls: [1, 2].map((n) => ({ name: 'search', arguments: { query: `part ${n}` } })) },
    { text: 'It is — after all — 42. 🎉' },
  ][number - 1] ?? { text: 'Nothing more.' }

const params = {
  model: 'gpt-test',
  messages: [{ role: 'user' as const, content: 'What is it?' }],
  tools: [
    {
      type: 'function' as const,
      function: {
        name: 'search',
        description: 'Search',
        parse: JSON.parse as (text: string) => { query: string },
        function: ({ query }: { query: string }) => `found ${query}`,
        parameters: { type: 'object', properties: { query: { type: 'string' } } },
      },
    },
  ],
}

type Client = (typeof OPENAI_CLIENTS)[number]['OpenAI']

/** Runs the SDK's own tool loop and returns what an application sees of it. */
async function run(OpenAI: Client, baseURL: string, stream: boolean, maxChatCompletions = 30) {
  const client = new OpenAI({ apiKey: 'sk-test', baseURL: `${baseURL}/v1`, maxRetries: 0 })
  const options = { maxChatCompletions }
  const contents: string[] = []
  const note = (content: string) => void contents.push(content)
  const runner = stream
    ? client.chat.completions.runTools({ ...params, stream: true }, options).on('content', note)
    : client.chat.completions.runTools(params, options).on('content', note)
  const answer = await runner.finalContent()
  return { answer, contents, messages: runner.messages, calls: runner.allChatCompletions().length }
}

describe.each(OPENAI_CLIENTS.flatMap((client) => [false, true].map((stream) => ({ ...client, stream }))))(
  '$name in its tool loop (stream: $stream)',
  ({ OpenAI, stream }) => {
    it('gives the same answer by the same steps, and sends the provider the same bytes, as without Governor', async () => {
      const direct = await startProvider(research)
      const behind = await startProvider(research)
      onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
      const { url } = await startGovernor(behind.url)
      const without = await run(OpenAI, direct.url, stream)
      const through = await run(OpenAI, url, stream)
      expect(through).toEqual(without)
      expect(through.answer).toBe('It is — after all — 42. 🎉')
      expect(behind.requests.map(({ body }) => body.toString())).toEqual(
        direct.requests.map(({ body }) => body.toString()),
      )
    })

    it('gets an answer and no error when its run is stopped', async () => {
      const { url, provider } = await startBoth(runaway(), { budget: { max_iterations: 5 } })
      const { answer, calls } = await run(OpenAI, url, stream)
      expect(answer).toBe('This is what I found so far.')
      expect(calls).toBe(6)
      expect(provider.requests).toHaveLength(6)
    })

    it('can read how the run ended', async () => {
      const { url } = await startBoth(runaway(), { budget: { max_iterations: 1 } })
      const client = new OpenAI({ apiKey: 'sk-test', baseURL: `${url}/v1`, maxRetries: 0 })
      const runner = client.chat.completions.runTools(params)
      const last = (await runner.finalChatCompletion()) as { governor?: { terminal_state: string } }
      expect(last.governor?.terminal_state).toBe('tool_limit_reached')
    })
  },
)

describe.each(OPENAI_CLIENTS)('$name', ({ OpenAI }) => {
  it('retries after a rate limit as without Governor, and the iteration is counted once', async () => {
    let isFirst = true
    const { url } = await startBoth((_, number) => {
      if (!isFirst) return { text: `answer ${number}` }
      isFirst = false
      return { status: 429, body: { error: { message: 'slow down' } }, headers: { 'retry-after-ms': '1' } }
    })
    const client = new OpenAI({
      apiKey: 'sk-test',
      baseURL: `${url}/v1`,
      defaultHeaders: { 'x-governor-session': 's' },
    })
    const { messages, model } = params
    const tools = [{ type: 'function' as const, function: { name: 'search' } }]
    const { data, response } = await client.chat.completions.create({ model, messages, tools }).withResponse()
    expect(data.choices[0]?.message.content).toBe('answer 2')
    expect(response.headers.get('x-governor-iteration')).toBe('1/300')
  })

  it('gets an error that it knows when the provider cannot be reached', async () => {
    const { url } = await startGovernor('http://127.0.0.1:9')
    const client = new OpenAI({ apiKey: 'sk-test', baseURL: `${url}/v1`, maxRetries: 0 })
    const call = client.chat.completions.create({ model: 'm', messages: params.messages })
    await expect(call).rejects.toMatchObject({ status: 502, code: 'upstream_unreachable' })
  })
})
