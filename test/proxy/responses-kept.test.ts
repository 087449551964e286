import type { ServerResponse } from 'node:http'
import { describe, expect, it, onTestFinished } from 'vitest'
import { startBoth, startGovernor } from '../support/governor.ts'
import { type ChatBody, type Script, serve } from '../support/provider.ts'
import { eventTexts, responseEvents, responseObject } from '../support/responses.ts'
import { callResponses, type Item, type ResponseStep, runResponses, TOOL } from '../support/responses-agent.ts'

const search = { name: 'search', arguments: { query: 'it' } }
const iteration = ({ headers }: ResponseStep) => headers.get('x-governor-iteration')
const session = ({ headers }: ResponseStep) => headers.get('x-governor-session')
const user = (content: string) => ({ role: 'user', content })
const outputs = ({ calls }: ResponseStep, output = 'found') =>
  calls.map((call) => ({ type: 'function_call_output', call_id: call['call_id'], output }))

/** Calls `calls` for ever. */
const always =
  (...calls: (typeof search)[]): Script =>
  () => ({ calls })

describe.each([{ stream: false }, { stream: true }])(
  'a conversation that the provider keeps (stream: $stream)',
  ({ stream }) => {
    const options = { stateful: true, stream }

    it('is one session, identified by the ids of its responses', async () => {
      const { url } = await startBoth(always(search))
      const { steps } = await runResponses(url, 'Go.', { ...options, max: 4 })
      expect(steps.map(iteration)).toEqual(['1/300', '2/300', '3/300', '4/300'])
      expect(new Set(steps.slice(1).map(session)).size).toBe(1)
      // A name like those of other sessions, fit for a path and a file.
      expect(session(steps[1] as ResponseStep)).toMatch(/^[0-9a-f]{32}$/)
    })

    it('gets a notice about a loop although no request shows a call', async () => {
      const { url, provider } = await startBoth(always(search), { loop_guard: { mode: 'warn' } })
      const { steps } = await runResponses(url, 'Go.', { ...options, max: 5 })
      const loops = steps.map(({ headers }) => headers.get('x-governor-loop'))
      expect(loops).toEqual([null, null, null, 'repetition;count=3', null])
      expect(provider.requests[3]?.json['instructions']).toMatch(/repeating the same action/)
      expect(JSON.stringify(provider.requests[3]?.json['input'])).not.toMatch(/repeating/)
    })

    it('gets no notice if results or calls differ', async () => {
      let count = 0
      const paging: Script = (_, number) => ({ calls: [{ name: 'page', arguments: { number } }] })
      const { url } = await startBoth(paging)
      const result = () => `page ${count++}`
      const { steps } = await runResponses(url, 'Go.', { ...options, max: 8, result })
      expect(steps.map(({ headers }) => headers.get('x-governor-loop')).filter(Boolean)).toEqual([])
    })

    it('gets no second notice after exempt calls', async () => {
      const { url } = await startBoth(
        (_, number) => ({ calls: [number > 3 ? { name: 'process', arguments: { number } } : search] }),
        { loop_guard: { mode: 'warn' } },
      )
      const { steps } = await runResponses(url, 'Go.', { ...options, max: 6 })
      const loops = steps.map(({ headers }) => headers.get('x-governor-loop'))
      expect(loops).toEqual([null, null, null, 'repetition;count=3', null, null])
    })

    it('counts parallel calls as one iteration, and each as a tool call', async () => {
      const budget = { run: { max_tool_calls: 5 } }
      const { url } = await startBoth(always(search, { name: 'open', arguments: { query: 'x' } }), { budget })
      const { steps } = await runResponses(url, 'Go.', { ...options, max: 6 })
      // The request that is stopped is no iteration.
      expect(steps.map(iteration)).toEqual(['1/300', '2/300', '3/300', '3/300'])
      const stopped = steps.findIndex(({ headers }) => headers.get('x-governor-verdict') === 'stop')
      expect(stopped).toBe(3)
    })

    it('begins a run with every human message, the same words included', async () => {
      const { url } = await startBoth(({ items }) =>
        items?.at(-1)?.['role'] === 'user' ? { calls: [search] } : { text: 'Done.' },
      )
      const agent = await runResponses(url, 'continue', options)
      expect(agent.steps.map(iteration)).toEqual(['1/300', '2/300'])
      expect(iteration(await agent.ask('continue'))).toBe('1/300')
      expect(iteration(await agent.repeat())).toBe('1/300')
    })

    it('treats the same request as a retry', async () => {
      const { url } = await startBoth(always(search))
      const agent = await runResponses(url, 'Go.', { ...options, max: 3 })
      expect(iteration(await agent.repeat())).toBe('3/300')
    })

    it('has a separate run for each of many tasks that continue from one response', async () => {
      const { url } = await startBoth(always(search), { budget: { max_iterations: 4 } })
      const first = await callResponses(url, { input: [user('Read this.')] }, { stream })
      const tasks = Array.from({ length: 5 }, (_, at) => user(`Task ${at}`))
      const answer = outputs(first)
      let steps = await Promise.all(
        tasks.map((task) =>
          callResponses(url, { input: [...answer, task], previous_response_id: first.response['id'] }, { stream }),
        ),
      )
      for (let number = 1; number <= 4; number++) {
        expect(steps.map(iteration)).toEqual(tasks.map(() => `${number}/4`))
        expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).not.toContain('stop')
        steps = await Promise.all(
          steps.map((step) =>
            callResponses(url, { input: outputs(step), previous_response_id: step.response['id'] }, { stream }),
          ),
        )
      }
      expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual(tasks.map(() => 'stop'))
    })

    it('does not get its budget back by continuing from an earlier response', async () => {
      const { url } = await startBoth(always(search), { budget: { max_iterations: 4 } })
      const first = await callResponses(url, { input: [user('Go.')] }, { stream })
      const verdicts = []
      for (let at = 0; at < 5; at++) {
        const input = outputs(first, `try ${at}`)
        const step = await callResponses(url, { input, previous_response_id: first.response['id'] }, { stream })
        verdicts.push(step.headers.get('x-governor-verdict'))
      }
      expect(verdicts.slice(-2)).toEqual(['stop', 'stop'])
    })

    it('is also counted by the id of a conversation object', async () => {
      const { url } = await startBoth(always(search), { loop_guard: { mode: 'warn' } })
      const steps: ResponseStep[] = []
      let input: Item[] = [user('Go.')]
      for (let at = 0; at < 4; at++) {
        const step = await callResponses(url, { input, conversation: { id: 'conv_1' } }, { stream })
        steps.push(step)
        input = outputs(step)
      }
      expect(steps.map(iteration)).toEqual(['1/300', '2/300', '3/300', '4/300'])
      expect(new Set(steps.map(session))).toEqual(new Set(['conv_1']))
      expect(steps[3]?.headers.get('x-governor-loop')).toBe('repetition;count=3')
    })

    it('begins a run with each human message to a conversation object, also with the same words', async () => {
      const { url } = await startBoth(
        ({ items = [] }) => (items.at(-1)?.['role'] === 'user' ? { calls: [search] } : { text: 'Done.' }),
        { budget: { max_iterations: 3 } },
      )
      const steps: ResponseStep[] = []
      const body = { conversation: { id: 'conv_2' } }
      for (let at = 0; at < 4; at++) {
        const asked = await callResponses(url, { ...body, input: [user('Go on.')] }, { stream })
        steps.push(asked, await callResponses(url, { ...body, input: outputs(asked) }, { stream }))
      }
      expect(steps.map(iteration)).toEqual(Array(4).fill(['1/3', '2/3']).flat())
    })

    it('is recognized when the client refers to earlier items by id', async () => {
      const { url } = await startBoth(({ items = [] }) => ({ reasoning: `${items.length}`, calls: [search] }))
      const steps: ResponseStep[] = []
      const input: Item[] = [user('Go.')]
      for (let at = 0; at < 4; at++) {
        const step = await callResponses(url, { input }, { stream })
        steps.push(step)
        const output = step.response['output'] as Item[]
        input.push(...output.map(({ id }) => ({ type: 'item_reference', id })), ...outputs(step))
      }
      expect(steps.map(iteration)).toEqual(['1/300', '2/300', '3/300', '4/300'])
      expect(new Set(steps.slice(1).map(session)).size).toBe(1)
      expect(steps[3]?.headers.get('x-governor-loop')).toBe('repetition;count=3')
    })

    it('is relayed when the response that it names is unknown', async () => {
      const { url, provider } = await startBoth(always(search))
      const first = await callResponses(provider.url, { input: [user('Go.')] }, { stream })
      const second = { input: outputs(first), previous_response_id: first.response['id'] }
      const step = await callResponses(url, second, { stream })
      expect([step.status, iteration(step)]).toEqual([200, '1/300'])
      const third = { input: outputs(step), previous_response_id: step.response['id'] }
      expect(iteration(await callResponses(url, third, { stream }))).toBe('2/300')
    })

    it('is not shared with another tenant', async () => {
      const { url } = await startBoth(always(search))
      const first = await callResponses(url, { input: [user('Go.')] }, { stream })
      const next = { input: outputs(first), previous_response_id: first.response['id'] }
      const other = { authorization: 'Bearer sk-other' }
      expect(iteration(await callResponses(url, next, { stream, headers: other }))).toBe('1/300')
      expect(iteration(await callResponses(url, next, { stream }))).toBe('2/300')
    })
  },
)

describe('a stream whose items stand in its last event alone', () => {
  it('shows a loop, which ends with an answer', async () => {
    let number = 0
    const provider = await serve(async (request, response) => {
      const chunks: Buffer[] = []
      for await (const chunk of request) chunks.push(chunk as Buffer)
      const asked = JSON.parse(Buffer.concat(chunks).toString()) as ChatBody
      const isLast = asked.tool_choice === 'none' || !asked.tools
      const whole = responseObject(asked, isLast ? { text: 'That is all.' } : { calls: [search] }, ++number)
      const events = responseEvents(whole)
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.end(eventTexts(events.filter(({ type }) => /^response.(?:created|completed)$/.test(`${type}`))).join(''))
    })
    onTestFinished(() => provider.close())
    const { url } = await startGovernor(provider.url)
    const { steps } = await runResponses(url, 'Go.', { stateful: true, stream: true, max: 20 })
    const last = steps.at(-1)
    expect(last?.response['governor']).toMatchObject({ terminal_state: 'loop_detected', has_final_answer: true })
    expect(last?.text).toBe('That is all.')
    expect(steps).toHaveLength(12)
  })
})

describe('a response that a client could continue from', () => {
  it('can be continued as soon as its head has arrived, whatever follows', async () => {
    let first: ServerResponse | undefined
    const provider = await serve((request, response) => {
      request.resume()
      const id = first ? 'resp_2' : 'resp_1'
      const created = { type: 'response.created', response: { id, object: 'response', output: [] } }
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      response.write(`event: response.created\ndata: ${JSON.stringify(created)}\n\n`)
      if (first) response.end()
      first ??= response
    })
    onTestFinished(() => provider.close())
    const { url } = await startGovernor(provider.url)
    const ask = (body: Item) =>
      fetch(`${url}/v1/responses`, {
        method: 'POST',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ model: 'm', tools: [TOOL], stream: true, ...body }),
      })
    const begun = await ask({ input: [user('Go.')] })
    const reader = begun.body?.getReader()
    await reader?.read()
    const next = await ask({ input: [user('And now?')], previous_response_id: 'resp_1' })
    await next.text()
    const third = await ask({
      input: [{ type: 'function_call_output', call_id: 'c', output: '' }],
      previous_response_id: 'resp_2',
    })
    await third.text()
    expect(next.headers.get('x-governor-session')).toMatch(/^[0-9a-f]{32}$/)
    expect(third.headers.get('x-governor-session')).toBe(next.headers.get('x-governor-session'))
    first?.end()
    while (!(await reader?.read())?.done);
  })

  it('creates no session until a client continues from it', async () => {
    const { url } = await startBoth(always(search))
    const sessions = async () => /governor_sessions (\d+)/.exec(await (await fetch(`${url}/metrics`)).text())?.[1]
    const first = await callResponses(url, { input: [user('Go.')] })
    expect(await sessions()).toBe('0')
    await callResponses(url, { input: outputs(first), previous_response_id: first.response['id'] })
    expect(await sessions()).toBe('1')
  })

  it('creates no session if the client sends its own history', async () => {
    const { url } = await startBoth(always(search))
    await runResponses(url, 'Go.', { max: 3, body: { store: true } })
    expect(/governor_sessions (\d+)/.exec(await (await fetch(`${url}/metrics`)).text())?.[1]).toBe('1')
  })
})
