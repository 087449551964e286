/** Models in a loop over Responses, at a provider that keeps the conversation and requires a result for each call. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { createFrameReader, dataOf } from '../../src/sse/frames.ts'
import { startBoth } from '../support/governor.ts'
import type { Answer } from '../support/provider.ts'
import { type Item, TOOL } from '../support/responses-agent.ts'

const CALLS = ['the same', 'the same', 'the same', 'another']

/** What the model says next: mostly the same call, alone or beside others, with some words or without. */
const answer: fc.Arbitrary<Answer> = fc.record(
  {
    text: fc.constant('Let me see. '),
    calls: fc.array(
      fc.constantFrom(...CALLS).map((query) => ({ name: 'search', arguments: { query } })),
      { minLength: 1, maxLength: 3 },
    ),
  },
  { requiredKeys: ['calls'] },
)

/** Sends a request; returns the ids by which the response can be continued, and its calls. */
async function ask(url: string, body: Item) {
  const reply = await fetch(`${url}/v1/responses`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({ model: 'm', tools: [TOOL], stream: true, ...body }),
  })
  const bytes = Buffer.from(await reply.arrayBuffer())
  if (reply.status !== 200) throw new Error(bytes.toString())
  const reader = createFrameReader()
  const frames = [...reader.push(bytes), ...reader.end()]
  const events = frames.map((frame) => JSON.parse(dataOf(frame) ?? 'null') as Item)
  const [first, last] = [events.at(0), events.at(-1)].map((event) => event?.['response'] as Item)
  const output = (last?.['output'] ?? []) as Item[]
  return {
    ids: [first?.['id'], last?.['id']],
    calls: output.filter(({ type }) => type === 'function_call'),
  }
}

describe('a conversation that its provider keeps', () => {
  it('continues from the first or the last id of a stream, whichever calls were blocked in it', async () => {
    await fc.assert(
      fc.asyncProperty(
        fc.array(answer, { minLength: 8, maxLength: 8 }),
        fc.array(fc.nat(1), { minLength: 3, maxLength: 3 }),
        async (answers, choices) => {
          const { url, governor, provider } = await startBoth(({ json }, number) =>
            json.tool_choice === 'none' || !json.tools
              ? { text: 'That is all.' }
              : (answers[number % answers.length] ?? {}),
          )
          let body: Item = { input: 'Go.' }
          for (let step = 0; step < 16; step++) {
            const { ids, calls } = await ask(url, body)
            const output = (call: Item) => ({
              type: 'function_call_output',
              call_id: call['call_id'],
              output: 'found',
            })
            const input = calls.length > 0 ? calls.map(output) : 'Go on.'
            body = { input, previous_response_id: ids[choices[step % choices.length] ?? 0] }
          }
          expect(provider.requests.length).toBeGreaterThanOrEqual(16)
          await governor.close()
          await provider.close()
        },
      ),
      { numRuns: 30 },
    )
  })
})
