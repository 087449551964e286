/** The last line that says why a run was stopped, as real clients read it. */
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { describe, expect, it } from 'vitest'
import { askWithTools } from '../support/ai-sdk.ts'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'
import { AI_SDKS, type AiSdk } from '../support/versions.ts'

const budget = { max_iterations: 1, adaptive: false }
const stop = { footer: true }
const FOOTER = '— stopped by governor: 1 of 1 iterations'
const ANSWER = 'This is what I found so far.'
const name = 'search'
const parameters = { type: 'object' as const, properties: { query: { type: 'string' } } }
const schema = {
  type: 'object',
  properties: { found: { type: 'string' } },
  required: ['found'],
  additionalProperties: false,
}
const settings = { apiKey: 'sk-test', maxRetries: 0 }

interface How {
  readonly stream: boolean
  /** The client asks for an object of a schema. */
  readonly isJson?: boolean
  /** What was said after the answer of a run that is over. */
  readonly history?: readonly { readonly role: 'user' | 'assistant'; readonly content: string }[]
}

/** The text that a client shows, and what Governor says beside it. */
interface Shown {
  readonly text: string
  readonly governor: unknown
}

const footerIn = (object: object): unknown => Reflect.get(object, 'governor')

/** Asks in Chat Completions, after one call of a tool. */
async function askChat(url: string, { stream, isJson, history = [] }: How): Promise<Shown> {
  const { chat } = new OpenAI({ ...settings, baseURL: `${url}/v1` })
  const called = { id: 'c1', type: 'function' as const, function: { name, arguments: '{}' } }
  const json_schema = { name: 'answer', schema, strict: true }
  const params: OpenAI.ChatCompletionCreateParamsNonStreaming = {
    model: 'gpt-test',
    messages: [
      { role: 'user', content: 'Find out.' },
      ...history,
      { role: 'assistant', tool_calls: [called] },
      { role: 'tool', tool_call_id: 'c1', content: 'found' },
    ],
    tools: [{ type: 'function', function: { name, parameters } }],
    ...(isJson ? { response_format: { type: 'json_schema', json_schema } } : {}),
  }
  if (!stream) {
    const whole = await chat.completions.create(params)
    return { text: whole.choices[0]?.message.content ?? '', governor: footerIn(whole) }
  }
  let governor: unknown
  const running = chat.completions.stream({ ...params, stream: true }).on('chunk', (chunk) => {
    governor = footerIn(chunk) ?? governor
  })
  const { choices } = await running.finalChatCompletion()
  return { text: choices[0]?.message.content ?? '', governor }
}

/** Asks in Responses; in a stream every event has to agree with the response at its end. */
async function askResponses(url: string, { stream, isJson, history = [] }: How): Promise<Shown> {
  const { responses } = new OpenAI({ ...settings, baseURL: `${url}/v1` })
  const params: OpenAI.Responses.ResponseCreateParamsNonStreaming = {
    model: 'gpt-test',
    store: false,
    input: [
      { role: 'user', content: 'Find out.' },
      ...history,
      { type: 'function_call', call_id: 'c1', name, arguments: '{}' },
      { type: 'function_call_output', call_id: 'c1', output: 'found' },
    ],
    tools: [{ type: 'function', name, strict: false, parameters }],
    ...(isJson ? { text: { format: { type: 'json_schema', name: 'answer', schema } } } : {}),
  }
  if (!stream) {
    const whole = await responses.create(params)
    return { text: whole.output_text, governor: footerIn(whole) }
  }
  const running = responses.stream({ ...params, stream: true })
  let deltas = ''
  const dones: string[] = []
  for await (const event of running) {
    if (event.type === 'response.output_text.delta') deltas += event.delta
    if (event.type === 'response.output_text.done') dones.push(event.text)
    if (event.type === 'response.content_part.done' && event.part.type === 'output_text') dones.push(event.part.text)
    if (event.type === 'response.output_item.done' && event.item.type === 'message')
      dones.push(event.item.content.map((part) => (part.type === 'output_text' ? part.text : '')).join(''))
  }
  const whole = await running.finalResponse()
  expect([deltas, ...dones]).toEqual(new Array(4).fill(whole.output_text))
  expect(whole.output).toHaveLength(1)
  return { text: whole.output_text, governor: footerIn(whole) }
}

/** Asks in Messages, and reads the last block alone, as Claude Code does. */
async function askMessages(url: string, { stream, isJson, history = [] }: How): Promise<Shown> {
  const { messages } = new Anthropic({ ...settings, baseURL: url })
  const params: Anthropic.MessageCreateParamsNonStreaming = {
    model: 'claude-test',
    max_tokens: 1000,
    messages: [
      { role: 'user', content: 'Find out.' },
      ...history,
      { role: 'assistant', content: [{ type: 'tool_use', id: 't1', name, input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't1', content: 'found' }] },
    ],
    tools: [{ name, input_schema: parameters }],
    ...(isJson ? { output_config: { format: { type: 'json_schema', schema } } } : {}),
  }
  const textOf = ({ content }: Anthropic.Message) => {
    const last = content.at(-1)
    return last?.type === 'text' ? last.text : ''
  }
  if (!stream) {
    const whole = await messages.create(params)
    return { text: textOf(whole), governor: footerIn(whole) }
  }
  let governor: unknown
  const running = messages.stream(params).on('streamEvent', (event) => {
    governor = footerIn(event) ?? governor
  })
  return { text: textOf(await running.finalMessage()), governor }
}

const ASKS = { Chat: askChat, Responses: askResponses, Messages: askMessages }
const CASES = (['Chat', 'Responses', 'Messages'] as const).flatMap((api) =>
  [false, true].map((stream) => ({ api, stream, ask: ASKS[api] })),
)

/** Says one thing after another, the last one for ever. */
const saying =
  (...texts: string[]): Script =>
  (_, number) => ({ text: texts[number - 1] ?? texts.at(-1) ?? '' })

describe.each(CASES)('the footer of a stopped run in $api (stream: $stream)', ({ stream, ask }) => {
  it('is the last line of the model’s answer, and of the recorded one', async () => {
    const { url, provider } = await startBoth(saying(ANSWER), { budget, stop })
    const first = await ask(url, { stream })
    expect(first).toMatchObject({ text: `${ANSWER}\n\n${FOOTER}`, governor: { has_final_answer: true } })
    expect(await ask(url, { stream })).toEqual(first)
    expect((await ask(url, { stream: !stream })).text).toBe(first.text)
    expect(provider.requests).toHaveLength(1)
  })

  it('follows the fallback text, and does not make an answer of it', async () => {
    const { url } = await startBoth(saying(''), { budget, stop })
    const first = await ask(url, { stream })
    expect(first).toMatchObject({
      text: `(Reached max iterations: 1)\n\n${FOOTER}`,
      governor: { has_final_answer: false },
    })
    expect(await ask(url, { stream })).toEqual(first)
  })

  it('does not count as an answer if the model says nothing else', async () => {
    const { url, provider } = await startBoth(saying(FOOTER, 'Here it is.'), { budget, stop })
    expect(await ask(url, { stream })).toMatchObject({
      text: `Here it is.\n\n${FOOTER}`,
      governor: { has_final_answer: true },
    })
    expect(provider.requests).toHaveLength(2)
  })

  it('appears once if the model finds it in its history and repeats it', async () => {
    const said = `${ANSWER}\n\n${FOOTER}`
    const { url, provider } = await startBoth(saying(said), { budget, stop })
    const history = [
      { role: 'assistant' as const, content: said },
      { role: 'user' as const, content: 'And now?' },
    ]
    expect(await ask(url, { stream, history })).toMatchObject({ text: said })
    expect(await ask(url, { stream, history })).toMatchObject({ text: said })
    expect(provider.requests).toHaveLength(1)
  })

  it('is left out of an object that the client asked for, and of the recorded one', async () => {
    const { url } = await startBoth(saying('{"found": "it"}'), { budget, stop })
    expect((await ask(url, { stream, isJson: true })).text).toBe('{"found": "it"}')
    expect((await ask(url, { stream, isJson: true })).text).toBe('{"found": "it"}')
  })

  it('is not there unless it is configured', async () => {
    const { url } = await startBoth(saying(ANSWER), { budget })
    expect((await ask(url, { stream })).text).toBe(ANSWER)
  })
})

const READERS = AI_SDKS.flatMap((sdk) => [false, true].map((stream) => ({ sdk, name: sdk.name, stream })))

describe.each(READERS)('$name (stream: $stream)', ({ sdk, stream }) => {
  const script: Script = ({ body, json }) =>
    body.includes('maximum number of tool-calling') || !json.tools
      ? { text: ANSWER }
      : { calls: [{ name, arguments: { query: 'more' } }] }

  it.each([
    [
      'Chat',
      (sdk: AiSdk, url: string) =>
        sdk.createOpenAICompatible({ name: 'test', baseURL: `${url}/v1`, apiKey: 'k' })('gpt-test'),
    ],
    [
      'Responses',
      (sdk: AiSdk, url: string) => sdk.createOpenAI({ baseURL: `${url}/v1`, apiKey: 'k' }).responses('gpt-test'),
    ],
    [
      'Messages',
      (sdk: AiSdk, url: string) => sdk.createAnthropic({ baseURL: `${url}/v1`, apiKey: 'k' })('claude-test'),
    ],
  ] as const)('reads the footer at the end of the text over %s', async (_, model) => {
    const { url } = await startBoth(script, { budget, stop })
    expect(await askWithTools(sdk, model(sdk, url), stream)).toMatchObject({
      text: `${ANSWER}\n\n${FOOTER}`,
      steps: 2,
      finishReason: 'stop',
    })
  })
})

describe('the footer', () => {
  it.each(AI_SDKS)('names the loop if the loop guard ended the run of $name', async (sdk) => {
    const script: Script = ({ json, body }) =>
      !json.tools || json.tool_choice === 'none' || body.includes('maximum number of tool-calling')
        ? { text: ANSWER }
        : { calls: [{ name, arguments: { query: 'the same' } }] }
    const { url } = await startBoth(script, { stop, loop_guard: { max_warnings_before_block: 0 } })
    const model = sdk.createAnthropic({ baseURL: `${url}/v1`, apiKey: 'k' })('claude-test')
    expect((await askWithTools(sdk, model, true)).text).toBe(
      `${ANSWER}\n\n— stopped by governor: the agent was in a loop`,
    )
  })
})
