/** What comes after an answer whose calls were all blocked: the client goes on from the answer before it. */
import { describe, expect, it } from 'vitest'
import { listed } from '../support/admin.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { Answer } from '../support/provider.ts'
import { mayCall, repeatsUntilBlocked } from '../support/scripts.ts'

const SAME: Answer = { calls: [{ name: 'search', arguments: { query: 'the same' } }] }
const REMINDER = { role: 'user', content: '<system-reminder>Say in five words what was done.</system-reminder>' }

describe.each([{ stream: false }, { stream: true }])('after a block (stream: $stream)', ({ stream }) => {
  it('the next question begins a run of the same agent', async () => {
    const { url } = await startBoth(repeatsUntilBlocked(SAME, () => ({ text: 'I give up.' })))
    const { messages } = await runAgent(url, START, { stream, max: 20 })
    const next = await callModel(url, [...messages, { role: 'user', content: 'And now?' }], { stream })
    expect(next.headers.get('x-governor-iteration')).toBe('1/300')
    const [session] = await listed(url)
    expect(session).toMatchObject({ agents: { total: 1 }, total_iterations: 8 })
  })

  it('words of the harness are a step of the same run', async () => {
    const { url } = await startBoth(repeatsUntilBlocked(SAME, () => ({ text: 'I give up.' })))
    const { messages } = await runAgent(url, START, { stream, max: 20 })
    const next = await callModel(url, [...messages, REMINDER], { stream })
    expect(next.headers.get('x-governor-iteration')).toBe('8/300')
    const [session] = await listed(url)
    expect(session).toMatchObject({ agents: { total: 1 }, total_iterations: 8 })
  })

  it('a run that ended stays over when its harness speaks, and its agent goes on with the next question', async () => {
    const { url, provider } = await startBoth((request) => (mayCall(request) ? SAME : { text: 'I could not find it.' }))
    const { messages } = await runAgent(url, START, { stream, max: 20 })
    const asked = provider.requests.length
    const reminded = await callModel(url, [...messages, REMINDER], { stream })
    expect(reminded.governor).toMatchObject({ terminal_state: 'loop_detected' })
    expect(reminded.message.content).toBe('I could not find it.')
    expect(provider.requests).toHaveLength(asked)
    const next = await callModel(url, [...messages, { role: 'user', content: 'And now?' }], { stream })
    expect(next.headers.get('x-governor-iteration')).toBe('1/300')
    const [session] = await listed(url)
    expect(session).toMatchObject({ agents: { total: 1 } })
  })
})
