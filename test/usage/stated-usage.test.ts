/** What a response states of its usage and of its price, in any number of usage objects, counts. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { chat } from '../../src/dialect/chat/index.ts'
import type { Dialect } from '../../src/dialect/dialect.ts'
import { messages } from '../../src/dialect/messages/index.ts'
import { responses } from '../../src/dialect/responses/index.ts'
import { addUsage } from '../../src/dialect/shared/stated-usage.ts'
import { type Answered, observeResponse } from '../../src/usage/response-observer.ts'

type Usage = Readonly<Record<string, unknown>>

function observed(dialect: Dialect, text: string, streams: boolean, size = text.length): Answered {
  const answers: Answered[] = []
  const observer = observeResponse({
    dialect,
    head: { status: 200, reason: 'OK', headers: streams ? ['content-type', 'text/event-stream'] : [] },
    requestBytes: 400,
    completed: (answer) => answers.push(answer),
    fault: (error) => {
      throw error
    },
  })
  const bytes = Buffer.from(text)
  for (let at = 0; at < bytes.length; at += size) observer.take(bytes.subarray(at, at + size))
  observer.end(true)
  const [answer] = answers
  if (!answer) throw new Error('nothing was reported')
  return answer
}

const frames = (...events: readonly object[]) => events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join('')

/** Writes a response with text between any number of usage objects; a whole one has the last of them alone. */
interface Form {
  readonly dialect: Dialect
  readonly streams: boolean
  write(usages: readonly Usage[], text: string): string
}

const FORMS: Readonly<Record<string, Form>> = {
  'chat stream': {
    dialect: chat,
    streams: true,
    write: (usages, text) =>
      frames(...usages.map((usage) => ({ choices: [{ index: 0, delta: { content: text } }], usage }))),
  },
  'messages stream': {
    dialect: messages,
    streams: true,
    write: ([first, ...usages], text) =>
      frames(
        { type: 'message_start', message: { id: 'msg_1', model: 'm', content: [], usage: first } },
        { type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text } },
        ...usages.map((usage) => ({ type: 'message_delta', delta: { stop_reason: 'end_turn' }, usage })),
      ),
  },
  'responses stream': {
    dialect: responses,
    streams: true,
    write: (usages, text) =>
      frames(
        ...usages.map((usage) => ({
          type: 'response.completed',
          response: { id: 'resp_1', usage, instructions: text },
        })),
      ),
  },
  'chat body': { dialect: chat, streams: false, write: (all, text) => JSON.stringify({ text, usage: all.at(-1) }) },
  'messages body': {
    dialect: messages,
    streams: false,
    write: (all, text) => JSON.stringify({ text, usage: all.at(-1) }),
  },
  'responses body': {
    dialect: responses,
    streams: false,
    write: (all, text) => JSON.stringify({ text, usage: all.at(-1) }),
  },
}

const count = fc.oneof(fc.nat({ max: 300_000 }), fc.constantFrom<unknown>(0, null, -1, 1e30, 0.5, 'many', {}, [], true))
const tokensOf = (names: readonly string[]) =>
  fc.record(Object.fromEntries(names.map((name) => [name, count])), { requiredKeys: [] })
const usageObject = fc
  .tuple(
    tokensOf(['prompt_tokens', 'completion_tokens', 'total_tokens', 'input_tokens', 'output_tokens']),
    tokensOf(['cache_read_input_tokens', 'cache_creation_input_tokens']),
    tokensOf(['cached_tokens', 'cache_write_tokens']),
    tokensOf(['reasoning_tokens', 'thinking_tokens']),
    fc.array(tokensOf(['input_tokens', 'output_tokens', 'cache_read_input_tokens']), { maxLength: 3 }),
  )
  .map(([all, cache, inputDetails, outputDetails, iterations]) => ({
    ...all,
    ...cache,
    prompt_tokens_details: inputDetails,
    input_tokens_details: inputDetails,
    completion_tokens_details: outputDetails,
    iterations,
  }))
const usages = fc.array(usageObject, { minLength: 1, maxLength: 5 })

/** The tokens that are counted; none of an answer whose usage is an estimate. */
function counted({ usage }: Answered): number {
  return usage.estimated ? 0 : usage.input + usage.output
}

const isCount = (value: unknown): value is number => typeof value === 'number' && value >= 0 && value <= 1e10

describe.each(Object.entries(FORMS))('the usage of a %s', (_, { dialect, streams, write }) => {
  const text = fc.integer({ min: 0, max: 400 }).map((words) => 'word '.repeat(words * words))
  const size = fc.integer({ min: 500, max: 100_000 })

  it('is never less than a total that it states, and its parts never more than their whole', () => {
    fc.assert(
      fc.property(usages, text, size, (all, said, bytes) => {
        const answer = observed(dialect, write(all, said.slice(0, 2_000)), streams, bytes)
        const stated = streams ? all : all.slice(-1)
        // Without an end, most of the output of such a stream is not stated: it is estimated, from the stated one on.
        const hasNoEnd = dialect === messages && streams && all.length === 1
        const { usage } = answer
        const sum = hasNoEnd ? usage.input + usage.output : counted(answer)
        const totals = stated.map(({ total_tokens: total }: Usage) => total).filter(isCount)
        expect(sum).toBeGreaterThanOrEqual(Math.round(Math.max(0, ...totals)))
        const { input, output, cachedInput = 0, cacheWrite = 0, reasoning = 0 } = usage
        expect(input).toBeGreaterThanOrEqual(cachedInput + cacheWrite)
        expect(output).toBeGreaterThanOrEqual(reasoning)
      }),
    )
  })
})

const STREAMS = Object.entries(FORMS).filter(([, { streams }]) => streams)

it.each(STREAMS)('the usage of a %s is never less after one more usage object', (_, { dialect, write }) => {
  const size = fc.integer({ min: 500, max: 100_000 })
  fc.assert(
    fc.property(usages, usageObject, size, (all, more, bytes) => {
      const before = counted(observed(dialect, write(all, 'hi'), true, bytes))
      const after = counted(observed(dialect, write([...all, more], 'hi'), true, bytes))
      expect(after).toBeGreaterThanOrEqual(before)
    }),
  )
})

const chatUsage = (input: number, output: number, total: number, cached?: number, reasoning?: number) => ({
  prompt_tokens: input,
  completion_tokens: output,
  total_tokens: total,
  ...(cached === undefined ? {} : { prompt_tokens_details: { cached_tokens: cached } }),
  ...(reasoning === undefined ? {} : { completion_tokens_details: { reasoning_tokens: reasoning } }),
})
const start = {
  input_tokens: 1_500,
  cache_read_input_tokens: 20_000,
  cache_creation_input_tokens: 500,
  output_tokens: 1,
}
const zeros = { input_tokens: 0, cache_read_input_tokens: 0, cache_creation_input_tokens: 0 }
const compaction = { type: 'compaction', input_tokens: 180_000, output_tokens: 3_500 }
const message = { type: 'message', input_tokens: 23_000, output_tokens: 1_000 }

describe('the tokens of a response', () => {
  it.each<[string, string, readonly Usage[], number, number]>([
    ['reasoning as a part of the answer', 'chat body', [chatUsage(1_000, 3_100, 4_100, 0, 3_000)], 1_000, 3_100],
    ['reasoning beside the answer', 'chat body', [chatUsage(1_000, 100, 4_100, 0, 3_000)], 1_000, 3_100],
    ['a total of more than its parts', 'chat body', [chatUsage(1_000, 100, 4_100)], 1_000, 3_100],
    ['cached tokens beside a shorter prompt', 'chat body', [chatUsage(100, 100, 20_200, 20_000)], 20_100, 100],
    ['cached tokens beside a longer prompt', 'chat body', [chatUsage(30_000, 100, 50_100, 20_000)], 50_000, 100],
    ['only a total', 'chat body', [{ total_tokens: 500 }], 0, 500],
    ['zeros before the usage', 'chat stream', [chatUsage(0, 0, 0), chatUsage(1_000, 100, 1_100)], 1_000, 100],
    ['zeros after the usage', 'chat stream', [chatUsage(1_000, 100, 1_100), chatUsage(0, 0, 0)], 1_000, 100],
    ['a start and an end', 'messages stream', [start, { output_tokens: 100 }], 22_000, 100],
    ['an end with zeros', 'messages stream', [start, { ...zeros, output_tokens: 100 }], 22_000, 100],
    [
      'a compaction before the answer',
      'messages body',
      [{ input_tokens: 23_000, output_tokens: 1_000, iterations: [compaction, message] }],
      203_000,
      4_500,
    ],
    [
      'a compaction in a stream',
      'messages stream',
      [
        { input_tokens: 23_000, output_tokens: 1 },
        { output_tokens: 1_000, iterations: [compaction, message] },
      ],
      203_000,
      4_500,
    ],
  ])('with %s are all counted (%s)', (_, form, all, input, output) => {
    const { dialect, streams, write } = FORMS[form] as Form
    expect(observed(dialect, write(all, 'hi'), streams).usage).toMatchObject({ input, output, estimated: false })
  })

  it.each<[string, Usage]>([
    ['chat stream', chatUsage(0, 0, 0)],
    ['messages stream', { ...zeros, output_tokens: 0 }],
    ['responses body', { input_tokens: 0, output_tokens: 0, total_tokens: 0 }],
  ])('are estimated where a %s states nothing but zeros', (form, usage) => {
    const { dialect, streams, write } = FORMS[form] as Form
    const text = 'word '.repeat(40)
    expect(observed(dialect, write([usage, usage], text), streams).usage).toMatchObject({ input: 100, estimated: true })
  })

  it.each([{ type: 'compaction' }, { type: 'advisor_message', model: 'claude-opus-4-6' }])(
    'of the last prompt of the conversation fill the context window, though $type comes after it',
    (kind) => {
      const own = { input_tokens: 23_000, output_tokens: 1_000 }
      const usage = { ...own, iterations: [message, { ...kind, input_tokens: 4_000, output_tokens: 600 }] }
      const { usage: stated } = observed(messages, JSON.stringify({ usage }), false)
      expect(stated).toMatchObject({ input: 27_000, output: 1_600, lastInput: 23_000 })
    },
  )

  it('of the last of several prompts alone fill the context window', () => {
    const cached = {
      ...message,
      input_tokens: 3_000,
      cache_read_input_tokens: 15_000,
      cache_creation_input_tokens: 5_000,
    }
    const usage = { input_tokens: 3_000, output_tokens: 1_000, iterations: [compaction, cached] }
    expect(observed(messages, JSON.stringify({ usage }), false).usage).toMatchObject({
      input: 203_000,
      lastInput: 23_000,
    })
  })

  it('are those of the response, whatever its calls or the tools that it repeats contain', () => {
    const call = { type: 'tool_use', id: 'toolu_1', name: 'note', input: { usage: { output_tokens: 7 }, model: 'x' } }
    const body = { content: [call], model: 'claude-opus-4-6', usage: { input_tokens: 1, output_tokens: 2 } }
    const { usage, bill } = observed(messages, JSON.stringify(body), false)
    expect(usage).toMatchObject({ input: 1, output: 2 })
    expect(bill).toMatchObject({ model: 'claude-opus-4-6' })
  })

  it('are found in an object within another one, and behind any number of broken ones', () => {
    const inGroq = frames({ x_groq: { id: 'req', usage: chatUsage(10, 5, 15) } })
    expect(counted(observed(chat, inGroq, true))).toBe(15)
    const broken = '"usage":{"prompt_tokens":'.repeat(60)
    expect(counted(observed(chat, broken + inGroq, true))).toBe(15)
  })
})

describe('the usage of two responses that a client sees as one', () => {
  it('has the steps of both one after the other, and the sum of their tokens by kind', () => {
    const advice = { type: 'advisor_message', model: 'claude-opus-4-6', input_tokens: 900, output_tokens: 60 }
    const first = { input_tokens: 23_000, iterations: [message, advice] }
    const both = addUsage(first, { input_tokens: 23_500, iterations: [message, message] })
    expect(both).toEqual({ input_tokens: 46_500, iterations: [message, advice, message, message] })
    const ofText = { promptTokensDetails: [{ modality: 'TEXT', tokenCount: 5 }] }
    expect(addUsage(ofText, ofText)).toEqual({ promptTokensDetails: [{ modality: 'TEXT', tokenCount: 10 }] })
  })
})

describe('the bill of a response', () => {
  it.each<[string, Dialect, boolean, string, object]>([
    [
      'chat body',
      chat,
      false,
      JSON.stringify({ model: 'gpt-5', service_tier: 'priority', usage: { ...chatUsage(1, 1, 2), cost: 0.25 } }),
      { model: 'gpt-5', tier: 'priority', cost: 0.25 },
    ],
    [
      'responses stream',
      responses,
      true,
      frames(
        { type: 'response.created', response: { id: 'r', model: 'gpt-5', service_tier: 'auto', usage: null } },
        {
          type: 'response.completed',
          response: {
            service_tier: 'flex',
            tool_usage: { web_search: { num_requests: 2 } },
            usage: { input_tokens: 1 },
          },
        },
      ),
      { model: 'gpt-5', tier: 'flex', searches: 2 },
    ],
    [
      'responses body',
      responses,
      false,
      JSON.stringify({ model: 'gpt-5', output: [], tool_usage: { web_search: { num_requests: 2 } } }),
      { model: 'gpt-5', searches: 2 },
    ],
    [
      'messages stream',
      messages,
      true,
      FORMS['messages stream']?.write(
        [
          { input_tokens: 1, service_tier: 'standard', inference_geo: 'us' },
          { output_tokens: 1, speed: 'fast', server_tool_use: { web_search_requests: 3, web_fetch_requests: 1 } },
        ],
        'hi',
      ) ?? '',
      { model: 'm', tier: 'standard', speed: 'fast', region: 'us', searches: 3 },
    ],
    [
      'chat body of a client that pays the model’s provider itself',
      chat,
      false,
      JSON.stringify({
        usage: { ...chatUsage(1, 1, 2), cost: 0.05, is_byok: true, cost_details: { upstream_inference_cost: 1 } },
      }),
      { cost: 1.05 },
    ],
    [
      'chat stream with a price in ticks',
      chat,
      true,
      frames({ model: 'grok-4', choices: [], usage: { ...chatUsage(1, 1, 2), cost_in_usd_ticks: 25_000_000_000 } }),
      { model: 'grok-4', cost: 2.5 },
    ],
    [
      'chat body with a price in parts',
      chat,
      false,
      JSON.stringify({ usage: { ...chatUsage(1, 1, 2), cost: { request_cost: 0.005, total_cost: 0.006 } } }),
      { cost: 0.006 },
    ],
    [
      'chat body without any of it',
      chat,
      false,
      JSON.stringify({ usage: { ...chatUsage(1, 1, 2), cost: 'much' } }),
      {},
    ],
  ])('is read from a %s', (_, dialect, streams, text, bill) => {
    const stated = Object.entries(observed(dialect, text, streams).bill ?? {}).filter(([, value]) => value)
    expect(Object.fromEntries(stated)).toEqual(bill)
  })
})
