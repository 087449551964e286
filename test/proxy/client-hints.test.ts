import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import { callMessages, runawayMessages, runMessagesAgent } from '../support/messages.ts'

const SESSION = { 'x-claude-code-session-id': 'f74f64e0-36c0-4c8b-b9ac-73c2b2777751' }
const CLASS = 'x-claude-code-request-class'
const COMPACTION = 'x-claude-code-compaction'

describe('a request whose class Claude Code states in a header', () => {
  it.each<[Readonly<Record<string, string>>, boolean]>([
    [{ [CLASS]: 'main' }, true],
    [{ [CLASS]: 'subagent' }, true],
    [{ [CLASS]: 'workflow' }, true],
    [{ [CLASS]: 'auxiliary' }, false],
    [{ [CLASS]: 'compaction' }, false],
    [{ [CLASS]: 'main', [COMPACTION]: 'auto' }, false],
    [{ [COMPACTION]: 'manual' }, false],
    [{ [COMPACTION]: 'reactive' }, false],
  ])('counts by %j alone (%s), whether it offers tools or not', async (headers, isCounted) => {
    const { url } = await startBoth(runawayMessages())
    for (const [at, body] of [{}, { tools: undefined }].entries()) {
      const { headers: got } = await callMessages(url, [{ role: 'user', content: 'Hi' }], {
        headers: { 'x-claude-code-session-id': `s${at}`, ...headers },
        body,
      })
      expect(got.get('x-governor-iteration')).toBe(isCounted ? '1/300' : null)
    }
  })

  it.each<[Readonly<Record<string, string>>]>([
    [{}],
    [{ [CLASS]: 'something_new' }],
    [{ [CLASS]: '' }],
    [{ [COMPACTION]: 'false' }],
    [{ 'x-claude-code-agent-type': 'Explore', 'x-claude-code-context-compacted': 'auto' }],
  ])('counts by the tools that it offers where %j says nothing that is known', async (headers) => {
    const { url } = await startBoth(runawayMessages())
    const iterations = []
    for (const body of [{}, { tools: undefined }]) {
      const { headers: got } = await callMessages(url, [{ role: 'user', content: 'Hi' }], {
        headers: { ...SESSION, ...headers },
        body,
      })
      iterations.push(got.get('x-governor-iteration'))
    }
    expect(iterations).toEqual(['1/300', null])
  })

  it('costs a run nothing if it is a side request in the middle of it', async () => {
    const { url } = await startBoth(runawayMessages(), {
      budget: { max_iterations: 3 },
      loop_guard: { enabled: false },
    })
    const { messages } = await runMessagesAgent(url, [{ role: 'user', content: 'Go.' }], {
      headers: { ...SESSION, [CLASS]: 'main' },
      max: 2,
    })
    for (let at = 0; at < 4; at++) await callMessages(url, messages, { headers: { ...SESSION, [CLASS]: 'auxiliary' } })
    const last = await callMessages(url, messages, { headers: { ...SESSION, [CLASS]: 'main' } })
    expect(last.headers.get('x-governor-iteration')).toBe('3/3')
  })
})

describe('a request of Claude Code for what its user might type next', () => {
  it('is relayed with its tools and counts nothing, also after the end of a run', async () => {
    const { url, provider, events } = await startBoth(runawayMessages(), { budget: { max_iterations: 3 } })
    const { messages } = await runMessagesAgent(url, [{ role: 'user', content: 'Go.' }], { headers: SESSION })
    expect(provider.requests).toHaveLength(4)
    const suggest = '[SUGGESTION MODE: Suggest what the user might naturally type next into Claude Code.]'
    const { headers } = await callMessages(url, [...messages, { role: 'user', content: suggest }], { headers: SESSION })
    expect(headers.get('x-governor-iteration')).toBeNull()
    expect(provider.requests).toHaveLength(5)
    expect(provider.requests.at(-1)?.json.tools).toHaveLength(1)
    const next = await callMessages(url, [...messages, { role: 'user', content: 'Go on.' }], { headers: SESSION })
    expect(next.headers.get('x-governor-iteration')).toBe('1/3')
    expect(events.filter(({ kind }) => kind === 'stopped')).toHaveLength(1)
  })
})

describe('a request of Grok Build', () => {
  const asked = (id: string) => ({ headers: { 'x-grok-session-id': '01a2', 'x-grok-req-id': id } })

  it('counts by the id of a request, unless that says that it asks for a line about the run', async () => {
    const { url, provider } = await startBoth(runawayMessages(), {
      budget: { max_iterations: 3 },
      loop_guard: { enabled: false },
    })
    const begin = [{ role: 'user', content: 'Go.' }]
    const { messages } = await runMessagesAgent(url, begin, { ...asked('2eb1e952-f65a'), max: 2 })
    for (const kind of ['turn-summary', 'title-refresh', 'recap', 'promptsuggest', 'compact']) {
      const { headers } = await callMessages(url, messages, asked(`xai-${kind}-be63c74a-c3c4`))
      expect(headers.get('x-governor-iteration')).toBeNull()
    }
    const last = await callMessages(url, messages, asked('2eb1e952-f65a'))
    expect(last.headers.get('x-governor-iteration')).toBe('3/3')
    expect(provider.requests).toHaveLength(8)
  })
})

describe('the budget of an agent whose system text begins with a line for billing', () => {
  it.each([false, true])(
    'is announced in the first message, with the same bytes in every request (stream: %s)',
    async (stream) => {
      const system = [
        { type: 'text', text: 'x-anthropic-billing-header: cc_version=2.1.330; cc_entrypoint=cli;' },
        { type: 'text', text: 'You are an agent.', cache_control: { type: 'ephemeral' } },
      ]
      const { url, provider } = await startBoth(runawayMessages(), {
        budget: { max_iterations: 4, announce: 'always', adaptive: false },
      })
      const { steps } = await runMessagesAgent(url, [{ role: 'user', content: 'Go.' }], {
        stream,
        body: { system },
      })
      expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_iterations' })
      for (const { body, json } of provider.requests) {
        expect(body.includes(`"system":${JSON.stringify(system)}`)).toBe(true)
        expect(json.messages[0]).toEqual({
          role: 'user',
          content: expect.stringMatching(/^Go\.\n\nTool budget: you have 4 iterations total\./),
        })
      }
    },
  )
})

describe('a run whose history Claude Code compacted', () => {
  const summary = 'This session is being continued from a previous conversation. Summary: much was found.'
  const compacted = [{ role: 'user', content: summary }]

  it.each([
    ['was stopped', { max_iterations: 3 }, {}, '3/3'],
    ['was stopped', { max_iterations: 3 }, { 'x-claude-code-context-compacted': 'true' }, '3/3'],
  ])('and that %s stays stopped (%j, %j)', async (_, budget, hint, iteration) => {
    const { url } = await startBoth(runawayMessages(), { budget })
    await runMessagesAgent(url, [{ role: 'user', content: 'Find out everything.' }], { headers: SESSION })
    const step = await callMessages(url, compacted, { headers: { ...SESSION, ...hint } })
    expect(step.headers.get('x-governor-iteration')).toBe(iteration)
    expect(step.governor).toMatchObject({ terminal_reason: 'max_iterations' })
  })

  it('goes on after an answer only if the client says so in a header', async () => {
    const { url } = await startBoth(() => ({ text: 'Done.' }))
    const asked = [{ role: 'user', content: 'Find out everything.' }] as const
    const call = { role: 'assistant', content: [{ type: 'tool_use', id: 'a', name: 'search', input: {} }] }
    const result = { role: 'user', content: [{ type: 'tool_result', tool_use_id: 'a', content: 'found' }] }
    const seen: (string | null)[] = []
    for (const hint of [{}, { 'x-claude-code-context-compacted': 'true' }]) {
      const headers = { 'x-claude-code-session-id': `s${seen.length}` }
      await callMessages(url, [...asked, call, result], { headers })
      const step = await callMessages(url, compacted, { headers: { ...headers, ...hint } })
      seen.push(step.headers.get('x-governor-iteration'))
    }
    expect(seen).toEqual(['1/300', '3/300'])
  })
})
