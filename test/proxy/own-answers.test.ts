/** Answers that Governor makes itself, whose ids the provider does not know, and what a client continues from them. */
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import { runaway } from '../support/provider.ts'
import { callResponses, type Item, TOOL } from '../support/responses-agent.ts'

const human = (content: string) => ({ role: 'user', content })
const SHAPES = [
  { stream: false, hasTools: true },
  { stream: false, hasTools: false },
  { stream: true, hasTools: true },
  { stream: true, hasTools: false },
]

async function start(config: { [key: string]: unknown } = {}) {
  const running = await startBoth(runaway(), config)
  const { url, provider } = running
  const send = async (method: string, path: string, body: object) => {
    const headers = { 'content-type': 'application/json' }
    expect((await fetch(`${url}${path}`, { method, headers, body: JSON.stringify(body) })).status).toBe(200)
  }
  return {
    ...running,
    pause: () => send('POST', '/governor/pause', {}),
    resume: () => send('POST', '/governor/resume', {}),
    setDay: (max: number) => send('PATCH', '/governor/budget', { scope: 'day', subject: null, max_iterations: max }),
    /** What the model saw at last. */
    shown: () => provider.requests.at(-1)?.items ?? [],
  }
}

const resultsFor = (calls: readonly Item[]) =>
  calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'found nothing new' }))
const ofType = (items: readonly Item[], type: string) => items.filter((item) => item['type'] === type)

describe.each(SHAPES)('a client over Responses that continues by id (stream: $stream, tools: $hasTools)', (shape) => {
  const { stream, hasTools } = shape
  const tools = hasTools ? [TOOL] : undefined
  const ask = (url: string, body: Item) => callResponses(url, { tools, ...body }, { stream })

  it('goes on from the text at a limit of the day with which its conversation began', async () => {
    const { url, setDay, shown } = await start({ budget: { day: { max_iterations: 1 } } })
    await callResponses(url, { input: 'Use it up.' })
    const closed = await ask(url, { input: 'Find it.' })
    expect(closed.response['governor']).toMatchObject({ scope: 'day', has_final_answer: false })
    await setDay(10)
    const next = await ask(url, { input: [human('And now?')], previous_response_id: closed.response['id'] })
    expect(next.status).toBe(200)
    expect(shown()).toEqual([human('And now?')])
    // It also goes on from there.
    const input = [...resultsFor(next.calls), human('And then?')]
    expect((await ask(url, { input, previous_response_id: next.response['id'] })).status).toBe(200)
  })

  it('goes on from the text at a limit of the day with the history before it', async () => {
    const { url, setDay, shown } = await start({ budget: { day: { max_iterations: 1 } } })
    const first = await callResponses(url, { input: 'Find it.', tools: undefined })
    let last = first
    for (const question of ['And now?', 'Still?']) {
      last = await ask(url, { input: [human(question)], previous_response_id: last.response['id'] })
      expect(last.response['governor']).toMatchObject({ scope: 'day' })
    }
    await setDay(10)
    const next = await ask(url, { input: [human('At last?')], previous_response_id: last.response['id'] })
    expect(next.status).toBe(200)
    expect(shown().map(({ role }) => role)).toEqual(['user', 'assistant', 'user'])
    expect(shown().at(-1)).toEqual(human('At last?'))
  })

  it('goes on from the text in a pause, and the provider gets the results that came meanwhile', async () => {
    const { url, pause, resume, shown, events } = await start()
    const first = await callResponses(url, { input: 'Find it.' })
    await pause()
    const input = resultsFor(first.calls)
    const paused = await ask(url, { input, previous_response_id: first.response['id'] })
    expect(paused.response['governor']).toMatchObject({ terminal_reason: 'paused' })
    await resume()
    const next = await ask(url, { input: [human('Go on.')], previous_response_id: paused.response['id'] })
    expect(next.status).toBe(200)
    expect(ofType(shown(), 'function_call_output')).toHaveLength(1)
    expect(shown().at(-1)).toEqual(human('Go on.'))
    // It is the same session.
    const sessions = new Set(events.flatMap((event) => (event.kind === 'answered' ? [event.session] : [])))
    if (hasTools) expect([...sessions].filter((session) => session !== undefined)).toHaveLength(1)
  })

  it('goes on from the last answer of its run, beside which the model called a tool', async () => {
    const { url, provider } = await startBoth(
      (_, number) => ({
        text: 'Half of it. ',
        ...(number > 2 ? {} : { calls: [{ name: 'search', arguments: {} }] }),
      }),
      { budget: { max_iterations: 1 } },
    )
    const first = await callResponses(url, { input: 'Find it.' })
    const input = resultsFor(first.calls)
    const last = await callResponses(url, { input, previous_response_id: first.response['id'] }, { stream })
    expect(last.response['governor']).toMatchObject({ has_final_answer: true })
    const next = await ask(url, { input: [human('A title?')], previous_response_id: last.response['id'] })
    expect(next.status).toBe(200)
    expect(ofType(provider.requests.at(-1)?.items ?? [], 'function_call_output')).toHaveLength(2)
  })

  it('gets one id for a request that it sends again and again in a pause, and goes on from it', async () => {
    const { url, pause, resume, shown } = await start()
    const first = await ask(url, { input: 'Find it.' })
    await pause()
    const results = resultsFor(first.calls)
    const asked = { input: [...results, human('And now?')], previous_response_id: first.response['id'] }
    const ids = new Set<unknown>()
    for (let at = 0; at < 5; at++) ids.add((await ask(url, asked)).response['id'])
    const { response } = await ask(url, { ...asked, input: [...results, human('Now?')] })
    expect(ids.size).toBe(1)
    expect(ids).not.toContain(response['id'])
    await resume()
    const [id] = ids
    expect((await ask(url, { input: [human('Go on.')], previous_response_id: id })).status).toBe(200)
    expect(ofType(shown(), 'function_call_output')).toEqual(results)
  })

  it('gives a conversation at the provider each result once, whatever it sends after a pause', async () => {
    for (const sendsAgain of [true, false]) {
      const { url, pause, resume, shown } = await start()
      const conversation = 'conv_1'
      const first = await callResponses(url, { input: 'Find it.', conversation })
      await pause()
      const input: Item[] = resultsFor(first.calls)
      expect((await ask(url, { input, conversation })).response['governor']).toBeDefined()
      await resume()
      const next = await ask(url, { input: sendsAgain ? input : [human('Go on.')], conversation })
      expect(next.status).toBe(200)
      expect(ofType(shown(), 'function_call_output')).toHaveLength(1)
      await callResponses(url, { input: [...resultsFor(next.calls), human('And now?')], conversation })
      expect(ofType(shown(), 'function_call_output')).toHaveLength(1 + next.calls.length)
    }
  })
})
