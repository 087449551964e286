import { once } from 'node:events'
import net, { type AddressInfo, type Socket } from 'node:net'
import { Readable } from 'node:stream'
import fc from 'fast-check'
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

it('a body that comes while its request is still sent arrives whole, also where a chunk looks like another response', async () => {
  const transport = startTransport()
  const piece = fc.oneof(
    fc.constantFrom(
      'HTTP/1.1 100 Continue\r\n\r\n',
      'HTTP/1.1 103 Early',
      'HTTP/1.1 1',
      'H',
      'HTTP/1.0 102 A\r\nB: c\r\n\r\nd',
    ),
    fc.string({ minLength: 1 }),
  )
  await fc.assert(
    fc.asyncProperty(fc.array(piece, { minLength: 1, maxLength: 6 }), async (pieces) => {
      const length = Buffer.byteLength(pieces.join(''))
      const waiting = [`HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: ${length}\r\n\r\n`, ...pieces]
      // Each chunk of the request is answered by one of the response, and each of these by the next of the request.
      const server = net.createServer((socket) => socket.on('data', () => void socket.write(waiting.shift() ?? '')))
      await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
      const origin = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
      const upload = new Readable({ read: () => undefined })
      upload.push('a')
      const received: Buffer[] = []
      const body = await new Promise<string>((resolve, reject) => {
        const next = () => void upload.push('a')
        const end = () => {
          upload.push(null)
          resolve(Buffer.concat(received).toString())
        }
        transport.dispatch(
          { origin, method: 'POST', path: '/', body: upload },
          {
            onRequestStart: () => undefined,
            onResponseStart: next,
            onResponseData(_, chunk) {
              received.push(chunk)
              if (Buffer.concat(received).length < length) next()
            },
            onResponseEnd: end,
            onResponseError: (_, error) => reject(error),
          },
        )
      })
      server.close()
      expect(body).toBe(pieces.join(''))
    }),
    { numRuns: 40 },
  )
})
