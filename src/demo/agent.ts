/** An ordinary agent: the official `openai` package, a few tools, and a loop that ends when the model calls none. */
import type OpenAI from 'openai'
import { type GovernorEnd, governorOf } from '../types/index.ts'

/** A message of Chat Completions. */
export type Message = OpenAI.ChatCompletionMessageParam

/** One model call, as the agent sees it. */
export interface Step {
  readonly headers: Headers
  readonly message: OpenAI.ChatCompletionAssistantMessageParam
  readonly calls: readonly OpenAI.ChatCompletionMessageFunctionToolCall[]
  /** The field `governor` of the response, with the end of the run. */
  readonly governor: GovernorEnd | undefined
}

const tool = (name: string, description: string, argument: string): OpenAI.ChatCompletionTool => ({
  type: 'function',
  function: {
    name,
    description,
    parameters: { type: 'object', properties: { [argument]: { type: 'string' } }, required: [argument] },
  },
})

const REQUEST = {
  model: 'demo-model',
  tools: [
    tool('web_search', 'Search the web', 'query'),
    tool('fetch_page', 'Read a page', 'url'),
    tool('take_note', 'Remember a finding', 'note'),
  ],
}

function stepOf(headers: Headers, content: string | null, calls: Step['calls'], governor: Step['governor']): Step {
  const message = {
    role: 'assistant' as const,
    content,
    ...(calls.length > 0 ? { tool_calls: [...calls] } : {}),
  }
  return { headers, message, calls, governor }
}

/** Calls the model and reads its answer as a stream. */
export async function callStreaming(client: OpenAI, messages: readonly Message[]): Promise<Step> {
  const { data, response } = await client.chat.completions
    .create({ ...REQUEST, messages: [...messages], stream: true })
    .withResponse()
  let content = ''
  let governor: Step['governor']
  const calls: OpenAI.ChatCompletionMessageFunctionToolCall[] = []
  for await (const chunk of data) {
    governor = governorOf(chunk) ?? governor
    const delta = chunk.choices[0]?.delta
    content += delta?.content ?? ''
    for (const { index, id, function: part } of delta?.tool_calls ?? []) {
      const call = calls[index] ?? { id: id ?? '', type: 'function', function: { name: '', arguments: '' } }
      call.function.name += part?.name ?? ''
      call.function.arguments += part?.arguments ?? ''
      calls[index] = call
    }
  }
  return stepOf(response.headers, content || null, calls, governor)
}

/** Calls the model and reads its answer as one JSON object. */
export async function callWhole(client: OpenAI, messages: readonly Message[]): Promise<Step> {
  const { data, response } = await client.chat.completions
    .create({ ...REQUEST, messages: [...messages] })
    .withResponse()
  const message = data.choices[0]?.message
  const calls = (message?.tool_calls ?? []).filter((call) => call.type === 'function')
  return stepOf(response.headers, message?.content ?? null, calls, governorOf(data))
}

/** Returns the transcript after a step: with the model's message and a result for each of its calls. */
export function afterStep(messages: readonly Message[], { message, calls }: Step): Message[] {
  const results = calls.map(
    ({ id, function: { name } }): Message => ({
      role: 'tool',
      tool_call_id: id,
      content: `${name}: ok, but nothing that settles the question`,
    }),
  )
  return [...messages, message, ...results]
}

/** Runs the agent until the model answers without a tool call, and returns the transcript. It counts nothing. */
export async function runAgent(
  client: OpenAI,
  start: readonly Message[],
  onStep: (step: Step, sent: readonly Message[]) => void,
): Promise<readonly Message[]> {
  let messages = start
  for (;;) {
    const step = await callStreaming(client, messages)
    onStep(step, messages)
    const isAnswer = step.calls.length === 0
    if (isAnswer) return messages
    messages = afterStep(messages, step)
  }
}
