/** Last answers whose streams hold no response: official clients fail as they would without Governor, and may ask again. */
import Anthropic from '@anthropic-ai/sdk'
import type OpenAI from 'openai'
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Answer, Script } from '../support/provider.ts'
import { OPENAI_CLIENTS } from '../support/versions.ts'

const tool = { name: 'search', parameters: { type: 'object' as const, properties: {} } }
const headers = { 'x-governor-session': 's', 'x-governor-max-iterations': '1' }

const error = (name: string, data: object): string => `${name}data: ${JSON.stringify(data)}\n\n`

/** Each client stops at its second request, streamed; `ask` gives the text of that and of what a person says next. */
const clientsOf = (Client: typeof OpenAI) => [
  {
    api: 'Chat Completions',
    error: error('', { error: { message: 'overloaded' } }),
    async ask(url: string) {
      const client = new Client({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0, defaultHeaders: headers })
      const tools = [{ type: 'function' as const, function: tool }]
      const messages: OpenAI.ChatCompletionMessageParam[] = [{ role: 'user', content: 'Go.' }]
      const next = async () => {
        const completion = await client.chat.completions.stream({ model: 'm', messages, tools }).finalChatCompletion()
        const message = completion.choices[0]?.message
        if (message) messages.push(message)
        return message
      }
      const called = await next()
      for (const { id } of called?.tool_calls ?? []) {
        messages.push({ role: 'tool', tool_call_id: id, content: 'found' })
      }
      const last = (await next())?.content
      messages.push({ role: 'user', content: 'And now?' })
      return [last, (await next())?.tool_calls?.length]
    },
  },
  {
    api: 'Messages',
    error: error('event: error\n', { type: 'error', error: { type: 'overloaded_error', message: 'no' } }),
    async ask(url: string) {
      const client = new Anthropic({ apiKey: 'k', baseURL: url, maxRetries: 0, defaultHeaders: headers })
      const tools = [{ name: tool.name, input_schema: tool.parameters }]
      const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'Go.' }]
      const next = async () => {
        const request = { model: 'm', max_tokens: 100, messages, tools }
        const { content } = await client.messages.stream(request).finalMessage()
        messages.push({ role: 'assistant', content })
        return content[0]
      }
      const called = await next()
      const id = called?.type === 'tool_use' ? called.id : ''
      messages.push({ role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content: 'found' }] })
      const last = await next()
      messages.push({ role: 'user', content: 'And now?' })
      return [last?.type === 'text' && last.text, (await next())?.type === 'tool_use' ? 1 : 0]
    },
  },
  {
    api: 'Responses',
    error: error('event: error\n', {
      type: 'error',
      code: 'server_error',
      message: 'no',
      sequence_number: 0,
    }),
    async ask(url: string) {
      const client = new Client({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0, defaultHeaders: headers })
      const tools = [{ type: 'function' as const, strict: false, ...tool }]
      let previous: string | null = null
      const next = async (input: OpenAI.Responses.ResponseInput) => {
        const request = { model: 'm', tools, input, previous_response_id: previous, stream: true as const }
        const response = await client.responses.stream(request).finalResponse()
        previous = response.id
        return response
      }
      const [called] = (await next([{ role: 'user', content: 'Go.' }])).output
      const id = called?.type === 'function_call' ? called.call_id : ''
      const last = await next([{ type: 'function_call_output', call_id: id, output: 'found' }])
      const after = await next([{ role: 'user', content: 'And now?' }])
      return [last.output_text, after.output.length]
    },
  },
]

const CLIENTS = OPENAI_CLIENTS.flatMap(({ name, OpenAI: Client }) =>
  clientsOf(Client).map((client) => ({ ...client, name })),
)

const stream = (body: string): Answer => ({
  status: 200,
  body,
  headers: { 'content-type': 'text/event-stream' },
})

describe.each(CLIENTS)('a stop over $api without an answer ($name)', ({ error: failure, ask }) => {
  /** Calls a tool, gives the `tries` at a last answer, and calls a tool again. */
  const script =
    (tries: readonly Answer[]): Script =>
    (_, number) =>
      tries[number - 2] ?? { calls: [{ name: 'search', arguments: {} }] }

  it.each([
    ['nothing', ''],
    ['comments', ': hi\n\n'],
    ['an error', failure],
    ['half a comment', ': hi'],
    ['half an event', 'data: {"id":"x"'],
  ])('is an error for its client when the stream contains %s, and the next attempt is answered', async (_, body) => {
    const { url, provider } = await startBoth(script([stream(body), { text: 'It is 42.' }]))
    await expect(ask(url)).rejects.toThrow()
    expect(provider.requests).toHaveLength(2)
  })
})

/** Runs an agent in a loop, whose request for the last answer gets `last`, and returns what it gets. */
async function endedLoop(Client: typeof OpenAI, last: (number: number) => Answer) {
  let asked = 0
  const { url } = await startBoth((request) =>
    request.json.tool_choice === 'none' || request.json.tools === undefined
      ? last(++asked)
      : { calls: [{ name: 'search', arguments: {} }] },
  )
  const client = new Client({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
  const input: OpenAI.Responses.ResponseInputItem[] = [{ role: 'user', content: 'Go.' }]
  const tools = [{ type: 'function' as const, strict: false, ...tool }]
  const ask = () => client.responses.stream({ model: 'm', tools, input, store: false, stream: true }).finalResponse()
  let end: unknown
  for (let step = 0; step < 20 && asked === 0; step++) {
    const response = await ask().catch((error: unknown) => error)
    end = response instanceof Error ? response.message : (response as { output_text: string }).output_text
    const { output = [] } = response as { output?: OpenAI.Responses.ResponseOutputItem[] }
    for (const item of output) {
      if (item.type !== 'function_call') continue
      input.push(item, { type: 'function_call_output', call_id: item.call_id, output: 'nothing to be found' })
    }
  }
  return { end, ask }
}

describe.each(OPENAI_CLIENTS)('a run of $name over Responses that ends for its loop', ({ OpenAI: Client }) => {
  it.each([
    ['an empty stream', stream(''), 'request ended without sending any events'],
    ['a 503', { status: 503, body: { error: { message: 'busy' } } }, '503 busy'],
    [
      'half an answer',
      stream('event: response.created\ndata: {"type":"response.created","response":{"id":"r","output":[]}}\n\n'),
      '',
    ],
  ])("passes on the provider's failure (%s), and the next attempt is answered", async (_, failure, words) => {
    const { end, ask } = await endedLoop(Client, (number) => (number === 1 ? failure : { text: 'It is 42.' }))
    expect(end).toContain(words)
    expect(end).not.toContain('Stopped')
    expect((await ask()).output_text).toBe('It is 42.')
  })

  it('gets the fallback text when the model has no answer', async () => {
    const { end, ask } = await endedLoop(Client, () => ({ text: '' }))
    expect(end).toMatch(/^\(Stopped: 'search' was called \d+ times with identical arguments and results\)$/)
    expect((await ask()).output_text).toBe(end)
  })
})
