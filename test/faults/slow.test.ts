/** Clients and upstreams that hardly send, do not read, or are gone without a word, in front of and behind the built program. */
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { Readable } from 'node:stream'
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { callModel, START } from '../support/agent.ts'
import { type Process, startProcess } from '../support/process.ts'
import { runaway, serve, startProvider } from '../support/provider.ts'
import { connect, startRaw, type Wire } from '../support/raw.ts'

const HEAD = 'POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n'
const ASK = `{"model":"m","messages":[{"role":"user","content":"Go."}],"tools":[{"type":"function","function":{"name":"f"}}]}`
const POST = `${HEAD}Content-Length: ${ASK.length}\r\n\r\n${ASK}`

/** Sends a text byte by byte, and its last byte never, until the test ends or the connection closes. */
function trickle(wires: readonly Wire[], text: string): void {
  let at = 0
  const timer = setInterval(() => {
    const byte = text[at++ % text.length] ?? ''
    for (const wire of wires) if (!wire.socket.destroyed) wire.write(byte)
  }, 20)
  onTestFinished(() => clearInterval(timer))
}

const RESIDENT = 'process_resident_memory_bytes'

async function expectServed(url: string): Promise<void> {
  expect(await callModel(url, START)).toMatchObject({ status: 200, finish: 'tool_calls' })
}

async function startServing(config = {}): Promise<Process> {
  const provider = await startProvider(runaway())
  onTestFinished(() => provider.close())
  return startProcess(provider.url, config)
}

const CLIENTS = 50
const END = 'data: [DONE]\n\n'

describe('50 clients', () => {
  it('that send headers byte by byte without end are let go, and others are served meanwhile', async () => {
    const { url } = await startServing({ timeouts: { client_idle: '1s' } })
    const clients = Array.from({ length: CLIENTS }, () => connect(url))
    trickle(clients, `${HEAD}X-A: ${'a'.repeat(100)}`)
    await expectServed(url)
    // Mostly with a 408, which the reset that answers their next byte may overtake.
    for (const client of clients) await client.closed
    await expectServed(url)
  })

  it('that announce 32 MB each and send them byte by byte take no memory for what has not come', async () => {
    const { url, metric } = await startServing({ timeouts: { client_idle: '60s' } })
    await expectServed(url)
    const before = await metric(RESIDENT)
    const clients = Array.from({ length: CLIENTS }, () => connect(url))
    for (const client of clients) client.write(`${HEAD}Content-Length: 32000000\r\n\r\n{"messages":[`)
    trickle(clients, ' ')
    await vi.waitFor(async () => expect(await metric('governor_open_requests')).toBe(CLIENTS), 20_000)
    for (let at = 0; at < 20; at++) await expectServed(url)
    expect((await metric(RESIDENT)) - before).toBeLessThan(150_000_000)
    for (const client of clients) client.socket.destroy()
    await vi.waitFor(async () => expect(await metric('governor_open_requests')).toBe(0), 20_000)
  })

  it('that stop in the middle of a body get a 408 that says why', async () => {
    const { url } = await startServing({ timeouts: { client_idle: '1s' } })
    const clients = Array.from({ length: CLIENTS }, () => connect(url))
    for (const client of clients) client.write(`${HEAD}Content-Length: 100\r\n\r\n{"messages":[`)
    await expectServed(url)
    for (const client of clients) {
      const { line, body } = await client.message()
      expect(line).toBe('HTTP/1.1 408 Request Timeout')
      expect(JSON.parse(body.toString())).toMatchObject({ error: { code: 'request_timeout' } })
    }
  })

  it('that stop reading hold their upstreams back and take little memory, and get all of it when they read on', async () => {
    const event = `data: {"choices":[{"index":0,"delta":{"content":"${'x'.repeat(10_000)}"}}]}\n\n`
    const events = 2_000
    const streams: ServerResponse[] = []
    const upstream = await serve(async (request, response) => {
      request.resume()
      await once(request, 'end')
      if (request.method === 'GET') return response.end('{}')
      response.writeHead(200, { 'content-type': 'text/event-stream' })
      streams.push(response)
      Readable.from([...Array.from({ length: events }, () => event), END]).pipe(response)
    })
    onTestFinished(() => upstream.close())
    const { url, metric } = await startProcess(upstream.url)
    const before = await metric(RESIDENT)
    const clients = Array.from({ length: CLIENTS }, () => connect(url))
    for (const { socket } of clients) socket.pause()
    for (const client of clients) client.write(POST)
    await vi.waitFor(() => {
      expect(streams.filter(({ writableNeedDrain }) => writableNeedDrain)).toHaveLength(CLIENTS)
    }, 30_000)
    const other = await fetch(`${url}/v1/models`)
    expect(other.status).toBe(200)
    // All of it would be 1 GB.
    expect((await metric(RESIDENT)) - before).toBeLessThan(200_000_000)
    const [first, ...others] = clients
    for (const { socket } of others) socket.destroy()
    first?.socket.resume()
    const message = await first?.message()
    expect(message?.isComplete).toBe(true)
    expect(message?.body.length).toBe(events * event.length + END.length)
  })
})

describe('an upstream', () => {
  it('that sends its headers byte by byte without end is a 504 after first_byte', async () => {
    const upstream = await startRaw()
    const { url } = await startProcess(upstream.url, { timeouts: { first_byte: '1s' } })
    const client = connect(url)
    client.write(POST)
    const wire = await upstream.accept()
    trickle([wire], `HTTP/1.1 200 OK\r\nX-A: ${'a'.repeat(100_000)}`)
    const { line, body } = await client.message()
    expect(line).toBe('HTTP/1.1 504 Gateway Timeout')
    expect(body.toString()).toContain('timeouts.first_byte')
    await wire.rest()
  })

  it('that sends its events byte by byte is never cut, and each byte is passed on at once', async () => {
    const upstream = await startRaw()
    const { url } = await startProcess(upstream.url, { timeouts: { idle: '2s', first_byte: '2s' } })
    const client = connect(url)
    client.write(POST)
    const wire = await upstream.accept()
    await wire.message()
    wire.write('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n')
    await client.until('\r\n\r\n')
    const events = `data: {"choices":[{"index":0,"delta":{"content":"${'y'.repeat(60)}"}}]}\n\ndata: [DONE]\n\n`
    let got = ''
    for (const byte of events) {
      wire.write(byte)
      await client.until('\r\n')
      got += (await client.take(1)).toString()
      await client.until('\r\n')
    }
    expect(got).toBe(events)
    wire.socket.end()
    expect((await client.take(5)).toString()).toBe('0\r\n\r\n')
  })

  it.each([
    ['before its headers', '', 'HTTP/1.1 504 Gateway Timeout'],
    [
      'in the middle of an event',
      'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: {"ch',
      'HTTP/1.1 200 OK',
    ],
  ])('that is gone without a word %s is given up after its time limit', async (_, bytes, line) => {
    const upstream = await startRaw()
    const {
      url,
      metric,
      line: logged,
    } = await startProcess(upstream.url, {
      timeouts: { first_byte: '1s', idle: '1s' },
    })
    const clients = Array.from({ length: 50 }, () => connect(url))
    for (const client of clients) client.write(POST)
    for (const _client of clients) {
      const wire = await upstream.accept()
      await wire.message()
      wire.write(bytes)
    }
    for (const client of clients) {
      const message = await client.message()
      expect(message.line).toBe(line)
      expect(message.isComplete).toBe(bytes === '')
    }
    expect(await logged('request failed')).toMatchObject({ failure: 'upstream_timeout' })
    expect(await metric('governor_open_requests')).toBe(0)
  })
})
