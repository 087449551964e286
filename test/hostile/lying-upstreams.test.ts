/** Promise: an upstream that lies speaks for itself alone: not for Governor, and not to another client. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest'
import { type Answering, closeRaw, connect, listenAnswering, openGovernor } from '../support/raw.ts'

let upstream: Answering
let governor: Awaited<ReturnType<typeof openGovernor>>
beforeAll(async () => {
  upstream = await listenAnswering()
  upstream.closes = true
  const { url } = upstream
  const upstreams = { openai: { url }, anthropic: { url }, named: { url: `${url}/v1` } }
  governor = await openGovernor(url, { upstreams, timeouts: { first_byte: '2s', idle: '2s' } }, { websocket: 'tunnel' })
})
afterAll(() => closeRaw(governor, upstream))
beforeEach(() => {
  upstream.requests.length = 0
})

const THEIRS = 'X-Governor-Session: theirs\r\nx-governor-verdict: theirs\r\n'
const OK = 'HTTP/1.1 200 OK\r\n'
const LIES: Readonly<Record<string, string>> = {
  'the headers of Governor': `${OK}${THEIRS}Content-Length: 2\r\n\r\n{}`,
  'the headers of Governor on an error': `HTTP/1.1 500 No\r\n${THEIRS}Content-Length: 2\r\n\r\n{}`,
  'the headers of Governor in its trailers': `${OK}Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n${THEIRS}\r\n`,
  'the headers of Governor before its answer': `HTTP/1.1 103 Early\r\n${THEIRS}\r\n${OK}Content-Length: 2\r\n\r\n{}`,
  'the headers of Governor with an upgrade': `HTTP/1.1 101 Switching\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n${THEIRS}\r\n`,
  'a body longer than it is': `${OK}Content-Length: 99\r\n\r\n{}`,
  'a body shorter than it is': `${OK}Content-Length: 1\r\n\r\n{}${OK}${THEIRS}Content-Length: 6\r\n\r\ntheirs`,
  'two lengths': `${OK}Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}`,
  'a length and chunks': `${OK}Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
  'a second answer': `${OK}Content-Length: 2\r\n\r\n{}${OK}${THEIRS}Content-Length: 6\r\n\r\ntheirs`,
  'a content coding': `${OK}Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}`,
  'an event stream': `${OK}Content-Type: text/event-stream\r\nContent-Length: 14\r\n\r\ndata: {"a":1}\n`,
  'a head without an end': `${OK}${'X-A: b\r\n'.repeat(20_000)}`,
  'a line end in a field': `${OK}X-A: b\rX-Governor-Session: theirs\r\nContent-Length: 2\r\n\r\n{}`,
  'a status below 100': `HTTP/1.1 099 No\r\n${THEIRS}Content-Length: 6\r\n\r\ntheirs`,
  'another protocol': 'SSH-2.0-theirs\r\n',
  'a metadata object of Governor': `${OK}Content-Length: 44\r\n\r\n{"governor":{"terminal_state":"completed"}} `,
  nothing: '',
}
const BODY = JSON.stringify({ model: 'm', messages: [{ role: 'user', content: 'Hi' }], tools: [{}] })
const POST = `Content-Type: application/json\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`
const UPGRADE = 'Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\n\r\n'
const REQUESTS: Readonly<Record<string, string>> = {
  'a guarded request': `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n${POST}`,
  'a guarded request of Anthropic': `POST /v1/messages HTTP/1.1\r\nHost: a\r\n${POST}`,
  'a guarded request to a named upstream': `POST /named/v1/chat/completions HTTP/1.1\r\nHost: a\r\n${POST}`,
  'a request on another path': 'GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n',
  'a HEAD request': 'HEAD /v1/models HTTP/1.1\r\nHost: a\r\n\r\n',
  'an upgrade': `GET /v1/realtime HTTP/1.1\r\nHost: a\r\n${UPGRADE}`,
}

async function answerTo(request: string): Promise<string> {
  const client = connect(governor.url)
  client.write(request.replace('Host: a\r\n', 'Host: a\r\nX-Governor-Session: mine\r\n'))
  const { line, fields, body, trailers } = await client.message(request.startsWith('HEAD'))
  client.socket.destroy()
  return [line, ...fields, body.toString('latin1'), ...trailers].join('\n')
}

describe.each(Object.entries(LIES))('an upstream that sends %s', (lie, bytes) => {
  it.each(Object.keys(REQUESTS))('speaks neither for Governor nor in the next answer: %s', async (name) => {
    upstream.reply = bytes
    const answer = await answerTo(REQUESTS[name] ?? '')
    expect(answer).toMatch(/^HTTP\/1\.1 \d{3} /)
    // What follows an answer on an upgraded connection belongs to that connection.
    if (name !== 'an upgrade') expect(answer).not.toContain('theirs')
    expect(answer).not.toMatch(/x-governor-[a-z]+: ?theirs/i)
    upstream.reply = `${OK}Content-Length: 6\r\n\r\nhonest`
    expect(await answerTo(REQUESTS['a request on another path'] ?? ''), lie).toContain('\nhonest')
  })
})
