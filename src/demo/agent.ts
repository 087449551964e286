/** An ordinary agent: the official `openai` package, a few tools, and a loop that ends when the model calls none. */
import type OpenAI from 'openai'
import { ChatCompletionStream } from 'openai/lib/ChatCompletionStream'
import { governorOf } from '../types/index.ts'

export type Message = OpenAI.ChatCompletionMessageParam

/** One model call, as the agent sees it; `governor`: how Governor ended the run. */
export type Step = Awaited<ReturnType<typeof callModel>>

const tool = (name: string, description: string, argument: string): OpenAI.ChatCompletionTool => ({
  type: 'function',
  function: {
    name,
    description,
    parameters: { type: 'object', properties: { [argument]: { type: 'string' } }, required: [argument] },
  },
})

const TOOLS = [
  tool('web_search', 'Search the web', 'query'),
  tool('fetch_page', 'Read a page', 'url'),
  tool('take_note', 'Remember a finding', 'note'),
]

export async function callModel(client: OpenAI, sent: readonly Message[]) {
  const { data, response } = await client.chat.completions
    .create({ model: 'demo-model', tools: TOOLS, messages: [...sent], stream: true })
    .withResponse()
  const completion = await ChatCompletionStream.fromReadableStream(data.toReadableStream()).finalChatCompletion()
  const message = completion.choices[0]?.message
  const calls = message?.tool_calls ?? []
  return { sent, headers: response.headers, message, calls, governor: governorOf(completion) }
}

/** Returns the transcript after a step: with the model's message and a result for each of its calls. */
export function afterStep({ sent, message, calls }: Step): Message[] {
  const messages: Message[] = message ? [...sent, message] : [...sent]
  for (const { id, function: called } of calls) {
    const result = `${called.name}: ok, but nothing that settles the question`
    messages.push({ role: 'tool', tool_call_id: id, content: result })
  }
  return messages
}

/** Runs the agent until the model answers without a tool call, and yields each step. It counts nothing. */
export async function* runAgent(client: OpenAI, start: readonly Message[]): AsyncGenerator<Step> {
  let step = await callModel(client, start)
  yield step
  while (step.calls.length > 0) {
    step = await callModel(client, afterStep(step))
    yield step
  }
}
