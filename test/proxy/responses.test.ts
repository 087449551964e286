import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import { runaway, type Script } from '../support/provider.ts'
import { callResponses, type Item, runResponses, TOOL } from '../support/responses-agent.ts'

const WARNING =
  '[BUDGET: Iteration 3/3. You MUST provide your final response NOW. Do not make additional tool calls unless absolutely critical.]'
const budget = { max_iterations: 3, adaptive: false }

describe.each([
  { stateful: false, stream: false },
  { stateful: false, stream: true },
  { stateful: true, stream: false },
  { stateful: true, stream: true },
])('a Responses agent that never stops by itself (stateful: $stateful, stream: $stream)', ({ stateful, stream }) => {
  const options = { stateful, stream }

  it('is counted, warned and stopped with an answer', async () => {
    const { url, provider } = await startBoth(runaway(), { budget })
    const { steps } = await runResponses(url, 'Find out everything.', options)
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration'))).toEqual(['1/3', '2/3', '3/3', '3/3'])
    expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual(['allow', 'allow', 'warn', 'stop'])
    const last = steps.at(-1)
    expect(last?.text).toBe('This is what I found so far.')
    expect(last?.response).toMatchObject({
      status: 'completed',
      governor: {
        terminal_state: 'tool_limit_reached',
        has_final_answer: true,
        budget_used: 3,
        budget_max: 3,
      },
    })
    expect(last?.headers.get('x-governor-terminal-reason')).toBe('max_iterations')
    const third = provider.requests[2]?.json as Item | undefined
    if (stateful) expect(third?.['instructions']).toBe(`Be good.\n\n${WARNING}`)
    else expect((third?.['input'] as Item[] | undefined)?.at(-1)?.['output']).toBe(`found nothing new\n\n${WARNING}`)
    const stopped = provider.requests[3]?.json
    expect(stopped).toMatchObject({ tool_choice: 'none', tools: [TOOL] })
  })

  it('is warned of a loop after three equal calls, and again after two more', async () => {
    const same: Script = () => ({ reasoning: 'x', calls: [{ name: 'search', arguments: { query: 'it' } }] })
    const { url } = await startBoth(same, { loop_guard: { mode: 'warn' } })
    const agent = await runResponses(url, 'Go.', { ...options, max: 6 })
    const loops = agent.steps.map(({ headers }) => headers.get('x-governor-loop'))
    const found = [null, null, null, 'repetition;count=3', null, 'repetition;count=2']
    expect(loops).toEqual(found)
    expect((await agent.repeat()).headers.get('x-governor-loop')).toBe('repetition;count=2')
  })

  it('can continue after a stop in which the model called a tool beside its answer', async () => {
    const chatty: Script = (_, number) => ({
      text: 'Half done.',
      calls: [{ name: 'search', arguments: { query: `q${number}` } }],
    })
    const { url, provider } = await startBoth(chatty, { budget })
    const agent = await runResponses(url, 'Go.', options)
    expect(agent.steps.at(-1)?.calls).toEqual([])
    const next = await agent.ask('And now?')
    expect(next.status).toBe(200)
    const shown = provider.requests.at(-1)?.items ?? []
    const of = (kind: string) => shown.filter(({ type }) => type === kind)
    expect(of('function_call')).toHaveLength(of('function_call_output').length)
  })

  it('can continue from the fallback text, which the provider does not know', async () => {
    let isDown = false
    const { url, provider } = await startBoth(
      ({ json }, number) =>
        isDown && (json.tool_choice === 'none' || !json.tools)
          ? { status: 400, body: { error: { message: 'no' } } }
          : { calls: [{ name: 'search', arguments: { query: `q${number}` } }] },
      { budget },
    )
    isDown = true
    const agent = await runResponses(url, 'Go.', options)
    const last = agent.steps.at(-1)
    expect(last?.text).toBe('(Reached max iterations: 3)')
    if (stateful) expect((await agent.repeat()).response['id']).toBe(last?.response['id'])
    isDown = false
    const next = await agent.ask('And now?')
    expect(next.status).toBe(200)
    const shown = provider.requests.at(-1)?.items ?? []
    // The provider accepted the client's own request at last: where it stores the response, its call has a result too.
    const of = (kind: string) => shown.filter(({ type }) => type === kind)
    expect(of('function_call_output')).toHaveLength(stateful ? 4 : 3)
    expect(of('function_call')).toHaveLength(of('function_call_output').length)
    expect(shown.at(-1)).toMatchObject({ content: 'And now?' })
  })

  it('leaves no notice in the history of the client or the provider', async () => {
    const { url, provider } = await startBoth(runaway(), { budget })
    const { steps, items } = await runResponses(url, 'Find out everything.', options)
    expect(steps).toHaveLength(4)
    expect(JSON.stringify(items)).not.toContain('BUDGET')
    const shown = provider.requests.at(-1)?.items ?? []
    if (stateful) expect(JSON.stringify(shown)).not.toContain('BUDGET')
    else expect(JSON.stringify(shown.slice(0, -1))).not.toContain('BUDGET')
  })

  it('gets its answer again until a human speaks, and then a new budget', async () => {
    const { url, provider } = await startBoth(runaway(), { budget })
    const first = await runResponses(url, 'Find out everything.', options)
    const asked = provider.requests.length
    const again = await first.repeat()
    expect(again.text).toBe('This is what I found so far.')
    expect(again.response['governor']).toMatchObject({ terminal_state: 'tool_limit_reached' })
    expect(provider.requests).toHaveLength(asked)
    // Where the provider stores answers, the client may continue from either of the two.
    if (stateful) expect(again.response['id']).toBe(first.steps.at(-1)?.response['id'])
    else expect(again.response['id']).not.toBe(first.steps.at(-1)?.response['id'])
    const more = await first.ask('And now?')
    expect(more.headers.get('x-governor-iteration')).toBe('1/3')
  })
})

describe('a request that asks for a compaction', () => {
  it('is relayed and not counted, even if the budget is used up', async () => {
    const { url, provider } = await startBoth(runaway(), { budget: { max_iterations: 2 } })
    const headers = { 'x-governor-session': 's' }
    const agent = await runResponses(url, 'Go.', { headers, max: 2 })
    const outputs = (agent.steps.at(-1)?.calls ?? []).map(({ call_id }) => ({
      type: 'function_call_output',
      call_id,
      output: 'found',
    }))
    const asked = { store: false, input: [...agent.items, ...outputs, { type: 'compaction_trigger' }] }
    for (let times = 0; times < 3; times++) {
      const { status, headers: got } = await callResponses(url, asked, { headers })
      expect([status, got.get('x-governor-iteration'), got.get('x-governor-verdict')]).toEqual([200, null, null])
    }
    expect(provider.requests.at(-1)?.json).toMatchObject(asked)
    const compacted = [
      { type: 'compaction', encrypted_content: 'x' },
      { role: 'user', content: 'Go.' },
    ]
    const next = await callResponses(url, { store: false, input: compacted }, { headers })
    expect(next.headers.get('x-governor-iteration')).toBe('2/2')
    expect(next.response['governor']).toMatchObject({ terminal_state: 'tool_limit_reached' })
  })
})
