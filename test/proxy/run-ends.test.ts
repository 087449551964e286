import { describe, expect, it, onTestFinished } from 'vitest'
import type { RunEnded } from '../../src/telemetry/event.ts'
import { act, ask, firstSession } from '../support/admin.ts'
import { afterStep, callModel, runAgent, START } from '../support/agent.ts'
import { type Running, startBoth, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { runaway, type Script, startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { racing } from '../support/stores.ts'

const named = { headers: { 'x-governor-session': 'one' } }
const human = (content: string) => ({ role: 'user', content })

/** Answers after so many calls of each run. */
const answering =
  (calls: number): Script =>
  ({ json: { messages } }) => {
    const made = messages.slice(messages.findLastIndex(({ role }) => role === 'user'))
    const isDone = made.filter(({ role }) => role === 'tool').length >= calls
    return isDone ? { text: 'All done.' } : { calls: [{ name: 'search', arguments: { query: made.length } }] }
  }

/** A clock that goes on when it is told to. */
function clocks() {
  const time = { now: 1_800_000_000_000 }
  const calls = new Set<() => void>()
  let begun = () => {}
  const after = (_delay: number, call: () => void) => {
    calls.add(call)
    begun()
    return () => calls.delete(call)
  }
  return {
    options: { now: () => time.now, after },
    /** Waits until Governor waits for the end of a run, and lets five minutes go by. */
    async quiet() {
      await new Promise<void>((resolve) => {
        begun = resolve
        if (calls.size > 0) resolve()
      })
      time.now += 300_000
      const due = [...calls]
      calls.clear()
      for (const call of due) call()
    },
  }
}

const endsIn = ({ events }: Running) => events.filter((event): event is RunEnded => event.kind === 'run_ended')
const ended = (running: Running) => running.until(({ kind }) => kind === 'run_ended')

/** The states of runs that a histogram has, with how many of each. */
async function counted(url: string, name = 'governor_run_iterations') {
  const { text } = await ask(url, '/metrics')
  const lines = text.matchAll(new RegExp(`^${name}_count\\{state="(\\w+)"\\} (\\d+)$`, 'gm'))
  return Object.fromEntries([...lines].map(([, state, count]) => [state, Number(count)]))
}

describe('the end of a run', () => {
  it('is counted when Governor ends it, with what it used, however often the client asks again', async () => {
    const both = await startBoth(runaway('search', 'Enough.'), { budget: { max_iterations: 3 } })
    const { messages } = await runAgent(both.url, START, named)
    for (let again = 0; again < 2; again++) await callModel(both.url, [...messages.slice(0, -1)], named)
    expect(endsIn(both)).toEqual([
      {
        kind: 'run_ended',
        apiId: expect.any(String),
        thread: 1,
        state: 'tool_limit_reached',
        iterations: 3,
        tokens: 440,
        cost: 0,
      },
    ])
    expect(await counted(both.url)).toEqual({ tool_limit_reached: 1 })
    expect(await counted(both.url, 'governor_run_tokens')).toEqual({ tool_limit_reached: 1 })
  })

  it('is counted when a human speaks after an answer, with its cost where the price is known', async () => {
    const price = { input: 1, output: 10 }
    const both = await startBoth(answering(2), { models: [{ model: 'gpt-test', price }] })
    const { messages } = await runAgent(both.url, START, named)
    expect(endsIn(both)).toEqual([])
    await runAgent(both.url, [...messages, human('And?')], { ...named, max: 1 })
    expect(endsIn(both)).toMatchObject([{ state: 'completed', iterations: 3, tokens: 330 }])
    expect(endsIn(both)[0]?.cost).toBeCloseTo(3 * (100e-6 + 100e-6))
    expect(await counted(both.url, 'governor_run_cost_usd')).toEqual({ completed: 1 })
  })

  it('is counted once nothing came for five minutes, and not again when a human speaks then', async () => {
    const { options, quiet } = clocks()
    const both = await startBoth(answering(1), {}, options)
    const { messages } = await runAgent(both.url, START, named)
    await quiet()
    expect(await ended(both)).toMatchObject({ state: 'completed', iterations: 2 })
    await runAgent(both.url, [...messages, human('And?')], { ...named, max: 1 })
    expect(await counted(both.url)).toEqual({ completed: 1 })
    expect((await firstSession(both.url)).runs).toMatchObject([
      { state: 'completed', iterations: 2 },
      { state: 'working', ended_at: null },
    ])
  })

  it('is known in a session without a name as well', async () => {
    const { options, quiet } = clocks()
    const both = await startBoth(answering(1), {}, options)
    await runAgent(both.url, START)
    expect(await firstSession(both.url)).toMatchObject({ state: 'answered' })
    await quiet()
    await ended(both)
    expect(await firstSession(both.url)).toMatchObject({
      state: 'completed',
      runs: [{ state: 'completed', iterations: 2, model: 'gpt-test', agent: 'node' }],
    })
    expect(await counted(both.url)).toEqual({ completed: 1 })
  })

  it.each([
    ['no_response', { status: 500, body: { error: { message: 'down' } } }],
    [
      'context_overflow',
      {
        status: 400,
        body: {
          error: {
            message: "This model's maximum context length is 4096 tokens. You sent 5000 tokens.",
            code: 'context_length_exceeded',
          },
        },
      },
    ],
  ])('is %s where that was the last there is', async (state, failure) => {
    const { options, quiet } = clocks()
    const both = await startBoth(
      ({ json }) => (json.messages.length > 2 ? failure : { calls: [{ name: 'search', arguments: {} }] }),
      {},
      options,
    )
    await runAgent(both.url, START, { ...named, max: 2 })
    await quiet()
    await ended(both)
    expect(await counted(both.url)).toEqual({ [state]: 1 })
    expect(await firstSession(both.url)).toMatchObject({ terminal_state: state })
  })

  it('is none where the agent goes on within five minutes', async () => {
    const { options, quiet } = clocks()
    let text: string | undefined = 'I think so.'
    const both = await startBoth(() => (text ? { text } : { calls: [{ name: 'search', arguments: {} }] }), {}, options)
    const { messages } = await runAgent(both.url, START, named)
    text = undefined
    await runAgent(
      both.url,
      [...messages, { role: 'assistant', content: 'More.' }, { role: 'tool', tool_call_id: 'x', content: 'y' }],
      { ...named, max: 2 },
    )
    await quiet()
    expect(await counted(both.url)).toEqual({})
    expect(await firstSession(both.url)).toMatchObject({ state: 'working', terminal_state: null })
  })

  it('is not counted where a human spoke while it was under way', async () => {
    const both = await startBoth(runaway())
    const { messages } = await runAgent(both.url, START, { ...named, max: 2 })
    await runAgent(both.url, [...messages, human('Wait.')], { ...named, max: 1 })
    expect(await counted(both.url)).toEqual({})
    expect((await firstSession(both.url)).runs[0]).toMatchObject({ state: null, iterations: 2 })
  })

  it('is counted once, the first time, for a run that continues after it', async () => {
    const both = await startBoth(runaway('search', 'Enough.'), { budget: { max_iterations: 3 } })
    const { messages } = await runAgent(both.url, START, named)
    const { id } = await firstSession(both.url)
    await act(both.url, id, 'extend', { by: 2 })
    await runAgent(
      both.url,
      [
        ...messages.slice(0, -1),
        { role: 'assistant', content: 'Hm.' },
        { role: 'tool', tool_call_id: 'x', content: 'y' },
      ],
      named,
    )
    expect(await firstSession(both.url)).toMatchObject({ state: 'stopped', iteration: 5, max_iterations: 5 })
    expect(endsIn(both)).toMatchObject([{ state: 'tool_limit_reached', iterations: 3 }])
  })

  it('is counted once where every change of the store is made twice', async () => {
    const { options, quiet } = clocks()
    const both = await startBoth(answering(1), {}, { ...options, store: racing() })
    const { messages } = await runAgent(both.url, START, named)
    const second = await runAgent(both.url, [...messages, human('And?')], named)
    await quiet()
    await both.until(() => endsIn(both).length === 2)
    const { id } = await firstSession(both.url)
    await act(both.url, id, 'stop')
    await callModel(both.url, [...second.messages, human('Go on.')], named)
    expect(await counted(both.url)).toEqual({ completed: 2 })
  })

  it('is a stop of an operator with the iterations that were answered', async () => {
    const both = await startBoth(runaway('search', 'What I have.'))
    const { messages } = await runAgent(both.url, START, { ...named, max: 2 })
    await act(both.url, (await firstSession(both.url)).id, 'stop')
    await callModel(both.url, messages, named)
    expect(endsIn(both)).toMatchObject([{ state: 'stopped', iterations: 2 }])
    expect(await firstSession(both.url)).toMatchObject({ iteration: 2, runs: [{ iterations: 2 }] })
  })

  it('is the limit of an agent that asked for its last answer itself, as the client was told', async () => {
    const { options, quiet } = clocks()
    const both = await startBoth(runaway('search', 'My summary.'), {}, options)
    const { messages } = await runAgent(both.url, START, { ...named, max: 2 })
    const summary = human(
      "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools.",
    )
    const step = await callModel(both.url, [...messages, summary], { ...named, body: { tools: undefined } })
    expect(step.governor).toMatchObject({ terminal_state: 'tool_limit_reached' })
    expect(await firstSession(both.url)).toMatchObject({
      state: 'stopped',
      terminal_state: 'tool_limit_reached',
      terminal_reason: 'max_iterations',
      runs: [{ state: 'tool_limit_reached' }],
    })
    await quiet()
    expect(await counted(both.url)).toEqual({ tool_limit_reached: 1 })
  })
})

describeWith('redis-server', 'the end of a run that several replicas serve', () => {
  it('is counted by one of them, whichever asked the model last and whichever hears the human', async () => {
    const provider = await startProvider(answering(1))
    onTestFinished(() => provider.close())
    const { url: redis } = await startRedis()
    const [first, second] = [clocks(), clocks()]
    const config = { store: 'redis', redis: { url: redis } }
    const one = await startGovernor(provider.url, config, first.options)
    const two = await startGovernor(provider.url, config, second.options)
    const step = await callModel(one.url, START, named)
    const { messages } = await runAgent(two.url, afterStep(START, step), named)
    const next = await runAgent(one.url, [...messages, human('And?')], named)
    expect([endsIn(one), endsIn(two)]).toMatchObject([[{ state: 'completed', iterations: 2 }], []])
    // Both look at the session; the one that is faster counts.
    await Promise.all([first.quiet(), second.quiet()])
    const all = () => [...endsIn(one), ...endsIn(two)]
    await Promise.any([one, two].map(({ until }) => until(() => all().length === 2)))
    await runAgent(two.url, [...next.messages, human('Thanks.')], { ...named, max: 1 })
    expect(all()).toMatchObject([{ state: 'completed' }, { state: 'completed' }])
  })
})
