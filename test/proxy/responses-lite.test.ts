import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Received, Script } from '../support/provider.ts'
import { runResponses } from '../support/responses-agent.ts'
import { readsBlock } from '../support/scripts.ts'

/** What codex sends for its default model: no `tools`, no `instructions`, and calls of a tool that takes a text. */
const OFFER = {
  type: 'additional_tools',
  role: 'developer',
  tools: [
    {
      type: 'namespace',
      name: 'functions',
      tools: [
        { type: 'custom', name: 'exec', description: 'Runs a program' },
        { type: 'function', name: 'spawn_agent', parameters: { type: 'object', properties: {} } },
      ],
    },
  ],
}

function lite(url: string, stream: boolean, result: () => string) {
  return runResponses(url, 'Go.', {
    stream,
    result,
    opening: [OFFER, { type: 'message', role: 'developer', content: 'You are an agent.' }],
    body: { tools: undefined, instructions: undefined },
  })
}

const offers = ({ body }: Received, name: string) => body.includes(`"name":"${name}"`)

/** Calls `exec` for ever with the inputs that `next` gives, unless it may call no tool. */
function caller(next: (number: number) => string): Script {
  return (request, number) =>
    request.json.tool_choice === 'none' || !offers(request, 'exec')
      ? { text: 'This is what I found.' }
      : { calls: [{ name: 'exec', arguments: next(number), isCustom: true }] }
}

describe.each([false, true])('an agent over Responses Lite (stream: %s)', (stream) => {
  it('is counted from its first request on, loses dropped tools, and is stopped without them being chosen', async () => {
    const { url, provider } = await startBoth(
      caller((number) => `text(${number})`),
      {
        budget: {
          max_iterations: 4,
          adaptive: false,
          announce: 'always',
          warning_threshold: 0.75,
          wrap_up: { drop_tools: ['spawn*'] },
        },
      },
    )
    const { steps } = await lite(url, stream, () => `done ${provider.requests.length}`)
    expect(steps.map(({ headers }) => headers.get('x-governor-iteration'))).toEqual(['1/4', '2/4', '3/4', '4/4', '4/4'])
    expect(provider.requests.map((request) => offers(request, 'spawn_agent'))).toEqual([
      true,
      true,
      false,
      false,
      false,
    ])
    expect(provider.requests.every((request) => offers(request, 'exec'))).toBe(true)
    expect(provider.requests.map(({ json }) => json.tool_choice)).toEqual([...Array(4).fill(undefined), 'none'])
    expect(provider.requests.every(({ json }) => json['instructions'] === undefined)).toBe(true)
    expect(new Set(provider.requests.map(({ json }) => JSON.stringify((json['input'] as unknown[])[2]))).size).toBe(1)
    expect(steps.at(-1)?.text).toBe('This is what I found.')
    expect(steps.at(-1)?.response['governor']).toMatchObject({
      terminal_reason: 'max_iterations',
      budget_used: 4,
    })
  })

  it('counts each custom call against a limit on tool calls', async () => {
    const { url } = await startBoth(
      caller((number) => `text(${number})`),
      { budget: { run: { max_tool_calls: 3 } } },
    )
    const { steps } = await lite(url, stream, () => 'ok')
    expect(steps.at(-1)?.response['governor']).toMatchObject({
      terminal_reason: 'max_tool_calls',
      budget_used: 3,
    })
  })

  it('is warned of equal custom calls whose results differ only in their wall time, and then they are blocked', async () => {
    const again = caller(() => 'text(await tools.read())')
    const { url, provider, events } = await startBoth((request, number) =>
      readsBlock(request) ? { text: 'I give up.' } : again(request, number),
    )
    let seconds = 7.211e-6
    const { steps } = await lite(url, stream, () => {
      seconds *= 1.37
      return `{"exit_code":0,"wall_time_seconds":${seconds.toFixed(9)},"output":"nothing to see"}`
    })
    expect(events.flatMap((event) => (event.kind === 'loop' ? [event.tool] : []))).toEqual(['exec', 'exec'])
    expect(steps.at(-1)?.headers.get('x-governor-verdict')).toBe('block')
    expect(steps.at(-1)?.text).toBe('I give up.')
    expect(provider.requests.at(-1)?.items?.at(-1)).toMatchObject({
      type: 'custom_tool_call_output',
      output: expect.stringContaining("'exec' was called"),
    })
  })
})
