/** What goes wrong on a guarded WebSocket: nothing is lost, counted twice or left open. */
import { describe, expect, it, onTestFinished } from 'vitest'
import type { WebSocket } from 'ws'
import { startGovernor } from '../support/governor.ts'
import type { Item } from '../support/responses.ts'
import { isLast, openSocket } from '../support/websocket-client.ts'
import {
  eventsOf,
  type SocketProviderOptions,
  type SocketScript,
  startSocketProvider,
} from '../support/websocket-provider.ts'

const TOOLS = [{ type: 'function', name: 'search', parameters: { type: 'object' } }]
const REQUEST = { model: 'gpt-5', tools: TOOLS, store: false, input: 'find it' }
const ANSWER = { text: 'One. ', calls: [{ name: 'search', arguments: {} }] }

async function start(
  script: SocketScript,
  config: { [key: string]: unknown } = {},
  options: SocketProviderOptions = {},
) {
  const provider = await startSocketProvider(script, options)
  onTestFinished(() => provider.close())
  const running = await startGovernor(provider.url, { ...config, server: { websocket: 'guard' } })
  const ended = () => running.events.flatMap((event) => (event.kind === 'request_ended' ? [event] : []))
  const count = (kind: string) => running.events.filter((event) => event.kind === kind).length
  return { ...running, provider, ended, count }
}

const closeOf = (socket: WebSocket) =>
  new Promise<{ code: number; reason: string }>((resolve) =>
    socket.once('close', (code, reason) => resolve({ code, reason: reason.toString() })),
  )

/** How a side leaves, and the code that the other side sees. */
const WAYS: readonly (readonly [name: string, leave: (socket: WebSocket) => void, code: number])[] = [
  ['with a code', (socket) => socket.close(4001, 'why'), 4001],
  ['because it restarts', (socket) => socket.close(1012), 1012],
  ['without a code', (socket) => socket.close(), 1005],
  ['without a word', (socket) => socket.terminate(), 1006],
]

const total = eventsOf(REQUEST as never, ANSWER, 1).length

describe.each(WAYS)('a side that leaves %s', (_, leave, code) => {
  it('is the provider, after any number of events: the client has these, and the same end', async () => {
    let after = 0
    let left = (_socket: WebSocket) => {}
    const { url, ended, count, provider } = await start(({ json }, number, socket) => {
      left(socket)
      return { messages: eventsOf(json, ANSWER, number).slice(0, after) }
    })
    for (; after <= total; after++) {
      const session = { 'session-id': `s-${after}` }
      left = (socket) => void setImmediate(() => setTimeout(() => leave(socket), after % 3))
      // The answer that broke off is no iteration: the request sent again is the same one.
      for (const time of [1, 2]) {
        const client = await openSocket(url, session)
        client.send({ type: 'response.create', ...REQUEST })
        const end = await client.closed
        expect([after, end.code, end.reason]).toEqual([after, code, code === 4001 ? 'why' : ''])
        expect(client.messages).toEqual(provider.sent.at(-1)?.slice(0, client.messages.length))
        const so = 2 * after + time
        await expect.poll(() => [count('request_began'), ended().length]).toEqual([so, so])
        const { outcome, iteration } = ended().at(-1) ?? {}
        expect([outcome, iteration]).toEqual([client.messages.length === total ? 'completed' : 'upstream_failed', 1])
      }
    }
  })

  it('is the client, after any number of events: the provider gets the same end', async () => {
    let after = 0
    const { url, events, ended, count, provider } = await start(({ json }, number) => ({
      messages: eventsOf(json, ANSWER, number).slice(0, after),
    }))
    for (; after < total; after++) {
      const client = await openSocket(url, { 'session-id': `s-${after}` })
      client.send({ type: 'response.create', ...REQUEST })
      await expect.poll(() => provider.received.length).toBe(after + 1)
      const connection = provider.connections.at(-1)
      if (!connection) throw new Error('there is no connection')
      await client.until((all) => all.length === after)
      const closed = closeOf(connection)
      leave(client.socket)
      expect([after, (await closed).code]).toEqual([after, code])
      await expect.poll(() => [count('request_began'), ended().length]).toEqual([after + 1, after + 1])
      expect(ended().at(-1)?.outcome).toBe('client_gone')
    }
    // A later one states what the usage cost.
    const used = events.filter((event) => event.kind === 'answered' && event.usage.input > 0)
    expect(used.length).toBeLessThanOrEqual(total)
  })
})

describe('a side that is gone without a word', () => {
  const config = { timeouts: { client_idle: '100ms' } }

  it('is the client: its responses and the provider’s connection end', async () => {
    const { url, ended, provider } = await start(() => ({ messages: [] }), config)
    const client = await openSocket(url, {}, { autoPong: false })
    client.send({ type: 'response.create', ...REQUEST })
    await expect.poll(() => provider.received.length).toBe(1)
    const [connection] = provider.connections
    if (connection) expect((await closeOf(connection)).code).toBe(1006)
    await expect.poll(() => ended()[0]?.outcome).toBe('client_gone')
  })

  it('is the provider: the client’s connection ends', async () => {
    const { url, ended } = await start(() => ({ messages: [] }), config, { isSilent: true })
    const client = await openSocket(url)
    client.send({ type: 'response.create', ...REQUEST })
    expect((await client.closed).code).toBe(1006)
    await expect.poll(() => ended().length).toBe(1)
  })

  it('is no side that answers pings and says nothing else', async () => {
    const { url, provider } = await start(() => ({ text: 'Done.' }), config)
    const client = await openSocket(url)
    let pings = 0
    client.socket.on('ping', () => pings++)
    await expect.poll(() => pings, { timeout: 20_000 }).toBeGreaterThan(5)
    expect((await client.ask(REQUEST)).at(-1)?.['type']).toBe('response.completed')
    expect(provider.connections.length).toBe(1)
  })
})

describe('a response', () => {
  it.each(['first_byte', 'idle'])(
    'that does not come within %s is an error with its status, and the next one comes',
    async (limit) => {
      let release = () => {}
      const held = new Promise<void>((resolve) => {
        release = resolve
      })
      const { url } = await start(
        async ({ json }, number, socket) => {
          const [first, ...rest] = eventsOf(json, { text: 'One.' }, number)
          if (number > 1) return { text: 'Done.' }
          if (limit === 'idle') socket.send(JSON.stringify(first))
          await held
          return { messages: rest }
        },
        { timeouts: { [limit]: '150ms', client_idle: '100ms' } },
      )
      const client = await openSocket(url)
      const events = await client.ask(REQUEST)
      expect(events.at(-1)).toMatchObject({ type: 'error', status: limit === 'idle' ? 502 : 504 })
      release()
      const next = await client.ask(REQUEST)
      // The late events of the first response belong to nobody.
      expect(next[0]).toMatchObject({ type: 'response.created', response: { id: 'resp_2' } })
      expect(next.at(-1)?.['type']).toBe('response.completed')
    },
  )

  it('that is under way when Governor ends comes whole, and then the connection closes with 1012', async () => {
    let release = () => {}
    const held = new Promise<void>((resolve) => {
      release = resolve
    })
    const { url, governor, provider } = await start(async () => {
      await held
      return { text: 'Done.' }
    })
    const idle = await openSocket(url)
    const client = await openSocket(url)
    client.send({ type: 'response.create', ...REQUEST })
    client.send({ type: 'response.create', ...REQUEST, input: 'later' })
    await expect.poll(() => provider.received.length).toBe(1)
    const drained = governor.drain()
    expect((await idle.closed).code).toBe(1012)
    release()
    expect((await client.closed).code).toBe(1012)
    expect(await drained).toBe(true)
    expect(client.messages.map((text) => JSON.parse(text) as Item).filter(isLast).length).toBe(1)
    expect(provider.received.length).toBe(1)
  })
})

describe('a message', () => {
  it('of more than 16 MB ends the connection with 1009, of either side', async () => {
    const { url, provider } = await start(() => ({
      messages: [{ type: 'response.created', x: 'x'.repeat(17_000_000) }],
    }))
    const large = await openSocket(url)
    large.send({ type: 'response.create', ...REQUEST, input: 'x'.repeat(17_000_000) })
    expect((await large.closed).code).toBe(1009)
    const client = await openSocket(url)
    client.send({ type: 'response.create', ...REQUEST })
    expect((await client.closed).code).toBe(1009)
    await expect.poll(() => provider.connections.every(({ readyState }) => readyState === 3)).toBe(true)
  })

  it('of more than server.max_guarded_body passes unguarded, and is counted', async () => {
    const provider = await startSocketProvider(() => ({ text: 'Done.' }))
    onTestFinished(() => provider.close())
    const server = { websocket: 'guard', max_guarded_body: '1kb' }
    const { url, events } = await startGovernor(provider.url, { server })
    const client = await openSocket(url)
    const got = await client.ask({ ...REQUEST, input: 'x'.repeat(2_000) })
    expect(got.at(-1)?.['type']).toBe('response.completed')
    expect(events).toContainEqual(expect.objectContaining({ kind: 'failed_open', reason: 'body_too_large' }))
  })

  it('with the seventeenth request in flight is read once a response has ended', async () => {
    const release: (() => void)[] = []
    const { url, provider } = await start(async () => {
      await new Promise<void>((resolve) => release.push(resolve))
      return { text: 'Done.' }
    })
    const client = await openSocket(url)
    for (let at = 0; at < 20; at++) client.send({ type: 'response.create', ...REQUEST, stream_id: `lane ${at}` })
    await expect.poll(() => release.length).toBe(16)
    for (const call of release.splice(0)) call()
    await expect.poll(() => release.length).toBe(4)
    for (const call of release.splice(0)) call()
    const ends = (all: readonly string[]) => all.filter((text) => isLast(JSON.parse(text) as Item))
    await client.until((all) => ends(all).length === 20)
    expect(provider.received.length).toBe(20)
  })
})
