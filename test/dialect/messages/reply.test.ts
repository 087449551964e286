import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type FinalAnswer, terminalOf } from '../../../src/core/terminal.ts'
import type { AnswerChange } from '../../../src/dialect/dialect.ts'
import { messages } from '../../../src/dialect/messages/index.ts'
import { assembleMessage } from '../../support/messages.ts'

const TERMINAL = terminalOf({ meter: { name: 'iterations', used: 4, max: 3 } }, 'abc', true)
const CALL = { type: 'tool_use', id: 'a', name: 'f', input: {} }
const THINKING = { type: 'thinking', thinking: 'Hm.', signature: 'c2ln' }
const text = (value: string) => ({ type: 'text', text: value })

const answer = (content: readonly object[], stop_reason = 'end_turn', extra: object = {}) =>
  JSON.stringify({ id: 'msg_1', type: 'message', role: 'assistant', content, stop_reason, ...extra })

function written(body: string, change: Partial<AnswerChange> = {}) {
  const result = messages.writeAnswer(Buffer.from(body), {
    terminal: TERMINAL,
    dropCalls: true,
    earlier: [],
    ...change,
  })
  return result.toString('utf8')
}

describe('a whole Messages response', () => {
  it.each([
    ['text', answer([text('H'), THINKING, text('i')]), { text: 'Hi', calls: 0, end: 'complete' }],
    ['calls', answer([text('a'), CALL]), { text: 'a', calls: 1, end: 'complete' }],
    [
      'calls of the provider itself',
      answer([{ ...CALL, type: 'server_tool_use' }, text('a')]),
      { text: 'a', calls: 0, end: 'complete' },
    ],
    ['no block', answer([]), { text: '', calls: 0, end: 'complete' }],
    ['an error', '{"type":"error","error":{"message":"no"}}', undefined],
    ['a list', '[]', undefined],
    ['no JSON', '<html>', undefined],
  ])('a whole response with %s is read', (_, body, expected) => {
    const read = messages.readAnswer(Buffer.from(body))
    expect(read && { text: read.text, calls: read.calls.length, end: read.end }).toEqual(expected)
  })

  it('a response loses its calls, and its stop reason fits the rest', () => {
    expect(JSON.parse(written(answer([THINKING, text('a'), CALL, CALL], 'tool_use')))).toMatchObject({
      content: [THINKING, text('a')],
      stop_reason: 'end_turn',
      governor: TERMINAL,
    })
    expect(JSON.parse(written(answer([text('a')], 'pause_turn'))).stop_reason).toBe('end_turn')
    expect(JSON.parse(written(answer([text('a')], 'max_tokens'))).stop_reason).toBe('end_turn')
  })

  it('another text replaces that of a response, after its reasoning', () => {
    const body = answer([THINKING, text('<think>'), CALL], 'tool_use')
    expect(JSON.parse(written(body, { text: 'Enough.' })).content).toEqual([THINKING, text('Enough.')])
  })

  it('a response states the usage of all attempts', () => {
    const usage = {
      input_tokens: 10,
      output_tokens: 1,
      cache_creation: { ephemeral_5m_input_tokens: 2 },
      service_tier: 'standard',
    }
    const body = answer([text('a')], 'end_turn', { usage })
    const summed = JSON.parse(written(body, { earlier: [Buffer.from(body), Buffer.from('no')] })).usage
    expect(summed).toEqual({
      input_tokens: 20,
      output_tokens: 2,
      cache_creation: { ephemeral_5m_input_tokens: 4 },
      service_tier: 'standard',
    })
  })
})

describe('a Messages reply of Governor itself', () => {
  const recorded = (value: string): FinalAnswer => ({ text: value, model: 'm', terminal: TERMINAL })

  it('a reply of Governor is a message, whole or streamed', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (value) => {
        const whole = messages.reply(recorded(value), false, '1', 0)
        const streamed = messages.reply(recorded(value), true, '1', 0)
        const message = JSON.parse(whole.body.toString())
        expect(whole.contentType).toBe('application/json')
        expect(streamed.contentType).toMatch(/^text\/event-stream/)
        expect(assembleMessage(streamed.body.toString())).toEqual(message)
        expect(message).toMatchObject({
          id: 'msg_1',
          type: 'message',
          role: 'assistant',
          stop_reason: 'end_turn',
        })
        // The API refuses an empty text in the input.
        expect(message.content).toEqual(value === '' ? [] : [text(value)])
        expect(message.governor).toEqual(TERMINAL)
      }),
      { numRuns: 50 },
    )
  })
})
