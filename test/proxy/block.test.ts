import { describe, expect, it } from 'vitest'
import { firstSession } from '../support/admin.ts'
import { afterStep, callModel, runAgent, START, TOOLS } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import type { Answer, ChatMessage, Script } from '../support/provider.ts'
import { readsBlock, repeatsUntilBlocked } from '../support/scripts.ts'

const SAME: Answer = { calls: [{ name: 'search', arguments: { query: 'the same' } }] }
const REFUSAL =
  "[LOOP GUARD] Blocked: 'search' was called 6 times with identical arguments and results. This call was not executed. Try something different or give your final answer."

async function metricsOf(url: string): Promise<string> {
  return (await fetch(`${url}/metrics`)).text()
}

describe.each([{ stream: false }, { stream: true }])(
  'a repeated call after ignored warnings (stream: $stream)',
  ({ stream }) => {
    it('is blocked, the model is asked again, and the client gets the new answer', async () => {
      const { url, provider } = await startBoth(repeatsUntilBlocked(SAME, () => ({ text: 'I give up.' })))
      const { steps } = await runAgent(url, START, { stream, max: 20 })
      expect(steps.map(({ headers }) => headers.get('x-governor-verdict'))).toEqual([
        ...['allow', 'allow', 'allow', 'warn', 'allow', 'warn', 'block'],
      ])
      const last = steps.at(-1)
      expect(last?.message).toEqual({
        role: 'assistant',
        content: 'I give up.',
        ...(stream ? {} : { refusal: null }),
      })
      expect(last?.finish).toBe('stop')
      expect(last?.headers.get('x-governor-loop')).toBe('repetition;count=6')
      expect(last?.usage).toEqual({ prompt_tokens: 200, completion_tokens: 20, total_tokens: 220 })
      expect(last?.governor).toBeUndefined()
      const before = provider.requests.at(-2)?.json.messages ?? []
      const [call, result] = provider.requests.at(-1)?.json.messages.slice(before.length) ?? []
      expect(call?.tool_calls).toEqual([
        {
          id: expect.any(String),
          type: 'function',
          function: { name: 'search', arguments: '{"query":"the same"}' },
        },
      ])
      expect(result).toEqual({ role: 'tool', tool_call_id: call?.tool_calls?.[0]?.id, content: REFUSAL })
      expect(provider.requests.at(-1)?.json.messages.slice(0, before.length)).toEqual(before)
      const metrics = await metricsOf(url)
      expect(metrics).toContain('governor_loops_total{pattern="repetition",tool="search",action="blocked"} 1')
      expect(metrics).toContain('governor_reasks_total{outcome="answered"} 1')
    })

    it('is allowed again after a new and different call', async () => {
      let turns = 0
      const { url } = await startBoth(
        repeatsUntilBlocked(SAME, () =>
          turns++ === 0 ? { calls: [{ name: 'read', arguments: { file: 'a' } }] } : { text: 'Done.' },
        ),
      )
      const { steps } = await runAgent(url, START, { stream, max: 20 })
      expect(steps[6]?.message.tool_calls?.[0]?.function.name).toBe('read')
      expect(steps[6]?.finish).toBe('tool_calls')
    })

    it('ends the run after the third block with the model’s own answer', async () => {
      const { url, provider } = await startBoth(({ json }) =>
        json.tool_choice === 'none' ? { text: 'I could not find it.' } : SAME,
      )
      const { steps, messages } = await runAgent(url, START, { stream, max: 20 })
      const last = steps.at(-1)
      expect(steps).toHaveLength(7)
      expect(last?.message.content).toBe('I could not find it.')
      expect(last?.message.tool_calls).toBeUndefined()
      expect(last?.governor).toEqual({
        terminal_state: 'loop_detected',
        terminal_reason: 'loop_guard',
        has_final_answer: true,
        budget_used: 7,
        budget_max: 300,
        scope: 'run',
        session: last?.headers.get('x-governor-session'),
      })
      expect(last?.headers.get('x-governor-terminal-state')).toBe('loop_detected')
      expect(last?.headers.get('x-governor-terminal-reason')).toBe('loop_guard')
      expect(last?.usage?.['total_tokens']).toBe(440)
      expect(provider.requests).toHaveLength(10)
      const sent = provider.requests.at(-1)?.json.messages ?? []
      expect(sent.at(-1)?.content).toContain("You've been repeating the same action without progress.")
      // What the client asks next is answered from memory, until a human speaks.
      const again = await callModel(url, messages.slice(0, -1), { stream })
      expect(again.governor).toEqual(last?.governor)
      expect(again.message.content).toBe('I could not find it.')
      expect(last?.headers.get('x-governor-loop')).toBe('repetition;count=6')
      expect(again.headers.get('x-governor-loop')).toBe('repetition;count=6')
      expect(provider.requests).toHaveLength(10)
      // An agent that ignores the answer sends its step in other bytes.
      const other = await callModel(url, messages.slice(0, -1), { stream, body: { temperature: 0.5 } })
      expect([other.governor, other.message.content]).toEqual([last?.governor, 'I could not find it.'])
      expect(provider.requests).toHaveLength(10)
      const human = await callModel(url, [...messages, { role: 'user', content: 'Try once more.' }], {
        stream,
      })
      expect(human.message.tool_calls).toHaveLength(1)
      expect(human.governor).toBeUndefined()
    })

    it.each([
      ['the model gave up', repeatsUntilBlocked(SAME, () => ({ text: 'I give up.' }))],
      ['the run was ended', (({ json }) => (json.tool_choice === 'none' ? { text: 'I give up.' } : SAME)) as Script],
    ])('leaves the conversation the same agent’s where its user speaks after %s', async (_, script) => {
      const { url } = await startBoth(script)
      const { messages } = await runAgent(url, START, { stream, max: 20 })
      const human = await callModel(url, [...messages, { role: 'user', content: 'Try once more.' }], { stream })
      expect(human.headers.get('x-governor-iteration')).toBe('1/300')
      const { agents, runs } = await firstSession(url)
      expect(agents.total).toBe(1)
      expect(runs.map(({ thread, iterations }) => [thread, iterations])).toEqual([
        [1, 7],
        [1, 1],
      ])
    })

    it('is removed while the text before it is kept', async () => {
      const { url } = await startBoth((request) =>
        readsBlock(request) ? { text: 'Nothing there.' } : { text: 'Let me look again.', ...SAME },
      )
      const { steps } = await runAgent(url, START, { stream, max: 7 })
      expect(steps.at(-1)?.message.content).toBe('Let me look again.\n\nNothing there.')
    })

    it('is removed from a response whose other calls pass, and the model learns that with their results', async () => {
      let responses = 0
      const { url, provider } = await startBoth(() => {
        responses++
        if (responses === 7) {
          return {
            calls: [
              { name: 'search', arguments: { query: 'the same' } },
              { name: 'read', arguments: { file: 'a' } },
              { name: 'search', arguments: { query: 'the same' } },
              { name: 'read', arguments: { file: 'b' } },
            ],
          }
        }
        return responses > 7 ? { text: 'Done.' } : SAME
      })
      const { steps } = await runAgent(url, START, { stream, max: 20 })
      expect(steps[6]?.headers.get('x-governor-verdict')).toBe('block')
      expect(steps[6]?.finish).toBe('tool_calls')
      expect(steps[6]?.message.tool_calls?.map((call) => call.function.arguments)).toEqual([
        '{"file":"a"}',
        '{"file":"b"}',
      ])
      expect(provider.requests).toHaveLength(8)
      expect(provider.requests.at(-1)?.json.messages.at(-1)?.content).toBe(`the result of read\n\n${REFUSAL}`)
    })

    it.each([500, 422, 400])(
      'is dropped with its tool when the provider answers the request with its result with %i',
      async (status) => {
        const { url, provider } = await startBoth((request) => {
          if (readsBlock(request)) return { status, body: { error: { message: 'no' } } }
          return request.json.tools?.length === 1 ? { calls: [{ name: 'read', arguments: { file: 'a' } }] } : SAME
        })
        const body = { tools: [...TOOLS, { type: 'function', function: { name: 'read', parameters: {} } }] }
        const { steps } = await runAgent(url, START, { stream, max: 7, body })
        expect(steps[6]?.status).toBe(200)
        expect(steps[6]?.message.tool_calls?.map((call) => call.function.name)).toEqual(['read'])
        expect(JSON.stringify(provider.requests.at(-1)?.json.messages.at(-1))).toContain(`\\n\\n${REFUSAL}`)
        expect(await metricsOf(url)).toContain('governor_reasks_total{outcome="answered"} 1')
      },
    )

    it('ends the run when the model calls the tool although it is not offered', async () => {
      const { url } = await startBoth((request) =>
        readsBlock(request) ? { status: 400, body: { error: { message: 'no' } } } : SAME,
      )
      const { steps } = await runAgent(url, START, { stream })
      expect(steps).toHaveLength(7)
      expect(steps[6]?.message.tool_calls).toBeUndefined()
      expect(steps[6]?.governor).toMatchObject({ terminal_reason: 'loop_guard', has_final_answer: false })
    })

    it.each([429, 503, 529])(
      'ends no run when the provider answers with %i: the client gets the error, and its next try an answer',
      async (status) => {
        let tries = 0
        const { url } = await startBoth((request) => {
          if (!readsBlock(request)) return SAME
          return tries++ === 0 ? { status, body: { error: { message: 'busy' } } } : { text: 'I give up.' }
        })
        const { messages } = await runAgent(url, START, { stream, max: 6 })
        const first = await callModel(url, messages, { stream })
        const second = await callModel(url, messages, { stream })
        expect([first.status, second.status]).toEqual([status, 200])
        expect(second.headers.get('x-governor-iteration')).toBe('7/300')
        expect(second.message.content).toBe('I give up.')
        expect(second.governor).toBeUndefined()
      },
    )

    it('reaches the client when the guard only warns', async () => {
      const { url, provider } = await startBoth(() => SAME, { loop_guard: { mode: 'warn' } })
      const { steps } = await runAgent(url, START, { stream, max: 14 })
      expect(steps.every(({ message }) => message.tool_calls?.length === 1)).toBe(true)
      expect(provider.requests).toHaveLength(14)
    })
  },
)

describe('calls that are not blocked', () => {
  it('reach the client as the bytes of the provider, even while Governor reads the responses', async () => {
    const other: Answer = { text: 'First this. ', calls: [{ name: 'read', arguments: '{ "file" : 1.0 }' }] }
    const { url, provider } = await startBoth((_, number) => (number < 7 ? SAME : other))
    const { messages } = await runAgent(url, START, { max: 6 })
    const body = JSON.stringify({
      model: 'gpt-test',
      messages,
      tools: [{ type: 'function', function: { name: 'search' } }],
      stream: true,
    })
    const send = async (to: string) =>
      (
        await fetch(`${to}/v1/chat/completions`, {
          method: 'POST',
          headers: { authorization: 'Bearer sk-test' },
          body,
        })
      ).text()
    const guarded = await send(url)
    const direct = await send(provider.url)
    expect(guarded.replaceAll('-7"', '-8"').replaceAll('call_7', 'call_8')).toBe(direct)
  })

  it('include polls whose results keep changing', async () => {
    const { url } = await startBoth(() => ({ calls: [{ name: 'status', arguments: {} }] }))
    let messages: ChatMessage[] = [...START]
    const verdicts: (string | null)[] = []
    for (let at = 0; at < 30; at++) {
      const step = await callModel(url, messages)
      verdicts.push(step.headers.get('x-governor-verdict'))
      messages = afterStep(messages, step, () => `${at} of 30 done`)
    }
    expect(verdicts).not.toContain('block')
  })
})

/** A response with one call whose arguments are JSON, and no text that holds it, as some servers write them. */
const unwritten = (id: string, args: object): Answer => ({
  body: {
    id: 'r',
    object: 'chat.completion',
    choices: [
      {
        index: 0,
        message: {
          role: 'assistant',
          content: null,
          tool_calls: [{ id, type: 'function', function: { name: 'search', arguments: args } }],
        },
        finish_reason: 'tool_calls',
      },
    ],
  },
})

describe('calls whose arguments are not a string', () => {
  it('are different calls if their arguments differ', async () => {
    const { url } = await startBoth((_, number) => unwritten(`c${number}`, { query: number }))
    const { steps } = await runAgent(url, START, { max: 8 })
    expect(steps.map(({ headers }) => headers.get('x-governor-loop'))).toEqual(Array(8).fill(null))
  })

  it('are blocked if their arguments are equal, and sent back unchanged', async () => {
    const args = { query: 'the same' }
    const { url, provider } = await startBoth((request, number) =>
      readsBlock(request) ? { text: 'I give up.' } : unwritten(`c${number}`, args),
    )
    const { steps } = await runAgent(url, START, { max: 20 })
    expect(steps.at(-1)?.headers.get('x-governor-verdict')).toBe('block')
    expect(steps.at(-1)?.message.content).toBe('I give up.')
    const [call] = provider.requests.at(-1)?.json.messages.slice(-2) ?? []
    expect(call?.tool_calls?.[0]?.function.arguments).toEqual(args)
  })
})
