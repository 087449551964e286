/** The footer in streams of every form that providers send. */
import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../src/core/terminal.ts'
import { chat } from '../../src/dialect/chat/index.ts'
import type { Dialect } from '../../src/dialect/dialect.ts'
import { gemini } from '../../src/dialect/gemini/index.ts'
import { messages } from '../../src/dialect/messages/index.ts'
import { responses } from '../../src/dialect/responses/index.ts'
import { createFrameReader, dataOf } from '../../src/sse/frames.ts'

type Json = Record<string, unknown>

const terminal = (answered: boolean) => terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', answered)
const FOOTER = '— stopped by governor: 3 of 3 iterations'

/** Returns the events of a client whose run is stopped, given those of the provider. */
function through({ openStream }: Dialect, events: readonly Json[]): Json[] {
  const stream = openStream(true, false, true)
  const reader = createFrameReader()
  const sent = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join('')
  const out = [...reader.push(Buffer.from(sent)), ...reader.end()].flatMap((frame) => stream.push(frame))
  expect(stream.endResponse()).toBe('answered')
  out.push(...stream.finish(terminal, undefined, FOOTER))
  expect(stream.text).not.toContain(FOOTER)
  const written = createFrameReader()
  return [...written.push(Buffer.concat(out)), ...written.end()]
    .map((frame) => dataOf(frame) ?? '')
    .filter((data) => data !== '[DONE]')
    .map((data) => JSON.parse(data) as Json)
}

const chunk = (delta: Json, finish: string | null = null): Json => ({
  id: 'x',
  object: 'chat.completion.chunk',
  created: 1,
  model: 'm',
  choices: [{ index: 0, delta, finish_reason: finish }],
})

describe('the footer in a stream of Chat Completions', () => {
  const deltas = (chunks: readonly Json[]) =>
    chunks.map(({ choices }) => (choices as { delta: Json; finish_reason: unknown }[])[0])

  it('comes before the finish reason', () => {
    const sent = through(chat, [chunk({ role: 'assistant', content: 'It is 42.' }), chunk({}, 'stop')])
    expect(deltas(sent)).toMatchObject([
      { delta: { content: 'It is 42.' } },
      { delta: { content: `\n\n${FOOTER}` }, finish_reason: null },
      { delta: {}, finish_reason: 'stop' },
    ])
  })

  it('follows text that comes with the finish reason', () => {
    const sent = through(chat, [chunk({ content: 'It is ' }), chunk({ content: '42.' }, 'stop')])
    expect(deltas(sent)).toMatchObject([
      { delta: { content: 'It is ' } },
      { delta: { content: `42.\n\n${FOOTER}` }, finish_reason: 'stop' },
    ])
  })

  it('is a separate part if the content is a list of parts', () => {
    const sent = through(chat, [chunk({ content: [{ type: 'text', text: '42' }] }, 'stop')])
    expect(deltas(sent)[0]?.delta['content']).toEqual([
      { type: 'text', text: '42' },
      { type: 'text', text: `\n\n${FOOTER}` },
    ])
  })
})

const block = (index: number, content_block: Json, ...deltas: Json[]): Json[] => [
  { type: 'content_block_start', index, content_block },
  ...deltas.map((delta) => ({ type: 'content_block_delta', index, delta })),
  { type: 'content_block_stop', index },
]
const textBlock = (index: number, text: string) =>
  block(index, { type: 'text', text: '' }, { type: 'text_delta', text })
const begun: Json = { type: 'message_start', message: { id: 'msg_1', role: 'assistant', content: [] } }
const over: Json[] = [
  { type: 'message_delta', delta: { stop_reason: 'end_turn' }, usage: { output_tokens: 1 } },
  { type: 'message_stop' },
]
const server = block(1, { type: 'server_tool_use', id: 's1', name: 'web_search', input: {} })

describe('the footer in a stream of Messages', () => {
  /** The texts of the blocks, by index; each one must begin before it goes on, and end once. */
  function blocks(sent: readonly Json[]): string[] {
    const texts: string[] = []
    let open: unknown
    for (const { type, index, delta } of sent) {
      if (type === 'content_block_start') {
        expect([open, index]).toEqual([undefined, texts.length])
        open = index
        texts.push('')
      }
      if (type === 'content_block_delta') {
        expect(index).toBe(open)
        texts[texts.length - 1] += String((delta as Json)['text'] ?? '')
      }
      if (type === 'content_block_stop') {
        expect(index).toBe(open)
        open = undefined
      }
    }
    expect(open).toBeUndefined()
    return texts
  }

  it.each<[string, Json[], string[]]>([
    ['the last text', [...textBlock(0, 'It is 42.'), ...over], [`It is 42.\n\n${FOOTER}`]],
    [
      'the last of several texts',
      [...textBlock(0, 'I look. '), ...server, ...textBlock(2, 'It is 42.'), ...over],
      ['I look. ', '', `It is 42.\n\n${FOOTER}`],
    ],
    [
      'a text after which calls were removed',
      [...textBlock(0, 'It is 42.'), ...block(1, { type: 'tool_use', id: 't', name: 'f' }), ...over],
      [`It is 42.\n\n${FOOTER}`],
    ],
    [
      'a text that the provider has left open',
      [...textBlock(0, 'It is 42.').slice(0, 2), ...over],
      [`It is 42.\n\n${FOOTER}`],
    ],
    [
      'no text that other content follows, but stands in a block of its own',
      [...textBlock(0, 'It is 42.'), ...server, ...over],
      ['It is 42.', '', `\n\n${FOOTER}`],
    ],
  ])('ends %s', (_, events, texts) => {
    const sent = through(messages, [begun, ...events])
    expect(blocks(sent)).toEqual(texts)
    expect(sent.at(-2)).toMatchObject({ type: 'message_delta', governor: { has_final_answer: true } })
  })

  it('holds the end of a text alone: the client gets the end of another block at once', () => {
    const stream = messages.openStream(true, false, true)
    const sent = (events: readonly Json[]) => {
      const frames = events.map((event) => ({ raw: Buffer.from(`data: ${JSON.stringify(event)}\n\n`) }))
      return Buffer.concat(frames.flatMap((frame) => stream.push(frame))).toString()
    }
    expect(sent([begun, ...textBlock(0, 'It is 42.')])).not.toContain('content_block_stop')
    expect(sent(server).match(/content_block_stop","index":\d/g)).toEqual(
      [0, 1].map((at) => `content_block_stop","index":${at}`),
    )
  })
})

describe('the footer in a stream of Gemini', () => {
  const said = (parts: readonly Json[], more: Json = {}): Json => ({
    candidates: [{ content: { parts, role: 'model' }, index: 0, ...more }],
  })
  const ends = { finishReason: 'STOP' }
  const thought = { text: 'Hm.', thought: true }
  const call = { functionCall: { name: 'f', args: {} } }

  it.each<[string, Json[], Json[][]]>([
    [
      'comes before an end without text, in a chunk of its own',
      [said([{ text: 'It is 42.' }]), said([{ text: '' }], ends)],
      [[{ text: 'It is 42.' }], [{ text: `\n\n${FOOTER}` }], [{ text: '' }]],
    ],
    [
      'follows the last text of an end, after thoughts and before a call that is removed',
      [said([{ text: 'It is ' }]), said([thought, { text: '42.', n: 1 }, call], ends)],
      [[{ text: 'It is ' }], [thought, { text: `42.\n\n${FOOTER}`, n: 1 }]],
    ],
  ])('%s', (_, events, parts) => {
    const sent = through(gemini, events)
    const candidates = sent.map((event) => (event['candidates'] as { content: Json }[])[0])
    expect(candidates.map((candidate) => candidate?.content['parts'])).toEqual(parts)
    expect(sent.at(-1)).toMatchObject({ candidates: [ends], governor: { has_final_answer: true } })
  })
})

const item = (content: readonly Json[], more: Json = {}): Json => ({
  id: 'msg_1',
  type: 'message',
  role: 'assistant',
  status: 'completed',
  content,
  ...more,
})
const said = (text: string): Json => ({ type: 'output_text', text, annotations: [] })
const place = { item_id: 'msg_1', output_index: 0, content_index: 0 }
const added: Json = { type: 'response.output_item.added', output_index: 0, item: item([]) }
const itemDone = (content: readonly Json[]): Json => ({
  type: 'response.output_item.done',
  output_index: 0,
  item: item(content),
})
const partAdded: Json = { type: 'response.content_part.added', ...place, part: said('') }
const delta: Json = { type: 'response.output_text.delta', ...place, delta: 'It is 42.' }
const textDone: Json = { type: 'response.output_text.done', ...place, text: 'It is 42.' }
const partDone: Json = { type: 'response.content_part.done', ...place, part: said('It is 42.') }
const refused = { type: 'refusal', refusal: 'It is 42.' }
const search: Json = { id: 'ws_1', type: 'web_search_call', status: 'completed' }

describe('the footer in a stream of Responses', () => {
  const created: Json = { type: 'response.created', response: { id: 'resp_1', status: 'in_progress' } }
  const numbered = (events: readonly Json[]) => events.map((event, sequence_number) => ({ ...event, sequence_number }))

  /** The text of each item as its deltas, and as the response at the end of the stream says it. */
  function texts(sent: readonly Json[]) {
    const streamed: string[] = []
    for (const { type, output_index: at, delta } of sent)
      if (type === 'response.output_text.delta') streamed[Number(at)] = (streamed[Number(at)] ?? '') + String(delta)
    const last = sent.at(-1)?.['response'] as { output: { content?: Json[] }[] } | undefined
    const output = last?.output ?? []
    const done = sent.filter(({ type }) => type === 'response.output_item.done')
    expect(done.map((event) => event['item'])).toEqual(output)
    return {
      streamed,
      stated: output.map(({ content = [] }) => content.map(({ text, refusal }) => text ?? refusal).join('')),
    }
  }

  const whole = 'It is 42.'
  const both = `It is 42.\n\n${FOOTER}`
  it.each<[string, Json[], (string | undefined)[], string[]]>([
    ['a text', [added, partAdded, delta, textDone, partDone, itemDone([said(whole)])], [both], [both]],
    ['a text whose end is only that of its item', [added, partAdded, delta, itemDone([said(whole)])], [both], [both]],
    ['a text that the provider has left open', [added, partAdded, delta], [both], [both]],
    ['a text that comes with the end of its item', [added, itemDone([said(whole)])], [], [both]],
    ['a text that comes with the end of the response', [], [both], [both]],
    [
      'no refusal, but stands in a message of its own',
      [added, { ...delta, type: 'response.refusal.delta' }, { ...partDone, part: refused }, itemDone([refused])],
      [undefined, `\n\n${FOOTER}`],
      [whole, `\n\n${FOOTER}`],
    ],
    [
      'no text that other content follows, but stands in a message of its own',
      [
        added,
        partAdded,
        delta,
        textDone,
        partDone,
        itemDone([said(whole)]),
        { type: 'response.output_item.added', output_index: 1, item: search },
        { type: 'response.output_item.done', output_index: 1, item: search },
      ],
      [whole, undefined, `\n\n${FOOTER}`],
      [whole, '', `\n\n${FOOTER}`],
    ],
  ])('ends %s', (_, events, streamed, stated) => {
    const response = { id: 'resp_1', status: 'completed', output: [item([said(whole)])], output_text: whole }
    const end: Json = { type: 'response.completed', response }
    const sent = through(responses, numbered([created, ...events, end]))
    expect(sent.map((event) => event['sequence_number'])).toEqual(sent.map((_, at) => at))
    expect(texts(sent)).toEqual({ streamed, stated })
    expect(sent.at(-1)).toMatchObject({
      type: 'response.completed',
      response: { output_text: stated.join(''), governor: { has_final_answer: true } },
    })
  })

  it('goes on with the text that it follows, and not with one before it', () => {
    const second = { ...place, content_index: 1 }
    const events = [
      created,
      added,
      partAdded,
      { ...delta, delta: 'So. ' },
      { ...partAdded, ...second },
      { ...delta, ...second },
      { ...textDone, ...second },
      { ...partDone, ...second },
      itemDone([said('So. '), said(whole)]),
      {
        type: 'response.completed',
        response: { id: 'resp_1', status: 'completed', output: [item([said('So. '), said(whole)])] },
      },
    ]
    const sent = through(responses, numbered(events))
    const footers = sent.filter(({ delta: added }) => String(added).includes(FOOTER))
    expect(footers).toMatchObject([{ content_index: 1, delta: `\n\n${FOOTER}` }])
  })
})
