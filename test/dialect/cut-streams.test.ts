/** A stream that follows after blocked calls and ends anywhere: what the client has of it spoils nothing that comes after. */
import { describe, expect, it } from 'vitest'
import { terminalOf } from '../../src/core/terminal.ts'
import { chat as chatDialect } from '../../src/dialect/chat/index.ts'
import { messages as messagesDialect } from '../../src/dialect/messages/index.ts'
import { responses as responsesDialect } from '../../src/dialect/responses/index.ts'
import { createFrameReader, dataOf, type Frame, isWhole } from '../../src/sse/frames.ts'
import type { Answer } from '../support/provider.ts'
import { anthropic, chat, responses } from '../support/stopped.ts'

const APIS = [
  { ...chat, dialect: chatDialect },
  { ...anthropic, dialect: messagesDialect },
  { ...responses, dialect: responsesDialect },
]
type Tested = (typeof APIS)[number]

const CALLS = [{ name: 'search', arguments: { query: 'the same' } }]
const FIRST: readonly Answer[] = [{ calls: CALLS }, { text: 'Let me look.', calls: CALLS }]
const SECOND: readonly Answer[] = [{ text: 'It is 42.' }, { text: 'Once more.', calls: CALLS }]

const framesOf = (bytes: Buffer): Frame[] => {
  const reader = createFrameReader()
  return [...reader.push(bytes), ...reader.end()]
}

const terminal = (answered: boolean) =>
  terminalOf({ meter: { name: 'iterations', used: 2, max: 1 }, reason: 'loop_guard' }, 'abc', answered)

/** Returns the events that are not whole, or have something else than JSON. No assertion for each: there are a million. */
function brokenIn(bytes: Buffer): string[] {
  const isBroken = (frame: Frame) => {
    // One more empty line is no event.
    if (!isWhole(frame) && frame.raw.toString().trim() !== '') return true
    const data = dataOf(frame)
    try {
      if (data !== undefined && data !== '[DONE]') JSON.parse(data)
      return false
    } catch {
      return true
    }
  }
  return framesOf(bytes).flatMap((frame) => (isBroken(frame) ? [frame.raw.toString()] : []))
}

/** Sends the first response, whose calls are blocked, and the beginning of the second one; returns the client's bytes. */
function begun({ dialect, frames }: Tested, first: Answer, second: Buffer) {
  const filter = dialect.openFilter()
  const sent = framesOf(Buffer.from(frames(first).join(''))).flatMap((frame) => filter.push(frame))
  if (filter.endResponse()?.calls.length !== 1) throw new Error('the first response has a call')
  sent.push(...framesOf(second).flatMap((frame) => filter.push(frame)))
  return { filter, sent, next: filter.endResponse() }
}

/** Bytes between two cuts inside a line: all of these leave the reader with a part of a line. */
const STRIDE = 16

/** Where a stream is cut: at the beginning and the end of each line, and inside it, elsewhere in each case. */
function cutsOf(stream: Buffer, phase: number): number[] {
  const nearLineEnd = (at: number) => stream.subarray(Math.max(0, at - 3), at + 2).includes('\n')
  return Array.from(stream.keys()).filter((at) => at % STRIDE === phase % STRIDE || nearLineEnd(at))
}

const CASES = APIS.flatMap((api) =>
  FIRST.flatMap((first) => SECOND.map((second) => ({ name: api.name, api, first, second }))),
).map((one, phase) => ({ ...one, phase }))

describe.each(CASES)('$name: after a blocked call in $first, a stream of $second', ({ api, first, second, phase }) => {
  const whole = Buffer.from(api.frames(second).join(''))
  const cuts = cutsOf(whole, phase)

  it('may end at any byte before the first response goes to the client', () => {
    for (const cut of cuts) {
      const { filter, sent } = begun(api, first, whole.subarray(0, cut))
      expect(brokenIn(Buffer.concat([...sent, ...filter.release(new Set())]))).toEqual([])
    }
  })

  it('may end at any byte before the run is ended by a last answer', () => {
    for (const cut of cuts) {
      const { filter, sent } = begun(api, first, whole.subarray(0, cut))
      const [opening, answer] = filter.becomeAnswer(false)
      const last = framesOf(Buffer.from(api.frames({ text: 'I give up.' }).join('')))
      sent.push(...opening, ...last.flatMap((frame) => answer.push(frame)))
      expect(answer.endResponse()).toBe('answered')
      expect(brokenIn(Buffer.concat([...sent, ...answer.finish(terminal, undefined)]))).toEqual([])
    }
  })
})
