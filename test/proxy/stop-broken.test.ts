/** Last answers that cannot be read: a broken content coding, or an event that is too large. */
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { startBoth } from '../support/governor.ts'
import type { Answer } from '../support/provider.ts'
import { type Api, STOPPED, STREAM, send, TEXT } from '../support/stopped.ts'

const budget = { max_iterations: 1, adaptive: false }
const CODINGS = [
  ['gzip', gzipSync],
  ['br', brotliCompressSync],
  ['deflate', deflateSync],
] as const

/** Returns a response in a content coding whose bytes are broken from `from` on, as a share of its length. */
function broken(api: Api, stream: boolean, encoding: (typeof CODINGS)[number], from: number): Answer {
  const [name, encode] = encoding
  const whole = stream ? api.frames({ text: TEXT }).join('') : JSON.stringify(api.whole({ text: TEXT }))
  const body = Buffer.from(encode(whole))
  return {
    body: body.fill(0x55, Math.floor(body.length * from)),
    headers: { ...(stream ? STREAM : {}), 'content-encoding': name },
  }
}

describe.each(STOPPED)('a last answer over $name', (api) => {
  it.each(CODINGS)(
    'whose %s is broken is a failure of the provider, and the next request asks again',
    async (...encoding) => {
      for (const stream of [false, true]) {
        for (const from of [0, 0.5]) {
          const bad = broken(api, stream, encoding, from)
          const { url, events, until } = await startBoth((_, number) => (number === 1 ? bad : { text: TEXT }), {
            budget,
          })
          const first = await send(url, api, api.request, stream).catch(() => undefined)
          await until((event) => event.kind === 'request_ended')
          expect(first?.text ?? '').not.toContain('has_final_answer')
          if (first?.headers.get('content-type')?.includes('json')) expect(first.status).toBe(502)
          expect(events).toContainEqual(expect.objectContaining({ kind: 'request_ended', outcome: 'upstream_failed' }))
          expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
          expect((await send(url, api, api.request, stream)).text).toContain('"has_final_answer":true')
        }
      }
    },
  )

  it('never gives the client a part of an event that is too large to be read', async () => {
    const long = 'x'.repeat(17_000_000)
    for (const text of [long, `<think>${long}</think>Yes.`]) {
      const answer = { body: Buffer.from(api.frames({ text }).join('')), headers: STREAM }
      const { url, provider } = await startBoth(() => answer, { budget })
      const given = await send(url, api, api.request, true)
      expect(given.text.length).toBeLessThan(100_000)
      expect(given.text).toContain('"has_final_answer":false')
      expect(given.text).toContain('(Reached max iterations: 1)')
      expect(provider.requests.length).toBeGreaterThan(1)
    }
    // A response of Responses repeats its text: 68 MB, in a process that holds the rest of the tests too.
  }, 240_000)
})
