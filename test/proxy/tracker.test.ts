import { describe, expect, it } from 'vitest'
import { callModel, runAgent, START, TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { ASKED, type Message, runawayMessages, runMessagesAgent } from '../support/messages.ts'
import { type Received, runaway } from '../support/provider.ts'
import { runResponses } from '../support/responses-agent.ts'

const BEGIN =
  'Budget: 24 iterations for this task. Explore early. From 30% left on, converge on an answer. From 10% left on, verify and write up. The budget need not be used up.'
const LAST = 'This is the last call: give your answer, and say what is unfinished.'
const budget = { style: 'tracker', max_iterations: 24, escalate: true }

const used = (count: number, max = 24) => `[budget: ${count} of ${max} iterations used, ${max - count} left]`
/** The text that Governor added at the end of an input. */
const said = (text: unknown) => /\n\n(.*)$/s.exec(String(text))?.[1]
const endOf = ({ json }: Received) => said(json.messages.at(-1)?.content)
const systemOf = ({ json }: Received) => json.messages[0]?.content

/** Statements are due at 5, at each call with fewer than 20 left, and with another text at the last call. */
const STATED = Array.from({ length: 24 }, (_, at) => {
  const count = at + 1
  if (count === 24) return LAST
  return count < 5 ? undefined : used(count)
})

describe.each([{ stream: false }, { stream: true }])('style tracker (stream: $stream)', ({ stream }) => {
  it('states the budget once in the system text, then what is used, and ends with the last call', async () => {
    const { url, provider, events } = await startBoth(runaway(), { budget })
    const { steps } = await runAgent(url, START, { stream })
    expect(steps).toHaveLength(25)
    expect(provider.requests.slice(0, 24).map(endOf)).toEqual(STATED)
    const texts = new Set(provider.requests.map(systemOf))
    expect([...texts]).toEqual([`You are a research agent.\n\n${BEGIN}`])
    const tiers = steps.map(({ headers }) => headers.get('x-governor-tier'))
    expect(tiers).toEqual([...Array(23).fill(null), 'warning', null])
    expect(steps.at(-1)?.governor).toMatchObject({ has_final_answer: true, budget_used: 24 })
    // Neutral statements ask for no reaction, so none is counted as ignored.
    expect(events.filter(({ kind }) => kind === 'warning_answered')).toHaveLength(1)
  })

  it('states the same numbers in a retry', async () => {
    const { url, provider } = await startBoth(runaway(), { budget })
    const { messages } = await runAgent(url, START, { stream, max: 4 })
    await callModel(url, messages, { stream })
    await callModel(url, messages, { stream })
    expect(provider.requests.slice(4).map(endOf)).toEqual([used(5), used(5)])
  })
})

it('a budget with more than 20 left is stated every `tracker.every` iterations', async () => {
  const config = { budget: { ...budget, max_iterations: 100, tracker: { every: 3 } } }
  const { url, provider } = await startBoth(runaway(), config)
  await runAgent(url, START, { max: 7 })
  expect(provider.requests.map(endOf)).toEqual([
    undefined,
    undefined,
    used(3, 100),
    undefined,
    undefined,
    used(6, 100),
    undefined,
  ])
})

it('announce: never keeps the system text unchanged', async () => {
  const { url, provider } = await startBoth(runaway(), { budget: { ...budget, announce: 'never' } })
  await runAgent(url, START, { max: 5 })
  expect(provider.requests.map(systemOf)).toEqual(Array(5).fill('You are a research agent.'))
  expect(provider.requests.map(endOf)).toEqual([...Array(4).fill(undefined), used(5)])
})

it('tools that are dropped at the warning tier stay dropped between two statements', async () => {
  const wrapUp = { wrap_up: { drop_tools: ['spawn'] }, warning_threshold: 0.5, caution_threshold: 0.5 }
  const config = { budget: { ...budget, ...wrapUp, adaptive: false, max_iterations: 60 } }
  const { url, provider } = await startBoth(runaway(), config)
  const spawn = { type: 'function', function: { name: 'spawn', parameters: {} } }
  await runAgent(url, START, { max: 33, body: { tools: [...TOOLS, spawn] } })
  const offered = provider.requests.map(({ json }) => (json['tools'] as unknown[] | undefined)?.length ?? 0)
  expect(offered).toEqual([...Array(29).fill(2), ...Array(4).fill(1)])
})

describe('a statement that would cost the model its reasoning or its prompt cache', () => {
  it('is left out of a Messages request with thinking, except for the budget and the last call', async () => {
    const { url, provider } = await startBoth(runawayMessages(), { budget })
    await runMessagesAgent(url, ASKED, {
      max: 24,
      body: { system: 'Be good.', thinking: { type: 'enabled', budget_tokens: 1024 } },
    })
    const ends = provider.requests.map(({ json }) => JSON.stringify((json.messages as Message[]).at(-1)))
    expect(ends.slice(0, 23).filter((text) => text.includes('[budget'))).toEqual([])
    expect(ends[23]).toContain(LAST)
    expect(new Set(provider.requests.map(({ json }) => json['system']))).toEqual(new Set([`Be good.\n\n${BEGIN}`]))
  })

  it('is left out of a Messages request whose last answer contains reasoning', async () => {
    const reasoning = { blocks: [{ type: 'thinking', thinking: 'Hm.', signature: 'c2ln' }] }
    const go = runawayMessages()
    const script: typeof go = async (request, number) => ({ ...(await go(request, number)), ...reasoning })
    const { url, provider } = await startBoth(script, { budget })
    await runMessagesAgent(url, ASKED, { max: 7 })
    const ends = provider.requests.map(({ json }) => JSON.stringify((json.messages as Message[]).at(-1)))
    expect(ends.filter((text) => text.includes('[budget'))).toEqual([])
  })

  it('is included in a Messages request without thinking', async () => {
    const { url, provider } = await startBoth(runawayMessages(), { budget })
    await runMessagesAgent(url, ASKED, { max: 5 })
    const ends = provider.requests.map(({ json }) => JSON.stringify((json.messages as Message[]).at(-1)))
    expect(ends[4]).toContain(used(5))
  })

  it.each([
    [true, 1],
    [false, 2],
  ])(
    'is included in Responses only if the client keeps the history (stateful: %s gives %i kinds of text)',
    async (stateful, kinds) => {
      const { url, provider } = await startBoth(runaway(), { budget: { ...budget, max_iterations: 100 } })
      await runResponses(url, 'Go.', { stateful, max: 5 })
      const texts = provider.requests.map(({ json }) => JSON.stringify(json))
      const said = [/Explore early/, /\[budget: 5 of 100/].filter((text) => texts.some((one) => text.test(one)))
      expect(said).toHaveLength(kinds)
    },
  )
})
