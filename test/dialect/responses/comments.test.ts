import { describe, expect, it } from 'vitest'
import { responses } from '../../../src/dialect/responses/index.ts'
import { createFrameReader } from '../../../src/sse/frames.ts'
import { eventTexts, responseEvents, responseObject } from '../../support/responses.ts'

const CALLS = [{ name: 'search', arguments: { query: 'q' } }]

/** Returns what a client gets of a response without a blocked call. */
function passed(text: string): string {
  const filter = responses.openFilter()
  const reader = createFrameReader()
  const frames = [...reader.push(Buffer.from(text)), ...reader.end()]
  const out = frames.flatMap((frame) => filter.push(frame))
  filter.endResponse()
  return Buffer.concat([...out, ...filter.release(new Set())]).toString()
}

describe('a Responses stream without a blocked call', () => {
  it.each([
    ['text', { text: 'It is 42.' }],
    ['a call', { calls: CALLS }],
    ['both', { text: 'Wait.', reasoning: 'x', calls: CALLS }],
  ])('a stream without a blocked call keeps every byte, wherever it has comments: %s', (_, answer) => {
    const events = eventTexts(responseEvents(responseObject({ model: 'm', messages: [] }, answer, 1)))
    for (let at = 0; at <= events.length; at++) {
      const text = events.toSpliced(at, 0, ': keep-alive\n\n').join('')
      expect(passed(text)).toBe(text)
    }
  })
})
