import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import {
  ASKED,
  callMessages,
  type Message,
  type MessagesStep,
  resultsFor,
  runawayMessages,
  runMessagesAgent,
} from '../support/messages.ts'
import type { Script } from '../support/provider.ts'

const SESSION = { 'x-claude-code-session-id': 'f74f64e0-36c0-4c8b-b9ac-73c2b2777751' }
const loop_guard = { enabled: false }

/** An agent of one session that makes one step at a time: the parent has no name, its sub-agents have one. */
function agent(url: string, name: string, asked: readonly Message[] = ASKED) {
  const headers = { ...SESSION, ...(name === '' ? {} : { 'x-claude-code-agent-id': name }) }
  let messages: readonly Message[] = asked
  return {
    async step(): Promise<MessagesStep> {
      const step = await callMessages(url, messages, { headers, stream: true })
      const { content } = step.message
      messages = [...messages, { role: 'assistant', content }, resultsFor(content)]
      return step
    },
  }
}

const iteration = ({ headers }: MessagesStep) => headers.get('x-governor-iteration')

describe('sub-agents under one session id', () => {
  it('are each counted separately, in any order and at any depth', async () => {
    const { url } = await startBoth(runawayMessages(), { loop_guard })
    const [main, child, grandchild] = ['', 'a05f9a8988ea7d30d', 'ae76be1e453716535'].map((name) =>
      agent(url, name, [{ role: 'user', content: name === '' ? 'Do it.' : `Help with ${name}.` }]),
    )
    if (!main || !child || !grandchild) throw new Error('no agents')
    const order = [main, main, child, grandchild, main, grandchild, grandchild, main, child, main]
    const recentRequests: (string | null)[] = []
    for (const one of order) recentRequests.push(iteration(await one.step()))
    expect(recentRequests).toEqual(['1', '2', '1', '1', '3', '2', '3', '4', '2', '5'].map((at) => `${at}/300`))
  })

  it('are separate even if they got the same task and run at the same time', async () => {
    const { url } = await startBoth(runawayMessages(), { loop_guard })
    const agents = ['', 'a', 'b', 'c', 'd'].map((name) => agent(url, name))
    for (const at of [1, 2, 3]) {
      const steps = await Promise.all(agents.map((one) => one.step()))
      expect(steps.map(iteration)).toEqual(Array(5).fill(`${at}/300`))
    }
  })

  it('are each stopped at their own limit, while their parent continues', async () => {
    const { url } = await startBoth(runawayMessages(), {
      loop_guard,
      overrides: [{ header: { 'x-claude-code-agent-id': '*' }, budget: { run: { max_tool_calls: 8 } } }],
    })
    const parent = agent(url, '')
    await parent.step()
    const headers = { ...SESSION, 'x-claude-code-agent-id': 'a1' }
    const { steps } = await runMessagesAgent(url, ASKED, { headers, stream: true })
    expect(steps).toHaveLength(9)
    expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'max_tool_calls', budget_used: 8 })
    for (let at = 2; at < 12; at++) {
      const step = await parent.step()
      expect(iteration(step)).toBe(`${at}/300`)
      expect(step.headers.get('x-governor-verdict')).toBe('allow')
    }
  })

  it('are not warned about each other’s loops', async () => {
    const script: Script = ({ json, header }, number) => {
      const query = header('x-claude-code-agent-id') === 'stuck' ? 'same' : `q${number}`
      return json.tool_choice === 'none' ? { text: 'done' } : { calls: [{ name: 'search', arguments: { query } }] }
    }
    const { url } = await startBoth(script, { loop_guard: { mode: 'warn' } })
    const stuck = agent(url, 'stuck')
    const free = agent(url, 'free')
    const loops: (string | null)[][] = []
    for (let at = 0; at < 5; at++) {
      const steps = await Promise.all([stuck.step(), free.step()])
      loops.push(steps.map(({ headers }) => headers.get('x-governor-loop')))
    }
    expect(loops.map(([, ofFree]) => ofFree)).toEqual(Array(5).fill(null))
    expect(loops.map(([ofStuck]) => ofStuck)).toContain('repetition;count=3')
  })

  it('share the limits of their session', async () => {
    const { url } = await startBoth(runawayMessages(), {
      loop_guard,
      budget: { max_iterations: 0, session: { max_tokens: 1_100 } },
    })
    const agents = ['', 'a', 'b'].map((name) => agent(url, name))
    const stopped: number[] = []
    for (let at = 0; at < 12; at++) {
      const step = await agents[at % 3]?.step()
      if (step?.governor) stopped.push(at)
    }
    // Ten answers of 110 tokens for all three together.
    expect(stopped).toEqual([10, 11])
  })
})
