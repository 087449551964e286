/** The smallest agent loop: it calls the model and runs its tools until the model answers. */
import type { ChatMessage } from './provider.ts'

export const TOOLS = [
  {
    type: 'function',
    function: {
      name: 'search',
      description: 'Search the web',
      parameters: { type: 'object', properties: { query: { type: 'string' } } },
    },
  },
] as const

/** One model call as the agent saw it. */
export interface Step {
  readonly status: number
  readonly headers: Headers
  readonly message: ChatMessage
  readonly finish: string | null
  readonly governor: Record<string, unknown> | undefined
  readonly usage: Record<string, number> | undefined
}

interface Chunk {
  readonly choices: readonly {
    readonly delta?: { readonly content?: string; readonly tool_calls?: readonly ToolDelta[] }
    readonly finish_reason?: string | null
  }[]
  readonly governor?: Record<string, unknown>
  readonly usage?: Record<string, number>
}

interface ToolDelta {
  readonly index: number
  readonly id?: string
  readonly function?: { readonly name?: string; readonly arguments?: string }
}

/** Reads a streamed completion into a message, strictly: every event must be JSON or the end mark. */
function assemble(text: string): Omit<Step, 'status' | 'headers'> {
  const events = text.split('\n\n').filter((event) => event !== '')
  if (events.at(-1) !== 'data: [DONE]') throw new Error(`the stream did not end: ${events.at(-1)}`)
  let content = ''
  let finish: string | null = null
  let governor: Record<string, unknown> | undefined
  let usage: Record<string, number> | undefined
  const calls: { id: string; function: { name: string; arguments: string } }[] = []
  for (const event of events.slice(0, -1)) {
    const chunk = JSON.parse(event.replace(/^data: /, '')) as Chunk
    governor = chunk.governor ?? governor
    usage = chunk.usage ?? usage
    const [choice] = chunk.choices
    content += choice?.delta?.content ?? ''
    finish = choice?.finish_reason ?? finish
    for (const { index, id, function: part } of choice?.delta?.tool_calls ?? []) {
      const call = calls[index] ?? { id: id ?? '', function: { name: part?.name ?? '', arguments: '' } }
      call.function.arguments += part?.arguments ?? ''
      calls[index] = call
    }
  }
  return {
    message: {
      role: 'assistant',
      content: content || null,
      ...(calls.length > 0 ? { tool_calls: calls } : {}),
    },
    finish,
    governor,
    usage,
  }
}

export interface CallOptions {
  readonly stream?: boolean
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: Readonly<Record<string, unknown>>
  readonly signal?: AbortSignal
  /** In place of Node's own. */
  readonly fetch?: typeof globalThis.fetch
}

/** One model call. */
export async function callModel(
  url: string,
  messages: readonly ChatMessage[],
  options: CallOptions = {},
): Promise<Step> {
  const response = await (options.fetch ?? fetch)(`${url}/v1/chat/completions`, {
    method: 'POST',
    signal: options.signal ?? null,
    headers: { 'content-type': 'application/json', authorization: 'Bearer sk-test', ...options.headers },
    body: JSON.stringify({
      model: 'gpt-test',
      messages,
      tools: TOOLS,
      ...(options.stream ? { stream: true, stream_options: { include_usage: true } } : {}),
      ...options.body,
    }),
  })
  const text = await response.text()
  const { status, headers } = response
  if (status === 200 && options.stream) return { status, headers, ...assemble(text) }
  const json = JSON.parse(text) as {
    choices?: { message: ChatMessage; finish_reason: string }[]
    governor?: Record<string, unknown>
    usage?: Record<string, number>
  }
  return {
    status,
    headers,
    message: json.choices?.[0]?.message ?? { role: 'assistant' },
    finish: json.choices?.[0]?.finish_reason ?? null,
    governor: json.governor,
    usage: json.usage,
  }
}

/** The transcript after a step: the model's message, and a result for each of its calls. */
export function afterStep(
  messages: readonly ChatMessage[],
  step: Step,
  result = (name: string) => `the result of ${name}`,
): ChatMessage[] {
  const results = (step.message.tool_calls ?? []).map((call) => ({
    role: 'tool',
    tool_call_id: call.id,
    content: result(call.function.name),
  }))
  return [...messages, step.message, ...results]
}

/** Runs until the model answers without calling a tool, or `max` calls were made. */
export async function runAgent(
  url: string,
  messages: readonly ChatMessage[],
  options: CallOptions & { readonly max?: number } = {},
): Promise<{ readonly steps: Step[]; readonly messages: ChatMessage[] }> {
  const steps: Step[] = []
  let transcript = [...messages]
  while (steps.length < (options.max ?? 100)) {
    const step = await callModel(url, transcript, options)
    steps.push(step)
    transcript = afterStep(transcript, step)
    if (!step.message.tool_calls?.length) break
  }
  return { steps, messages: transcript }
}

export const START: readonly ChatMessage[] = [
  { role: 'system', content: 'You are a research agent.' },
  { role: 'user', content: 'Find out everything.' },
]
