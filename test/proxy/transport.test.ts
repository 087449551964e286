import net, { type AddressInfo, type Socket } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterEach, expect, it } from 'vitest'
import { createTransport, type Transport } from '../../src/proxy/transport.ts'

const cleanups: (() => unknown)[] = []
afterEach(async () => {
  for (const clean of cleanups.splice(0)) await clean()
})

/** An upstream that closes a connection `idleMs` after it answered on it, without a word about it; 0: never. */
async function startUpstream(idleMs: number) {
  const sockets: Socket[] = []
  const server = net.createServer((socket) => {
    sockets.push(socket)
    socket.on('error', () => undefined)
    socket.on('data', () => {
      socket.write('HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}')
      if (idleMs > 0) setTimeout(() => socket.end(), idleMs)
    })
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  cleanups.push(() => server.close())
  return { origin: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, sockets }
}

function startTransport(): Transport {
  const settings = { connect: 1_000, firstByte: 1_000, idle: 1_000, useProxyEnvironment: false }
  const transport = createTransport(settings, undefined, { long: 900, short: 50 })
  cleanups.push(() => transport.destroy())
  return transport
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

it('keeps an idle connection for the agent’s next step', async () => {
  const { origin, sockets } = await startUpstream(0)
  const transport = startTransport()
  await ask(transport, origin)
  await sleep(300)
  await ask(transport, origin)
  expect(sockets).toHaveLength(1)
})

it('does not wait for an upstream to close a connection that is known to do so', async () => {
  const { origin, sockets } = await startUpstream(200)
  const transport = startTransport()
  await ask(transport, origin)
  await sleep(300)
  expect(sockets[0]?.readableEnded).toBe(true)
  await ask(transport, origin)
  const [, second] = sockets
  await sleep(120)
  // Well before the upstream would have done it.
  expect(second?.readableEnded).toBe(true)
})
