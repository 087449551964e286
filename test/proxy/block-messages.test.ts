import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import { ASKED, callMessages, runMessagesAgent } from '../support/messages.ts'
import type { Answer } from '../support/provider.ts'
import { mayCall, readsBlock, repeatsUntilBlocked } from '../support/scripts.ts'

const THINKING = { type: 'thinking', thinking: 'Once more.', signature: 'c2lnbmVk' }
const SAME: Answer = { blocks: [THINKING], calls: [{ name: 'search', arguments: { query: 'the same' } }] }
const REFUSAL =
  "[LOOP GUARD] Blocked: 'search' was called 6 times with identical arguments and results. This call was not executed. Try something different or give your final answer."

describe.each([{ stream: false }, { stream: true }])(
  'a repeated call over Messages after ignored warnings (stream: $stream)',
  ({ stream }) => {
    it('is blocked, the model is asked again with its own response, and the client gets the new answer', async () => {
      const { url, provider } = await startBoth(repeatsUntilBlocked(SAME, () => ({ text: 'I give up.' })))
      const { steps } = await runMessagesAgent(url, ASKED, { stream, max: 20 })
      expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual([
        ...['allow', 'allow', 'allow', 'warn', 'allow', 'warn'],
        // What a stream says first goes to the client at once, and its headers with that.
        stream ? 'allow' : 'block',
      ])
      const last = steps.at(-1)
      expect(last?.message.content).toEqual([THINKING, { type: 'text', text: 'I give up.' }])
      expect(last?.stop).toBe('end_turn')
      expect(last?.usage).toMatchObject({ input_tokens: 200, output_tokens: 20 })
      expect(last?.governor).toBeUndefined()
      const before = provider.requests.at(-2)?.json.messages ?? []
      const after = provider.requests.at(-1)?.json.messages ?? []
      expect(after.slice(0, before.length)).toEqual(before)
      const id = expect.any(String)
      expect(after.slice(before.length)).toEqual([
        {
          role: 'assistant',
          content: [THINKING, { type: 'tool_use', id, name: 'search', input: { query: 'the same' } }],
        },
        { role: 'user', content: [{ type: 'tool_result', tool_use_id: id, content: REFUSAL }] },
      ])
    })

    it('ends the run after the third block with the model’s own answer', async () => {
      const { url, provider } = await startBoth((request) =>
        mayCall(request) ? SAME : { text: 'I could not find it.' },
      )
      const { steps, messages } = await runMessagesAgent(url, ASKED, { stream, max: 20 })
      const last = steps.at(-1)
      expect(steps).toHaveLength(7)
      expect(last?.text).toBe('I could not find it.')
      expect(last?.message.content.filter(({ type }) => type === 'tool_use')).toEqual([])
      expect(last?.stop).toBe('end_turn')
      expect(last?.governor).toMatchObject({ terminal_state: 'loop_detected', has_final_answer: true })
      if (!stream) expect(last?.headers.get('x-governor-terminal-reason')).toBe('loop_guard')
      expect(last?.usage?.['input_tokens']).toBe(400)
      expect(provider.requests).toHaveLength(10)
      const again = await callMessages(url, messages.slice(0, -1), { stream })
      expect(again.governor).toEqual(last?.governor)
      expect(again.text).toBe('I could not find it.')
      expect(provider.requests).toHaveLength(10)
    })

    it('is removed from a response whose other calls pass', async () => {
      let responses = 0
      const { url, provider } = await startBoth(() => {
        responses++
        if (responses !== 7) return responses > 7 ? { text: 'Done.' } : SAME
        return {
          text: 'All of it.',
          calls: [
            { name: 'search', arguments: { query: 'the same' } },
            { name: 'read', arguments: { file: 'a' } },
            { name: 'search', arguments: { query: 'the same' } },
            { name: 'read', arguments: { file: 'b' } },
          ],
        }
      })
      const { steps } = await runMessagesAgent(url, ASKED, { stream, max: 20 })
      if (!stream) expect(steps[6]?.headers.get('x-governor-verdict')).toBe('block')
      expect(steps[6]?.stop).toBe('tool_use')
      expect(steps[6]?.message.content.map(({ text, input }) => text ?? input)).toEqual([
        'All of it.',
        { file: 'a' },
        { file: 'b' },
      ])
      expect(provider.requests).toHaveLength(8)
      const told = provider.requests.at(-1)?.json.messages.at(-1)?.content as { text?: string }[]
      expect(told.at(-1)?.text).toBe(REFUSAL)
    })

    it.each([500, 422, 400])(
      'is dropped with its tool when the provider answers the request with its result with %i',
      async (status) => {
        const { url } = await startBoth((request) => {
          if (!mayCall(request)) return { text: 'Without it.' }
          return readsBlock(request) ? { status, body: { type: 'error', error: { type: 'x', message: 'no' } } } : SAME
        })
        const { steps } = await runMessagesAgent(url, ASKED, { stream, max: 7 })
        expect(steps[6]?.status).toBe(200)
        expect(steps[6]?.message.content.map(({ type }) => type)).toEqual(['thinking', 'text'])
        expect(steps[6]?.stop).toBe('end_turn')
      },
    )
  },
)

describe('a second answer over Messages that is not a usable stream', () => {
  const event = (data: { readonly type: string; readonly [key: string]: unknown }) =>
    `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`
  const started = event({
    type: 'message_start',
    message: { id: 'm2', type: 'message', role: 'assistant', content: [], usage: {} },
  })
  const failed = event({ type: 'error', error: { type: 'overloaded_error', message: 'Overloaded' } })
  const text = event({ type: 'content_block_start', index: 0, content_block: { type: 'text', text: '' } })
  const said = event({ type: 'content_block_delta', index: 0, delta: { type: 'text_delta', text: 'Well' } })

  it.each([
    ['an error', [failed], []],
    ['an error after its beginning', [started, failed], []],
    ['an error after some text', [started, text, said, failed], ['text']],
    ['a beginning without an end', [started], []],
    ['nothing', [], []],
  ])('is followed by that of a model without the tool: %s', async (_, events, more) => {
    const { url } = await startBoth((request) => {
      if (!mayCall(request)) return { text: 'Without it.' }
      const headers = { 'content-type': 'text/event-stream' }
      return readsBlock(request) ? { status: 200, body: events.join(''), headers } : SAME
    })
    const { steps } = await runMessagesAgent(url, ASKED, { stream: true, max: 7 })
    expect(steps[6]?.message.content.map(({ type }) => type)).toEqual(['thinking', ...more, 'text'])
    expect(steps[6]?.stop).toBe('end_turn')
  })
})
