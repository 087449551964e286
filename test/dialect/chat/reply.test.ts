import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../../src/core/terminal.ts'
import { chat } from '../../../src/dialect/chat/index.ts'
import type { AnswerChange } from '../../../src/dialect/dialect.ts'
import { createFrameReader, dataOf } from '../../../src/sse/frames.ts'

const TERMINAL = terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', true)
const CALLS = [{ id: 'c', type: 'function', function: { name: 'f', arguments: '{}' } }]

const choice = (message: object, finish: string | null = 'stop', index = 0) => ({
  index,
  message,
  finish_reason: finish,
})
const answer = (choices: readonly object[], extra: object = {}) =>
  JSON.stringify({ id: 'x', object: 'chat.completion', choices, ...extra })
const assistant = (content: unknown) => ({ role: 'assistant', content })
const calling = { role: 'assistant', content: null, tool_calls: CALLS }

function written(body: string, change: Partial<AnswerChange> = {}) {
  const result = chat.writeAnswer(Buffer.from(body), {
    terminal: TERMINAL,
    dropCalls: true,
    earlier: [],
    ...change,
  })
  return result.toString('utf8')
}

describe('a whole Chat Completions response', () => {
  it.each([
    ['text', answer([choice(assistant('Hi'))]), { text: 'Hi', calls: 0, end: 'complete' }],
    [
      'parts',
      answer([
        choice(
          assistant([
            { type: 'text', text: 'H' },
            { type: 'text', text: 'i' },
          ]),
        ),
      ]),
      { text: 'Hi', calls: 0, end: 'complete' },
    ],
    ['tool calls', answer([choice(calling, 'tool_calls')]), { text: '', calls: 1, end: 'complete' }],
    [
      'a function call in the deprecated form',
      answer([choice({ ...assistant('a'), function_call: { name: 'f' } })]),
      { text: 'a', calls: 1, end: 'complete' },
    ],
    [
      'no tool call in an empty list',
      answer([choice({ ...assistant('a'), tool_calls: [] })]),
      { text: 'a', calls: 0, end: 'complete' },
    ],
    ['an error', '{"error":{"message":"no"}}', undefined],
    ['no choice', answer([]), undefined],
    ['a list', '[]', undefined],
    ['no JSON', '<html>', undefined],
  ])('a whole response is read as %s', (_, body, read) => {
    const result = chat.readAnswer(Buffer.from(body))
    expect(result && { text: result.text, calls: result.calls.length, end: result.end }).toEqual(read)
  })
})

describe('a whole Chat Completions response that ends a run', () => {
  it('a response with calls loses them, and its finish reason fits the rest', () => {
    const body = answer([
      choice({ ...assistant('Looking.'), tool_calls: CALLS, reasoning: 'hm' }, 'tool_calls'),
      choice({ ...assistant('b'), function_call: { name: 'f', arguments: '{}' } }, 'function_call', 1),
      choice(assistant('c'), 'length', 2),
    ])
    const { choices, governor, id } = JSON.parse(written(body))
    expect(choices).toEqual([
      choice({ ...assistant('Looking.'), reasoning: 'hm' }),
      choice(assistant('b'), 'stop', 1),
      choice(assistant('c'), 'stop', 2),
    ])
    expect([governor, id]).toEqual([TERMINAL, 'x'])
  })

  it('a finish reason of calls becomes stop in a response that has no calls', () => {
    expect(JSON.parse(written(answer([choice(assistant('a'), 'tool_calls')]))).choices).toEqual([
      choice(assistant('a')),
    ])
  })

  it('a response without text gets the fallback text', () => {
    const { choices } = JSON.parse(written(answer([choice(calling, 'tool_calls')]), { text: '(Reached max)' }))
    expect(choices).toEqual([choice(assistant('(Reached max)'))])
  })

  it('a response states the usage of all attempts together', () => {
    const usage = (tokens: number) => ({
      prompt_tokens: tokens,
      total_tokens: tokens + 1,
      prompt_tokens_details: { cached_tokens: tokens },
      cost: null,
    })
    const first = answer([choice(calling, 'tool_calls')], { usage: usage(10) })
    const second = answer([choice(assistant('Done.'))], { usage: { ...usage(5), service: 'flex' } })
    const earlier = [Buffer.from(first), Buffer.from('<html>'), Buffer.from('{"usage":null}')]
    expect(JSON.parse(written(second, { earlier })).usage).toEqual({
      prompt_tokens: 15,
      total_tokens: 17,
      prompt_tokens_details: { cached_tokens: 15 },
      cost: null,
      service: 'flex',
    })
    expect('usage' in JSON.parse(written(answer([choice(assistant('a'))]), { earlier: [Buffer.from('{}')] }))).toBe(
      false,
    )
  })

  it('a response that ends a run never contains a tool call or a finish reason of one, whatever the provider sent', () => {
    const message = fc.constantFrom(
      assistant('a'),
      calling,
      { ...calling, content: 'b' },
      { ...assistant(''), function_call: {} },
      {},
    )
    const reason = fc.constantFrom('stop', 'length', 'tool_calls', 'function_call', 'content_filter', null)
    const choices = fc.array(fc.tuple(message, reason), { minLength: 1, maxLength: 3 })
    fc.assert(
      fc.property(choices, (all) => {
        const result = written(answer(all.map(([message, finish], at) => choice(message, finish, at))))
        const read = JSON.parse(result)
        expect(result).not.toMatch(/tool_calls|function_call/)
        expect(read.governor).toEqual(TERMINAL)
        expect(read.choices.map(({ index }: { index: number }) => index)).toEqual(all.map((_, at) => at))
      }),
      { numRuns: 100 },
    )
  })
})

describe('a Chat Completions reply of Governor itself', () => {
  const recorded = { text: 'So "far".', model: 'gpt-4o', terminal: TERMINAL }

  it('a whole reply of Governor reads as any other response', () => {
    const { contentType, body } = chat.reply(recorded, false, 'id1', 1_700_000_000_999)
    expect(contentType).toBe('application/json')
    expect(chat.readAnswer(body)).toMatchObject({ text: 'So "far".', calls: [], end: 'complete' })
    expect(JSON.parse(body.toString())).toMatchObject({
      id: 'chatcmpl-id1',
      object: 'chat.completion',
      created: 1_700_000_000,
      model: 'gpt-4o',
      choices: [{ index: 0, finish_reason: 'stop' }],
      usage: { total_tokens: 0 },
      governor: TERMINAL,
    })
  })

  it('a streamed reply of Governor ends as any other stream', () => {
    const { contentType, body } = chat.reply(recorded, true, 'id1', 0)
    const data = createFrameReader()
      .push(body)
      .map((frame) => dataOf(frame) ?? '')
    expect(contentType).toContain('text/event-stream')
    expect(data.at(-1)).toBe('[DONE]')
    const chunks = data.slice(0, -1).map((text) => JSON.parse(text))
    expect(chunks.map(({ choices: [first] }) => [first.delta.content, first.finish_reason])).toEqual([
      ['So "far".', null],
      [undefined, 'stop'],
    ])
    expect(chunks.map(({ governor }) => governor)).toEqual([undefined, TERMINAL])
  })

  it('a streamed reply states usage in a separate chunk if the client asks for it', () => {
    const asked = { model: 'm', stream: true, messages: [{ role: 'user', content: 'Go.' }] }
    const asks = (more: object) =>
      chat.read({ path: '', body: Buffer.from(JSON.stringify({ ...asked, ...more })) })?.asksForUsage?.()
    expect(asks({ stream_options: { include_usage: true } })).toBe(true)
    for (const options of [{ include_usage: false }, {}, null, 'x'])
      expect(asks({ stream_options: options })).toBe(false)
    expect(asks({})).toBe(false)
    const { body } = chat.reply(recorded, true, 'id1', 0, true)
    const [, , last, end] = createFrameReader()
      .push(body)
      .map((frame) => dataOf(frame) ?? '')
    expect(JSON.parse(last ?? '')).toMatchObject({
      id: 'chatcmpl-id1',
      choices: [],
      usage: { prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 },
    })
    expect(end).toBe('[DONE]')
  })
})

it('the tier of a Chat Completions response stands in it, in its last chunk, or in its usage', () => {
  const tierOf = (text: string, streams: boolean) => {
    const body = Buffer.from(text)
    return chat.metadata({ head: body, tail: body, whole: body, streams, withCalls: false }).bill?.tier
  }
  const [first, last] = ['auto', 'flex'].map((tier) => `data: {"choices":[],"service_tier":"${tier}"}\n\n`)
  expect(tierOf(`${first}${last}`, true)).toBe('flex')
  expect(tierOf('{"choices":[{"service_tier":"auto"}],"service_tier":"flex"}', false)).toBe('flex')
  expect(tierOf('{"service_tier":"auto","usage":{"total_tokens":1,"service_tier":"flex"}}', false)).toBe('flex')
  expect(tierOf('{"choices":[{"service_tier":"auto"}]}', false)).toBeUndefined()
})
