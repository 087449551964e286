/** What passes on a guarded WebSocket when Governor decides nothing: every message, with its bytes and in its order. */
import { setImmediate } from 'node:timers/promises'
import fc from 'fast-check'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { WebSocket } from 'ws'
import { startGovernor } from '../support/governor.ts'
import { openSocket } from '../support/websocket-client.ts'
import { eventsOf, type SocketScript, startSocketProvider } from '../support/websocket-provider.ts'

async function start(script: SocketScript, headers: readonly string[] = []) {
  const provider = await startSocketProvider(script, { headers })
  onTestFinished(() => provider.close())
  return { ...(await startGovernor(provider.url, { server: { websocket: 'guard' } })), provider }
}

/** White space that JSON allows between two tokens. */
const space = fc.stringMatching(/^[ \t\r\n]{0,3}$/)
const jsonText = fc
  .tuple(
    fc.dictionary(fc.string({ unit: 'grapheme', maxLength: 8 }), fc.jsonValue({ maxDepth: 2 }), { maxKeys: 3 }),
    space,
  )
  .map(([value, blank]) => `${blank}${JSON.stringify(value, null, blank)}${blank}`)

describe('a guarded WebSocket', () => {
  it('carries any message of either side unchanged, in the order of its lane, to its side alone', async () => {
    const extra: string[] = []
    const { url, provider } = await start(({ json }, number) => {
      const [first, ...rest] = eventsOf(json, { text: 'One two three. ', calls: [] }, number).map((event) =>
        JSON.stringify(json['stream_id'] === undefined ? event : { ...event, stream_id: json['stream_id'] }),
      )
      return { messages: [...extra.slice(0, 1), first ?? '', ...extra.slice(1), ...rest.map((text) => `${text} `)] }
    })
    const client = await openSocket(url)
    const lane = fc.constantFrom(undefined, 'a', 'b')
    const request = fc.record({ stream_id: lane, blank: space, more: jsonText })
    await fc.assert(
      fc.asyncProperty(
        fc.array(request, { minLength: 1, maxLength: 4 }),
        fc.array(jsonText, { maxLength: 3 }),
        async (requests, others) => {
          extra.splice(0, extra.length, ...others)
          const [before, seen, sent] = [provider.received.length, client.messages.length, provider.sent[0]?.length ?? 0]
          const texts = requests.flatMap(({ stream_id, blank, more }, at) => {
            const body = { type: 'response.create', stream_id, model: 'gpt-5', input: `question ${at}`, store: false }
            return [`${blank}${JSON.stringify(body, null, blank)}`, more]
          })
          for (const text of texts) client.send(text)
          const ends = (all: readonly string[]) => all.filter((text) => text.includes('"type":"response.completed"'))
          await client.until((all) => ends(all.slice(seen)).length === requests.length)
          expect(
            provider.received
              .slice(before)
              .map(({ text }) => text)
              .sort(),
          ).toEqual(texts.sort())
          const got = client.messages.slice(seen)
          const gave = provider.sent[0]?.slice(sent) ?? []
          expect([...got].sort()).toEqual([...gave].sort())
          for (const name of ['"a"', '"b"']) {
            const inLane = (text: string) => text.includes(`"stream_id":${name}`)
            expect(got.filter(inLane)).toEqual(gave.filter(inLane))
          }
        },
      ),
      { numRuns: 60 },
    )
  })

  it('keeps a binary message binary and other messages of the client in their order, behind the request before them', async () => {
    const { url, provider } = await start(() => ({ text: 'Done.' }))
    const client = await openSocket(url)
    const texts = [
      '{"type":"first"}',
      '{"type":"response.create","model":"m","input":"x"}',
      '{"type":"second"}',
      'no JSON',
    ]
    for (const text of texts) client.send(text)
    client.socket.send(Buffer.from([0, 1, 255]), { binary: true })
    await expect.poll(() => provider.received.length).toBe(5)
    expect(provider.received.slice(0, 4).map(({ text }) => text)).toEqual(texts)
    provider.connections[0]?.send(Buffer.from([255, 0]), { binary: true })
    const isBinary = await new Promise((resolve) =>
      client.socket.on('message', (_, binary) => binary && resolve(binary)),
    )
    expect(isBinary).toBe(true)
  })

  it('gives the client the headers of the provider’s 101, and the provider those of the client', async () => {
    const { url, provider } = await start(
      () => ({ text: 'Done.' }),
      [
        'x-codex-turn-state: t1',
        'x-reasoning-included: true',
        'x-models-etag: e1',
        'openai-model: m',
        'x-governor-verdict: stop',
      ],
    )
    const client = await openSocket(url, { authorization: 'Bearer sk', 'session-id': 's', 'x-governor-session': 'own' })
    expect(client.headers).toMatchObject({
      'x-codex-turn-state': 't1',
      'x-reasoning-included': 'true',
      'x-models-etag': 'e1',
      'openai-model': 'm',
    })
    expect(Object.keys(client.headers).filter((name) => name.startsWith('x-governor'))).toEqual([])
    await client.ask({ model: 'm', input: 'x' })
    const { headers } = provider.received[0] ?? {}
    expect(headers).toMatchObject({ authorization: 'Bearer sk', 'session-id': 's', host: provider.url.slice(7) })
    expect(headers?.['x-governor-session']).toBeUndefined()
    // No side compresses.
    expect(client.socket.extensions).toBe('')
    expect(provider.connections[0]?.extensions).toBe('')
  })

  it('gives either side every byte of the other’s head', async () => {
    const { url, provider } = await start(() => ({ text: 'Grüße.' }), ['x-name: Grüße'])
    const client = await openSocket(url, { 'x-name': 'é\xff' })
    expect(Buffer.from(String(client.headers['x-name']), 'latin1').toString()).toBe('Grüße')
    await client.ask({ model: 'm', input: 'Grüße' })
    expect(provider.received[0]?.headers['x-name']).toBe('é\xff')
    expect([provider.received[0]?.json['input'], client.messages.join('')]).toEqual([
      'Grüße',
      expect.stringContaining('Grüße.'),
    ])
  })

  const event = JSON.stringify({ type: 'response.output_text.delta', delta: 'x'.repeat(100_000) })

  /** Sends one message until the connection has taken no byte for many turns; returns how many it has taken. */
  async function fill(socket: WebSocket, message = event): Promise<number> {
    let sent = 0
    for (let turns = 0; turns < 300 && sent < 1_000; turns++) {
      if (socket.bufferedAmount === 0) {
        turns = 0
        sent++
        socket.send(message)
      } else await setImmediate()
    }
    expect(sent).toBeLessThan(1_000)
    return sent
  }

  it('reads the provider only as fast as the client reads', async () => {
    let isFull = (_sent: number) => {}
    const full = new Promise<number>((resolve) => {
      isFull = resolve
    })
    const { url } = await start(async (_, __, socket) => {
      isFull(await fill(socket))
      return { text: 'Done.' }
    })
    const client = await openSocket(url)
    client.socket.pause()
    client.send({ type: 'response.create', model: 'm', input: 'x' })
    const sent = await full
    client.socket.resume()
    await client.until((all) => all.some((text) => text.includes('response.completed')))
    expect(client.messages.filter((text) => text === event).length).toBe(sent)
  })

  it('reads the client only as fast as the provider reads, also while the client reads nothing', async () => {
    const { url, provider } = await start(() => ({ text: 'Done.' }))
    const client = await openSocket(url)
    await client.ask({ model: 'm', input: 'x' })
    const [connection] = provider.connections
    if (!connection) throw new Error('there is no connection')
    for (const isClientSlow of [false, true]) {
      const [received, got] = [provider.received.length, client.messages.length]
      connection.pause()
      if (isClientSlow) client.socket.pause()
      const [up, down] = await Promise.all([fill(client.socket), isClientSlow ? fill(connection) : 0])
      connection.resume()
      client.socket.resume()
      await expect.poll(() => provider.received.length, { timeout: 20_000 }).toBe(received + up)
      await expect.poll(() => client.messages.length, { timeout: 20_000 }).toBe(got + down)
    }
    const last = await client.ask({ model: 'm', input: 'x' })
    expect(last.at(-1)?.['type']).toBe('response.completed')
  })

  it('reads no more than 16 MB of the client behind a request that is not sent yet', async () => {
    const provider = await startSocketProvider(() => ({ calls: [{ name: 'search', arguments: {} }] }))
    onTestFinished(() => provider.close())
    const stop = { mode: 'ask', ask_timeout: '20s' }
    const { url, until } = await startGovernor(provider.url, { budget: { max_iterations: 1 }, stop })
    const client = await openSocket(url, { 'session-id': 's-1' })
    const tools = [{ type: 'function', name: 'search', parameters: { type: 'object' } }]
    const events = await client.ask({ model: 'm', tools, input: 'x' })
    const { response } = events.at(-1) as { response: { output: { call_id: string }[] } }
    const { output } = response
    const results = output.map(({ call_id }) => ({ type: 'function_call_output', call_id, output: 'none' }))
    const input = [{ role: 'user', content: 'x' }, ...output, ...results]
    client.send({ type: 'response.create', model: 'm', tools, input })
    await until(({ kind }) => kind === 'operator_asked')
    const large = JSON.stringify({ type: 'other', x: 'x'.repeat(4_000_000) })
    // What the kernel holds on the way comes on top.
    expect(await fill(client.socket, large)).toBeLessThan(12)
    expect(provider.received.length).toBe(1)
  })
})
