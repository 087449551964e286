import { once } from 'node:events'
import http from 'node:http'
import type { AddressInfo } from 'node:net'
import { expect, it } from 'vitest'
import { relayTo } from '../../src/http/response.ts'

it('what is written in many pieces waits for its client once', async () => {
  const listeners: number[] = []
  const server = http.createServer((_, response) => {
    const relayed = relayTo(response, {})
    const end = () => relayed.end([])
    const head = { status: 400, reason: 'Bad Request', headers: ['content-type', 'application/json'] }
    relayed.start(head, { pause: () => undefined, resume: end })
    for (let piece = 0; piece < 60; piece++) relayed.data(Buffer.alloc(1_000, 'x'))
    listeners.push(response.listenerCount('drain'))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  const response = await fetch(`http://127.0.0.1:${port}`)
  expect((await response.text()).length).toBe(60_000)
  expect(listeners).toEqual([1])
  server.close()
})
