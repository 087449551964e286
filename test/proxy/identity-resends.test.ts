/** A client may send the bytes of a request again although it has got the answer, and go on from that answer. */
import { describe, expect, it, vi } from 'vitest'
import { afterStep, callModel, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { runaway, type Script } from '../support/provider.ts'

const budget = { max_iterations: 5, adaptive: false, announce: 'never', caution_threshold: 1, warning_threshold: 1 }

const BUSY = { status: 500, body: '{"error": {"message": "busy"}}' }

describe('a request that is sent twice at once, of which one fails after the other was answered', () => {
  it.each([{}, { 'x-governor-session': 's' }])('is an iteration, so that its run ends (%o)', async (headers) => {
    const model = runaway()
    const waiting: (() => void)[] = []
    let isBusy = false
    const script: Script = async (seen, number) => {
      if (!isBusy) return model(seen, number)
      await new Promise<void>((resolve) => waiting.push(resolve))
      return BUSY
    }
    const { url, provider } = await startBoth(script, { budget })
    let messages = START
    const iterations: (string | null)[] = []
    for (let at = 0; at < 6; at++) {
      const { length } = provider.requests
      isBusy = at < 5
      const late = isBusy && callModel(url, messages, { headers })
      await vi.waitFor(() => expect(provider.requests).toHaveLength(length + Number(isBusy)))
      isBusy = false
      const step = await callModel(url, messages, { headers })
      iterations.push(step.headers.get('x-governor-iteration'))
      for (const go of waiting.splice(0)) go()
      await late
      if (step.governor) break
      messages = afterStep(messages, step)
    }
    expect(iterations).toEqual(['1/5', '2/5', '3/5', '4/5', '5/5', '5/5'])
  })
})

describe('an answered request that is sent again, and fails', () => {
  it.each([{}, { 'x-governor-session': 's' }])('stays an iteration, so that its run ends (%o)', async (headers) => {
    const model = runaway()
    let isBusy = false
    const { url } = await startBoth((seen, number) => (isBusy ? BUSY : model(seen, number)), { budget })
    let messages = START
    const iterations: (string | null)[] = []
    for (let at = 0; at < 6; at++) {
      const step = await callModel(url, messages, { headers })
      iterations.push(step.headers.get('x-governor-iteration'))
      if (step.governor) break
      isBusy = true
      expect((await callModel(url, messages, { headers })).status).toBe(500)
      isBusy = false
      messages = afterStep(messages, step)
    }
    expect(iterations).toEqual(['1/5', '2/5', '3/5', '4/5', '5/5', '5/5'])
  })
})
