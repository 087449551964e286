import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import { eventTexts, responseEvents, responseObject } from '../support/responses.ts'
import { callResponses, type Item, runResponses } from '../support/responses-agent.ts'
import { mayCall, readsBlock, repeatsUntilBlocked } from '../support/scripts.ts'

const same = { name: 'search', arguments: { query: 'the same' } }
const REFUSAL =
  "[LOOP GUARD] Blocked: 'search' was called 6 times with identical arguments and results. This call was not executed. Try something different or give your final answer."

describe.each([
  { stateful: false, stream: false },
  { stateful: false, stream: true },
  { stateful: true, stream: false },
  { stateful: true, stream: true },
])('a call over Responses after ignored warnings (stateful: $stateful, stream: $stream)', (options) => {
  const { stateful, stream } = options

  it('is blocked, the model is asked again, and the client gets that answer', async () => {
    const { url, provider } = await startBoth(
      repeatsUntilBlocked({ reasoning: 'x', calls: [same] }, () => ({ text: 'I give up.' })),
    )
    const { steps, items } = await runResponses(url, 'Go.', { ...options, max: 20 })
    expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual([
      ...['allow', 'allow', 'allow', 'warn', 'allow', 'warn', 'block'],
    ])
    const last = steps.at(-1)
    expect([last?.text, last?.response['status']]).toEqual(['I give up.', 'completed'])
    expect(last?.response['usage']).toMatchObject({ total_tokens: 220 })
    expect(last?.response['governor']).toBeUndefined()
    expect(JSON.stringify(items)).not.toContain('LOOP GUARD')
    const shown = provider.requests.at(-1)?.items ?? []
    const before = provider.requests.at(-2)?.items ?? []
    expect(shown.slice(0, before.length)).toEqual(before)
    expect(shown.slice(before.length)).toMatchObject([
      { type: 'reasoning' },
      { type: 'function_call', name: 'search' },
      { type: 'function_call_output', output: REFUSAL },
    ])
    if (stateful) expect(provider.requests.at(-1)?.json['input']).toHaveLength(1)
  })

  it('does not prevent the client from continuing from the answer that it got', async () => {
    const { url, provider } = await startBoth(
      repeatsUntilBlocked({ reasoning: 'x', calls: [same] }, () => ({ text: 'I give up.' })),
    )
    const agent = await runResponses(url, 'Go.', { ...options, max: 20 })
    const next = await agent.ask('Try again.')
    expect([next.status, next.headers.get('x-governor-iteration')]).toEqual([200, '1/300'])
    expect(provider.requests.at(-1)?.items?.at(-1)).toMatchObject({ role: 'user', content: 'Try again.' })
  })

  it('is removed while the run continues with the other calls of its response, each with its result', async () => {
    const other = (number: number) => ({ name: 'read', arguments: { number } })
    const { url, provider } = await startBoth((request, number) => {
      if (request.json.tool_choice === 'none') return { text: 'Done.' }
      return provider.requests.length < 12
        ? { reasoning: 'x', calls: number === 7 ? [same, other(number)] : [same] }
        : { text: 'Done.' }
    })
    const { steps } = await runResponses(url, 'Go.', { ...options, max: 10 })
    const seventh = steps[6]
    expect(seventh?.headers.get('x-governor-verdict')).toBe('block')
    expect(seventh?.calls.map(({ name }) => name)).toEqual(['read'])
    // The provider keeps a call that the client has never seen, so Governor sends a result for it.
    expect(steps[9]?.status).toBe(200)
    const shown = provider.requests.find(({ items = [] }) => items.some(({ name }) => name === 'read'))
    const calls = (shown?.items ?? []).filter(({ type }) => type === 'function_call')
    const outputs = (shown?.items ?? []).filter(({ type }) => type === 'function_call_output')
    expect(outputs).toHaveLength(calls.length)
  })

  it('ends the run after the third block with the model’s own answer', async () => {
    const { url, provider } = await startBoth(({ json }) =>
      json.tool_choice === 'none'
        ? { text: 'I could not find it.' }
        : { calls: [same], ...(stream ? {} : { text: 'Again. ' }) },
    )
    const agent = await runResponses(url, 'Go.', { ...options, max: 20 })
    const last = agent.steps.at(-1)
    expect(last?.response['governor']).toMatchObject({
      terminal_state: 'loop_detected',
      has_final_answer: true,
    })
    expect(last?.text).toMatch(/I could not find it\.$/)
    expect(last?.calls).toEqual([])
    const output = last?.response['output'] as Item[]
    expect(output.every(({ type }) => type === 'message')).toBe(true)
    expect(last?.headers.get('x-governor-verdict')).toBe('stop')
    const asked = provider.requests.length
    expect((await agent.repeat()).text).toBe(last?.text)
    expect(provider.requests).toHaveLength(asked)
  })
})

describe.each([{ stream: false }, { stream: true }])(
  'an agent over Responses that sent its whole history, at a provider that stores it (stream: $stream)',
  ({ stream }) => {
    const answerTo = (calls: readonly Item[]) =>
      calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'found nothing new' }))

    it.each([
      ['all of whose calls were blocked', []],
      ['of whose calls one was blocked', [{ name: 'read', arguments: {} }]],
    ])('continues by its id from a response %s', async (_, beside) => {
      const { url, provider } = await startBoth((request, number) =>
        number > 7 || readsBlock(request) ? { text: 'Done.' } : { calls: [same, ...(number === 7 ? beside : [])] },
      )
      const { steps } = await runResponses(url, 'Go.', { stream, body: { store: true }, max: 7 })
      const last = steps.at(-1)
      expect(last?.headers.get('x-governor-verdict')).toBe('block')
      const input = [...answerTo(last?.calls ?? []), { role: 'user', content: 'And now?' }]
      const next = await callResponses(url, { input, previous_response_id: last?.response['id'] }, { stream })
      expect([next.status, next.text]).toEqual([200, 'Done.'])
      const shown = provider.requests.at(-1)?.items ?? []
      const of = (kind: string) => shown.filter(({ type }) => type === kind)
      expect(of('function_call_output')).toHaveLength(of('function_call').length)
      expect(shown.at(-1)).toMatchObject({ content: 'And now?' })
    })

    it('continues by its id from its last answer, beside which the model called a tool', async () => {
      const { url } = await startBoth(
        (_, number) => ({ text: 'Half of it. ', ...(number > 4 ? {} : { calls: [same] }) }),
        {
          budget: { max_iterations: 3 },
        },
      )
      const { steps } = await runResponses(url, 'Go.', { stream, body: { store: true } })
      expect(steps.at(-1)?.response['governor']).toMatchObject({ has_final_answer: true })
      const input = [{ role: 'user', content: 'And now?' }]
      const previous = steps.at(-1)?.response['id']
      expect((await callResponses(url, { input, previous_response_id: previous }, { stream })).status).toBe(200)
    })
  },
)

describe('a stream over Responses that began with a response whose calls were all blocked', () => {
  it('continues from the id of the first response, even if the last response had a blocked call', async () => {
    const { url, provider } = await startBoth((request, number) => {
      if (number > 8) return { text: 'Done.' }
      const read = { name: 'read', arguments: { file: 'a' } }
      return { text: 'Let me see. ', calls: readsBlock(request) ? [same, read] : [same] }
    })
    const { steps } = await runResponses(url, 'Go.', { stateful: true, stream: true, max: 7 })
    const [read, ...others] = steps.at(-1)?.calls ?? []
    expect([read?.['name'], others]).toEqual(['read', []])
    expect(steps.at(-1)?.response['id']).toBe('resp_7')
    const input = [{ type: 'function_call_output', call_id: read?.['call_id'], output: 'text' }]
    const next = await callResponses(url, { input, previous_response_id: 'resp_7' }, { stream: true })
    expect([next.status, next.text]).toEqual([200, 'Done.'])
    expect(provider.requests.at(-1)?.json['previous_response_id']).toBe('resp_8')
  })
})

describe('a call in a stream over Responses that lacks its end', () => {
  const failed = { type: 'response.failed', response: { id: 'resp_7', status: 'failed', output: [] } }

  it.each([
    ['with nothing in its place', []],
    ['with a failure in its place', [failed]],
  ])('is blocked like any other, as clients may make it at once: %s', async (_, last) => {
    const { url } = await startBoth((request, number) => {
      if (readsBlock(request)) return { text: 'Something else.' }
      if (number < 7) return { calls: [same] }
      const events = responseEvents(responseObject(request.json, { calls: [same] }, number))
      const body = eventTexts([...events.slice(0, -1), ...last]).join('')
      return { status: 200, body, headers: { 'content-type': 'text/event-stream' } }
    })
    const { steps } = await runResponses(url, 'Go.', { stateful: false, stream: true, max: 7 })
    const { status, output } = steps[6]?.response ?? {}
    expect([status, (output as Item[]).map(({ type }) => type)]).toEqual(['completed', ['message']])
  })
})

describe('a second answer over Responses that is not a usable stream', () => {
  const event = (data: { readonly type: string; readonly [key: string]: unknown }) =>
    `event: ${data.type}\ndata: ${JSON.stringify(data)}\n\n`
  const created = event({ type: 'response.created', sequence_number: 0, response: { id: 'r2', output: [] } })
  const failed = event({
    type: 'response.failed',
    sequence_number: 1,
    response: { id: 'r2', status: 'failed', error: { code: 'server_error', message: 'no' }, output: [] },
  })
  const error = event({ type: 'error', sequence_number: 0, code: 'server_error', message: 'no' })

  it.each([
    ['an error', [error]],
    ['a failure', [created, failed]],
    ['a beginning without an end', [created]],
    ['nothing', []],
  ])('is followed by that of a model without the tool: %s', async (_, events) => {
    const { url } = await startBoth((request) => {
      if (readsBlock(request))
        return { status: 200, body: events.join(''), headers: { 'content-type': 'text/event-stream' } }
      return mayCall(request) ? { reasoning: 'x', calls: [same] } : { text: 'Without it.' }
    })
    const { steps } = await runResponses(url, 'Go.', { stateful: false, stream: true, max: 7 })
    const output = steps[6]?.response['output'] as Item[]
    expect(output.map(({ type }) => type)).toEqual(['message'])
    expect(steps[6]?.response['status']).toBe('completed')
  })
})
