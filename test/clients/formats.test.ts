/** SDKs that parse each answer by the schema that they demand, with calls that Governor blocks. */
import Anthropic from '@anthropic-ai/sdk'
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'
import { readsBlock } from '../support/scripts.ts'
import { OPENAI_CLIENTS } from '../support/versions.ts'

const schema = {
  type: 'object',
  properties: { answer: { type: 'string' } },
  required: ['answer'],
  additionalProperties: false,
} as const
const LIMIT = 10
const answer = (text: string) => JSON.stringify({ answer: text })
const FOUND = 'Nothing new was found there.'

/** A model that keeps to the schema, also beside its calls. */
const model: Script = (request) =>
  readsBlock(request)
    ? { text: answer('42') }
    : { text: answer('I am looking.'), calls: [{ name: 'search', arguments: { query: 'the same' } }] }

describe.each(OPENAI_CLIENTS)('$name with a schema', ({ OpenAI }) => {
  const parameters = { type: 'object', properties: { query: { type: 'string' } }, required: ['query'] }
  const json_schema = { name: 'out', schema, strict: true }

  it.each([false, true])(
    'gets one object from Chat Completions when its call is blocked (stream: %s)',
    async (stream) => {
      const { url } = await startBoth(model)
      const { completions } = new OpenAI({ apiKey: 'sk', baseURL: `${url}/v1` }).chat
      const messages: unknown[] = [{ role: 'user', content: 'Find it.' }]
      for (let step = 0; step < LIMIT; step++) {
        const tools = [{ type: 'function', function: { name: 'search', parameters, strict: true } }]
        const request = { model: 'm', messages, tools, response_format: { type: 'json_schema', json_schema } } as never
        const completion = stream
          ? await completions.stream(request).finalChatCompletion()
          : await completions.parse(request)
        const { message } = completion.choices[0] as { message: { content: string; tool_calls?: { id: string }[] } }
        const { content, tool_calls = [] } = message
        if (tool_calls.length === 0) return expect(content).toBe(answer('42'))
        messages.push({ role: 'assistant', content, tool_calls })
        for (const { id } of tool_calls) messages.push({ role: 'tool', tool_call_id: id, content: FOUND })
      }
      throw new Error('no call was blocked')
    },
  )

  it.each([false, true])('gets one object from Responses when its call is blocked (stream: %s)', async (stream) => {
    const { url } = await startBoth(model)
    const { responses } = new OpenAI({ apiKey: 'sk', baseURL: `${url}/v1` })
    let [previous, input]: [string | undefined, unknown] = [undefined, 'Find it.']
    for (let step = 0; step < LIMIT; step++) {
      const request = {
        model: 'm',
        input,
        previous_response_id: previous,
        tools: [{ type: 'function', name: 'search', parameters, strict: true }],
        text: { format: { type: 'json_schema', ...json_schema } },
      } as never
      const response = stream ? await responses.stream(request).finalResponse() : await responses.parse(request)
      const calls = (response.output as { type: string; call_id?: string }[]).filter(({ call_id }) => call_id)
      if (calls.length === 0) return expect(response.output_text).toBe(answer('42'))
      previous = response.id
      input = calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: FOUND }))
    }
    throw new Error('no call was blocked')
  })
})

it('the Anthropic SDK with a schema gets one object when its call is blocked', async () => {
  const { url } = await startBoth(model)
  const client = new Anthropic({ apiKey: 'sk', baseURL: url })
  const messages: Anthropic.MessageParam[] = [{ role: 'user', content: 'Find it.' }]
  for (let step = 0; step < LIMIT; step++) {
    const message = await client.messages.parse({
      model: 'm',
      max_tokens: 99,
      messages,
      tools: [{ name: 'search', input_schema: { type: 'object' } }],
      output_config: { format: { type: 'json_schema', schema, parse: (text: string) => JSON.parse(text) as object } },
    } as never)
    const content = message.content as { type: string; text?: string; id?: string; name?: string; input?: unknown }[]
    const calls = content.filter(({ type }) => type === 'tool_use')
    if (calls.length === 0) {
      expect(content.map(({ text }) => text)).toEqual([answer('42')])
      return expect(message.parsed_output).toEqual({ answer: '42' })
    }
    const said = content.map(({ type, text, id, name, input }) => (text ? { type, text } : { type, id, name, input }))
    messages.push({ role: 'assistant', content: said as Anthropic.ContentBlockParam[] })
    const results = calls.map(({ id = '' }) => ({ type: 'tool_result' as const, tool_use_id: id, content: FOUND }))
    messages.push({ role: 'user', content: results })
  }
  throw new Error('no call was blocked')
})
