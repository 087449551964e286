import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { gemini } from '../../../src/dialect/gemini/index.ts'
import { applyEdits } from '../../../src/json/edit.ts'
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
  UNCHECKED,
  usage,
} from './chunks.ts'

const ERROR = { error: { code: 503, message: 'overloaded' } }
const NONE = new Set<number>()

/** Feeds one response; returns all that the client receives if these of its calls are blocked. */
function filtered(data: readonly unknown[], ...blocked: readonly number[]) {
  const filter = gemini.openFilter()
  const shown = feed(filter, ...data)
  const buffered = filter.endResponse()
  return { buffered, shown, ...received(Buffer.concat([shown, ...filter.release(new Set(blocked))])) }
}

describe('a Gemini stream whose calls are held', () => {
  it('shows its text and thoughts at once, and nothing from its first call on', () => {
    const filter = gemini.openFilter()
    const shown = [chunk([thought('Hm.')]), say('Let me see.')]
    expect(feed(filter, ...shown).toString()).toBe(shown.map(eventOf).join(''))
    expect(feed(filter, chunk([call('a')]), say('Now.'), last([])).length).toBe(0)
    feedBytes(filter, ': still here\n\n')
    const { calls, text } = filter.endResponse() ?? {}
    expect([calls, text]).toEqual([[{ id: '', name: 'a', arguments: '{}' }], 'Let me see.Now.'])
    expect(Buffer.concat(filter.release(NONE)).toString()).toBe(
      `${[chunk([call('a')]), say('Now.'), last([])].map(eventOf).join('')}: still here\n\n`,
    )
  })

  it('has no byte order mark within it if a second response begins with one', () => {
    const filter = gemini.openFilter()
    const bytes = [feed(filter, say('Let me see.'), chunk([call('a')]), last([]))]
    filter.endResponse()
    bytes.push(feedBytes(filter, `\ufeff${eventOf(say('Something '))}`), feed(filter, last([{ text: 'else.' }])))
    filter.endResponse()
    const all = Buffer.concat([...bytes, ...filter.release(NONE)])
    expect(all.toString()).not.toContain('\ufeff')
    expect(received(all).text).toContain('Something else.')
  })

  it('shows nothing before it has content', () => {
    const filter = gemini.openFilter()
    for (const nothing of [usage(3), chunk([]), say(''), { ...named(), candidates: [] }])
      expect(feed(filter, nothing).length).toBe(0)
    const opening = [usage(3), chunk([]), say(''), { ...named(), candidates: [] }, chunk([{ text: '', ...SIGNED }])]
    expect(feed(filter, opening.at(-1)).toString()).toBe(opening.map(eventOf).join(''))
  })

  it('holds the end, which says something of calls that may follow', () => {
    const filter = gemini.openFilter()
    expect(received(feed(filter, say('a'), last([{ text: 'b' }]))).text).toBe('a')
  })

  it('assembles its parts as they came, with every digit and signature and without empty texts', () => {
    const filter = gemini.openFilter()
    const a = '{"functionCall":{"id":"i", "name":"a","args":{"n":9007199254740993.0}},"thoughtSignature":"eA=="}'
    const b = '{ "functionCall":{"name":"b"}}'
    const texts = [thought('Hm.'), { text: 'So. ' }, { text: '' }].map((part) => JSON.stringify(part))
    const chunkOf = (parts: readonly string[]) => `{"candidates":[{"content":{"parts":[${parts.join(',')}]}}]}`
    feed(filter, chunkOf(texts), chunkOf([a, b]), last([{ text: 'Now.' }]))
    expect(filter.endResponse()).toEqual({
      calls: [
        { id: 'i', name: 'a', arguments: '{"n":9007199254740993.0}' },
        { id: '', name: 'b', arguments: '{}' },
      ],
      text: 'So. Now.',
      message: `[${[texts[0], texts[1], a, b].join(',')},{"text":"Now."}]`,
    })
  })

  it('keeps the calls that are not blocked, over any chunks, and signs the first of them if its signature went', () => {
    const names = ['a', 'b', 'c', 'd']
    const lists = fc.subarray([1, 2, 3]).map((cuts) => [0, ...cuts].map((from, at) => [from, cuts[at] ?? 4] as const))
    const blockedCalls = fc.subarray([0, 1, 2, 3], { minLength: 1, maxLength: 3 })
    fc.assert(
      fc.property(lists, blockedCalls, fc.boolean(), fc.boolean(), (cuts, blocked, isSigned, areAllSigned) => {
        const made = names.map((name, at) => call(name, (isSigned && at === 0) || areAllSigned ? SIGNED : {}))
        const data = cuts.map(([from, to]) => chunk([{ text: `${from} ` }, ...made.slice(from, to)]))
        const { calls, text, reasons } = filtered([...data, last([])], ...blocked)
        const kept = made.filter((_, at) => !blocked.includes(at))
        const needsSign = isSigned && !areAllSigned && blocked.includes(0)
        expect(calls).toEqual(kept.map((one, at) => (needsSign && at === 0 ? { ...one, ...UNCHECKED } : one)))
        expect([text, reasons]).toEqual([cuts.map(([from]) => `${from} `).join(''), ['STOP']])
      }),
    )
  })

  it('leaves the bytes of a chunk without blocked calls alone', () => {
    const odd = ' {"candidates" : [{"content":{"parts":[{"functionCall":{"name":"b"}}]}}]}'
    const filter = gemini.openFilter()
    feed(filter, chunk([call('a')]), odd, last([]))
    filter.endResponse()
    expect(Buffer.concat(filter.release(new Set([0]))).toString()).toBe(eventOf(odd) + eventOf(last([])))
  })

  it('keeps the finish reason beside a call that is kept, though the provider cut the response off', () => {
    const { chunks } = filtered([chunk([call('a')]), last([call('b')], 'MAX_TOKENS')], 0)
    expect(chunks).toEqual([last([call('b')], 'MAX_TOKENS')])
  })

  it.each([
    ['several candidates', { ...named(), candidates: [{ index: 0 }, { index: 1 }] }],
    ['another candidate than the first', chunk([call('b')], { index: 1 })],
    ['the arguments of a call in pieces', chunk([{ functionCall: { name: 'b', partialArgs: [] } }])],
    ['a call that goes on', chunk([{ functionCall: { name: 'b', willContinue: true } }])],
  ])('keeps every byte with %s', (_, data) => {
    const all = [say(''), chunk([call('a')]), data, say('c'), last([call('d')])]
    const filter = gemini.openFilter()
    expect(feed(filter, ...all).toString()).toBe(all.map(eventOf).join(''))
    expect(filter.endResponse()).toBeUndefined()
    expect(filter.release(NONE)).toEqual([])
  })

  it('takes the newest candidate without an index for the first', () => {
    const { buffered } = filtered([chunk([call('a')], { index: undefined }), last([], 'STOP')])
    expect(buffered?.calls).toHaveLength(1)
  })

  it('that was cut keeps what it has: its calls without an end', () => {
    const { buffered, calls, reasons } = filtered([say('a'), chunk([call('a'), call('b')])], 0)
    expect([buffered?.calls.length, calls, reasons]).toEqual([2, [call('b')], []])
  })

  it('passes an error on at once, or with the calls that are held', () => {
    expect(feed(gemini.openFilter(), ERROR).toString()).toBe(eventOf(ERROR))
    const { shown, chunks } = filtered([chunk([call('a')]), ERROR], 0)
    expect([shown.length, chunks]).toEqual([0, [ERROR]])
  })

  it.each([
    ['a call', { ...chunk([call('a')]), ...ERROR }],
    ['the end of the response', { ...last([{ text: '' }]), ...ERROR }],
  ])('holds an error beside %s until the calls are decided on', (_, data) => {
    const { shown, chunks, calls } = filtered([data], 0)
    expect([shown.length, calls]).toEqual([0, []])
    expect(chunks).toMatchObject([ERROR])
  })
})

describe('a Gemini stream whose calls were blocked', () => {
  it('continues with the text of the next response, and states what both used', () => {
    const filter = gemini.openFilter()
    const first = feed(filter, say('One.', usage(4)), chunk([call('a')]), last([], 'STOP', usage(10)))
    filter.endResponse()
    const two = { ...named('two'), ...usage(5) }
    const second = feed(filter, say('', named('two')), say('Two.', named('two')), last([call('b')], 'STOP', two))
    expect(filter.endResponse()?.calls.map(({ name }) => name)).toEqual(['b'])
    const { text, calls, chunks, reasons } = received(Buffer.concat([first, second, ...filter.release(NONE)]))
    expect([text, calls, reasons]).toEqual(['One.\n\nTwo.', [call('b')], ['STOP']])
    expect(chunks).toHaveLength(4)
    expect(chunks[1]).toEqual(say('\n\n'))
    expect(chunks.at(-1)).toEqual(last([call('b')], 'STOP', { ...named('two'), ...usage(15) }))
  })

  it('shows the text beside its held calls once another response follows, without end, usage and calls', () => {
    const filter = gemini.openFilter()
    const held = [chunk([call('a'), { text: 'Hm.' }]), last([{ text: '!' }, call('b')], 'STOP', usage(10))]
    expect(feed(filter, ...held).length).toBe(0)
    filter.endResponse()
    const second = received(feed(filter, say('Two.', named('two'))))
    expect(second.chunks).toEqual([say('Hm.'), say('!'), say('\n\n'), say('Two.', named('two'))])
  })

  it('gives the calls of the response before, but not its text again, if the next one fails', () => {
    for (const failed of [ERROR, { usageMetadata: {} }]) {
      const filter = gemini.openFilter()
      const first = feed(filter, chunk([{ text: 'Hm.' }, call('a'), call('b')]), last([{ text: '!' }]))
      filter.endResponse()
      const second = feed(filter, failed)
      expect(filter.endResponse()).toBeUndefined()
      const rest = filter.release(new Set([0]))
      const { text, calls, reasons } = received(Buffer.concat([first, second, ...rest]))
      expect([text, calls, reasons]).toEqual(['Hm.!', [call('b')], ['STOP']])
    }
  })

  it('becomes the final answer of the run', () => {
    const filter = gemini.openFilter()
    const first = feed(filter, say('One.'), last([call('a')], 'STOP', usage(10)))
    filter.endResponse()
    const [rest, answer] = filter.becomeAnswer(false)
    const second = feed(
      answer,
      chunk([{ text: 'Two.' }, call('b')], {}, named('two')),
      last([], 'MAX_TOKENS', usage(5)),
    )
    expect(answer.endResponse()).toBe('answered')
    const all = [first, ...rest, second, ...answer.finish(terminal, undefined)]
    const { text, calls, reasons, chunks, governor } = received(Buffer.concat(all))
    expect([text, calls, reasons]).toEqual(['One.\n\nTwo.', [], ['STOP']])
    expect(chunks.at(-1)?.usageMetadata).toEqual({ totalTokenCount: 15 })
    expect(governor).toEqual([{ ...TERMINAL, truncated: true }])
  })
})

describe('a request to Gemini after blocked calls', () => {
  it('holds the response as it came, and an error as the result of each call', () => {
    const body = Buffer.from('{"contents":[{"role":"user","parts":[{"text":"Go."}]}]}')
    const message = '[{"functionCall":{"id":"i","name":"a", "args":{}}},{"functionCall":{"name":"b"}}]'
    const calls = [
      { id: 'i', name: 'a', arguments: '{}' },
      { id: '', name: 'b', arguments: '{}' },
    ]
    const edits = gemini
      .read({ path: '/v1beta/models/m:generateContent', body })
      ?.continueAfterBlock([{ buffered: { calls, text: '', message }, results: ['no', 'nor'] }])
    expect(applyEdits(body, edits ?? []).toString()).toBe(
      '{"contents":[{"role":"user","parts":[{"text":"Go."}]},' +
        `{"role":"model","parts":${message}},` +
        '{"role":"user","parts":[{"functionResponse":{"id":"i","name":"a","response":{"error":"no"}}},' +
        '{"functionResponse":{"name":"b","response":{"error":"nor"}}}]}]}',
    )
  })
})
