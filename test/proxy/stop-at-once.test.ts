/** Many requests of one run that reach its limit at the same time. */
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Answer } from '../support/provider.ts'
import { type Api, errorOf, STOPPED, send, TEXT } from '../support/stopped.ts'

const config = { budget: { max_iterations: 1, adaptive: false } }
const OTHERS = 29

/** Starts a Governor whose provider gives `first` to the first request when it is told to, and then answers. */
async function waiting(api: Api, first: Answer) {
  let arrived = () => {}
  let release = () => {}
  const isAsked = new Promise<void>((resolve) => {
    arrived = resolve
  })
  const isReleased = new Promise<void>((resolve) => {
    release = resolve
  })
  const { url, provider } = await startBoth(async (_, number) => {
    if (number > 1) return { text: TEXT }
    arrived()
    await isReleased
    return first
  }, config)
  return {
    url,
    provider,
    isAsked,
    /** Sends the others; they have reached Governor when a later request on another connection has an answer. */
    async sendOthers(stream: (at: number) => boolean) {
      const others = Array.from({ length: OTHERS }, (_, at) => send(url, api, api.request, stream(at)))
      await (await fetch(`${url}/health`)).text()
      return others
    },
    release,
  }
}

describe.each(STOPPED)('equal requests at a limit at once, over $name', (api) => {
  it.each([
    ['whole', () => false],
    ['streamed', () => true],
    ['mixed', (at: number) => at % 2 === 0],
  ] as const)('ask the model once and all get its answer (%s)', async (_, stream) => {
    const { url, provider, isAsked, sendOthers, release } = await waiting(api, { text: TEXT })
    const first = send(url, api, api.request, stream(0))
    await isAsked
    const others = await sendOthers(stream)
    release()
    for (const { status, text, headers } of await Promise.all([first, ...others])) {
      expect(status).toBe(200)
      expect(text).toContain('"has_final_answer":true')
      expect(headers.get('x-governor-terminal-reason')).toBe('max_iterations')
      expect(headers.get('x-governor-iteration')).toBe('1/1')
    }
    expect(provider.requests).toHaveLength(1)
  })

  it('each ask for themselves if the first one fails, so that none waits for two attempts', async () => {
    const busy: Answer = { status: 529, body: errorOf('busy') }
    const { url, provider, isAsked, sendOthers, release } = await waiting(api, busy)
    const first = send(url, api, api.request, false)
    await isAsked
    const others = await sendOthers(() => false)
    release()
    expect((await first).status).toBe(529)
    for (const { text } of await Promise.all(others)) expect(text).toContain('"has_final_answer":true')
    expect(provider.requests.length).toBeLessThanOrEqual(1 + OTHERS)
  })

  it('all ask at once after the first one failed, so that none waits for a second attempt', async () => {
    let arrived = () => {}
    let failFirst = () => {}
    let failOthers = () => {}
    const isAsked = new Promise<void>((resolve) => {
      arrived = resolve
    })
    const isFirstOver = new Promise<void>((resolve) => {
      failFirst = resolve
    })
    const areAllAsked = new Promise<void>((resolve) => {
      failOthers = resolve
    })
    const busy: Answer = { status: 529, body: errorOf('busy') }
    const { url, provider, events } = await startBoth(async (_, number) => {
      // Each of the others is answered only once all of them are asked.
      if (number === 1) arrived()
      if (number === 10) failOthers()
      await (number === 1 ? isFirstOver : areAllAsked)
      return busy
    }, config)
    const all = [send(url, api, api.request, false)]
    await isAsked
    for (let others = 0; others < 9; others++) all.push(send(url, api, api.request, false))
    while (events.filter(({ kind }) => kind === 'request_began').length < 10)
      await (await fetch(`${url}/health`)).text()
    await (await fetch(`${url}/health`)).text()
    failFirst()
    for (const { status } of await Promise.all(all)) expect(status).toBe(529)
    expect(provider.requests).toHaveLength(10)
  })

  it('ask again once if the client of the first one leaves', async () => {
    const { url, provider, isAsked, sendOthers } = await waiting(api, { text: TEXT })
    const leaving = new AbortController()
    const first = fetch(`${url}${api.path}`, {
      method: 'POST',
      headers: {
        'content-type': 'application/json',
        authorization: 'Bearer k',
        'anthropic-version': '2023-06-01',
      },
      body: JSON.stringify({ model: 'm', ...api.request }),
      signal: leaving.signal,
    })
    await isAsked
    const others = await sendOthers(() => true)
    leaving.abort()
    await expect(first).rejects.toThrow('abort')
    for (const { text } of await Promise.all(others)) expect(text).toContain('"has_final_answer":true')
    expect(provider.requests).toHaveLength(2)
  })
})
