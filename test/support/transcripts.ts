/** Transcripts in no API's form: how each API sends them, and how its answers are read, also those that do not end. */
import { createFrameReader, dataOf } from '../../src/sse/frames.ts'

export interface Call {
  readonly id: string
  readonly name: string
  /** As JSON text. */
  readonly arguments: string
}

/** One part of a transcript. */
export type Entry =
  | { readonly kind: 'system'; readonly text: string }
  | { readonly kind: 'human'; readonly text: string }
  /** What a harness says in a user's place; `picture`: beside a picture. */
  | { readonly kind: 'note'; readonly text: string; readonly picture?: true }
  | AnswerEntry
  | ResultEntry

export interface AnswerEntry {
  readonly kind: 'answer'
  readonly text: string
  readonly calls: readonly Call[]
  readonly reasoning?: string | undefined
  /** The blocks or items of the provider's own compaction. */
  readonly compaction?: object | undefined
  /** The number of the answer in its agent's conversation; unset where no model wrote it. */
  readonly number?: number
}

export interface ResultEntry {
  readonly kind: 'result'
  readonly id: string
  readonly name: string
  readonly text: string
  /** The client replaced the result by a placeholder. */
  readonly isCleared?: true
}

/** What a client read of a response. */
export interface ReadAnswer {
  readonly text: string
  readonly calls: readonly Call[]
  readonly reasoning?: string | undefined
  readonly compaction?: object | undefined
  /** The response came to its end, without an error. */
  readonly hasEnded: boolean
  readonly governor: Record<string, unknown> | undefined
}

type Json = Record<string, unknown>

/** How one API sends transcripts and answers. */
interface Form {
  readonly path: string
  /** Returns the headers that carry a key. */
  headers(key: string): Record<string, string>
  /** Returns the body of a request with a transcript. */
  body(transcript: readonly Entry[]): Json
  readWhole(body: Json): ReadAnswer
  /** Reads the events of a stream; the answer may lack its end. */
  readEvents(events: readonly Json[], text: string): ReadAnswer
}

const PICTURE =
  'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=='

const systemText = (transcript: readonly Entry[]) =>
  transcript.flatMap((entry) => (entry.kind === 'system' ? [entry.text] : [])).join('\n')

const governorOf = (value: unknown) => value as Record<string, unknown> | undefined

interface ChatMessage {
  readonly content?: string | null
  readonly tool_calls?: readonly { readonly id: string; readonly function: { name: string; arguments: string } }[]
}

const callsOfChat = (calls: ChatMessage['tool_calls'] = []): Call[] =>
  calls.map(({ id, function: { name, arguments: text } }) => ({ id, name, arguments: text }))

function chatMessage(entry: Entry): Json {
  switch (entry.kind) {
    case 'system':
      return { role: 'system', content: entry.text }
    case 'human':
      return { role: 'user', content: entry.text }
    case 'note': {
      const image = { type: 'image_url', image_url: { url: PICTURE } }
      return { role: 'user', content: entry.picture ? [image, { type: 'text', text: entry.text }] : entry.text }
    }
    case 'result':
      return { role: 'tool', tool_call_id: entry.id, content: entry.text }
    case 'answer': {
      const calls = entry.calls.map(({ id, name, arguments: text }) => ({
        id,
        type: 'function',
        function: { name, arguments: text },
      }))
      return { role: 'assistant', content: entry.text || null, ...(calls.length > 0 ? { tool_calls: calls } : {}) }
    }
  }
}

function readChatEvents(events: readonly Json[], body: string): ReadAnswer {
  let [text, isOver, isFailed] = ['', false, false]
  let governor: Record<string, unknown> | undefined
  const calls: { id: string; function: { name: string; arguments: string } }[] = []
  for (const event of events) {
    if (event['error'] !== undefined) isFailed = true
    governor = governorOf(event['governor']) ?? governor
    const [choice] = (event['choices'] ?? []) as {
      delta?: { content?: string; tool_calls?: readonly (Json & { function: Json })[] }
      finish_reason?: string | null
    }[]
    text += choice?.delta?.content ?? ''
    isOver ||= typeof choice?.finish_reason === 'string'
    for (const { index, id, function: part } of choice?.delta?.tool_calls ?? []) {
      const at = Number(index)
      const call = calls[at] ?? { id: String(id), function: { name: String(part['name']), arguments: '' } }
      call.function.arguments += String(part['arguments'] ?? '')
      calls[at] = call
    }
  }
  const hasEnded = isOver && !isFailed && body.trimEnd().endsWith('[DONE]')
  return { text, calls: callsOfChat(calls), hasEnded, governor }
}

const chat: Form = {
  path: '/v1/chat/completions',
  headers: (key) => ({ authorization: `Bearer ${key}` }),
  body: (transcript) => ({
    model: 'gpt-test',
    tools: [{ type: 'function', function: { name: 'search', parameters: { type: 'object' } } }],
    messages: transcript.map(chatMessage),
  }),
  readWhole(body) {
    const [choice] = (body['choices'] ?? []) as { message: ChatMessage }[]
    const calls = callsOfChat(choice?.message.tool_calls)
    const hasEnded = choice !== undefined
    return { text: choice?.message.content ?? '', calls, hasEnded, governor: governorOf(body['governor']) }
  },
  readEvents: readChatEvents,
}

function messageBlocks(entry: Exclude<Entry, { kind: 'system' }>): Json[] {
  const text = { type: 'text', text: 'text' in entry ? entry.text : '' }
  switch (entry.kind) {
    case 'human':
      return [text]
    case 'note': {
      const source = { type: 'base64', media_type: 'image/png', data: PICTURE.split(',')[1] }
      return entry.picture ? [{ type: 'image', source }, text] : [text]
    }
    case 'result':
      return [{ type: 'tool_result', tool_use_id: entry.id, content: entry.text }]
    case 'answer':
      return [
        ...(entry.compaction ? [entry.compaction as Json] : []),
        ...(entry.reasoning === undefined
          ? []
          : [{ type: 'thinking', thinking: entry.reasoning, signature: `signed ${entry.reasoning}` }]),
        ...(entry.text ? [text] : []),
        ...entry.calls.map(({ id, name, arguments: json }) => ({
          type: 'tool_use',
          id,
          name,
          input: JSON.parse(json) as unknown,
        })),
      ]
  }
}

function answerOfBlocks(blocks: readonly Json[], hasEnded: boolean, governor: unknown): ReadAnswer {
  const of = (type: string) => blocks.filter((block) => block['type'] === type)
  return {
    text: of('text')
      .map((block) => String(block['text']))
      .join(''),
    calls: of('tool_use').map(({ id, name, input }) => ({
      id: String(id),
      name: String(name),
      arguments: JSON.stringify(input),
    })),
    reasoning: of('thinking')[0]?.['thinking'] as string | undefined,
    compaction: of('compaction')[0],
    hasEnded,
    governor: governorOf(governor),
  }
}

function readMessagesEvents(events: readonly Json[]): ReadAnswer {
  const blocks: Json[] = []
  let [json, isOver, isFailed] = ['', false, false]
  let governor: unknown
  for (const event of events) {
    const block = blocks.at(-1)
    const delta = (event['delta'] ?? {}) as Record<string, string>
    switch (event['type']) {
      case 'content_block_start':
        blocks.push({ ...(event['content_block'] as Json), isOpen: true })
        json = ''
        break
      case 'content_block_delta':
        if (delta['type'] === 'input_json_delta') json += delta['partial_json']
        else if (block)
          for (const key of ['text', 'thinking', 'signature', 'content'])
            if (delta[key] !== undefined) block[key] = `${block[key] ?? ''}${delta[key]}`
        break
      case 'content_block_stop':
        if (block && json) block['input'] = JSON.parse(json)
        if (block) delete block['isOpen']
        break
      case 'message_delta':
        governor = event['governor'] ?? governor
        break
      case 'message_stop':
        isOver = true
        break
      case 'error':
        isFailed = true
        break
    }
  }
  const whole = blocks.filter((block) => !block['isOpen'] || block['type'] === 'text')
  return answerOfBlocks(whole, isOver && !isFailed, governor)
}

const messages: Form = {
  path: '/v1/messages',
  headers: (key) => ({ 'x-api-key': key, 'anthropic-version': '2023-06-01' }),
  body(transcript) {
    const sent: { role: string; content: Json[] }[] = []
    for (const entry of transcript) {
      if (entry.kind === 'system') continue
      const role = entry.kind === 'answer' ? 'assistant' : 'user'
      const before = sent.at(-1)
      // Results and what a user says after them are one message; two answers are two.
      if (role === 'user' && before?.role === 'user') before.content.push(...messageBlocks(entry))
      else sent.push({ role, content: messageBlocks(entry) })
    }
    const system = systemText(transcript)
    const tools = [{ name: 'search', input_schema: { type: 'object' } }]
    return { model: 'claude-test', max_tokens: 100, ...(system ? { system } : {}), tools, messages: sent }
  },
  readWhole(body) {
    const blocks = (body['content'] ?? []) as Json[]
    return answerOfBlocks(blocks, body['content'] !== undefined, body['governor'])
  },
  readEvents: readMessagesEvents,
}

function responseItems(entry: Entry): Json[] {
  switch (entry.kind) {
    case 'system':
      return []
    case 'human':
      return [{ role: 'user', content: entry.text }]
    case 'note': {
      const image = { type: 'input_image', image_url: PICTURE }
      const content = entry.picture ? [image, { type: 'input_text', text: entry.text }] : entry.text
      return [{ role: 'user', content }]
    }
    case 'result':
      return [{ type: 'function_call_output', call_id: entry.id, output: entry.text }]
    case 'answer':
      return [
        ...(entry.compaction ? [entry.compaction as Json] : []),
        ...(entry.reasoning === undefined
          ? []
          : [{ type: 'reasoning', id: 'rs', summary: [], encrypted_content: entry.reasoning }]),
        ...(entry.text
          ? [{ type: 'message', role: 'assistant', content: [{ type: 'output_text', text: entry.text }] }]
          : []),
        ...entry.calls.map(({ id, name, arguments: json }) => ({
          type: 'function_call',
          call_id: id,
          name,
          arguments: json,
        })),
      ]
  }
}

function answerOfItems(items: readonly Json[], hasEnded: boolean, governor: unknown): ReadAnswer {
  const of = (type: string) => items.filter((item) => item['type'] === type)
  const contents = of('message').flatMap((item) => (item['content'] ?? []) as { text: string }[])
  return {
    text: contents.map(({ text }) => text).join(''),
    calls: of('function_call').map((item) => ({
      id: String(item['call_id']),
      name: String(item['name']),
      arguments: String(item['arguments']),
    })),
    reasoning: of('reasoning')[0]?.['encrypted_content'] as string | undefined,
    compaction: of('compaction')[0],
    hasEnded,
    governor: governorOf(governor),
  }
}

const responses: Form = {
  path: '/v1/responses',
  headers: (key) => ({ authorization: `Bearer ${key}` }),
  body(transcript) {
    const instructions = systemText(transcript)
    return {
      model: 'gpt-test',
      store: false,
      ...(instructions ? { instructions } : {}),
      tools: [{ type: 'function', name: 'search', parameters: { type: 'object' } }],
      input: transcript.flatMap(responseItems),
    }
  },
  readWhole: (body) => answerOfItems((body['output'] ?? []) as Json[], body['output'] !== undefined, body['governor']),
  readEvents(events) {
    const last = events.at(-1)
    if (last?.['type'] === 'response.completed' || last?.['type'] === 'response.incomplete') {
      const whole = last['response'] as Json
      return answerOfItems(whole['output'] as Json[], true, whole['governor'])
    }
    const done = events.flatMap((event) =>
      event['type'] === 'response.output_item.done' ? [event['item'] as Json] : [],
    )
    const answer = answerOfItems(done, false, undefined)
    const deltas = events.flatMap((event) => (event['type'] === 'response.output_text.delta' ? [event['delta']] : []))
    return { ...answer, text: deltas.join('') }
  },
}

/** Each API that an agent may speak. */
export const FORMS = { chat, messages, responses } as const

export type DialectName = keyof typeof FORMS

export const DIALECTS = Object.keys(FORMS) as DialectName[]

/** Reads a response as a client of its API does; one that was cut gives what had come. */
export function readAnswer(dialect: DialectName, text: string, streams: boolean): ReadAnswer {
  const form = FORMS[dialect]
  try {
    if (!streams) return form.readWhole(JSON.parse(text) as Json)
  } catch {
    return { text: '', calls: [], hasEnded: false, governor: undefined }
  }
  const reader = createFrameReader()
  const datas = [...reader.push(Buffer.from(text)), ...reader.end()].map((frame) => dataOf(frame) ?? '')
  const events = datas.flatMap((data) => {
    try {
      return [JSON.parse(data) as Json]
    } catch {
      return []
    }
  })
  return form.readEvents(events, text)
}

const LETTERS = { system: 'S', human: 'H', note: 'N', result: 'r' } as const

/** Writes a transcript in letters: `S H A1r A2r N`; `T` is an answer that only speaks, `-` a result that was cleared. */
export function lettersOf(transcript: readonly Entry[]): string {
  return transcript
    .map((entry) => {
      if (entry.kind === 'result') return entry.isCleared ? '-' : 'r'
      if (entry.kind !== 'answer') return ` ${LETTERS[entry.kind]}`
      return ` ${entry.calls.length > 0 ? 'A'.repeat(entry.calls.length) : 'T'}${entry.number ?? ''}`
    })
    .join('')
    .trim()
}
