/** Bodies with and without room in the buffer budget, over real sockets. */
import { brotliCompressSync, gzipSync } from 'node:zlib'
import { describe, expect, it, onTestFinished } from 'vitest'
import type { Clock } from '../../src/http/buffer-budget.ts'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runaway, serve } from '../support/provider.ts'
import { connect } from '../support/raw.ts'

const SMALL = { server: { max_buffered: '64kb' } }

/** A clock whose waits end when the test ends them. */
function heldClock() {
  const calls = new Set<() => void>()
  let begun = () => {}
  const clock: Clock = {
    now: () => 0,
    after(_delay, call) {
      calls.add(call)
      begun()
      return () => calls.delete(call)
    },
  }
  return {
    clock,
    /** Settles when a request waits. */
    waiting: () =>
      new Promise<void>((resolve) => {
        begun = resolve
        if (calls.size > 0) resolve()
      }),
    end() {
      for (const call of calls) call()
    },
  }
}

/** Sends the beginning of a body that takes nearly all of the room. */
async function takeRoom(url: string) {
  const client = connect(url)
  client.write('POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 100000\r\n\r\n')
  client.write(Buffer.alloc(60_000, 0x20))
  // What comes after it on another connection is read after it.
  const response = await fetch(`${url}/health`)
  await response.text()
  return client
}

const LONG = [{ role: 'user', content: 'x'.repeat(20_000) }]

describe('a request without room in the buffer budget', () => {
  it('waits, and is guarded as soon as there is room', async () => {
    const held = heldClock()
    const { url, events } = await startBoth(() => ({ text: 'Hi.' }), SMALL, { clock: held.clock })
    const other = await takeRoom(url)
    const answered = callModel(url, LONG)
    await held.waiting()
    other.socket.destroy()
    expect((await answered).headers.get('x-governor-verdict')).toBe('allow')
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it('is relayed unread and counted after it has waited long enough', async () => {
    const held = heldClock()
    const { url, events, provider } = await startBoth(() => ({ text: 'Hi.' }), SMALL, { clock: held.clock })
    await takeRoom(url)
    const answered = callModel(url, LONG)
    await held.waiting()
    held.end()
    const { headers, message } = await answered
    expect(message.content).toBe('Hi.')
    expect(headers.get('x-governor-verdict')).toBeNull()
    expect(provider.requests.at(-1)?.json.messages).toEqual(LONG)
    expect(events).toContainEqual({ kind: 'failed_open', reason: 'no_room' })
  })

  it('is relayed at once when it is larger than the whole buffer budget', async () => {
    const { url, events, provider } = await startBoth(() => ({ text: 'Hi.' }), SMALL)
    const asked = [{ role: 'user', content: 'x'.repeat(200_000) }]
    expect((await callModel(url, asked)).message.content).toBe('Hi.')
    expect(provider.requests.at(-1)?.json.messages).toEqual(asked)
    expect(events).toContainEqual({ kind: 'failed_open', reason: 'no_room' })
  })

  it.each([false, true])('gets the recorded answer if its run was stopped (stream: %s)', async (stream) => {
    const held = heldClock()
    const config = { ...SMALL, budget: { max_iterations: 2 } }
    const { url, events, provider } = await startBoth(runaway(), config, { clock: held.clock })
    const headers = { 'x-governor-session': 'one', authorization: 'Bearer sk-test' }
    const run = await runAgent(url, START, { headers })
    const said = run.steps.at(-1)?.message.content
    const asked = provider.requests.length
    await takeRoom(url)
    for (const coding of [undefined, 'gzip']) {
      const body = Buffer.from(JSON.stringify({ messages: LONG, tools: [{ type: 'function' }], stream }))
      const response = fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: coding ? { ...headers, 'content-encoding': coding } : headers,
        body: coding ? gzipSync(body) : body,
      })
      await held.waiting()
      held.end()
      const { headers: told } = await response
      expect(told.get('x-governor-terminal-reason')).toBe('max_iterations')
      expect(told.get('content-type')).toMatch(stream ? /event-stream/ : /json/)
      expect(await (await response).text()).toContain(JSON.stringify(said).slice(1, -1))
    }
    expect(provider.requests).toHaveLength(asked)
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it('does not delay another session', async () => {
    const config = { ...SMALL, budget: { max_iterations: 2 } }
    const { url, provider } = await startBoth(runaway(), config)
    await runAgent(url, START, { headers: { 'x-governor-session': 'one' } })
    const asked = provider.requests.length
    const large = [{ role: 'user', content: 'x'.repeat(200_000) }]
    await callModel(url, large, { headers: { 'x-governor-session': 'two' } })
    expect(provider.requests).toHaveLength(asked + 1)
  })
})

describe('an answer that is buffered at a stop', () => {
  it('takes room in the buffer budget, and is replaced by the fallback text without room', async () => {
    const config = { ...SMALL, budget: { max_iterations: 1 }, stop: { fallback_text: 'That was all.' } }
    const { url } = await startBoth(runaway('search', 'long '.repeat(40_000)), config)
    const { steps } = await runAgent(url, START)
    expect(steps.at(-1)?.message.content).toBe('That was all.')
  })
})

describe('a compressed body', () => {
  const body = JSON.stringify({ messages: START, tools: [{ type: 'function' }] })
  const bomb = Buffer.alloc(3 * 1024 * 1024, 0x20)

  it.each<[string, string, Buffer]>([
    ['unknown_encoding', 'gzip, gzip', gzipSync(gzipSync(body))],
    ['unknown_encoding', 'x-odd', Buffer.from('\x01')],
    ['unreadable_body', 'gzip', Buffer.from(body)],
    ['unreadable_body', 'gzip', gzipSync(body).subarray(0, 30)],
    ['body_too_large', 'gzip', gzipSync(bomb)],
    ['body_too_large', 'br', brotliCompressSync(bomb)],
  ])('that cannot be evaluated is relayed and counted as %s: %s', async (reason, coding, bytes) => {
    const provider = await serve((request, response) => {
      request.resume().once('end', () => response.end('{}'))
    })
    onTestFinished(() => provider.close())
    const { url, events } = await startGovernor(provider.url, { server: { max_guarded_body: '2mb' } })
    const headers = { 'content-encoding': coding }
    const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers, body: bytes })
    expect(await response.text()).toBe('{}')
    expect(events).toContainEqual({ kind: 'failed_open', reason })
    const metrics = await fetch(`${url}/metrics`).then((told) => told.text())
    expect(metrics).toMatch(new RegExp(`governor_failed_open_total\\{reason="${reason}"[^}]*\\} 1`))
  })

  it('is decompressed only as far as there is room', async () => {
    const { url, until } = await startBoth(() => ({ text: 'Hi.' }), SMALL)
    const client = connect(url)
    const bytes = gzipSync(bomb)
    const head = `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: ${bytes.length}\r\n\r\n`
    client.write(Buffer.concat([Buffer.from(head), bytes]))
    expect(await until(({ kind }) => kind === 'failed_open')).toMatchObject({ reason: 'no_room' })
    client.socket.destroy()
  })

  it('takes the room of its decompressed size until it is answered', async () => {
    const held = heldClock()
    const silent = await serve(() => {})
    onTestFinished(() => silent.close())
    const { url } = await startGovernor(silent.url, SMALL, { clock: held.clock })
    const body = gzipSync(JSON.stringify({ messages: LONG, tools: [{ type: 'function' }] }))
    const leaving = new AbortController()
    const send = () =>
      fetch(`${url}/v1/chat/completions`, {
        method: 'POST',
        headers: { 'content-encoding': 'gzip' },
        body,
        signal: leaving.signal,
      }).catch(() => undefined)
    const requests = [send(), send(), send(), send()]
    // The fourth waits, though all of the others were sent on.
    await held.waiting()
    leaving.abort()
    await Promise.all(requests)
  })
})
