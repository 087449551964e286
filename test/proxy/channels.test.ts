import { describe, expect, it } from 'vitest'
import { createMemoryStore } from '../../src/store/memory.ts'
import { runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { type ChatBody, runaway, type Script } from '../support/provider.ts'

type Rule = (body: ChatBody) => string | undefined

/** Requests that providers and the chat templates of open models are known to refuse. */
const RULES: Readonly<Record<string, Rule>> = {
  mistral: ({ messages }) => {
    const isAfterTool = messages.some(({ role }, at) => role === 'user' && messages[at - 1]?.role === 'tool')
    return isAfterTool ? "Unexpected role 'user' after role 'tool'" : undefined
  },
  qwen: ({ messages }) =>
    messages.some(({ role }, at) => at > 0 && role === 'system')
      ? 'System message must be at the beginning.'
      : undefined,
  minimax: ({ messages }) =>
    messages.slice(1).some(({ role }) => role === 'system')
      ? 'invalid params, invalid message role: system (2013)'
      : undefined,
  strings: ({ messages }) =>
    messages.some(({ content }) => Array.isArray(content))
      ? "Input should be a valid string: 'loc': ('body', 'messages', 'content')"
      : undefined,
}

/** A model that calls tools for ever, behind a provider with a rule. */
function ruled(rule: Rule, status = 400): Script {
  const go = runaway()
  return (request, number) => {
    const message = rule(request.json)
    return message === undefined ? go(request, number) : { status, body: { error: { message } } }
  }
}

const budget = {
  max_iterations: 6,
  adaptive: false,
  caution_threshold: 0.3,
  warning_threshold: 1,
  escalate: false,
}

/** Where the notice stood in each request that had one. */
const placesOf = (bodies: readonly ChatBody[]) =>
  bodies.map(({ messages }) => {
    const last = messages.at(-1)
    return String(last?.content).includes('[BUDGET') ? last?.role : undefined
  })

describe.each([false, true])('a provider with its own rules for messages (stream: %s)', (stream) => {
  it.each([
    ['mistral', 'user', [undefined, 'user', undefined, 'tool', 'tool', 'tool', 'tool']],
    ['mistral', 'system', [undefined, 'system', 'system', 'system', 'system', 'system']],
    ['qwen', 'system', [undefined, 'system', undefined, 'tool', 'tool', 'tool', 'tool']],
    ['minimax', 'system', [undefined, 'system', undefined, 'tool', 'tool', 'tool', 'tool']],
    ['qwen', 'auto', [undefined, 'tool', 'tool', 'tool', 'tool', 'tool']],
    ['strings', 'tool_result', [undefined, 'tool', 'tool', 'tool', 'tool', 'tool']],
  ])(
    'named %s refuses channel %s at most once, and then gets notices through another channel: %j',
    async (name, channel, places) => {
      const rule = RULES[name]
      if (!rule) throw new Error('no such rule')
      const { url, provider, events, logs } = await startBoth(ruled(rule), { budget: { ...budget, channel } })
      const { steps } = await runAgent(url, START, { stream })
      expect(steps.map(({ status }) => status)).toEqual(Array(7).fill(200))
      expect(steps.at(-1)?.governor).toMatchObject({
        terminal_reason: 'max_iterations',
        has_final_answer: true,
      })
      const bodies = provider.requests.map(({ json }) => json)
      expect(placesOf(bodies.slice(0, -1))).toEqual(places)
      const refusals = events.filter(({ kind }) => kind === 'alteration_refused')
      const isRefused = places.length > 6
      expect(refusals).toEqual(
        isRefused
          ? [
              {
                kind: 'alteration_refused',
                upstream: 'openai',
                model: 'gpt-test',
                alteration: channel,
                status: 400,
              },
            ]
          : [],
      )
      expect(logs.filter((line) => line.includes('upstream refuses this alteration'))).toHaveLength(isRefused ? 1 : 0)
      if (isRefused) {
        const metrics = await (await fetch(`${url}/metrics`)).text()
        const labels = `upstream="openai",alteration="${channel}"`
        expect(metrics).toContain(`governor_alterations_refused_total{${labels}} 1`)
      }
    },
  )

  it('gets no more notices through a refused channel in the session, but does in others and for another model', async () => {
    const rule = RULES['mistral'] as Rule
    const { url, provider } = await startBoth(ruled(rule), { budget: { ...budget, channel: 'user' } })
    const refusedSoFar = () => provider.requests.filter(({ json }) => rule(json) !== undefined).length
    const run = (session: string, content: string, body = {}) =>
      runAgent(url, [...START, { role: 'user', content }], { stream, body, headers: { 'x-session-id': session } })
    await run('a', 'Go.')
    expect(refusedSoFar()).toBe(1)
    await run('a', 'Again.')
    expect(refusedSoFar()).toBe(1)
    await run('b', 'Go.')
    expect(refusedSoFar()).toBe(2)
    await run('a', 'Once more.', { model: 'another' })
    expect(refusedSoFar()).toBe(3)
  })

  it('gets no more notices through a channel that it refused to two tenants', async () => {
    const rule = RULES['mistral'] as Rule
    const { url, provider } = await startBoth(ruled(rule), { budget: { ...budget, channel: 'user' } })
    const refusedSoFar = () => provider.requests.filter(({ json }) => rule(json) !== undefined).length
    for (const [tenant, refused] of [
      ['one', 1],
      ['two', 2],
      ['three', 2],
    ] as const) {
      await runAgent(url, START, { stream, headers: { authorization: `Bearer sk-${tenant}` } })
      expect(refusedSoFar()).toBe(refused)
    }
  })

  it('gets no notice through a refused channel from another process with the same store', async () => {
    const rule = RULES['mistral'] as Rule
    const config = { budget: { ...budget, channel: 'user' } }
    const store = createMemoryStore({ max: 10, ttl: 60_000, maxBytes: 1_000_000 })
    const headers = { 'x-session-id': 'one' }
    const first = await startBoth(ruled(rule), config, { store })
    await runAgent(first.url, START, { stream, headers })
    const second = await startBoth(ruled(rule), config, { store })
    await runAgent(second.url, [...START, { role: 'user', content: 'Again.' }], { stream, headers })
    const refused = second.provider.requests.filter(({ json }) => rule(json) !== undefined)
    expect(refused).toEqual([])
  })

  it('is stopped through the first channel it accepts if the stop is the first notice of the run', async () => {
    const silent = { ...budget, caution_threshold: 1, channel: 'user', max_iterations: 2 }
    const { url, provider } = await startBoth(ruled(RULES['mistral'] as Rule), {
      budget: { ...silent, texts: { warning: 'x', caution: 'x' } },
    })
    const { steps } = await runAgent(url, START, { stream })
    expect(steps.at(-1)?.governor).toMatchObject({
      terminal_reason: 'max_iterations',
      has_final_answer: true,
    })
    expect(steps.at(-1)?.message.content).toBe('This is what I found so far.')
    expect(provider.requests.length).toBeLessThanOrEqual(6)
  })

  it('gets a text, and no list of parts, if the client wrote a text', async () => {
    const { url, provider } = await startBoth(ruled(RULES['strings'] as Rule), { budget })
    const { steps } = await runAgent(url, START, { stream })
    expect(steps.every(({ status }) => status === 200)).toBe(true)
    expect(provider.requests).toHaveLength(7)
  })

  it('still ends the run, with the fallback text, if it accepts only the client’s own bytes', async () => {
    const go = runaway()
    const script: Script = (request, number) => {
      const { tools, tool_choice: choice } = request.json
      const isOwn = tools && choice === undefined && !/BUDGET|maximum number/.test(request.body.toString())
      return isOwn ? go(request, number) : { status: 422, body: { error: { message: 'no' } } }
    }
    const { url, provider } = await startBoth(script, { budget: { ...budget, max_iterations: 3 } })
    const { steps, messages } = await runAgent(url, START, { stream })
    expect(steps).toHaveLength(4)
    expect(steps.at(-1)?.governor).toMatchObject({ has_final_answer: false, budget_used: 3 })
    expect(steps.at(-1)?.message.content).toBe('(Reached max iterations: 3)')
    const asked = provider.requests.length
    const again = await runAgent(url, messages.slice(0, -1), { stream, max: 1 })
    expect(again.steps[0]?.message.content).toBe('(Reached max iterations: 3)')
    expect(provider.requests).toHaveLength(asked)
  })
})

describe('content in parts', () => {
  const parts = (text: string) => [{ type: 'text', text }]
  const START_IN_PARTS = [
    { role: 'system', content: 'You are an agent.' },
    { role: 'user', content: parts('Find out everything.') },
  ]

  it('takes the notice as a paragraph of its last text, and the original messages stay a prefix', async () => {
    const { url, provider } = await startBoth(runaway(), { budget: { ...budget, caution_threshold: 0.1 } })
    await runAgent(url, START_IN_PARTS, { max: 1 })
    const told = provider.requests[0]?.json.messages.at(-1)
    expect(told?.content).toEqual([
      { type: 'text', text: expect.stringMatching(/^Find out everything\.\n\n\[BUDGET: Iteration 1\/6\./) },
    ])
  })
})
