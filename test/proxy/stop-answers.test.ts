/** What counts as the answer of a run that was stopped. */
import { describe, expect, it } from 'vitest'
import { callModel, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { callMessages, ASKED as MESSAGES_START, resultsFor } from '../support/messages.ts'
import type { Answer, ChatMessage } from '../support/provider.ts'
import { callResponses } from '../support/responses-agent.ts'

const budget = { max_iterations: 1, adaptive: false }
const CALLED: readonly ChatMessage[] = [
  ...START,
  {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: 'c1', function: { name: 'search', arguments: '{}' } }],
  },
  { role: 'tool', tool_call_id: 'c1', content: 'found' },
]

const chunk = (delta: object, finish: string | null = null) =>
  `data: ${JSON.stringify({
    id: 'x',
    object: 'chat.completion.chunk',
    created: 1,
    model: 'm',
    choices: [{ index: 0, delta, finish_reason: finish }],
  })}\n\n`

/** A message as it comes whole, and in a stream. */
function said(message: object, stream: boolean): Answer {
  if (stream) {
    const events = [chunk({ role: 'assistant' }), chunk(message), chunk({}, 'stop'), 'data: [DONE]\n\n']
    return { body: events.join(''), headers: { 'content-type': 'text/event-stream' } }
  }
  const whole = { role: 'assistant', content: null, ...message }
  return {
    body: {
      id: 'x',
      object: 'chat.completion',
      created: 1,
      model: 'm',
      choices: [{ index: 0, message: whole, finish_reason: 'stop' }],
    },
  }
}

describe.each([{ stream: false }, { stream: true }])('at a stop of a chat (stream: $stream)', ({ stream }) => {
  it.each([
    ['a refusal', { refusal: 'I can’t help with that.' }, 'I can’t help with that.'],
    ['a spoken answer', { audio: { id: 'a1', data: 'UklGRg==', transcript: 'It is 42.' } }, 'It is 42.'],
  ])('%s is accepted as an answer, and its words are repeated to a client that lost it', async (_, message, words) => {
    const { url, provider } = await startBoth(() => said(message, stream), { budget })
    const last = await callModel(url, CALLED, { stream })
    expect(last.governor).toMatchObject({ has_final_answer: true })
    expect(provider.requests).toHaveLength(1)
    const again = await callModel(url, CALLED, { stream })
    expect(again.message.content).toBe(words)
    expect(provider.requests).toHaveLength(1)
  })

  it.each(['', ' '])('an audio answer whose transcript is %j is not accepted as an answer', async (transcript) => {
    const { url, provider } = await startBoth(() => said({ audio: { id: 'a1', data: '', transcript } }, stream), {
      budget,
    })
    const last = await callModel(url, CALLED, { stream })
    expect(last.governor).toMatchObject({ has_final_answer: false })
    expect(provider.requests).toHaveLength(2)
  })

  it('an object that looks like a call is accepted as an answer if the client asked for an object', async () => {
    const text = '{"name": "search", "arguments": {"query": "it"}}'
    const { url, provider } = await startBoth(() => ({ text }), { budget })
    const schema = { type: 'json_schema', json_schema: { name: 'tool', schema: { type: 'object' } } }
    const asked = await callModel(url, CALLED, { stream, body: { response_format: schema } })
    expect(asked.message.content).toBe(text)
    expect(asked.governor).toMatchObject({ has_final_answer: true })
    expect(provider.requests).toHaveLength(1)
    const plain = await callModel(url, CALLED, {
      stream,
      body: { response_format: { type: 'text' }, seed: 1 },
      headers: { 'x-governor-session': 'other' },
    })
    expect(plain.governor).toMatchObject({ has_final_answer: false })
  })
})

const CALL_JSON = '{"name": "search", "arguments": {"query": "it"}}'

describe.each([{ stream: false }, { stream: true }])(
  'an object that looks like a call (stream: $stream)',
  ({ stream }) => {
    it('is accepted as an answer in Responses if `text.format` asks for an object', async () => {
      const { url } = await startBoth(() => ({ text: CALL_JSON }), { budget })
      const input = [
        { role: 'user', content: 'Go.' },
        { type: 'function_call', call_id: 'c1', name: 'search', arguments: '{}' },
        { type: 'function_call_output', call_id: 'c1', output: 'found' },
      ]
      const text = { format: { type: 'json_schema', name: 'tool', schema: { type: 'object' } } }
      const step = await callResponses(url, { input, store: false, text }, { stream })
      expect(step.text).toBe(CALL_JSON)
      expect(step.response['governor']).toMatchObject({ has_final_answer: true })
    })

    it('is accepted as an answer in Messages if `output_config.format` asks for an object', async () => {
      const { url } = await startBoth(() => ({ text: CALL_JSON }), { budget })
      const call = [{ type: 'tool_use', id: 't1', name: 'search', input: {} }]
      const body = { output_config: { format: { type: 'json_schema', schema: { type: 'object' } } } }
      const messages = [...MESSAGES_START, { role: 'assistant', content: call }, resultsFor(call)]
      const step = await callMessages(url, messages, { stream, body })
      expect(step.text).toBe(CALL_JSON)
      expect(step.governor).toMatchObject({ has_final_answer: true })
    })
  },
)
