import { once } from 'node:events'
import { type AddressInfo, connect } from 'node:net'
import { expect, it, onTestFinished } from 'vitest'
import { createClientServer } from '../../src/http/server.ts'

it('a connection that comes while the server closes is closed too', async () => {
  const { server, destroyConnections } = createClientServer({
    clientIdle: 600_000,
    maxOpenFiles: Number.POSITIVE_INFINITY,
    emit: () => undefined,
    errorBody: () => '{}',
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const open = () => {
    const socket = connect(port, '127.0.0.1').on('error', () => undefined)
    onTestFinished(() => void socket.destroy())
    return socket
  }
  const accepted = once(server, 'connection')
  const first = open()
  await accepted
  await destroyConnections()
  await once(first, 'close')
  const late = open()
  await once(late, 'close')
  server.close()
  await once(server, 'close')
  expect(server.listening).toBe(false)
})
