import { describe, expect, it } from 'vitest'
import { afterStep, callModel, runAgent, START, type Step } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { type Answer, runaway, type Script } from '../support/provider.ts'
import { callsUntilStopped } from '../support/scripts.ts'

const STOP =
  "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools."

const CALL: Answer = { calls: [{ name: 'search', arguments: { query: 'more' } }] }
const budget = { max_iterations: 3, adaptive: false, caution_threshold: 1, warning_threshold: 1 }

async function stoppedRun(script: Script, stream: boolean) {
  const both = await startBoth(script, { budget })
  const { steps, messages } = await runAgent(both.url, START, { stream, max: 4 })
  expect(steps).toHaveLength(4)
  const before = messages.slice(0, -1)
  return { ...both, last: steps[3] as Step, before, stops: both.provider.requests.slice(3) }
}

describe.each([{ stream: false }, { stream: true }])('a stopped request (stream: $stream)', ({ stream }) => {
  it('keeps its tools, forbids their choice, and asks for an answer at the end of the input', async () => {
    const { stops, provider } = await stoppedRun(runaway(), stream)
    const asked = stops[0]?.json
    expect(asked?.tool_choice).toBe('none')
    expect(asked?.tools).toEqual(provider.requests[0]?.json.tools)
    expect(asked?.messages.at(-1)?.content).toBe(`the result of search\n\n${STOP}`)
    expect(stops).toHaveLength(1)
  })

  it('asks for only one answer, even if the client asked for several', async () => {
    const { url, provider } = await startBoth(runaway(), { budget })
    const { steps } = await runAgent(url, START, { stream, max: 4, body: { n: 2 } })
    expect(steps[3]?.governor).toMatchObject({ has_final_answer: true })
    expect(provider.requests.map(({ json }) => json['n'])).toEqual([2, 2, 2, 1])
  })

  it('removes the tool calls of a model that makes calls anyway', async () => {
    const { last, stops } = await stoppedRun(callsUntilStopped({ text: 'I know enough. ', ...CALL }), stream)
    expect(last.message).toMatchObject({ content: 'I know enough. ' })
    expect(last.message.tool_calls).toBeUndefined()
    expect(last.finish).toBe('stop')
    expect(last.governor).toMatchObject({ has_final_answer: true })
    expect(stops).toHaveLength(1)
  })

  it('asks a model that only calls tools once more without tools, and adds up the usage of both responses', async () => {
    const { last, stops } = await stoppedRun(callsUntilStopped(CALL, { text: 'Fine, here it is.' }), stream)
    expect(last.message.content).toBe('Fine, here it is.')
    expect(last.finish).toBe('stop')
    expect(last.governor).toMatchObject({ has_final_answer: true, terminal_reason: 'max_iterations' })
    expect(last.usage).toMatchObject({ prompt_tokens: 200, completion_tokens: 20, total_tokens: 220 })
    expect(stops).toHaveLength(2)
    expect(stops[1]?.json).not.toHaveProperty('tools')
    expect(stops[1]?.json).not.toHaveProperty('tool_choice')
  })

  it.each([
    ['nothing', {}],
    ['white space', { text: ' \n ' }],
    ['thoughts alone', { text: '<think>What now? </think>' }],
    ['a written-out tool call', { text: '<tool_call>{"name": "search"}</tool_call>' }],
    ['tool calls', CALL],
  ] as const)(
    'gives the fallback text, and says that it is no answer, when the model says %s twice',
    async (_, answer) => {
      const { last, stops } = await stoppedRun(callsUntilStopped(answer), stream)
      expect(last.status).toBe(200)
      expect(last.message.content).toBe('(Reached max iterations: 3)')
      expect(last.message.tool_calls).toBeUndefined()
      expect(last.finish).toBe('stop')
      expect(last.governor).toMatchObject({ has_final_answer: false, budget_used: 3, budget_max: 3 })
      expect(stops).toHaveLength(2)
    },
  )

  it.each([400, 404])(
    'is sent without tool_choice after the provider refused that with %i, which Governor remembers for the session',
    async (status) => {
      const script: Script = (request, number) =>
        request.json.tool_choice === 'none'
          ? { status, body: { error: { message: 'tool_choice none is not supported' } } }
          : runaway()(request, number)
      const { last, stops, url, provider, events, before: run } = await stoppedRun(script, stream)
      expect(last.message.content).toBe('This is what I found so far.')
      // With the notice, with the client's own text alone, and without tools.
      expect(stops).toHaveLength(3)
      expect(events).toContainEqual(
        expect.objectContaining({
          kind: 'alteration_refused',
          alteration: 'tool_choice',
          upstream: 'openai',
        }),
      )
      const before = provider.requests.length
      const { steps } = await runAgent(url, [...run, last.message, { role: 'user', content: 'And more.' }], { stream })
      expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations' })
      expect(provider.requests.slice(before).some((request) => request.json.tool_choice === 'none')).toBe(false)
    },
  )

  it('ends in the fallback text when the provider refuses every variant, never in an error', async () => {
    const script: Script = ({ body }, number) =>
      body.includes('maximum number of tool-calling')
        ? { status: 422, body: { error: { message: 'no' } } }
        : runaway()({ json: { tools: [] } } as never, number)
    const { last } = await stoppedRun(script, stream)
    expect(last.status).toBe(200)
    expect(last.message.content).toBe('(Reached max iterations: 3)')
    expect(last.governor).toMatchObject({ has_final_answer: false })
  })

  it('passes a rate limit on, and stops the run at the retry', async () => {
    let limits = 0
    const script: Script = (request, number) =>
      request.json.tool_choice === 'none' && limits++ === 0
        ? { status: 429, body: { error: { message: 'slow down' } }, headers: { 'retry-after': '1' } }
        : runaway()(request, number)
    const { url, last, before } = await stoppedRun(script, stream)
    expect(last.status).toBe(429)
    expect(last.headers.get('retry-after')).toBe('1')
    const retry = await callModel(url, before, { stream })
    expect(retry.status).toBe(200)
    expect(retry.governor).toMatchObject({ terminal_state: 'tool_limit_reached', has_final_answer: true })
  })

  it('repeats its recorded answer to further requests of the run without asking the provider, until a human speaks', async () => {
    const { url, provider, last, before } = await stoppedRun(runaway(), stream)
    const asked = provider.requests.length
    const retry = await callModel(url, before, { stream })
    const after = await callModel(
      url,
      [...before, last.message, { role: 'user', content: '<system-reminder>Go on.</system-reminder>' }],
      { stream },
    )
    for (const again of [retry, after]) {
      expect(again.message.content).toBe(last.message.content)
      expect(again.governor).toEqual(last.governor)
      // A stream says so too, as the client asks for it.
      expect(again.usage).toMatchObject({ total_tokens: 0 })
      expect(again.headers.get('x-governor-verdict')).toBe('stop')
      expect(again.headers.get('x-governor-terminal-reason')).toBe('max_iterations')
    }
    expect(provider.requests).toHaveLength(asked)
    const human = await callModel(url, [...before, last.message, { role: 'user', content: 'Go on, please.' }], {
      stream,
    })
    expect(human.headers.get('x-governor-iteration')).toBe('1/3')
    expect(human.message.tool_calls).toHaveLength(1)
    expect(provider.requests).toHaveLength(asked + 1)
  })

  it('gives the recorded answer as a stream or as a whole body, as each request asks', async () => {
    const { url, provider, last, before } = await stoppedRun(runaway(), stream)
    const asked = provider.requests.length
    const other = await callModel(url, before, { stream: !stream })
    expect(other.message.content).toBe(last.message.content)
    expect(other.governor).toEqual(last.governor)
    expect(provider.requests).toHaveLength(asked)
  })

  it('marks the answer to the agent’s own request for a summary and leaves that request unchanged', async () => {
    const { url, provider } = await startBoth(() => ({ text: 'All I know.' }))
    const messages = afterStep(START, {
      message: {
        role: 'assistant',
        content: null,
        tool_calls: [{ id: 'c1', function: { name: 'search', arguments: '{}' } }],
      },
    } as unknown as Step)
    const asked = [...messages, { role: 'user', content: `  ${STOP.replace('. Please', '.\n Please')}` }]
    const step = await callModel(url, asked, { stream, body: { tools: undefined } })
    expect(step.message.content).toBe('All I know.')
    expect(step.governor).toMatchObject({
      terminal_state: 'tool_limit_reached',
      terminal_reason: 'max_iterations',
      has_final_answer: true,
    })
    expect(step.headers.get('x-governor-terminal-state')).toBe('tool_limit_reached')
    expect(provider.requests[0]?.json.messages).toEqual(asked)
    const quoted = [...messages, { role: 'user', content: `What does "${STOP}" mean?` }]
    const human = await callModel(url, quoted, { stream })
    expect(human.governor).toBeUndefined()
    expect(human.headers.get('x-governor-terminal-state')).toBeNull()
    const old = [...asked, { role: 'assistant', content: 'All I know.' }, { role: 'user', content: 'Thanks. And now?' }]
    expect((await callModel(url, old, { stream })).governor).toBeUndefined()
  })
})

describe('a limit on tool calls', () => {
  it('counts each parallel call and stops when the limit is used up', async () => {
    const script: Script = (request, number) =>
      request.json.tools && request.json.tool_choice !== 'none'
        ? { calls: [1, 2, 3].map((n) => ({ name: 'search', arguments: { n: number * 10 + n } })) }
        : { text: 'Enough.' }
    const { url, provider } = await startBoth(script, { budget: { run: { max_tool_calls: 6 } } })
    const { steps } = await runAgent(url, START)
    expect(steps).toHaveLength(3)
    expect(steps[1]?.headers.get('x-governor-tier')).toBe('caution')
    expect(provider.requests[1]?.json.messages.at(-1)?.content).toContain(
      '[BUDGET: Tool call 3/6. You have 3 tool calls left.',
    )
    expect(steps[2]?.governor).toMatchObject({
      terminal_reason: 'max_tool_calls',
      budget_used: 6,
      budget_max: 6,
    })
  })
})

describe('a limit that is raised after a stop', () => {
  it('is reached again with a new answer, not with the recorded one', async () => {
    const { url, provider } = await startBoth(runaway())
    const headers = (max: number) => ({
      headers: { 'x-governor-session': 's', 'x-governor-max-iterations': String(max) },
    })
    const first = await runAgent(url, START, headers(3))
    expect(first.steps).toHaveLength(4)
    const transcript = first.messages.slice(0, -1)
    const second = await runAgent(url, transcript, headers(5))
    expect(second.steps.at(-1)?.governor).toMatchObject({ budget_used: 5, budget_max: 5 })
    expect(provider.requests.at(-1)?.json.tool_choice).toBe('none')
    // The system text is the same in every request of one budget, the stopped one included.
    expect(provider.requests[3]?.json.messages[0]).toEqual(provider.requests[0]?.json.messages[0])
  })
})

describe('an agent that adds the last answer to its history and asks again', () => {
  it.each([{}, { 'x-governor-session': 's' }])(
    'gets the recorded answer however often it does (%o)',
    async (headers) => {
      const { url, provider } = await startBoth(runaway(), { budget })
      const { messages } = await runAgent(url, START, { headers, max: 4 })
      for (let again = 0; again < 20; again++) {
        const step = await callModel(url, messages, { headers })
        expect(step.governor, String(again)).toMatchObject({
          terminal_state: 'tool_limit_reached',
          has_final_answer: true,
        })
        messages.push(step.message)
      }
      expect(provider.requests).toHaveLength(4)
    },
  )
})

describe('the answer to an agent’s own request for a summary', () => {
  it('reaches the client unchanged if it is too large to be read', async () => {
    const { url } = await startBoth(() => ({ text: 'x'.repeat(5_000) }), {
      server: { max_guarded_body: '4kb' },
    })
    const step = await callModel(url, [...START, { role: 'user', content: STOP }])
    expect(step.message.content).toBe('x'.repeat(5_000))
    expect(step.governor).toBeUndefined()
  })
})
