import OpenAI from 'openai'
import { describe, expect, it } from 'vitest'
import { runAgent, START, TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { Answer, ChatMessage } from '../support/provider.ts'
import { mayCall, readsBlock } from '../support/scripts.ts'

const SAME: Answer = { calls: [{ name: 'search', arguments: { query: 'the same' } }] }
const CALL = { id: 'a', type: 'function', function: { name: 'search', arguments: '{"query":"the same"}' } }
const OTHER = { id: 'b', type: 'function', function: { name: 'read', arguments: '{"file":"a"}' } }

const DONE = 'data: [DONE]\n\n'
const chunk = (choices: unknown, more: object = {}) =>
  `data: ${JSON.stringify({ id: 'x', object: 'chat.completion.chunk', created: 1, model: 'm', choices, ...more })}\n\n`
const delta = (value: object, finish: string | null = null, more: object = {}) =>
  chunk([{ index: 0, delta: value, finish_reason: finish }], more)
const calling = (...calls: object[]) => delta({ tool_calls: calls })
const role = delta({ role: 'assistant', content: '' })
const end = delta({}, 'tool_calls')
const stream = (...events: string[]): Answer => ({
  status: 200,
  body: events.join(''),
  headers: { 'content-type': 'text/event-stream' },
})

/** The third of three equal calls comes as `third`; a model that reads that it was blocked answers `after`. */
async function whereThird(third: Answer, after: Answer = { text: 'I give up.' }) {
  const { url, provider } = await startBoth(
    (request, number) =>
      readsBlock(request) ? after : !mayCall(request) ? { text: 'Without it.' } : number === 3 ? third : SAME,
    { loop_guard: { max_warnings_before_block: 0 } },
  )
  const { messages } = await runAgent(url, START, { max: 2 })
  const { client, decision } = clientOf(url)
  const running = client.chat.completions.stream({
    model: 'gpt-test',
    messages: messages as ChatMessage[] as OpenAI.ChatCompletionMessageParam[],
    tools: TOOLS as unknown as OpenAI.ChatCompletionTool[],
    stream_options: { include_usage: true },
  })
  const { choices, usage } = await running.finalChatCompletion()
  return { ...choices[0], usage, decision: decision(), asked: provider.requests.at(-1)?.json.messages ?? [] }
}

/** The official client, and the verdict in the newest reply. */
function clientOf(url: string) {
  let decision: string | null = null
  const client = new OpenAI({
    apiKey: 'sk-test',
    baseURL: `${url}/v1`,
    maxRetries: 0,
    fetch: async (...request) => {
      const response = await fetch(...request)
      decision = response.headers.get('x-governor-verdict')
      return response
    },
  })
  return { client, decision: () => decision }
}

const callsOf = (message: OpenAI.ChatCompletionMessage | undefined) =>
  message?.tool_calls?.map(({ id, ...call }) => [id, 'function' in call ? call.function.arguments : ''])

it.each([429, 503])(
  'a run ends where its client has begun to read an answer and the provider is busy after a block (%i)',
  async (status) => {
    const text = delta({ content: 'Let me look. ' })
    const busy = { status, body: { error: { message: 'Busy.', type: 'server_error', code: null } } }
    const { message, finish_reason: finish } = await whereThird(
      stream(role, text, calling({ index: 0, ...CALL }), end, DONE),
      busy,
    )
    expect(message?.tool_calls ?? []).toEqual([])
    expect(message?.content).toMatch(/^Let me look\. /)
    expect(finish).toBe('stop')
  },
)

describe('a repeated call in a stream is recognized and blocked', () => {
  it.each<[string, string[]]>([
    [
      'that comes with the role and the finish reason',
      [delta({ role: 'assistant', tool_calls: [{ index: 0, ...CALL }] }, 'tool_calls'), DONE],
    ],
    ['that has no index', [role, calling(CALL), end, DONE]],
    ['whose index is not nought', [role, calling({ index: 1, ...CALL }), end, DONE]],
    [
      'that is cut into pieces',
      [
        role,
        calling({ index: 0, ...CALL, function: { name: 'search', arguments: '{"query"' } }),
        calling({ index: 0, function: { arguments: ':"the same"}' } }),
        end,
        DONE,
      ],
    ],
    [
      'whose later pieces have an empty id and name',
      [
        role,
        calling({ index: 0, ...CALL, function: { name: 'search', arguments: '' } }),
        calling({ index: 0, id: '', type: '', function: { name: '', arguments: CALL.function.arguments } }),
        end,
        DONE,
      ],
    ],
    [
      'whose later pieces say the name again',
      [
        role,
        calling({ index: 0, ...CALL, function: { name: 'search', arguments: '' } }),
        calling({ index: 0, ...CALL }),
        end,
        DONE,
      ],
    ],
    ['whose stream has no end mark', [role, calling({ index: 0, ...CALL }), end]],
    [
      'whose lines end in CR LF',
      [role, calling({ index: 0, ...CALL }), end, DONE].map((event) => event.replaceAll('\n', '\r\n')),
    ],
    [
      'with usage in every chunk',
      [
        delta({ role: 'assistant', content: '' }, null, {
          usage: { prompt_tokens: 9, completion_tokens: 0, total_tokens: 9 },
        }),
        delta({ tool_calls: [{ index: 0, ...CALL }] }, null, {
          usage: { prompt_tokens: 9, completion_tokens: 1, total_tokens: 10 },
        }),
        delta({}, 'tool_calls', { usage: { prompt_tokens: 9, completion_tokens: 2, total_tokens: 11 } }),
        DONE,
      ],
    ],
  ])('%s', async (_, events) => {
    const { message, finish_reason: finish, decision, asked } = await whereThird(stream(...events))
    expect(message).toMatchObject({ role: 'assistant', content: 'I give up.' })
    expect(callsOf(message)).toBeUndefined()
    expect(finish).toBe('stop')
    expect(decision).toBe('block')
    expect(asked.at(-2)?.tool_calls).toEqual([CALL])
    expect(asked.at(-1)?.tool_call_id).toBe('a')
  })

  it('when comments surround it, and the comments reach the client at once', async () => {
    const { message } = await whereThird(
      stream(': hello\n\n', role, ': here\n\n', calling({ index: 0, ...CALL }), ': there\n\n', end, DONE),
    )
    expect(message?.content).toBe('I give up.')
  })

  it.each<[string, string[]]>([
    ['where neither has an index', [delta({ role: 'assistant', tool_calls: [CALL, OTHER] }), end]],
    ['where all have one index', [role, calling({ index: 0, ...CALL }), calling({ index: 0, ...OTHER }), end]],
    [
      'where their pieces alternate',
      [
        role,
        calling(
          { index: 0, ...CALL, function: { name: 'search', arguments: '{"query":' } },
          { index: 1, ...OTHER, function: { name: 'read', arguments: '{"fi' } },
        ),
        calling({ index: 1, function: { arguments: 'le":"a"}' } }),
        calling({ index: 0, function: { arguments: '"the same"}' } }),
        end,
      ],
    ],
  ])('while another call of the same response passes, %s', async (_, events) => {
    const { message, decision } = await whereThird(stream(...events, DONE))
    expect(callsOf(message)).toEqual([['b', '{"file":"a"}']])
    expect(decision).toBe('block')
  })

  it('when it has no arguments, and the provider gets empty arguments when it is asked again', async () => {
    const bare: Answer = { calls: [{ name: 'list', arguments: '' }] }
    const { url, provider } = await startBoth(
      (request, number) =>
        readsBlock(request)
          ? { text: 'Nothing.' }
          : number === 3
            ? stream(role, calling({ index: 0, id: 'a', type: 'function', function: { name: 'list' } }), end, DONE)
            : bare,
      { loop_guard: { max_warnings_before_block: 0 } },
    )
    const { steps } = await runAgent(url, START, { stream: true, max: 3 })
    expect(steps.at(-1)?.message.content).toBe('Nothing.')
    expect(provider.requests.at(-1)?.json.messages.at(-2)?.tool_calls?.[0]?.function).toEqual({
      name: 'list',
      arguments: '{}',
    })
  })
})

describe('text beside a blocked call', () => {
  it('is kept if it comes with the call or after it', async () => {
    const said = stream(
      delta({ role: 'assistant', tool_calls: [{ index: 0, ...CALL }], content: 'With. ' }),
      delta({ content: 'After.' }),
      end,
      DONE,
    )
    const { message } = await whereThird(said)
    expect(message?.content).toBe('With. After.\n\nI give up.')
  })

  it.each([[null], [[]]])('reaches the client at once although every chunk has a list of calls: %j', async (none) => {
    const said = [
      delta({ role: 'assistant', content: 'One ', tool_calls: none }),
      delta({ content: 'two.', tool_calls: none }),
    ]
    const { message } = await whereThird(stream(...said, calling({ index: 0, ...CALL }), end, DONE))
    expect(message?.content).toBe('One two.\n\nI give up.')
  })
})

describe('a provider that refuses fields of its own messages', () => {
  it('is asked again without the fields that the API does not define', async () => {
    const said = stream(
      delta({ role: 'assistant', reasoning_content: 'Hm.' }),
      calling({ index: 0, ...CALL }),
      end,
      DONE,
    )
    let asked = 0
    const { url, provider } = await startBoth(
      ({ json }, number) => {
        if (number < 3) return SAME
        if (number === 3) return said
        asked++
        const isStrange = json.messages.some((message) => 'reasoning_content' in message)
        return isStrange ? { status: 400, body: { error: { message: 'extra field' } } } : { text: 'I give up.' }
      },
      { loop_guard: { max_warnings_before_block: 0 } },
    )
    const { steps } = await runAgent(url, START, { stream: true, max: 3 })
    expect(steps.at(-1)?.message.content).toBe('I give up.')
    expect(asked).toBe(2)
    expect(provider.requests.at(-1)?.json.messages.at(-2)?.tool_calls).toEqual([CALL])
  })
})

describe('a second response that is unusable', () => {
  const failed = `data: ${JSON.stringify({ error: { message: 'overloaded', code: 502 } })}\n\n`
  it.each<[string, Answer]>([
    ['an error', stream(failed, DONE)],
    ['an error after its beginning', stream(role, failed)],
    [
      'an error beside a choice',
      stream(role, delta({ content: '' }, 'error', { error: { message: 'overloaded' } }), DONE),
    ],
    ['only an end', stream(DONE)],
    ['nothing', stream('')],
    ['JSON', { status: 200, body: '{"error":{"message":"no"}}' }],
  ])('is followed by that of a model without the tool: %s', async (_, after) => {
    const first = stream(role, calling({ index: 0, ...CALL }), end, DONE)
    const { message, finish_reason: finish, decision } = await whereThird(first, after)
    expect(callsOf(message)).toBeUndefined()
    expect(message?.content).toBe('Without it.')
    expect(finish).toBe('stop')
    expect(decision).toBe('block')
  })
})
