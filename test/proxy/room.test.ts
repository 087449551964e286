/** Bodies with and without room in the buffer budget, over real sockets. */
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import http from 'node:http'
import { setImmediate } from 'node:timers/promises'
import { brotliCompressSync, gzipSync } from 'node:zlib'
import { describe, expect, it, onTestFinished } from 'vitest'
import { callModel, runAgent, START } from '../support/agent.ts'
import { startBoth, startGovernor } from '../support/governor.ts'
import { runaway, serve } from '../support/provider.ts'
import { connect } from '../support/raw.ts'

const SMALL = { server: { max_buffered: '64kb' } }

/** A body that takes all of the room for requests, of which only the beginning comes. */
async function takeRoom(url: string) {
  const client = connect(url)
  client.write('POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 49152\r\n\r\n')
  client.write(Buffer.alloc(20_000, 0x20))
  // What comes after it on another connection is read after it.
  const response = await fetch(`${url}/health`)
  await response.text()
  return client
}

const LONG = [{ role: 'user', content: 'x'.repeat(20_000) }]

const FORMS = [
  { form: 'of an announced length', bodyOf: (body: string) => body },
  {
    form: 'in chunks',
    bodyOf: (body: string) =>
      new ReadableStream({
        start(controller) {
          for (let at = 0; at < body.length; at += 1_000) controller.enqueue(Buffer.from(body.slice(at, at + 1_000)))
          controller.close()
        },
      }),
  },
]

describe('a request without room in the buffer budget', () => {
  it.each(FORMS)('is relayed at once, unread and counted: $form', async ({ bodyOf }) => {
    const { url, events, provider } = await startBoth(() => ({ text: 'Hi.' }), SMALL)
    await takeRoom(url)
    const body = bodyOf(JSON.stringify({ messages: LONG, tools: [{ type: 'function' }] }))
    const init = { method: 'POST', body, duplex: 'half' } as RequestInit
    const response = await fetch(`${url}/v1/chat/completions`, init)
    expect(response.headers.get('x-governor-verdict')).toBeNull()
    expect(await response.text()).toContain('Hi.')
    expect(provider.requests.at(-1)?.json.messages).toEqual(LONG)
    expect(events).toContainEqual({ kind: 'failed_open', reason: 'no_room' })
  })

  it('is guarded again as soon as another has left', async () => {
    const { url, events, until } = await startBoth(() => ({ text: 'Hi.' }), SMALL)
    const other = await takeRoom(url)
    other.socket.destroy()
    await until(({ kind }) => kind === 'request_ended')
    expect((await callModel(url, LONG)).headers.get('x-governor-verdict')).toBe('allow')
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
  })

  it('is relayed at once when it is larger than the whole buffer budget', async () => {
    const { url, events, provider } = await startBoth(() => ({ text: 'Hi.' }), SMALL)
    const asked = [{ role: 'user', content: 'x'.repeat(200_000) }]
    expect((await callModel(url, asked)).message.content).toBe('Hi.')
    expect(provider.requests.at(-1)?.json.messages).toEqual(asked)
    expect(events).toContainEqual({ kind: 'failed_open', reason: 'no_room' })
  })

  it('arrives whole at an upstream that stops reading again and again', async () => {
    const provider = await serve(async (request, response) => {
      const bytes: Buffer[] = []
      for await (const chunk of request) {
        bytes.push(chunk as Buffer)
        for (let turns = 0; turns < bytes.length % 20; turns++) await setImmediate()
      }
      response.end(createHash('sha256').update(Buffer.concat(bytes)).digest('hex'))
    })
    onTestFinished(() => provider.close())
    const { url } = await startGovernor(provider.url, SMALL)
    const bodies = Array.from({ length: 40 }, () => randomBytes(1_500_000))
    await Promise.all(
      bodies.map(async (body) => {
        const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', body })
        expect(await response.text()).toBe(createHash('sha256').update(body).digest('hex'))
      }),
    )
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

/** A provider that answers nothing before `count` requests have come whole. */
async function startSlowModel(count: number) {
  let whole = 0
  let open = () => {}
  const all = new Promise<void>((resolve) => {
    open = resolve
  })
  const provider = await serve(async (request, response) => {
    await once(request.resume(), 'end')
    if (++whole === count) open()
    await all
    response.setHeader('content-type', 'application/json')
    response.end('{"choices":[{"message":{"role":"assistant","content":"Hi."},"finish_reason":"stop"}]}')
  })
  onTestFinished(() => provider.close())
  return provider
}

const CODINGS = [
  { coding: 'none', headers: {}, code: (body: string) => Buffer.from(body) },
  { coding: 'gzip', headers: { 'content-encoding': 'gzip' }, code: (body: string) => gzipSync(body) },
]
const CONTENTS = [
  { content: 'one long text', messages: [{ role: 'user', content: randomBytes(8_000).toString('hex') }] },
  { content: 'many messages', messages: Array.from({ length: 40 }, () => ({ role: 'user', content: 'a' })) },
]
const HELD = CODINGS.flatMap((coding) => CONTENTS.map((content) => ({ ...coding, ...content })))

describe('bodies whose model thinks', () => {
  it.each(HELD)(
    'take room until they are answered, and what has none is relayed: coding $coding, $content',
    async ({ headers, code, messages }) => {
      const provider = await startSlowModel(30)
      const { url, events } = await startGovernor(provider.url, SMALL)
      const body = code(JSON.stringify({ messages, tools: [{ type: 'function' }] }))
      const answers = await Promise.all(
        Array.from({ length: 30 }, async () => {
          const response = await fetch(`${url}/v1/chat/completions`, { method: 'POST', headers, body })
          return { verdict: response.headers.get('x-governor-verdict'), text: await response.text() }
        }),
      )
      expect(answers.filter(({ text }) => text.includes('Hi.'))).toHaveLength(30)
      const guarded = answers.filter(({ verdict }) => verdict === 'allow').length
      const relayed = events.filter((event) => event.kind === 'failed_open' && event.reason === 'no_room')
      expect(guarded + relayed.length).toBe(30)
      expect(guarded).toBeGreaterThan(0)
      // 64 KB for all, and each takes 16 KB and more, or 512 bytes for each of 40 messages.
      expect(guarded).toBeLessThanOrEqual(4)
    },
  )

  it.each(HELD)('give all of it back when they are answered: coding $coding, $content', async (held) => {
    const provider = await startSlowModel(1)
    const { url, events } = await startGovernor(provider.url, SMALL)
    const body = held.code(JSON.stringify({ messages: held.messages, tools: [{ type: 'function' }] }))
    for (let request = 0; request < 30; request++) {
      const init = { method: 'POST', headers: held.headers, body }
      expect(await (await fetch(`${url}/v1/chat/completions`, init)).text()).toContain('Hi.')
    }
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
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
    ['unknown_encoding', 'x-odd, gzip', gzipSync(Buffer.from('\x01'))],
    ['unknown_encoding', 'gzip,'.repeat(5), Buffer.from(body)],
    ['unknown_encoding', 'x-odd', Buffer.from('\x01')],
    ['unreadable_body', 'gzip', Buffer.from(body)],
    ['unreadable_body', 'gzip', gzipSync(body).subarray(0, 30)],
    ['body_too_large', 'gzip', gzipSync(bomb)],
    ['body_too_large', 'br', brotliCompressSync(bomb)],
    ['body_too_large', 'gzip, br', brotliCompressSync(gzipSync(bomb))],
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

  it.each<[string, string[]]>([
    ['one field', ['gzip, identity, br']],
    ['two fields', ['GZIP', 'br']],
  ])('is guarded through several codings, named in %s, and goes on as it came', async (_, codings) => {
    const coded = brotliCompressSync(gzipSync(body))
    const got: Buffer[] = []
    const provider = await serve(async (request, response) => {
      for await (const chunk of request) got.push(chunk as Buffer)
      response.end('{}')
    })
    onTestFinished(() => provider.close())
    const { url, events } = await startGovernor(provider.url)
    const headers = { 'Content-Encoding': codings }
    const request = http.request(`${url}/v1/chat/completions`, { method: 'POST', headers }).end(coded)
    const [response] = (await once(request, 'response')) as [http.IncomingMessage]
    await once(response.resume(), 'end')
    expect(response.headers['x-governor-verdict']).toBe('allow')
    expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
    expect(Buffer.concat(got)).toEqual(coded)
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
})
