import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { responses } from '../../../src/dialect/responses/index.ts'
import { eventTexts, responseEvents, responseObject } from '../../support/responses.ts'

const CALLS = [
  { id: 'a', name: 'search', arguments: { query: 'ü "quoted"' } },
  { id: 'b', name: 'read', arguments: { file: 'x' } },
]
const REQUEST = { model: 'm', messages: [], tools: [{ name: 'x', description: 'y'.repeat(50_000) }] }
const CALLED = [
  { id: 'a', item: 'fc_1_0', name: 'search', arguments: JSON.stringify(CALLS[0]?.arguments) },
  { id: 'b', item: 'fc_1_1', name: 'read', arguments: JSON.stringify(CALLS[1]?.arguments) },
]
const USAGE = { input: 100, output: 10, cachedInput: 20, reasoning: 4 }

function factsOf(text: string, streams: boolean, tailBytes = 1_048_576) {
  const body = Buffer.from(text)
  const whole = body.length <= 16_384 + tailBytes ? body : undefined
  const [head, tail] = [body.subarray(0, 16_384), whole ?? body.subarray(-tailBytes)]
  return responses.metadata({ head, tail, whole, streams, withCalls: true })
}

describe('the calls of a Responses response', () => {
  const whole = responseObject(REQUEST, { reasoning: 'x', text: 'Hi "call_id"', calls: CALLS }, 1)
  const stream = eventTexts(responseEvents(whole)).join('')

  it('calls are read from a whole response and from its events', () => {
    const expected = { id: 'resp_1', usage: USAGE, bill: { model: 'm' }, calls: CALLED, item: 'rs_1' }
    expect(factsOf(JSON.stringify(whole), false)).toEqual(expected)
    expect(factsOf(stream, true)).toEqual(expected)
    expect(factsOf(stream.replaceAll('\n', '\r\n'), true)).toEqual(expected)
  })

  it('calls are read from a whole response in which no item has too many values, but all together have', () => {
    const response = responseObject(REQUEST, { text: 'Hi', calls: CALLS }, 1)
    const large = { type: 'web_search_call', results: Array.from({ length: 40_000 }, () => 0) }
    const body = { ...response, output: [...(response['output'] as readonly object[]), large, large] }
    expect(factsOf(JSON.stringify(body), false).calls).toEqual(CALLED)
  })

  it('calls are read from the end of a long stream', () => {
    const response = responseObject(REQUEST, { text: 'word '.repeat(60_000), calls: CALLS }, 1)
    const events = eventTexts(responseEvents(response)).join('')
    expect(events.length).toBeGreaterThan(2_000_000)
    expect(factsOf(events, true)).toMatchObject({ id: 'resp_1', usage: USAGE, calls: CALLED })
  })

  it('calls that are only quoted are not read, and none are read unless the caller asks for calls', () => {
    const quoted = responseObject(REQUEST, { text: stream.slice(0, 2_000) }, 1)
    expect(factsOf(eventTexts(responseEvents(quoted)).join(''), true).calls).toEqual([])
    const body = Buffer.from(stream)
    const asked = { head: body, tail: body, whole: body, streams: true, withCalls: false }
    expect(responses.metadata(asked).calls).toBeUndefined()
  })

  it('reading calls never throws, wherever the bytes begin and end', () => {
    fc.assert(
      fc.property(fc.nat(stream.length), fc.nat(stream.length), fc.boolean(), (from, to, streams) => {
        const { calls = [] } = factsOf(stream.slice(Math.min(from, to), Math.max(from, to)), streams, 200)
        for (const call of calls) expect(CALLED).toContainEqual(call)
      }),
      { numRuns: 100 },
    )
  })
})

describe('the conversation of a Responses response', () => {
  it('the conversation of a response is the one that it names', () => {
    const body = { ...responseObject(REQUEST, { text: 'Hi' }, 1), conversation: { id: 'conv_1' } }
    expect(factsOf(JSON.stringify(body), false).conversation).toBe('conv_1')
  })
})
