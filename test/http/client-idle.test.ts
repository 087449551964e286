/** Clients that stop in the middle of a request, over plain sockets. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import { type Answering, closeRaw, connect, listenAnswering, openGovernor } from '../support/raw.ts'

let upstream: Answering
let governor: { url: string; close(): Promise<void> }
/** One that waits many moments for its clients, in milliseconds. */
let patient: { url: string; close(): Promise<void> }
const PATIENCE = 2_000

beforeAll(async () => {
  upstream = await listenAnswering()
  governor = await openGovernor(upstream.url, { timeouts: { client_idle: '100ms' } })
  patient = await openGovernor(upstream.url, { timeouts: { client_idle: `${PATIENCE}ms` } })
})
afterAll(() => closeRaw(governor, patient, upstream))

const head = (length: number, path = '/v1/chat/completions') =>
  `POST ${path} HTTP/1.1\r\nHost: a\r\nContent-Length: ${length}\r\n\r\n`

/** A moment: the time that a client has to send the rest of a request. */
async function moment(): Promise<void> {
  const other = connect(governor.url)
  other.write(head(10))
  await other.closed
}

describe('a client that stops sending', () => {
  it.each([
    ['before its first byte', ''],
    ['in the middle of its headers', 'POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-A: '],
    ['after its headers', head(10)],
    ['in the middle of a body that is read', `${head(10)}{"a"`],
    ['in the middle of a body that is relayed', `${head(10, '/v1/files')}{"a"`],
    ['in the middle of a chunk', `${head(0).replace('Content-Length: 0', 'Transfer-Encoding: chunked')}a\r\n{"a"`],
  ])('%s is disconnected', async (_, sent) => {
    const client = connect(governor.url)
    client.write(sent)
    await client.closed
    expect(client.socket.destroyed).toBe(true)
  })

  it('in the middle of its body gets an error that says why', async () => {
    const client = connect(governor.url)
    client.write(`${head(10)}{"a"`)
    const { line, body } = await client.message()
    expect(line).toBe('HTTP/1.1 408 Request Timeout')
    expect(JSON.parse(body.toString())).toMatchObject({ error: { code: 'request_timeout' } })
  })
})

describe('a client that keeps sending', () => {
  it.each(['/v1/chat/completions', '/v1/files'])('slowly may take any time for a body to %s', async (path) => {
    const client = connect(patient.url)
    client.write(`${head(0, path).replace('Content-Length: 0', 'Transfer-Encoding: chunked')}`)
    const begun = performance.now()
    while (performance.now() - begun < 1.5 * PATIENCE) {
      client.write('1\r\n \r\n')
      await moment()
    }
    client.write('0\r\n\r\n')
    expect((await client.message()).line).toBe('HTTP/1.1 200 OK')
  })

  it('after a pause between two requests is served on the same connection', async () => {
    const client = connect(governor.url)
    for (let request = 0; request < 3; request++) {
      client.write(`${head(2)}{}`)
      expect((await client.message()).line).toBe('HTTP/1.1 200 OK')
      await moment()
    }
  })
})
