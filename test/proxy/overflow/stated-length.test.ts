/** An error event in a stream whose head states its length. */
import { afterAll, beforeAll, expect, it } from 'vitest'
import { type Answering, closeRaw, connect, listenAnswering, openGovernor } from '../../support/raw.ts'

const MESSAGE = "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens."
const EVENTS = `data: {"id":"c","choices":[]}\n\ndata: {"error":{"message":"${MESSAGE}","code":"context_length_exceeded"}}\n\n`
const BODY = '{"model":"m","stream":true,"messages":[{"role":"user","content":"hi"}]}'

let upstream: Answering
let governor: { url: string; close(): Promise<void> }

beforeAll(async () => {
  upstream = await listenAnswering()
  governor = await openGovernor(upstream.url)
})
afterAll(() => closeRaw(governor, upstream))

it('a stream that states its length keeps it when it ends in an overflow, and the next response begins behind it', async () => {
  upstream.reply = `HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: ${EVENTS.length}\r\n\r\n${EVENTS}`
  const client = connect(governor.url)
  for (let at = 0; at < 2; at++) {
    client.write(`POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: ${BODY.length}\r\n\r\n${BODY}`)
    const { line, body, isComplete } = await client.message()
    expect(line).toBe('HTTP/1.1 200 OK')
    expect(body.toString()).toBe(EVENTS)
    expect(isComplete).toBe(true)
  }
})
