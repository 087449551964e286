import { once } from 'node:events'
import net, { type AddressInfo, type Socket } from 'node:net'
import { afterEach, expect, it } from 'vitest'
import { createTransport, type Transport } from '../../src/http/transport.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0)) await clean()
})

/** An upstream that closes its first `closes` connections as soon as it has answered on them, and no other. */
async function startUpstream(closes: number) {
  const sockets: Socket[] = []
  const server = net.createServer((socket) => {
    const isClosed = sockets.push(socket) <= closes
    socket.on('error', () => undefined)
    socket.on('data', () => {
      socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}')
      if (isClosed) socket.end()
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(() => server.close())
  return { origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, sockets }
}

function startTransport(): Transport {
  const settings = { connect: 1_000, firstByte: 1_000, idle: 1_000, proxies: undefined }
  const transport = createTransport(settings, { long: 60_000, short: 50 })
  cleanups.push(() => transport.destroy())
  return transport
}

async function closeOf(socket: Socket | undefined): Promise<void> {
  if (!socket) throw new Error('there was no such connection')
  if (!socket.closed) await once(socket, 'close')
}

function ask(transport: Transport, origin: string): Promise<void> {
  return new Promise((resolve, reject) => {
    transport.dispatch(
      { origin, method: 'POST', path: '/', body: '{}' },
      {
        onRequestStart: () => undefined,
        onResponseStart: () => undefined,
        onResponseData: () => undefined,
        onResponseEnd: () => resolve(),
        onResponseError: (_, error) => reject(error),
      },
    )
  })
}

it('the transport keeps idle connections, except to an upstream that closes them itself', async () => {
  const steady = await startUpstream(0)
  const hasty = await startUpstream(1)
  const transport = startTransport()
  await ask(transport, steady.origin)
  await ask(transport, hasty.origin)
  await closeOf(hasty.sockets[0])
  await ask(transport, hasty.origin)
  // The upstream leaves this one open.
  await closeOf(hasty.sockets[1])
  await ask(transport, steady.origin)
  expect(hasty.sockets).toHaveLength(2)
  expect(steady.sockets).toHaveLength(1)
})
