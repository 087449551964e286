import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { ToolCallFilter } from '../../../src/dialect/dialect.ts'
import { messages } from '../../../src/dialect/messages/index.ts'
import { applyEdits } from '../../../src/json/edit.ts'
import { createFrameReader, dataOf } from '../../../src/sse/frames.ts'
import { assembleMessage, events, message } from '../../support/messages.ts'

const REQUEST = { model: 'm', messages: [], stream: true }
const THINKING = { type: 'thinking', thinking: 'Hm. "tool_use"', signature: 'c2lnbmVk' }
const SERVER = { type: 'server_tool_use', id: 's', name: 'web_search', input: { query: 'x' } }
const CALLS = [
  { id: 'a', name: 'read', arguments: { file: 'ü' } },
  { id: 'b', name: 'search', arguments: { query: 'x' } },
  { id: 'c', name: 'read', arguments: {} },
]
const ANSWER = { blocks: [THINKING, SERVER], text: 'Let me see. ', calls: CALLS }
const HELD = CALLS.map((call) => ({ ...call, arguments: JSON.stringify(call.arguments) }))

/** Feeds a stream; returns the bytes that it returned at once. */
function feed(filter: ToolCallFilter, text: string): string {
  const bytes = Buffer.from(text)
  const reader = createFrameReader()
  const frames = [...reader.push(bytes), ...reader.end()]
  return Buffer.concat(frames.flatMap((frame) => filter.push(frame))).toString()
}

const streamOf = (answer: object, number = 1) => events(REQUEST, answer, number).join('')
const released = (filter: ToolCallFilter, blocked: readonly number[] = []) =>
  Buffer.concat(filter.release(new Set(blocked))).toString()

describe('a Messages stream whose calls are held', () => {
  it('a held stream shows reasoning and text, and none of its calls, before it ends', () => {
    const filter = messages.openFilter()
    const out = feed(filter, streamOf(ANSWER))
    expect(streamOf(ANSWER).startsWith(out)).toBe(true)
    expect(out).toContain('see. ')
    expect(out).not.toMatch(/"tool_use","id"|message_delta/)
  })

  it('a held stream shows nothing before it has content', () => {
    expect(feed(messages.openFilter(), streamOf({ calls: CALLS }))).toBe('')
  })

  it('the calls and the message of a stream equal those of the whole response', () => {
    const filter = messages.openFilter()
    feed(filter, streamOf(ANSWER))
    const buffered = filter.endResponse()
    const whole = messages.readAnswer(Buffer.from(JSON.stringify(message(REQUEST, ANSWER, 1))))?.buffered
    expect(buffered?.calls).toEqual(HELD)
    expect(whole?.calls).toEqual(HELD)
    expect(buffered?.text).toBe('Let me see. ')
    const contentOf = (message: unknown) => JSON.parse((message as { content: string }).content)
    expect(contentOf(buffered?.message)).toEqual(contentOf(whole?.message))
    expect(contentOf(buffered?.message)[0]).toEqual(THINKING)
  })

  it('a message that goes back to the provider has its compaction and citations, and results name the toolset', () => {
    const citation = { type: 'char_location', cited_text: 'x', document_index: 0, start_char_index: 0 }
    const call = { type: 'tool_use', id: 'd', name: 'left_click', toolset_name: 'browser', input: { ref: 'r1' } }
    const blocks = [
      { type: 'compaction', encrypted_content: null, content: 'All before.' },
      { type: 'text', text: 'As it says.', citations: [citation, citation] },
      call,
      { ...call, id: 'e', toolset_name: null },
    ]
    const filter = messages.openFilter()
    feed(filter, streamOf({ blocks }))
    const buffered = filter.endResponse()
    const body = Buffer.from(JSON.stringify({ messages: [{ role: 'user', content: 'Go.' }], tools: [{}] }))
    const edits =
      buffered && messages.read({ path: '', body })?.continueAfterBlock([{ buffered, results: ['no', 'nor this'] }])
    const sent = JSON.parse(applyEdits(body, edits ?? []).toString()) as typeof REQUEST
    expect(sent.messages.slice(1)).toEqual([
      { role: 'assistant', content: blocks },
      {
        role: 'user',
        content: [
          { type: 'tool_result', tool_use_id: 'd', toolset_name: 'browser', content: 'no' },
          { type: 'tool_result', tool_use_id: 'e', content: 'nor this' },
        ],
      },
    ])
  })

  it('calls that hold too many values together are not held, though each of them alone would be', () => {
    const heldOf = (count: number) => {
      const filter = messages.openFilter()
      const call = { name: 'read', arguments: { lines: Array.from({ length: 10_000 }, (_, line) => line) } }
      feed(filter, streamOf({ calls: Array.from({ length: count }, (_, at) => ({ ...call, id: `c${at}` })) }))
      return filter.endResponse()?.calls.length
    }
    expect(heldOf(6)).toBe(6)
    expect(heldOf(7)).toBeUndefined()
  })

  it('a block gets another number also where a provider writes the JSON of its events in several lines', () => {
    const inLines = streamOf(ANSWER).replace(/^data: (.*)$/gm, (_, json: string) =>
      JSON.stringify(JSON.parse(json), null, 1).replace(/^/gm, 'data: '),
    )
    const filter = messages.openFilter()
    const out = feed(filter, inLines)
    filter.endResponse()
    const reader = createFrameReader()
    const data = reader.push(Buffer.from(out + released(filter, [0]))).map(dataOf)
    const events = data.map((one) => JSON.parse(one ?? '') as { type: string; index?: number })
    const begun = events.filter(({ type }) => type === 'content_block_start')
    expect(begun.map(({ index }) => index)).toEqual([0, 1, 2, 3, 4])
  })

  it('text after the calls of a response stays if all of them are blocked and another response follows', () => {
    const call = { type: 'tool_use', id: 'z', name: 'search', input: {} }
    const filter = messages.openFilter()
    const out = [feed(filter, streamOf({ blocks: [call, { type: 'text', text: 'After.' }, call] }))]
    filter.endResponse()
    out.push(feed(filter, streamOf({ text: 'Well.' }, 2)))
    filter.endResponse()
    const { content } = assembleMessage(out.join('') + released(filter))
    expect(content).toMatchObject([
      { type: 'text', text: 'After.' },
      { type: 'text', text: 'Well.' },
    ])
  })

  it('the remaining blocks are numbered without gaps, whichever calls are blocked', () => {
    fc.assert(
      fc.property(fc.subarray([0, 1, 2], { minLength: 1, maxLength: 2 }), (blocked) => {
        const filter = messages.openFilter()
        const out = feed(filter, streamOf(ANSWER))
        filter.endResponse()
        const { content, stop_reason: stop } = assembleMessage(out + released(filter, blocked))
        const kept = CALLS.filter((_, at) => !blocked.includes(at))
        expect(content.slice(0, 3).map(({ type }) => type)).toEqual(['thinking', 'server_tool_use', 'text'])
        expect(content.slice(3).map(({ id, input }) => ({ id, input }))).toEqual(
          kept.map(({ id, arguments: input }) => ({ id, input })),
        )
        expect(stop).toBe('tool_use')
      }),
    )
  })

  it('a second response continues the stream with the id of the first, and with the usage of both', () => {
    const filter = messages.openFilter()
    const first = feed(filter, streamOf({ text: 'One.', calls: CALLS }))
    filter.endResponse()
    const second = feed(filter, streamOf({ blocks: [THINKING], text: 'Two.', calls: CALLS.slice(0, 1) }, 2))
    expect(filter.endResponse()?.calls).toHaveLength(1)
    const all = assembleMessage(first + second + released(filter))
    expect(all).toMatchObject({ id: 'msg_1', stop_reason: 'tool_use' })
    expect(all.content.map(({ type }) => type)).toEqual(['text', 'thinking', 'text', 'tool_use'])
    expect(all.usage).toMatchObject({ input_tokens: 200, output_tokens: 20 })
  })

  it.each(['end_turn', 'pause_turn', 'max_tokens', 'refusal'])(
    'a later response that loses no call keeps its stop reason %s, streamed and whole',
    (reason) => {
      const filter = messages.openFilter()
      const first = streamOf({ text: 'One.', calls: CALLS })
      const later = { blocks: [SERVER], text: 'Two.' }
      const shown = feed(filter, first)
      filter.endResponse()
      const more = feed(filter, streamOf(later, 2).replace('"stop_reason":"end_turn"', `"stop_reason":"${reason}"`))
      filter.endResponse()
      expect(assembleMessage(shown + more + released(filter)).stop_reason).toBe(reason)
      const bodyOf = (answer: object, change: object) =>
        Buffer.from(JSON.stringify({ ...message(REQUEST, answer, 1), ...change }))
      const earlier = [bodyOf({ text: 'One.', calls: CALLS }, {})]
      const whole = messages.withoutCalls(bodyOf(later, { stop_reason: reason }), new Set(), earlier)
      expect(JSON.parse(whole.toString()).stop_reason).toBe(reason)
    },
  )

  it('a stream is complete with its own calls if a second response ends in the middle of a text', () => {
    const filter = messages.openFilter()
    const first = feed(filter, streamOf({ text: 'One.', calls: CALLS }))
    filter.endResponse()
    const second = feed(filter, events(REQUEST, { text: 'Two three.' }, 2).slice(0, 4).join(''))
    const all = assembleMessage(first + second + released(filter))
    expect(all.content.map(({ type }) => type)).toEqual(['text', 'text', 'tool_use', 'tool_use', 'tool_use'])
  })

  it('a held stream can become the final answer of the run, which continues it', () => {
    const filter = messages.openFilter()
    const first = feed(filter, streamOf({ blocks: [THINKING], ...{ calls: CALLS } }))
    filter.endResponse()
    const [opening, answer] = filter.becomeAnswer(false)
    const reader = createFrameReader()
    const bytes = reader.push(Buffer.from(streamOf({ text: 'Enough.' }, 2))).flatMap((frame) => answer.push(frame))
    expect(answer.endResponse()).toBe('answered')
    const last = answer.finish(() => ({ has_final_answer: true }) as never, undefined)
    const all = assembleMessage(first + Buffer.concat([...opening, ...bytes, ...last]).toString())
    expect(all.content).toEqual([THINKING, { type: 'text', text: 'Enough.' }])
    expect(all.usage).toMatchObject({ input_tokens: 200, output_tokens: 20 })
    expect(all.governor).toEqual({ has_final_answer: true })
  })

  it.each([
    ['begins with nothing', ''],
    [
      'ends in the middle of a call',
      streamOf(ANSWER).slice(0, streamOf(ANSWER).lastIndexOf('event: content_block_delta')),
    ],
  ])('a response has no readable calls if it %s', (_, text) => {
    const filter = messages.openFilter()
    const out = feed(filter, text)
    expect(filter.endResponse()).toBeUndefined()
    expect((out + released(filter)).startsWith(text.trimEnd())).toBe(true)
  })
})

describe('any Messages streams whose calls are held', () => {
  const block = fc.constantFrom<{
    readonly blocks?: object[]
    readonly text?: string
    readonly calls?: typeof CALLS
  }>(
    {},
    { text: 'One two.' },
    { calls: CALLS.slice(0, 1) },
    { calls: CALLS },
    { text: 'And. ', calls: CALLS },
    { blocks: [THINKING], calls: CALLS },
    { blocks: [THINKING, SERVER, THINKING], text: 'So. ', calls: CALLS.slice(1) },
  )
  const response = fc.record({ answer: block, isWhole: fc.boolean(), cut: fc.nat() })

  it('any responses become one valid message, whichever of their calls are blocked', () => {
    fc.assert(
      fc.property(
        fc.array(response, { minLength: 1, maxLength: 3 }),
        fc.subarray([0, 1, 2]),
        fc.boolean(),
        (responses, blocked, endsRun) => {
          const filter = messages.openFilter()
          let out = ''
          let calls = 0
          for (const [at, { answer, isWhole, cut }] of responses.entries()) {
            const all = events(REQUEST, answer, at + 1)
            // An incomplete first response keeps the provider's end.
            const isCut = at > 0 && !isWhole
            out += feed(filter, (isCut ? all.slice(0, 1 + (cut % all.length)) : all).join(''))
            // After an incomplete later response the client gets the one before.
            if (isCut) break
            calls = filter.endResponse()?.calls.length ?? 0
          }
          const places = blocked.filter((place) => place < calls)
          if (places.length === calls) places.pop()
          if (endsRun) {
            const [opening, answer] = filter.becomeAnswer(false)
            const frames = createFrameReader().push(Buffer.from(streamOf({ text: 'Enough.' }, 9)))
            const bytes = [...opening, ...frames.flatMap((frame) => answer.push(frame))]
            answer.endResponse()
            bytes.push(...answer.finish(() => ({}) as never, 'Nothing.'))
            const { content, stop_reason: stop } = assembleMessage(out + Buffer.concat(bytes).toString())
            expect([content.some(({ type }) => type === 'tool_use'), stop]).toEqual([false, 'end_turn'])
            return
          }
          const { content, stop_reason: stop } = assembleMessage(out + released(filter, places))
          const kept = content.filter(({ type }) => type === 'tool_use').length
          expect(kept).toBe(calls - places.length)
          expect(stop).toBe(kept > 0 ? 'tool_use' : 'end_turn')
        },
      ),
      { numRuns: 300 },
    )
  })
})

describe('a whole Messages response', () => {
  it('a whole response loses its blocked calls and keeps the earlier content', () => {
    const [earlier, last] = [{ text: 'One.', calls: CALLS.slice(1) }, ANSWER].map((answer, at) =>
      Buffer.from(JSON.stringify(message(REQUEST, answer, at + 1))),
    )
    const written = (blocked: number[], before: Buffer[]) =>
      JSON.parse(messages.withoutCalls(last as Buffer, new Set(blocked), before).toString())
    expect(written([0, 2], []).content.map(({ id, type }: { id?: string; type: string }) => id ?? type)).toEqual([
      'thinking',
      's',
      'text',
      'b',
    ])
    expect(written([0, 2], []).stop_reason).toBe('tool_use')
    expect(written([1], [earlier as Buffer])).toMatchObject({
      id: 'msg_2',
      usage: { input_tokens: 200, output_tokens: 20, service_tier: 'standard' },
    })
    expect(written([1], [earlier as Buffer]).content[0]).toEqual({ type: 'text', text: 'One.' })
  })

  it('a request after a blocked message repeats its content with every digit', () => {
    const content =
      '[{"type":"thinking","thinking":"","signature":"s"},{"type":"tool_use","id":"a","name":"f","input":{"n":9007199254740993}}]'
    const buffered = messages.readAnswer(Buffer.from(`{"id":"msg_1","content": ${content} }`))?.buffered
    const body = Buffer.from('{"messages":[{"role":"user","content":"Hi"}],"n":1.0}')
    const edits = buffered && messages.read({ path: '', body })?.continueAfterBlock([{ buffered, results: ['no'] }])
    expect(applyEdits(body, edits ?? []).toString()).toBe(
      `{"messages":[{"role":"user","content":"Hi"},{"role":"assistant","content":${content}},` +
        '{"role":"user","content":[{"type":"tool_result","tool_use_id":"a","content":"no"}]}],"n":1.0}',
    )
  })

  it.each(['{"type":"error","error":{}}', 'no JSON', '[]'])('a body of another form has no calls: %s', (text) => {
    expect(messages.readAnswer(Buffer.from(text))?.buffered).toBeUndefined()
  })
})
