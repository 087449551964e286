/** An upstream that breaks off at every point of its answer, in front of the built program. */
import { describe, expect, it } from 'vitest'
import { START, TOOLS } from '../support/agent.ts'
import { startProcess } from '../support/process.ts'
import { chunks, completion } from '../support/provider.ts'
import { connect, fieldOf, type Message, type RawUpstream, startRaw, type Wire } from '../support/raw.ts'

const ASKED = { model: 'gpt-test', messages: START, tools: TOOLS, stream: true }
const ANSWER = { text: 'Nobody knows.', calls: [{ name: 'search', arguments: { query: 'all' } }] }
const CHUNKED = 'Transfer-Encoding: chunked\r\n\r\n'

const inChunks = (parts: readonly string[]) =>
  [...parts.map((part) => `${Buffer.byteLength(part).toString(16)}\r\n${part}\r\n`), '0\r\n\r\n'].join('')

const WHOLE = JSON.stringify(completion(ASKED, ANSWER, 1))

/** Whole answers as they stand on the wire. */
const ANSWERS = [
  [
    'a body with a length',
    `HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: ${WHOLE.length}\r\n\r\n${WHOLE}`,
  ],
  ['events', `HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n${CHUNKED}${inChunks(chunks(ASKED, ANSWER, 1))}`],
] as const

/** The ways to break off; each is tried at every second of the points. */
const BREAKS = [
  ['resets', (wire: Wire) => wire.socket.resetAndDestroy(), 0],
  ['closes', (wire: Wire) => wire.socket.end(), 1],
] as const

/** Returns a request of an agent that names its session. */
function requestOf(session: string, path = '/v1/chat/completions'): string {
  const body = JSON.stringify(ASKED)
  return `POST ${path} HTTP/1.1\r\nHost: a\r\nX-Governor-Session: ${session}\r\nContent-Length: ${body.length}\r\n\r\n${body}`
}

async function sent(url: string, request: string): Promise<Message> {
  const client = connect(url)
  client.write(request)
  const message = await client.message()
  client.socket.destroy()
  return message
}

/** Has the upstream answer each request with what `bytesOf` returns, and break the connection off after it. */
function breakEach(upstream: RawUpstream, bytesOf: () => string, end: (wire: Wire) => unknown): void {
  const loop = async () => {
    for (;;) {
      const wire = await upstream.accept()
      await wire.message()
      const bytes = bytesOf()
      // The connection ends once the bytes are with the system: a reset may still overtake them.
      if (bytes === '') end(wire)
      else wire.socket.write(bytes, 'latin1', () => end(wire))
    }
  }
  loop().catch(() => undefined)
}

describe.each(BREAKS)('an upstream that %s its connection', (_, end, turn) => {
  it.each(ANSWERS)(
    'at any point of %s never seems to have answered, and the request can be sent again',
    async (_name, whole) => {
      const upstream = await startRaw()
      let bytes = ''
      breakEach(upstream, () => bytes, end)
      const governor = await startProcess(upstream.url)
      const headEnd = whole.indexOf('\r\n\r\n') + 4
      const bodyEnd = whole.length
      const cuts = new Set([0, 1, headEnd - 1, headEnd, headEnd + 1, bodyEnd - 1])
      for (let at = 5 + 11 * turn; at < bodyEnd; at += 22) cuts.add(at)
      for (const at of cuts) {
        bytes = whole.slice(0, at)
        const message = await sent(governor.url, requestOf('one'))
        // What the upstream did not finish is not finished for the client either.
        const isWhole = message.isComplete && message.line.includes(' 200 ')
        expect(isWhole, `cut at ${at}`).toBe(false)
        if (at < headEnd) {
          expect(message.line).toBe('HTTP/1.1 502 Bad Gateway')
          expect(JSON.parse(message.body.toString())).toMatchObject({
            error: { type: 'api_error', message: expect.stringContaining('could not get an answer') },
          })
        }
        if (message.line !== '') expect(fieldOf(message, 'x-governor-iteration')).toBe('1/300')
      }
      bytes = whole
      const last = await sent(governor.url, requestOf('one'))
      expect(last).toMatchObject({ line: 'HTTP/1.1 200 OK', isComplete: true })
      expect(fieldOf(last, 'x-governor-iteration')).toBe('1/300')
      const failed = (method: string, status: number) =>
        `governor_requests_total{upstream="openai",dialect="chat",method="${method}",status="${status}",outcome="upstream_failed"}`
      const counts = [await governor.metric(failed('POST', 502)), await governor.metric(failed('POST', 200))]
      expect(counts.reduce((sum, count) => sum + count)).toBe(cuts.size)
    },
  )
})

/** A model call of an agent whose budget of one iteration is used up. */
const AFTER_ONE = [
  ...START,
  {
    role: 'assistant',
    content: null,
    tool_calls: [{ id: 'c1', type: 'function', function: ANSWER.calls[0] }],
  },
  { role: 'tool', tool_call_id: 'c1', content: 'nothing' },
]

/** Returns the text of an answer, and the reason for which the run ended. */
function finalOf({ body }: Message): { readonly text: string; readonly reason: unknown } {
  const events = body.toString().split('\n\n')
  const parts = events.filter((event) => event.startsWith('data: {')).map((event) => JSON.parse(event.slice(6)))
  const text = parts.map(({ choices: [choice] }) => choice?.delta?.content ?? '').join('')
  return { text, reason: parts.findLast(({ governor }) => governor)?.governor.terminal_reason }
}

describe.each(BREAKS)('an upstream that %s its connection while it gives the last answer of a run', (_, end, turn) => {
  it('leaves the run with one end, which every later request gets', async () => {
    const upstream = await startRaw()
    const answer = { text: 'All that I found is in the library.' }
    const events = inChunks(chunks(ASKED, answer, 1))
    const whole = `HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n${CHUNKED}${events}`
    let bytes = ''
    let asked = 0
    breakEach(
      upstream,
      () => {
        asked++
        return bytes
      },
      end,
    )
    const governor = await startProcess(upstream.url, { budget: { max_iterations: 1 } })
    const body = JSON.stringify({ ...ASKED, messages: AFTER_ONE })
    const cuts: number[] = []
    for (let at = 17 * turn; at < whole.length; at += 34) cuts.push(at)
    for (const at of cuts) {
      const request = `POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX-Governor-Session: ${at}\r\nContent-Length: ${body.length}\r\n\r\n${body}`
      bytes = whole.slice(0, at)
      const first = await sent(governor.url, request)
      const isAnswer = (message: Message) => message.isComplete && message.line === 'HTTP/1.1 200 OK'
      bytes = whole
      const second = isAnswer(first) ? first : await sent(governor.url, request)
      expect(isAnswer(second), `cut at ${at}`).toBe(true)
      expect(finalOf(second)).toEqual({ text: expect.any(String), reason: 'max_iterations' })
      expect(finalOf(second).text).not.toBe('')
      const before = asked
      const last = await sent(governor.url, request)
      expect(isAnswer(last)).toBe(true)
      expect(finalOf(last), `cut at ${at}`).toEqual(finalOf(second))
      expect(asked).toBe(before)
    }
  })
})
