import { describe, expect, it } from 'vitest'
import { messages } from '../../../src/dialect/messages/index.ts'
import { events, message } from '../../support/messages.ts'

const REQUEST = { model: 'm', messages: [] }
const ANSWER = {
  text: 'word '.repeat(20_000),
  calls: [{ name: 'f', arguments: { usage: { input_tokens: 7 } } }],
}

function factsOf(text: string, streams: boolean, isWhole = true, withCalls = false) {
  const body = Buffer.from(text)
  const [head, tail] = [body.subarray(0, 16_384), body.subarray(-65_536)]
  const { bill: _bill, ...facts } = messages.metadata({
    head,
    tail,
    whole: isWhole ? body : undefined,
    streams,
    withCalls,
  })
  return facts
}

describe('the usage of a Messages response', () => {
  it('usage is read from a whole response, and from the end of a long one', () => {
    const text = JSON.stringify(message(REQUEST, ANSWER, 3))
    const expected = { usage: { input: 100, output: 10, cachedInput: 0, cacheWrite: 0 } }
    expect(factsOf(text, false)).toEqual(expected)
    expect(factsOf(text, false, false)).toEqual(expected)
  })

  it('usage is read from the first and the last event of a stream', () => {
    const text = events(REQUEST, ANSWER, 3).join('')
    expect(text.length).toBeGreaterThan(100_000)
    expect(factsOf(text, true, false)).toEqual({
      usage: { input: 100, output: 10, cachedInput: 0, cacheWrite: 0 },
    })
  })

  it('tokens that were read from a cache or written to it count as input', () => {
    const usage = {
      input_tokens: 4,
      cache_read_input_tokens: 900,
      cache_creation_input_tokens: 50,
      output_tokens: 30,
      output_tokens_details: { thinking_tokens: 20 },
    }
    expect(factsOf(JSON.stringify({ id: 'a', usage }), false).usage).toEqual({
      input: 954,
      output: 30,
      cachedInput: 900,
      cacheWrite: 50,
      reasoning: 20,
    })
  })

  it('tokens that were written to a cache for an hour are part of those written, and known by themselves', () => {
    const usage = {
      input_tokens: 4,
      cache_creation_input_tokens: 50,
      cache_creation: { ephemeral_5m_input_tokens: 30, ephemeral_1h_input_tokens: 20 },
      output_tokens: 9,
    }
    const expected = { input: 54, output: 9, cacheWrite: 50, hourWrite: 20 }
    expect(factsOf(JSON.stringify({ id: 'a', usage }), false).usage).toEqual(expected)
  })

  it('the larger of two values in a stream counts', () => {
    const start = {
      type: 'message_start',
      message: { id: 'a', usage: { input_tokens: 1, output_tokens: 1 } },
    }
    const delta = {
      type: 'message_delta',
      delta: {},
      usage: { input_tokens: 12, output_tokens: 9, cache_read_input_tokens: null },
    }
    const text = [start, delta].map((data) => `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`).join('')
    expect(factsOf(text, true)).toEqual({ usage: { input: 12, output: 9 } })
  })

  it.each([
    [{ output_tokens: 30 }, { input: 0, output: 30 }],
    [{ input_tokens: 4 }, { input: 4, output: 0 }],
    [{ total_tokens: 34 }, { input: 0, output: 34 }],
    [{ cache_read_input_tokens: 4 }, undefined],
  ])('of which only %j is stated is %j', (usage, expected) => {
    expect(factsOf(JSON.stringify({ id: 'a', usage }), false).usage).toMatchObject(expected ?? {})
    expect(factsOf(JSON.stringify({ id: 'a', usage }), false).usage === undefined).toBe(expected === undefined)
  })

  it.each(['', '{}', '[]', '<html>', 'data: {"type":"ping"}\n\n'])('a body without usage has none: %j', (text) => {
    expect([factsOf(text, false), factsOf(text, true)]).toEqual([{}, {}])
  })
})

describe('a response in a message thread', () => {
  const CALLS = [{ id: 'toolu_3_0', name: 'f', arguments: '{"usage":{"input_tokens":7}}' }]

  it('a response in a thread has an id and calls', () => {
    const whole = JSON.stringify(message(REQUEST, ANSWER, 3))
    const stream = events(REQUEST, ANSWER, 3).join('')
    for (const facts of [factsOf(whole, false, true, true), factsOf(stream, true, true, true)]) {
      expect(facts).toMatchObject({ id: 'msg_3', calls: CALLS })
    }
  })

  it('a response in a thread has only an id if it is incomplete', () => {
    const stream = events(REQUEST, ANSWER, 3).join('')
    for (const facts of [factsOf(stream, true, false, true), factsOf(stream.slice(0, -300), true, true, true)]) {
      expect(facts.id).toBe('msg_3')
      expect(facts.calls).toBeUndefined()
    }
  })
})
