import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { CallUsage } from '../../src/core/usage.ts'
import { chat } from '../../src/dialect/chat/index.ts'
import type { Dialect } from '../../src/dialect/dialect.ts'
import { messages } from '../../src/dialect/messages/index.ts'
import { responses } from '../../src/dialect/responses/index.ts'
import type { ProxyEvent } from '../../src/telemetry/event.ts'
import { type Answered, observeResponse } from '../../src/usage/response-observer.ts'
import { callModel, START } from '../support/agent.ts'
import { startBoth } from '../support/governor.ts'
import { events as messageEvents } from '../support/messages.ts'
import { chunks, completion } from '../support/provider.ts'
import { eventTexts, responseEvents, responseObject } from '../support/responses.ts'

const usagesOf = (events: readonly ProxyEvent[]): CallUsage[] =>
  events.flatMap((event) => (event.kind === 'answered' ? [event.usage] : []))

const isAnswered = (event: ProxyEvent) => event.kind === 'answered'

/** What an observer says of a body that comes in pieces. */
async function tapped(
  pieces: readonly Buffer[],
  headers: readonly string[] = [],
  requestBytes = 400,
  dialect: Dialect = chat,
): Promise<Answered> {
  const told: Answered[] = []
  await new Promise<void>((resolve, reject) => {
    const tap = observeResponse({
      dialect,
      head: { status: 200, reason: 'OK', headers },
      requestBytes,
      completed(answered) {
        told.push(answered)
        resolve()
      },
      fault: reject,
    })
    for (const piece of pieces) tap.take(piece)
    tap.end(true)
    tap.end(true)
  })
  const [answered, ...more] = told
  if (!answered || more.length > 0) throw new Error(`told ${told.length} times`)
  return answered
}

const EVENT_STREAM = ['Content-Type', 'text/event-stream']
const request = { model: 'm', messages: [] }
const stated = { input: 100, output: 10, estimated: false }

function cut(text: Buffer, length: number): Buffer[] {
  const pieces: Buffer[] = []
  for (let at = 0; at < text.length; at += length) pieces.push(text.subarray(at, at + length))
  return pieces
}

describe('the usage of a response', () => {
  it('is read from a whole response, with the details that a provider gives', async () => {
    const { url, events, until } = await startBoth(({ json }, number) => ({
      body: {
        ...completion(json, { text: 'hello' }, number),
        usage: {
          prompt_tokens: 120,
          completion_tokens: 30,
          prompt_tokens_details: { cached_tokens: 64 },
          completion_tokens_details: { reasoning_tokens: 12 },
        },
      },
    }))
    await callModel(url, START)
    await until(isAnswered)
    expect(usagesOf(events)).toEqual([{ input: 120, output: 30, cachedInput: 64, reasoning: 12, estimated: false }])
  })

  it('is read from the last chunk of a stream', async () => {
    const { url, events, until } = await startBoth(() => ({ text: 'hello there' }))
    await callModel(url, START, { stream: true })
    await until(isAnswered)
    expect(usagesOf(events)).toEqual([stated])
  })

  it('is estimated and marked as an estimate if a stream has none', async () => {
    const text = 'word '.repeat(400)
    const { url, events, until } = await startBoth(() => ({ text }))
    const messages = [...START, { role: 'user', content: 'x'.repeat(4_000) }]
    await callModel(url, messages, { stream: true, body: { stream_options: {} } })
    await until(isAnswered)
    const [usage] = usagesOf(events)
    expect(usage?.estimated).toBe(true)
    expect(usage?.output).toBeGreaterThan(400)
    expect(usage?.output).toBeLessThan(600)
    expect(usage?.input).toBeGreaterThan(1_000)
    expect(usage?.input).toBeLessThan(1_300)
  })

  it('includes the final answer that Governor asked for', async () => {
    const { url, events, until } = await startBoth(
      ({ json }) => (json.tool_choice === 'none' ? { text: 'done' } : { calls: [{ name: 'search', arguments: {} }] }),
      { budget: { max_iterations: 1 } },
    )
    const call = { id: 'a', function: { name: 'search', arguments: '{}' } }
    const messages = [
      ...START,
      { role: 'assistant', content: null, tool_calls: [call] },
      { role: 'tool', tool_call_id: 'a', content: 'found' },
    ]
    const step = await callModel(url, messages)
    expect(step.governor?.['terminal_reason']).toBe('max_iterations')
    await until(isAnswered)
    expect(usagesOf(events)).toEqual([stated])
  })

  it('is not counted for an error', async () => {
    const { url, events, until } = await startBoth(() => ({
      status: 429,
      body: { error: { message: 'no' } },
    }))
    await callModel(url, START)
    await until((event) => event.kind === 'request_ended')
    expect(usagesOf(events)).toEqual([])
  })

  it('is counted by upstream and by its source', async () => {
    const { url, until } = await startBoth(() => ({ text: 'hello' }))
    await callModel(url, START)
    await until(isAnswered)
    const metrics = await (await fetch(`${url}/metrics`)).text()
    expect(metrics).toContain('governor_tokens_total{upstream="openai",kind="input",source="provider"} 100')
    expect(metrics).toContain('governor_tokens_total{upstream="openai",kind="output",source="provider"} 10')
  })
})

describe('a response observer', async () => {
  const long = { text: 'lorem "usage": {"prompt_tokens": 7} '.repeat(20_000) }
  const whole = Buffer.from(JSON.stringify(completion(request, long, 1)))

  it.each([1_000, 16_384, 65_536, 1_000_000])('finds usage behind a long text, cut every %i bytes', async (length) => {
    expect((await tapped(cut(whole, length))).usage).toEqual(stated)
  })

  it('finds the usage in the last of many chunks that have one, whatever follows it', async () => {
    const frames = chunks(request, { text: 'hello' }, 1)
    const growing = frames.map((frame, at) =>
      frame.replace(/\}\n\n$/, `,"usage":{"prompt_tokens":5,"completion_tokens":${at}}}\n\n`),
    )
    const text = Buffer.from(`${growing.join('')}: bye\n\n`)
    expect((await tapped([text], EVENT_STREAM)).usage).toEqual({
      input: 5,
      output: growing.length - 2,
      estimated: false,
    })
  })

  it('counts all that a Messages stream wrote, wherever it broke off, and what it states where it is whole', () =>
    fc.assert(
      fc.asyncProperty(fc.nat(3_000), fc.nat(40), async (words, left) => {
        const frames = messageEvents(request, { text: 'word '.repeat(words) }, 1)
        const kept = frames.slice(0, Math.max(1, frames.length - left))
        const { usage } = await tapped([Buffer.from(kept.join(''))], EVENT_STREAM, 400, messages)
        const written = kept.join('').match(/word /g)?.length ?? 0
        const isWhole = left < 2
        expect(usage.estimated).toBe(!isWhole)
        expect(usage.input).toBe(100)
        if (isWhole) expect(usage.output).toBe(10)
        else expect(usage.output).toBeGreaterThanOrEqual(Math.ceil((written * 5) / 4))
      }),
    ))

  it('reads a compressed response from a copy', async () => {
    const zipped = gzipSync(whole)
    expect(zipped.length).toBeLessThan(65_536)
    expect((await tapped(cut(zipped, 500), ['Content-Encoding', 'gzip'])).usage).toEqual(stated)
  })

  it('reads the received part of a compressed stream that broke off', async () => {
    const frames = Buffer.from(chunks(request, { text: 'word '.repeat(500) }, 1).join(''))
    const zipped = gzipSync(frames)
    const { usage } = await tapped(
      [zipped.subarray(0, zipped.length / 2)],
      [...EVENT_STREAM, 'content-encoding', 'gzip'],
    )
    expect(usage.estimated).toBe(true)
    expect(usage.output).toBeGreaterThan(50)
  })

  it.each([
    ['an encoding nobody knows', ['content-encoding', 'rot13']],
    ['bytes that are not what their headers say', ['content-encoding', 'br']],
  ])('estimates only the input of %s', async (_, headers) => {
    expect((await tapped([whole.subarray(0, 5_000)], headers)).usage).toEqual({
      input: 100,
      output: 0,
      estimated: true,
    })
  })

  it.each(['', '{}', '[1]', '{"usage":null}', '{"usage":{"prompt_tokens":-1}}', '{"usage":{"prompt_tok'])(
    'estimates when a response states %o',
    async (body) => {
      expect((await tapped([Buffer.from(body)])).usage.estimated).toBe(true)
    },
  )

  it.each([true, false])('estimates the answer where only the prompt is stated (stream: %s)', async (stream) => {
    const text = 'word '.repeat(80)
    const usage = { prompt_tokens: 70 }
    const parts = stream ? chunks({ ...request, stream }, { text }, 1) : []
    const ofStream = [...parts.slice(0, -1), `data: ${JSON.stringify({ choices: [], usage })}\n\n`, ...parts.slice(-1)]
    const body = stream ? ofStream.join('') : JSON.stringify({ ...completion(request, { text }, 1), usage })
    const answered = await tapped([Buffer.from(body)], stream ? EVENT_STREAM : [])
    expect(answered.usage).toMatchObject({ input: 70, estimated: true })
    expect(answered.usage.output).toBeGreaterThanOrEqual(100)
    expect(answered.usage.output).toBeLessThan(130)
  })

  it('keeps only the beginning and the end of a long stream', () => {
    const seen: number[] = []
    const tap = observeResponse({
      dialect: {
        ...chat,
        metadata({ head, tail, whole: all }) {
          seen.push(head.length, tail.length)
          expect(all).toBeUndefined()
          return {}
        },
      },
      head: { status: 200, reason: '', headers: EVENT_STREAM },
      requestBytes: 1,
      completed: () => undefined,
      fault: (error) => {
        throw error
      },
    })
    for (let at = 0; at < 5_000; at++) tap.take(Buffer.alloc(1_000))
    tap.end(true)
    expect(seen).toEqual([17_000, 66_000])
  })
})

describe('the ids in a response', () => {
  const whole = responseObject(
    { model: 'm', messages: [] },
    { calls: [{ name: 'search', arguments: { query: 'it' } }] },
    1,
  )
  const texts = { whole: JSON.stringify(whole), streamed: eventTexts(responseEvents(whole)).join('') }
  const codings = { identity: (bytes: Buffer) => bytes, gzip: gzipSync, deflate: deflateSync, br: brotliCompressSync }

  it.each(Object.keys(codings) as (keyof typeof codings)[])(
    'are reported before the client gets its end, in any pieces that come faster than they are read (%s)',
    async (coding) => {
      const bodies = Object.entries(texts).map(([kind, text]) => ({ kind, bytes: codings[coding](Buffer.from(text)) }))
      const cuts = fc.uniqueArray(fc.nat(), { maxLength: 12 })
      const check = fc.asyncProperty(
        fc.constantFrom(...bodies),
        cuts,
        fc.boolean(),
        async ({ kind, bytes }, ats, each) => {
          const places = each ? [...bytes.keys()] : ats.map((at) => at % bytes.length).sort((a, b) => a - b)
          const pieces = places.map((at, index) => bytes.subarray(index === 0 ? 0 : places[index - 1], at))
          const told: string[] = []
          const tap = observeResponse({
            dialect: responses,
            head: {
              status: 200,
              reason: 'OK',
              headers: [...(kind === 'streamed' ? EVENT_STREAM : []), 'content-encoding', coding],
            },
            requestBytes: 400,
            begin: async (id) => told.push(id),
            relayed: async (ids) => told.push(...ids),
            completed: () => undefined,
            fault: (error) => expect.fail(String(error)),
          })
          for (const piece of pieces) tap.take(piece)
          tap.take(bytes.subarray(places.at(-1) ?? 0))
          await tap.take(undefined)
          expect(told).toEqual([whole['id'], 'call_1_0'])
        },
      )
      await fc.assert(check, { numRuns: 30 })
    },
  )
})
