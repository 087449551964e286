import { describe, expect, it } from 'vitest'
import { callModel, runAgent, START, TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { ChatBody, ChatMessage, Script } from '../support/provider.ts'

const budget = { max_iterations: 10, adaptive: false, caution_threshold: 0.4, warning_threshold: 0.7 }
const loop_guard = { enabled: false }
const stopped = { text: 'Done.' }

/** A model that calls a tool in every answer; `says` is what it writes beside the call. */
function calling(says: (number: number) => string | undefined = () => undefined): Script {
  return ({ json }, number) => {
    const text = says(number)
    if (json.tool_choice === 'none' || !json.tools) return stopped
    return { ...(text ? { text } : {}), calls: [{ name: 'search', arguments: { query: `q${number}` } }] }
  }
}

const lastRole = ({ messages }: ChatBody) => messages.at(-1)?.role

describe.each([false, true])('a warning about the budget (stream: %s)', (stream) => {
  it('that was ignored is repeated as a separate message until the model acknowledges it', async () => {
    const { url, provider, events } = await startBoth(
      calling((number) => (number === 9 ? 'I will wrap up now.' : undefined)),
      { budget, loop_guard },
    )
    await runAgent(url, START, { stream })
    // Warned at 7, ignored at 7 and 8, acknowledged at 9.
    expect(provider.requests.slice(5, 10).map(({ json }) => lastRole(json))).toEqual([
      'tool',
      'tool',
      'user',
      'user',
      'tool',
    ])
    expect(provider.requests[7]?.json.messages.at(-1)?.content).toMatch(/^\[BUDGET: Iteration 8\/10\. You MUST/)
    const reactions = events.flatMap((event) => (event.kind === 'warning_answered' ? [event.reaction] : []))
    expect(reactions).toEqual(['ignored', 'ignored', 'acknowledged', 'ignored'])
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_warnings_answered_total{reaction="ignored"} 3')
    expect(metrics).toContain('governor_warnings_answered_total{reaction="acknowledged"} 1')
  })

  it('stays in the tool result with escalate: false', async () => {
    const { url, provider } = await startBoth(calling(), {
      budget: { ...budget, escalate: false },
      loop_guard,
    })
    await runAgent(url, START, { stream })
    expect(provider.requests.slice(1, 10).map(({ json }) => lastRole(json))).toEqual(Array(9).fill('tool'))
  })

  it('is repeated in the same form for a retry', async () => {
    const { url, provider } = await startBoth(calling(), { budget, loop_guard })
    const { messages } = await runAgent(url, START, { stream, max: 8 })
    const headers = { 'x-governor-session': 'again' }
    await callModel(url, messages.slice(0, -2), { stream, headers })
    await callModel(url, messages, { stream, headers })
    await callModel(url, messages, { stream, headers })
    const [first, second] = provider.requests.slice(-2)
    expect(second?.body.toString()).toBe(first?.body.toString())
    expect(first && lastRole(first.json)).toBe('user')
  })

  it('that is answered without a call is acknowledged at once and counted once', async () => {
    const { url, events, until } = await startBoth(
      ({ json }, number) => (number === 7 ? { text: 'Here you are.' } : calling()({ json } as never, number)),
      { budget, loop_guard },
    )
    const { messages } = await runAgent(url, START, { stream })
    await until(({ kind }) => kind === 'warning_answered')
    await callModel(url, [...messages, { role: 'user', content: 'Thanks. And now?' }], { stream })
    const reactions = events.flatMap((event) => (event.kind === 'warning_answered' ? [event.reaction] : []))
    expect(reactions).toEqual(['acknowledged'])
  })
})

describe('tools that are dropped', () => {
  const named = (...names: readonly string[]) =>
    names.map((name) => ({ type: 'function', function: { name, parameters: { type: 'object' } } }))
  const config = (...globs: readonly string[]) => ({
    budget: { ...budget, wrap_up: { drop_tools: globs } },
    loop_guard,
  })
  const offered = (body: ChatBody | undefined) =>
    (body?.tools ?? []).map((tool) => (tool as { function: { name: string } }).function.name)
  const tools = named('search', 'spawn_agent', 'web_fetch')

  it('are no longer offered after the warning', async () => {
    const { url, provider } = await startBoth(calling(), config('web_*', 'spawn_agent'))
    await runAgent(url, START, { max: 8, body: { tools } })
    const all = ['search', 'spawn_agent', 'web_fetch']
    expect(provider.requests.map(({ json }) => offered(json))).toEqual([...Array(6).fill(all), ['search'], ['search']])
    expect(provider.requests.every(({ json }) => json.tool_choice === undefined)).toBe(true)
  })

  it('are also dropped from the older list of functions', async () => {
    const { url, provider } = await startBoth(calling(), config('web_*'))
    const functions = tools.map((tool) => tool.function)
    const ask = async (iteration: number, more: object = {}) => {
      const called = { role: 'assistant', content: null, function_call: { name: 'search', arguments: '{}' } }
      const steps = Array.from({ length: iteration - 1 }, (_, at) => [
        called,
        { role: 'function', name: 'search', content: `${at}` },
      ])
      const messages = [...START, ...steps.flat()] as ChatMessage[]
      await callModel(url, messages, { body: { tools: undefined, functions, ...more } })
      const sent = provider.requests.at(-1)?.json['functions'] as { name: string }[] | undefined
      return sent?.map(({ name }) => name)
    }
    expect(await ask(6)).toEqual(['search', 'spawn_agent', 'web_fetch'])
    expect(await ask(7)).toEqual(['search', 'spawn_agent'])
    expect(await ask(8, { function_call: { name: 'web_fetch' } })).toHaveLength(3)
  })

  it('stay dropped when the run is stopped, so that the prompt begins as before', async () => {
    const { url, provider } = await startBoth(calling(), config('web_*'))
    const { steps } = await runAgent(url, START, { body: { tools } })
    expect(steps.at(-1)?.governor).toMatchObject({ has_final_answer: true })
    const [before, last] = provider.requests.slice(-2).map(({ json }) => json)
    expect(last?.tool_choice).toBe('none')
    expect(last?.tools).toEqual(before?.tools)
    expect(offered(last)).toEqual(['search', 'spawn_agent'])
  })

  it('stay if tool_choice names them', async () => {
    const { url, provider } = await startBoth(calling(), config('*'))
    const choice = { type: 'function', function: { name: 'search' } }
    await runAgent(url, START, { max: 7, body: { tools, tool_choice: choice } })
    expect(offered(provider.requests[6]?.json)).toEqual(['search'])
    expect(provider.requests[6]?.json.tool_choice).toEqual(choice)
  })

  it('stay but cannot be chosen if no other tool is left', async () => {
    const { url, provider } = await startBoth(calling(), config('*'))
    const { steps } = await runAgent(url, START, { body: { tools } })
    expect(offered(provider.requests[6]?.json)).toHaveLength(3)
    expect(provider.requests[6]?.json.tool_choice).toBe('none')
    expect(steps).toHaveLength(7)
    expect(steps.at(-1)?.finish).toBe('stop')
  })

  it.each([
    ['no_tools', ['web_*']],
    ['no_tools', ['*']],
    ['choice_none', ['web_*']],
  ])('do not prevent the end of a run in a loop: %s after %j', async (ban, globs) => {
    const same = { calls: [{ name: 'search', arguments: { query: 'the same' } }] }
    const { url } = await startBoth(
      ({ json }) => {
        // The model calls a tool if it may choose one; with tool_choice none it answers only if it is given no tools.
        if (ban === 'choice_none' && json.tool_choice === 'none') return stopped
        return json.tools ? same : stopped
      },
      {
        budget: {
          max_iterations: 100,
          adaptive: false,
          warning_threshold: 0,
          caution_threshold: 0,
          wrap_up: { drop_tools: globs },
        },
      },
    )
    const { steps } = await runAgent(url, START, { body: { tools }, max: 20 })
    expect(steps.every(({ status }) => status === 200)).toBe(true)
    expect(steps.at(-1)?.message.content).toBe('Done.')
    expect(steps.at(-1)?.governor).toMatchObject({
      terminal_state: 'loop_detected',
      has_final_answer: true,
    })
  })

  it('come back if the provider refuses a request without them, and are not dropped again', async () => {
    const go = calling()
    const { url, provider, events } = await startBoth(
      (request, number) =>
        offered(request.json).length < 3
          ? { status: 400, body: { error: { message: 'tools must not change' } } }
          : go(request, number),
      config('web_*'),
    )
    const { steps } = await runAgent(url, START, { max: 9, body: { tools } })
    expect(steps.every(({ status }) => status === 200)).toBe(true)
    expect(provider.requests.filter(({ json }) => offered(json).length < 3)).toHaveLength(1)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'alteration_refused', alteration: 'drop_tools' }))
  })
})

describe('a gateway that finds no provider for tool_choice none', () => {
  it.each([true, false])('gets the tools back, whether calls are filtered (%s) or not', async (enabled) => {
    const go = calling()
    const { url, provider, events } = await startBoth(
      (request, number) =>
        request.json.tool_choice === 'none'
          ? { status: 404, body: { error: { message: 'nobody takes this' } } }
          : go(request, number),
      {
        budget: { max_iterations: 5, announce: 'always', wrap_up: { drop_tools: ['*'] } },
        loop_guard: { enabled, max_warnings_before_block: 0, repetition_threshold: 2 },
      },
    )
    const { steps } = await runAgent(url, START, { max: 5 })
    expect(steps.map(({ status }) => status)).toEqual([200, 200, 200, 200, 200])
    expect(provider.requests.filter(({ json }) => json.tool_choice === 'none')).toHaveLength(1)
    const refused = events.flatMap((event) => (event.kind === 'alteration_refused' ? event.alteration : []))
    expect(refused).toEqual(['drop_tools'])
  })
})

describe('caution_when: stagnating', () => {
  const config = { budget: { ...budget, warning_threshold: 0.9, caution_when: 'stagnating' } }

  /** Calls the same two tools again and again from a request on. */
  const turning =
    (from: number): Script =>
    ({ json }, number) =>
      json.tool_choice === 'none'
        ? stopped
        : { calls: [{ name: 'search', arguments: { query: number < from ? `q${number}` : 'same' } }] }

  it.each([{ enabled: false }, { mode: 'observe' }])(
    'cautions only a run that makes no progress, with the loop guard %j',
    async (guard) => {
      const stuck = await startBoth(turning(1), { ...config, loop_guard: guard })
      const { steps } = await runAgent(stuck.url, START)
      // Five calls that brought nothing new, after the first one.
      expect(steps.map(({ headers }) => headers.get('x-governor-tier'))).toEqual([
        ...Array(6).fill(null),
        'caution',
        'caution',
        'warning',
        'warning',
        null,
      ])
      expect(stuck.events.some(({ kind }) => kind === 'loop')).toBe('mode' in guard)

      const working = await startBoth(turning(99), { ...config, loop_guard: guard })
      const { steps: free } = await runAgent(working.url, START)
      expect(free.map(({ headers }) => headers.get('x-governor-tier'))).toEqual([
        ...Array(8).fill(null),
        'warning',
        'warning',
        null,
      ])
    },
  )
})

describe('overrides', () => {
  const runs = async (overrides: readonly object[], headers: Record<string, string>, model = 'gpt-4o-mini') => {
    const { url } = await startBoth(calling(), { budget: { max_iterations: 5 }, overrides, loop_guard })
    const { steps } = await runAgent(url, START, { headers, body: { model, tools: TOOLS } })
    return steps.length - 1
  }
  const AGENT = { 'x-claude-code-agent-id': 'a1', 'x-governor-session': 's' }

  it.each([
    ['a model', [{ model: '*-mini', budget: { max_iterations: 3 } }], {}, 3],
    ['another model', [{ model: '*-large', budget: { max_iterations: 3 } }], {}, 5],
    ['an upstream', [{ upstream: 'openai', budget: { max_iterations: 2 } }], {}, 2],
    ['another upstream', [{ upstream: 'anthropic', budget: { max_iterations: 2 } }], {}, 5],
    ['a header', [{ header: { 'X-Team': 'r*' }, budget: { max_iterations: 4 } }], { 'x-team': 'research' }, 4],
    [
      'a header of another value',
      [{ header: { 'x-team': 'r*' }, budget: { max_iterations: 4 } }],
      { 'x-team': 'ops' },
      5,
    ],
    ['a header that is not there', [{ header: { 'x-team': '*' }, budget: { max_iterations: 4 } }], {}, 5],
    [
      'the first of two that match',
      [
        { model: 'gpt-*', budget: { max_iterations: 2 } },
        { model: '*-mini', budget: { max_iterations: 3 } },
      ],
      {},
      2,
    ],
    [
      'all that is given',
      [
        { model: 'gpt-*', header: { 'x-team': '*' }, budget: { max_iterations: 2 } },
        { model: '*-mini', budget: { max_iterations: 3 } },
      ],
      {},
      3,
    ],
    [
      'a sub-agent, by other limits',
      [{ header: { 'x-claude-code-agent-id': '*' }, budget: { run: { max_tool_calls: 2 } } }],
      AGENT,
      2,
    ],
    [
      'nobody, where they turn the budget off',
      [{ model: '*', budget: { max_iterations: 0 } }],
      { 'x-governor-max-iterations': '4' },
      4,
    ],
  ])('apply to %s', async (_, overrides, headers, iterations) => {
    expect(await runs(overrides, headers)).toBe(iterations)
  })

  it('for the loop guard alone leave the budget to the next one that matches', async () => {
    const overrides = [
      { model: '*', loop_guard: { mode: 'warn' } },
      { header: { 'user-agent': 'cron/*' }, budget: { max_iterations: 2 } },
      { model: '*', budget: { max_iterations: 3 } },
    ]
    const { url } = await startBoth(calling(), {
      budget: { max_iterations: 5 },
      overrides,
      loop_guard,
    })
    const count = async (agent: string) =>
      (await runAgent(url, START, { headers: { 'user-agent': agent, 'x-governor-session': agent } })).steps.length
    expect([await count('cron/1'), await count('other')]).toEqual([3, 4])
  })

  it('leave settings that they do not name unchanged', async () => {
    const overrides = [{ model: '*', budget: { style: 'countdown', texts: { countdown: 'Only {left} left!' } } }]
    const { url, provider } = await startBoth(calling(), { budget, overrides, loop_guard })
    await runAgent(url, START)
    expect(provider.requests[6]?.json.messages.at(-1)?.content).toBe('the result of search\n\nOnly 3 left!')
    expect(provider.requests).toHaveLength(11)
  })
})

describe('client_override', () => {
  it.each([
    [true, '8', 8],
    [true, '3', 3],
    [true, '0', 5],
    ['lower_only', '8', 5],
    ['lower_only', '3', 3],
    ['lower_only', '0', 5],
    [false, '3', 5],
    [true, 'many', 5],
  ] as const)('%s with %s of 5 leaves %i iterations', async (mode, declared, iterations) => {
    const max = mode === true && declared === '0' ? 12 : 20
    const { url } = await startBoth(calling(), {
      budget: { max_iterations: 5, client_override: mode, announce: 'never' },
      loop_guard,
    })
    const headers = { 'x-governor-max-iterations': declared }
    const { steps } = await runAgent(url, START, { headers, max })
    const isUnlimited = mode === true && declared === '0'
    expect(steps.length).toBe(isUnlimited ? max : iterations + 1)
  })
})
