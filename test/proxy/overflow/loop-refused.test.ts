import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { DIALECTS } from '../../../src/dialect/index.ts'
import { applyEdits } from '../../../src/json/edit.ts'
import { runAgent, START } from '../../support/agent.ts'
import { startBoth } from '../../support/governor.ts'
import { ASKED, runMessagesAgent } from '../../support/messages.ts'
import type { Script } from '../../support/provider.ts'
import { runResponses } from '../../support/responses-agent.ts'

interface Made {
  readonly tool: string
  readonly isAsked?: boolean
}

/** Writes a history of one call after the other, some after a word of the user, as each API has it. */
const HISTORIES: Readonly<Record<string, (made: readonly Made[]) => object>> = {
  chat: (made) => ({
    messages: made.flatMap(({ tool, isAsked }, at) => [
      ...(isAsked ? [{ role: 'user', content: `Go ${at}.` }] : []),
      {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: `c${at}`, type: 'function', function: { name: tool, arguments: '{}' } }],
      },
      { role: 'tool', tool_call_id: `c${at}`, content: `result ${at}` },
    ]),
  }),
  messages: (made) => ({
    messages: made.flatMap(({ tool, isAsked }, at) => [
      ...(isAsked ? [{ role: 'user', content: `Go ${at}.` }] : []),
      { role: 'assistant', content: [{ type: 'tool_use', id: `c${at}`, name: tool, input: {} }] },
      { role: 'user', content: [{ type: 'tool_result', tool_use_id: `c${at}`, content: `result ${at}` }] },
    ]),
  }),
  responses: (made) => ({
    input: made.flatMap(({ tool, isAsked }, at) => [
      ...(isAsked ? [{ role: 'user', content: `Go ${at}.` }] : []),
      { type: 'reasoning', id: `rs${at}`, summary: [] },
      { type: 'function_call', call_id: `c${at}`, name: tool, arguments: '{}' },
      { type: 'function_call_output', call_id: `c${at}`, output: `result ${at}` },
    ]),
  }),
  gemini: (made) => ({
    contents: made.flatMap(({ tool, isAsked }, at) => [
      ...(isAsked ? [{ role: 'user', parts: [{ text: `Go ${at}.` }] }] : []),
      { role: 'model', parts: [{ functionCall: { id: `c${at}`, name: tool, args: {} } }] },
      {
        role: 'user',
        parts: [{ functionResponse: { id: `c${at}`, name: tool, response: { output: `result ${at}` } } }],
      },
    ]),
  }),
}

/** The APIs in whose results the count stands beside the result and not in its place. */
const BESIDE = new Set(['messages', 'gemini'])

describe.each(DIALECTS)('a history of $name whose repeated calls are collapsed', (dialect) => {
  it('keeps the newest of equal calls since the user spoke, with its result and their count, and all else', () => {
    const made = fc.array(fc.record({ tool: fc.constantFrom('a', 'b', 'c'), isAsked: fc.boolean() }), {
      maxLength: 12,
    })
    fc.assert(
      fc.property(made, (calls) => {
        const body = Buffer.from(JSON.stringify({ model: 'm', ...HISTORIES[dialect.name]?.(calls) }))
        const edits = dialect.read({ path: '', body })?.collapseRepeats() ?? []
        const after = applyEdits(body, edits).toString()
        const { conversation } = dialect.read({ path: '', body: Buffer.from(after) }) ?? {}
        if (!conversation) throw new Error('not readable')
        const run = (at: number) => calls.slice(0, at + 1).filter(({ isAsked }) => isAsked).length
        const equal = calls.map(({ tool }, at) =>
          calls.flatMap((other, place) => (other.tool === tool && run(place) === run(at) ? [place] : [])),
        )
        const kept = calls.flatMap((_, at) => (equal[at]?.at(-1) === at ? [at] : []))
        const found = Array.from({ length: conversation.length }, (_, at) => at)
        expect(found.flatMap((at) => conversation.calls(at).map(({ id }) => id))).toEqual(kept.map((at) => `c${at}`))
        expect(found.flatMap((at) => conversation.results(at).map(({ callId }) => callId))).toEqual(
          kept.map((at) => `c${at}`),
        )
        for (const at of kept)
          expect(after.includes(`result ${at}"`)).toBe(equal[at]?.length === 1 || BESIDE.has(dialect.name))
        const counts = kept.flatMap((at) => ((equal[at]?.length ?? 0) > 1 ? [`made ${equal[at]?.length} times`] : []))
        expect(after.match(/made \d+ times/g) ?? []).toEqual(counts)
        expect(after.match(/Go \d+\./g) ?? []).toEqual(
          calls.flatMap(({ isAsked }, at) => (isAsked ? [`Go ${at}.`] : [])),
        )
      }),
    )
  })
})

const ERROR = {
  error: { message: 'Repetitive tool calls detected in the conversation history', type: 'invalid' },
}

/** A model that makes one call for ever, on a provider that refuses three equal calls in a history. */
function refusing(status: number): Script {
  return ({ body, json }) => {
    const repeats = body.toString().split('the same').length - 1
    if (repeats >= 3) return { status, body: ERROR }
    return json.tool_choice ? { text: 'I stop.' } : { calls: [{ name: 'search', arguments: { query: 'the same' } }] }
  }
}

const AGENTS = {
  chat: async (url: string, stream: boolean) => (await runAgent(url, START, { stream, max: 6 })).steps,
  messages: async (url: string, stream: boolean) => (await runMessagesAgent(url, ASKED, { stream, max: 6 })).steps,
  responses: async (url: string, stream: boolean) => (await runResponses(url, 'Go.', { stream, max: 6 })).steps,
}
const ways = (Object.keys(AGENTS) as (keyof typeof AGENTS)[]).flatMap((api) =>
  [400, 500].flatMap((status) => [false, true].map((stream) => ({ api, status, stream }))),
)

describe.each(ways)(
  'a $status of a provider for repeated calls over $api (stream: $stream)',
  ({ api, status, stream }) => {
    it('is answered by one more request with the repeats collapsed, and the agent goes on', async () => {
      const { url, provider, events } = await startBoth(refusing(status), { loop_guard: { mode: 'observe' } })
      const steps = await AGENTS[api](url, stream)
      expect(steps.map((step) => step.status)).toEqual(Array(6).fill(200))
      const recovered = steps.map(({ headers }) => headers.get('x-governor-recovered'))
      expect(recovered).toEqual([null, null, null, 'collapse', 'collapse', 'collapse'])
      expect(provider.requests).toHaveLength(9)
      expect(provider.requests.at(-1)?.body.toString()).toContain('(This call was made 5 times.')
      expect(events.filter(({ kind }) => kind === 'alteration_refused')).toEqual([])
      expect(events.filter(({ kind }) => kind === 'recovered')).toHaveLength(3)
    })
  },
)

it('a refusal of repeated calls reaches the client with its meaning if the collapsed copy is refused too', async () => {
  let hasRepeats = false
  const { url, provider } = await startBoth(({ json }) => {
    hasRepeats ||= json.messages.length > 4
    return hasRepeats ? { status: 400, body: ERROR } : { calls: [{ name: 'search', arguments: {} }] }
  })
  const { steps } = await runAgent(url, START, { max: 3 })
  expect(steps.at(-1)?.status).toBe(400)
  expect(steps.at(-1)?.headers.get('x-governor-overflow')).toBe('loop_refused')
  expect(steps.at(-1)?.headers.get('x-governor-recovered')).toBeNull()
  expect(provider.requests).toHaveLength(4)
})
