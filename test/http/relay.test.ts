import { once } from 'node:events'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, it } from 'vitest'
import { clientOf } from '../../src/http/client.ts'
import type { ResponseBody } from '../../src/http/upstream-response.ts'
import { relay } from '../../src/http/upstream-response.ts'

it('a chunk that is written in many pieces waits only once for a slow client', async () => {
  const listeners: number[] = []
  const server = http.createServer((request, response) => {
    const head = { status: 400, reason: 'Bad Request', headers: ['content-type', 'application/json'] }
    const waiting = Array.from({ length: 60 }, () => Buffer.alloc(10_000, 'x'))
    const resume = () => response.end()
    const body: ResponseBody = {
      waiting,
      length: 600_000,
      isPaused: true,
      holds: 0,
      resume,
    }
    relay(
      { head, body, abort: () => undefined },
      { client: clientOf(request, response), failed() {}, later: setImmediate },
      {},
    )
    listeners.push(response.listenerCount('drain'))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  const response = await fetch(`http://127.0.0.1:${port}`)
  expect((await response.text()).length).toBe(600_000)
  expect(listeners).toEqual([1])
  server.close()
})
