import { describe, expect, it } from 'vitest'
import type { AnswerChange } from '../../../src/dialect/dialect.ts'
import { gemini } from '../../../src/dialect/gemini/index.ts'
import { geminiReplies } from '../../../src/dialect/gemini/reply.ts'
import { createFrameReader, dataOf } from '../../../src/sse/frames.ts'
import { call, chunk, eventOf, last, named, SIGNED, say, TERMINAL, thought, UNCHECKED, usage } from './chunks.ts'

const bytesOf = (body: unknown) => Buffer.from(typeof body === 'string' ? body : JSON.stringify(body))
const readAnswer = (body: unknown) => gemini.readAnswer(bytesOf(body))

function written(body: unknown, change: Partial<AnswerChange> = {}) {
  const all = { terminal: TERMINAL, dropCalls: true, earlier: [], ...change }
  return JSON.parse(gemini.writeAnswer(bytesOf(body), all).toString())
}

const without = (body: unknown, blocked: readonly number[], earlier: readonly unknown[] = []) =>
  JSON.parse(gemini.withoutCalls(bytesOf(body), new Set(blocked), earlier.map(bytesOf)).toString())

function tailOf(body: unknown, streams = false) {
  const tail = bytesOf(body)
  return { head: tail.subarray(0, 16_384), tail, whole: tail, streams, withCalls: false }
}

describe('a whole Gemini response that is read', () => {
  it.each([
    ['a whole response', last([thought('Hm.'), { text: 'It ' }, call('a'), { text: 'is.' }])],
    ['a list of chunks', [chunk([thought('Hm.'), { text: 'It ' }]), chunk([call('a')]), last([{ text: 'is.' }])]],
  ])('%s has its text without thoughts, and its calls', (_, body) => {
    const calls = [{ id: '', name: 'a', arguments: '{}' }]
    expect(readAnswer(body)).toMatchObject({ text: 'It is.', calls, end: 'complete', buffered: { calls } })
  })

  it('is complete, cut off or failed as its last reason or an error says', () => {
    expect(readAnswer([say('a'), last([])])?.end).toBe('complete')
    expect(readAnswer([last([], 'STOP'), last([], 'MAX_TOKENS'), usage(3)])?.end).toBe('truncated')
    expect(readAnswer([last([], 'SAFETY'), last([], 'STOP')])?.end).toBe('complete')
    expect(readAnswer({ promptFeedback: { blockReason: 'SAFETY' } })?.end).toBe('truncated')
    expect(readAnswer([last([]), { error: { message: 'lost' } }])?.end).toBe('failed')
    expect(readAnswer({ error: { message: 'lost' } })?.end).toBe('failed')
    expect(readAnswer(chunk([]))?.end).toBe('complete')
  })

  it('has no calls to filter if it has several candidates, of which the first is read', () => {
    const several = { candidates: [...(last([{ text: 'a' }]).candidates ?? []), ...(say('b').candidates ?? [])] }
    expect(readAnswer(several)).toMatchObject({ text: 'a', buffered: undefined })
    expect(readAnswer([say('a'), several])).toMatchObject({ text: 'aa', buffered: undefined })
    expect(readAnswer([say('a'), say('b')])?.buffered).toMatchObject({ text: 'ab' })
  })

  it.each(['{}', '[]', 'no JSON', '7', '{"usageMetadata":{}}', '[{"models":[]}]'])('%s is none', (body) => {
    expect(readAnswer(body)).toBeUndefined()
  })

  it('has neither text nor calls where its parts are missing or of another kind', () => {
    const odd = [
      {},
      { content: 7 },
      { content: {} },
      { content: { parts: {} } },
      { content: { parts: ['a', null, 7, { functionCall: 'a' }, { text: 7 }] } },
    ]
    for (const candidate of odd) {
      expect(readAnswer({ candidates: [candidate] })).toMatchObject({ text: '', calls: [] })
      expect(written({ candidates: [candidate] })).toEqual({ candidates: [candidate], governor: TERMINAL })
    }
    expect(written({ candidates: {} })).toEqual({ candidates: {}, governor: TERMINAL })
  })
})

describe('a whole Gemini response that ends a run', () => {
  it('loses its calls and gets a reason with which clients read it', () => {
    const body = last([{ text: 'a' }, call('a'), thought('Hm.')], 'MAX_TOKENS')
    expect(written(body)).toEqual({ ...last([{ text: 'a' }, thought('Hm.')]), governor: TERMINAL })
    expect(written(body, { dropCalls: false })).toEqual({ ...body, governor: TERMINAL })
  })

  it('that is a list keeps each chunk, of which the last states how the run ended', () => {
    const body = [say('a'), chunk([call('a')]), last([call('b')])]
    const empty = [{ text: '' }]
    expect(written(body)).toEqual([say('a'), chunk(empty), { ...last(empty), governor: TERMINAL }])
  })

  it('gets a text in place of its own, where it ends', () => {
    const body = [chunk([thought('Hm.'), { text: 'a' }]), chunk([{ text: 'b' }, call('a')]), last([])]
    expect(written(body, { text: 'Enough.' })).toEqual([
      chunk([thought('Hm.')]),
      chunk([{ text: '' }]),
      { ...last([{ text: 'Enough.' }]), governor: TERMINAL },
    ])
  })

  it('that has no content gets one with the text', () => {
    const content = { parts: [{ text: 'Enough.' }], role: 'model' }
    for (const candidate of [{ finishReason: 'SAFETY' }, { content: { role: 'model' }, finishReason: 'SAFETY' }])
      expect(written({ candidates: [candidate] }, { text: 'Enough.' }).candidates).toEqual([
        { content, finishReason: 'STOP' },
      ])
  })

  it.each([
    [
      'in the part of its last text',
      last([{ text: 'a' }, { text: 'b' }, thought('Hm.')]),
      {},
      [{ text: 'a' }, { text: 'b\n\nA footer.' }, thought('Hm.')],
    ],
    ['in a part of its own without a text', last([thought('Hm.')]), {}, [thought('Hm.'), { text: '\n\nA footer.' }]],
    ['in the text that replaces it', last([{ text: 'a' }, call('a')]), { text: 'b' }, [{ text: 'b\n\nA footer.' }]],
    [
      'after a call of an agent that ends its run itself',
      last([{ text: 'a' }, call('a')]),
      { dropCalls: false },
      [{ text: 'a\n\nA footer.' }, call('a')],
    ],
  ])('has its footer %s', (_, body, change, parts) => {
    const { candidates } = written(body, { footer: '\n\nA footer.', ...change })
    expect(candidates[0].content.parts).toEqual(parts)
  })

  it('that is a list has its footer in the last chunk with a text', () => {
    const body = [say('a'), chunk([{ text: 'b' }, call('a')]), last([])]
    expect(written(body, { footer: '!' })).toEqual([
      say('a'),
      chunk([{ text: 'b!' }]),
      { ...last([]), governor: TERMINAL },
    ])
    expect(written([say('a'), last([{ text: 'b' }])], { footer: '!' })[1]).toMatchObject(last([{ text: 'b!' }]))
    expect(written([chunk([call('a')]), last([])], { footer: '!' })[1]).toMatchObject(last([{ text: '!' }]))
  })

  it('states the usage of those before it too, of several chunks the last, and else its own', () => {
    const body = [say('a', usage(1)), last([], 'STOP', usage(2))]
    expect(written(body)[1].usageMetadata).toEqual({ totalTokenCount: 2 })
    const earlier = [bytesOf([say('', usage(10)), last([], 'STOP', usage(20)), chunk([])]), bytesOf(usage(300))]
    const [first, second] = written(body, { earlier })
    expect([first.usageMetadata, second.usageMetadata]).toEqual([{ totalTokenCount: 1 }, { totalTokenCount: 322 }])
    expect(written(last([]), { earlier: [bytesOf(last([]))] })).not.toHaveProperty('usageMetadata')
  })

  it('that is no answer gets the terminal state alone', () => {
    expect(written({ error: { message: 'lost' } })).toEqual({ error: { message: 'lost' }, governor: TERMINAL })
  })
})

describe('a whole Gemini response with blocked calls', () => {
  it('loses these calls alone, counted over all chunks, and keeps its reason', () => {
    const body = [chunk([call('a'), { text: 'x' }, call('b')]), last([call('c'), call('d')], 'MAX_TOKENS')]
    expect(without(body, [1, 2])).toEqual([chunk([call('a'), { text: 'x' }]), last([call('d')], 'MAX_TOKENS')])
    expect(without(body, [])).toEqual(body)
  })

  it('signs the first call that is left if the one with the signature went', () => {
    const body = [chunk([call('a', SIGNED), call('b')]), last([call('c')])]
    expect(without(body, [0])).toEqual([chunk([call('b', UNCHECKED)]), last([call('c')])])
    expect(without(body, [0, 1])).toEqual([chunk([{ text: '' }]), last([call('c', UNCHECKED)])])
    expect(without(body, [1])).toEqual([chunk([call('a', SIGNED)]), last([call('c')])])
    expect(without(last([call('a'), call('b')]), [0])).toEqual(last([call('b')]))
    expect(without(last([call('a', SIGNED), call('b', SIGNED)]), [0])).toEqual(last([call('b', SIGNED)]))
    expect(without(last([call('a'), call('b', SIGNED), call('c')]), [0, 1])).toEqual(last([call('c', UNCHECKED)]))
    expect(without(last([call('a'), call('b'), call('c', SIGNED)]), [0])).toEqual(last([call('b'), call('c', SIGNED)]))
  })

  it('begins with what the responses before it said, as paragraphs, and states their usage', () => {
    const silent = last([thought('Hm.'), call('x')], 'STOP', usage(3))
    const spoken = [say('One', usage(10)), last([{ text: '.' }, call('y')], 'STOP', usage(20))]
    const body = [chunk([{ text: 'Two.' }, call('a')], {}, named('two')), last([call('b')], 'STOP', usage(100))]
    const said = [thought('Hm.'), { text: 'One' }, { text: '.' }, { text: '\n\n' }]
    expect(without(body, [0], [silent, spoken])).toEqual([
      chunk([...said, { text: 'Two.' }], {}, named('two')),
      last([call('b')], 'STOP', usage(123)),
    ])
  })
})

describe('what is read of a Gemini response that was relayed', () => {
  const metadata = (usageMetadata: object, more: object = {}) =>
    gemini.metadata(tailOf(last([], 'STOP', { usageMetadata, ...more })))

  it('is its usage: thoughts count as output, and the results of tools of the provider as input', () => {
    const stated = {
      promptTokenCount: 100,
      toolUsePromptTokenCount: 20,
      cachedContentTokenCount: 60,
      candidatesTokenCount: 7,
      thoughtsTokenCount: 5,
      totalTokenCount: 132,
    }
    expect(metadata(stated).usage).toEqual({ input: 120, output: 12, cachedInput: 60, reasoning: 5 })
    expect(metadata({ promptTokenCount: 3 }).usage).toMatchObject({ input: 3, output: 0 })
    expect(metadata({ candidatesTokenCount: 3 }).usage).toMatchObject({ input: 0, output: 3 })
    expect(metadata({ totalTokenCount: 3 }).usage).toMatchObject({ input: 0, output: 3 })
    expect(metadata({ promptTokenCount: 'many', trafficType: 'ON_DEMAND' }).usage).toBeUndefined()
    expect(gemini.metadata(tailOf(say('a'))).usage).toBeUndefined()
  })

  it('is the usage of its last chunk that states some, whether it is stated in one or in each', () => {
    const events = [say('a', usage(3)), last([], 'STOP', usage(5)), chunk([])].map(eventOf).join('')
    expect(gemini.metadata(tailOf(events, true)).usage).toMatchObject({ output: 5 })
    expect(gemini.metadata(tailOf([say('a', usage(3)), last([])])).usage).toMatchObject({ output: 3 })
  })

  it('is its model and its tier, in lower case', () => {
    expect(metadata({ serviceTier: 'FLEX', trafficType: 'PROVISIONED' }).bill).toEqual({ model: 'm', tier: 'flex' })
    expect(metadata({ trafficType: 'ON_DEMAND_PRIORITY' }).bill?.tier).toBe('priority')
    expect(metadata({}).bill?.tier).toBe('')
  })

  it('is its id, its model and its last reason', () => {
    const body = [say('a', named('r')), last([], 'OTHER', named('r')), last([], 'MAX_TOKENS', named('r'))]
    const { id, model, finishReasons } = geminiReplies.responseFacts(tailOf(body))
    expect([id, model, finishReasons]).toEqual(['r', 'm', ['MAX_TOKENS']])
    expect(geminiReplies.responseFacts(tailOf(chunk([]))).finishReasons).toEqual([])
  })

  it('says that it calls nothing if it has an end and no call', () => {
    expect(gemini.callsNothing(tailOf(last([{ text: '"functionCall": {' }])))).toBe(true)
    expect(gemini.callsNothing(tailOf({ promptFeedback: { blockReason: 'PROHIBITED_CONTENT' } }))).toBe(true)
    expect(gemini.callsNothing(tailOf(JSON.stringify(last([]), null, 2)))).toBe(true)
    expect(gemini.callsNothing(tailOf(say('a')))).toBe(false)
    expect(gemini.callsNothing(tailOf(last([call('a')])))).toBe(false)
    expect(gemini.callsNothing(tailOf(JSON.stringify(last([call('a')]), null, 2)))).toBe(false)
  })

  it('marks its calls, with their ids, and its end', () => {
    const { call: mark, callIds, end } = geminiReplies.marks
    const withIds = chunk([{ functionCall: { id: 'a', name: 'x' } }, call('y'), { functionCall: { id: 'b' } }])
    for (const line of [`data: ${JSON.stringify(withIds)}`, `,${JSON.stringify(withIds)}`]) {
      expect(line).toContain(mark)
      expect(callIds(line)).toEqual(['a', 'b'])
    }
    expect(callIds('data: "functionCall"')).toEqual([])
    const pieces = [last([]), last([], 'SAFETY'), { promptFeedback: { blockReason: 'OTHER' } }, say('a')]
    expect(pieces.map((piece) => end(eventOf(piece)))).toEqual(['whole', 'whole', 'whole', undefined])
    const failed = { error: { code: 503 } }
    for (const piece of [eventOf(failed), `data:${JSON.stringify(failed)}`, JSON.stringify(failed, null, 2)])
      expect(end(eventOf(say('a')) + piece)).toBe('failed')
    const args = chunk([{ functionCall: { name: 'a', args: { error: { code: 1 } } } }])
    expect(end(eventOf(args))).toBeUndefined()
  })
})

describe('a reply of Governor to a client of Gemini', () => {
  const answer = { text: 'So "far".', model: 'm', terminal: TERMINAL }
  const expected = {
    ...last([{ text: 'So "far".' }], 'STOP', named('id1')),
    usageMetadata: { promptTokenCount: 0, candidatesTokenCount: 0, totalTokenCount: 0 },
    governor: TERMINAL,
  }

  it('is a response, a list of one, or a stream of one event', () => {
    const whole = gemini.reply(answer, false, 'id1', 0)
    expect([whole.contentType, JSON.parse(whole.body.toString())]).toEqual(['application/json', expected])
    const list = gemini.reply(answer, 'list', 'id1', 0)
    expect([list.contentType, JSON.parse(list.body.toString())]).toEqual(['application/json', [expected]])
    const events = gemini.reply(answer, true, 'id1', 0)
    expect(events.contentType).toBe('text/event-stream; charset=utf-8')
    const data = createFrameReader()
      .push(events.body)
      .map((frame) => JSON.parse(dataOf(frame) ?? ''))
    expect(data).toEqual([expected])
  })
})
