/** Governor in mode observe: it evaluates requests, and changes nothing. */
import { describe, expect, it } from 'vitest'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'

describe.each([false, true])('mode observe (stream: %s)', (stream) => {
  const options = { stream, headers: { 'x-governor-session': 'one' } }

  it('forwards every request unchanged and reports the verdict that it would have given', async () => {
    const bodies: string[] = []
    const { url, provider, events } = await startBoth(
      ({ body }) => {
        bodies.push(body.toString())
        return { calls: [{ name: 'search', arguments: '{"query":"the same"}' }] }
      },
      { mode: 'observe', budget: { max_iterations: 6 } },
    )
    const { steps } = await runAgent(url, START, { ...options, max: 9 })
    expect(provider.requests).toHaveLength(9)
    expect(bodies.join('')).not.toMatch(/LOOP GUARD|budget|iteration/i)
    expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual(Array(9).fill('allow'))
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration')).slice(5)).toEqual([
      '6/6',
      '7/6',
      '8/6',
      '9/6',
    ])
    const observed = steps.map(({ headers }) => headers.get('x-governor-observed'))
    expect(observed[0]).toBeNull()
    expect(observed[5]).toBe('warn')
    expect(observed.slice(6)).toEqual(['stop', 'stop', 'stop'])
    expect(steps.every(({ message }) => message.tool_calls?.length === 1)).toBe(true)
    expect(events.filter(({ kind }) => ['notice', 'call_blocked', 'stopped'].includes(kind))).toEqual([])
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_observed_verdicts_total{verdict="stop"} 3')
    expect(metrics).toContain('action="observed"')
  })

  it('resumes a run that was stopped before a reload', async () => {
    const { checkConfig } = await import('../../src/config/load.ts')
    const { url, provider, governor } = await startBoth(
      ({ json }) =>
        json.tool_choice === 'none'
          ? { text: 'All I know.' }
          : { calls: [{ name: 'search', arguments: `{"query":"${Math.random()}"}` }] },
      { budget: { max_iterations: 2 } },
    )
    const { messages } = await runAgent(url, START, { ...options, max: 2 })
    const stopped = await callModel(url, messages, options)
    expect(stopped.message.content).toBe('All I know.')
    const upstreams = { openai: { url: provider.url } }
    governor.reload(checkConfig({ upstreams, mode: 'observe', budget: { max_iterations: 2 } }, 'test'))
    const resumed = await callModel(url, messages, options)
    expect(resumed.message.tool_calls).toHaveLength(1)
    expect(resumed.headers.get('x-governor-observed')).toBe('stop')
  })
})
