import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { chat } from '../../../src/dialect/chat/index.ts'
import { gemini } from '../../../src/dialect/gemini/index.ts'
import { messages } from '../../../src/dialect/messages/index.ts'
import { responses } from '../../../src/dialect/responses/index.ts'
import { searchStream } from '../../../src/usage/relayed-calls.ts'

const DIALECTS = { chat, messages, responses }

const filtered = { index: 0, delta: {}, finish_reason: 'tool_calls', content_filter_results: { error: { code: 'x' } } }
const call = { type: 'tool_use', id: 'toolu_1', name: 'report', input: { type: 'error', error: { message: 'no' } } }

/** Events as their server sends them in one piece, and how the response ended. */
const ENDS: [string, keyof typeof DIALECTS, readonly object[], 'whole' | 'failed'][] = [
  ['a provider’s filter failed', 'chat', [{ id: 'a', choices: [filtered] }], 'whole'],
  ['of OpenRouter', 'chat', [{ id: 'a', created: 1, model: 'm', error: { code: 502 }, choices: [] }], 'failed'],
  ['without a type', 'chat', [{ error: { message: 'no' } }], 'failed'],
  [
    'a call about an error',
    'messages',
    [{ type: 'content_block_start', content_block: call }, { type: 'message_stop' }],
    'whole',
  ],
  ['of Anthropic', 'messages', [{ type: 'error', error: { type: 'overloaded_error', message: 'no' } }], 'failed'],
  ['with its members in the order of the alphabet', 'messages', [{ error: { type: 'x' }, type: 'error' }], 'failed'],
  ['of OpenAI', 'responses', [{ type: 'error', code: 'server_error', message: 'no', sequence_number: 3 }], 'failed'],
  [
    'an event that was read before',
    'responses',
    [{ type: 'response.completed', response: { tools: [{ error: {} }] } }],
    'whole',
  ],
  ['none where its type comes last', 'responses', [{ response: { error: null }, type: 'response.completed' }], 'whole'],
]

describe('an error in a stream', () => {
  it.each(ENDS)('is one only where an event says so itself: %s', (_, dialect, events, end) => {
    const body = events.map((event) => `data: ${JSON.stringify(event)}\n\n`).join('')
    for (const lineEnd of ['\n', '\r\n', '\r'])
      expect(searchStream(DIALECTS[dialect])?.push(Buffer.from(body.replaceAll('\n', lineEnd)))).toBe(end)
    const spaced = events.map((event) => `data: ${JSON.stringify(event, null, 1).replaceAll('\n', ' ')}\n\n`).join('')
    expect(searchStream(DIALECTS[dialect])?.push(Buffer.from(spaced))).toBe(end)
  })

  it('is looked for in no more lines of a piece in which many are no JSON', () => {
    const body = (broken: number) => `${'data:{"error"\n'.repeat(broken)}data: {"error":{}}\n\ndata: [DONE]\n\n`
    const endAfter = (broken: number) => searchStream(chat)?.push(Buffer.from(body(broken)))
    expect([endAfter(5), endAfter(1_000)]).toEqual(['failed', 'whole'])
  })

  it('is none in a line between those of events', () => {
    const body = 'data: {"id":"a"}\n\n"type":"error"}\n\ndata: [DONE]\n\n'
    expect(searchStream(chat)?.push(Buffer.from(body))).toBe('whole')
  })

  it('is one of its event alone, however that orders its members and its stream is cut', () => {
    const members = { id: 'a', created: 1, model: 'm{"', choices: [filtered], usage: { prompt_tokens: 1 }, note: [[]] }
    const order = fc.shuffledSubarray([...Object.keys(members), 'error'])
    const error = fc.constantFrom<unknown>({ code: 502, message: 'no' }, 'no', null)
    const lineEnds = fc.constantFrom('\n', '\r\n', '\r')
    fc.assert(
      fc.property(order, error, lineEnds, fc.integer({ min: 1, max: 300 }), (keys, value, lineEnd, size) => {
        const of: Record<string, unknown> = { ...members, error: value }
        const event = Object.fromEntries(keys.map((key) => [key, of[key]]))
        const choice = { index: 0, delta: { content: '"error":{"' }, finish_reason: 'stop' }
        const part = { functionCall: { name: 'report', args: { error: { message: 'no' } } } }
        // The end of an answer of Chat Completions, and of one of Gemini.
        const answer = { choices: [choice], candidates: [{ content: { parts: [part] }, finishReason: 'STOP' }] }
        const texts = [event, answer].map((one) => `data: ${JSON.stringify(one)}\n\n`)
        const body = Buffer.from([...texts, 'data: [DONE]\n\n'].join('').replaceAll('\n', lineEnd))
        for (const dialect of [chat, gemini]) {
          const search = searchStream(dialect)
          let end: string | undefined
          for (let at = 0; at < body.length; at += size) end = search?.push(body.subarray(at, at + size)) ?? end
          expect(end).toBe(event['error'] ? 'failed' : 'whole')
        }
      }),
      { numRuns: 500 },
    )
  })
})
