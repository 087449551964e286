/** The smallest agent loop over Responses: sends its history every time, or continues from the last response. */
import { createFrameReader, dataOf } from '../../src/sse/frames.ts'
import type { Item } from './responses.ts'

export type { Item } from './responses.ts'

export const TOOL = {
  type: 'function',
  name: 'search',
  parameters: { type: 'object', properties: { query: { type: 'string' } } },
}

/** One model call as the agent saw it. */
export interface ResponseStep {
  readonly status: number
  readonly headers: Headers
  readonly response: Item
  readonly text: string
  readonly calls: readonly Item[]
}

export interface ResponsesOptions {
  readonly stateful?: boolean
  readonly stream?: boolean
  readonly max?: number
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: Readonly<Record<string, unknown>>
  readonly result?: (call: Item) => string
  /** Items before the first question. */
  readonly opening?: readonly Item[]
}

function readBody(text: string, streams: boolean): Item {
  if (!streams) return JSON.parse(text) as Item
  const reader = createFrameReader()
  const frames = [...reader.push(Buffer.from(text)), ...reader.end()]
  const events = frames.map((frame) => JSON.parse(dataOf(frame) ?? 'null') as Item)
  const last = events.at(-1)
  if (last?.['type'] !== 'response.completed') throw new Error(`the stream did not end: ${text.slice(-200)}`)
  return last['response'] as Item
}

/** One model call. */
export async function callResponses(
  url: string,
  body: Item,
  { stream = false, headers }: ResponsesOptions = {},
): Promise<ResponseStep> {
  const answer = await fetch(`${url}/v1/responses`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: 'Bearer sk-test', ...headers },
    body: JSON.stringify({ model: 'gpt-test', instructions: 'Be good.', tools: [TOOL], stream, ...body }),
  })
  const response = readBody(await answer.text(), stream && answer.status === 200)
  const output = (response['output'] ?? []) as Item[]
  const contents = output.flatMap((item) => (item['content'] ?? []) as { text: string }[])
  return {
    status: answer.status,
    headers: answer.headers,
    response,
    text: contents.map(({ text }) => text).join(''),
    calls: output.filter(({ type }) => String(type).endsWith('_call')),
  }
}

/** Runs until the model answers without calling a tool, or `max` calls were made. */
export async function runResponses(url: string, question: string, options: ResponsesOptions = {}) {
  const { stateful = false, max = 30, result = () => 'found nothing new' } = options
  const steps: ResponseStep[] = []
  const items: Item[] = [...(options.opening ?? [])]
  let previous: unknown
  let body: Item = {}
  const send = async (input: readonly Item[]): Promise<ResponseStep> => {
    body = stateful
      ? { input, ...(previous ? { previous_response_id: previous } : {}), ...options.body }
      : { input: [...items, ...input], store: false, ...options.body }
    const step = await callResponses(url, body, options)
    if (step.status !== 200) throw new Error(JSON.stringify(step.response))
    items.push(...input, ...(step.response['output'] as Item[]))
    previous = step.response['id']
    steps.push(step)
    return step
  }
  const user = (content: string) => ({ role: 'user', content })
  let step = await send([user(question)])
  while (step.calls.length > 0 && steps.length < max) {
    const outputs = step.calls.map((call) => ({
      type: `${String(call['type'])}_output`,
      call_id: call['call_id'],
      output: result(call),
    }))
    step = await send(outputs)
  }
  return {
    steps,
    items,
    /** Sends the last request again. */
    repeat: () => callResponses(url, body, options),
    ask: (text: string) => send([user(text)]),
  }
}
