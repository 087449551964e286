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

/** Expects whole events only, each with JSON or nothing. */
function expectWhole(bytes: Buffer): void {
  for (const frame of framesOf(bytes)) {
    // One more empty line is no event.
    expect(isWhole(frame) || frame.raw.toString().trim() === '').toBe(true)
    const data = dataOf(frame)
    if (data !== undefined && data !== '[DONE]') expect(() => JSON.parse(data)).not.toThrow()
  }
}

/** Sends the first response, whose calls are blocked, and the beginning of the second one; returns the client's bytes. */
function begun({ dialect, frames }: Tested, first: Answer, second: Buffer) {
  const filter = dialect.openFilter()
  const sent = framesOf(Buffer.from(frames(first).join(''))).flatMap((frame) => filter.push(frame))
  expect(filter.endResponse()?.calls).toHaveLength(1)
  sent.push(...framesOf(second).flatMap((frame) => filter.push(frame)))
  return { filter, sent, next: filter.endResponse() }
}

const CASES = APIS.flatMap((api) =>
  FIRST.flatMap((first) => SECOND.map((second) => ({ name: api.name, api, first, second }))),
)

describe.each(CASES)('$name: after a blocked call in $first, a stream of $second', ({ api, first, second }) => {
  const whole = Buffer.from(api.frames(second).join(''))

  it('may end at any byte before the first response goes to the client', () => {
    for (let cut = 0; cut < whole.length; cut++) {
      const { filter, sent } = begun(api, first, whole.subarray(0, cut))
      expectWhole(Buffer.concat([...sent, ...filter.release(new Set())]))
    }
  })

  it('may end at any byte before the run is ended by a last answer', () => {
    for (let cut = 0; cut < whole.length; cut++) {
      const { filter, sent } = begun(api, first, whole.subarray(0, cut))
      const [opening, answer] = filter.becomeAnswer(false)
      const last = framesOf(Buffer.from(api.frames({ text: 'I give up.' }).join('')))
      sent.push(...opening, ...last.flatMap((frame) => answer.push(frame)))
      expect(answer.endResponse()).toBe('answered')
      expectWhole(Buffer.concat([...sent, ...answer.finish(terminal, undefined)]))
    }
  })
})
