import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { responses } from '../../../src/dialect/responses/index.ts'
import { searchStream } from '../../../src/usage/relayed-calls.ts'
import { startBoth } from '../../support/governor.ts'
import { runaway, type ScriptedCall } from '../../support/provider.ts'
import { type Item, responseEvents, responseObject } from '../../support/responses.ts'
import { runResponses } from '../../support/responses-agent.ts'

const WORDS = ['response.completed', 'response.failed', 'response.incomplete', 'response.done', 'error', 'type']

/** What a tool of a client may say, and so what the events of its responses say again. */
const schema = fc.letrec((tie) => ({
  value: fc.oneof(
    { maxDepth: 3, withCrossShrink: true },
    fc.constantFrom<unknown>(...WORDS, null, 1, `data: {"type":"error"}\n\n`),
    fc.array(tie('value'), { maxLength: 2 }),
    fc.dictionary(fc.constantFrom('error', 'enum', 'properties', 'const'), tie('value'), { maxKeys: 3 }),
  ),
})).value

/** How a server writes its events. */
const form = fc.record({
  /** Where the type of an event stands. */
  type: fc.constantFrom('first', 'second', 'last', 'before the last', 'between'),
  isNamed: fc.boolean(),
  space: fc.constantFrom('', ' '),
  end: fc.constantFrom('\n', '\r\n', '\r'),
})

type Form = typeof form extends fc.Arbitrary<infer Value> ? Value : never

function written({ type, ...event }: Item, number: number, of: Form): string {
  const numbered = { sequence_number: number }
  const ordered = {
    first: { type, ...numbered, ...event },
    second: { ...numbered, type, ...event },
    last: { ...event, ...numbered, type },
    'before the last': { ...event, type, ...numbered },
    between: { ...numbered, ...event, type, usage: { costs: [{ type: 'tokens' }] } },
  }[of.type]
  const name = of.isNamed ? `event: ${String(type)}${of.end}` : ''
  return `${name}data:${of.space}${JSON.stringify(ordered)}${of.end}${of.end}`
}

const CALLS: readonly ScriptedCall[] = [{ name: 'search', arguments: { error: { type: 'error' } } }]

describe('the end of a stream of Responses', () => {
  it('is found where its last event comes, and not in what events repeat, however they are written and cut', () => {
    const kinds = fc.constantFrom('completed', 'incomplete', 'failed', 'error')
    const small = fc.record({ size: fc.integer({ min: 1, max: 4_000 }), padding: fc.constant(0) })
    const large = fc.record({ size: fc.integer({ min: 2_000, max: 9_000 }), padding: fc.constant(150_000) })
    const sizes = fc.oneof({ arbitrary: small, weight: 5 }, large)
    fc.assert(
      fc.property(schema, form, kinds, fc.boolean(), sizes, (tool, of, kind, calls, { size, padding }) => {
        const answer = { text: 'response.completed', ...(calls ? { calls: CALLS } : {}) }
        const tools = [tool, 'x'.repeat(padding)]
        const asked = { model: 'm', messages: [], tools, metadata: { a: 'response.completed' } }
        const whole = responseObject(asked, { ...answer, finish: kind === 'error' ? 'completed' : kind }, 1)
        const events = responseEvents(kind === 'failed' ? { ...whole, error: { code: 'server_error' } } : whole)
        if (kind === 'error') events.splice(-1, 1, { type: 'error', code: 'server_error', message: 'no' })
        const texts = events.map((event, number) => written(event, number, of))
        const body = Buffer.from(texts.join(''))
        const last = body.length - Buffer.byteLength(texts.at(-1) ?? '')
        const search = searchStream(responses)
        const ends: [number, unknown][] = []
        for (let at = 0; at < body.length; at += size) {
          const end = search?.push(body.subarray(at, at + size))
          if (end) ends.push([at + size, end])
        }
        expect(new Set(ends.map(([, end]) => end))).toEqual(
          new Set([/^(?:failed|error)$/.test(kind) ? 'failed' : 'whole']),
        )
        expect(ends[0]?.[0]).toBeGreaterThan(last)
        expect(search?.callIds).toEqual(calls ? ['call_1_0'] : [])
        const response = { head: body, tail: body, whole: body, streams: true, withCalls: true }
        expect(responses.callsNothing(response)).toBe(kind === 'completed' && !calls)
        const cut = { ...response, tail: body.subarray(-65_536) }
        const isTypeKept = padding === 0 || !/^(?:first|second)$/.test(of.type)
        expect(responses.isPending?.(isTypeKept ? cut : response)).toBe(kind === 'error')
      }),
      { numRuns: 300 },
    )
  })

  it.each([{ error: { type: 'object' } }, { state: { enum: ['response.failed', 'response.completed'] } }])(
    'counts each iteration where a tool has the parameters %j',
    async (properties) => {
      const { url } = await startBoth(runaway(), { budget: { max_iterations: 3 } })
      const tools = [{ type: 'function', name: 'search', parameters: { type: 'object', properties } }]
      const { steps } = await runResponses(url, 'Go.', { stateful: true, stream: true, body: { tools }, max: 9 })
      expect(steps.at(-1)?.response['governor']).toMatchObject({ terminal_reason: 'max_iterations' })
      expect(steps).toHaveLength(4)
    },
  )
})
