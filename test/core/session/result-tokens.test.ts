/** What results of tools take of the input of requests, over every API and every shape of history. */
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { joinByName, type Named, toolLabel, withAmounts } from '../../../src/core/by-name.ts'
import type { Conversation } from '../../../src/core/conversation/conversation.ts'
import { advance, EMPTY_TRANSCRIPT } from '../../../src/core/conversation/transcript.ts'
import { add, type Counts } from '../../../src/core/counters.ts'
import { buildRegistry } from '../../../src/core/harness/match.ts'
import { mergeSessions } from '../../../src/core/session/merge.ts'
import { addedTokens, countsByTool, promptBytesOf, resultTokens } from '../../../src/core/session/result-tokens.ts'
import { NEW_SESSION, type RunState, type ThreadContext, withAnswer } from '../../../src/core/session/session.ts'
import { DIALECTS } from '../../../src/dialect/index.ts'
import { detailOf } from '../../../src/ops/sessions/view.ts'
import { sessionKey } from '../../../src/store/store.ts'
import { called, conversationOf, requestFacts, requestOf, result, runWith, threadWith, user } from '../transcript.ts'

/** One step of an agent: its calls, by tool, with their results. */
type Step = readonly { readonly tool: string; readonly result: string }[]

/** The body of a request with these steps in each API, and the JSON of each result in it, by tool. */
const APIS = {
  chat: (steps: readonly Step[]) => {
    const results: [string, object][] = []
    const messages: object[] = [{ role: 'user', content: 'Go.' }]
    for (const [at, step] of steps.entries()) {
      const id = (call: number) => `c${at}_${call}`
      const calls = step.map(({ tool }, n) => ({
        id: id(n),
        type: 'function',
        function: { name: tool, arguments: '{}' },
      }))
      messages.push({ role: 'assistant', content: null, tool_calls: calls })
      for (const [n, { tool, result }] of step.entries()) {
        const item = { role: 'tool', tool_call_id: id(n), content: result }
        messages.push(item)
        results.push([tool, item])
      }
    }
    return { path: '/v1/chat/completions', body: { model: 'm', messages, tools: [] }, results }
  },
  messages: (steps: readonly Step[]) => {
    const results: [string, object][] = []
    const messages: object[] = [{ role: 'user', content: 'Go.' }]
    for (const [at, step] of steps.entries()) {
      const calls = step.map(({ tool }, n) => ({ type: 'tool_use', id: `c${at}_${n}`, name: tool, input: {} }))
      messages.push({ role: 'assistant', content: calls })
      const blocks = step.map(({ tool, result }, n) => {
        const block = { type: 'tool_result', tool_use_id: `c${at}_${n}`, content: [{ type: 'text', text: result }] }
        results.push([tool, block])
        return block
      })
      messages.push({ role: 'user', content: blocks.reverse() })
    }
    return { path: '/v1/messages', body: { model: 'm', messages, tools: [] }, results }
  },
  responses: (steps: readonly Step[]) => {
    const results: [string, object][] = []
    const input: object[] = [{ role: 'user', content: 'Go.' }]
    for (const [at, step] of steps.entries()) {
      for (const [n, { tool }] of step.entries())
        input.push({ type: 'function_call', call_id: `c${at}_${n}`, name: tool, arguments: '{}' })
      for (const [n, { tool, result }] of step.entries()) {
        const item = { type: 'function_call_output', call_id: `c${at}_${n}`, output: result }
        input.push(item)
        results.push([tool, item])
      }
    }
    return { path: '/v1/responses', body: { model: 'm', input, tools: [] }, results }
  },
  gemini: (steps: readonly Step[]) => {
    const results: [string, object][] = []
    const contents: object[] = [{ role: 'user', parts: [{ text: 'Go.' }] }]
    for (const step of steps) {
      contents.push({ role: 'model', parts: step.map(({ tool }) => ({ functionCall: { name: tool, args: {} } })) })
      const parts = step.map(({ tool, result }) => {
        const part = { functionResponse: { name: tool, response: { result } } }
        results.push([tool, part])
        return part
      })
      contents.push({ role: 'user', parts })
    }
    return { path: '/v1beta/models/m:generateContent', body: { contents, tools: [] }, results }
  },
} as const

const tool = fc.constantFrom('Read', 'Bash', 'mcp__docs__search', '__proto__', 'constructor', 'ä b', 'x'.repeat(80))
const step = fc.array(fc.record({ tool, result: fc.string({ unit: 'binary', maxLength: 60 }) }), {
  minLength: 1,
  maxLength: 4,
})
const registry = buildRegistry([], [])
const plus = (one: number, other: number) => one + other
const sorted = <Amount>(list: readonly Named<Amount>[]) => [...list].sort((a, b) => (a.name < b.name ? -1 : 1))

describe('the bytes of results by tool', () => {
  it.each(Object.entries(APIS))(
    'are in %s those of each result under the name of its call, wherever reading began again',
    (name, build) => {
      fc.assert(
        fc.property(fc.array(step, { maxLength: 5 }), fc.nat(), (steps, cut) => {
          const { path, body, results } = build(steps)
          const dialect = DIALECTS.find((one) => one.name === name)
          const asked = dialect?.read({ path, body: Buffer.from(JSON.stringify(body)) })
          if (!asked) throw new Error('not read')
          const { conversation } = asked
          const middle = advance(EMPTY_TRANSCRIPT, conversation, cut % (conversation.length + 1), registry)
          const { resultBytes } = advance(middle, conversation, conversation.length, registry)
          let expected: readonly Named<number>[] = []
          for (const [of, json] of results)
            expected = withAmounts(
              expected,
              [{ name: toolLabel(of), amount: Buffer.byteLength(JSON.stringify(json)) }],
              plus,
            )
          expect(sorted(resultBytes)).toEqual(sorted(expected))
        }),
        { numRuns: 60 },
      )
    },
  )
})

describe('the tokens of results', () => {
  it('are, where the provider keeps the conversation, those of all requests so far, and never more than the prompt', () => {
    const chain = fc.array(
      fc.record({ bytes: fc.integer({ min: 1, max: 9_999 }), answer: fc.nat(500), pruned: fc.nat(3) }),
      {
        minLength: 1,
        maxLength: 8,
      },
    )
    fc.assert(
      fc.property(chain, (steps) => {
        let context: ThreadContext = { tokens: 100, requestBytes: 400 }
        for (const { bytes, answer: words, pruned } of steps) {
          const conversation = {
            length: 1,
            role: () => 'tool',
            resultSizes: () => [{ callId: 'c', bytes }],
          } as unknown as Conversation
          const facts = { previous: 'resp_1', bytes: 2 * bytes, transcript: { length: 1, assistantMessages: [] } }
          const loopState = { pendingCalls: [{ id: 'c', tool: 'Read' }] }
          const fresh = Math.ceil(bytes / 2)
          const tokens = pruned === 0 ? fresh : context.tokens + fresh
          const results = resultTokens(
            promptBytesOf({ conversation, facts } as never, { thread: { loopState } } as never, false),
            context,
            tokens,
          )
          const [sum = 0, before = 0] = [results, context.results].map((list) => list?.[0]?.amount)
          expect(results.map(({ name }) => name)).toEqual(['Read'])
          expect(sum).toBeLessThanOrEqual(tokens + 1e-6)
          // Half of what the request added is the result.
          if (pruned !== 0) expect(sum).toBeCloseTo(before + fresh / 2)
          context = { tokens: tokens + words, requestBytes: 1, results }
        }
      }),
      { numRuns: 100 },
    )
  })
})

const names = fc.oneof(tool, fc.string({ unit: 'binary' }), fc.nat(60).map(String))
const answer = fc.record({
  agent: fc.nat(40),
  model: names,
  input: fc.nat(100_000),
  output: fc.nat(1_000),
  cost: fc.nat(100),
  results: fc.array(fc.record({ name: names, amount: fc.nat(1_000) }), { maxLength: 6 }),
})
const answers = fc.array(answer, { maxLength: 40 })

/** A session after some more answers, whose prompts held these results. */
const answering = (
  session: typeof NEW_SESSION,
  some: readonly (typeof answer extends fc.Arbitrary<infer One> ? One : never)[],
) =>
  some.reduce((before, { agent, model, input, output, cost, results }) => {
    const size = results.reduce((sum, { amount }) => sum + amount, 0)
    const tokens = Math.max(input, 1)
    const shares = results.map(({ name, amount }) => ({
      name: toolLabel(name),
      amount: (amount / Math.max(1, size)) * tokens,
    }))
    const tools = countsByTool({ tokens, results: shares, share: 0.5 }, { input, cost })
    return withAnswer(before, { input, output, cost }, { agent, model, tools })
  }, session)

describe('what costs a session', () => {
  const view = (session: typeof NEW_SESSION) =>
    detailOf({ key: sessionKey('t', 's'), session }, { now: 1, seesNames: true, admin: true } as never, () => undefined)

  it('adds up, by agent, by model, and by tool with all else, to what the session used, however many names there are', () => {
    fc.assert(
      fc.property(answers, (some) => {
        const session = answering(NEW_SESSION, some)
        const { agents, models, tools } = view(session).costs
        const { input = 0, cost = 0 } = session.counts
        for (const list of [agents, models, tools]) {
          const sum = (list as readonly { input: number }[]).reduce((all, one) => all + one.input, 0)
          expect(sum).toBe(some.length === 0 ? 0 : input)
          expect(list.length).toBeLessThanOrEqual(26)
        }
        expect(tools.reduce((all, one) => all + (one.cost_usd ?? 0), 0)).toBeCloseTo(cost, 3)
        for (const one of session.parts?.tools ?? []) expect(one.name).toMatch(/^[\w.:/@-]{1,64}$/)
        expect(Object.prototype).not.toHaveProperty('amount')
      }),
      { numRuns: 100 },
    )
  })

  it('is the sum of what two replicas counted apart', () => {
    fc.assert(
      fc.property(answers, answers, answers, (before, here, there) => {
        const base = answering(NEW_SESSION, before)
        const joined = mergeSessions(base, answering(base, here), answering(base, there))
        const total = (list: readonly Named<Counts>[] = []) =>
          list.reduce((all, { amount }) => add(all, amount), {} as Counts)
        const { input = 0 } = joined.counts
        expect(total(joined.parts?.agents).input ?? 0).toBe(input)
        expect(total(joined.parts?.models).input ?? 0).toBe(input)
        expect(joined.parts?.tools.length ?? 0).toBeLessThanOrEqual(25)
      }),
      { numRuns: 100 },
    )
    expect(joinByName([], [{ name: '__proto__', amount: { input: 1 } }], [], false)).toEqual([
      { name: '__proto__', amount: { input: 1 } },
    ])
  })
})

describe('the tokens that results add to a prompt', () => {
  const messages = [user('Go.'), called('a'), result('a', 'x'.repeat(1_000))]
  const conversation = conversationOf(messages)
  const request = requestOf({ ...requestFacts(messages), bytes: 4_000 }, { conversation })
  const [size = 0] = conversation.resultSizes?.(2).map(({ bytes }) => bytes) ?? []
  const addedAfter = (context: ThreadContext | undefined, isRetry = false) =>
    addedTokens(promptBytesOf(request, { thread: threadWith(runWith()), isRetry } as RunState, true), context, 400)

  it.each<[string, ThreadContext | undefined, number]>([
    ['their share of its bytes where nothing is known of the one before', undefined, Math.round(size / 10)],
    ['what it has grown by', { tokens: 150, requestBytes: 4_000 - size, messages: 1 }, 250],
    [
      'their share where its history was changed',
      { tokens: 150, requestBytes: 3_500, messages: 1 },
      Math.round(size / 10),
    ],
    [
      'their share where another answer came between',
      { tokens: 150, requestBytes: 100, messages: 0 },
      Math.round(size / 10),
    ],
  ])('are %s', (_, context, expected) => {
    expect(addedAfter(context)).toBe(expected)
  })

  it('are none where the prompt was answered before', () => {
    expect(addedAfter({ tokens: 400, requestBytes: 4_000, messages: 3 }, true)).toBe(0)
    expect(addedAfter(undefined, true)).toBe(Math.round(size / 10))
  })
})
