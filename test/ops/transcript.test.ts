import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { chat } from '../../src/dialect/chat/index.ts'
import { apiError, sessionDetail, type Transcript, transcript } from '../../src/ops/sessions/api-schema.ts'
import { act, ask, firstSession, listed, type Reply } from '../support/admin.ts'
import { callModel, runAgent, START, TOOLS } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { type ChatMessage, runaway, type Script, startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'
import { runResponses } from '../support/responses-agent.ts'
import { failingStore, racing } from '../support/stores.ts'

const ON = { sessions: { transcript: true } }
const named = (name: string) => ({ headers: { 'x-governor-session': name } })
const SUMMARY_REQUEST =
  "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools."

/** Looks two things up, says something beside the first call, then answers. */
const research: Script = (_, number) =>
  [
    { text: 'Let me look. ', calls: [{ name: 'search', arguments: { query: 'a secret argument' } }] },
    { calls: [{ name: 'search', arguments: { query: 'more' } }] },
    { text: 'It is — after all — 42. 🎉' },
  ][number - 1] ?? { text: `Answer ${number}.` }

const RESEARCH = ['user: What is it?', 'assistant: Let me look. ', 'assistant: It is — after all — 42. 🎉']

async function transcriptReply(url: string, id?: string, headers = {}): Promise<Reply> {
  const known = id ?? (await listed(url, '', headers))[0]?.id
  return ask(url, `/governor/sessions/${known}/transcript`, { headers })
}

async function transcriptOf(url: string, headers = {}): Promise<Transcript> {
  return (await transcriptReply(url, undefined, headers)).json as Transcript
}

const linesOf = ({ entries }: Transcript) => entries.map(({ role, text }) => `${role}: ${text}`)

/** Waits until the transcript shows so many texts: what is said is kept once the client has its answer. */
async function linesWhen(url: string, count: number): Promise<string[]> {
  return vi.waitFor(async () => {
    const lines = linesOf(await transcriptOf(url))
    expect(lines).toHaveLength(count)
    return lines
  }, 10_000)
}

const endsOf = (entries: Transcript['entries']) => entries.map(({ terminal_state: state }) => state)

const openai = (url: string) => new OpenAI({ apiKey: 'sk-test', baseURL: `${url}/v1`, maxRetries: 0 })
const anthropic = (url: string) => new Anthropic({ apiKey: 'sk-test', baseURL: url, maxRetries: 0 })

const chatTools = [
  {
    type: 'function' as const,
    function: {
      name: 'search',
      description: 'Search',
      parse: JSON.parse as (text: string) => { query: string },
      function: ({ query }: { query: string }) => `a secret result for ${query}`,
      parameters: { type: 'object', properties: { query: { type: 'string' } } },
    },
  },
]

describe('the transcript of a run', () => {
  it.each([false, true])('of the openai package holds what was said, streamed: %s', async (stream) => {
    const { url, logs } = await startBoth(research, ON)
    const messages = [{ role: 'user' as const, content: 'What is it?' }]
    const params = { model: 'gpt-test', messages, tools: chatTools }
    const { completions } = openai(url).chat
    const runner = stream ? completions.runTools({ ...params, stream: true }) : completions.runTools(params)
    await runner.finalContent()
    expect(await linesWhen(url, 3)).toEqual(RESEARCH)
    expect((await transcriptReply(url)).text).not.toMatch(/secret/)
    expect(logs.join('')).not.toMatch(/after all|What is it/)
  })

  const searchItem = {
    type: 'function' as const,
    name: 'search',
    strict: false,
    parameters: { type: 'object', properties: { query: { type: 'string' } } },
  }

  it.each([false, true])(
    'of the openai package over Responses holds what the provider keeps the history of, streamed: %s',
    async (stream) => {
      const { url } = await startBoth(research, ON)
      const { responses } = openai(url)
      type Input = OpenAI.Responses.ResponseInputItem[]
      let input: Input = [{ role: 'user', content: 'What is it?' }]
      let previous: string | undefined
      for (let calls = 0; calls < 4; calls++) {
        const params = {
          model: 'gpt-test',
          tools: [searchItem],
          input,
          ...(previous ? { previous_response_id: previous } : {}),
        }
        const response = await (stream ? responses.stream(params).finalResponse() : responses.create(params))
        previous = response.id
        input = response.output.flatMap(
          (item): Input =>
            item.type === 'function_call'
              ? [{ type: 'function_call_output', call_id: item.call_id, output: 'a secret result' }]
              : [],
        )
        if (calls === 2) input = [{ role: 'user', content: 'What is it?' }]
      }
      expect(await linesWhen(url, 5)).toEqual([...RESEARCH, 'user: What is it?', 'assistant: Answer 4.'])
    },
  )

  it.each([false, true])('of the anthropic package holds what was said, streamed: %s', async (stream) => {
    const { url } = await startBoth(research, ON)
    const runner = anthropic(url).beta.messages.toolRunner({
      model: 'claude-test',
      max_tokens: 1000,
      system: 'You are a research agent.',
      messages: [{ role: 'user', content: 'What is it?' }],
      tools: [
        {
          name: 'search',
          description: 'Search',
          input_schema: { type: 'object', properties: { query: { type: 'string' } } },
          run: () => 'a secret result',
          parse: (input: unknown) => input,
        },
      ],
      stream,
      thread: false,
    })
    for await (const step of runner) if ('finalMessage' in step) await step.finalMessage()
    expect(await linesWhen(url, 3)).toEqual(RESEARCH)
    expect((await transcriptReply(url)).text).not.toMatch(/secret/)
  })

  it('holds an answer that came compressed', async () => {
    const { gzipSync } = await import('node:zlib')
    const { completion } = await import('../support/provider.ts')
    const { url } = await startBoth(({ json }, number) => {
      const whole = JSON.stringify(completion(json, { text: 'Packed.' }, number))
      return { body: gzipSync(whole), headers: { 'content-encoding': 'gzip' } }
    }, ON)
    await callModel(url, START, named('one'))
    expect(await linesWhen(url, 2)).toEqual(['user: Find out everything.', 'assistant: Packed.'])
  })

  it('holds the answer of a stopped run with its terminal state, and not the request for that answer', async () => {
    const { url } = await startBoth(runaway('search', 'What I found.'), {
      ...ON,
      budget: { max_iterations: 3 },
    })
    const { steps, messages } = await runAgent(url, START, named('one'))
    await callModel(url, messages.slice(0, -1), named('one'))
    const shown = await transcriptOf(url, {})
    expect(linesOf(shown)).toEqual(['user: Find out everything.', 'assistant: What I found.'])
    expect(shown.entries[1]).toMatchObject({
      terminal_state: 'tool_limit_reached',
      terminal: { ...steps.at(-1)?.governor, session: 'one' },
    })
    expect(shown.entries[0]).toMatchObject({ terminal_state: null, terminal: null })
  })

  it.each([false, true])(
    'holds the answer of a stopped run whose history the provider keeps, streamed: %s',
    async (stream) => {
      const { url } = await startBoth(runaway('search', 'What I found.'), {
        ...ON,
        budget: { max_iterations: 3 },
      })
      const { ask: say } = await runResponses(url, 'Go.', { stateful: true, stream })
      await say('And then?')
      const shown = await transcriptOf(url)
      expect(linesOf(shown)).toEqual(['user: Go.', 'assistant: What I found.', 'user: And then?'])
      expect(endsOf(shown.entries)).toEqual([null, 'tool_limit_reached', null])
    },
  )

  it.each([false, true])(
    'holds what the client got of a run that blocked calls ended, once, streamed: %s',
    async (stream) => {
      const script: Script = ({ json }) =>
        !json.tools || json.tool_choice === 'none'
          ? { text: 'I am stuck.' }
          : { text: 'Reading again.', calls: [{ name: 'read_file', arguments: { path: 'a' } }] }
      const { url } = await startBoth(script, { ...ON, loop_guard: { mode: 'enforce' } })
      const { steps } = await runAgent(url, START, { ...named('one'), stream, max: 60 })
      const shown = await transcriptOf(url)
      const last = shown.entries.at(-1)
      expect(last).toMatchObject({ role: 'assistant', terminal_state: 'loop_detected' })
      expect(last?.text).toBe(steps.at(-1)?.message.content)
      const saidByModel = steps.flatMap(({ message }) => (message.content ? [message.content] : []))
      expect(shown.entries.filter(({ role }) => role === 'assistant').map(({ text }) => text)).toEqual(saidByModel)
    },
  )

  it.each([true, false])('changes no byte in either direction, streamed: %s', async (stream) => {
    const direct = await startProvider(research)
    const behind = await startProvider(research)
    onTestFinished(() => Promise.all([direct.close(), behind.close()]).then(() => undefined))
    const { url } = await startGovernor(behind.url, ON)
    const body = JSON.stringify({ model: 'gpt-test', messages: START, tools: TOOLS, stream })
    const [sent, through] = await Promise.all(
      [direct.url, url].map(async (base) => {
        const headers = { 'content-type': 'application/json', 'x-governor-session': 'one' }
        const response = await fetch(`${base}/v1/chat/completions`, { method: 'POST', headers, body })
        return response.text()
      }),
    )
    expect(through).toBe(sent)
    expect(behind.requests[0]?.body.toString()).toBe(body)
    expect(await linesWhen(url, 2)).toEqual(['user: Find out everything.', 'assistant: Let me look. '])
  })

  it('holds the answer that the client got when it sent a request again, and not the one that broke off', async () => {
    const chunk = {
      choices: [{ index: 0, delta: { role: 'assistant', content: 'It is 4' }, finish_reason: null }],
    }
    const broken = {
      body: `data: ${JSON.stringify(chunk)}\n\n`,
      headers: { 'content-type': 'text/event-stream' },
    }
    const { url } = await startBoth((_, number) => (number === 1 ? broken : { text: 'It is 42.' }), ON)
    const options = { ...named('one'), stream: true }
    await expect(callModel(url, START, options)).rejects.toThrow('the stream did not end')
    expect(await linesWhen(url, 2)).toEqual(['user: Find out everything.', 'assistant: It is 4'])
    await callModel(url, START, options)
    expect(linesOf(await transcriptOf(url))).toEqual(['user: Find out everything.', 'assistant: It is 42.'])
  })

  it.each([false, true])(
    'holds the answer of a stopped run once, without the footer that the client got, streamed: %s',
    async (stream) => {
      const stop = { footer: true }
      const { url } = await startBoth(runaway(), { ...ON, budget: { max_iterations: 1 }, stop })
      const { messages, steps } = await runAgent(url, START, { ...named('one'), stream })
      expect(steps.at(-1)?.message.content).toMatch(/stopped by governor: 1 of 1 iterations$/)
      const ended = ['user: Find out everything.', 'assistant: This is what I found so far.']
      expect(await linesWhen(url, 2)).toEqual(ended)
      const more = [...messages, { role: 'user', content: 'And now?' }]
      await runAgent(url, more, { ...named('one'), stream, max: 1 })
      expect(await linesWhen(url, 3)).toEqual([...ended, 'user: And now?'])
    },
  )

  it('leaves out the request by which an agent asks itself for a summary, and ends with its answer', async () => {
    const { url } = await startBoth(answering('I did what I could.'), ON)
    const { messages } = await runAgent(url, START, { ...named('one'), max: 1 })
    const asking: ChatMessage[] = [...messages, { role: 'user', content: SUMMARY_REQUEST }]
    await callModel(url, asking, named('one'))
    const shown = await transcriptOf(url)
    expect(linesOf(shown)).toEqual(['user: Find out everything.', 'assistant: I did what I could.'])
    expect(shown.entries[1]).toMatchObject({
      terminal_state: 'tool_limit_reached',
      terminal: { terminal_reason: 'max_iterations', has_final_answer: true },
    })
  })

  it('holds each text once over a compaction, and not the summary', async () => {
    const { url } = await startBoth((_, number) => ({ text: `Answer ${number}.` }), ON)
    const first = await runAgent(url, START, named('one'))
    const second = await runAgent(url, [...first.messages, { role: 'user', content: 'Go on.' }], named('one'))
    const summary = 'This session is being continued from a previous conversation that ran out of context.'
    const compacted: ChatMessage[] = [
      { role: 'system', content: 'You are a research agent.' },
      { role: 'user', content: summary },
      ...second.messages.slice(-3),
      { role: 'user', content: 'Go on.' },
    ]
    await runAgent(url, compacted, named('one'))
    expect(linesOf(await transcriptOf(url))).toEqual([
      'user: Find out everything.',
      'assistant: Answer 1.',
      'user: Go on.',
      'assistant: Answer 2.',
      'user: Go on.',
      'assistant: Answer 3.',
    ])
  })

  it('has a lane for each agent', async () => {
    const { url } = await startBoth((_, number) => ({ text: `Answer ${number}.` }), ON)
    await runAgent(url, START, named('one'))
    const headers = { 'x-governor-session': 'one', 'thread-id': 'helper' }
    await runAgent(url, START, { headers })
    const { entries } = await transcriptOf(url)
    expect(entries.map(({ thread, text }) => `${thread} ${text}`)).toEqual([
      '1 Find out everything.',
      '1 Answer 1.',
      '2 Find out everything.',
      '2 Answer 2.',
    ])
  })

  it('shows what the user asked while the model still works', async () => {
    let answer = () => {}
    const { url } = await startBoth(async () => {
      await new Promise<void>((resolve) => {
        answer = resolve
      })
      return { text: 'There.' }
    }, ON)
    const step = callModel(url, START, named('one'))
    expect(await linesWhen(url, 1)).toEqual(['user: Find out everything.'])
    answer()
    await step
    expect(await linesWhen(url, 2)).toEqual(['user: Find out everything.', 'assistant: There.'])
  })

  it('is the same if every change of the store loses a race first', async () => {
    const { url } = await startBoth(research, ON, { store: racing() })
    await runAgent(url, [{ role: 'user', content: 'What is it?' }], named('one'))
    expect(await linesWhen(url, 3)).toEqual(RESEARCH)
  })

  it('holds the text that the client got at the end of a run after a fault of Governor in reading the answer', async () => {
    const readAnswer = () => {
      throw new Error('a fault')
    }
    const { url, events } = await startBoth(
      runaway(),
      { ...ON, budget: { max_iterations: 2 } },
      { dialects: [{ ...chat, readAnswer }] },
    )
    const { steps } = await runAgent(url, START, named('one'))
    expect(steps.map(({ status }) => status)).toEqual([200, 200, 200])
    expect(events).toContainEqual(expect.objectContaining({ kind: 'failed_open', reason: 'fault' }))
    const { entries } = await transcriptOf(url)
    expect(entries.at(-1)).toMatchObject({
      role: 'assistant',
      text: steps.at(-1)?.message.content,
      terminal: { terminal_reason: 'max_iterations', has_final_answer: false },
    })
  })

  it('costs no answer if the store fails', async () => {
    const { url } = await startBoth(research, ON, { store: failingStore(() => true) })
    const { steps } = await runAgent(url, [{ role: 'user', content: 'What is it?' }], named('one'))
    expect(steps.map(({ status }) => status)).toEqual([200, 200, 200])
    expect(steps.at(-1)?.message.content).toBe('It is — after all — 42. 🎉')
  })

  it('stays when an operator resets the session', async () => {
    const { url } = await startBoth(runaway('search', 'Enough.'), { ...ON, budget: { max_iterations: 2 } })
    await runAgent(url, START, named('one'))
    const before = await transcriptOf(url)
    await act(url, (await firstSession(url)).id, 'reset')
    expect((await transcriptOf(url)).entries).toEqual(before.entries)
  })
})

const answering =
  (text: string): Script =>
  ({ json }) =>
    json.messages.some(({ role }) => role === 'tool') ? { text } : { calls: [{ name: 'search', arguments: {} }] }

describe('the end of a run that Governor did not end', () => {
  it('is completed on its answer once nothing came for five minutes, and no sooner', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(research, ON, { now: () => time.now })
    await runAgent(url, [{ role: 'user', content: 'What is it?' }], named('one'))
    expect(endsOf((await transcriptOf(url)).entries)).toEqual([null, null, null])
    expect(await firstSession(url)).toMatchObject({ state: 'answered', final_answer: null })
    time.now += 300_000
    expect(endsOf((await transcriptOf(url)).entries)).toEqual([null, null, 'completed'])
    expect(await firstSession(url)).toMatchObject({
      state: 'completed',
      final_answer: { text: 'It is — after all — 42. 🎉', truncated: false },
    })
  })

  it('is completed in a session that its client does not name as well', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(research, ON, { now: () => time.now })
    await runAgent(url, [{ role: 'user', content: 'What is it?' }])
    time.now += 300_000
    expect(endsOf((await transcriptOf(url)).entries)).toEqual([null, null, 'completed'])
    expect((await firstSession(url)).final_answer?.text).toBe('It is — after all — 42. 🎉')
  })

  it('is completed on its answer as soon as a human speaks, and the run after it is not', async () => {
    const { url } = await startBoth(research, ON)
    const start = [{ role: 'user', content: 'What is it?' }]
    const { messages } = await runAgent(url, start, named('one'))
    await runAgent(url, [...messages, { role: 'user', content: 'Why?' }], named('one'))
    const { entries } = await transcriptOf(url)
    expect(endsOf(entries)).toEqual([null, null, 'completed', null, null])
  })

  it('is not completed because there is text: an agent that left in the middle has no final answer', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(research, ON, { now: () => time.now })
    await callModel(url, START, named('one'))
    time.now += 900_000
    expect(endsOf((await transcriptOf(url)).entries)).toEqual([null, null])
    expect(await firstSession(url)).toMatchObject({ state: 'idle', final_answer: null })
  })

  it.each([
    ['/v1/chat/completions', (content: unknown) => ({ messages: [{ role: 'user', content }] })],
    ['/v1/messages', (content: unknown) => ({ max_tokens: 1, messages: [{ role: 'user', content }] })],
    ['/v1/responses', (content: unknown) => ({ store: false, input: [{ role: 'user', content }] })],
  ])('shows the whole text of a user or says that it does not, for any length: %s', async (path, bodyOf) => {
    for (const length of [1_000, 65_536, 65_537, 131_070, 131_071, 140_000, 500_000]) {
      const said = 'a'.repeat(length)
      for (const content of [said, [{ type: 'text', text: said }]]) {
        const { url } = await startBoth(() => ({ text: 'Hi.' }), ON)
        const body = JSON.stringify({
          model: 'm',
          tools: [{ type: 'function', name: 'f' }],
          ...bodyOf(content),
        })
        await (await fetch(url + path, { method: 'POST', ...named('one'), body })).arrayBuffer()
        const entry = await vi.waitFor(async () => {
          const [first] = (await transcriptOf(url)).entries
          expect(first).toBeDefined()
          return first
        }, 20_000)
        expect(entry?.truncated).toBe(entry?.text !== said)
      }
    }
  })

  it('shows the first 64 KiB of the final answer, and says that there was more', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(() => ({ text: 'é'.repeat(70_000) }), ON, { now: () => time.now })
    await callModel(url, START, { ...named('one'), stream: true })
    await expect.poll(() => firstSession(url)).toMatchObject({ state: 'answered' })
    time.now += 300_000
    const { final_answer: answer } = await firstSession(url)
    expect(answer?.truncated).toBe(true)
    expect(Buffer.byteLength(answer?.text ?? '')).toBe(65_536)
    expect((await transcriptOf(url)).entries[1]).toMatchObject({ truncated: true })
  })
})

describe('access to transcripts', () => {
  it('gets 404 with the option to set while transcripts are off, and no transcript is stored', async () => {
    const time = { now: 1_800_000_000_000 }
    const { url } = await startBoth(research, {}, { now: () => time.now })
    await runAgent(url, [{ role: 'user', content: 'What is it?' }], named('one'))
    const reply = await transcriptReply(url)
    expect(reply.status).toBe(404)
    expect(apiError.parse(reply.json).error).toMatchObject({
      code: 'transcript_off',
      message: expect.stringContaining('sessions.transcript: true'),
    })
    time.now += 300_000
    expect(await firstSession(url)).toMatchObject({
      state: 'completed',
      final_answer: null,
      transcript: false,
    })
  })

  it('gets 404 for a session that is not there', async () => {
    const { url } = await startBoth(research, ON)
    await runAgent(url, START, named('one'))
    const [{ id } = { id: '' }] = await listed(url)
    for (const unknown of ['x', '__proto__', `${id.slice(0, -1)}z`]) {
      const reply = await transcriptReply(url, unknown)
      expect(reply.status, unknown).toBe(404)
      expect(apiError.parse(reply.json).error.code).toBe('unknown_session')
    }
  })

  it('needs what all of the API needs, and with ops.names: token shows the name of the client with the token alone', async () => {
    const { url } = await startBoth(runaway('search', 'Enough.'), {
      ...ON,
      budget: { max_iterations: 2 },
      ops: { admin_token: 'an-operators-token', names: 'token' },
    })
    await runAgent(url, START, named('a-name-that-is-secret'))
    const token = { authorization: 'Bearer an-operators-token' }
    const { id } = await firstSession(url)
    for (const headers of [
      { authorization: 'Bearer wrong' },
      { 'x-forwarded-for': '1.2.3.4' },
      { origin: 'http://evil.example' },
    ]) {
      const refused = await transcriptReply(url, id, headers)
      expect(refused.status).toBe(401)
      expect(refused.text).not.toMatch(/Enough|Find out/)
    }
    expect((await transcriptReply(url, id)).text).not.toContain('a-name-that-is-secret')
    expect((await transcriptReply(url, id, token)).text).toContain('a-name-that-is-secret')
  })

  it('is described by the OpenAPI description, key by key', async () => {
    const { url } = await startBoth(runaway('search', 'Enough.'), { ...ON, budget: { max_iterations: 2 } })
    await runAgent(url, START, named('one'))
    const { id } = await firstSession(url)
    transcript.parse((await transcriptReply(url, id)).json)
    sessionDetail.parse((await ask(url, `/governor/sessions/${id}`)).json)
    const { json } = await ask(url, '/governor/openapi.json')
    const { paths } = json as { paths: Record<string, object> }
    expect(paths['/governor/sessions/{id}/transcript']).toMatchObject({
      get: {
        responses: {
          200: { content: { 'application/json': { schema: { $ref: '#/components/schemas/Transcript' } } } },
        },
      },
    })
  })
})

describeWith('redis-server', 'the transcript in Redis', () => {
  it('is the same in another replica, and after a restart of all of them', async () => {
    const redis = await startRedis()
    const provider = await startProvider(runaway('search', 'What I found.'))
    onTestFinished(() => provider.close())
    const config = {
      ...ON,
      budget: { max_iterations: 4 },
      store: 'redis',
      redis: { url: redis.url, timeout: '5s' },
    }
    const replicas = await Promise.all([1, 2].map(() => startGovernor(provider.url, config)))
    const [one = '', two = ''] = replicas.map(({ url }) => url)
    const begun = await runAgent(one, START, { ...named('one'), max: 2 })
    const ended = await runAgent(two, begun.messages, named('one'))
    expect(ended.steps.at(-1)?.governor).toBeDefined()
    const first = await vi.waitFor(async () => {
      const shown = await transcriptOf(one)
      expect(linesOf(shown)).toEqual(['user: Find out everything.', 'assistant: What I found.'])
      return shown
    }, 10_000)
    expect(first.entries[1]).toMatchObject({ terminal_state: 'tool_limit_reached' })
    expect(await transcriptOf(two)).toEqual(first)
    const detail = await firstSession(one)
    await Promise.all(replicas.map(({ governor }) => governor.close()))
    const again = await startGovernor(provider.url, config)
    expect(await transcriptOf(again.url)).toEqual(first)
    const { terminal, terminal_state, final_answer } = await firstSession(again.url)
    expect({ terminal, terminal_state, final_answer }).toEqual({
      terminal: detail.terminal,
      terminal_state: detail.terminal_state,
      final_answer: detail.final_answer,
    })
  })
})
