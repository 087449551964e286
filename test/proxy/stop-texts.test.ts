/** What the model reads when its run is ended: the reason that is true, and no other. */
import { describe, expect, it } from 'vitest'
import { REASONS, type TerminalReason } from '../../src/core/terminal.ts'
import { act, firstSession } from '../support/admin.ts'
import { afterStep, callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { Script } from '../support/provider.ts'
import { mayCall } from '../support/scripts.ts'

const ITERATIONS = "You've reached the maximum number of tool-calling iterations allowed."
const LIMIT = (name: string) => `You've reached the ${name} limit of this run.`
const LOOP = "You've been repeating the same action without progress."
const OPERATOR = 'An operator has stopped this run.'
const FIRST_SENTENCES = [ITERATIONS, ...['cost', 'token', 'time'].map(LIMIT), LOOP, OPERATOR]
const SECOND =
  /Please provide a final response summarizing what you('ve| have) found and accomplished so far, without calling any more tools\./

type AgentReason = 'max_agents' | 'max_concurrent_agents' | 'max_depth'
/** How runs come to each end: the configuration, and the first sentence that the model then reads. */
const ENDS: Readonly<
  Record<
    Exclude<TerminalReason, 'max_runs' | 'paused' | AgentReason>,
    { readonly config: object; readonly sentence: string }
  >
> = {
  max_iterations: { config: { budget: { max_iterations: 3 } }, sentence: ITERATIONS },
  max_tool_calls: { config: { budget: { run: { max_tool_calls: 3 } } }, sentence: ITERATIONS },
  max_tokens: { config: { budget: { run: { max_tokens: 300 } } }, sentence: LIMIT('token') },
  max_cost: { config: { budget: { run: { max_cost_usd: 0.3 } } }, sentence: LIMIT('cost') },
  max_seconds: { config: { budget: { run: { max_seconds: 30 } } }, sentence: LIMIT('time') },
  loop_guard: { config: {}, sentence: LOOP },
  operator: { config: {}, sentence: OPERATOR },
}
type End = keyof typeof ENDS
/** A paused agent is told nothing, as the model is not asked; the tree of agents has its own tests. */
const WAYS = (Object.keys(REASONS).filter((reason) => Object.hasOwn(ENDS, reason)) as End[]).map((reason) => ({
  reason,
  ...ENDS[reason],
}))

/** Runs an agent into the end that a reason names. Returns what the model reads last, and how the run ended. */
async function lastRequest(reason: End, config: object) {
  let time = 1_760_000_000_000
  const script: Script = (request, number) => {
    time += 10_000
    if (!mayCall(request) || !request.json.tools) return { text: 'It is 42.' }
    return { calls: [{ name: 'search', arguments: { query: reason === 'loop_guard' ? 'same' : number } }] }
  }
  const priced = { models: [{ model: '*', price: { input: 1_000, output: 0 } }], ...config }
  const { url, provider } = await startBoth(script, priced, { now: () => time })
  let messages = START
  if (reason === 'operator') {
    messages = afterStep(messages, await callModel(url, messages))
    messages = afterStep(messages, await callModel(url, messages))
    expect((await act(url, (await firstSession(url)).id, 'stop')).status).toBe(200)
  }
  const { steps } = await runAgent(url, messages, { max: 30 })
  expect(steps.at(-1)?.governor?.['terminal_reason']).toBe(reason)
  return JSON.stringify(provider.requests.at(-1)?.json.messages.at(-1))
}

describe.each(WAYS)('a run that ends with $reason', ({ reason, config, sentence }) => {
  it('tells the model this reason and no other, and asks it for its answer', async () => {
    const read = await lastRequest(reason, config)
    expect(FIRST_SENTENCES.filter((one) => read.includes(one))).toEqual([sentence])
    expect(read).toMatch(SECOND)
  })

  it('tells the model the text of the configuration instead', async () => {
    const stop = {
      text: 'Text 1, {limit}.',
      limit_text: 'Text 1, {limit}.',
      loop_text: 'Text 1, {limit}.',
      operator_text: 'Text 1, {limit}.',
    }
    const read = await lastRequest(reason, { ...config, stop })
    expect(FIRST_SENTENCES.filter((one) => read.includes(one))).toEqual([])
    expect(read).toMatch(/Text 1, (iteration|tool call|cost|token|time)\./)
  })
})
