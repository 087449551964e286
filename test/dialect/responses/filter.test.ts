import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../../src/core/terminal.ts'
import type { BlockedMessage, ToolCallFilter } from '../../../src/dialect/dialect.ts'
import { responses } from '../../../src/dialect/responses/index.ts'
import { applyEdits } from '../../../src/json/edit.ts'
import { createFrameReader, dataOf } from '../../../src/sse/frames.ts'
import type { Answer } from '../../support/provider.ts'
import { eventTexts, type Item, responseEvents, responseObject } from '../../support/responses.ts'

const REQUEST = { model: 'm', messages: [] }
const CALLS = [
  { id: 'a', name: 'read', arguments: '{"file":"ü"}' },
  { id: 'b', name: 'search', arguments: '{"query":"x"}' },
  { id: 'c', name: 'read', arguments: '{"file":"b"}' },
]
const terminal = (answered: boolean) => terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', answered)

const textOf = (answer: Answer, number = 1) =>
  eventTexts(responseEvents(responseObject(REQUEST, answer, number))).join('')

/** Feeds a stream; returns the bytes that it returned at once. */
function feed(filter: Pick<ToolCallFilter, 'push'>, text: string): Buffer {
  const bytes = Buffer.from(text)
  const reader = createFrameReader()
  const frames = [...reader.push(bytes), ...reader.end()]
  return Buffer.concat(frames.flatMap((frame) => filter.push(frame)))
}

/** Returns what a client reads, and checks the grammar of its events. */
function received(...bytes: readonly Buffer[]) {
  const reader = createFrameReader()
  const frames = [...reader.push(Buffer.concat(bytes)), ...reader.end()]
  const events = frames.map((frame) => JSON.parse(dataOf(frame) ?? 'null') as Item)
  expect(events.map((event) => event['sequence_number'])).toEqual(events.map((_, at) => at))
  const of = (type: string) => events.filter((event) => event['type'] === `response.output_item.${type}`)
  expect(of('added').map((event) => event['output_index'])).toEqual(of('added').map((_, at) => at))
  const items = of('done').map(({ item }) => item as Item)
  const last = events.at(-1)
  const response = (last?.['response'] ?? {}) as Item
  expect([last?.['type'], response['output']]).toEqual(['response.completed', items])
  return { types: events.map(({ type }) => type), items, response, ids: items.map(({ id }) => id) }
}

describe('a Responses stream whose calls are held', () => {
  const answer = { reasoning: 'x', text: 'Let me see. ', calls: CALLS }

  it('a stream without a blocked call keeps its bytes even if it ends within the blank line of an event', () => {
    const all = textOf(answer)
    const changed: number[] = []
    for (let end = 0; end <= all.length; end++) {
      const text = all.slice(0, end)
      const filter = responses.openFilter()
      const out = feed(filter, text)
      filter.endResponse()
      if (Buffer.concat([out, ...filter.release(new Set())]).toString() !== text) changed.push(end)
    }
    expect(changed).toEqual([])
  })

  it.each([{ type: 'container_reference' }, undefined])(
    "the calls of a provider's shell stay with their outputs, whichever calls of the client are blocked: %j",
    (environment) => {
      const shell = { id: 'sh', type: 'shell_call', call_id: 's', status: 'completed', action: { commands: ['ls'] } }
      const blocks = [
        { ...shell, ...(environment ? { environment } : {}) },
        { id: 'sho', type: 'shell_call_output', call_id: 's', status: 'completed', output: [] },
      ]
      for (const [blocked, left] of [
        [[0], ['sh', 'sho', 'fc_1_1', 'fc_1_2']],
        [[1], ['sh', 'sho', 'fc_1_0', 'fc_1_2']],
        [
          [0, 2],
          ['sh', 'sho', 'fc_1_1'],
        ],
      ] as const) {
        const filter = responses.openFilter()
        const out = feed(filter, textOf({ blocks, calls: CALLS }))
        expect(filter.endResponse()?.calls.map(({ id }) => id)).toEqual(['a', 'b', 'c'])
        expect(received(out, ...filter.release(new Set<number>(blocked))).ids).toEqual(left)
      }
    },
  )

  it('text after the calls of a response stays if all of them are blocked and another response follows', () => {
    const whole = responseObject(REQUEST, answer, 1)
    const [reasoning, message, ...calls] = whole['output'] as Item[]
    const output = [...calls, { ...reasoning, id: 'rs_a' }, message, reasoning, ...calls.slice(0, 1), reasoning]
    const filter = responses.openFilter()
    const bytes = [feed(filter, eventTexts(responseEvents({ ...whole, output })).join(''))]
    filter.endResponse()
    bytes.push(feed(filter, textOf({ text: 'Well.' }, 2)))
    filter.endResponse()
    const { ids } = received(...bytes, ...filter.release(new Set()))
    expect(ids).toEqual(['rs_a', 'msg_1', 'msg_2'])
  })

  it('a response that breaks off anywhere leaves no item without its end before the response that replaces it', () => {
    const calling = (number: number) => ({ text: `Let me see ${number}. `, calls: CALLS.slice(0, 1) })
    const events = eventTexts(responseEvents(responseObject(REQUEST, calling(2), 2)))
    for (let end = 0; end <= events.length; end++) {
      const filter = responses.openFilter()
      const bytes = [feed(filter, textOf(calling(1), 1))]
      filter.endResponse()
      bytes.push(feed(filter, events.slice(0, end).join('')))
      filter.endResponse()
      bytes.push(feed(filter, textOf({ text: 'Well.' }, 3)))
      filter.endResponse()
      const { ids } = received(...bytes, ...filter.release(new Set()))
      expect(ids.filter((id) => id !== 'msg_2')).toEqual(['msg_1', 'msg_3'])
    }
  })

  it('a held stream shows text at once, and neither calls nor its beginning before it has content', () => {
    const filter = responses.openFilter()
    const events = eventTexts(responseEvents(responseObject(REQUEST, answer, 1)))
    const firstCall = events.findIndex((text) => text.includes('function_call'))
    expect(feed(filter, events.join('')).toString()).toBe(events.slice(0, firstCall).join(''))
    expect(feed(responses.openFilter(), textOf({ reasoning: 'x', calls: CALLS })).toString()).toBe('')
  })

  it('a held stream gives its calls, and the response in the form of the input', () => {
    const filter = responses.openFilter()
    feed(filter, textOf(answer))
    const whole = responseObject(REQUEST, answer, 1)
    const buffered = filter.endResponse()
    expect(buffered).toEqual(responses.readAnswer(Buffer.from(JSON.stringify(whole)))?.buffered)
    expect(buffered).toMatchObject({
      calls: CALLS.map(({ id, name }) => ({ id, name })),
      text: 'Let me see. ',
      message: { id: 'resp_1', output: whole['output'] },
    })
  })

  it('a held stream loses its blocked calls', () => {
    for (const blocked of [[0], [1], [0, 2], [1, 2]]) {
      const filter = responses.openFilter()
      const out = feed(filter, textOf(answer))
      filter.endResponse()
      const { ids, response } = received(out, ...filter.release(new Set(blocked)))
      const calls = [0, 1, 2].filter((at) => !blocked.includes(at)).map((at) => `fc_1_${at}`)
      expect(ids).toEqual(['rs_1', 'msg_1', ...calls])
      const body = Buffer.from(JSON.stringify(responseObject(REQUEST, answer, 1)))
      const whole = responses.withoutCalls(body, new Set(blocked), []).toString('utf8')
      expect(JSON.parse(whole).output).toEqual(response['output'])
    }
  })

  it('a held stream loses reasoning together with the only call after it', () => {
    const both = [...responseEvents(responseObject(REQUEST, { reasoning: 'x', calls: CALLS.slice(0, 1) }, 1))]
    const more = responseEvents(responseObject(REQUEST, { reasoning: 'y', calls: CALLS.slice(1, 2) }, 2))
    const moved = more.slice(2, -1).map((event) => ({ ...event, output_index: (event['output_index'] as number) + 2 }))
    const filter = responses.openFilter()
    feed(filter, eventTexts([...both.slice(0, -1), ...moved, ...both.slice(-1)]).join(''))
    filter.endResponse()
    expect(received(...filter.release(new Set([0]))).ids).toEqual(['rs_2', 'fc_2_0'])
  })

  it('a second response continues the stream, with the usage of both', () => {
    for (const text of [undefined, 'Let me see. ']) {
      const filter = responses.openFilter()
      const first = feed(filter, textOf({ reasoning: 'x', calls: CALLS, ...(text ? { text } : {}) }))
      filter.endResponse()
      const second = feed(filter, textOf({ text: 'Done.', calls: CALLS.slice(1, 2) }, 2))
      filter.endResponse()
      const { types, ids, response } = received(first, second, ...filter.release(new Set()))
      expect(types.filter((type) => type === 'response.created')).toHaveLength(1)
      expect(ids).toEqual([...(text ? ['rs_1', 'msg_1'] : []), 'msg_2', 'fc_2_0'])
      // Clients refuse another id at the end than at the beginning.
      expect(response).toMatchObject({ id: text ? 'resp_1' : 'resp_2', usage: { total_tokens: 220 } })
    }
  })

  it('a held stream can become the final answer of the run', () => {
    for (const text of [undefined, 'Let me see. ']) {
      const filter = responses.openFilter()
      const first = feed(filter, textOf({ calls: CALLS, ...(text ? { text } : {}) }))
      filter.endResponse()
      const [opening, stream] = filter.becomeAnswer(false)
      const second = feed(stream, textOf({ text: 'It is 42.' }, 2))
      expect(stream.endResponse()).toBe('answered')
      const { types, ids, response } = received(first, ...opening, second, ...stream.finish(terminal, undefined))
      expect(types.filter((type) => type === 'response.created')).toHaveLength(1)
      expect(ids).toEqual([...(text ? ['msg_1'] : []), 'msg_2'])
      expect(response).toMatchObject({ usage: { total_tokens: 220 }, governor: terminal(true) })
      expect(stream.text).toBe(text ? 'Let me see. \n\nIt is 42.' : 'It is 42.')
    }
  })

  it('a held stream with an error keeps every byte of the provider', () => {
    const failed = responseEvents(responseObject(REQUEST, { calls: CALLS, finish: 'failed' }, 1))
    const text = eventTexts(failed).join('')
    const filter = responses.openFilter()
    const out = feed(filter, text)
    filter.endResponse()
    expect(Buffer.concat([out, ...filter.release(new Set())]).toString()).toBe(text)
  })

  it('the whole calls of a response without its end are held, and the blocked ones are removed', () => {
    const filter = responses.openFilter()
    const out = feed(filter, eventTexts(responseEvents(responseObject(REQUEST, answer, 1)).slice(0, -1)).join(''))
    expect(filter.endResponse()?.calls.map(({ id }) => id)).toEqual(['a', 'b', 'c'])
    const text = Buffer.concat([out, ...filter.release(new Set([1]))]).toString()
    expect(text.match(/"call_id":"\w"/g)?.every((id) => /[ac]/.test(id.slice(-2)))).toBe(true)
    expect(text).toContain('"arguments":"{\\"file\\":\\"b\\"}"')
  })
})

describe('a Responses conversation after blocked calls', () => {
  const outputOf = (answer: Answer, number: number) => responseObject(REQUEST, answer, number)['output']
  const blockedMessage = (answer: Answer, number = 1): BlockedMessage => {
    const buffered = responses.readAnswer(
      Buffer.from(JSON.stringify(responseObject(REQUEST, answer, number))),
    )?.buffered
    if (!buffered) throw new Error('no response')
    return { buffered, results: buffered.calls.map(({ id }) => `no ${id}`) }
  }
  const answer = { reasoning: 'x', calls: CALLS.slice(0, 2) }
  const continued = (body: object, ...blockedMessages: readonly BlockedMessage[]) => {
    const bytes = Buffer.from(JSON.stringify(body))
    const edits = responses.read({ path: '', body: bytes })?.continueAfterBlock(blockedMessages)
    return edits && JSON.parse(applyEdits(bytes, edits).toString('utf8'))
  }
  const results = ['a', 'b'].map((id) => ({ type: 'function_call_output', call_id: id, output: `no ${id}` }))
  const history = [
    { role: 'user', content: 'Hi' },
    { type: 'function_call', call_id: 'x' },
  ]

  it('blocked calls and their results are at the end of the history', () => {
    const body = { store: false, input: history, n: 1 }
    expect(
      continued(body, blockedMessage(answer), blockedMessage({ text: 'Hm.', calls: CALLS.slice(2) }, 2)).input,
    ).toEqual([
      ...history,
      ...(outputOf(answer, 1) as Item[]),
      ...results,
      ...(outputOf({ text: 'Hm.', calls: CALLS.slice(2) }, 2) as Item[]),
      { type: 'function_call_output', call_id: 'c', output: 'no c' },
    ])
  })

  it('a request after blocked calls contains no unreadable reasoning, and no id that refers to it', () => {
    const { buffered, results: texts } = blockedMessage(answer)
    const { output } = buffered.message as { output: Item[] }
    const unreadable = output.map(({ encrypted_content: _, ...item }) => item)
    const message = { id: 'resp_1', output: unreadable }
    const { input } = continued(
      { store: false, input: history },
      { buffered: { ...buffered, message }, results: texts },
    )
    const calls = output.slice(1).map(({ id: _, ...call }) => call)
    expect(input).toEqual([...history, ...calls, ...results])
  })

  it('a request continues from the blocked response if its provider has stored it', () => {
    const input = [{ type: 'function_call_output', call_id: 'x', output: '' }]
    const blockedMessages = [blockedMessage(answer), blockedMessage(answer, 2)]
    expect(continued({ previous_response_id: 'resp_0', input }, ...blockedMessages)).toEqual({
      previous_response_id: 'resp_2',
      input: results,
    })
    expect(continued({ input: 'Hi' }, blockedMessages[0] as BlockedMessage)).toEqual({
      input: results,
      previous_response_id: 'resp_1',
    })
    expect(continued({ conversation: 'c', input }, ...blockedMessages)).toEqual({
      conversation: 'c',
      input: results,
    })
  })

  it('each kind of call is answered in its own form, and none whose result can’t be a text', () => {
    const ask = (call: object) => {
      const body = { id: 'r', output: [call] }
      const buffered = responses.readAnswer(Buffer.from(JSON.stringify(body)))?.buffered
      return buffered && continued({ store: false, input: history }, { buffered, results: ['no'] })?.input.at(-1)
    }
    expect(ask({ type: 'custom_tool_call', call_id: '1', name: 'f', input: '' })).toEqual({
      type: 'custom_tool_call_output',
      call_id: '1',
      output: 'no',
    })
    expect(ask({ type: 'local_shell_call', call_id: '1' })).toMatchObject({
      type: 'local_shell_call_output',
      id: '1',
    })
    expect(ask({ type: 'shell_call', call_id: '1' })).toMatchObject({ output: [{ stderr: 'no' }] })
    expect(ask({ type: 'apply_patch_call', call_id: '1' })).toMatchObject({ status: 'failed', output: 'no' })
    expect(ask({ type: 'mcp_approval_request', id: '1' })).toMatchObject({ approve: false, reason: 'no' })
    expect(ask({ type: 'computer_call', call_id: '1' })).toBeUndefined()
    const caller = { type: 'program', caller_id: 'prog_1' }
    expect(ask({ type: 'function_call', call_id: '1', name: 'f', arguments: '{}', caller })).toMatchObject({ caller })
    expect(ask({ type: 'shell_call', call_id: '1', caller: { type: 'direct' } })).toMatchObject({
      caller: { type: 'direct' },
    })
  })

  it('pending results come before the client’s input, and the request continues from another response', () => {
    const pending = [JSON.stringify(results[0])]
    const withPending = (body: object, redirectTo?: string) => {
      const bytes = Buffer.from(JSON.stringify(body))
      const edits = responses.read({ path: '', body: bytes })?.stored?.injectPendingResults(pending, redirectTo) ?? []
      return JSON.parse(applyEdits(bytes, edits).toString('utf8'))
    }
    const previous_response_id = 'resp_1'
    const message = { role: 'user', content: 'Go on.' }
    expect(withPending({ previous_response_id, input: [message] })).toEqual({
      previous_response_id,
      input: [results[0], message],
    })
    expect(withPending({ previous_response_id, input: 'Go on.' })).toEqual({
      previous_response_id,
      input: [results[0], message],
    })
    expect(withPending({ input: [], previous_response_id }, 'resp_2')).toEqual({
      previous_response_id: 'resp_2',
      input: [results[0]],
    })
    expect(withPending({ previous_response_id })).toEqual({ previous_response_id, input: [results[0]] })
  })

  it('a response that the provider does not store has no pending results', () => {
    const of = (body: object) => {
      const request = responses.read({ path: '', body: Buffer.from(JSON.stringify(body)) })
      return request?.resultsOf?.(blockedMessage(answer)) ?? []
    }
    expect(of({ store: false, input: history })).toEqual([])
    const all = results.map((result) => JSON.stringify(result))
    expect(of({ previous_response_id: 'resp_1', input: [] })).toEqual(all)
    expect(of({ input: history })).toEqual(all)
  })
})
