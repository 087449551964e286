import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import { callMessages, keepingThreads, type Message, type MessagesStep, resultsFor } from '../support/messages.ts'
import type { Script } from '../support/provider.ts'

const call = { name: 'search', arguments: { query: 'more' } }
const budget = { max_iterations: 2, adaptive: false, caution_threshold: 1, warning_threshold: 1 }

/** An agent that lets the provider keep its conversation. */
function createThread(url: string, stream: boolean) {
  let previous: string | undefined
  return async (...messages: readonly Message[]): Promise<MessagesStep> => {
    const body = previous
      ? { thread: { type: 'continue', previous_message_id: previous }, system: undefined, tools: undefined }
      : { thread: { type: 'create' } }
    const step = await callMessages(url, messages, { stream, body })
    if (step.status === 200) previous = step.message.id
    return step
  }
}

const says = (content: string): Message => ({ role: 'user', content })

/** Calls a tool in every response, and when it is stopped answers as well. */
const stubborn: Script = ({ json }) => ({
  calls: [call],
  ...(JSON.stringify(json.messages.at(-1)).includes('maximum number') ? { text: 'So far.' } : {}),
})

describe.each([{ stream: false }, { stream: true }])('a message thread (stream: $stream)', ({ stream }) => {
  it('continues after a last answer whose calls were removed', async () => {
    const { url, provider } = await startBoth(keepingThreads(stubborn), { budget })
    const send = createThread(url, stream)
    const one = await send(says('Find out.'))
    const two = await send(resultsFor(one.message.content))
    const last = await send(resultsFor(two.message.content))
    expect(last).toMatchObject({ status: 200, text: 'So far.', stop: 'end_turn' })
    const next = await send(says('And now?'))
    expect(next.status).toBe(200)
    expect(next.headers.get('x-governor-iteration')).toBe('1/2')
    const [results, asked] = provider.requests.at(-1)?.json.messages ?? []
    expect(results?.content).toMatchObject([{ type: 'tool_result' }])
    expect(asked).toEqual(says('And now?'))
  })

  it('with a session id is the same run when the client sends the whole history again', async () => {
    const { url } = await startBoth(keepingThreads(stubborn))
    const headers = { 'x-governor-session': 's' }
    const all: Message[] = [says('Find out.')]
    let step = await callMessages(url, all, { stream, headers, body: { thread: { type: 'create' } } })
    const send = async (messages: readonly Message[], body: Record<string, unknown>) => {
      step = await callMessages(url, messages, { stream, headers, body })
      return step.headers.get('x-governor-iteration')
    }
    for (const count of [2, 3, 4]) {
      const results = resultsFor(step.message.content)
      all.push({ role: 'assistant', content: step.message.content }, results)
      const thread = { type: 'continue', previous_message_id: step.message.id }
      expect(await send([results], { thread, system: undefined, tools: undefined })).toBe(`${count}/300`)
    }
    // One result was compacted away, so that the transcript shows less than is remembered.
    const shorter = [...all.slice(0, 1), ...all.slice(3)]
    expect(await send(shorter, { thread: { type: 'create' } })).toBe('5/300')
  })

  it('continues after a recorded answer was repeated', async () => {
    const { url } = await startBoth(keepingThreads(stubborn), { budget })
    const send = createThread(url, stream)
    const one = await send(says('Find out.'))
    const two = await send(resultsFor(one.message.content))
    const last = await send(resultsFor(two.message.content))
    const thread = { type: 'continue', previous_message_id: two.message.id }
    const again = await callMessages(url, [resultsFor(two.message.content)], {
      stream,
      body: { thread, system: undefined, tools: undefined },
    })
    expect([again.text, again.message.id]).toEqual(['So far.', last.message.id])
    expect((await send(says('And now?'))).status).toBe(200)
  })

  it('continues after a run that ended for its loop, even if the provider gave no last answer', async () => {
    const script: Script = ({ json }) => {
      const choice = json.tool_choice as { type?: string } | undefined
      return choice?.type === 'none' ? { status: 500 } : { calls: [call] }
    }
    const loop_guard = { max_warnings_before_block: 0, repetition_threshold: 2 }
    const { url } = await startBoth(keepingThreads(script), { loop_guard })
    const one = await createThread(url, stream)(says('Find out.'))
    const ask = (previous: string | undefined, message: Message) =>
      callMessages(url, [message], {
        stream,
        body: {
          thread: { type: 'continue', previous_message_id: previous },
          system: undefined,
          tools: undefined,
        },
      })
    const last = await ask(one.message.id, resultsFor(one.message.content))
    expect(last.headers.get('x-governor-verdict')).toBe('stop')
    const again = await ask(one.message.id, resultsFor(one.message.content))
    expect(again.text).toBe(last.text)
    expect((await ask(again.message.id, says('And now?'))).status).toBe(200)
  })

  it('continues after an answer that the provider does not know', async () => {
    const script: Script = ({ json }) => {
      const choice = json.tool_choice as { type?: string } | undefined
      return choice?.type === 'none' ? { status: 400 } : { calls: [call] }
    }
    const { url, provider } = await startBoth(keepingThreads(script), { budget })
    const send = createThread(url, stream)
    const one = await send(says('Find out.'))
    const two = await send(resultsFor(one.message.content))
    const last = await send(resultsFor(two.message.content))
    expect(last.text).toBe('(Reached max iterations: 2)')
    const next = await send(says('And now?'))
    expect(next.status).toBe(200)
    expect(provider.requests.at(-1)?.json['thread']).toEqual({
      type: 'continue',
      previous_message_id: two.message.id,
    })
  })

  it.each([
    ['the model', 'All I know.'],
    ['the fallback', ''],
  ])('continues after a loop that %s ended', async (_, text) => {
    const script: Script = ({ json }) => {
      const isOver = (json.tool_choice as { type?: string } | undefined)?.type === 'none'
      return isOver ? { text } : { calls: [call], text: json.messages.length > 3 ? '' : 'Well.' }
    }
    const loop_guard = { max_warnings_before_block: 0 }
    const { url } = await startBoth(keepingThreads(script), { loop_guard })
    const send = createThread(url, stream)
    let step = await send(says('Find out.'))
    for (let at = 0; at < 3 && !step.governor; at++) step = await send(resultsFor(step.message.content))
    expect(step.governor).toMatchObject({ terminal_state: 'loop_detected', has_final_answer: text !== '' })
    const next = await send(says('And now?'))
    expect(next.status).toBe(200)
    expect(next.headers.get('x-governor-iteration')).toBe('1/300')
  })

  it('gets an announcement of its budget once, at the beginning', async () => {
    const { url, provider } = await startBoth(keepingThreads(stubborn), { budget: { announce: 'always' } })
    const send = createThread(url, stream)
    const one = await send(says('Find out.'))
    await send(resultsFor(one.message.content))
    const announced = provider.requests.map(({ body }) => body.includes('Tool budget: you have'))
    expect(announced).toEqual([true, false])
  })
})
