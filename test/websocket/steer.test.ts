/** A response that a message steers may be followed by another one, for which there is no request. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { startGovernor } from '../support/governor.ts'
import type { Item } from '../support/responses.ts'
import { openSocket } from '../support/websocket-client.ts'
import { eventsOf, type SocketScript, startSocketProvider } from '../support/websocket-provider.ts'

const REQUEST = {
  type: 'response.create',
  model: 'gpt-5',
  tools: [{ type: 'function', name: 'search', parameters: { type: 'object' } }],
  input: 'find it',
}

/** A provider that ends the first response once it is steered, and goes on with another one. */
function steerable(answer: Parameters<typeof eventsOf>[1]): { script: SocketScript; successor: string[] } {
  const successor: string[] = []
  const script: SocketScript = async ({ json }, number, socket) => {
    if (number > 1) return { text: 'Again.' }
    const [created, ...rest] = eventsOf(json, { text: 'One. ', finish: 'incomplete' }, number)
    socket.send(JSON.stringify(created))
    const steered = new Promise<void>((resolve) => {
      socket.on('message', (data) => data.toString().includes('response.steer') && resolve())
    })
    await steered
    const accepted = {
      type: 'response.steer.accepted',
      sequence_number: 1,
      steer: { id: 's', previous_response_id: 'resp_1' },
    }
    successor.push(...eventsOf(json, answer, 7).map((event) => JSON.stringify(event)))
    return { messages: [accepted, ...rest, ...successor] }
  }
  return { script, successor }
}

async function run(answer: Parameters<typeof eventsOf>[1], config: { [key: string]: unknown } = {}) {
  const { script, successor } = steerable(answer)
  const provider = await startSocketProvider(script)
  onTestFinished(() => provider.close())
  const running = await startGovernor(provider.url, { ...config, server: { websocket: 'guard' } })
  const client = await openSocket(running.url, { 'session-id': 's-1' })
  client.send(REQUEST)
  await client.until((all) => all.length === 1)
  const steer = {
    type: 'response.steer',
    previous_response_id: 'resp_1',
    input: [{ type: 'message', role: 'user', content: 'less' }],
  }
  client.send(steer)
  const ends = (all: readonly string[]) =>
    all.map((text) => JSON.parse(text) as Item).filter(({ type }) => /\.(?:completed|incomplete)$/.test(String(type)))
  const [, end] = await client.until((all) => ends(all).length === 2 && ends(all))
  const ended = () => running.events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
  await expect.poll(() => ended().length).toBe(2)
  return { ...running, provider, client, successor, steer, end, ended }
}

describe('the response after a steered one', () => {
  it('passes unchanged, is sent no request, and counts with its usage and its calls', async () => {
    const { provider, client, successor, steer, ended, events } = await run({
      calls: [{ name: 'search', arguments: {} }],
    })
    expect(provider.received.map(({ text }) => text)).toEqual([JSON.stringify(REQUEST), JSON.stringify(steer)])
    expect(client.messages.slice(-successor.length)).toEqual(successor)
    expect(client.messages.filter((text) => text.includes('response.steer.accepted')).length).toBe(1)
    expect(ended().map(({ session, status }) => [session, status])).toEqual([
      ['s-1', 200],
      ['s-1', 200],
    ])
    // What a person says begins a run, as over HTTP.
    expect(ended().map(({ iteration }) => iteration)).toEqual([1, 1])
    const used = () => events.filter((event) => event.kind === 'answered' && event.usage.input > 0)
    await expect.poll(() => used().length).toBe(2)
  })

  it('is the last of a run that has reached its limit: its calls do not reach the client', async () => {
    const config = { budget: { session: { max_tokens: 50 } } }
    const { end } = await run({ text: 'Two. ', calls: [{ name: 'search', arguments: {} }] }, config)
    expect(end).toMatchObject({ response: { output: [{ type: 'message' }] } })
  })
})
