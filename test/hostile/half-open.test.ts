/** Promise: no client keeps a connection open by sending a part of a request to Governor itself. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { closeRaw, connect, openGovernor } from '../support/raw.ts'

const NOBODY = 'http://127.0.0.1:1'
/** One that waits a moment for the rest of a request, and one that waits for a minute. */
let hasty: Awaited<ReturnType<typeof openGovernor>>
let patient: Awaited<ReturnType<typeof openGovernor>>

beforeAll(async () => {
  hasty = await openGovernor(NOBODY, { timeouts: { client_idle: '100ms' } })
  patient = await openGovernor(NOBODY, { timeouts: { client_idle: '1m' } }, { access_keys: ['team-1'] })
})
afterAll(() => closeRaw(hasty, patient))

const HALVES = [
  'Content-Length: 10\r\n\r\n{"a"',
  'Transfer-Encoding: chunked\r\n\r\na\r\n{"a"',
  'Content-Length: 9\r\n\r\n',
]
const UPGRADE = 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n'

async function expectClosed(url: string, line: string, rest: string): Promise<void> {
  const client = connect(url)
  client.write(`${line} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n${rest}`)
  await client.closed
  expect(client.socket.destroyed).toBe(true)
}

it("half a request to any of Governor's own routes is ended, also as an upgrade", async () => {
  const lines = [...hasty.routes].map((route) => route.replace(':id', 'sabc.0123456789abcdef').replace('*', 'x'))
  const others = [
    'POST /health',
    'OPTIONS /ready',
    'PROPFIND /metrics',
    'OPTIONS *',
    'POST //governor',
    'PUT /governor/%',
  ]
  const all = [...lines, ...others].filter((line) => !line.startsWith('QUERY'))
  for (const half of HALVES) {
    await Promise.all(all.map((line) => expectClosed(hasty.url, line, half)))
    await Promise.all(all.map((line) => expectClosed(hasty.url, line, UPGRADE + half)))
  }
})

it.each([
  ['for everyone', 'GET /health'],
  ['for everyone, by another method', 'POST /health'],
  ['of the page', 'GET /governor/page.css'],
  ['that lists sessions', 'GET /governor/sessions'],
  ['that is not there', 'POST /governor/nothing'],
  ['with a wrong percent-encoding', 'POST /governor/sessions/%'],
  ['about the server', 'OPTIONS *'],
])('half a request to a route %s, which reads no body, is ended at once', async (_, line) => {
  for (const half of HALVES) await expectClosed(patient.url, line, half)
})

it('half a request that may not steer sessions is ended at once', async () => {
  const strange = 'Sec-Fetch-Site: cross-site\r\n'
  for (const half of HALVES) await expectClosed(patient.url, 'POST /governor/sessions/sa/stop', strange + half)
})

it.each([
  ['CONNECT api.openai.com:443', ''],
  ['GET /v1/responses', UPGRADE],
])('a connection whose %s was refused is ended, also if its client never closes it', async (line, fields) => {
  const client = connect(patient.url)
  // Without this, Node would end the client's side as soon as the answer is complete.
  client.socket.allowHalfOpen = true
  client.write(`${line} HTTP/1.1\r\nHost: localhost\r\n${fields}\r\n`)
  await client.rest()
  // Bytes that nobody has read when a connection is closed for good are answered with a reset.
  client.write(Buffer.alloc(16_000_000))
  expect(await client.closed).toBe('reset')
})
