import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import {
  ASKED,
  type Block,
  callMessages,
  type Message,
  type MessagesStep,
  runawayMessages,
  runMessagesAgent,
} from '../support/messages.ts'
import type { Answer, Script } from '../support/provider.ts'
import { callsUntilStopped } from '../support/scripts.ts'

const STOP =
  "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools."
const CALL: Answer = { calls: [{ name: 'search', arguments: { query: 'more' } }] }
const THINKING = { type: 'thinking', thinking: 'Hm.', signature: 'c2lnbmVk' }
const budget = { max_iterations: 3, adaptive: false, caution_threshold: 1, warning_threshold: 1 }

async function stoppedRun(script: Script, stream: boolean) {
  const both = await startBoth(script, { budget })
  const { steps, messages } = await runMessagesAgent(both.url, ASKED, { stream, max: 4 })
  expect(steps).toHaveLength(4)
  const before = messages.slice(0, -1)
  return { ...both, last: steps[3] as MessagesStep, before, stops: both.provider.requests.slice(3) }
}

const lastContent = (body: { messages: readonly { content?: unknown }[] }) =>
  body.messages.at(-1)?.content as { type: string; text?: string }[]

describe.each([{ stream: false }, { stream: true }])('a Messages run (stream: $stream)', ({ stream }) => {
  it('is counted by its transcript and forwarded unchanged', async () => {
    const { url, provider } = await startBoth((_, number) =>
      number < 4 ? CALL : { blocks: [THINKING], text: 'It is — after all — 42. 🎉' },
    )
    const { steps } = await runMessagesAgent(url, ASKED, { stream })
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration'))).toEqual([
      '1/300',
      '2/300',
      '3/300',
      '4/300',
    ])
    expect(steps.at(-1)?.message.content).toEqual([THINKING, { type: 'text', text: 'It is — after all — 42. 🎉' }])
    expect(provider.requests).toHaveLength(4)
    const sessions = new Set(steps.slice(1).map(({ headers }) => headers.get('x-governor-session')))
    expect(sessions.size).toBe(1)
  })

  it.each([
    [
      'a skill that was loaded before',
      'Skill /charts:bars is already loaded above; instructions unchanged. Arguments: b',
    ],
    ['a skill with other arguments', '(Re-invocation of /charts — the skill instructions were previously loaded.)'],
    ['a search for tools', 'Tool loaded.'],
    [
      'a picture that was made smaller',
      '[Image: original 3000x2000, displayed at 2000x1333, to map to original image.]',
    ],
  ])('goes on after what Claude Code says behind the result of %s', async (_, text) => {
    const { url } = await startBoth((_received, number) => ({ calls: [{ name: 'search', arguments: { number } }] }))
    const messages: Message[] = [...ASKED]
    const seen: (string | null)[] = []
    for (let at = 0; at < 6; at++) {
      const step = await callMessages(url, messages, { stream, headers: { 'x-governor-session': 's' } })
      seen.push(step.headers.get('x-governor-iteration'))
      const results = step.message.content.flatMap((block) =>
        block.type === 'tool_use' ? [{ type: 'tool_result', tool_use_id: block['id'], content: `found ${at}` }] : [],
      )
      const said = at % 2 === 0 ? [{ type: 'text', text }] : []
      messages.push(
        { role: 'assistant', content: step.message.content },
        { role: 'user', content: [...results, ...said] },
      )
    }
    expect(seen).toEqual([1, 2, 3, 4, 5, 6].map((number) => `${number}/300`))
  })

  it('ends with an answer of the model, which may not call what only a message defines', async () => {
    const definition = { name: 'search', input_schema: { type: 'object' } }
    const added = { type: 'tool_addition', tool: { type: 'tool_definition', definition } }
    const { url } = await startBoth(
      ({ json }) => ((json.tool_choice as Block | undefined)?.type === 'none' ? { text: 'So far.' } : CALL),
      { budget },
    )
    const asked = { role: 'user', content: [{ type: 'text', text: 'Find out everything.' }, added] }
    const { steps } = await runMessagesAgent(url, [asked], { stream, max: 6, body: { tools: undefined } })
    expect(steps).toHaveLength(4)
    expect(steps.at(-1)).toMatchObject({ text: 'So far.', governor: { has_final_answer: true } })
  })

  it('is counted where the provider alone calls tools, of MCP servers, and pauses again and again', async () => {
    const { url } = await startBoth(
      ({ json }, number) => {
        if (!json['mcp_servers']) return { text: 'So far.' }
        const id = `mcptoolu_${number}`
        const call = { type: 'mcp_tool_use', id, name: 'next', server_name: 'queue', input: {} }
        const content = [{ type: 'text', text: 'Nothing.' }]
        const result = { type: 'mcp_tool_result', tool_use_id: id, is_error: false, content }
        return { blocks: [call, result], finish: 'pause_turn' }
      },
      { budget },
    )
    const body = { tools: undefined, mcp_servers: [{ type: 'url', url: 'https://queue.example', name: 'queue' }] }
    const messages: Message[] = [...ASKED]
    const steps: MessagesStep[] = []
    do {
      const step = await callMessages(url, messages, { stream, body })
      steps.push(step)
      messages.push({ role: 'assistant', content: step.message.content })
    } while (steps.at(-1)?.stop === 'pause_turn' && steps.length < 10)
    expect(steps.at(-1)).toMatchObject({ text: 'So far.', governor: { terminal_state: 'tool_limit_reached' } })
    expect(steps).toHaveLength(4)
  })

  it('gets a notice in a separate block after the newest results', async () => {
    const { url, provider } = await startBoth(runawayMessages(), {
      budget: { max_iterations: 5, adaptive: false, caution_threshold: 0.6, warning_threshold: 0.8 },
    })
    await runMessagesAgent(url, ASKED, { stream, max: 5 })
    const told = provider.requests.map(({ json }) => lastContent(json))
    expect(told[1]?.map(({ type }) => type)).toEqual(['tool_result'])
    expect(told[2]?.map(({ type }) => type)).toEqual(['tool_result', 'text'])
    expect(told[2]?.[1]?.text).toMatch(/^\[BUDGET: Iteration 3\/5\. You have 2 iterations left/)
    expect(told[3]?.[1]?.text).toMatch(/^\[BUDGET: Iteration 4\/5\. You MUST/)
  })

  it('is stopped with its tools unchanged and tool_choice none', async () => {
    const { stops, provider, last } = await stoppedRun(runawayMessages(), stream)
    const [asked] = stops
    expect(asked?.json.tool_choice).toEqual({ type: 'none' })
    expect(asked?.json.tools).toEqual(provider.requests[0]?.json.tools)
    expect(lastContent(asked?.json as never).at(-1)).toEqual({ type: 'text', text: STOP })
    expect(stops).toHaveLength(1)
    expect(last.stop).toBe('end_turn')
    expect(last.text).toBe('This is what I found so far.')
    expect(last.governor).toMatchObject({
      terminal_state: 'tool_limit_reached',
      terminal_reason: 'max_iterations',
      has_final_answer: true,
      budget_used: 3,
      budget_max: 3,
    })
    expect(last.headers.get('x-governor-terminal-state')).toBe('tool_limit_reached')
    expect(last.headers.get('x-governor-verdict')).toBe('stop')
  })

  it('removes the tool calls that a stopped model makes anyway, and keeps its reasoning', async () => {
    const { last, stops } = await stoppedRun(
      callsUntilStopped({ blocks: [THINKING], text: 'I know enough. ', ...CALL }),
      stream,
    )
    expect(last.message.content).toEqual([THINKING, { type: 'text', text: 'I know enough. ' }])
    expect(last.stop).toBe('end_turn')
    expect(stops).toHaveLength(1)
  })

  it('asks a model that only calls tools once more, and adds up the usage of both responses', async () => {
    const { last, stops } = await stoppedRun(
      callsUntilStopped({ blocks: [THINKING], ...CALL }, { text: 'Fine, here it is.' }),
      stream,
    )
    expect(last.text).toBe('Fine, here it is.')
    expect(last.stop).toBe('end_turn')
    expect(last.governor).toMatchObject({ has_final_answer: true })
    expect(last.usage).toMatchObject({ input_tokens: 200, output_tokens: 20 })
    expect(stops).toHaveLength(2)
    expect(stops[1]?.json).not.toHaveProperty('tools')
    expect(stops[1]?.json).not.toHaveProperty('tool_choice')
  })

  it.each([
    ['nothing', {}],
    ['white space', { text: ' \n ' }],
    ['thoughts alone', { blocks: [THINKING] }],
    ['a written-out tool call', { text: '<tool_call>{"name": "search"}</tool_call>' }],
    ['tool calls', CALL],
  ] as const)('gives the fallback text when the model says %s twice', async (_, answer) => {
    const { last, stops } = await stoppedRun(callsUntilStopped(answer), stream)
    expect(last.status).toBe(200)
    expect(last.text).toBe('(Reached max iterations: 3)')
    expect(last.message.content.filter(({ type }) => type === 'tool_use')).toEqual([])
    expect(last.stop).toBe('end_turn')
    expect(last.governor).toMatchObject({ has_final_answer: false })
    expect(stops).toHaveLength(2)
  })

  it('repeats the recorded answer until a human speaks', async () => {
    const { url, before, last, provider } = await stoppedRun(runawayMessages(), stream)
    const asked = provider.requests.length
    const again = await callMessages(url, before, { stream })
    expect(again.text).toBe(last.text)
    expect(again.stop).toBe('end_turn')
    expect(again.governor).toEqual(last.governor)
    expect(provider.requests).toHaveLength(asked)
    const next: Message[] = [
      ...before,
      { role: 'assistant', content: last.text },
      { role: 'user', content: 'And now the rest.' },
    ]
    const fresh = await callMessages(url, next, { stream })
    expect(fresh.headers.get('x-governor-iteration')).toBe('1/3')
  })

  it('begins a new run when a person speaks beside tool results, not when a harness does', async () => {
    const { url } = await startBoth(runawayMessages())
    const { messages } = await runMessagesAgent(url, ASKED, { stream, max: 3 })
    const beside = (text: string) => {
      const results = messages.at(-1)?.content ?? []
      return [...messages.slice(0, -1), { role: 'user', content: [...results, { type: 'text', text }] as Block[] }]
    }
    const harness = await callMessages(url, beside('<system-reminder>Mind.</system-reminder>'), { stream })
    expect(harness.headers.get('x-governor-iteration')).toBe('4/300')
    const person = await callMessages(url, beside('Stop that. Look at the tests.'), { stream })
    expect(person.headers.get('x-governor-iteration')).toBe('1/300')
  })

  it('is stopped with the fallback when every request form is refused', async () => {
    const refuse = {
      status: 400,
      body: { type: 'error', error: { type: 'invalid_request_error', message: 'no' } },
    }
    const { last } = await stoppedRun(callsUntilStopped(refuse), stream)
    expect(last.status).toBe(200)
    expect(last.text).toBe('(Reached max iterations: 3)')
  })
})

describe('a request to a path below /v1/messages', () => {
  it.each(['/v1/messages/count_tokens', '/v1/messages/batches', '/v1/threads/thread_1/messages'])(
    'is relayed unread: %s',
    async (path) => {
      const { url, provider } = await startBoth(() => ({ body: { input_tokens: 3 } }))
      const body = JSON.stringify({ model: 'm', messages: ASKED, tools: [{ name: 'a' }] })
      const response = await fetch(url + path, { method: 'POST', body, headers: { 'x-api-key': 'k' } })
      expect(await response.json()).toEqual({ input_tokens: 3 })
      expect(response.headers.get('x-governor-verdict')).toBeNull()
      expect(provider.requests[0]?.body.toString()).toBe(body)
    },
  )

  it('is counted like any other with `?beta=true`', async () => {
    const { url } = await startBoth(runawayMessages())
    const response = await fetch(`${url}/v1/messages?beta=true`, {
      method: 'POST',
      headers: { 'content-type': 'application/json', 'x-api-key': 'k' },
      body: JSON.stringify({ model: 'm', messages: ASKED, tools: [{ name: 'a' }] }),
    })
    expect(response.headers.get('x-governor-iteration')).toBe('1/300')
    await response.text()
  })
})
