/** Clients that speak Responses over WebSocket, with a run that Governor ends and a call that it blocks. */
import { Agent, OpenAIProvider, Runner, tool } from '@openai/agents-0.20'
import OpenAI from 'openai'
import { ResponsesWS } from 'openai/resources/responses/ws'
import OpenAI7 from 'openai-7'
import { ResponsesWS as ResponsesWS7 } from 'openai-7/resources/responses/ws'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { WebSocket } from 'ws'
import { startGovernor } from '../support/governor.ts'
import type { Item } from '../support/responses.ts'
import { isLast } from '../support/websocket-client.ts'
import { type SocketScript, startSocketProvider } from '../support/websocket-provider.ts'

const STOPPED = 'This is what I found so far.'
const runaway: SocketScript = ({ json }, number) =>
  json.tool_choice === 'none' || !json.tools
    ? { text: STOPPED }
    : { text: 'Looking. ', calls: [{ name: 'search', arguments: { query: `q${number}` } }] }
const repeating: SocketScript = ({ items }) =>
  JSON.stringify(items).includes('[LOOP GUARD] Blocked')
    ? { text: 'All done.' }
    : { calls: [{ name: 'search', arguments: { query: 'the same' } }] }

async function start(
  script: SocketScript,
  config: { [key: string]: unknown } = {},
  options: Parameters<typeof startSocketProvider>[1] = {},
) {
  const provider = await startSocketProvider(script, options)
  onTestFinished(() => provider.close())
  return { ...(await startGovernor(provider.url, { ...config, server: { websocket: 'guard' } })), provider }
}

describe.each([
  ['openai 6', (baseURL: string) => new ResponsesWS(new OpenAI({ apiKey: 'sk', baseURL }))],
  ['openai 7', (baseURL: string) => new ResponsesWS7(new OpenAI7({ apiKey: 'sk', baseURL })) as unknown as ResponsesWS],
] as const)('ResponsesWS of %s', (_, open) => {
  /** Asks until an answer calls no tool; returns the responses. */
  async function run(url: string, stream?: string): Promise<Item[]> {
    const ws = open(`${url}/v1`)
    onTestFinished(() => ws.close())
    const responses: Item[] = []
    let input: unknown = 'find it'
    const tools = [{ type: 'function', name: 'search', parameters: { type: 'object' }, strict: false }]
    const lane = stream === undefined ? {} : { stream_id: stream }
    for (;;) {
      const previous = responses.length > 0 ? { previous_response_id: responses.at(-1)?.['id'] } : {}
      const last = new Promise<Item>((resolve, reject) => {
        ws.once('error', reject)
        const take = (event: unknown) => {
          if (!isLast(event as Item)) return
          ws.off('event', take)
          resolve((event as Item)['response'] as Item)
        }
        ws.on('event', take)
      })
      ws.send({ type: 'response.create', model: 'gpt-5', tools, input, store: false, ...previous, ...lane } as never)
      const response = await last
      responses.push(response)
      const calls = (response['output'] as Item[]).filter(({ type }) => type === 'function_call')
      if (calls.length === 0) return responses
      const output = 'Nothing was found for this query.'
      input = calls.map(({ call_id }) => ({ type: 'function_call_output', call_id, output }))
    }
  }

  it.each([undefined, 'main'])('gets the model’s answer when it is stopped (lane: %s)', async (stream) => {
    const { url } = await start(runaway, { budget: { max_iterations: 3 } })
    const responses = await run(url, stream)
    expect(responses.length).toBe(4)
    expect(responses.at(-1)).toMatchObject({ status: 'completed', governor: { terminal_reason: 'max_iterations' } })
    expect(JSON.stringify(responses.at(-1))).toContain(STOPPED)
  })

  it('gets an error event with 426 at once where the provider has no WebSockets', async () => {
    const { url } = await start(runaway, {}, { refuses: () => ({ status: 404 }) })
    await expect(run(url)).rejects.toThrow(/\b426\b/)
  })

  it('goes on when its call is blocked', async () => {
    const { url, events } = await start(repeating)
    const responses = await run(url)
    expect(JSON.stringify(responses.at(-1))).toContain('All done.')
    expect(events).toContainEqual(expect.objectContaining({ kind: 'call_blocked' }))
  })
})

describe('@openai/agents over its WebSocket', () => {
  async function run(url: string) {
    // Node 20 has none of its own.
    vi.stubGlobal('WebSocket', WebSocket)
    onTestFinished(() => void vi.unstubAllGlobals())
    const provider = new OpenAIProvider({ apiKey: 'sk', baseURL: `${url}/v1`, useResponsesWebSocket: true })
    onTestFinished(() => provider.close())
    const search = tool({
      name: 'search',
      description: 'Searches.',
      parameters: {
        type: 'object',
        properties: { query: { type: 'string' } },
        required: ['query'],
        additionalProperties: false,
      } as never,
      strict: false,
      execute: async () => 'Nothing was found for this query.',
    })
    const agent = new Agent({ name: 'a', model: 'gpt-5', instructions: 'You search.', tools: [search] })
    const runner = new Runner({ modelProvider: provider, tracingDisabled: true })
    return runner.run(agent, 'find it', { maxTurns: 30 })
  }

  it('gets the model’s answer when it is stopped', async () => {
    const { url, provider, events } = await start(runaway, { budget: { max_iterations: 3 } })
    const result = await run(url)
    expect(result.finalOutput).toContain(STOPPED)
    expect(provider.posts).toEqual([])
    expect(events).toContainEqual(expect.objectContaining({ kind: 'stopped', reason: 'max_iterations' }))
  })

  it('throws at once where the provider has no WebSockets', async () => {
    const { url, provider } = await start(runaway, {}, { refuses: () => ({ status: 404 }) })
    await expect(run(url)).rejects.toThrow(/\b426\b/)
    expect(provider.posts).toEqual([])
  })

  it('goes on when its call is blocked', async () => {
    const { url, events } = await start(repeating)
    expect((await run(url)).finalOutput).toContain('All done.')
    expect(events).toContainEqual(expect.objectContaining({ kind: 'call_blocked' }))
  })
})
