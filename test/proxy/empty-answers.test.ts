/** Agents whose model says nothing and calls nothing, and which ask again with its answer at the end of the history. */
import { describe, expect, it } from 'vitest'
import { WHOLE } from '../support/gemini.ts'
import { startBoth } from '../support/governor.ts'
import type { Answer } from '../support/provider.ts'

type Json = Record<string, unknown>

interface Api {
  readonly path: string
  readonly thinks: Answer
  /** The request for a history after the user's question. */
  body(history: readonly unknown[]): Json
  /** What a client keeps of a response. */
  kept(response: Json): readonly unknown[]
}

const tool = { name: 'search', description: 'Search' }
const question = { role: 'user', content: 'Find it.' }

const APIS: readonly (readonly [string, Api])[] = [
  [
    'Chat Completions',
    {
      path: '/v1/chat/completions',
      thinks: { text: '' },
      body: (history) => ({
        model: 'm',
        messages: [question, ...history],
        tools: [{ type: 'function', function: tool }],
      }),
      kept: ({ choices }) => (choices as { message: unknown }[]).map(({ message }) => message),
    },
  ],
  [
    'Messages',
    {
      path: '/v1/messages',
      thinks: { blocks: [{ type: 'thinking', thinking: 'Hm.', signature: 's' }] },
      body: (history) => ({
        model: 'm',
        max_tokens: 9,
        messages: [question, ...history],
        tools: [{ ...tool, input_schema: { type: 'object' } }],
      }),
      kept: ({ role, content }) => [{ role, content }],
    },
  ],
  [
    'Responses',
    {
      path: '/v1/responses',
      thinks: { reasoning: 'hm', text: '' },
      body: (history) => ({
        model: 'm',
        store: false,
        input: [question, ...history],
        tools: [{ type: 'function', ...tool }],
      }),
      kept: ({ output }) => output as unknown[],
    },
  ],
  [
    'Gemini',
    {
      path: WHOLE,
      thinks: { blocks: [{ text: 'Hm.', thought: true }] },
      body: (history) => ({
        contents: [{ role: 'user', parts: [{ text: 'Find it.' }] }, ...history],
        tools: [{ functionDeclarations: [tool] }],
      }),
      kept: ({ candidates }) => (candidates as { content: unknown }[]).map(({ content }) => content),
    },
  ],
]

describe.each(APIS)('an agent over %s whose model only thinks', (_, { path, thinks, body, kept }) => {
  it.each([
    ['with', { 'x-governor-session': 'mine' }],
    ['without', {}],
  ])('is counted %s a session id, and ended at its limit', async (_, session) => {
    const { url } = await startBoth(() => thinks, { budget: { max_iterations: 6 } })
    const iterations: (string | null)[] = []
    let reason: string | null = null
    let history: readonly unknown[] = []
    while (iterations.length < 9 && reason === null) {
      const headers = { 'content-type': 'application/json', authorization: 'Bearer k', ...session }
      const response = await fetch(`${url}${path}`, { method: 'POST', headers, body: JSON.stringify(body(history)) })
      expect(response.status).toBe(200)
      iterations.push(response.headers.get('x-governor-iteration'))
      reason = response.headers.get('x-governor-terminal-reason')
      history = [...history, ...kept((await response.json()) as Json)]
    }
    expect(iterations).toEqual(['1/6', '2/6', '3/6', '4/6', '5/6', '6/6', '6/6'])
    expect(reason).toBe('max_iterations')
  })
})
