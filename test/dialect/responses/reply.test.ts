import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../../src/core/terminal.ts'
import { responses } from '../../../src/dialect/responses/index.ts'
import { createFrameReader, dataOf } from '../../../src/sse/frames.ts'
import { responseObject } from '../../support/responses.ts'

const terminal = terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', true)
const request = { model: 'm', messages: [] }
const search = { name: 'search', arguments: {} }
const bytes = (value: unknown) => Buffer.from(typeof value === 'string' ? value : JSON.stringify(value))
const write = (body: unknown, more: object = {}) =>
  JSON.parse(responses.writeAnswer(bytes(body), { terminal, dropCalls: true, earlier: [], ...more }).toString('utf8'))

describe('a whole Responses response', () => {
  it.each([
    [responseObject(request, { text: 'It is 42.' }, 1), { text: 'It is 42.', calls: 0 }],
    [responseObject(request, { text: 'Hm.', calls: [search] }, 1), { text: 'Hm.', calls: 1 }],
    [responseObject(request, { reasoning: 'x', calls: [search] }, 1), { text: '', calls: 1 }],
    [{ output: [{ type: 'web_search_call', id: 'w' }] }, { text: '', calls: 0 }],
    [{ output: [{ type: 'custom_tool_call', call_id: 'c' }] }, { text: '', calls: 1 }],
    [{ error: {} }, undefined],
    ['no JSON', undefined],
  ])('a whole response is read: case %#', (body, expected) => {
    const read = responses.readAnswer(bytes(body))
    expect(read && { text: read.text, calls: read.calls.length }).toEqual(expected)
  })

  it('a response loses its calls with the reasoning before them, and is complete', () => {
    const body = responseObject(request, { text: 'Wait.', reasoning: 'x', calls: [search] }, 1)
    const output = [...(body['output'] as object[]), { type: 'reasoning', id: 'rs_2' }, { type: 'function_call' }]
    const after = write({ ...body, output, status: 'incomplete', incomplete_details: { reason: 'max' } })
    expect(after.output.map((item: { type: string }) => item.type)).toEqual(['reasoning', 'message'])
    expect(after).toMatchObject({
      status: 'completed',
      incomplete_details: null,
      error: null,
      governor: terminal,
    })
  })

  it('another text replaces that of a response, with the usage of earlier attempts', () => {
    const body = responseObject(request, { calls: [search] }, 1)
    const after = write({ ...body, output_text: '' }, { text: '(Reached.)', earlier: [bytes(body)] })
    expect(after.output).toMatchObject([
      { type: 'message', role: 'assistant', content: [{ type: 'output_text', text: '(Reached.)' }] },
    ])
    expect(after.output_text).toBe('(Reached.)')
    expect(after.usage).toMatchObject({ total_tokens: 220, input_tokens_details: { cached_tokens: 40 } })
  })
})

describe('a Responses reply of Governor itself', () => {
  const answer = { text: 'It was 42. 🎉', model: 'm', terminal }

  it('a whole reply of Governor is a response of the API', () => {
    const { contentType, body } = responses.reply(answer, false, 'id', 1_760_000_000_999)
    expect(contentType).toBe('application/json')
    expect(JSON.parse(body.toString())).toMatchObject({
      id: 'resp_id',
      object: 'response',
      created_at: 1_760_000_000,
      status: 'completed',
      model: 'm',
      output: [{ type: 'message', content: [{ text: 'It was 42. 🎉' }] }],
      governor: terminal,
    })
  })

  it('a streamed reply of Governor has numbered events in the order of the API', () => {
    const { contentType, body } = responses.reply(answer, true, 'id', 0)
    expect(contentType).toMatch(/^text\/event-stream/)
    const events = createFrameReader()
      .push(body)
      .map((frame) => JSON.parse(dataOf(frame) ?? ''))
    expect(events.map(({ type }) => type)).toEqual([
      'response.created',
      'response.in_progress',
      'response.output_item.added',
      'response.content_part.added',
      'response.output_text.delta',
      'response.output_text.done',
      'response.content_part.done',
      'response.output_item.done',
      'response.completed',
    ])
    expect(events.map((event) => event.sequence_number)).toEqual(events.map((_, at) => at))
    expect(body.toString().match(/^event: (.*)$/gm)).toHaveLength(events.length)
    expect(events.at(-1).response).toMatchObject({ status: 'completed', governor: terminal })
  })
})

describe('the metadata of a Responses response', () => {
  const response = (text: string, streams = false) => {
    const all = Buffer.from(text)
    return { head: all, tail: all, whole: all, streams, withCalls: true }
  }

  it('a response has an id and usage', () => {
    const whole = responseObject(request, { text: 'Hi' }, 7)
    expect(responses.metadata(response(JSON.stringify(whole)))).toMatchObject({
      id: 'resp_7',
      usage: { input: 100, output: 10, cachedInput: 20, reasoning: 4 },
    })
  })

  it('the calls of a response are those of the client among its first 256 items, streamed and whole', () => {
    const own = { type: 'web_search_call', id: 'ws_1' }
    const call = (at: number) => ({
      type: 'function_call',
      id: `fc_${at}`,
      call_id: `c${at}`,
      name: 'f',
      arguments: '{}',
    })
    const output = [own, ...Array.from({ length: 300 }, (_, at) => call(at))]
    const events = output.map((item) => `data: ${JSON.stringify({ type: 'response.output_item.done', item })}\n\n`)
    for (const read of [response(JSON.stringify({ id: 'resp_1', output })), response(events.join(''), true)]) {
      const { calls = [], item } = responses.metadata(read)
      expect(calls.map(({ id }) => id)).toEqual(Array.from({ length: 255 }, (_, at) => `c${at}`))
      expect(item).toBe('ws_1')
    }
  })

  it('the calls of a stream are those of its last event where no item comes alone', () => {
    const whole = responseObject(request, { text: 'Wait.', calls: [search] }, 1)
    for (const type of ['response.completed', 'response.done']) {
      const end = `data: ${JSON.stringify({ type, response: whole })}\n\n`
      const { calls = [], item } = responses.metadata(response(`data: {"type":"response.created"}\n\n${end}`, true))
      expect(calls.map(({ id, name }) => `${id} ${name}`)).toEqual(['call_1_0 search'])
      expect(item).toBe('msg_1')
    }
  })

  it('a response whose calls the provider made and answered itself calls nothing, streamed and whole', () => {
    const shell = { type: 'shell_call', id: 'sh_1', call_id: 'c1', environment: { type: 'container_reference' } }
    const output = { type: 'shell_call_output', id: 'sho_1', call_id: 'c1', output: [] }
    const call = { type: 'function_call', id: 'fc_1', call_id: 'c2', name: 'f', arguments: '{}' }
    const local = { ...shell, environment: { type: 'local' } }
    for (const [items, nothing] of [
      [[shell, output], true],
      [[shell], true],
      [[local, output], true],
      [[local], false],
      [[shell, output, call], false],
    ] as const) {
      const whole = { ...responseObject(request, { text: 'Hi' }, 7), output: items }
      const end = `data: ${JSON.stringify({ type: 'response.completed', response: whole })}\n\n`
      expect(responses.callsNothing(response(JSON.stringify(whole)))).toBe(nothing)
      expect(responses.callsNothing(response(end, true))).toBe(nothing)
      expect(responses.marks?.callIds(end)).toEqual(
        items.flatMap((item) => (item === call ? ['c2'] : item === local && !nothing ? ['c1'] : [])),
      )
    }
  })

  it('a response that the provider has not stored has no id', () => {
    const whole = responseObject({ ...request, store: false }, { text: 'Hi' }, 7)
    expect(responses.metadata(response(JSON.stringify(whole))).id).toBeUndefined()
  })
})
