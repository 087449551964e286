/** Bodies of upstreams that are read. */
import zlib from 'node:zlib'
import { describe, expect, it } from 'vitest'
import { chunksOf, plainBody } from '../../src/http/upstream-response.ts'

const CHUNK = 65_536

it('reading a body that is there at once lets others run after each 64 KB', async () => {
  let turns = 0
  let isOver = false
  const count = () => {
    turns++
    if (!isOver) setImmediate(count)
  }
  setImmediate(count)
  const waiting = Array.from({ length: 50 }, () => Buffer.alloc(CHUNK))
  const body = {
    waiting,
    length: 50 * CHUNK,
    ending: { trailers: [] },
    isPaused: false,
    holds: 0,
    resume: () => undefined,
  }
  const head = { status: 200, reason: 'OK', headers: [] }
  let chunks = 0
  for await (const chunk of chunksOf({ head, body, abort: () => undefined })) chunks += chunk.length / CHUNK
  isOver = true
  expect(chunks).toBe(50)
  expect(turns).toBeGreaterThanOrEqual(49)
})

describe('an encoded body', () => {
  const begin = (first: Buffer) => {
    const controller = new AbortController()
    const body = { waiting: [first], length: first.length, isPaused: false, holds: 0, resume: () => undefined }
    const head = { status: 200, reason: 'OK', headers: ['content-encoding', 'gzip'] }
    return { response: { head, body, abort: () => controller.abort() }, signal: controller.signal }
  }

  it('whose reader stops early is aborted, though the upstream is silent', async () => {
    const { response, signal } = begin(zlib.gzipSync('a'.repeat(300_000)))
    for await (const chunk of plainBody(response) ?? []) {
      expect(chunk.length).toBe(CHUNK)
      break
    }
    expect(signal.aborted).toBe(true)
  })

  it('that is in another coding than it says is aborted, though the upstream is silent', async () => {
    const { response, signal } = begin(Buffer.from('no gzip at all'))
    await expect(plainBody(response)?.next()).rejects.toMatchObject({ failure: { code: 'upstream_undecodable' } })
    expect(signal.aborted).toBe(true)
  })
})
