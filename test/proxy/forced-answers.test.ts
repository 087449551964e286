/** Agents whose answer must have a form: they force a tool, or ask once more for that form when their run is over. */
import { describe, expect, it } from 'vitest'
import { type CallOptions, callModel, runAgent, START, TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { ASKED, callMessages, MESSAGES_TOOLS, runMessagesAgent } from '../support/messages.ts'
import type { Answer, ChatBody, ChatMessage, Script } from '../support/provider.ts'
import { callResponses, runResponses, TOOL } from '../support/responses-agent.ts'

const budget = { max_iterations: 3, adaptive: false }
const RESULT = { type: 'function', function: { name: 'final_result', parameters: { type: 'object' } } }
const SCHEMA = { type: 'json_schema', json_schema: { name: 'city', schema: { type: 'object' } } }
const NOTICE = 'maximum number of tool-calling'
const isStop = (json: ChatBody) => JSON.stringify(json).includes(NOTICE)
const found = { name: 'final_result', arguments: { city: 'Oslo' } }
const search = (number: number) => ({ name: 'search', arguments: { query: `q${number}` } })

/** Calls `search` until it is stopped, and then does what `last` says. */
const until =
  (last: Answer | ((json: ChatBody) => Answer)): Script =>
  ({ json }, number) => {
    if (!isStop(json) && json.tool_choice !== 'none') return { calls: [search(number)] }
    return typeof last === 'function' ? last(json) : last
  }

/** The answer of a model that may choose: the result tool if it may call it, else a text. */
const obedient = ({ tool_choice: choice }: ChatBody): Answer => {
  const mayCall =
    choice !== 'none' && (choice as { type?: string } | undefined)?.type !== 'none' && choice !== undefined
  return mayCall ? { calls: [found] } : { text: 'It is Oslo.' }
}

const nameOf = (message: ChatMessage | undefined) => message?.tool_calls?.map((call) => call.function.name)

describe.each([{ stream: false }, { stream: true }])(
  'the stop of an agent that must call a tool (stream: $stream)',
  ({ stream }) => {
    const options: CallOptions & { max: number } = {
      stream,
      max: 4,
      body: { tools: [...TOOLS, RESULT], tool_choice: 'required' },
    }

    it('keeps the call of a tool that returns the result and that the run has not called before', async () => {
      const { url, provider } = await startBoth(until(obedient), { budget })
      const { steps, messages } = await runAgent(url, START, options)
      const last = steps.at(-1)
      expect([steps.length, nameOf(last?.message), last?.finish]).toEqual([4, ['final_result'], 'tool_calls'])
      expect(last?.message.tool_calls?.[0]?.function.arguments).toBe('{"city":"Oslo"}')
      expect(last?.governor).toMatchObject({ terminal_reason: 'max_iterations', has_final_answer: true })
      // It is the only one left, so that the model has nothing to choose.
      expect(provider.requests.at(-1)?.json.tool_choice).toEqual({
        type: 'function',
        function: { name: 'final_result' },
      })
      expect(provider.requests.at(-1)?.json.tools).toEqual(provider.requests[0]?.json.tools)
      // A client that lost the answer gets a new one; a client that continues has had its answer.
      const again = await callModel(url, messages.slice(0, -2), options)
      expect(nameOf(again.message)).toEqual(['final_result'])
      const asked = provider.requests.length
      const after = await callModel(url, messages, options)
      expect([after.message.content, nameOf(after.message)]).toEqual(['{"city":"Oslo"}', undefined])
      expect(provider.requests).toHaveLength(asked)
    })

    it.each<[string, Answer]>([
      ['calls another tool', { calls: [search(9)] }],
      ['calls it twice', { calls: [found, found] }],
      ['calls it beside another', { calls: [found, search(9)] }],
      ['says nothing', { text: '' }],
    ])('asks for a text when the model %s', async (_, answer) => {
      const { url, provider } = await startBoth(
        until(({ tool_choice: choice }) => (choice === 'none' ? { text: 'It is Oslo.' } : answer)),
        { budget },
      )
      const { steps } = await runAgent(url, START, options)
      const last = steps.at(-1)
      expect([last?.message.content, nameOf(last?.message), last?.finish]).toEqual(['It is Oslo.', undefined, 'stop'])
      expect(last?.governor).toMatchObject({ has_final_answer: true })
      expect(provider.requests).toHaveLength(5)
    })

    it('accepts a text as the answer', async () => {
      const { url, provider } = await startBoth(until({ text: 'It is Oslo.' }), { budget })
      const { steps } = await runAgent(url, START, options)
      expect(steps.at(-1)?.message.content).toBe('It is Oslo.')
      expect(steps.at(-1)?.governor).toMatchObject({ has_final_answer: true })
      expect(provider.requests).toHaveLength(4)
    })

    it('keeps no call if the run has called all of its tools before', async () => {
      const { url } = await startBoth(
        ({ json }, number) => (json.tool_choice === 'none' ? { text: 'Enough.' } : { calls: [search(number)] }),
        { budget },
      )
      const { steps } = await runAgent(url, START, { ...options, body: { tool_choice: 'required' } })
      expect([steps.length, steps.at(-1)?.message.content]).toEqual([4, 'Enough.'])
    })

    it('keeps the call of the only tool that the client names', async () => {
      const choice = { type: 'function', function: { name: 'search' } }
      const { url, provider } = await startBoth(until({ calls: [search(9)] }), { budget })
      const { steps } = await runAgent(url, START, {
        ...options,
        body: { tools: TOOLS, tool_choice: choice },
      })
      expect([steps.length, nameOf(steps.at(-1)?.message)]).toEqual([4, ['search']])
      expect(provider.requests.at(-1)?.json.tool_choice).toEqual(choice)
      expect(steps.at(-1)?.governor).toMatchObject({ has_final_answer: true })
    })

    it('asks for a text when the call is too long to be buffered', async () => {
      const long = { calls: [{ name: 'final_result', arguments: { text: 'x'.repeat(5_000) } }] }
      const { url } = await startBoth(
        until(({ tool_choice: choice }) => (choice === 'none' ? { text: 'It is Oslo.' } : long)),
        { budget, server: { max_guarded_body: '4kb' } },
      )
      const { steps } = await runAgent(url, START, options)
      expect(steps.at(-1)?.message.content).toBe('It is Oslo.')
      expect(nameOf(steps.at(-1)?.message)).toBeUndefined()
    })

    it('passes an error of the provider on, and does not complete a call that breaks off', async () => {
      const { url } = await startBoth(until({ status: 503, body: { error: { message: 'busy' } } }), {
        budget,
      })
      const { messages } = await runAgent(url, START, { ...options, max: 3 })
      expect((await callModel(url, messages, { ...options, stream: false })).status).toBe(503)
      if (!stream) return
      const call = {
        index: 0,
        id: 'c',
        type: 'function',
        function: { name: 'final_result', arguments: '{"ci' },
      }
      const chunk = {
        id: 'x',
        object: 'chat.completion.chunk',
        choices: [{ index: 0, delta: { tool_calls: [call] }, finish_reason: null }],
      }
      const body = `data: ${JSON.stringify(chunk)}\n\n`
      const other = await startBoth(until({ body, headers: { 'content-type': 'text/event-stream' } }), {
        budget,
      })
      const { messages: before } = await runAgent(other.url, START, { ...options, max: 3 })
      await expect(callModel(other.url, before, options)).rejects.toThrow('the stream did not end')
    })
  },
)

describe.each([{ stream: false }, { stream: true }])(
  'the stop of an agent that must call a tool, in other dialects (stream: $stream)',
  ({ stream }) => {
    const script = until(obedient)

    it('keeps its call in Messages', async () => {
      const tools = [...MESSAGES_TOOLS, { name: 'final_result', input_schema: { type: 'object' } }]
      const { url, provider } = await startBoth(script, { budget })
      const body = { tools, tool_choice: { type: 'any' } }
      const { steps } = await runMessagesAgent(url, ASKED, { stream, max: 4, body })
      const last = steps.at(-1)
      expect(last?.message.content).toMatchObject([{ type: 'tool_use', name: 'final_result', input: { city: 'Oslo' } }])
      expect([steps.length, last?.stop]).toEqual([4, 'tool_use'])
      expect(last?.governor).toMatchObject({ has_final_answer: true })
      expect(provider.requests.at(-1)?.json.tool_choice).toEqual({ type: 'tool', name: 'final_result' })
    })

    it('keeps its call in Responses', async () => {
      const tools = [TOOL, { type: 'function', name: 'final_result', parameters: { type: 'object' } }]
      const { url, provider } = await startBoth(script, { budget })
      const body = { tools, tool_choice: 'required' }
      const { steps } = await runResponses(url, 'Find out.', { stream, max: 4, body })
      const last = steps.at(-1)
      expect(last?.calls).toMatchObject([{ name: 'final_result', arguments: '{"city":"Oslo"}' }])
      expect([steps.length, last?.response['status']]).toEqual([4, 'completed'])
      expect(last?.response['governor']).toMatchObject({ has_final_answer: true })
      expect(provider.requests.at(-1)?.json.tool_choice).toEqual({ type: 'function', name: 'final_result' })
    })

    it('asks for a text in Responses whose history the provider keeps, because the called tools are unknown', async () => {
      const tools = [TOOL, { type: 'function', name: 'final_result', parameters: { type: 'object' } }]
      const { url } = await startBoth(script, { budget })
      const body = { tools, tool_choice: 'required' }
      const { steps } = await runResponses(url, 'Find out.', { stream, stateful: true, max: 4, body })
      expect(steps.at(-1)?.text).toBe('It is Oslo.')
    })
  },
)

describe('a request after the end of a run', () => {
  const forced = (name: string) => ({
    tools: [{ type: 'function', function: { name, parameters: { type: 'object' } } }],
    tool_choice: { type: 'function', function: { name } },
  })
  const script: Script = ({ json }, number) => {
    const choice = json.tool_choice as { function?: { name: string } } | string | undefined
    if (typeof choice === 'object' && choice.function) return { calls: [{ name: choice.function.name, arguments: {} }] }
    if (json.tools && choice !== 'none') return { calls: [search(number)] }
    return { text: json['response_format'] ? '{"city":"Oslo"}' : 'It is Oslo.' }
  }

  async function ended(stream: boolean, body: object = {}) {
    const both = await startBoth(script, { budget })
    const { messages } = await runAgent(both.url, START, { stream, body: { tools: TOOLS, ...body } })
    expect(messages.at(-1)?.tool_calls).toBeUndefined()
    const ask = async (more: object) => {
      const before = both.provider.requests.length
      const step = await callModel(both.url, messages, { stream, body: more as CallOptions['body'] & object })
      return { ...step, isRelayed: both.provider.requests.length > before }
    }
    return { ...both, messages, ask }
  }

  it.each([false, true])(
    'is relayed unchanged when it forces a tool or asks for a format, once each (stream: %s)',
    async (stream) => {
      const { ask, provider } = await ended(stream)
      const tool = await ask(forced('extract'))
      expect([tool.isRelayed, nameOf(tool.message)]).toEqual([true, ['extract']])
      expect([tool.governor, tool.headers.get('x-governor-verdict')]).toEqual([undefined, 'allow'])
      expect(provider.requests.at(-1)?.body.toString()).not.toContain(NOTICE)
      const format = await ask({ tools: undefined, response_format: SCHEMA })
      expect([format.isRelayed, format.message.content]).toEqual([true, '{"city":"Oslo"}'])
      // The answer to an identical request may have been lost; another request with the same tool had its answer.
      expect((await ask(forced('extract'))).isRelayed).toBe(true)
      for (const more of [{ ...forced('extract'), seed: 1 }, { response_format: SCHEMA, seed: 1 }, { seed: 2 }]) {
        const step = await ask(more)
        expect([step.isRelayed, step.message.content]).toEqual([false, 'It is Oslo.'])
        expect(step.governor).toMatchObject({ terminal_reason: 'max_iterations' })
      }
    },
  )

  it('is relayed at most four times, and then gets the recorded answer', async () => {
    const { ask, url } = await ended(false)
    const names = ['one', 'two', 'three', 'four', 'five', 'six']
    const relayed: boolean[] = []
    for (const name of names) relayed.push((await ask(forced(name))).isRelayed)
    expect(relayed).toEqual([true, true, true, true, false, false])
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_answers_repeated_total 2')
  })

  it('gets the recorded answer if the run had that format or forced that tool before', async () => {
    const { ask } = await ended(false, { response_format: SCHEMA })
    expect((await ask({ response_format: SCHEMA, seed: 1 })).isRelayed).toBe(false)
    expect((await ask({ ...forced('extract'), response_format: SCHEMA })).isRelayed).toBe(true)
  })

  it.each(['auto', 'none', undefined])('gets the recorded answer with the tool choice %s', async (choice) => {
    const { ask } = await ended(false)
    expect((await ask({ tool_choice: choice, response_format: { type: 'text' } })).isRelayed).toBe(false)
  })

  it('is relayed if it forces a tool, also after a run that ended for its loop', async () => {
    const same: Script = (request, number) => {
      const answer = script(request, number) as Answer
      return answer.calls?.[0]?.name === 'search' ? { calls: [search(0)] } : answer
    }
    const { url } = await startBoth(same, { loop_guard: { max_warnings_before_block: 0 } })
    const { steps, messages } = await runAgent(url, START, { max: 20 })
    expect(steps.at(-1)?.governor).toMatchObject({ terminal_reason: 'loop_guard' })
    const step = await callModel(url, messages, { body: forced('extract') })
    expect(nameOf(step.message)).toEqual(['extract'])
    expect((await callModel(url, messages, { body: { seed: 1 } })).governor).toMatchObject({
      terminal_reason: 'loop_guard',
    })
  })

  it('is relayed unchanged again if the provider failed', async () => {
    let isDown = false
    const { url } = await startBoth(
      (request, number) => (isDown ? { status: 503, body: { error: { message: 'busy' } } } : script(request, number)),
      { budget },
    )
    const { messages } = await runAgent(url, START)
    isDown = true
    expect((await callModel(url, messages, { body: forced('extract') })).status).toBe(503)
    isDown = false
    const step = await callModel(url, messages, { body: forced('extract') })
    expect(nameOf(step.message)).toEqual(['extract'])
  })
})

describe('a request after the end of a run that forces a tool or asks for a format', () => {
  it('is relayed in Messages', async () => {
    const script: Script = ({ json }, number) => {
      const choice = json.tool_choice as { type?: string; name?: string } | undefined
      if (choice?.type === 'tool') return { calls: [{ name: String(choice.name), arguments: {} }] }
      return choice?.type === 'none' ? { text: 'It is Oslo.' } : { calls: [search(number)] }
    }
    const { url } = await startBoth(script, { budget })
    const { messages } = await runMessagesAgent(url, ASKED)
    const tools = [{ name: 'extract', input_schema: { type: 'object' } }]
    const body = { tools, tool_choice: { type: 'tool', name: 'extract' } }
    expect((await callMessages(url, messages, { body })).message.content).toMatchObject([{ name: 'extract' }])
    const again = await callMessages(url, messages, { body: { ...body, max_tokens: 7 } })
    expect(again.text).toBe('It is Oslo.')
  })

  it.each([true, false])('is relayed in Responses (history kept by the provider: %s)', async (stateful) => {
    const script: Script = ({ json }, number) => {
      const { text, tool_choice: choice } = json as ChatBody & { text?: { format?: unknown } }
      if (text?.format) return { text: '{"city":"Oslo"}' }
      return choice === 'none' ? { text: 'It is Oslo.' } : { calls: [search(number)] }
    }
    const { url, provider } = await startBoth(script, { budget })
    const { steps, items } = await runResponses(url, 'Find out.', { stateful })
    const before = provider.requests.length
    const format = { format: { type: 'json_schema', name: 'city', schema: { type: 'object' } } }
    const rest = stateful
      ? { previous_response_id: steps.at(-1)?.response['id'], input: [] }
      : { input: items, store: false }
    const step = await callResponses(url, { ...rest, text: format })
    expect([step.text, provider.requests.length]).toEqual(['{"city":"Oslo"}', before + 1])
  })
})
