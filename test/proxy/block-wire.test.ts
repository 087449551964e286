/** The bytes on the wire on both sides while Governor reads the responses of a run to block calls. */
import { gzipSync } from 'node:zlib'
import { afterAll, beforeAll, describe, expect, it } from 'vitest'
import {
  closeRaw,
  connect,
  endToEnd,
  fieldOf,
  listenRaw,
  type Message,
  openGovernor,
  type RawUpstream,
  type Wire,
} from '../support/raw.ts'

let upstream: RawUpstream
let governor: { url: string; close(): Promise<void> }

beforeAll(async () => {
  upstream = await listenRaw()
  const config = {
    loop_guard: { max_warnings_before_block: 0 },
    timeouts: { idle: '400ms', first_byte: '2s' },
  }
  governor = await openGovernor(upstream.url, config, { max_guarded_body: '1MB' })
})
afterAll(() => closeRaw(governor, upstream))

const SEARCH = { name: 'search', arguments: '{"query":"x"}' }
const call = (id: string, called: object = SEARCH) => ({ id, type: 'function', function: called })
const step = (id: string) => [
  { role: 'assistant', content: null, tool_calls: [call(id)] },
  { role: 'tool', tool_call_id: id, content: 'nothing' },
]

let sessions = 0
/** Asks, in a separate session, after two equal calls: a third one is to be blocked. */
async function ask(
  stream: boolean,
  session = `session-${sessions++}`,
): Promise<{ client: Wire; wire: Wire; request: string }> {
  const body = JSON.stringify({
    model: 'm',
    ...(stream ? { stream } : {}),
    messages: [{ role: 'user', content: 'hi' }, ...step('one'), ...step('two')],
    tools: [{ type: 'function', function: { name: 'search' } }],
  })
  const request = `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nx-governor-session: ${session}\r\nContent-Length: ${body.length}\r\n\r\n${body}`
  return { ...(await send(request)), request }
}

async function send(request: string) {
  const client = connect(governor.url)
  client.write(request)
  return { client, wire: await asked() }
}

async function asked(): Promise<Wire> {
  const wire = await upstream.accept()
  expect((await wire.message()).isComplete).toBe(true)
  return wire
}

const answerOf = (message: object, finish: string) =>
  JSON.stringify({
    id: 'x',
    choices: [{ index: 0, message: { role: 'assistant', content: null, ...message }, finish_reason: finish }],
  })
const REFUSED = answerOf({ tool_calls: [call('three')] }, 'tool_calls')
const OTHER = answerOf({ tool_calls: [call('three', { name: 'read', arguments: '{ "n": 1.0 }' })] }, 'tool_calls')
const TEXT = answerOf({ content: 'I give up.' }, 'stop')

const JSON_HEAD =
  'HTTP/1.1 200 OK\r\nConnection: close\r\nX-Request-Id: 7\r\nContent-Type: application/json\r\nETag: "e"\r\nDigest: d\r\n'
const whole = (body: string | Buffer, more = '') =>
  Buffer.concat([
    Buffer.from(`${JSON_HEAD}${more}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n`),
    Buffer.from(body),
  ])

const event = (delta: object, finish: string | null = null) =>
  `data: ${JSON.stringify({ id: 'x', choices: [{ index: 0, delta, finish_reason: finish }] })}\n\n`
const calling = (called: object) => event({ role: 'assistant', tool_calls: [{ index: 0, ...called }] })
const STREAM_HEAD = 'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/event-stream\r\nX-Request-Id: 7\r\n'
const streamed = (...events: string[]) => {
  const body = events.join('')
  return `${STREAM_HEAD}Content-Length: ${Buffer.byteLength(body)}\r\n\r\n${body}`
}
const begun = (...events: string[]) => {
  const body = events.join('')
  return `${STREAM_HEAD}Transfer-Encoding: chunked\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n`
}
const REFUSED_STREAM = [calling(call('three')), event({}, 'tool_calls'), 'data: [DONE]\n\n']

const withoutOwn = (message: Message) => endToEnd(message).filter((field) => !/^x-governor-/i.test(field))
const verdictOf = (message: Message) => fieldOf(message, 'x-governor-verdict')

describe('a response without a blocked call', () => {
  it.each([
    ['JSON', false, () => whole(OTHER)],
    ['JSON in gzip, though none was asked for', false, () => whole(gzipSync(OTHER), 'Content-Encoding: gzip\r\n')],
    ['JSON in a coding that nobody knows', false, () => whole(OTHER, 'Content-Encoding: other\r\n')],
    ['JSON that is broken', false, () => whole('{"choices":')],
    ['an answer', false, () => whole(TEXT)],
    ['JSON where events were asked for', true, () => whole(OTHER)],
    [
      'events',
      true,
      () =>
        streamed(
          calling(call('three', { name: 'read', arguments: '{}' })),
          event({}, 'tool_calls'),
          'data: [DONE]\n\n',
        ),
    ],
    [
      'events with more after their end',
      true,
      () => streamed(event({ content: 'Hi' }), event({}, 'stop'), 'data: [DONE]\n\n', ': bye\n\n'),
    ],
    [
      'events without a last blank line',
      true,
      () =>
        streamed(calling(call('three', { name: 'read', arguments: '{}' })), event({}, 'tool_calls'), 'data: [DONE]\n'),
    ],
    [
      'events where JSON was asked for',
      false,
      () => streamed(calling(call('three', { name: 'read', arguments: '{}' })), 'data: [DONE]\n\n'),
    ],
    [
      'events in a coding that nobody knows',
      true,
      () => streamed('xyz').replace('X-Request-Id', 'Content-Encoding: other\r\nX-Request-Id'),
    ],
    ['no event', true, () => streamed()],
  ])('reaches the client as the provider sent it: %s', async (_, stream, reply) => {
    const bytes = Buffer.from(reply())
    const { client, wire } = await ask(stream)
    wire.write(bytes)
    const got = await client.message()
    const end = bytes.indexOf('\r\n\r\n')
    expect(got.line).toBe('HTTP/1.1 200 OK')
    expect(got.body).toEqual(bytes.subarray(end + 4))
    const fields = bytes.subarray(0, end).toString('latin1').split('\r\n').slice(1)
    expect(withoutOwn(got)).toEqual(fields.filter((field) => !/^(?:Content-Length|Connection)/.test(field)))
    expect(verdictOf(got)).toBe('allow')
  })
})

describe('trailers of a response', () => {
  const chunked = (head: string, body: string) =>
    `${head}Transfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n${body.length.toString(16)}\r\n${body}\r\n0\r\nX-Sum: 7\r\n\r\n`
  const EVENTS = [event({ content: 'Hi' }), event({}, 'stop'), 'data: [DONE]\n\n'].join('')

  it.each([
    ['JSON', false, chunked(JSON_HEAD, OTHER)],
    ['an answer', false, chunked(JSON_HEAD, TEXT)],
    ['events', true, chunked(STREAM_HEAD, EVENTS)],
    ['events with a call', true, chunked(STREAM_HEAD, calling(call('three', { name: 'read', arguments: '{}' })))],
    ['events in a coding that nobody knows', true, chunked(`${STREAM_HEAD}Content-Encoding: other\r\n`, 'xyz')],
  ])('reach the client where no call is blocked: %s', async (_, stream, reply) => {
    const { client, wire } = await ask(stream)
    wire.write(reply)
    expect((await client.message()).trailers).toEqual(['X-Sum: 7'])
  })

  it.each([
    ['JSON', false, chunked(JSON_HEAD, REFUSED), whole(TEXT)],
    ['events', true, chunked(STREAM_HEAD, REFUSED_STREAM.join('')), streamed(EVENTS)],
  ])('are neither announced nor sent where a call was blocked: %s', async (_, stream, refused, answer) => {
    const { client, wire } = await ask(stream)
    wire.write(refused)
    ;(await asked()).write(answer)
    const got = await client.message()
    expect(verdictOf(got)).toBe('block')
    expect(fieldOf(got, 'trailer')).toBeUndefined()
    expect(got.trailers).toEqual([])
  })
})

describe('a gzip response that nobody asked for', () => {
  it('is read and filtered, however large it is', async () => {
    const large = answerOf(
      {
        content: Array.from({ length: 40_000 }, (_, at) => `${at * 7919}`).join(' '),
        tool_calls: [call('three')],
      },
      'tool_calls',
    )
    const { client, wire } = await ask(false)
    wire.write(whole(gzipSync(large), 'Content-Encoding: gzip\r\n'))
    ;(await asked()).write(whole(TEXT))
    const got = await client.message()
    expect(fieldOf(got, 'content-encoding')).toBeUndefined()
    expect(got.body.toString()).toContain('I give up.')
    expect(got.body.toString()).not.toContain('tool_calls')
    expect(verdictOf(got)).toBe('block')
  })

  it('is read and filtered as a stream, however large it is', async () => {
    const { client, wire } = await ask(true)
    const words = Array.from({ length: 400 }, (_, at) => `${at * 7919}`).join(' ')
    const texts = Array.from({ length: 60 }, (_, at) => event({ content: `${at} ${words}` }))
    const body = gzipSync([event({ role: 'assistant', content: '' }), ...texts, ...REFUSED_STREAM].join(''))
    wire.write(
      Buffer.concat([
        Buffer.from(`${STREAM_HEAD}Content-Encoding: gzip\r\nContent-Length: ${body.length}\r\n\r\n`),
        body,
      ]),
    )
    ;(await asked()).write(streamed(event({ content: 'I give up.' }), event({}, 'stop'), 'data: [DONE]\n\n'))
    const got = await client.message()
    expect(fieldOf(got, 'content-encoding')).toBeUndefined()
    expect(got.isComplete).toBe(true)
    expect(got.body.toString()).toContain('I give up.')
  })
})

describe('a response that is larger than server.max_guarded_body', () => {
  const large = 'x'.repeat(700_000)
  const pieces = [0, 1].map((part) => event({ tool_calls: [{ index: 0, function: { arguments: `${part}${large}` } }] }))
  const largeStream = [calling(call('three')), ...pieces, event({}, 'tool_calls'), 'data: [DONE]\n\n']
  const largeWhole = answerOf({ content: large + large, tool_calls: [call('three')] }, 'tool_calls')

  it.each([false, true])('passes to the client unread (stream: %s)', async (stream) => {
    const { client, wire } = await ask(stream)
    wire.write(stream ? streamed(...largeStream) : whole(largeWhole))
    const got = await client.message()
    expect(got.body.equals(Buffer.from(stream ? largeStream.join('') : largeWhole))).toBe(true)
    expect(verdictOf(got)).toBe('allow')
  })

  it.each([false, true])('is unusable after the model was asked again (stream: %s)', async (stream) => {
    const { client, wire } = await ask(stream)
    wire.write(stream ? streamed(...REFUSED_STREAM) : whole(REFUSED))
    const again = await asked()
    again.write(stream ? streamed(...largeStream) : whole(largeWhole))
    // The model is asked once more, without the tool.
    const last = await asked()
    last.write(stream ? streamed(event({ content: 'Well.' }), event({}, 'stop'), 'data: [DONE]\n\n') : whole(TEXT))
    const got = await client.message()
    expect(got.body.toString()).toContain(stream ? 'Well.' : 'I give up.')
    expect(got.body.toString()).not.toContain('tool_calls"')
    again.socket.destroy()
  })
})

describe('a response that breaks off', () => {
  it.each([
    ['JSON', false, () => `${JSON_HEAD}Content-Length: 900\r\n\r\n${REFUSED}`],
    ['events', true, () => begun(...REFUSED_STREAM)],
  ])('before any content was shown is an error: %s', async (_, stream, reply) => {
    const { client, wire } = await ask(stream)
    wire.write(reply())
    wire.socket.end()
    expect((await client.message()).line).toBe('HTTP/1.1 502 Bad Gateway')
  })

  it('after some text was shown also breaks off for the client', async () => {
    const { client, wire } = await ask(true)
    wire.write(begun(event({ role: 'assistant', content: 'Let me' })))
    expect((await client.until('Let me')).toString()).toContain('200 OK')
    wire.socket.end()
    expect((await client.message()).isComplete).toBe(false)
  })

  it.each([
    ['breaks off', (wire: Wire) => wire.socket.end()],
    ['stays silent', () => undefined],
  ])('after the model was asked again is an error, and the blocked call stays blocked: it %s', async (_, act) => {
    for (const stream of [false, true]) {
      const { client, wire } = await ask(stream)
      wire.write(stream ? streamed(...REFUSED_STREAM) : whole(REFUSED))
      const again = await asked()
      again.write(
        stream ? begun(event({ role: 'assistant', content: '' })) : `${JSON_HEAD}Content-Length: 900\r\n\r\n{`,
      )
      act(again)
      const got = await client.message()
      expect(got.line).toMatch(/^HTTP\/1.1 50[24] /)
      expect(got.body.toString()).not.toContain('search')
      again.socket.destroy()
    }
  })

  it.each([
    ['in its text', [event({ role: 'assistant', content: 'Again' })]],
    ['in its call', [event({ content: 'Again' }), calling({ ...call('four'), function: { name: 'search' } })]],
    ['behind its call', [event({ content: 'Again' }), calling(call('four'))]],
    ['behind its last event', [event({ content: 'Again' }), calling(call('four')), ...REFUSED_STREAM.slice(1)]],
  ])('%s after text was shown and the model was asked again is replaced by the next response', async (_, events) => {
    const { client, wire } = await ask(true)
    wire.write(streamed(event({ role: 'assistant', content: 'Let me see.' }), ...REFUSED_STREAM))
    const again = await asked()
    again.write(begun(...events))
    again.socket.end()
    ;(await asked()).write(streamed(event({ content: 'I give up.' }), event({}, 'stop'), 'data: [DONE]\n\n'))
    const got = await client.message()
    const body = got.body.toString()
    expect(got.isComplete).toBe(true)
    const texts = [...body.matchAll(/"content":"(.*?)"/g)].map(([, text]) => text)
    expect(texts.join('')).toBe('Let me see.\\n\\nAgain\\n\\nI give up.')
    expect(body).not.toContain('search')
    expect(body.match(/"finish_reason":"/g)).toHaveLength(1)
    expect(body.match(/\[DONE\]/g)).toHaveLength(1)
  })

  it('at the end of a run is an error, and the next request gets the last answer', async () => {
    for (const stream of [false, true]) {
      const { client, wire, request } = await ask(stream)
      const refused = () => (stream ? streamed(...REFUSED_STREAM) : whole(REFUSED))
      wire.write(refused())
      ;(await asked()).write(refused())
      ;(await asked()).write(refused())
      ;(await asked()).socket.end()
      expect((await client.message()).line).toBe('HTTP/1.1 502 Bad Gateway')
      const back = await send(request)
      back.wire.write(refused())
      ;(await asked()).write(refused())
      ;(await asked()).write(refused())
      ;(await asked()).write(
        stream
          ? streamed(event({ role: 'assistant', content: 'So far.' }), event({}, 'stop'), 'data: [DONE]\n\n')
          : whole(answerOf({ content: 'So far.' }, 'stop')),
      )
      const got = await back.client.message()
      expect(got.body.toString()).toContain('So far.')
      expect(got.body.toString()).toContain('"terminal_state":"loop_detected"')
      expect(got.body.toString()).toContain('"has_final_answer":true')
    }
  })
})

describe('a client', () => {
  it('that leaves while the model is asked again aborts that request, and may send its own request again', async () => {
    const { client, wire, request } = await ask(true)
    wire.write(streamed(...REFUSED_STREAM))
    const again = await asked()
    client.socket.destroy()
    expect(await again.rest()).toHaveLength(0)
    again.socket.destroy()
    // A repeated request is not a further block: the model is asked again twice before the run ends.
    const back = await send(request)
    back.wire.write(streamed(...REFUSED_STREAM))
    ;(await asked()).write(streamed(...REFUSED_STREAM))
    ;(await asked()).write(
      streamed(event({ role: 'assistant', content: 'I give up.' }), event({}, 'stop'), 'data: [DONE]\n\n'),
    )
    const got = await back.client.message()
    expect(got.body.toString()).toContain('I give up.')
    expect(got.body.toString()).not.toContain('loop_detected')
  })
})
