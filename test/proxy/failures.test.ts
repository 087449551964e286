/** The error that a client gets when its upstream gives no answer, in the form of its dialect. */
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer } from 'node:https'
import type { AddressInfo } from 'node:net'
import { describe, expect, it, onTestFinished } from 'vitest'
import { makeCertificate } from '../support/certificate.ts'
import { startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { connect, fieldOf, type Message, type RawUpstream, startRaw, type Wire } from '../support/raw.ts'

const ASK = JSON.stringify({
  model: 'm',
  messages: [{ role: 'user', content: 'a secret prompt' }],
  tools: [{ type: 'function', function: { name: 'f' } }],
})
const KEY = 'Authorization: Bearer sk-secret'
const post = (path: string, more = '') =>
  `POST ${path} HTTP/1.1\r\nHost: a\r\n${KEY}\r\n${more}Content-Length: ${ASK.length}\r\n\r\n${ASK}`

/** Requests of every kind, and whose error shape they expect. */
const REQUESTS = [
  ['OpenAI', post('/v1/chat/completions')],
  ['OpenAI', post('/v1/embeddings')],
  ['OpenAI', `GET /v1/models HTTP/1.1\r\nHost: a\r\n${KEY}\r\n\r\n`],
  ['OpenAI', post('/v1/threads/t_1/messages')],
  ['Anthropic', post('/v1/messages?beta=true')],
  ['Anthropic', post('/v1/messages/count_tokens')],
  ['Anthropic', `GET /v1/models HTTP/1.1\r\nHost: a\r\nAnthropic-Version: 2023-06-01\r\n\r\n`],
  ['Anthropic', post('/anthropic/v1/messages')],
] as const

/** One request of each error shape; they reach the same code. */
const TWO = [REQUESTS[0], REQUESTS[4]] as const

interface Answer extends Message {
  readonly json: { type?: unknown; error: Record<string, unknown> }
}

async function asked(client: Wire, request: string): Promise<Answer> {
  client.write(request)
  const message = await client.message()
  expect(message.isComplete).toBe(true)
  return { ...message, json: JSON.parse(message.body.toString()) }
}

/** Sends requests and checks status, code and shape of the error. */
async function expectFailure(
  url: string,
  line: string,
  code: string,
  words: RegExp,
  requests: readonly (readonly [string, string])[] = TWO,
): Promise<void> {
  const client = connect(url)
  onTestFinished(() => {
    client.socket.destroy()
  })
  for (const [shape, request] of requests) {
    const answer = await asked(client, request)
    expect(answer.line).toBe(`HTTP/1.1 ${line}`)
    expect(fieldOf(answer, 'content-type')).toBe('application/json')
    const message = expect.stringMatching(words)
    expect(answer.json).toEqual(
      shape === 'Anthropic'
        ? { type: 'error', error: { type: 'api_error', message } }
        : { error: { type: 'api_error', message, code, param: null } },
    )
    // Only the operator may see the address of an upstream.
    expect(answer.body.toString()).not.toMatch(/secret|https?:|127\.0\.0\.1|\.invalid/)
  }
}

/** Does the same with every connection that an upstream gets. */
function eachConnection(upstream: RawUpstream, act: (wire: Wire) => unknown): void {
  const loop = async () => {
    for (;;) await act(await upstream.accept())
  }
  loop().catch(() => undefined)
}

describe('an upstream', () => {
  it('that refuses the connection causes a 502', async () => {
    const upstream = await startRaw()
    await upstream.close()
    const { url, events, logs } = await startGovernor(upstream.url)
    await expectFailure(
      url,
      '502 Bad Gateway',
      'upstream_unreachable',
      /connection refused.*Check upstreams\.\w+\.url/,
      REQUESTS,
    )
    expect(events).toContainEqual(
      expect.objectContaining({
        kind: 'request_ended',
        outcome: 'upstream_failed',
        failure: 'upstream_unreachable',
      }),
    )
    expect(JSON.parse(logs[0] ?? '')).toMatchObject({
      failure: 'upstream_unreachable',
      detail: expect.stringContaining(`upstream openai at ${upstream.url}: connection refused`),
    })
  })

  it('whose name cannot be resolved causes a 502', async () => {
    const { url } = await startGovernor('http://upstream.invalid')
    await expectFailure(url, '502 Bad Gateway', 'upstream_unreachable', /the host name does not resolve/)
  })

  it('that speaks no TLS at an https URL causes a 502', async () => {
    const upstream = await startRaw()
    eachConnection(upstream, async (wire) => {
      await wire.some()
      wire.write('HTTP/1.1 400 Bad Request\r\n\r\n')
      wire.socket.end()
    })
    const { url } = await startGovernor(upstream.url.replace('http:', 'https:'))
    await expectFailure(url, '502 Bad Gateway', 'upstream_tls', /secure connection to .*: it speaks no TLS there/)
  })

  it.each([
    ['another protocol', 'SSH-2.0-OpenSSH_9.6\r\n'],
    ['no status', 'HTTP/1.1 OK\r\n\r\n'],
    ['a broken header', 'HTTP/1.1 200 OK\r\nX\x01 Y: 1\r\n\r\n'],
    ['two lengths', 'HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n'],
    ['a status below 100', 'HTTP/1.1 099 Continue\r\nContent-Length: 2\r\n\r\n{}'],
    ['a status of 0', 'HTTP/1.1 000 \r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n'],
    ['a length that is none', 'HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n'],
  ])('that answers with %s causes a 502', async (_, bytes) => {
    const upstream = await startRaw()
    eachConnection(upstream, async (wire) => {
      await wire.message()
      wire.write(bytes)
    })
    const { url } = await startGovernor(upstream.url)
    await expectFailure(url, '502 Bad Gateway', 'upstream_broken', /not valid HTTP \(.+\)\. /)
  })

  it.each([
    ['an upgrade nobody asked for', 'HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n'],
    ['nothing', ''],
    ['half a head', 'HTTP/1.1 200 OK\r\nX: 1\r\n'],
    ['a head of 200 KB', `HTTP/1.1 200 OK\r\nX: ${'x'.repeat(200_000)}\r\n\r\n`],
  ])('that answers with %s and closes the connection causes a 502', async (_, bytes) => {
    const upstream = await startRaw()
    eachConnection(upstream, async (wire) => {
      await wire.message()
      if (bytes !== '') wire.write(bytes)
      wire.socket.end()
    })
    const { url } = await startGovernor(upstream.url)
    await expectFailure(url, '502 Bad Gateway', 'upstream_unreachable', /could not get an answer/)
  })

  it('that does not answer in time causes a 504', async () => {
    const upstream = await startRaw()
    const { url } = await startGovernor(upstream.url, { timeouts: { first_byte: '50ms' } })
    await expectFailure(url, '504 Gateway Timeout', 'upstream_timeout', /did not answer in time.*timeouts\.first_byte/)
  })

  it('that does not finish a TLS handshake in time causes a 504', async () => {
    const upstream = await startRaw()
    const { url } = await startGovernor(upstream.url.replace('http:', 'https:'), {
      timeouts: { connect: '50ms' },
    })
    await expectFailure(url, '504 Gateway Timeout', 'upstream_timeout', /could not connect.*in time/)
  })

  it('that is silent for too long in the middle of a stream makes Governor break off that stream', async () => {
    const upstream = await startRaw()
    const { url, until } = await startGovernor(upstream.url, { timeouts: { idle: '50ms' } })
    const client = connect(url)
    client.write(post('/v1/chat/completions'))
    const wire = await upstream.accept()
    await wire.message()
    wire.write('HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n')
    expect(await client.message()).toMatchObject({ isComplete: false, body: Buffer.from('part') })
    await until((event) => event.kind === 'request_ended' && event.failure === 'upstream_timeout')
    await wire.rest()
  })
})

it('an upload of any size gets an error when its upstream cannot be reached', async () => {
  const upstream = await startRaw()
  await upstream.close()
  const { url } = await startGovernor(upstream.url)
  const client = connect(url)
  const size = 2 * 1024 * 1024
  client.write(`POST /v1/files HTTP/1.1\r\nHost: a\r\nContent-Length: ${size}\r\n\r\n`)
  client.write(Buffer.alloc(size))
  expect((await client.message()).line).toBe('HTTP/1.1 502 Bad Gateway')
  const next = await asked(client, post('/v1/embeddings'))
  expect(next.json.error['code']).toBe('upstream_unreachable')
})

it('an error of the upstream reaches the client unchanged', async () => {
  const upstream = await startRaw()
  const replies = ['401 Unauthorized', '429 Too Many Requests', '500 Internal Server Error', '502 Bad Gateway']
  const { url } = await startGovernor(upstream.url)
  const client = connect(url)
  client.write(post('/v1/chat/completions'))
  const wire = await upstream.accept()
  for (const status of replies) {
    await wire.message()
    wire.write(`HTTP/1.1 ${status}\r\nretry-after: 7\r\nContent-Length: 6\r\n\r\n<html>`)
    const answer = await client.message()
    expect(answer.line).toBe(`HTTP/1.1 ${status}`)
    expect(fieldOf(answer, 'retry-after')).toBe('7')
    expect(answer.body.toString()).toBe('<html>')
    client.write(post('/v1/chat/completions'))
  }
})

it('a request that is not HTTP gets a 400, and Governor keeps serving', async () => {
  const upstream = await startRaw()
  const { url } = await startGovernor(upstream.url)
  for (const bytes of [
    'nonsense\r\n\r\n',
    'GET /v1/x HTTP/1.1\r\n\r\n',
    'POST / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n',
  ]) {
    const client = connect(url)
    client.write(bytes)
    expect((await client.message()).line).toBe('HTTP/1.1 400 Bad Request')
  }
  const client = connect(url)
  client.write('GET /health HTTP/1.1\r\nHost: a\r\n\r\n')
  expect((await client.message()).line).toBe('HTTP/1.1 200 OK')
})

describeWith('openssl', 'an upstream over TLS', () => {
  it('whose certificate is of an unknown authority causes a 502 that says how to name that', async () => {
    const { key, pem: cert } = makeCertificate()
    const server = createServer({ key: readFileSync(key), cert }).listen(0, '127.0.0.1')
    onTestFinished(() => void server.close())
    await once(server, 'listening')
    const { url } = await startGovernor(`https://127.0.0.1:${(server.address() as AddressInfo).port}`)
    await expectFailure(
      url,
      '502 Bad Gateway',
      'upstream_tls',
      /an authority that Node does not know.*NODE_EXTRA_CA_CERTS/,
    )
  })
})
