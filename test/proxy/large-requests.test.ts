/** Large requests of healthy agents: each counts, whatever it is made of, and others have their turn meanwhile. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import { serve } from '../support/provider.ts'
import { countSteps } from '../support/steps.ts'

type Json = Record<string, unknown>
type Part = { readonly text: string } | { readonly picture: string } | { readonly nested: unknown }
interface Call {
  readonly id: string
  readonly args: string
}
/** What a conversation is made of, whatever the API. */
interface Shape {
  readonly system?: readonly Part[]
  readonly asked: readonly Part[]
  readonly callsOf?: (step: number) => readonly Call[]
  readonly resultOf?: (step: number) => readonly Part[]
}

const many = <T>(count: number, make: (at: number) => T) => Array.from({ length: count }, (_, at) => make(at))
const nested = (depth: number): unknown => JSON.parse(`${'['.repeat(depth)}${']'.repeat(depth)}`)
const oneCall = (step: number) => [{ id: `c${step}`, args: JSON.stringify({ step }) }]
const text = (length: number, at: number | string = ''): Part => ({ text: `${at}${'a'.repeat(length)}` })
const picture = (length: number, at: number): Part => ({ picture: `${at}${'A'.repeat(length)}` })

const SHAPES: Readonly<Record<string, Shape>> = {
  '60 pictures of 90 KB': { asked: [text(10), ...many(60, (at) => picture(90_000, at))] },
  '50 texts of 100 KB': { asked: many(50, (at) => text(100_000, at)) },
  'a text of 6 MB': { asked: [text(6_000_000)] },
  '20,000 small parts': { asked: many(20_000, (at) => text(5, at)) },
  '90,000 small parts': { asked: many(90_000, (at) => text(5, at)) },
  'a system text of 50 parts of 100 KB': { system: many(50, (at) => text(100_000, at)), asked: [text(10)] },
  'lists in lists': { asked: [text(10), { nested: nested(500) }, { nested: many(50_000, () => nested(3)) }] },
  '3,000 calls in one turn': {
    asked: [text(10)],
    callsOf: (step) => many(3_000, (at) => ({ id: `c${step}_${at}`, args: JSON.stringify({ step, at }) })),
  },
  'calls of 50 KB': {
    asked: [text(10)],
    callsOf: (step) => many(60, (at) => ({ id: `c${step}_${at}`, args: JSON.stringify({ a: 'b'.repeat(50_000) }) })),
  },
  'results with 60 pictures of 90 KB': {
    asked: [text(10)],
    resultOf: (step) => [text(10, step), ...many(60, (at) => picture(90_000, at))],
  },
  'results with 60 texts of 100 KB': {
    asked: [text(10)],
    resultOf: (step) => many(60, (at) => text(100_000, step * at)),
  },
}

const textOf = (parts: readonly Part[]) => parts.map((part) => ('text' in part ? part.text : '')).join('')
const RESULT: readonly Part[] = [{ text: 'ok' }]

const partWith = (type: string, pictureOf: (data: string) => Json) => (part: Part) =>
  'text' in part ? { type, text: part.text } : 'picture' in part ? pictureOf(part.picture) : { type, text: part.nested }
const chatPart = partWith('text', (data) => ({
  type: 'image_url',
  image_url: { url: `data:image/png;base64,${data}` },
}))
const blockOf = partWith('text', (data) => ({
  type: 'image',
  source: { type: 'base64', media_type: 'image/png', data },
}))
const itemPart = partWith('input_text', (data) => ({
  type: 'input_image',
  image_url: `data:image/png;base64,${data}`,
}))

/** The request before step `steps`, counted from 0, in each API. */
const REQUESTS: Readonly<Record<string, { path: string; bodyOf: (shape: Shape, steps: number) => Json }>> = {
  chat: {
    path: '/v1/chat/completions',
    bodyOf: ({ system, asked, callsOf = oneCall, resultOf = () => RESULT }, steps) => ({
      model: 'm',
      tools: [{ type: 'function', function: { name: 'f', parameters: {} } }],
      messages: [
        ...(system ? [{ role: 'system', content: system.map(chatPart) }] : []),
        { role: 'user', content: asked.map(chatPart) },
        ...many(steps, (step) => [
          {
            role: 'assistant',
            content: null,
            tool_calls: callsOf(step).map(({ id, args }) => ({
              id,
              type: 'function',
              function: { name: 'f', arguments: args },
            })),
          },
          ...callsOf(step).map(({ id }) => ({
            role: 'tool',
            tool_call_id: id,
            content: resultOf(step).map(chatPart),
          })),
        ]).flat(),
      ],
    }),
  },
  messages: {
    path: '/v1/messages',
    bodyOf: ({ system, asked, callsOf = oneCall, resultOf = () => RESULT }, steps) => ({
      model: 'm',
      max_tokens: 9,
      tools: [{ name: 'f', input_schema: {} }],
      ...(system ? { system: system.map(blockOf) } : {}),
      messages: [
        { role: 'user', content: asked.map(blockOf) },
        ...many(steps, (step) => [
          {
            role: 'assistant',
            content: callsOf(step).map(({ id, args }) => ({
              type: 'tool_use',
              id,
              name: 'f',
              input: JSON.parse(args),
            })),
          },
          {
            role: 'user',
            content: callsOf(step).map(({ id }) => ({
              type: 'tool_result',
              tool_use_id: id,
              content: resultOf(step).map(blockOf),
            })),
          },
        ]).flat(),
      ],
    }),
  },
  responses: {
    path: '/v1/responses',
    bodyOf: ({ system, asked, callsOf = oneCall, resultOf = () => RESULT }, steps) => ({
      model: 'm',
      store: false,
      tools: [{ type: 'function', name: 'f', parameters: {} }],
      input: [
        ...(system ? [{ role: 'developer', content: system.map(itemPart) }] : []),
        { role: 'user', content: asked.map(itemPart) },
        ...many(steps, (step) => [
          ...callsOf(step).map(({ id, args }) => ({
            type: 'function_call',
            call_id: id,
            name: 'f',
            arguments: args,
          })),
          ...callsOf(step).map(({ id }) => ({
            type: 'function_call_output',
            call_id: id,
            output: resultOf(step).every((part) => 'text' in part)
              ? textOf(resultOf(step))
              : resultOf(step).map(itemPart),
          })),
        ]).flat(),
      ],
    }),
  },
}

const CASES = Object.entries(REQUESTS).flatMap(([api, { path, bodyOf }]) =>
  Object.entries(SHAPES).map(([name, shape]) => ({ api, path, bodyOf, name, shape })),
)

/** Steps of 50 nanoseconds: 25 milliseconds. */
const MOST_IN_ONE_GO = 500_000

describe('a large request of a healthy agent', () => {
  it.each(CASES)('counts and is stopped at its limit: $name in $api', async ({ path, bodyOf, shape }) => {
    const provider = await serve((request, response) => {
      request.resume().once('end', () => response.writeHead(200, { 'content-type': 'application/json' }).end('{}'))
    })
    onTestFinished(() => provider.close())
    const most = countSteps()
    const { url } = await startGovernor(provider.url, { budget: { max_iterations: 2, adaptive: false } })
    const told: (string | null)[] = []
    // The second iteration, as its transcript shows one, and the one after the limit.
    for (const steps of [1, 2]) {
      const body = JSON.stringify(bodyOf(shape, steps))
      const response = await fetch(url + path, {
        method: 'POST',
        headers: { 'x-governor-session': 'one' },
        body,
      })
      await response.arrayBuffer()
      told.push(response.headers.get('x-governor-iteration'))
      if (steps === 2) expect(response.headers.get('x-governor-verdict')).toBe('stop')
    }
    expect(told).toEqual(['2/2', '2/2'])
    expect(most()).toBeLessThan(MOST_IN_ONE_GO)
  })
})
