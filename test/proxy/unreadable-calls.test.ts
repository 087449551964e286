import { gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Answer, Received } from '../support/provider.ts'
import { mayCall } from '../support/scripts.ts'

/** A step of an agent, in the history of one API. */
interface Api {
  readonly path: string
  readonly headers?: Readonly<Record<string, string>>
  /** The body of request `at`, from 1: all steps before it made `calls` equal calls. */
  body(at: number, stream: boolean, calls: number): object
}

const TASK = { role: 'user', content: 'Find it.' }
const steps = (at: number) => Array.from({ length: at - 1 }, (_, step) => step)
const each = (calls: number) => Array.from({ length: calls }, (_, call) => call)
const RESULT = 'nothing was found in all of the files'

const CHAT: Api = {
  path: '/v1/chat/completions',
  body: (at, stream, calls) => ({
    model: 'm',
    stream,
    tools: [{ type: 'function', function: { name: 'search', parameters: {} } }],
    messages: [
      TASK,
      ...steps(at).flatMap((step) => [
        {
          role: 'assistant',
          content: null,
          tool_calls: each(calls).map((call) => ({
            id: `${step}-${call}`,
            type: 'function',
            function: { name: 'search', arguments: '{"q":"it"}' },
          })),
        },
        ...each(calls).map((call) => ({ role: 'tool', tool_call_id: `${step}-${call}`, content: RESULT })),
      ]),
    ],
  }),
}

const RESPONSES: Api = {
  path: '/v1/responses',
  body: (at, stream) => ({
    model: 'm',
    stream,
    store: false,
    tools: [{ type: 'function', name: 'search', parameters: {} }],
    input: [
      TASK,
      ...steps(at).flatMap((step) => [
        { type: 'function_call', call_id: `c${step}`, name: 'search', arguments: '{"q":"it"}' },
        { type: 'function_call_output', call_id: `c${step}`, output: RESULT },
      ]),
    ],
  }),
}

const MESSAGES: Api = {
  path: '/v1/messages',
  headers: { 'anthropic-version': '2023-06-01' },
  body: (at, stream) => ({
    model: 'm',
    stream,
    max_tokens: 99,
    tools: [{ name: 'search', input_schema: { type: 'object' } }],
    messages: [
      TASK,
      ...steps(at).flatMap((step) => [
        { role: 'assistant', content: [{ type: 'tool_use', id: `t${step}`, name: 'search', input: { q: 'it' } }] },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: `t${step}`, content: RESULT }] },
      ]),
    ],
  }),
}

const events = (...all: unknown[]): Answer => ({
  status: 200,
  headers: { 'content-type': 'text/event-stream' },
  body: all.map((one) => `data: ${typeof one === 'string' ? one : JSON.stringify(one)}\n\n`).join(''),
})
const named = (...all: { readonly type: string }[]): Answer => ({
  status: 200,
  headers: { 'content-type': 'text/event-stream' },
  body: all.map((one) => `event: ${one.type}\ndata: ${JSON.stringify(one)}\n\n`).join(''),
})
const delta = (value: object, finish: string | null = null, index = 0) => ({
  id: 'x',
  object: 'chat.completion.chunk',
  created: 1,
  model: 'm',
  choices: [{ index, delta: value, finish_reason: finish }],
})
const piece = (more: object = {}) => ({ index: 0, function: { name: 'search', arguments: '{"q":"it"}' }, ...more })
const END = [delta({}, 'tool_calls'), '[DONE]']
const whole = (body: object, headers = {}): Answer => ({ status: 200, body, headers })
const choice = (index: number) => ({
  index,
  finish_reason: 'tool_calls',
  message: {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: 'c', type: 'function', function: { name: 'search', arguments: '{"q":"it"}' } }],
  },
})
const completion = (...choices: object[]) => ({ id: 'x', object: 'chat.completion', created: 1, model: 'm', choices })
const coded = (coding: string): Answer => ({
  status: 200,
  headers: { 'content-type': 'application/json', 'content-encoding': coding },
  body: gzipSync(JSON.stringify(completion(choice(0)))),
})

const ITEM = {
  id: 'fc',
  type: 'function_call',
  call_id: 'c',
  name: 'search',
  arguments: '{"q":"it"}',
  status: 'completed',
}
const response = (output: object[]) => ({ id: 'r', object: 'response', status: 'completed', model: 'm', output })

/** The answers of a model that makes the same call in every step, by how its provider writes them. */
const ENCODINGS: readonly (readonly [name: string, api: Api, stream: boolean, calls: number, answer: Answer])[] = [
  ['a whole completion', CHAT, false, 1, whole(completion(choice(0)))],
  ['a stream', CHAT, true, 1, events(delta({ tool_calls: [piece({ id: 'c' })] }), ...END)],
  [
    'a stream of calls without ids, all with index 0',
    CHAT,
    true,
    2,
    events(delta({ tool_calls: [piece()] }), delta({ tool_calls: [piece()] }), ...END),
  ],
  [
    'calls glued into one',
    CHAT,
    true,
    2,
    events(
      delta({
        tool_calls: [piece({ id: 'c', function: { name: 'searchsearch', arguments: '{"q":"it"}{"q":"it"}' } })],
      }),
      ...END,
    ),
  ],
  [
    'a call with arguments that end too early',
    CHAT,
    true,
    1,
    events(delta({ tool_calls: [piece({ id: 'c', function: { name: 'search', arguments: '{"q":"i' } })] }), ...END),
  ],
  ['several choices', CHAT, false, 1, whole(completion(choice(0), choice(1)))],
  [
    'a stream of several choices',
    CHAT,
    true,
    1,
    events(delta({ tool_calls: [piece({ id: 'c' })] }, null, 1), delta({ tool_calls: [piece({ id: 'c' })] }), ...END),
  ],
  [
    'a call in the text',
    CHAT,
    true,
    1,
    events(
      delta({ content: '<tool_call>{"name": "search", "arguments": {"q": "it"}}</tool_call>' }),
      delta({}, 'stop'),
      '[DONE]',
    ),
  ],
  ['a stream without an end', CHAT, true, 1, events(delta({ tool_calls: [piece({ id: 'c' })] }))],
  ['a content coding that nobody knows', CHAT, false, 1, coded('snappy')],
  ['two content codings', CHAT, false, 1, coded('gzip, gzip')],
  ['a Responses response', RESPONSES, false, 1, whole(response([ITEM]))],
  [
    'a Responses stream without output_item.done',
    RESPONSES,
    true,
    1,
    named(
      { type: 'response.created', response: response([]) } as { type: string },
      { type: 'response.output_item.added', output_index: 0, item: { ...ITEM, arguments: '' } } as { type: string },
      { type: 'response.function_call_arguments.delta', item_id: 'fc', output_index: 0, delta: ITEM.arguments } as {
        type: string
      },
      { type: 'response.completed', response: response([]) } as { type: string },
    ),
  ],
  [
    'a Messages response',
    MESSAGES,
    false,
    1,
    whole({
      id: 'm',
      type: 'message',
      role: 'assistant',
      model: 'm',
      stop_reason: 'tool_use',
      content: [{ type: 'tool_use', id: 't', name: 'search', input: { q: 'it' } }],
      usage: { input_tokens: 1, output_tokens: 1 },
    }),
  ],
  [
    'a Messages stream without content_block_stop',
    MESSAGES,
    true,
    1,
    named(
      {
        type: 'message_start',
        message: {
          id: 'm',
          type: 'message',
          role: 'assistant',
          model: 'm',
          content: [],
          usage: { input_tokens: 1, output_tokens: 1 },
        },
      } as { type: string },
      {
        type: 'content_block_start',
        index: 0,
        content_block: { type: 'tool_use', id: 't', name: 'search', input: {} },
      } as { type: string },
      { type: 'content_block_delta', index: 0, delta: { type: 'input_json_delta', partial_json: '{"q":"it"}' } } as {
        type: string
      },
      { type: 'message_delta', delta: { stop_reason: 'tool_use' }, usage: { output_tokens: 1 } } as { type: string },
      { type: 'message_stop' },
    ),
  ],
]

const mayCallAny = (request: Received) => mayCall(request) && request.json.tools !== undefined

/** Sends the steps of an agent until its run is over; returns how many requests that took, and the last response. */
async function loopUntilEnd(api: Api, stream: boolean, calls: number, answer: Answer, config = {}, max = 30) {
  const running = await startBoth((request) => (mayCallAny(request) ? answer : { text: 'It is not there.' }), config)
  let last: Response | undefined
  for (let at = 1; at <= max; at++) {
    last = await fetch(running.url + api.path, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        authorization: 'Bearer sk-a',
        'x-governor-session': 's',
        ...api.headers,
      },
      body: JSON.stringify(api.body(at, stream, calls)),
    })
    await last.arrayBuffer().catch(() => undefined)
    if (last.headers.has('x-governor-terminal-state')) return { requests: at, last, ...running }
  }
  return { requests: Number.POSITIVE_INFINITY, last, ...running }
}

describe('a run in a loop whose calls Governor cannot read in the responses', () => {
  it.each(ENCODINGS)('ends at most five requests later than others: %s', async (_, api, stream, calls, answer) => {
    const control = await loopUntilEnd(CHAT, false, 1, whole(completion(choice(0))))
    const { requests, last } = await loopUntilEnd(api, stream, calls, answer)
    expect(control.requests).toBe(7)
    expect(requests).toBeLessThanOrEqual(control.requests + 5)
    expect(last?.status).toBe(200)
    expect(last?.headers.get('x-governor-terminal-reason')).toBe('loop_guard')
    expect(last?.headers.get('x-governor-loop')).toMatch(/^repetition;count=\d+$/)
  })
})
