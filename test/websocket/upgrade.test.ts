/** How a guarded WebSocket opens: as the provider answers, or with the advice to use HTTP. */
import { hash } from 'node:crypto'
import { once } from 'node:events'
import { type AddressInfo, createServer, type Socket } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import { WebSocket } from 'ws'
import { startGovernor } from '../support/governor.ts'
import { openSocket, refusedSocket } from '../support/websocket-client.ts'
import { type SocketProviderOptions, startSocketProvider } from '../support/websocket-provider.ts'

async function start(options: SocketProviderOptions = {}, config: { [key: string]: unknown } = {}) {
  const provider = await startSocketProvider(() => ({ text: 'Done.' }), options)
  onTestFinished(() => provider.close())
  const { server = {}, ...rest } = config
  let at = 0
  const governor = await startGovernor(
    provider.url,
    { ...rest, server: { websocket: 'guard', ...(server as object) } },
    { now: () => 1_760_000_000_000 + at },
  )
  const pass = (ms: number) => {
    at += ms
  }
  return { ...governor, provider, pass }
}

describe('a provider that refuses a WebSocket', () => {
  it.each([401, 403, 429])('with %i gives the client its own answer, each time', async (status) => {
    let asked = 0
    const { url } = await start({
      refuses() {
        asked++
        return { status, body: '{"error":{"code":"own"}}', headers: 'retry-after: 7\r\nx-governor-verdict: stop\r\n' }
      },
    })
    for (const _ of [1, 2]) {
      const answer = await refusedSocket(url)
      expect([answer.status, answer.body]).toEqual([status, '{"error":{"code":"own"}}'])
      expect([answer.header('retry-after'), answer.header('x-governor-verdict')]).toEqual(['7', undefined])
    }
    expect(asked).toBe(2)
  })

  it.each([200, 204, 301, 400, 404, 405, 426, 500, 503])(
    'with %i makes clients use HTTP at once, for ten minutes without being asked again',
    async (status) => {
      let asked = 0
      const { url, pass } = await start({
        refuses() {
          asked++
          return { status }
        },
      })
      for (const _ of [1, 2]) {
        const answer = await refusedSocket(url)
        expect(answer.status).toBe(426)
        expect(JSON.parse(answer.body)).toMatchObject({ error: { code: 'upgrade_required' } })
      }
      expect(asked).toBe(1)
      pass(599_000)
      await refusedSocket(url)
      expect(asked).toBe(1)
      pass(2_000)
      await refusedSocket(url)
      expect(asked).toBe(2)
    },
  )

  it('because it is not there makes clients use HTTP, and is asked again', async () => {
    const { url, events } = await start({}, { upstreams: { openai: { url: 'http://127.0.0.1:1' } } })
    expect((await refusedSocket(url)).status).toBe(426)
    expect((await refusedSocket(url)).status).toBe(426)
    expect(events.filter(({ kind }) => kind === 'tunnel_failed').length).toBe(2)
  })

  it('by saying nothing makes clients use HTTP, for ten minutes without being asked again', async () => {
    const opened: Socket[] = []
    const silent = createServer((socket) => void opened.push(socket))
    silent.listen(0, '127.0.0.1')
    await once(silent, 'listening')
    onTestFinished(() => {
      for (const socket of opened) socket.destroy()
      silent.close()
    })
    const { port } = silent.address() as AddressInfo
    const upstreams = { openai: { url: `http://127.0.0.1:${port}` } }
    const { url, pass } = await start({}, { upstreams, timeouts: { connect: '200ms' } })
    expect((await refusedSocket(url)).status).toBe(426)
    expect((await refusedSocket(url)).status).toBe(426)
    expect(opened.length).toBe(1)
    pass(601_000)
    expect((await refusedSocket(url)).status).toBe(426)
    expect(opened.length).toBe(2)
  })

  it('by an answer that is no WebSocket makes clients use HTTP', async () => {
    const { url } = await start({ headers: ['sec-websocket-extensions: unknown'] })
    expect((await refusedSocket(url)).status).toBe(426)
  })
})

describe('a guarded WebSocket', () => {
  it('is one of the Responses API alone', async () => {
    const { url, provider } = await start()
    expect((await refusedSocket(url, {}, '/v1/chat/completions')).status).toBe(426)
    expect((await refusedSocket(url, {}, '/v1/messages')).status).toBe(426)
    expect(provider.connections.length).toBe(0)
  })

  it('needs an access key where Governor holds the key of the provider, which gets that one', async () => {
    const config = { server: { access_keys: ['mine'] } }
    const provider = await startSocketProvider(() => ({ text: 'Done.' }))
    onTestFinished(() => provider.close())
    const upstreams = { openai: { url: provider.url, api_key: 'sk-own' } }
    const { url } = await startGovernor(provider.url, { upstreams, server: { websocket: 'guard', ...config.server } })
    expect((await refusedSocket(url, { authorization: 'Bearer other' })).status).toBe(401)
    const client = await openSocket(url, { authorization: 'Bearer mine' })
    const events = await client.ask({ model: 'm', input: 'x', client_metadata: { authorization: 'Bearer other' } })
    expect(events.at(-1)?.['type']).toBe('response.completed')
    expect(provider.received[0]?.headers.authorization).toBe('Bearer sk-own')
  })

  it.each(['guard', 'tunnel'])(
    'keeps an access key of which only the hash is known from the provider (%s)',
    async (websocket) => {
      const provider = await startSocketProvider(() => ({ text: 'Done.' }))
      onTestFinished(() => provider.close())
      const access_keys = [{ name: 'anna', key_sha256: hash('sha256', 'key-of-anna', 'hex') }]
      const upstreams = { openai: { url: provider.url, headers: { authorization: 'Bearer sk-own' } } }
      const { url } = await startGovernor(provider.url, { upstreams, server: { websocket, access_keys } })
      const client = await openSocket(url, { 'x-api-key': 'key-of-anna' })
      await client.ask({ model: 'm', input: 'x' })
      expect(provider.received[0]?.headers).toMatchObject({ authorization: 'Bearer sk-own' })
      expect(JSON.stringify(provider.received[0]?.headers)).not.toContain('key-of-anna')
    },
  )

  it('has the protocol that the provider chose among those of the client', async () => {
    const { url, provider } = await start()
    const socket = new WebSocket(`${url.replace('http', 'ws')}/v1/responses`, ['realtime', 'other'])
    onTestFinished(() => socket.terminate())
    await new Promise((resolve) => socket.once('open', resolve))
    expect([socket.protocol, provider.connections[0]?.protocol]).toEqual(['realtime', 'realtime'])
  })
})
