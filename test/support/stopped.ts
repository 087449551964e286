/** A request that a limit stops, and what its provider may answer, in each dialect. */
import { START, TOOLS } from './agent.ts'
import { ASKED, events, MESSAGES_TOOLS, message } from './messages.ts'
import { type Answer, type ChatBody, chunks, completion } from './provider.ts'
import { eventTexts, type Item, responseEvents, responseObject } from './responses.ts'
import { TOOL } from './responses-agent.ts'

export const TEXT = 'I found out that it is 42.'
export const STREAM = { 'content-type': 'text/event-stream' }
export const errorOf = (text: string) => ({
  error: { message: text, type: 'server_error', code: 'overloaded' },
})
export const data = (value: object) => `data: ${JSON.stringify(value)}\n\n`
const named = (event: Item) => `event: ${String(event['type'])}\n${data(event)}`

/** One dialect: the stopped request, the model's answer, and the form in which its provider reports a failure. */
export interface Api {
  readonly name: string
  readonly path: string
  readonly request: object
  /** The frames of a streamed response, and a whole response. */
  frames(answer: Answer): string[]
  whole(answer: Answer): object
  readonly failures: readonly (readonly [string, string])[]
  readonly failedWhole: object
  readonly cutOff: readonly (readonly [string, boolean])[]
  /** Changes what the model stops for. */
  reasonIn(body: string): unknown
  /** The request in which an agent asks for its last answer itself. */
  readonly ownEnd: object
}

const SUMMARY =
  "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools."
const body = { model: 'm', messages: [] } as unknown as ChatBody

export const chat: Api = {
  name: 'Chat Completions',
  path: '/v1/chat/completions',
  request: {
    tools: TOOLS,
    messages: [
      ...START,
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'c', type: 'function', function: { name: 'search', arguments: '{}' } }],
      },
      { role: 'tool', tool_call_id: 'c', content: 'found' },
    ],
  },
  frames: (answer) => chunks(body, answer, 1),
  whole: (answer) => completion(body, answer, 1),
  failures: [
    ['an error', data(errorOf('Overloaded'))],
    [
      'an error beside a choice',
      data({ choices: [{ index: 0, delta: {}, finish_reason: 'error' }], ...errorOf('Lost') }),
    ],
    ['the reason `error`', data({ choices: [{ index: 0, delta: {}, finish_reason: 'error' }] })],
  ],
  failedWhole: { ...completion(body, { text: 'I found', finish: 'error' }, 1) },
  cutOff: [
    ['length', true],
    ['content_filter', true],
    ['stop', false],
  ],
  reasonIn: (text) => /"finish_reason":"(\w+)"/.exec(text)?.[1],
  ownEnd: {
    messages: [...START, { role: 'assistant', content: 'Hm.' }, { role: 'user', content: SUMMARY }],
    tools: TOOLS,
  },
}

const call = { type: 'tool_use', id: 't1', name: 'search', input: {} }
export const anthropic: Api = {
  name: 'Messages',
  path: '/v1/messages',
  request: {
    max_tokens: 100,
    tools: MESSAGES_TOOLS,
    messages: [
      ...ASKED,
      { role: 'assistant', content: [call] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: 't1', content: 'found' }] },
    ],
  },
  // A ping does not wait for the text before it.
  frames: (answer) => events(body, answer, 1).filter((frame) => !frame.includes('ping')),
  whole: (answer) => message(body, answer, 1),
  failures: [['`event: error`', named({ type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } })]],
  failedWhole: { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } },
  cutOff: [
    ['max_tokens', true],
    ['model_context_window_exceeded', true],
    ['refusal', false],
    ['end_turn', false],
  ],
  reasonIn: (text) => /"stop_reason":"(\w+)"/.exec(text)?.[1],
  ownEnd: {
    max_tokens: 100,
    tools: MESSAGES_TOOLS,
    messages: [...ASKED, { role: 'assistant', content: 'Hm.' }, { role: 'user', content: SUMMARY }],
  },
}

const failedResponse = {
  ...responseObject(body, { text: 'I found', finish: 'failed' }, 1),
  error: { code: 'server_error', message: 'Lost' },
}
export const responses: Api = {
  name: 'Responses',
  path: '/v1/responses',
  request: {
    tools: [TOOL],
    store: false,
    input: [
      { role: 'user', content: 'Find out everything.' },
      { type: 'function_call', call_id: 'c', name: 'search', arguments: '{}' },
      { type: 'function_call_output', call_id: 'c', output: 'found' },
    ],
  },
  frames: (answer) => eventTexts(responseEvents(responseObject(body, answer, 1))),
  whole: (answer) => responseObject(body, answer, 1),
  failures: [
    ['`response.failed`', named({ type: 'response.failed', sequence_number: 7, response: failedResponse })],
    ['`error`', named({ type: 'error', sequence_number: 7, code: 'server_error', message: 'Lost' })],
  ],
  failedWhole: failedResponse,
  cutOff: [
    ['incomplete', true],
    ['completed', false],
  ],
  reasonIn: (text) => /"type":"response\.(completed|incomplete|failed)"/.exec(text)?.[1] ?? JSON.parse(text).status,
  ownEnd: {
    tools: [TOOL],
    store: false,
    input: [
      { role: 'user', content: 'Find out everything.' },
      { role: 'assistant', content: 'Hm.' },
      { role: 'user', content: SUMMARY },
    ],
  },
}

/** Sends a request as a client of the dialect does. */
export async function send(url: string, api: Api, request: object, stream: boolean) {
  const reply = await fetch(`${url}${api.path}`, {
    method: 'POST',
    headers: {
      'content-type': 'application/json',
      authorization: 'Bearer k',
      'anthropic-version': '2023-06-01',
    },
    body: JSON.stringify({ model: 'm', ...request, ...(stream ? { stream: true } : {}) }),
  })
  return { status: reply.status, headers: reply.headers, text: await reply.text() }
}

/** All dialects, each with a request that a limit of one iteration stops. */
export const STOPPED: readonly Api[] = [chat, anthropic, responses]
