/** A response's id that another replica must know before the client does. */
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import { describe, expect, it, onTestFinished } from 'vitest'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { serve, startProvider } from '../support/provider.ts'
import { startRedis, startWire } from '../support/redis.ts'
import { eventTexts, responseEvents, responseObject } from '../support/responses.ts'
import { callResponses } from '../support/responses-agent.ts'

const CALL = { name: 'search', arguments: { query: 'it' } }
const RESULT = [{ type: 'function_call_output', call_id: 'call_1_0', output: 'found' }]

const CODINGS: Readonly<Record<string, (bytes: Buffer) => Buffer>> = {
  identity: (bytes) => bytes,
  gzip: gzipSync,
  deflate: deflateSync,
  br: brotliCompressSync,
}

type Pieces = 'one piece' | 'single bytes at first'

/**
 * A provider whose responses come in a content coding and in pieces: the rest of one that comes in single bytes is sent
 * at once after `hurry`, as Redis may not be silent for long. Resolves `sent` when it has sent all of the first.
 */
async function startResponses(stream: boolean, coding: string, pieces: Pieces) {
  let number = 0
  let isHurried = pieces === 'one piece'
  let allSent = () => {}
  const sent = new Promise<void>((resolve) => {
    allSent = resolve
  })
  const write = async (response: ServerResponse, bytes: Buffer) => {
    let at = 0
    for (; !isHurried && at < bytes.length; at++)
      if (!response.write(bytes.subarray(at, at + 1))) await once(response, 'drain')
      else await new Promise(setImmediate)
    response.end(bytes.subarray(at), allSent)
  }
  const { url, close } = await serve((request, response) => {
    request.resume()
    request.on('end', () => {
      const whole = responseObject({ model: 'm', messages: [] }, { calls: [CALL] }, ++number)
      const text = stream ? eventTexts(responseEvents(whole)).join('') : JSON.stringify(whole)
      response.writeHead(200, {
        'content-type': stream ? 'text/event-stream' : 'application/json',
        ...(coding === 'identity' ? {} : { 'content-encoding': coding }),
      })
      void write(response, (CODINGS[coding] ?? gzipSync)(Buffer.from(text)))
    })
  })
  onTestFinished(close)
  const hurry = () => {
    isHurried = true
  }
  return { url, sent, hurry }
}

/** Each coding whole and streamed, and in both kinds of pieces: half of all combinations, in which any two meet. */
const CASES = Object.keys(CODINGS).flatMap((coding, at) =>
  [true, false].map((stream) => {
    const pieces: Pieces = stream === (at % 2 === 0) ? 'single bytes at first' : 'one piece'
    return { stream, coding, pieces }
  }),
)

describeWith('redis-server', 'a response whose link is late', () => {
  it.each(CASES)(
    'is held until another replica can continue from it ($coding in $pieces, stream: $stream)',
    async ({ stream, coding, pieces }) => {
      const provider = await startResponses(stream, coding, pieces)
      const redis = await startRedis()
      const wire = await startWire(redis.port)
      const start = (url: string) => startGovernor(provider.url, { store: 'redis', redis: { url, timeout: '20s' } })
      const [first, second] = [await start(wire.url), await start(redis.url)]
      const held = new Promise<void>((resolve) => {
        wire.onRequest((bytes) => {
          if (!bytes.includes(' link}')) return 'passed'
          provider.hurry()
          resolve()
          return 'held'
        })
      })
      let isOver = false
      const begun = callResponses(first.url, { input: [{ role: 'user', content: 'Go.' }] }, { stream })
      const over = begun.then(() => {
        isOver = true
      })
      await Promise.all([held, provider.sent])
      // Without the hold, the client has its answer after a few more turns of Governor.
      for (let turn = 0; turn < 50; turn++) await fetch(`${first.url}/health`)
      expect(isOver).toBe(false)
      wire.release()
      await over
      const { response } = await begun
      const next = await callResponses(second.url, { input: RESULT, previous_response_id: response['id'] }, { stream })
      expect(next.headers.get('x-governor-iteration')).toBe('2/300')
    },
  )

  it('is looked up again where the replica that writes it is late', async () => {
    const provider = await startResponses(false, 'identity', 'one piece')
    const redis = await startRedis()
    const wire = await startWire(redis.port)
    const start = (url: string) => startGovernor(provider.url, { store: 'redis', redis: { url, timeout: '20s' } })
    const [first, second] = [await start(redis.url), await start(wire.url)]
    const { response } = await callResponses(first.url, { input: [{ role: 'user', content: 'Go.' }] })
    const [key = ''] = (await redis.command('KEYS', 'governor:v:*link}')) as string[]
    await redis.command('RENAME', key, 'later')
    let reads = 0
    wire.onRequest((bytes) => {
      if (!bytes.includes(' link}') || ++reads !== 2) return 'passed'
      void redis.command('RENAME', 'later', key).then(wire.release)
      return 'held'
    })
    const next = await callResponses(second.url, { input: RESULT, previous_response_id: response['id'] })
    expect(next.headers.get('x-governor-iteration')).toBe('2/300')
  })

  describe('of a call', () => {
    const ids = (text: string) => text.match(/HMGET\r\n\$\d+\r\n\S+ relayed\}/g) ?? []

    async function startLooking() {
      const provider = await startProvider((_, number) => ({ calls: [{ name: 'search', arguments: { number } }] }))
      const redis = await startRedis()
      const wire = await startWire(redis.port)
      const { url } = await startGovernor(provider.url, { store: 'redis', redis: { url: wire.url, timeout: '20s' } })
      const looked: string[] = []
      wire.onRequest((bytes) => {
        looked.push(...ids(bytes))
        return 'passed'
      })
      return { url, looked }
    }

    it('is looked up once, as no client gets a call before its link is stored', async () => {
      const { url, looked } = await startLooking()
      const call = { id: 'call_elsewhere', type: 'function', function: { name: 'search', arguments: '{}' } } as const
      await callModel(url, [
        { role: 'user', content: 'Go.' },
        { role: 'assistant', content: null, tool_calls: [call] },
        { role: 'tool', tool_call_id: call.id, content: 'found' },
      ])
      expect(looked).toHaveLength(1)
    })

    it('is looked up for the newest answer alone if that is known', async () => {
      const { url, looked } = await startLooking()
      const { steps } = await runAgent(url, START, { max: 4 })
      expect(steps.at(-1)?.headers.get('x-governor-iteration')).toMatch(/^4\//)
      expect(looked).toHaveLength(3)
    })
  })
})
