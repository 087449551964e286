/** Bodies of upstreams that are read. */
import { expect, it } from 'vitest'
import { chunksOf } from '../../src/http/upstream-response.ts'

const CHUNK = 65_536

it('lets others run after each 64 KB of a body that is there at once', async () => {
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
