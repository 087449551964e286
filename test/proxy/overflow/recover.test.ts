import { describe, expect, it } from 'vitest'
import { TOOLS } from '../../support/agent.ts'
import { startBoth } from '../../support/governor.ts'
import type { Answer, Script } from '../../support/provider.ts'

const HUMAN = { role: 'user', content: 'hello' }
const refusal = (message: string, status = 400): Answer => ({
  status,
  body: { error: { message, type: 'invalid_request_error' } },
})
const SUM = refusal(
  "This model's maximum context length is 8192 tokens. However, you requested 11000 tokens (7000 in the messages, 4000 in the completion).",
)
const BOUND = refusal(
  'max_tokens is too large: 9000. This model supports at most 4096 completion tokens, whereas you provided 9000.',
)

const ask = (url: string, body: object, headers: Record<string, string> = {}, path = '/v1/chat/completions') =>
  fetch(`${url}${path}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', ...headers },
    body: JSON.stringify({ model: 'm', messages: [HUMAN], tools: TOOLS, ...body }),
  })

const once =
  (first: Answer): Script =>
  (_, number) =>
    number === 1 ? first : { text: 'done' }

describe('an output cap that is too large', () => {
  it.each<[string, object, Answer, object]>([
    ['max_tokens', { max_tokens: 9000 }, BOUND, { max_tokens: 4096 }],
    ['max_completion_tokens', { max_completion_tokens: 9000 }, BOUND, { max_completion_tokens: 4096 }],
    ['both', { max_tokens: 9000, max_completion_tokens: 100 }, BOUND, { max_tokens: 4096, max_completion_tokens: 100 }],
    ['the room of the window, less a margin', { max_tokens: 4000 }, SUM, { max_tokens: 1180 }],
  ])('is lowered once, in the field that the client used: %s', async (_, body, answer, sent) => {
    const { url, provider, events } = await startBoth(once(answer))
    const response = await ask(url, body)
    expect(response.status).toBe(200)
    expect(response.headers.get('x-governor-recovered')).toBe('clamp_output_only')
    expect(response.headers.get('x-governor-overflow')).toBeNull()
    expect(provider.requests.length).toBe(2)
    expect(provider.requests[1]?.json).toEqual({ ...provider.requests[0]?.json, ...sent })
    expect(events).toContainEqual({ kind: 'recovered', recovery: 'clamp_output_only', outcome: 'answered' })
  })

  it('is lowered in a streaming request as well', async () => {
    const { url } = await startBoth(once(BOUND))
    const response = await ask(url, { max_tokens: 9000, stream: true })
    expect(response.headers.get('x-governor-recovered')).toBe('clamp_output_only')
    expect(await response.text()).toContain('done')
  })

  it('uses up only one iteration', async () => {
    const { url } = await startBoth(once(BOUND))
    const headers = { 'x-governor-session': 's' }
    expect((await ask(url, { max_tokens: 9000 }, headers)).headers.get('x-governor-iteration')).toMatch(/^1\//)
    const next = {
      max_tokens: 9000,
      messages: [HUMAN, { role: 'assistant', content: 'done' }, { role: 'user', content: 'more' }],
    }
    expect((await ask(url, next, headers)).headers.get('x-governor-iteration')).toMatch(/^1\//)
  })

  it('is lowered in Messages together with its thinking budget', async () => {
    const { url, provider } = await startBoth((_, number) =>
      number === 1
        ? {
            status: 400,
            body: {
              type: 'error',
              error: {
                type: 'invalid_request_error',
                message: 'max_tokens: 64000 > 8192, which is the maximum allowed number of output tokens',
              },
            },
          }
        : { text: 'done' },
    )
    const body = {
      max_tokens: 64_000,
      thinking: { type: 'enabled', budget_tokens: 32_000 },
      tools: undefined,
    }
    const response = await ask(url, body, { 'anthropic-version': '2023-06-01' }, '/v1/messages')
    expect(response.status).toBe(200)
    expect(provider.requests[1]?.json).toMatchObject({
      max_tokens: 8192,
      thinking: { type: 'enabled', budget_tokens: 6553 },
    })
  })

  it('reaches the client as the first refusal when the lowered cap is refused too', async () => {
    const { url, provider, events } = await startBoth((_, number) =>
      number === 1 ? BOUND : refusal('something else', 500),
    )
    const response = await ask(url, { max_tokens: 9000 })
    expect(response.status).toBe(400)
    expect(response.headers.get('x-governor-overflow')).toBe('clamp_output_only')
    expect(response.headers.get('x-governor-recovered')).toBeNull()
    expect(await response.json()).toMatchObject({ error: { governor: { max_output: 4096 } } })
    expect(provider.requests.length).toBe(2)
    expect(events).toContainEqual({ kind: 'recovered', recovery: 'clamp_output_only', outcome: 'refused' })
  })

  it.each<[string, { [key: string]: unknown }, object]>([
    ['the configuration says so', { overflow: { clamp_output_only: 'annotate' } }, { max_tokens: 9000 }],
    ['the client asked for no number', {}, {}],
    ['it would not be lowered', {}, { max_tokens: 4096 }],
  ])('is only annotated when %s', async (_, config, body) => {
    const { url, provider } = await startBoth(once(BOUND), config)
    const response = await ask(url, body)
    expect(response.headers.get('x-governor-overflow')).toBe('clamp_output_only')
    expect(provider.requests.length).toBe(1)
  })
})

describe('a long context that the plan does not include', () => {
  const TIER: Answer = {
    status: 400,
    body: {
      type: 'error',
      error: {
        type: 'invalid_request_error',
        message: 'The long context beta is not yet available for this subscription.',
      },
    },
  }
  const headers = {
    'anthropic-version': '2023-06-01',
    'anthropic-beta': 'tools-2024-04-04, context-1m-2025-08-07',
  }
  const body = { max_tokens: 100, tools: undefined }

  it('is requested again without its beta header, but with the other betas', async () => {
    const { url, provider } = await startBoth(once(TIER))
    const response = await ask(url, body, headers, '/v1/messages')
    expect(response.status).toBe(200)
    expect(response.headers.get('x-governor-recovered')).toBe('tier_downgrade')
    expect(provider.requests.map((request) => request.header('anthropic-beta'))).toEqual([
      'tools-2024-04-04, context-1m-2025-08-07',
      'tools-2024-04-04',
    ])
    expect(provider.requests[1]?.body.equals(provider.requests[0]?.body ?? Buffer.alloc(0))).toBe(true)
  })

  it.each<[string, { [key: string]: unknown }, object, Record<string, string>]>([
    ['the configuration says so', { overflow: { tier_downgrade: 'annotate' } }, body, headers],
    ['no beta asked for it', {}, body, { 'anthropic-version': '2023-06-01' }],
    ['the request needs it', {}, { ...body, messages: [{ role: 'user', content: 'word '.repeat(200_000) }] }, headers],
  ])('is only annotated when %s', async (_, config, asked, sent) => {
    const { url, provider } = await startBoth(once(TIER), config)
    const response = await ask(url, asked, sent, '/v1/messages')
    expect(response.headers.get('x-governor-overflow')).toBe('tier_downgrade')
    expect(provider.requests.length).toBe(1)
  })
})
