/** What goes wrong on a guarded WebSocket: nothing is lost, counted twice or left open. */
import fc from 'fast-check'
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

/** A run of equal calls whose seventh is blocked, and one that reaches its limit: in both the last request asks twice. */
const ENDS: readonly (readonly [name: string, config: { [key: string]: unknown }, steps: number, iteration: number])[] =
  [
    ['blocks a call', {}, 6, 7],
    ['ends a run', { budget: { max_iterations: 2 }, loop_guard: { enabled: false } }, 2, 2],
  ]

/** One of each kind is enough for long runs. */
const FEW = WAYS.filter((_, at) => at % 3 === 0)

describe.each(ENDS)('a side that leaves while Governor %s', (_, config, steps, iteration) => {
  const call = { name: 'search', arguments: { query: 'the same' } }
  const SAME = { calls: [call] }
  const DONE = { text: 'All done.' }

  it.each(FEW)('%s: the same request gets the same end later, after any event', async (__, leave, code) => {
    let after = Number.POSITIVE_INFINITY
    let isProvider = true
    const { url, ended, count, provider } = await start(({ items, json }, number, socket) => {
      const isLastAnswer = json.tool_choice === 'none' || JSON.stringify(items).includes('[LOOP GUARD] Blocked')
      const messages = eventsOf(json, isLastAnswer ? DONE : SAME, number).slice(0, after)
      after -= messages.length
      if (after <= 0 && isProvider) setImmediate(() => leave(socket))
      return { messages }
    }, config)
    const firstEvents = eventsOf(REQUEST as never, SAME, 1).length * (steps === 6 ? 1 : 0)
    const all = firstEvents + eventsOf(REQUEST as never, DONE, 1).length
    for (let at = 0; at < all; at += 2) {
      isProvider = at % 4 === 0
      const session = { 'session-id': `s-${at}` }
      const first = await openSocket(url, session)
      const input: Item[] = [{ type: 'message', role: 'user', content: 'find it' }]
      for (let step = 0; step < steps; step++) {
        const { response } = (await first.ask({ ...REQUEST, input })).at(-1) as { response: { output: Item[] } }
        const { output } = response
        const results = output.map(({ call_id }) => ({
          type: 'function_call_output',
          call_id,
          output: 'There is nothing to see here.',
        }))
        input.push(...output, ...results)
      }
      after = at
      first.send({ type: 'response.create', ...REQUEST, input })
      if (!isProvider) {
        await expect.poll(() => after).toBeLessThanOrEqual(0)
        leave(first.socket)
      }
      const closed = await first.closed
      if (isProvider) expect([at, closed.code]).toEqual([at, code])
      await expect.poll(() => count('request_began') - ended().length).toBe(0)
      after = Number.POSITIVE_INFINITY
      const second = await openSocket(url, session)
      const last = (await second.ask({ ...REQUEST, input })).at(-1)
      expect([at, last?.['type']]).toEqual([at, 'response.completed'])
      expect(JSON.stringify(last)).toContain('All done.')
      await expect.poll(() => count('request_began') - ended().length).toBe(0)
      expect([at, ended().at(-1)?.iteration]).toEqual([at, iteration])
      second.socket.close()
      await second.closed
    }
    await expect.poll(() => provider.connections.every(({ readyState }) => readyState === 3)).toBe(true)
  })
})

describe('a side that leaves with responses in several lanes', () => {
  it.each(WAYS)('%s ends all of them, once', async (_, leave, code) => {
    for (const isProvider of [true, false]) {
      const sockets: WebSocket[] = []
      const { url, ended, count, provider } = await start(async ({ json }, number, socket) => {
        sockets.push(socket)
        return { messages: eventsOf(json, ANSWER, number).slice(0, 2) }
      })
      const client = await openSocket(url)
      for (const stream_id of ['a', 'b', 'b', 'c']) client.send({ type: 'response.create', ...REQUEST, stream_id })
      await client.until((all) => all.length === 6)
      leave(isProvider ? (sockets[0] as WebSocket) : client.socket)
      const closed = isProvider ? await client.closed : await closeOf(provider.connections[0] as WebSocket)
      expect(closed.code).toBe(code)
      // The second request of lane b was not begun.
      await expect.poll(() => [count('request_began'), ended().length]).toEqual([3, 3])
      expect(ended().every(({ iteration }) => iteration === 1)).toBe(true)
    }
  })

  it('is told apart by any code and reason, of either side', async () => {
    const { url, provider } = await start(() => ({ text: 'Done.' }))
    const codes = fc.oneof(
      fc.constantFrom(1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014),
      fc.integer({ min: 3000, max: 4999 }),
    )
    const reasons = fc.string({ unit: 'grapheme', maxLength: 20 })
    await fc.assert(
      fc.asyncProperty(codes, reasons, fc.boolean(), async (code, reason, isProvider) => {
        const client = await openSocket(url)
        const connection = provider.connections.at(-1) as WebSocket
        const closed = isProvider ? client.closed : closeOf(connection)
        ;(isProvider ? connection : client.socket).close(code, reason)
        expect(await closed).toEqual({ code, reason })
      }),
      { numRuns: 40 },
    )
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
