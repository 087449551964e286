import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../../src/core/terminal.ts'
import { chat } from '../../../src/dialect/chat/index.ts'
import type { AnswerStream } from '../../../src/dialect/dialect.ts'
import { createFrameReader, dataFrame, dataOf, type Frame } from '../../../src/sse/frames.ts'

const terminal = (answered: boolean, truncated = false) =>
  terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', answered, truncated)
const FALLBACK = '(Reached max iterations: 3)'

interface Delta {
  readonly [field: string]: unknown
}
const named = (id: string) => ({ id, object: 'chat.completion.chunk', created: 5, model: 'm' })
const chunk = (delta: Delta, finish: string | null = null, index = 0, id = 'one') =>
  JSON.stringify({ ...named(id), choices: [{ index, delta, finish_reason: finish }] })
const say = (content: string, id = 'one') => chunk({ content }, null, 0, id)
const callChunk = (id = 'one') =>
  chunk({ tool_calls: [{ index: 0, id: 'c', function: { name: 'f', arguments: '{' } }] }, null, 0, id)
const usageChunk = (tokens: number, id = 'one') =>
  JSON.stringify({ ...named(id), choices: [], usage: { total_tokens: tokens } })
const STOP = chunk({}, 'stop')
const CALLED = chunk({}, 'tool_calls')
const DONE = '[DONE]'

const frameOf = (text: string): Frame => ({ raw: dataFrame(text) })

/** What a client reads: the data of each event, parsed if it is JSON. */
function received(bytes: readonly Buffer[]) {
  const reader = createFrameReader()
  const frames = [...bytes.flatMap((piece) => reader.push(piece)), ...reader.end()]
  const data = frames.flatMap((frame) => dataOf(frame) ?? [])
  const chunks = data.filter((text) => text !== DONE).map((text) => JSON.parse(text))
  const choices = chunks.flatMap((chunk) => chunk.choices ?? [])
  return {
    data,
    chunks,
    text: choices.map(({ delta, index }) => (index === 0 ? (delta?.content ?? '') : '')).join(''),
    finishes: choices.flatMap(({ finish_reason: reason }) => reason ?? []),
    governor: chunks.flatMap((chunk) => chunk.governor ?? []),
  }
}

/** Feeds one list of events per attempt, as the proxy does: none after an answer or an error, and the fallback after the last. */
function run(tries: readonly (readonly string[])[], dropCalls = true) {
  const stream: AnswerStream = chat.openStream(dropCalls, false)
  let end: ReturnType<AnswerStream['endResponse']> = 'silent'
  const bytes: Buffer[] = []
  for (const events of tries) {
    bytes.push(...events.flatMap((text) => stream.push(frameOf(text))))
    end = stream.endResponse()
    if (end !== 'silent') break
  }
  if (end === 'broken') bytes.push(...stream.abandon())
  else bytes.push(...stream.finish(terminal, end === 'answered' || !dropCalls ? undefined : FALLBACK))
  return { end, ...received(bytes), raw: Buffer.concat(bytes).toString('utf8'), kept: stream.text }
}

describe('a Chat Completions stream that ends a run', () => {
  it('a stream changes only in the chunk with its finish reason', () => {
    const events = [chunk({ role: 'assistant', content: '' }), say('It '), say('is 42.'), STOP, usageChunk(9), DONE]
    const { data, governor, kept } = run([events])
    const changed = data.flatMap((text, at) => (text === events[at] ? [] : [at]))
    expect(data).toHaveLength(events.length)
    expect(changed).toEqual([3])
    expect(JSON.parse(data[3] ?? '')).toEqual({ ...JSON.parse(STOP), governor: terminal(true) })
    expect(governor).toEqual([terminal(true)])
    expect(kept).toBe('It is 42.')
  })

  it('a stream shows text at once, byte for byte, and holds its end', () => {
    const stream = chat.openStream(true, false)
    const frame = frameOf(`{"choices":[{"delta":{"content":"Hi"}}], "n":1.0}`)
    expect(stream.push(frame)).toEqual([frame.raw])
    expect(stream.push(frameOf(STOP))).toEqual([])
    expect(stream.push(frameOf(usageChunk(1)))).toEqual([])
    const comment: Frame = { raw: Buffer.from(': OPENROUTER PROCESSING\n\n') }
    expect(stream.push(comment)).toEqual([comment.raw])
  })

  it('a stream loses its tool calls, and its finish reason fits the rest', () => {
    const both = chunk({ content: 'Now.', tool_calls: [{ index: 0 }] })
    const { raw, text, finishes, governor } = run([[say('Wait. '), both, callChunk(), CALLED, DONE]])
    expect(raw).not.toMatch(/tool_calls/)
    expect([text, finishes, governor]).toEqual(['Wait. Now.', ['stop'], [terminal(true)]])
  })

  it.each([
    ['stop', undefined],
    ['length', true],
    ['content_filter', true],
    ['model_length', true],
  ] as const)(
    'a stream with the finish reason %s ends whole, and its terminal state says whether the answer was cut off',
    (reason, truncated) => {
      const { finishes, governor } = run([[say('a'), chunk({}, reason), DONE]])
      expect(finishes).toEqual(['stop'])
      expect(governor[0].truncated).toBe(truncated)
    },
  )

  it('a stream holds text that may be reasoning or a call, and shows it once it is an answer', () => {
    const stream = chat.openStream(true, false)
    for (const text of ['<th', 'ink>Let me see', '.</think>', '\n\n'])
      expect(stream.push(frameOf(say(text)))).toEqual([])
    expect(received(stream.push(frameOf(say('It is 42.')))).text).toBe('<think>Let me see.</think>\n\nIt is 42.')
    expect(received(stream.push(frameOf(say('<tool_call>')))).text).toBe('<tool_call>')
  })

  it('text beside a call that is removed is held like other text, and no other content is', () => {
    const beside = (more: Delta) => chunk({ tool_calls: [{ index: 0 }], ...more })
    expect(chat.openStream(true, false).push(frameOf(beside({ content: '<think>' })))).toEqual([])
    const reasoned = chat.openStream(true, false).push(frameOf(beside({ reasoning: 'Hm.' })))
    expect(received(reasoned).chunks[0].choices[0].delta).toEqual({ reasoning: 'Hm.' })
    const { text, raw } = run([[beside({ content: '<think>' }), CALLED, DONE]])
    expect([text, raw.includes('<think>')]).toEqual([FALLBACK, false])
  })

  it('text in the chunk with the finish reason is an answer', () => {
    const { text, finishes, governor, kept } = run([[chunk({ content: 'It is 42.' }, 'stop'), DONE]])
    expect([text, finishes, governor, kept]).toEqual(['It is 42.', ['stop'], [terminal(true)], 'It is 42.'])
  })

  it('the terminal state is beside the last of several finish reasons', () => {
    const events = [
      say('a'),
      chunk({ content: 'b' }, null, 1),
      chunk({}, 'stop', 1),
      say('c'),
      chunk({}, 'stop', 0),
      DONE,
    ]
    const { chunks, text, finishes } = run([events])
    expect(chunks.map((chunk) => chunk.governor !== undefined)).toEqual([false, false, false, false, true])
    expect([text, finishes]).toEqual(['ac', ['stop', 'stop']])
  })

  it('a stream with an error of its provider ends with those bytes, and gets no end from Governor', () => {
    const error = '{"error":{"message":"overloaded","n":1.0}}'
    const besideText = { ...JSON.parse(chunk({ content: '' }, 'error')), error: { message: 'lost' } }
    for (const broken of [error, JSON.stringify(besideText), chunk({}, 'error'), chunk({}, 'network_error')]) {
      for (const dropCalls of [true, false]) {
        const { end, data, governor } = run([[say('a'), say('<'), broken, DONE]], dropCalls)
        expect([end, data, governor]).toEqual(['broken', [say('a'), say('<'), broken, DONE], []])
      }
      expect(run([[broken]]).data).toEqual([broken])
      // Held text that may be no answer comes before it.
      expect(run([[say('<think>'), broken]]).data).toEqual([say('<think>'), broken])
      expect(run([[callChunk(), CALLED, DONE], [broken]]).data.at(-1)).toBe(broken)
    }
  })

  it.each([
    ['text', [say('a'), say('b')]],
    ['text that may be none', [say('<think>hm')]],
    ['a call', [callChunk()]],
    ['usage', [usageChunk(10)]],
    ['nothing', []],
    ['its end mark alone', [DONE]],
  ])('a stream that ends after %s stays incomplete', (_, events) => {
    const { end, data, governor } = run([events])
    expect([end, governor]).toEqual(['broken', []])
    expect(data).toEqual(events.filter((event) => event !== callChunk()))
  })

  it.each([
    ['a finish reason and no end', [say('a'), STOP]],
    ['an end and no finish reason', [say('a'), DONE]],
  ])('a stream is complete if the provider sends %s', (_, events) => {
    const { data, finishes, governor } = run([events])
    expect(data.filter((text) => text === DONE)).toHaveLength(1)
    expect(data.at(-1)).toBe(DONE)
    expect([finishes, governor]).toEqual([['stop'], [terminal(true)]])
  })

  it('a stream is complete if its last event lacks a blank line', () => {
    for (const last of [say('b'), STOP, DONE]) {
      const stream = chat.openStream(true, false)
      const bytes = [say('a'), ...(last === DONE ? [STOP] : [])].flatMap((text) => stream.push(frameOf(text)))
      bytes.push(...stream.push({ raw: Buffer.from(`data: ${last}`) }))
      expect(stream.endResponse()).toBe(last.includes('"b"') ? 'broken' : 'answered')
      if (last.includes('"b"')) continue
      const { data, governor } = received([...bytes, ...stream.finish(terminal, undefined)])
      expect([data.at(-1), governor]).toEqual([DONE, [terminal(true)]])
    }
  })
})

describe('a Chat Completions stream without an answer', () => {
  const SILENT: readonly string[][] = [
    [callChunk(), CALLED, usageChunk(10), DONE],
    [say('<think>hm'), say('</think>'), STOP, usageChunk(10), DONE],
    [say('<tool_call>{}</tool_call>'), STOP, usageChunk(10), DONE],
    [chunk({ role: 'assistant', content: null, tool_calls: [] }), CALLED, usageChunk(10), DONE],
    [usageChunk(10), DONE],
  ]

  it.each(SILENT)(
    'a second response continues a stream without an answer, with the same id and the summed usage: %s',
    (...first) => {
      const second = [
        chunk({ role: 'assistant' }, null, 0, 'two'),
        say('It is 42.', 'two'),
        chunk({}, 'stop', 0, 'two'),
        usageChunk(5, 'two'),
        DONE,
      ]
      const { data, chunks, text, finishes, governor, kept } = run([first, second])
      expect([text, kept, finishes, governor]).toEqual(['It is 42.', 'It is 42.', ['stop'], [terminal(true)]])
      const names = new Set(chunks.filter((chunk) => chunk.choices.length > 0).map(({ id }) => id))
      expect(names.size).toBe(1)
      expect(chunks.findLast(({ usage }) => usage)?.usage).toEqual({ total_tokens: 15 })
      expect(data.filter((text) => text === DONE)).toHaveLength(1)
    },
  )

  it.each(SILENT)('two responses without an answer end with the fallback text: %s', (...silent) => {
    const { data, chunks, text, finishes, governor, kept } = run([silent, silent])
    expect([text, kept, finishes, governor]).toEqual([FALLBACK, FALLBACK, ['stop'], [terminal(false)]])
    expect(chunks.at(-1)).toMatchObject({ choices: [], usage: { total_tokens: 20 } })
    expect(data.filter((text) => text === DONE)).toHaveLength(1)
    expect(data.at(-1)).toBe(DONE)
  })

  it('a stream takes its id from the first chunk with a choice, because some streams begin with a chunk without one', () => {
    const azure = JSON.stringify({
      id: '',
      object: '',
      created: 0,
      model: '',
      choices: [],
      prompt_filter_results: [],
    })
    const { data, chunks } = run([[azure, callChunk(), CALLED, DONE]])
    expect(data[0]).toBe(azure)
    for (const one of chunks.slice(1)) expect(one).toMatchObject(named('one'))
  })
})

describe('a Chat Completions stream of an agent that ends its run itself', () => {
  it('a stream that the agent ends changes only in the chunk with its finish reason', () => {
    const events = [say('<think>'), callChunk(), say('a'), CALLED, usageChunk(3), DONE]
    const { data, governor } = run([events], false)
    expect(data.flatMap((text, at) => (text === events[at] ? [] : [at]))).toEqual([3])
    expect(JSON.parse(data[3] ?? '')).toEqual({ ...JSON.parse(CALLED), governor: terminal(false) })
    expect(governor).toEqual([terminal(false)])
  })

  it('a stream without a finish reason and an end mark gets neither', () => {
    expect(run([[say('a'), callChunk()]], false).data).toEqual([say('a'), callChunk()])
  })
})

describe('any Chat Completions stream that ends a run', () => {
  it('any final stream has no call, one end, one terminal state beside a valid finish reason, and all recorded text', () => {
    const event = fc.constantFrom(
      say('a'),
      say('<think>'),
      say('</think>'),
      say('<tool_call>'),
      callChunk(),
      STOP,
      CALLED,
      chunk({ content: 'b' }, 'length'),
      usageChunk(1),
      chunk({ content: 'c' }, null, 1),
    )
    const events = fc.array(event, { maxLength: 7 })
    fc.assert(
      fc.property(events, events, fc.boolean(), (first, second, isEnded) => {
        const { end, data, raw, chunks, finishes, governor, text, kept } = run(
          [first, second].map((all) => (isEnded ? [...all, DONE] : all)),
        )
        expect(raw).not.toMatch(/tool_calls/)
        expect(governor).toHaveLength(end === 'broken' ? 0 : 1)
        if (end === 'broken') return
        expect(data.indexOf(DONE)).toBe(data.length - 1)
        const last = chunks.findLast(({ choices }) => choices[0]?.finish_reason)
        expect(last?.governor).toEqual(governor[0])
        expect(finishes.every((reason) => reason === 'stop' || reason === 'length')).toBe(true)
        expect(text.endsWith(kept)).toBe(true)
      }),
      { numRuns: 300 },
    )
  })
})

describe('a Chat Completions stream of several responses', () => {
  it('states the role once, in the first chunk that the client gets', () => {
    const silent = [chunk({ tool_calls: [{ index: 0, id: 'c' }] }), CALLED, DONE]
    const answer = [
      chunk({ role: 'assistant', content: 'It ' }),
      chunk({ role: 'assistant', content: 'is.' }),
      STOP,
      DONE,
    ]
    const { chunks } = run([silent, answer])
    expect(chunks.map((one) => one.choices[0].delta)).toEqual([
      { role: 'assistant', content: 'It ' },
      { content: 'is.' },
      {},
    ])
  })
})
