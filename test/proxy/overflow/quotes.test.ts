/** Errors that quote the request: the text of a tool result is no statement of the provider, so it sets no limit. */
import OpenAI, { APIError } from 'openai'
import { describe, expect, it } from 'vitest'
import { TOOLS } from '../../support/agent.ts'
import { startBoth } from '../../support/governor.ts'

const SAID =
  "Error: This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens. Please reduce the length of the messages."

const SEARCH = { id: 'c1', type: 'function' as const, function: { name: 'search', arguments: '{}' } }

/** Asks with a tool result, and returns the error that the openai package throws. */
async function refused(message: string, result = SAID, status = 400) {
  const body = { error: { message, type: 'invalid_request_error', param: null, code: null } }
  const { url, events } = await startBoth(() => ({ status, body }))
  const client = new OpenAI({ apiKey: 'k', baseURL: `${url}/v1`, maxRetries: 0 })
  const error: unknown = await client.chat.completions
    .create({
      model: 'house-model',
      tools: [...TOOLS],
      messages: [
        { role: 'user', content: 'hello' },
        { role: 'assistant', content: null, tool_calls: [SEARCH] },
        { role: 'tool', tool_call_id: 'c1', content: result },
      ],
    })
    .catch((thrown: unknown) => thrown)
  if (!(error instanceof APIError)) throw new Error('not refused')
  const { governor, ...original } = error.error as Record<string, unknown>
  expect(original).toEqual(body.error)
  return { governor, recovery: error.headers?.get('x-governor-overflow'), events }
}

describe('an error that quotes a tool result', () => {
  it.each([
    `Invalid value for messages[2].content: '${SAID}' is not allowed here.`,
    `Could not parse the tool result: ${SAID}`,
    `Invalid request body: {"messages":[{"role":"tool","content":"${SAID}"}]} misses a field.`,
    `1 validation error for ChatRequest\nmessages.2.content\n  Input should be a valid list [type=list_type, input_value="${SAID}", input_type=str]`,
    `Content policy: the text “${SAID.slice(0, 70)}…” was flagged.`,
  ])('sets no limit, and reaches the client unchanged: %s', async (message) => {
    const { governor, recovery, events } = await refused(message)
    expect(governor).toBeUndefined()
    expect(recovery).toBeNull()
    expect(events.some(({ kind }) => kind === 'overflow')).toBe(false)
  })

  it('sets no limit as an event of a stream, either', async () => {
    const event = `data: ${JSON.stringify({ error: { message: `Invalid tool result: '${SAID}'` } })}\n\n`
    const { url } = await startBoth(() => ({
      status: 200,
      body: event,
      headers: { 'content-type': 'text/event-stream' },
    }))
    const response = await fetch(`${url}/v1/chat/completions`, {
      method: 'POST',
      body: JSON.stringify({ stream: true, messages: [{ role: 'user', content: SAID }], tools: TOOLS }),
    })
    expect(await response.text()).toBe(event)
  })
})

describe("a provider's own words about an overflow", () => {
  it.each([
    ['that appear in no other text', 'found nothing', SAID, { recovery: 'shrink_context', limit: 4096 }],
    [
      'that are followed by a quotation',
      'limit: at most 7 results of the search',
      "This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens, ending in 'at most 7 results of the search'.",
      { recovery: 'shrink_context', limit: 4096, prompt_tokens: 5000 },
    ],
    // The agent has written down an earlier error.
    ['that a tool result repeats word by word', SAID, SAID, { recovery: 'shrink_context', limit: 4096 }],
    [
      'that a tool result repeats about a smaller prompt',
      SAID,
      "This model's maximum context length is 4096 tokens. However, your messages resulted in 6000 tokens. Please reduce the length of the messages.",
      { recovery: 'shrink_context', limit: 4096, prompt_tokens: 6000 },
    ],
  ])('%s are understood', async (_, result, message, expected) => {
    expect((await refused(message, result)).governor).toMatchObject(expected)
  })
})
