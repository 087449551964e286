/** The built program while it does not get to run: blocked by something that computes, or stopped by the system. */
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { afterStep, callModel, START } from '../support/agent.ts'
import { describeWith } from '../support/programs.ts'
import { type ChatMessage, runaway, startProvider } from '../support/provider.ts'
import { connect, startRaw } from '../support/raw.ts'
import { startRedis } from '../support/redis.ts'
import { startTampered, type Tampered } from './tampered-process.ts'

const ASK = JSON.stringify({
  model: 'm',
  messages: START,
  tools: [{ type: 'function', function: { name: 'f' } }],
})
const HEAD = `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${ASK.length}\r\n\r\n`

/** Longer than all time limits of these tests. */
const STALL = 4_000
const LIMITS = { timeouts: { client_idle: '3s', first_byte: '2s', idle: '2s' } }

/** How long the program is stopped is what these tests are about, and not a wait for something. */
function pass(milliseconds: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, milliseconds))
}

const STALLS = [
  [
    'whose event loop is blocked',
    (governor: Tampered, meanwhile: () => void) => {
      const blocked = governor.block(STALL)
      meanwhile()
      return blocked
    },
  ],
  [
    'that is frozen and thawed',
    async (governor: Tampered, meanwhile: () => void) => {
      governor.child.kill('SIGSTOP')
      meanwhile()
      await pass(STALL)
      governor.child.kill('SIGCONT')
    },
  ],
] as const

describe.each(STALLS)('a process %s for longer than all time limits', (_, stall) => {
  it('goes on with a stream, waits for a first byte, and takes the rest of a request that came meanwhile', async () => {
    const upstream = await startRaw()
    const governor = await startTampered(upstream.url, LIMITS)
    const [streaming, waiting, sending] = [connect(governor.url), connect(governor.url), connect(governor.url)]
    streaming.write(HEAD + ASK)
    const stream = await upstream.accept()
    await stream.message()
    stream.write('HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n')
    await streaming.until('1\r\na\r\n')
    waiting.write(HEAD + ASK)
    const silent = await upstream.accept()
    await silent.message()
    sending.write(HEAD + ASK.slice(0, 10))
    await vi.waitFor(async () => expect(await governor.metric('governor_open_requests')).toBe(3), 20_000)

    await stall(governor, () => {
      stream.write('1\r\nb\r\n')
      // The request that comes meanwhile has a connection of its own.
      silent.write('HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}')
      sending.write(ASK.slice(10))
    })

    await streaming.until('1\r\nb\r\n')
    stream.write('0\r\n\r\n')
    expect((await streaming.until('0\r\n\r\n')).toString()).toBe('0\r\n\r\n')
    expect(await waiting.message()).toMatchObject({ line: 'HTTP/1.1 200 OK', isComplete: true })
    const late = await upstream.accept()
    expect((await late.message()).body.toString()).toBe(ASK)
    late.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}')
    expect(await sending.message()).toMatchObject({ line: 'HTTP/1.1 200 OK', isComplete: true })
  })

  describeWith('redis-server', 'with a Redis', () => {
    it('uses Redis again afterwards, and has lost no count', async () => {
      const provider = await startProvider(runaway())
      onTestFinished(() => provider.close())
      const redis = await startRedis()
      const shared = { store: 'redis', redis: { url: redis.url, timeout: '400ms' } }
      const governor = await startTampered(provider.url, shared)
      const headers = { 'x-governor-session': 'one' }
      let messages: ChatMessage[] = [...START]
      const step = async (iteration: string) => {
        const { length } = messages
        const got = await callModel(governor.url, messages.slice(0, length), { headers })
        expect([got.status, got.headers.get('x-governor-iteration')]).toEqual([200, iteration])
        messages = afterStep(messages, got)
      }
      await step('1/300')
      await stall(governor, () => undefined)
      await step('2/300')
      await vi.waitFor(async () => {
        expect(await (await fetch(`${governor.url}/ready`)).json()).toMatchObject({ store: { status: 'ok' } })
      }, 20_000)
      await step('3/300')
      messages = [...START, ...messages.slice(-2)]
      await step('4/300')
    })
  })
})
