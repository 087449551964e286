/** A client's `task_budget`: Anthropic counts each token of a task once, and shows the model how many are left. */
import fc from 'fast-check'
import { describe, expect, it, vi } from 'vitest'
import { ask, type Shown } from '../support/admin.ts'
import { startBoth } from '../support/governor.ts'
import {
  ASKED,
  type Block,
  callMessages,
  type Message,
  type MessagesStep,
  resultsFor,
  runawayMessages,
  runMessagesAgent,
} from '../support/messages.ts'
import type { Script } from '../support/provider.ts'

const bodyOf = (total: unknown, more: object = {}) => ({
  output_config: { effort: 'high', task_budget: { type: 'tokens', total, ...more } },
})

/** The prompt and the answer of each request in the provider's own example, and what it counts of its budget. */
const EXAMPLE = [
  [20, 5_000],
  [7_820, 4_000],
  [13_020, 6_000],
] as const
const COUNTED = 19_000

const example: Script = (_, number) => {
  const [input_tokens = 0, output_tokens = 0] = EXAMPLE[number - 1] ?? []
  const calls = number < EXAMPLE.length ? [{ name: 'search', arguments: { query: `q${number}` } }] : []
  return { calls, text: 'This is the report.', usage: { input_tokens, output_tokens } }
}

/** A model that calls a tool for ever. Each letter of a request, and of a call, is a token. */
const letters: Script = async (request, number) => {
  const answer = await runawayMessages()(request, number)
  const input = { query: `q${number}` }
  const call = { type: 'tool_use', id: `toolu_${number}_0`, name: 'search', input }
  const said = JSON.stringify({ role: 'assistant', content: [call] })
  return { ...answer, usage: { input_tokens: request.body.length, output_tokens: said.length + 1 } }
}

/** Returns what a step's run has used of its limit. */
async function usedOf(url: string, step: MessagesStep | undefined): Promise<number | null | undefined> {
  const { json } = await ask(url, `/governor/sessions/${step?.headers.get('x-governor-session')}`)
  return (json as Shown).threads[0]?.meters.find(({ name }) => name === 'task_tokens')?.used
}

const noticesIn = (steps: readonly { readonly json: { readonly messages: readonly unknown[] } }[]) =>
  steps.map(({ json }) => /\[BUDGET: [^\]]*\]/.exec(JSON.stringify(json.messages.at(-1)))?.[0])

describe.each([{ stream: false }, { stream: true }])('a task budget of the client (stream: $stream)', ({ stream }) => {
  it('is counted as its provider counts it', async () => {
    const { url } = await startBoth(example)
    const { steps } = await runMessagesAgent(url, ASKED, { stream, body: bodyOf(100_000) })
    await vi.waitFor(async () => expect(await usedOf(url, steps.at(-1))).toBe(COUNTED), { timeout: 20_000 })
  })

  it('is the limit of the run: the notices and the end state it, and the provider gets it as it was sent', async () => {
    const { url, provider } = await startBoth(({ json }, number) => {
      const isLast = (json.tool_choice as { type?: string } | undefined)?.type === 'none'
      const usage = { input_tokens: 10_000 * number, output_tokens: 4_000 }
      return isLast ? { text: 'So far.', usage } : { calls: [{ name: 'search', arguments: { q: number } }], usage }
    })
    const { steps } = await runMessagesAgent(url, ASKED, { stream, body: bodyOf(40_000), max: 6 })
    // 4,000, and with each further answer 10,000 more.
    expect(noticesIn(provider.requests)).toEqual([
      ...Array(4).fill(undefined),
      expect.stringMatching(/^\[BUDGET: Task tokens 34k\/40k\. You have 6k tokens left/),
      undefined,
    ])
    expect(steps.at(-1)?.governor).toMatchObject({
      terminal_state: 'budget_exceeded',
      terminal_reason: 'max_tokens',
      has_final_answer: true,
      budget_used: 40_000,
      budget_max: 40_000,
      scope: 'run',
    })
    for (const { json } of provider.requests) expect(json).toMatchObject(bodyOf(40_000))
    // The provider states it to the model itself.
    expect(JSON.stringify(provider.requests.map(({ json }) => json['system']))).not.toContain('budget')
  })
})

/** What an agent may do to its history before it sends it: it keeps the prompt and the newest answer with its results. */
const CUTS = {
  whole: (history: readonly Message[]) => history,
  window: ([first, ...steps]: readonly Message[]) => [first, ...steps.slice(-4)] as Message[],
  newest: ([first, ...steps]: readonly Message[]) => [first, ...steps.slice(-2)] as Message[],
  'cleared results': (history: readonly Message[]) =>
    history.map((message, at) => (at < history.length - 1 && at > 0 ? cleared(message) : message)),
} as const

function cleared({ role, content }: Message): Message {
  const all = content as readonly Block[]
  return { role, content: all.map((one) => (one.type === 'tool_result' ? { ...one, content: '[cleared]' } : one)) }
}

it('counts each answer and each result once, however the client cuts its history', { timeout: 60_000 }, async () => {
  const { url, provider } = await startBoth(letters)
  const step = fc.record({
    cut: fc.constantFrom(...(Object.keys(CUTS) as (keyof typeof CUTS)[])),
    size: fc.integer({ min: 500, max: 4_000 }),
    isSentTwice: fc.boolean(),
  })
  let tasks = 0
  await fc.assert(
    fc.asyncProperty(fc.boolean(), fc.array(step, { minLength: 2, maxLength: 6 }), async (stream, steps) => {
      const headers = { 'x-governor-session': `task-${tasks++}` }
      const options = { stream, headers, body: bodyOf(1_000_000) }
      let history: readonly Message[] = ASKED
      let expected = 0
      const send = async () => {
        const answer = await callMessages(url, history, options)
        expected += JSON.stringify({ role: 'assistant', content: answer.message.content }).length + 1
        return answer
      }
      for (const { cut, size, isSentTwice } of steps) {
        if (isSentTwice) await send()
        const { content } = (await send()).message
        const results = resultsFor(content, () => 'r'.repeat(size))
        history = CUTS[cut]([...history, { role: 'assistant', content }, results])
        expected += JSON.stringify(results).length
      }
      const last = await send()
      await vi.waitFor(
        async () => {
          const used = (await usedOf(url, last)) ?? 0
          expect(Math.abs(used - expected) / expected, `${used} of ${expected}`).toBeLessThan(0.05)
        },
        { timeout: 1_000 },
      )
    }),
    { numRuns: 25 },
  )
  for (const { json } of provider.requests) expect(json).toMatchObject(bodyOf(1_000_000))
})

describe('the limit that a task budget sets', () => {
  const script: Script = (_, number) =>
    number < 4
      ? { calls: [{ name: 'search', arguments: { q: number } }], usage: { input_tokens: 100, output_tokens: 10_000 } }
      : { text: 'Done.' }
  const endOf = async (budget: object, body: object) => {
    const { url, provider } = await startBoth(script, { budget })
    const { steps } = await runMessagesAgent(url, ASKED, { body: body as never, max: 6 })
    return { end: steps.find((one: MessagesStep) => one.governor)?.governor, steps, requests: provider.requests }
  }

  it.each([
    ['is not the client’s where clients may not set any', { client_override: false }, 20_000, undefined],
    ['is the lower one where clients may only lower it', { run: { max_task_tokens: 20_000 } }, 90_000, 20_000],
    ['is the client’s where that is lower', { run: { max_task_tokens: 90_000 } }, 20_000, 20_000],
  ])('%s', async (_, budget, total, max) => {
    const { end } = await endOf({ client_override: 'lower_only', ...budget }, bodyOf(total))
    expect(end?.['budget_max']).toBe(max)
  })

  it('leaves a limit on all tokens as it is: the first that is reached ends the run', async () => {
    const { end } = await endOf({ run: { max_tokens: 10_000 } }, bodyOf(90_000))
    expect(end).toMatchObject({ terminal_reason: 'max_tokens', budget_max: 10_000 })
  })

  it('begins with what the client says that it has spent', async () => {
    const { end, steps } = await endOf({}, bodyOf(64_000, { remaining: 5_000 }))
    expect(end).toMatchObject({ terminal_reason: 'max_tokens', budget_max: 64_000 })
    expect(steps).toHaveLength(2)
  })

  it.each([null, '64000', 0, -5, {}, []])('is none for a total of %j, which the provider refuses', async (total) => {
    const { end, requests } = await endOf({}, bodyOf(total))
    expect(end).toBeUndefined()
    for (const { json } of requests) expect(json).toMatchObject(bodyOf(total))
  })

  it('is the configured one for a client that sends none, and no provider is sent one', async () => {
    const { end, requests } = await endOf({ run: { max_task_tokens: 20_000 } }, { output_config: { effort: 'low' } })
    expect(end).toMatchObject({ budget_max: 20_000 })
    for (const { body } of requests) expect(body.toString()).not.toContain('task_budget')
  })
})
