/** The port between an exchange and its client, over HTTP. */
import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import net from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { type Client, clientOf } from '../../src/http/client.ts'
import { serve } from '../support/provider.ts'

const HEAD = { status: 200, reason: 'OK', headers: ['content-type', 'text/plain'] }
const ASK = 'GET / HTTP/1.1\r\nHost: x\r\n\r\n'

/** Sends requests on one connection; returns it and the client of each. */
async function ask(requests: number, handle: (client: Client) => void = () => undefined) {
  const clients: Client[] = []
  let socket: net.Socket | undefined
  await new Promise<void>((resolve) => {
    const listen = (request: IncomingMessage, response: ServerResponse) => {
      const client = clientOf(request, response)
      clients.push(client)
      handle(client)
      if (clients.length === requests) resolve()
    }
    void serve(listen).then((server) => {
      onTestFinished(() => server.close())
      socket = net.connect(Number(new URL(server.url).port), '127.0.0.1')
      socket.on('error', () => undefined).write(ASK.repeat(requests))
    })
  })
  const [client] = clients
  if (!socket || !client) throw new Error('no client')
  return { socket, client, clients }
}

const closed = (client: Client) => new Promise<void>((resolve) => client.onClose(resolve))

it('a head that nothing follows is sent at once, and one that bytes follow in the same turn is sent with them', async () => {
  const { socket } = await ask(1, (client) => client.begin(HEAD, {}))
  const [alone] = (await once(socket, 'data')) as [Buffer]
  expect(alone.toString()).toContain('HTTP/1.1 200 OK\r\n')
  const other = await ask(1, (client) => {
    client.begin(HEAD, {})
    client.write('first')
  })
  const [both] = (await once(other.socket, 'data')) as [Buffer]
  expect(both.toString()).toMatch(/HTTP\/1\.1 200 OK\r\n.*first/s)
})

it('a client that reads slowly makes one promise for all that is written meanwhile, which settles when it reads', async () => {
  const { socket, client } = await ask(1)
  client.begin(HEAD, {})
  const piece = Buffer.alloc(65_536)
  let drained: Promise<void> | undefined
  const promises = new Set<Promise<void>>()
  for (let pieces = 0; pieces < 1_000; pieces++) {
    drained = client.write(piece)
    if (drained) promises.add(drained)
  }
  expect(promises.size).toBe(1)
  socket.resume()
  await drained
  expect(client.isGone()).toBe(false)
  client.end()
  await closed(client)
  expect([client.status(), client.isGone()]).toEqual([200, false])
})

it('a client that leaves settles what waits for it, and nothing waits for it after that', async () => {
  const { socket, client } = await ask(1)
  client.begin(HEAD, {})
  let drained: Promise<void> | undefined
  while (!drained) drained = client.write(Buffer.alloc(65_536))
  const over = closed(client)
  socket.destroy()
  await Promise.all([drained, over])
  expect(client.isGone()).toBe(true)
  expect(client.write('more')).toBeUndefined()
  let isCalled = false
  client.onClose(() => {
    isCalled = true
  })
  expect(isCalled).toBe(true)
})

it('a call that was taken back is not made', async () => {
  const { socket, client } = await ask(1)
  let isCalled = false
  const takeBack = client.onClose(() => {
    isCalled = true
  })
  takeBack()
  socket.destroy()
  await closed(client)
  expect(isCalled).toBe(false)
})

it('every client of a connection that ends is gone, also those whose responses wait behind another', async () => {
  const { socket, clients } = await ask(3)
  const all = Promise.all(clients.map(closed))
  socket.destroy()
  await all
  expect(clients.map(({ isGone }) => isGone())).toEqual([true, true, true])
})
