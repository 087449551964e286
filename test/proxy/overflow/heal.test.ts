import { describe, expect, it } from 'vitest'
import { callModel, runAgent, START, TOOLS } from '../../support/agent.ts'
import { startBoth, startGovernor } from '../../support/governor.ts'
import { type Answer, type ChatMessage, completion, runaway, type Script } from '../../support/provider.ts'
import { startRaw } from '../../support/raw.ts'
import { rawRequest } from '../../support/raw-reply.ts'

/** The headers of a body that is not in the content coding that they name. */
const GARBLED = { 'content-type': 'text/event-stream', 'content-encoding': 'gzip' }

const refusal: Answer = { status: 400, body: { error: { message: 'Unexpected role' } } }

/** A model that calls tools for ever, on a provider that refuses requests which look like `pattern`. */
function refusing(pattern: RegExp, answer: Answer = refusal): Script {
  const go = runaway()
  return (request, number) => (pattern.test(request.body.toString()) ? answer : go(request, number))
}

const budget = { max_iterations: 10, adaptive: false, caution_threshold: 0.2, warning_threshold: 0.9 }

describe('a provider that refuses what Governor added', () => {
  it.each([400, 422, 500])(
    'gets the client’s own bytes instead after a %i, and the client receives that answer',
    async (status) => {
      const script = refusing(/the result of search\\n\\n\[BUDGET/, {
        status,
        body: { error: { message: 'no' } },
      })
      const { url, provider, events } = await startBoth(script, { budget })
      const { steps } = await runAgent(url, START, { max: 2 })
      expect(steps.map((step) => step.status)).toEqual([200, 200])
      expect(provider.requests).toHaveLength(3)
      expect(provider.requests[1]?.body.toString()).toContain('[BUDGET')
      expect(provider.requests[2]?.body.toString()).not.toContain('[BUDGET')
      // One 500 may be a fault of the moment.
      const refused = events.filter(({ kind }) => kind === 'alteration_refused')
      expect(refused).toMatchObject(status === 500 ? [] : [{ alteration: 'auto', status }])
    },
  )

  it('gets the next notice through another channel, and no notice once all channels are refused', async () => {
    const { url, provider } = await startBoth(refusing(/\[BUDGET/), { budget })
    const { steps } = await runAgent(url, START, { max: 6 })
    expect(steps.every((step) => step.status === 200)).toBe(true)
    const altered = provider.requests.map(({ json }) => {
      const last = json.messages.at(-1)
      return String(last?.content).includes('[BUDGET') ? last?.role : undefined
    })
    expect(altered).toEqual([
      undefined,
      'tool',
      undefined,
      'user',
      undefined,
      'system',
      undefined,
      undefined,
      undefined,
    ])
  })

  it('is not recorded as refusing an edit when it answers the client’s own bytes with an error too', async () => {
    let broken = false
    const go = runaway()
    const { url, provider, events } = await startBoth(
      (request, number) => (broken ? { status: 500, body: { error: { message: 'down' } } } : go(request, number)),
      { budget },
    )
    const { messages } = await runAgent(url, START, { max: 1 })
    broken = true
    const failed = await callModel(url, messages)
    expect(failed.status).toBe(500)
    broken = false
    const retried = await callModel(url, messages)
    expect(retried.headers.get('x-governor-iteration')).toBe('2/10')
    expect(provider.requests.at(-1)?.body.toString()).toContain('[BUDGET')
    expect(events.some((event) => event.kind === 'alteration_refused')).toBe(false)
  })

  it('still causes a stop when the budget is used up', async () => {
    const { url } = await startBoth(refusing(/\[BUDGET|maximum number of tool-calling/), {
      budget: { ...budget, max_iterations: 3 },
    })
    const { steps } = await runAgent(url, START, { max: 6 })
    expect(steps).toHaveLength(4)
    expect(steps.at(-1)?.governor).toMatchObject({
      terminal_state: 'tool_limit_reached',
      has_final_answer: true,
    })
  })
})

/** The same call twice, with the same result. */
function calledTwice(): ChatMessage[] {
  return ['a', 'b'].flatMap((id): ChatMessage[] => [
    {
      role: 'assistant',
      tool_calls: [{ id, function: { name: 'search', arguments: '{"query":"x"}' } }],
    },
    { role: 'tool', tool_call_id: id, content: 'nothing' },
  ])
}

describe('a refusal whose body never ends', () => {
  it.each([
    ['a notice', { budget: { max_iterations: 4 }, loop_guard: { enabled: false } }],
    ['a stop', { budget: { max_iterations: 2 }, loop_guard: { enabled: false } }],
    [
      'a notice to a run whose calls are watched',
      {
        budget: { max_iterations: 4 },
        loop_guard: { max_warnings_before_block: 0, repetition_threshold: 3 },
      },
    ],
  ])('of a request with %s delays no answer, and its connection is closed', async (_, config) => {
    const upstream = await startRaw()
    const { url } = await startGovernor(upstream.url, { overflow: { enabled: false }, ...config })
    const answered = callModel(url, [{ role: 'user', content: 'go' }, ...calledTwice()])
    const refusing = await upstream.accept()
    const refused = await refusing.message()
    refusing.write('HTTP/1.1 400 Oops\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"error"')
    const answering = await upstream.accept()
    const asked = await answering.message()
    const body = JSON.stringify(completion(JSON.parse(asked.body.toString()), { text: 'It is about nothing.' }, 1))
    answering.write(
      `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`,
    )
    expect((await answered).message.content).toBe('It is about nothing.')
    expect(asked.body).not.toEqual(refused.body)
    await refusing.rest()
  })
})

describe('a response that Governor fails to process', () => {
  it('is requested again with the client’s own bytes, relayed unguarded and counted', async () => {
    const garbled = { status: 200, body: 'data: plain', headers: GARBLED }
    const { url, provider, events } = await startBoth(() => garbled, {
      loop_guard: { max_warnings_before_block: 0, repetition_threshold: 2 },
    })
    // The model may call it again in this response, which is held therefore.
    const messages = [{ role: 'user', content: 'go' }, ...calledTwice().slice(0, 2)]
    const body = JSON.stringify({ model: 'm', messages, tools: TOOLS, stream: true })
    const answer = await rawRequest(`${url}/v1/chat/completions`, body)
    expect(answer).toMatchObject({ status: 200, headers: GARBLED, body: Buffer.from('data: plain') })
    expect(provider.requests).toHaveLength(2)
    expect(provider.requests[1]?.body.toString()).toBe(body)
    expect(events).toContainEqual(expect.objectContaining({ kind: 'failed_open', reason: 'fault' }))
  })
})

describe('an error of the provider', () => {
  it.each([429, 500, 503])('with status %i is relayed and uses up no iteration', async (status) => {
    let fails = true
    const go = runaway()
    const { url } = await startBoth((request, number) => {
      if (number === 2 && fails) {
        fails = false
        return { status, body: { error: { message: 'later' } }, headers: { 'retry-after': '3' } }
      }
      return go(request, number)
    })
    const { messages } = await runAgent(url, START, { max: 1, headers: { 'x-governor-session': 's' } })
    const headers = { 'x-governor-session': 's' }
    const failed = await callModel(url, messages, { headers })
    expect(failed.status).toBe(status)
    expect(failed.headers.get('retry-after')).toBe('3')
    const changed = await callModel(url, messages, { headers, body: { temperature: 0.5 } })
    expect(changed.headers.get('x-governor-iteration')).toBe('2/300')
  })
})
