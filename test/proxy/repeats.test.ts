import { describe, expect, it } from 'vitest'
import { afterStep, callModel, runAgent, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway, type Script } from '../support/provider.ts'

const budget = { max_iterations: 6, adaptive: false, caution_threshold: 1, warning_threshold: 1 }
const named = { headers: { 'x-governor-session': 's' } }

/** Sends one request of an agent's run many times; returns the headers of each response. */
async function repeat(url: string, times: number, options: Parameters<typeof callModel>[2] = {}) {
  const { messages } = await runAgent(url, START, { ...options, max: 1 })
  const told: { iteration: string | null; repeat: string | null; reason: unknown; loop: string | null }[] = []
  for (let time = 0; time < times; time++) {
    const { headers, governor } = await callModel(url, messages, options)
    told.push({
      iteration: headers.get('x-governor-iteration'),
      repeat: headers.get('x-governor-repeat'),
      reason: governor?.['terminal_reason'],
      loop: headers.get('x-governor-loop'),
    })
  }
  return told
}

describe.each([
  { name: 'named', options: named },
  { name: 'derived', options: {} },
])('a request that is sent again although it was answered, in a $name session', ({ options }) => {
  it.each([false, true])(
    'counts as an iteration from the 33rd time on, until its run is stopped (stream: %s)',
    async (stream) => {
      const { url, provider } = await startBoth(runaway(), { budget })
      const told = await repeat(url, 40, { ...options, stream })
      expect(told.slice(0, 32).every(({ iteration, repeat }) => iteration === '2/6' && repeat === null)).toBe(true)
      expect(told.slice(32).map(({ iteration, repeat }) => [iteration, repeat])).toEqual([
        ['3/6', '33'],
        ['4/6', '34'],
        ['5/6', '35'],
        ['6/6', '36'],
        ['6/6', '37'],
        ['6/6', null],
        ['6/6', null],
        ['6/6', null],
      ])
      expect(told.map(({ reason }) => reason).indexOf('max_iterations')).toBe(36)
      // The loop guard finds no loop in it, and a stopped run sends no more requests to the provider.
      expect(told.every(({ loop }) => loop === null)).toBe(true)
      expect(provider.requests).toHaveLength(1 + 37)
      const metrics = await fetch(`${url}/metrics`).then((response) => response.text())
      expect(metrics).toContain('governor_repeats_counted_total 5')
    },
  )
})

describe('a request with the same bytes', () => {
  it('does not count as a repetition if it got an error or its client left', async () => {
    let leave = new AbortController()
    const script: Script = (request, number) => {
      if (number === 2 || number % 10 === 0) return { status: 429, body: { error: { message: 'slow down' } } }
      if (number % 10 !== 5) return runaway()(request, number)
      leave.abort()
      return new Promise(() => undefined)
    }
    const { url, provider } = await startBoth(script, { budget })
    const messages = afterStep(START, await callModel(url, START, named))
    let whole = 0
    let counted: string | null = null
    while (counted === null && provider.requests.length < 60) {
      leave = new AbortController()
      const step = await callModel(url, messages, { ...named, signal: leave.signal }).catch(() => undefined)
      counted = step?.headers.get('x-governor-repeat') ?? null
      if (step?.status === 200) whole++
    }
    expect([whole, counted]).toEqual([33, '33'])
  })

  it('does not count in the next step of the run', async () => {
    const { url } = await startBoth(runaway())
    const { messages } = await runAgent(url, START, { ...named, max: 1 })
    for (let time = 0; time < 31; time++) await callModel(url, messages, named)
    const step = await callModel(url, messages, named)
    expect(step.headers.get('x-governor-iteration')).toBe('2/300')
    const next = await callModel(url, afterStep(messages, step), named)
    expect(next.headers.get('x-governor-iteration')).toBe('3/300')
  })
})
