import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { chat } from '../../../src/dialect/chat/index.ts'
import type { ToolCallFilter } from '../../../src/dialect/dialect.ts'
import { applyEdits } from '../../../src/json/edit.ts'
import { createFrameReader } from '../../../src/sse/frames.ts'
import { chunks, completion } from '../../support/provider.ts'

const REQUEST = { model: 'm', messages: [], stream: true, stream_options: { include_usage: true } }
const CALLS = [
  { id: 'a', name: 'read', arguments: '{"file":"ü"}' },
  { id: 'b', name: 'search', arguments: '{"query":"x"}' },
  { id: 'c', name: 'read', arguments: '{"file":"b"}' },
]

/** Feeds a stream; returns the bytes that it returned at once. */
function feed(filter: ToolCallFilter, bytes: Buffer): Buffer {
  const reader = createFrameReader()
  const frames = [...reader.push(bytes), ...reader.end()]
  return Buffer.concat(frames.flatMap((frame) => filter.push(frame)))
}

const events = (bytes: Buffer) =>
  bytes
    .toString()
    .split('\n\n')
    .filter((event) => event !== '')
    .map((event) => event.replace(/^data: /, ''))

const json = (bytes: Buffer) =>
  events(bytes)
    .filter((event) => event !== '[DONE]')
    .map((event) => JSON.parse(event) as { id: string; choices: { delta: Record<string, unknown> }[]; usage?: unknown })

describe('a Chat Completions stream whose calls are held', () => {
  it('a held stream shows all of its text and none of its calls before it ends', () => {
    const filter = chat.openFilter()
    const out = feed(filter, Buffer.from(chunks(REQUEST, { text: 'Let me see. ', calls: CALLS }, 1).join('')))
    expect(json(out).map(({ choices }) => choices[0]?.delta)).toEqual([
      { role: 'assistant', content: '' },
      { content: 'Let ' },
      { content: 'me ' },
      { content: 'see. ' },
    ])
  })

  it('a held stream shows nothing before it has content', () => {
    const filter = chat.openFilter()
    expect(feed(filter, Buffer.from(chunks(REQUEST, { calls: CALLS }, 1).join(''))).length).toBe(0)
  })

  it('the calls and the message of a stream equal those of the whole response', () => {
    const answer = { text: 'Let me see. ', calls: CALLS }
    const filter = chat.openFilter()
    feed(filter, Buffer.from(chunks(REQUEST, answer, 1).join('')))
    const buffered = filter.endResponse()
    const whole = chat.readAnswer(Buffer.from(JSON.stringify(completion(REQUEST, answer, 1))))?.buffered
    expect(buffered?.calls).toEqual(CALLS)
    expect(whole?.calls).toEqual(CALLS)
    const { refusal: _refusal, ...message } = (whole?.message ?? {}) as Record<string, unknown>
    expect(buffered?.message).toEqual(message)
  })

  it('an assembled message keeps the fields that providers add to it and to its calls', () => {
    const delta = (value: object) =>
      `data: ${JSON.stringify({ id: 'x', choices: [{ index: 0, delta: value, finish_reason: null }] })}\n\n`
    const filter = chat.openFilter()
    const signature = { google: { thought_signature: 'abc' } }
    feed(
      filter,
      Buffer.from(
        [
          delta({ role: 'assistant', reasoning_content: 'I ', reasoning_details: [{ text: 'I ' }] }),
          delta({ reasoning_content: 'think', reasoning_details: [{ text: 'think' }] }),
          delta({
            tool_calls: [
              {
                index: 0,
                id: 'a',
                type: 'function',
                extra_content: signature,
                function: { name: 'f', arguments: '{' },
              },
            ],
          }),
          delta({ tool_calls: [{ index: 0, type: 'function', function: { arguments: '}' } }] }),
        ].join(''),
      ),
    )
    expect(filter.endResponse()?.message).toEqual({
      role: 'assistant',
      content: null,
      reasoning_content: 'I think',
      reasoning_details: [{ text: 'I ' }, { text: 'think' }],
      tool_calls: [{ id: 'a', type: 'function', extra_content: signature, function: { name: 'f', arguments: '{}' } }],
    })
  })

  it('the remaining calls are numbered from 0, whichever calls are blocked', () => {
    const bytes = Buffer.from(chunks(REQUEST, { calls: CALLS }, 1).join(''))
    fc.assert(
      fc.property(fc.subarray([0, 1, 2], { minLength: 1, maxLength: 2 }), (blocked) => {
        const filter = chat.openFilter()
        const out = feed(filter, bytes)
        filter.endResponse()
        const all = json(Buffer.concat([out, ...filter.release(new Set(blocked))]))
        const calls = all.flatMap(
          ({ choices }) => (choices[0]?.delta['tool_calls'] ?? []) as { index: number; id?: string }[],
        )
        const kept = CALLS.filter((_, at) => !blocked.includes(at)).map(({ id }) => id)
        expect(calls.flatMap(({ id }) => id ?? [])).toEqual(kept)
        expect([...new Set(calls.map(({ index }) => index))]).toEqual(kept.map((_, at) => at))
      }),
    )
  })

  it('a second response continues the stream with the id of the first, and with the usage of both', () => {
    const filter = chat.openFilter()
    const first = feed(filter, Buffer.from(chunks(REQUEST, { text: 'One.', calls: CALLS }, 1).join('')))
    filter.endResponse()
    const second = feed(filter, Buffer.from(chunks(REQUEST, { text: 'Two.' }, 2).join('')))
    expect(filter.endResponse()?.calls).toEqual([])
    const all = Buffer.concat([first, second, ...filter.release(new Set())])
    expect(events(all).at(-1)).toBe('[DONE]')
    expect(new Set(json(all).map(({ id }) => id))).toEqual(new Set(['chatcmpl-1']))
    expect(
      json(all)
        .map(({ choices }) => choices[0]?.delta['content'] ?? '')
        .join(''),
    ).toBe('One.\n\nTwo.')
    expect(json(all).at(-1)?.usage).toEqual({ prompt_tokens: 200, completion_tokens: 20, total_tokens: 220 })
  })

  it('an error after a blocked call reaches the client', () => {
    const filter = chat.openFilter()
    const error = 'data: {"error":{"message":"overloaded","n":1.0}}\n\n'
    const called = { choices: [{ index: 0, delta: { tool_calls: [{ index: 0, id: 'a', function: {} }] } }] }
    feed(filter, Buffer.from(`data: ${JSON.stringify(called)}\n\n${error}`))
    filter.endResponse()
    expect(Buffer.concat(filter.release(new Set([0]))).toString()).toBe(error)
  })

  it('text beside a call, which the client has once the next response begins, is not sent again with that call', () => {
    const filter = chat.openFilter()
    const call = { index: 0, id: 'a', type: 'function', function: { name: 'f', arguments: '{}' } }
    const event = (delta: object) => `data: ${JSON.stringify({ id: 'x', choices: [{ index: 0, delta }] })}\n\n`
    const first = feed(filter, Buffer.from(event({ role: 'assistant', content: 'Hm.', tool_calls: [call] })))
    filter.endResponse()
    // This response fails, so the client gets the call of the first one.
    const second = feed(filter, Buffer.from('data: {"error":{"message":"overloaded"}}\n\n'))
    expect(filter.endResponse()).toBeUndefined()
    const deltas = json(Buffer.concat([first, second, ...filter.release(new Set())])).map(
      ({ choices }) => choices[0]?.delta,
    )
    expect(deltas.map((delta) => delta?.['content']).join('')).toBe('Hm.')
    expect(deltas.flatMap((delta) => delta?.['tool_calls'] ?? [])).toEqual([call])
  })

  it.each([
    ['a call', { delta: { content: 'Hm.', tool_calls: [{ index: 0, id: 'a', function: {} }] } }],
    ['the end of the response', { delta: {}, finish_reason: 'error' }],
  ])('an error that contains %s is held until the call is decided on', (_, choice) => {
    const filter = chat.openFilter()
    const error = { message: 'lost' }
    const event = `data: ${JSON.stringify({ id: 'x', choices: [{ index: 0, ...choice }], error })}\n\n`
    expect(feed(filter, Buffer.from(event)).length).toBe(0)
    filter.endResponse()
    const released = Buffer.concat(filter.release(new Set([0])))
    expect(json(released)).toMatchObject([{ error }])
    expect(released.toString()).not.toContain('tool_calls')
  })

  it('a stream of several choices keeps every byte', () => {
    const bytes = Buffer.from(
      [0, 1]
        .map(
          (index) =>
            `data: ${JSON.stringify({ id: 'x', choices: [{ index, delta: { tool_calls: [{ index: 0 }] } }] })}\n\n`,
        )
        .join(''),
    )
    const filter = chat.openFilter()
    expect(feed(filter, bytes)).toEqual(bytes)
    expect(filter.endResponse()).toBeUndefined()
  })
})

describe('a whole Chat Completions response', () => {
  it('a body of several choices, or of another API, has no calls to filter', () => {
    expect(chat.readAnswer(Buffer.from('{"choices":[{"message":{}},{"message":{}}]}'))?.buffered).toBeUndefined()
    expect(chat.readAnswer(Buffer.from('{"error":{}}'))?.buffered).toBeUndefined()
    expect(chat.readAnswer(Buffer.from('no JSON'))?.buffered).toBeUndefined()
  })

  it('a blocked call in the deprecated form is answered with the result of a function', () => {
    const body = Buffer.from('{"messages":[{"role":"user","content":"Hi"}]}')
    const buffered = chat.readAnswer(
      Buffer.from('{"choices":[{"message":{"role":"assistant","function_call":{"name":"f","arguments":"{}"}}}]}'),
    )?.buffered
    expect(buffered?.calls).toEqual([{ id: 'f', name: 'f', arguments: '{}' }])
    const edits = buffered && chat.read({ path: '', body })?.continueAfterBlock([{ buffered, results: ['no'] }])
    expect(applyEdits(body, edits ?? []).toString()).toBe(
      '{"messages":[{"role":"user","content":"Hi"},' +
        '{"role":"assistant","function_call":{"name":"f","arguments":"{}"}},{"role":"function","name":"f","content":"no"}]}',
    )
  })

  it.each([false, true])('blocked calls in a list get a result for each; with only standard fields: %s', (isStrict) => {
    const body = Buffer.from('{"messages":[{"role":"user","content":"Hi"}]}')
    const call = { id: 'a', type: 'function', function: { name: 'f', arguments: ' ' } }
    const custom = { id: 'b', type: 'custom', custom: { name: 'g', input: 'text' } }
    const message = { role: 'assistant', content: null, tool_calls: [call, custom] }
    const response = { choices: [{ message: { ...message, reasoning: 'Hm.' } }] }
    const buffered = chat.readAnswer(Buffer.from(JSON.stringify(response)))?.buffered
    const blocked = buffered ? [{ buffered, results: ['no', 'nor'] }] : []
    const edits = chat.read({ path: '', body })?.continueAfterBlock(blocked, isStrict) ?? []
    // Providers accept only JSON as the arguments of a function.
    const sent = [{ ...call, function: { name: 'f', arguments: '{}' } }, custom]
    expect(JSON.parse(applyEdits(body, edits).toString()).messages.slice(1)).toEqual([
      { ...message, tool_calls: sent, ...(isStrict ? {} : { reasoning: 'Hm.' }) },
      { role: 'tool', tool_call_id: 'a', content: 'no' },
      { role: 'tool', tool_call_id: 'b', content: 'nor' },
    ])
  })
})
