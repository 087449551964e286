import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../../src/core/terminal.ts'
import { gemini } from '../../../src/dialect/gemini/index.ts'
import { createFrameReader } from '../../../src/sse/frames.ts'
import { answerIn, chunksIn, generatedEvents, type Part } from '../../support/gemini.ts'

const TERMINAL = terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', true)
const CALLS = ['read', 'search'].map((name, at) => ({ id: `c${at}`, name, arguments: { at } }))

const framesOf = (events: readonly string[]) => {
  const reader = createFrameReader()
  return [...reader.push(Buffer.from(events.join(''))), ...reader.end()]
}
/** Feeds events; returns the bytes that the client gets at once. */
const feed = (stream: Pick<ReturnType<typeof gemini.openFilter>, 'push'>, events: readonly string[]) =>
  Buffer.concat(framesOf(events).flatMap((frame) => stream.push(frame))).toString()
const event = (parts: readonly Part[], more: object = {}, beside: object = {}) =>
  `data: ${JSON.stringify({ candidates: [{ content: { parts, role: 'model' }, index: 0, ...more }], ...beside })}\n\n`
const called = (name: string): Part => ({ functionCall: { name, args: {} } })
const ENDS = { finishReason: 'STOP' }

describe('a Gemini stream whose calls are held', () => {
  it('shows its text at once, and its calls only when they are released', () => {
    const filter = gemini.openFilter()
    const events = [
      ...generatedEvents({ text: 'Let me see. ' }, 1).slice(0, -1),
      ...generatedEvents({ calls: CALLS }, 1),
    ]
    const shown = feed(filter, events)
    expect([answerIn(shown).text, answerIn(shown).calls]).toEqual(['Let me see. ', []])
    expect(filter.endResponse()?.calls.map(({ name }) => name)).toEqual(['read', 'search'])
    const rest = answerIn(Buffer.concat(filter.release(new Set([0]))).toString())
    expect(rest.calls).toMatchObject([{ functionCall: { name: 'search' } }])
  })

  it('gives the text beside its blocked calls, and nothing of its end, when a later response follows', () => {
    const filter = gemini.openFilter()
    feed(filter, [event([called('read')]), event([{ text: 'I look.' }]), event([called('search')], ENDS)])
    filter.endResponse()
    const shown = chunksIn(feed(filter, [event([{ text: 'Now.' }]), event([called('write')], ENDS)]))
    expect(shown.map(({ candidates }) => candidates[0]?.content?.parts)).toEqual([
      [{ text: 'I look.' }],
      [{ text: '\n\n' }],
      [{ text: 'Now.' }],
    ])
    expect(filter.endResponse()).toMatchObject({
      calls: [{ name: 'write' }],
      text: 'Now.',
      message: JSON.stringify([{ text: 'Now.' }, called('write')]),
    })
  })

  it('keeps the first response if a later one has no candidate', () => {
    const filter = gemini.openFilter()
    feed(filter, generatedEvents({ calls: CALLS }, 1))
    filter.endResponse()
    feed(filter, ['data: {"usageMetadata":{"promptTokenCount":1}}\n\n'])
    expect(filter.endResponse()).toBeUndefined()
    const { calls, reason } = answerIn(Buffer.concat(filter.release(new Set([1]))).toString())
    expect([calls.length, reason]).toEqual([1, 'STOP'])
  })
})

describe('a Gemini stream that ends a run', () => {
  const ended = (tries: readonly (readonly string[])[]) => {
    const stream = gemini.openStream(true, false)
    let bytes = ''
    for (const events of tries) {
      bytes += feed(stream, events)
      stream.endResponse()
    }
    return bytes + Buffer.concat(stream.finish(() => TERMINAL, undefined)).toString()
  }

  it('keeps every byte of the events before its end, and the usage of its provider', () => {
    const text = event([{ text: 'It is 42.' }]).replace('data: {', 'data:{ "n": 1.0, ')
    const end = event([{ text: '' }], ENDS, { usageMetadata: { totalTokenCount: 9 } })
    expect(ended([[text, end]])).toBe(text + end.replace(/\}\n/, `,"governor":${JSON.stringify(TERMINAL)}}\n`))
  })

  it('states the usage of all its responses', () => {
    const used = (tokens: number) => ({ usageMetadata: { promptTokenCount: tokens, totalTokenCount: tokens + 1 } })
    const silent = [event([called('read')], ENDS, used(10))]
    const answer = [event([{ text: 'It is 42.' }], {}, used(20)), event([{ text: '' }], ENDS, used(30))]
    expect(answerIn(ended([silent, answer])).usage).toEqual({ promptTokenCount: 40, totalTokenCount: 42 })
  })
})

describe('a whole Gemini response', () => {
  const body = (parts: readonly Part[], more: object = ENDS) => Buffer.from(event(parts, more).slice('data: '.length))

  it.each([
    [undefined, 'complete'],
    ['STOP', 'complete'],
    ['MAX_TOKENS', 'truncated'],
    ['SAFETY', 'truncated'],
  ])('with the finish reason %s is %s', (finishReason, end) => {
    expect(gemini.readAnswer(body([{ text: 'It is 42.' }], { finishReason }))?.end).toBe(end)
  })

  it.each<[string, Part[], Part[]]>([
    ['follows its last text', [{ text: '42' }, called('f')], [{ text: '42, stopped' }, called('f')]],
    ['is a part of its own where there is no text', [called('f')], [called('f'), { text: ', stopped' }]],
    ['is the only part where there is none', [], [{ text: ', stopped' }]],
  ])('gets a footer, which %s', (_, parts, expected) => {
    const change = { terminal: TERMINAL, dropCalls: false, footer: ', stopped', earlier: [] }
    expect(answerIn(gemini.writeAnswer(body(parts), change).toString()).parts).toEqual(expected)
  })
})
