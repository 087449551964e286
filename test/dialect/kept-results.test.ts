/** Results of a request that Governor answers itself; the provider gets them with the next request. */
import { describe, expect, it } from 'vitest'
import { messages } from '../../src/dialect/messages/index.ts'
import { responses } from '../../src/dialect/responses/index.ts'

const long = 'x'.repeat(100_000)
const LOST = '(This result is not available any more.)'

const kept = (dialect: typeof messages, request: object) =>
  dialect
    .read({ path: '/', body: Buffer.from(JSON.stringify(request)) })
    ?.stored?.skippedResults('1')
    ?.pendingResults.map((text) => JSON.parse(text))

describe('the results of a request that Governor answers itself', () => {
  const thread = { type: 'continue', previous_message_id: 'msg_0' }
  it.each([
    ['a text', long],
    ['parts', [{ type: 'text', text: long }]],
  ])('are kept as notes that they are lost if they are too long, in a message thread with %s', (_, content) => {
    const result = { type: 'tool_result', tool_use_id: 'call_1', is_error: true }
    const asking = (given: unknown) => ({
      thread,
      messages: [{ role: 'user', content: [{ ...result, content: given }] }],
    })
    expect(kept(messages, asking('short'))).toEqual([{ ...result, content: 'short' }])
    expect(kept(messages, asking(content))).toEqual([{ ...result, content: LOST }])
  })

  it('are kept as notes that they are lost if they are too long, in Responses', () => {
    const result = { type: 'function_call_output', call_id: 'call_1' }
    const asking = (output: string) => ({ previous_response_id: 'resp_0', input: [{ ...result, output }] })
    expect(kept(responses, asking('short'))).toEqual([{ ...result, output: 'short' }])
    expect(kept(responses, asking(long))).toEqual([{ ...result, output: LOST }])
  })

  it.each([
    ['previous_response_id', 'resp_0', { id: 'resp_1', redirectTo: 'resp_0' }],
    ['conversation', 'conv_0', { id: 'resp_1' }],
  ])('belong to a response of Governor that continues what %s names, in Responses', (field, value, expected) => {
    const body = Buffer.from(JSON.stringify({ [field]: value, input: [{ role: 'user', content: 'Go on.' }] }))
    const skipped = responses.read({ path: '/', body })?.stored?.skippedResults('1')
    expect(skipped).toEqual({ ...expected, pendingResults: [] })
  })
})
