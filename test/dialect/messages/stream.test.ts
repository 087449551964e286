import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../../src/core/terminal.ts'
import { messages } from '../../../src/dialect/messages/index.ts'
import { createFrameReader, dataFrame, type Frame } from '../../../src/sse/frames.ts'
import { assembleMessage } from '../../support/messages.ts'

const terminal = (answered: boolean, truncated = false) =>
  terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', answered, truncated)
const FALLBACK = '(Reached max iterations: 3)'

type Event = { readonly type: string; readonly [field: string]: unknown }

const start = (id = 'msg_1', input = 100): Event => ({
  type: 'message_start',
  message: {
    id,
    type: 'message',
    role: 'assistant',
    model: 'm',
    content: [],
    stop_reason: null,
    usage: { input_tokens: input, output_tokens: 1 },
  },
})
const open = (index: number, content_block: object): Event => ({
  type: 'content_block_start',
  index,
  content_block,
})
const delta = (index: number, one: object): Event => ({ type: 'content_block_delta', index, delta: one })
const close = (index: number): Event => ({ type: 'content_block_stop', index })
const textAt = (index: number, ...texts: readonly string[]): Event[] => [
  open(index, { type: 'text', text: '' }),
  ...texts.map((text) => delta(index, { type: 'text_delta', text })),
  close(index),
]
const callAt = (index: number): Event[] => [
  open(index, { type: 'tool_use', id: 'toolu_1', name: 'f', input: {} }),
  delta(index, { type: 'input_json_delta', partial_json: '{}' }),
  close(index),
]
const thinkingAt = (index: number): Event[] => [
  open(index, { type: 'thinking', thinking: '', signature: '' }),
  delta(index, { type: 'thinking_delta', thinking: 'Hm.' }),
  delta(index, { type: 'signature_delta', signature: 'c2ln' }),
  close(index),
]
const end = (reason = 'end_turn', output = 10): Event[] => [
  {
    type: 'message_delta',
    delta: { stop_reason: reason, stop_sequence: null },
    usage: { output_tokens: output },
  },
  { type: 'message_stop' },
]
const PING: Event = { type: 'ping' }
const ERROR: Event = { type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } }

const frameOf = (event: Event): Frame => ({ raw: dataFrame(JSON.stringify(event), event.type) })

/** Feeds one list of frames per attempt, as the proxy does: none after an answer or an error, and the fallback after the last. */
function runFrames(tries: readonly (readonly Frame[])[], dropCalls = true) {
  const stream = messages.openStream(dropCalls, false)
  let end: ReturnType<typeof stream.endResponse> = 'silent'
  const bytes: Buffer[] = []
  for (const frames of tries) {
    bytes.push(...frames.flatMap((frame) => stream.push(frame)))
    end = stream.endResponse()
    if (end !== 'silent') break
  }
  if (end === 'broken') bytes.push(...stream.abandon())
  else bytes.push(...stream.finish(terminal, end === 'answered' || !dropCalls ? undefined : FALLBACK))
  return { end, raw: Buffer.concat(bytes).toString('utf8'), kept: stream.text }
}

function run(tries: readonly (readonly Event[])[], dropCalls = true) {
  const { raw, kept } = runFrames(
    tries.map((events) => events.map(frameOf)),
    dropCalls,
  )
  const message = assembleMessage(raw)
  const text = message.content.map((block) => (block.type === 'text' ? block.text : '')).join('')
  return { raw, kept, message, text }
}

const rawOf = (events: readonly Event[]) => Buffer.concat(events.map((event) => frameOf(event).raw)).toString()

describe('a Messages stream of an agent that ends its run itself', () => {
  it('gets no end of what it has left open', () => {
    const stream = messages.openStream(false, false)
    for (const event of [start(), ...textAt(0, 'It is 42.').slice(0, 2)]) stream.push(frameOf(event))
    stream.endResponse(true)
    expect(stream.finish(terminal, undefined)).toEqual([])
  })

  it('a stream that the agent ends changes only in its `message_delta`', () => {
    const events = [start(), ...textAt(0, '<think>'), ...callAt(1)]
    const stream = messages.openStream(false, false)
    const before = [...events, ...end('tool_use')].map(frameOf)
    const bytes = before.flatMap((frame) => stream.push(frame))
    expect(stream.endResponse()).toBe('silent')
    bytes.push(...stream.finish(terminal, undefined))
    const after = createFrameReader().push(Buffer.concat(bytes))
    const changed = after.flatMap(({ raw }, at) => (raw.equals(before[at]?.raw as Buffer) ? [] : [at]))
    expect(changed).toEqual([before.length - 2])
    expect(Buffer.concat(bytes).toString()).toContain('"stop_reason":"tool_use"')
  })

  it('a stream without an end gets none', () => {
    const frames = [start(), ...textAt(0, 'a').slice(0, -1)].map(frameOf)
    expect(runFrames([frames], false).raw).toBe(Buffer.concat(frames.map(({ raw }) => raw)).toString())
  })

  it('gets nothing but the terminal state, also where its provider leaves a block open', () => {
    const events = [start(), ...textAt(0, 'It is 42.').slice(0, -1)]
    const all = [...events, ...end()]
    const { raw } = runFrames([all.map(frameOf)], false)
    expect(raw.replace(`,"governor":${JSON.stringify(terminal(true))}`, '')).toBe(rawOf(all))
    expect(raw).toContain('"governor"')
  })
})

describe('a Messages stream that ends a run', () => {
  it('a stream changes only in its `message_delta`', () => {
    const events = [start(), PING, ...thinkingAt(0), ...textAt(1, 'It ', 'is 42.')]
    const { raw, message, kept } = run([[...events, ...end()]])
    expect(raw.startsWith(rawOf(events))).toBe(true)
    expect(raw.endsWith(rawOf([{ type: 'message_stop' }]))).toBe(true)
    expect(message.governor).toEqual(terminal(true))
    expect(message.stop_reason).toBe('end_turn')
    expect(kept).toBe('It is 42.')
  })

  it('a stream shows text at once and holds its end', () => {
    const stream = messages.openStream(true, false)
    const frames = [start(), ...textAt(0, 'Hi')].map(frameOf)
    expect(frames.flatMap((frame) => stream.push(frame))).toEqual(frames.map(({ raw }) => raw))
    expect(end().flatMap((event) => stream.push(frameOf(event)))).toEqual([])
    const comment: Frame = { raw: Buffer.from(': keep-alive\n\n') }
    expect(stream.push(comment)).toEqual([comment.raw])
  })

  it('a stream loses its tool calls, numbers its blocks without gaps, and its stop reason fits the rest', () => {
    const events = [start(), ...textAt(0, 'Wait. '), ...callAt(1), ...thinkingAt(2), ...callAt(3), ...textAt(4, 'Now.')]
    const { raw, message, text } = run([[...events, ...end('tool_use')]])
    expect(raw).not.toMatch(/tool_use|input_json/)
    expect(message.content.map(({ type }) => type)).toEqual(['text', 'thinking', 'text'])
    expect([text, message.stop_reason]).toEqual(['Wait. Now.', 'end_turn'])
  })

  it.each([
    ['max_tokens', 'end_turn'],
    ['stop_sequence', 'stop_sequence'],
    ['refusal', 'refusal'],
    ['model_context_window_exceeded', 'end_turn'],
    ['pause_turn', 'end_turn'],
    ['compaction', 'end_turn'],
    ['tool_use', 'end_turn'],
  ])('a stream with the stop reason %s gets the stop reason %s', (reason, expected) => {
    const { message } = run([[start(), ...textAt(0, 'a'), ...end(reason)]])
    expect(message.stop_reason).toBe(expected)
    const isCutOff = reason === 'max_tokens' || reason === 'model_context_window_exceeded'
    expect(message.governor?.['truncated']).toBe(isCutOff || undefined)
  })

  it('a stream keeps the calls of the provider itself, and all other members of its `message_delta`', () => {
    const server = [open(0, { type: 'server_tool_use', id: 's', name: 'web_search', input: {} }), close(0)]
    const searched = [open(1, { type: 'web_search_tool_result', tool_use_id: 's', content: [] }), close(1)]
    const last = {
      type: 'message_delta',
      delta: { stop_reason: 'tool_use', stop_sequence: null, container: { id: 'c' } },
      usage: { output_tokens: 3, server_tool_use: { web_search_requests: 1 } },
      context_management: { applied_edits: [] },
    }
    const { raw, message } = run([[start(), ...server, ...searched, ...textAt(2, 'a'), last, { type: 'message_stop' }]])
    expect(message.content.map(({ type }) => type)).toEqual(['server_tool_use', 'web_search_tool_result', 'text'])
    expect(raw).toContain('"container":{"id":"c"}')
    expect(raw).toContain('"server_tool_use":{"web_search_requests":1}')
    expect(raw).toContain('"context_management":{"applied_edits":[]}')
  })

  it('a stream holds text that may be reasoning or a call, and everything after it, until it is known to be an answer', () => {
    const stream = messages.openStream(true, false)
    stream.push(frameOf(start()))
    const buffered = [
      ...textAt(0, '<th', 'ink>Let me see', '.</think>'),
      ...thinkingAt(1),
      open(2, { type: 'text', text: '' }),
    ]
    expect(buffered.flatMap((event) => stream.push(frameOf(event)))).toEqual([])
    const shown = stream.push(frameOf(delta(2, { type: 'text_delta', text: 'It is 42.' })))
    expect(Buffer.concat(shown).toString()).toBe(
      rawOf([...buffered, delta(2, { type: 'text_delta', text: 'It is 42.' })]),
    )
  })

  it.each([
    ['nothing', []],
    ['text', [start(), ...textAt(0, 'a')]],
    ['an open block', [start(), ...textAt(0, 'a').slice(0, -1)]],
    ['text that may be none', [start(), ...textAt(0, '<think>a').slice(0, -1)]],
    ['an error after text', [start(), ...textAt(0, 'a').slice(0, -1), ERROR]],
    ['an error after its reason', [start(), ...textAt(0, 'a'), ...end().slice(0, 1), ERROR]],
    ['an error alone', [ERROR]],
  ])('a stream keeps every byte if the provider ends it with %s', (_, events) => {
    for (const dropCalls of [true, false]) {
      const { end: how, raw } = runFrames([events.map(frameOf)], dropCalls)
      expect([how, raw]).toEqual(['broken', rawOf(events)])
    }
  })

  it('a stream without a `message_stop` is incomplete', () => {
    expect(runFrames([[start(), ...textAt(0, 'a'), ...end().slice(0, 1)].map(frameOf)]).end).toBe('broken')
  })
})

describe('a Messages stream without an answer', () => {
  const SILENT: readonly Event[][] = [
    [start(), ...callAt(0), ...end('tool_use')],
    [start(), ...thinkingAt(0), ...callAt(1), ...end('tool_use')],
    [start(), ...textAt(0, '<think>hm', '</think>'), ...end()],
    [start(), ...textAt(0, '<tool_call>{}</tool_call>'), ...callAt(1), ...end('tool_use')],
    [start(), ...thinkingAt(0), ...end()],
  ]

  it.each(SILENT.map((events) => [events] as const))(
    'a second response continues a stream without an answer, with the same id and the summed usage',
    (first) => {
      const second = [start('msg_2', 50), ...thinkingAt(0), ...textAt(1, 'It is ', '42.'), ...end('end_turn', 7)]
      const { message, text, kept, raw } = run([first, second])
      expect([text, kept, message.stop_reason]).toEqual(['It is 42.', 'It is 42.', 'end_turn'])
      expect(message['id']).toBe('msg_1')
      expect(raw).not.toContain('msg_2')
      expect(message.usage).toMatchObject({ input_tokens: 150, output_tokens: 17 })
    },
  )

  it.each(SILENT.map((events) => [events] as const))(
    'two responses without an answer end with the fallback text',
    (silent) => {
      const { message, text, kept } = run([silent, silent])
      expect([text, kept, message.stop_reason]).toEqual([FALLBACK, FALLBACK, 'end_turn'])
      expect(message.governor).toEqual(terminal(false))
    },
  )
})

describe('any Messages stream that ends a run', () => {
  const block = fc.constantFrom<(index: number) => Event[]>(
    (index) => textAt(index, 'a'),
    (index) => textAt(index, '<think>', 'x'),
    (index) => textAt(index, '</think>', 'b'),
    (index) => textAt(index, '<tool_call>'),
    (index) => textAt(index),
    callAt,
    thinkingAt,
  )
  const response = fc
    .tuple(
      fc.array(block, { maxLength: 5 }),
      fc.constantFrom('end_turn', 'tool_use', 'pause_turn', 'max_tokens'),
      fc.nat(),
    )
    .map(([all, reason, cut]) => {
      const events = [start(), ...all.flatMap((make, index) => make(index)), PING, ...end(reason)]
      // Some responses are incomplete.
      return cut % 3 === 0 ? events.slice(0, cut % events.length) : events
    })

  it('any final stream is a valid message with no call, one terminal state, and all recorded text', () => {
    fc.assert(
      fc.property(response, response, (first, second) => {
        const frames = [first, second].map((events) => events.map(frameOf))
        if (runFrames(frames).end === 'broken') return
        const { raw, message, text, kept } = run([first, second])
        expect(raw).not.toMatch(/tool_use|input_json/)
        expect(raw.match(/"governor"/g)).toHaveLength(1)
        expect(['end_turn', 'max_tokens']).toContain(message.stop_reason)
        expect(text.endsWith(kept)).toBe(true)
      }),
      { numRuns: 300 },
    )
  })

  it('a stream is the same however its bytes are cut', () => {
    fc.assert(
      fc.property(response, fc.array(fc.nat({ max: 3000 }), { maxLength: 6 }), (events, cuts) => {
        const bytes = Buffer.from(rawOf(events))
        const places = [...new Set([0, ...cuts.map((cut) => cut % (bytes.length + 1)), bytes.length])].sort(
          (a, b) => a - b,
        )
        const reader = createFrameReader()
        const frames = places.slice(1).flatMap((to, at) => reader.push(bytes.subarray(places[at], to)))
        expect(runFrames([[...frames, ...reader.end()]]).raw).toBe(runFrames([events.map(frameOf)]).raw)
      }),
      { numRuns: 200 },
    )
  })
})
