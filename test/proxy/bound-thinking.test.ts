import { hash } from 'node:crypto'
import { gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import {
  ASKED,
  type Block,
  callMessages,
  type Message,
  runawayMessages,
  runMessagesAgent,
} from '../support/messages.ts'
import type { Answer, ChatBody, Received, Script } from '../support/provider.ts'

const BETA = 'thinking-binding-controls-2026-08-01'
const REFUSED =
  'messages.3.content.0: Invalid `signature` in `thinking` block. The block is bound to a different conversation. Remove the block, or set `thinking.block_binding.prefix_mismatch_behavior` to "drop_block".'

/** The content to which a reasoning block is bound: everything before its message. */
function bindingOf({ system, tools, messages }: ChatBody, count: number): string {
  return hash('sha256', JSON.stringify([system, tools, messages.slice(0, count)]))
}

function isForeign(request: ChatBody): boolean {
  return (request.messages as readonly Message[]).some(
    ({ content }, at) =>
      typeof content !== 'string' &&
      content.some((block) => block.type === 'thinking' && block['signature'] !== bindingOf(request, at)),
  )
}

function leavesOut({ json, header }: Received): boolean {
  const thinking = json['thinking'] as { block_binding?: { prefix_mismatch_behavior?: string } } | undefined
  return (
    thinking?.block_binding?.prefix_mismatch_behavior === 'drop_block' &&
    header('anthropic-beta')?.split(',').includes(BETA) === true
  )
}

/** A model whose reasoning is bound to the prompt it was made for, and which refuses it in any other. */
function binding(script: Script, refusal: Partial<Answer> = {}): Script {
  return async (request, number) => {
    if (isForeign(request.json) && !leavesOut(request)) {
      const error = { type: 'invalid_request_error', message: REFUSED }
      return { status: 400, body: { type: 'error', error }, ...refusal }
    }
    const answer = await script(request, number)
    const signature = bindingOf(request.json, request.json.messages.length)
    return { ...answer, blocks: [{ type: 'thinking', thinking: 'Hm.', signature }] }
  }
}

const budget = { max_iterations: 6, adaptive: false, caution_threshold: 0.5 }
const thinkingIn = ({ json }: Received) =>
  (json.messages as readonly { content: string | readonly Block[] }[]).flatMap(({ content }) =>
    typeof content === 'string' ? [] : content.filter(({ type }) => type === 'thinking'),
  )

describe.each([{ stream: false }, { stream: true }])(
  'reasoning that is bound to its prompt (stream: $stream)',
  ({ stream }) => {
    it('does not prevent notices or the final answer of a run', async () => {
      const { url, provider } = await startBoth(binding(runawayMessages()), { budget })
      const { steps } = await runMessagesAgent(url, ASKED, { stream, max: 20 })
      expect(steps.map(({ status }) => status)).toEqual(Array(7).fill(200))
      expect(steps.at(-1)?.text).toBe('This is what I found so far.')
      expect(steps.at(-1)?.governor).toMatchObject({ has_final_answer: true })
      // The first notice is in request 3; request 4 is refused once, because its history does not contain the notice.
      expect(provider.requests).toHaveLength(8)
      expect(steps.map(({ headers }) => headers.get('x-governor-recovered'))).toEqual([
        null,
        null,
        null,
        'thinking',
        null,
        null,
        null,
      ])
      expect(provider.requests.slice(5).every(leavesOut)).toBe(true)
      expect(provider.requests.every((request, at) => thinkingIn(request).length <= at)).toBe(true)
    })

    it('does not prevent the final answer of a run that got a notice at its last step', async () => {
      const { url } = await startBoth(binding(runawayMessages()), {
        budget: { max_iterations: 2, adaptive: false, caution_threshold: 1, warning_threshold: 1 },
      })
      const { steps } = await runMessagesAgent(url, ASKED, { stream, max: 20 })
      expect(steps).toHaveLength(3)
      expect(steps.at(-1)).toMatchObject({ status: 200, text: 'This is what I found so far.' })
      expect(steps.at(-1)?.governor).toMatchObject({ has_final_answer: true })
    })

    it('works in the next run as well', async () => {
      const { url } = await startBoth(binding(runawayMessages()), { budget })
      const { messages } = await runMessagesAgent(url, ASKED, { stream, max: 20 })
      const next = await callMessages(url, [...messages, { role: 'user', content: 'And now?' }], { stream })
      expect(next.status).toBe(200)
      expect(next.headers.get('x-governor-iteration')).toBe('1/6')
    })

    it('is dropped after calls were blocked', async () => {
      const same = { calls: [{ name: 'search', arguments: { query: 'the same' } }] }
      let told = 0
      const { url } = await startBoth(
        binding(({ json }) => {
          if (!JSON.stringify(json.messages).includes('[LOOP GUARD] Blocked'))
            return told > 0 ? { text: 'Done.' } : same
          told++
          return { calls: [{ name: 'search', arguments: { query: 'new' } }] }
        }),
      )
      const { steps } = await runMessagesAgent(url, ASKED, { stream, max: 20 })
      expect(steps.every(({ status }) => status === 200)).toBe(true)
      expect(steps.at(-1)?.text).toBe('Done.')
    })
  },
)

describe('an error about bound thinking', () => {
  it('is read in any content coding', async () => {
    const error = { type: 'error', error: { type: 'invalid_request_error', message: REFUSED } }
    const headers = { 'content-encoding': 'gzip' }
    const { url } = await startBoth(binding(runawayMessages(), { body: gzipSync(JSON.stringify(error)), headers }), {
      budget,
    })
    const { steps } = await runMessagesAgent(url, ASKED, { max: 20 })
    expect(steps.at(-1)?.text).toBe('This is what I found so far.')
  })

  it('reaches the client if Governor has injected nothing', async () => {
    const { url, provider } = await startBoth(binding(runawayMessages()))
    const { messages } = await runMessagesAgent(url, ASKED, { max: 3 })
    const changed = await callMessages(url, [{ role: 'user', content: 'Another beginning.' }, ...messages.slice(1)])
    expect(changed.status).toBe(400)
    expect(changed.body).toContain('bound to a different conversation')
    expect(provider.requests).toHaveLength(4)
  })

  it.each([
    [
      'says itself what becomes of it',
      { thinking: { type: 'adaptive', block_binding: { prefix_mismatch_behavior: 'error' } } },
    ],
    ['does not think', { thinking: { type: 'disabled' } }],
  ])('reaches a client that %s', async (_, body) => {
    const { url } = await startBoth(binding(runawayMessages()), { budget })
    const { steps } = await runMessagesAgent(url, ASKED, { max: 5, body })
    expect(steps.at(-1)?.status).toBe(400)
  })

  it('is not mistaken for another error of status 400', async () => {
    const error = {
      type: 'error',
      error: { type: 'invalid_request_error', message: 'messages: text content blocks must be non-empty' },
    }
    const { url, provider } = await startBoth(
      ({ json }, number) =>
        json.messages.length > 6
          ? { status: 400, body: error }
          : (runawayMessages()({ json } as never, number) as Answer),
      { budget },
    )
    const { steps } = await runMessagesAgent(url, ASKED, { max: 4 })
    expect(steps.at(-1)?.status).toBe(400)
    expect(JSON.parse(steps.at(-1)?.body ?? '')).toEqual(error)
    // The one with a notice, and the client's own.
    expect(provider.requests).toHaveLength(5)
  })
})
