import { describe, expect, it } from 'vitest'
import type { AnswerStream } from '../../../src/dialect/dialect.ts'
import { gemini } from '../../../src/dialect/gemini/index.ts'
import {
  call,
  chunk,
  eventOf,
  feed,
  feedBytes,
  last,
  named,
  received,
  SIGNED,
  say,
  TERMINAL,
  terminal,
  thought,
  usage,
} from './chunks.ts'

const FALLBACK = '(Reached max iterations: 3)'
const open = (mayHaveFooter = false) => gemini.openStream(true, false, mayHaveFooter)

/** Feeds one list of chunks per attempt, as the proxy does, and ends the client's stream. */
function run(tries: readonly (readonly unknown[])[], dropCalls = true, footer?: string) {
  const stream: AnswerStream = gemini.openStream(dropCalls, false, footer !== undefined)
  let end: ReturnType<AnswerStream['endResponse']> = 'silent'
  const bytes: Buffer[] = []
  for (const data of tries) {
    bytes.push(feed(stream, ...data))
    end = stream.endResponse()
    if (end !== 'silent') break
  }
  if (end === 'broken') bytes.push(...stream.abandon())
  else bytes.push(...stream.finish(terminal, end === 'answered' || !dropCalls ? undefined : FALLBACK, footer))
  return { end, ...received(Buffer.concat(bytes)), raw: Buffer.concat(bytes).toString(), kept: stream.text }
}

describe('a Gemini stream that ends a run', () => {
  it('changes only in the chunk with its finish reason', () => {
    const data = [say('It '), say('is 42.', usage(8)), last([{ text: '' }], 'STOP', usage(9))]
    const { raw, kept, end } = run([data])
    const ended = { ...(data[2] as object), governor: TERMINAL }
    expect(raw).toBe([data[0], data[1], ended].map(eventOf).join(''))
    expect([kept, end]).toEqual(['It is 42.', 'answered'])
  })

  it('shows text at once, byte for byte, and holds its end and all after it', () => {
    const stream = open()
    const text = ' { "n" : 1.0, "candidates":[{"content":{"parts":[{"text":"Hi"}]}}]}'
    expect(feed(stream, text).toString()).toBe(eventOf(text))
    expect(stream.hasText).toBe(true)
    expect(feed(stream, last([])).length).toBe(0)
    expect(feed(stream, usage(7)).length).toBe(0)
    expect(feedBytes(stream, ': still here\n\n').toString()).toBe(': still here\n\n')
  })

  it('has begun with the first candidate, and has text with the first content or comment', () => {
    const commented = open()
    feedBytes(commented, ': still here\n\n')
    expect([commented.hasBegun, commented.hasText]).toEqual([false, true])
    const stream = open()
    feed(stream, usage(3))
    expect(stream.hasBegun).toBe(false)
    feed(stream, say(''))
    expect([stream.hasBegun, stream.hasText]).toEqual([true, false])
    feed(stream, say('Hi'))
    expect(stream.hasText).toBe(true)
  })

  it('takes an event that is not JSON for a comment, which the client gets as it is', () => {
    const stream = open()
    expect(feed(stream, 'no JSON').toString()).toBe(eventOf('no JSON'))
    expect(stream.hasBegun).toBe(false)
  })

  it('passes thoughts on at once, which are no answer', () => {
    const stream = open()
    expect(received(feed(stream, chunk([thought('Hm.')]))).parts).toEqual([thought('Hm.')])
    const { end, text, kept, governor } = run([[chunk([thought('Hm.')]), last([{ text: '' }])]])
    expect([end, text, kept]).toEqual(['silent', FALLBACK, FALLBACK])
    expect(governor).toEqual([terminal(false)])
  })

  it('holds text that may be markup until it is an answer', () => {
    const stream = open()
    expect(feed(stream, say('<th'), say('ink>Hm.</think>')).length).toBe(0)
    expect(received(feed(stream, say('It is 42.'))).text).toBe('<think>Hm.</think>It is 42.')
  })

  it('loses its calls, in one chunk and over several, and keeps what stands beside them', () => {
    const data = [
      say('It '),
      chunk([{ text: 'is ' }, call('a', SIGNED), { text: '42.' }, call('b')]),
      chunk([call('c')]),
      last([call('d')]),
    ]
    const { end, text, calls, reasons, chunks, governor } = run([data])
    expect([end, text, calls, reasons, governor]).toEqual(['answered', 'It is 42.', [], ['STOP'], [TERMINAL]])
    // Each chunk has a part, as the SDK forgets the answer otherwise; a chunk of calls alone is left out.
    expect(chunks.map(({ candidates }) => candidates?.[0]?.content?.parts)).toEqual([
      [{ text: 'It ' }],
      [{ text: 'is ' }, { text: '42.' }],
      [{ text: '' }],
    ])
  })

  it('shows the text beside a removed call as text, which may be markup', () => {
    const stream = open()
    expect(feed(stream, chunk([{ text: '<think>' }, call('a')])).length).toBe(0)
    const { parts } = received(feed(open(), chunk([thought('Hm.'), call('a')])))
    expect(parts).toEqual([thought('Hm.')])
  })

  it('loses the calls of every candidate', () => {
    const both = {
      ...named(),
      candidates: [
        { content: { parts: [{ text: 'It is 42.' }] }, index: 0, finishReason: 'STOP' },
        { content: { parts: [{ text: 'B' }, call('b')] }, index: 1, finishReason: 'MAX_TOKENS' },
      ],
    }
    const { chunks, governor } = run([[both]])
    expect(chunks).toEqual([
      {
        ...both,
        candidates: [both.candidates[0], { content: { parts: [{ text: 'B' }] }, index: 1, finishReason: 'STOP' }],
        governor: TERMINAL,
      },
    ])
    expect(governor).toEqual([TERMINAL])
  })

  it.each([
    ['STOP', undefined],
    ['MAX_TOKENS', true],
    ['SAFETY', true],
    ['MALFORMED_FUNCTION_CALL', true],
  ])('ends whole with the reason %s, and its terminal state says whether it was cut off', (reason, truncated) => {
    const { reasons, governor } = run([[say('a'), last([], reason)]])
    expect(reasons).toEqual(['STOP'])
    expect(governor).toEqual([{ ...TERMINAL, ...(truncated ? { truncated } : {}) }])
  })

  it('ends if the provider blocks the prompt, without an answer', () => {
    const { end, text, governor } = run([[{ promptFeedback: { blockReason: 'SAFETY' } }]])
    expect([end, text, governor]).toEqual(['silent', FALLBACK, [terminal(false)]])
    const stream = open()
    expect(feed(stream, { promptFeedback: { blockReason: 'SAFETY' } }).length).toBe(0)
  })

  it('is broken without a finish reason, and after an error, whose bytes the client gets', () => {
    const error = { error: { code: 503, message: 'overloaded' } }
    expect(run([[say('a')]])).toMatchObject({ end: 'broken', raw: eventOf(say('a')), governor: [] })
    for (const broken of [error, { ...last([call('a')]), ...error }, { ...say('b'), ...error }]) {
      for (const dropCalls of [true, false]) {
        const { end, raw } = run([[say('a'), say('<'), broken, last([])]], dropCalls)
        expect([end, raw]).toEqual(['broken', [say('a'), say('<'), broken, last([])].map(eventOf).join('')])
      }
    }
  })

  it('gets an end with usage and terminal state if it has none and Governor reads no more', () => {
    const stream = open()
    feed(stream, say('It is 42.', usage(9)))
    expect(stream.endResponse(true)).toBe('answered')
    expect(received(Buffer.concat(stream.finish(terminal, undefined))).chunks).toEqual([
      { ...last([{ text: '' }]), ...usage(9), governor: TERMINAL },
    ])
  })

  it('gets a blank line after its last event if that lacks one', () => {
    const stream = open()
    feed(stream, say('a'))
    feedBytes(stream, `data: ${JSON.stringify(last([{ text: 'b' }]))}`)
    expect(stream.endResponse()).toBe('answered')
    const bytes = Buffer.concat(stream.finish(terminal, undefined)).toString()
    expect(bytes).toBe(`data: ${JSON.stringify({ ...last([{ text: 'b' }]), governor: TERMINAL })}\n\n`)
  })

  it('that the agent ends itself keeps its calls and its reason, and gets no end that it lacks', () => {
    const data = [say('<think>'), chunk([call('a')]), last([call('b')], 'MAX_TOKENS')]
    const { raw, governor } = run([data], false)
    const [first, second, third] = data
    const ended = { ...third, governor: { ...terminal(false), truncated: true } }
    expect(governor).toEqual([terminal(false, true)])
    expect(raw).toBe([first, second, { ...third, governor: governor[0] }].map(eventOf).join(''))
    expect(received(Buffer.from(raw)).chunks[2]).toEqual(ended)
    const stream = gemini.openStream(false, false)
    feed(stream, say('a'))
    stream.endResponse(true)
    expect(stream.finish(terminal, undefined)).toEqual([])
  })
})

describe('a Gemini stream of several responses', () => {
  const SILENT = [
    [chunk([call('a')], {}, usage(4)), last([call('b')], 'STOP', usage(10))],
    [say('<think>Hm.', usage(4)), last([{ text: '</think>' }], 'STOP', usage(10))],
    [last([], 'STOP', usage(4)), usage(10)],
  ]

  it.each(SILENT)('continues one without an answer, and states the sum of what was used: %j', (...first) => {
    const second = [
      say('It is ', { ...named('two'), ...usage(3) }),
      last([{ text: '42.' }], 'STOP', { ...named('two'), ...usage(5) }),
    ]
    const { text, kept, chunks, governor, reasons } = run([first, second])
    expect([text, kept, governor]).toEqual(['It is 42.', 'It is 42.', [TERMINAL]])
    expect(chunks.at(-1)?.usageMetadata).toEqual({ totalTokenCount: 15 })
    expect(reasons).toEqual(['STOP'])
  })

  it.each(SILENT)('without an answer ends with the fallback, under the name of the first: %j', (...silent) => {
    const other = silent.map((one) => ({ ...one, ...named('two') }))
    const { text, kept, chunks, governor } = run([silent, other])
    expect([text, kept, governor]).toEqual([FALLBACK, FALLBACK, [terminal(false)]])
    expect(chunks.at(-1)).toEqual({
      ...last([{ text: FALLBACK }]),
      usageMetadata: { totalTokenCount: 20 },
      governor: terminal(false),
    })
  })

  it('states its own usage if it is the only response', () => {
    const { chunks } = run([[say('a', usage(3)), last([], 'STOP', usage(5))]])
    expect(chunks.map(({ usageMetadata }) => usageMetadata?.['totalTokenCount'])).toEqual([3, 5])
  })

  it('has no usage in its end if none was stated', () => {
    expect(run([[last([])]]).chunks[0]).not.toHaveProperty('usageMetadata')
    expect(run([[{ ...last([]), usageMetadata: 7 }]]).chunks[0]).not.toHaveProperty('usageMetadata')
  })
})

describe('the footer of a Gemini stream', () => {
  const FOOTER = 'A footer.'

  it('follows the last text that is still held, in its part', () => {
    const { chunks } = run([[say('It is '), last([{ text: '42' }, { text: '.' }, thought('Hm.')])]], true, FOOTER)
    expect(chunks.map(({ candidates }) => candidates?.[0]?.content?.parts)).toEqual([
      [{ text: 'It is ' }],
      [{ text: '42' }, { text: `.\n\n${FOOTER}` }, thought('Hm.')],
    ])
  })

  it('is a chunk of its own before the end if the text has gone', () => {
    const { chunks, reasons } = run([[say('It is 42.'), last([{ text: '' }]), usage(3)]], true, FOOTER)
    expect(chunks.slice(1)).toEqual([say(`\n\n${FOOTER}`), { ...last([{ text: '' }]), governor: TERMINAL }, usage(3)])
    expect(reasons).toEqual(['STOP'])
  })

  it('stands in the newest of several texts that are held', () => {
    const { chunks } = run([[last([{ text: 'It is ' }]), last([{ text: '42.' }])]], true, FOOTER)
    expect(chunks).toEqual([
      last([{ text: 'It is ' }]),
      { ...last([{ text: `42.\n\n${FOOTER}` }]), governor: TERMINAL },
    ])
  })
})
