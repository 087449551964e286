/** The wire format of Anthropic's Messages, for the scripted provider, and the smallest agent loop that speaks it. */
import type { Answer, ChatBody, Script } from './provider.ts'

const USAGE = {
  input_tokens: 100,
  cache_creation_input_tokens: 0,
  cache_read_input_tokens: 0,
  output_tokens: 10,
  service_tier: 'standard',
}

export interface Block {
  readonly type: string
  readonly text?: string
  readonly id?: string
  readonly name?: string
  readonly input?: unknown
  readonly [field: string]: unknown
}

export interface Message {
  readonly role: string
  readonly content: string | readonly Block[]
}

/** The blocks of an answer: those given before it, its text, its calls. */
function blocksOf(answer: Answer, number: number): Block[] {
  const calls = (answer.calls ?? []).map(({ id, name, arguments: input }, index) => ({
    type: 'tool_use',
    id: id ?? `toolu_${number}_${index}`,
    name,
    input: typeof input === 'string' ? JSON.parse(input) : input,
  }))
  return [
    ...((answer.blocks as readonly Block[] | undefined) ?? []),
    ...(answer.text ? [{ type: 'text', text: answer.text }] : []),
    ...calls,
  ]
}

function messageOf(request: ChatBody, answer: Answer, number: number) {
  const content = blocksOf(answer, number)
  const stop = answer.finish ?? (answer.calls?.length ? 'tool_use' : 'end_turn')
  return {
    id: `msg_${number}`,
    type: 'message',
    role: 'assistant',
    model: request.model,
    content,
    stop_reason: stop,
    stop_sequence: null,
    usage: { ...USAGE, ...answer.usage },
  }
}

/** A Messages response to a request. */
export function message(request: ChatBody, answer: Answer, number: number): object {
  return messageOf(request, answer, number)
}

function deltasOf(block: Block): { readonly start: Block; readonly deltas: readonly object[] } {
  switch (block.type) {
    case 'text':
      return {
        start: { type: 'text', text: '' },
        deltas: [
          ...(block.text ?? '').split(/(?<= )/).map((text) => ({ type: 'text_delta', text })),
          ...((block['citations'] as readonly object[]) ?? []).map((citation) => ({
            type: 'citations_delta',
            citation,
          })),
        ],
      }
    case 'tool_use': {
      const json = JSON.stringify(block.input)
      const half = Math.ceil(json.length / 2)
      return {
        start: { ...block, input: {} },
        deltas: ['', json.slice(0, half), json.slice(half)].map((partial_json) => ({
          type: 'input_json_delta',
          partial_json,
        })),
      }
    }
    case 'thinking':
      return {
        start: { type: 'thinking', thinking: '', signature: '' },
        deltas: [
          { type: 'thinking_delta', thinking: block['thinking'] },
          { type: 'signature_delta', signature: block['signature'] },
        ],
      }
    case 'compaction':
      return {
        start: { ...block, content: null },
        deltas: [{ type: 'compaction_delta', content: block['content'], encrypted_content: null }],
      }
    default:
      return { start: block, deltas: [] }
  }
}

/** The same as events, text word by word, with a ping as Anthropic sends them. */
export function events(request: ChatBody, answer: Answer, number: number): string[] {
  const whole = messageOf(request, answer, number)
  const event = (data: { readonly type: string }) => `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`
  const start = {
    ...whole,
    content: [],
    stop_reason: null,
    usage: { ...whole.usage, output_tokens: 1 },
  }
  return [
    event({ type: 'message_start', message: start } as { type: string }),
    ...whole.content.flatMap((block, index) => {
      const { start: content_block, deltas } = deltasOf(block)
      return [
        event({ type: 'content_block_start', index, content_block } as { type: string }),
        ...(index === 0 ? [event({ type: 'ping' })] : []),
        ...deltas.map((delta) => event({ type: 'content_block_delta', index, delta } as { type: string })),
        event({ type: 'content_block_stop', index } as { type: string }),
      ]
    }),
    event({
      type: 'message_delta',
      delta: { stop_reason: whole.stop_reason, stop_sequence: null },
      usage: { output_tokens: whole.usage.output_tokens },
    } as { type: string }),
    event({ type: 'message_stop' }),
  ]
}

/** The error for a thread that cannot be continued. */
function threadError(status: number, code: string): Answer {
  const error = { type: 'invalid_request_error', message: code, details: { error_code: code } }
  return { status, body: { type: 'error', error } }
}

/** True if every call is answered by the messages after it, as the API demands. */
function answersAllCalls(messages: readonly Message[]): boolean {
  const blocks = messages.flatMap(({ content }) => (typeof content === 'string' ? [] : content))
  const answered = new Set(blocks.map((block) => block['tool_use_id']))
  return blocks.every(({ type, id }) => type !== 'tool_use' || answered.has(id))
}

/**
 * A provider that keeps message threads: it has the script see the whole conversation, and refuses what the API refuses.
 * A response's id is its request's number.
 */
export function keepingThreads(script: Script): Script {
  const kept = new Map<string, { readonly body: ChatBody; readonly messages: Message[]; isOver: boolean }>()
  return async (request, number) => {
    const body = request.json
    const thread = body['thread'] as { type: string; previous_message_id?: string } | undefined
    if (!thread) return script(request, number)
    const before = thread.type === 'continue' ? kept.get(thread.previous_message_id ?? '') : undefined
    if (thread.type === 'continue') {
      if (!before) return threadError(404, 'thread_not_found')
      if (before.isOver) return threadError(409, 'thread_already_continued')
      if (body['system'] !== undefined || body.tools !== undefined)
        return threadError(400, 'thread_unsupported_request')
    }
    const messages = [...(before?.messages ?? []), ...(body.messages as Message[])]
    if (!answersAllCalls(messages)) return threadError(400, 'tool_use_without_tool_result')
    const whole = { ...before?.body, ...body, messages } as ChatBody
    const answer = await script({ ...request, json: whole }, number)
    if (answer.status !== undefined) return answer
    if (before) before.isOver = true
    const said = { role: 'assistant', content: blocksOf(answer, number) }
    kept.set(`msg_${number}`, { body: whole, messages: [...messages, said], isOver: false })
    return answer
  }
}

/** A model that calls one tool for ever, and answers only when it is given none or told not to choose any. */
export function runawayMessages(name = 'search', answer = 'This is what I found so far.'): Script {
  return ({ json }, number) => {
    const choice = (json.tool_choice as { type?: string } | undefined)?.type
    const mayCall = choice !== 'none' && json.tools !== undefined
    return mayCall ? { calls: [{ name, arguments: { query: `q${number}` } }] } : { text: answer }
  }
}

export const MESSAGES_TOOLS = [
  {
    name: 'search',
    description: 'Search the web',
    input_schema: { type: 'object', properties: { query: { type: 'string' } } },
  },
] as const

/** One model call as the agent saw it. */
export interface MessagesStep {
  readonly status: number
  readonly headers: Headers
  readonly message: { readonly id?: string; readonly content: readonly Block[] }
  readonly stop: string | null
  readonly governor: Record<string, unknown> | undefined
  readonly usage: Record<string, number> | undefined
  readonly text: string
  readonly body: string
}

interface Assembled {
  id?: string
  content: Block[]
  stop_reason: string | null
  usage?: Record<string, number>
  governor?: Record<string, unknown>
}

/** Puts a stream together as strictly as the grammar of its events allows. @throws {Error} if the stream breaks the grammar. */
export function assembleMessage(text: string): Assembled {
  let message: Assembled | undefined
  let open: { index: number; json: string } | undefined
  let isOver = false
  const must = (holds: boolean, what: string) => {
    if (!holds) throw new Error(`${what} in ${text}`)
  }
  for (const frame of text.split('\n\n').filter((one) => one !== '' && !one.startsWith(':'))) {
    const [, name, json = ''] = /^event: (\w+)\ndata: (.*)$/.exec(frame) ?? []
    const data = JSON.parse(json)
    must(data.type === name, 'an event of another name than its type')
    must(!isOver || name === 'ping', 'an event after the end')
    if (name === 'ping') continue
    must((message === undefined) === (name === 'message_start'), 'no start, or two')
    if (name === 'message_start') message = structuredClone(data.message) as Assembled
    if (!message) continue
    switch (name) {
      case 'message_start':
        break
      case 'content_block_start':
        must(open === undefined && data.index === message.content.length, 'a block out of order')
        open = { index: data.index, json: '' }
        message.content.push(data.content_block)
        break
      case 'content_block_delta': {
        must(open?.index === data.index, 'a delta of no open block')
        const block = message.content[data.index] as Record<string, string>
        const { type, ...delta } = data.delta
        if (type === 'input_json_delta' && open) open.json += delta.partial_json
        else if (type === 'citations_delta')
          Object.assign(block, { citations: [...(block['citations'] ?? []), delta.citation] })
        else for (const key of Object.keys(delta)) block[key] = (block[key] ?? '') + delta[key]
        break
      }
      case 'content_block_stop': {
        must(open?.index === data.index, 'the end of no open block')
        const block = message.content[data.index] as Record<string, unknown>
        if (open?.json) block['input'] = JSON.parse(open.json)
        open = undefined
        break
      }
      case 'message_delta':
        must(open === undefined, 'a block left open')
        message.stop_reason = data.delta.stop_reason
        message.usage = { ...message.usage, ...data.usage }
        if (data.governor) message.governor = data.governor
        break
      case 'message_stop':
        must(message.stop_reason !== null, 'no stop reason')
        isOver = true
        break
      default:
        throw new Error(`unknown event ${name}`)
    }
  }
  must(isOver && message !== undefined, 'no end')
  return message as Assembled
}

export interface MessagesOptions {
  readonly stream?: boolean
  readonly headers?: Readonly<Record<string, string>>
  readonly body?: Readonly<Record<string, unknown>>
}

/** One model call. */
export async function callMessages(
  url: string,
  messages: readonly Message[],
  options: MessagesOptions = {},
): Promise<MessagesStep> {
  const response = await fetch(`${url}/v1/messages`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      'x-api-key': 'sk-test',
      'anthropic-version': '2023-06-01',
      ...options.headers,
    },
    body: JSON.stringify({
      model: 'claude-test',
      max_tokens: 1000,
      system: 'You are a research agent.',
      tools: MESSAGES_TOOLS,
      messages,
      ...(options.stream ? { stream: true } : {}),
      ...options.body,
    }),
  })
  const body = await response.text()
  const { status, headers } = response
  const isStream = headers.get('content-type')?.startsWith('text/event-stream')
  const read = status === 200 && isStream ? assembleMessage(body) : (JSON.parse(body) as Assembled)
  const content = read.content ?? []
  return {
    status,
    headers,
    message: { ...(read.id === undefined ? {} : { id: read.id }), content },
    stop: read.stop_reason ?? null,
    governor: read.governor,
    usage: read.usage,
    text: content.map((block) => (block.type === 'text' ? block.text : '')).join(''),
    body,
  }
}

/** What a client sends back for the calls of a response. */
export function resultsFor(content: readonly Block[], result = (name: string) => `the result of ${name}`): Message {
  const calls = content.filter(({ type }) => type === 'tool_use')
  return {
    role: 'user',
    content: calls.map(({ id, name }) => ({
      type: 'tool_result',
      tool_use_id: id,
      content: result(name ?? ''),
    })),
  }
}

/** Runs until the model answers without calling a tool, or `max` calls were made. */
export async function runMessagesAgent(
  url: string,
  messages: readonly Message[],
  options: MessagesOptions & { readonly max?: number } = {},
): Promise<{ readonly steps: MessagesStep[]; readonly messages: Message[] }> {
  const steps: MessagesStep[] = []
  const transcript = [...messages]
  while (steps.length < (options.max ?? 100)) {
    const step = await callMessages(url, transcript, options)
    steps.push(step)
    const { content } = step.message
    transcript.push({ role: 'assistant', content })
    if (!content.some(({ type }) => type === 'tool_use')) break
    transcript.push(resultsFor(content))
  }
  return { steps, messages: transcript }
}

export const ASKED: readonly Message[] = [{ role: 'user', content: 'Find out everything.' }]
