/** How often the text of a last answer is read while it is held. */
import { describe, expect, it } from 'vitest'
import { isRealAnswer } from '../../src/core/conversation/real-answer.ts'
import { terminalOf } from '../../src/core/terminal.ts'
import { chat as chatDialect } from '../../src/dialect/chat/index.ts'
import { messages as messagesDialect } from '../../src/dialect/messages/index.ts'
import { responses as responsesDialect } from '../../src/dialect/responses/index.ts'
import { createFrameReader } from '../../src/sse/frames.ts'
import { charactersRead } from '../support/characters-read.ts'
import { anthropic, chat, responses } from '../support/stopped.ts'

const APIS = [
  { ...chat, dialect: chatDialect },
  { ...anthropic, dialect: messagesDialect },
  { ...responses, dialect: responsesDialect },
]
type Tested = (typeof APIS)[number]

/** How a text begins that is held, and the piece that follows again and again. */
const HELD = [
  ['reasoning', '<think>', 'hm '],
  ['reasoning in single characters', '<think>', 'h'],
  ['a long closing mark that never ends', '<start_function_call>', '<end_function'],
  ['white space', ' ', '    '],
  ['line breaks', '\n', '\n'],
  ['many reasonings', '<think>', 'a</think><think>'],
  ['white space before a call in JSON', '```json', '   \n'],
  ['white space within a call in JSON', '{', ' '],
  ['a call in JSON', '{"name":', '"a", "b": 1,'],
  ['a call as text', '<tool_call>', '{"a": 1}'],
  ['a call as text without an end', '[TOOL_CALLS]', '[1]'],
] as const

const terminal = (answered: boolean) => terminalOf({ meter: { name: 'iterations', used: 2, max: 1 } }, 'abc', answered)

/** Returns the characters of a text in `count` pieces, and how many are read while its response streams and when it ends. */
function readOfStream({ dialect, frames }: Tested, first: string, piece: string, count: number) {
  const escaped = (text: string) => JSON.stringify(text).slice(1, -1)
  const sent = frames({ text: `First ${'Piece '.repeat(count)}` }).map((frame) =>
    frame.replaceAll('First ', () => escaped(first)).replaceAll('Piece ', () => escaped(piece)),
  )
  const events = sent.flatMap((frame) => createFrameReader().push(Buffer.from(frame)))
  const stream = dialect.openStream(true, false, true)
  return charactersRead(() => {
    for (const event of events) stream.push(event)
    stream.endResponse()
    stream.finish(terminal, 'Nothing.', undefined)
  })
}

describe.each(APIS)('the text of a last answer over $name', (api) => {
  it.each(HELD)('is read once while it is held: %s, streamed', (_, first, piece) => {
    const [once, twice] = [2_000, 4_000].map((count) => readOfStream(api, first, piece, count))
    expect(Number(twice) / Number(once)).toBeLessThan(2.2)
  })

  it.each(HELD)('is read once in a whole body: %s', (_, first, piece) => {
    const [once, twice] = [2_000, 4_000].map((count) => {
      const body = Buffer.from(JSON.stringify(api.whole({ text: first + piece.repeat(count) })))
      return charactersRead(() => {
        const read = api.dialect.readAnswer(body)
        api.dialect.writeAnswer(body, {
          terminal: terminal(false),
          dropCalls: true,
          earlier: [],
          text: 'Nothing.',
        })
        isRealAnswer(read?.text ?? '')
      })
    })
    expect(Number(twice) / Number(once)).toBeLessThan(2.2)
  })
})
