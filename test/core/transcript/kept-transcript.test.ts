import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import {
  joinedText,
  MAX_ENTRIES,
  MAX_ENTRY_TEXT,
  MAX_TRANSCRIPT_TEXT,
  type ShownText,
  type TranscriptEntry,
  textsOf,
  withAnswerText,
  withShown,
} from '../../../src/core/conversation/kept-transcript.ts'
import { called, conversationOf, type Message, registry, result, said, system, user } from '../transcript.ts'

const NOTHING: readonly TranscriptEntry[] = []

const linesOf = (entries: readonly { readonly role: string; readonly text: string }[]) =>
  entries.map(({ role, text }) => `${role}: ${text}`)

const shows = (messages: readonly Message[]): readonly ShownText[] => textsOf(conversationOf(messages), registry)

/** Adds what a request shows; `isNew`: a user's message ends it and begins a run. */
const request = (entries: readonly TranscriptEntry[], messages: readonly Message[], isNew = false, thread = 1) =>
  withShown(entries, { thread, texts: shows(messages), isContinued: false, endsInNew: isNew }, 1)

const answer = (entries: readonly TranscriptEntry[], text: string, name: string, thread = 1) =>
  withAnswerText(entries, { thread, text, at: 2, request: name, callsNothing: true })

describe('what a request shows', () => {
  it('is what the user and the assistant said, without system texts, tool results and calls', () => {
    const messages = [
      system('Be good.'),
      user('Find it.'),
      { ...called('a'), content: 'Let me look.' },
      result('a', 'a secret result'),
      called('b'),
      result('b'),
      said('Found.'),
      user('Thanks.'),
    ]
    expect(shows(messages)).toEqual([
      { role: 'user', text: 'Find it.' },
      { role: 'assistant', text: 'Let me look.' },
      { role: 'assistant', text: 'Found.', callsNothing: true },
      { role: 'user', text: 'Thanks.' },
    ])
  })

  it.each([
    '<system-reminder>Use the todo list.</system-reminder>',
    'This session is being continued from a previous conversation that ran out of context.',
    "You've reached the maximum number of tool-calling iterations allowed. Please provide a final response summarizing what you've found and accomplished so far, without calling any more tools.",
    'Output token limit hit. Resume directly, please.',
  ])('leaves out what a harness wrote: %s', (text) => {
    expect(linesOf(shows([user('Find it.'), said('Yes.'), user(text)]))).toEqual(['user: Find it.', 'assistant: Yes.'])
  })

  it('leaves out reasoning alone, calls written as text, and the beginning of an answer that the client wrote', () => {
    const messages = [
      user('Go.'),
      { ...called('a'), content: '<think>what now</think>' },
      result('a'),
      { ...called('b'), content: '<tool_call>{"name": "x"}</tool_call>' },
      result('b'),
      said('The answer is'),
    ]
    expect(linesOf(shows(messages))).toEqual(['user: Go.'])
  })
})

describe('the texts of a request', () => {
  it('are read from the newest back, until they are as long as a transcript may be', () => {
    const long = 'x'.repeat(MAX_TRANSCRIPT_TEXT / 8)
    const read = shows(Array.from({ length: 20 }, (_, at) => user(`${at} ${long}`)))
    expect(read.map(({ text }) => text.split(' ')[0])).toEqual(['12', '13', '14', '15', '16', '17', '18', '19'])
  })

  it('of several responses are one text, without empty ones', () => {
    expect(joinedText(['', 'One.', '', 'Two.'])).toBe('One.\n\nTwo.')
    expect(joinedText(['', ''])).toBe('')
  })
})

describe('a kept transcript', () => {
  it('holds each text once, however often requests show it', () => {
    const first = [user('Find it.')]
    const second = [...first, { ...called('a'), content: 'Looking.' }, result('a')]
    const third = [...second, said('Found.'), user('And then?')]
    let entries = request(NOTHING, first, true)
    entries = answer(request(entries, first), 'Looking.', 'one')
    entries = answer(request(entries, second), 'Found.', 'two')
    entries = answer(request(entries, third, true), 'Nothing.', 'three')
    expect(linesOf(entries)).toEqual([
      'user: Find it.',
      'assistant: Looking.',
      'assistant: Found.',
      'user: And then?',
      'assistant: Nothing.',
    ])
    expect(entries.map(({ number }) => number)).toEqual([1, 2, 3, 4, 5])
  })

  it('learns from the history what was said before it was kept', () => {
    const history = [user('Find it.'), said('Found.'), user('More?'), said('Yes.'), user('Show it.')]
    expect(linesOf(request(NOTHING, history, true))).toEqual(linesOf(shows(history)))
  })

  it('contains an answer once, even if the client sends it back in a changed form', () => {
    const entries = answer(request(NOTHING, [user('Go.')], true), '<think>hm</think>\n\nFound  it.', 'one')
    const next = request(entries, [user('Go.'), said('Found it.'), user('Thanks.')], true)
    expect(linesOf(next)).toEqual(['user: Go.', 'assistant: <think>hm</think>\n\nFound  it.', 'user: Thanks.'])
  })

  it('puts another answer to the same request in the place of the one before', () => {
    let entries = answer(request(NOTHING, [user('Go.')], true), 'Found i', 'one')
    entries = answer(entries, 'Found it.', 'one')
    expect(linesOf(entries)).toEqual(['user: Go.', 'assistant: Found it.'])
  })

  it('keeps the lanes of agents apart', () => {
    let entries = request(NOTHING, [user('Go.')], true, 1)
    entries = request(entries, [user('Go.')], true, 2)
    entries = answer(entries, 'One.', 'a', 1)
    entries = answer(entries, 'Two.', 'b', 2)
    entries = request(entries, [user('Go.'), said('One.'), user('On.')], true, 1)
    expect(entries.map(({ thread, text }) => `${thread} ${text}`)).toEqual([
      '1 Go.',
      '2 Go.',
      '1 One.',
      '2 Two.',
      '1 On.',
    ])
  })

  it('adds all that a request brings whose history the provider keeps', () => {
    const entries = answer(request(NOTHING, [user('Continue.')], true), 'Done.', 'one')
    const next = withShown(
      entries,
      { thread: 1, texts: shows([user('Continue.')]), isContinued: true, endsInNew: true },
      3,
    )
    expect(linesOf(next)).toEqual(['user: Continue.', 'assistant: Done.', 'user: Continue.'])
  })

  it('shows a changed message of the user beside the one that it replaced', () => {
    const entries = answer(request(NOTHING, [user('Find it.'), said('Yes?'), user('A.')], true), 'No A.', 'one')
    const next = request(entries, [user('Find it.'), said('Yes?'), user('B.')], true)
    expect(linesOf(next).slice(-3)).toEqual(['user: A.', 'assistant: No A.', 'user: B.'])
  })

  it('is added whole where a client shows other texts in the same order', () => {
    const entries = answer(request(NOTHING, [user('Find it.')], true), 'Found.', 'one')
    const next = request(entries, [user('Where is she?'), said('At home.'), user('Why?')], true)
    expect(linesOf(next)).toEqual([
      'user: Find it.',
      'assistant: Found.',
      'user: Where is she?',
      'assistant: At home.',
      'user: Why?',
    ])
  })

  it('is as long as is allowed, and says so', () => {
    let entries = NOTHING
    for (let at = 0; at < MAX_ENTRIES + 50; at++) entries = answer(entries, `Answer ${at}`, `${at}`)
    expect(entries).toHaveLength(MAX_ENTRIES)
    expect(entries[0]).toMatchObject({ number: 51, text: 'Answer 50' })
    for (let at = 0; at < 8; at++) entries = answer(entries, '🎉'.repeat(MAX_ENTRY_TEXT), `long ${at}`)
    const length = entries.reduce((sum, { text }) => sum + text.length, 0)
    expect(length).toBeLessThanOrEqual(MAX_TRANSCRIPT_TEXT)
    expect(entries).toHaveLength(4)
    for (const { text, truncated } of entries) {
      expect(truncated).toBe(true)
      expect(text).toHaveLength(MAX_ENTRY_TEXT)
    }
    const [odd] = answer(NOTHING, `x${'🎉'.repeat(MAX_ENTRY_TEXT)}`, 'odd')
    expect(odd?.text.endsWith('🎉')).toBe(true)
  })
})

interface Turn {
  readonly text: string
  /** Texts of its answers; all but the last call a tool. */
  readonly answers: readonly string[]
  /** How many of the newest messages a compaction leaves before this turn, and how it writes the rest. */
  readonly leaves: number | undefined
}

const words = fc.constantFrom('continue', 'yes', 'Done.', 'Found it.', 'no')
const turns: fc.Arbitrary<Turn[]> = fc.array(
  fc.record({
    text: words,
    answers: fc.array(fc.oneof(words, fc.constant('')), { minLength: 1, maxLength: 4 }),
    leaves: fc.option(fc.nat(6), { nil: undefined }),
  }),
  { minLength: 1, maxLength: 8 },
)

/** Plays a conversation; returns what is kept of it, and what was said. `sees`: Governor gets to see the answer of this number. */
function play(conversation: readonly Turn[], sees: (call: number) => boolean) {
  let entries = NOTHING
  let history: Message[] = []
  const truth: string[] = []
  let calls = 0
  for (const { text, answers, leaves } of conversation) {
    if (leaves !== undefined) {
      const summary = user('This session is being continued from a previous conversation that ran out.')
      history = [summary, ...(leaves === 0 ? [] : history.slice(-leaves))]
    }
    history = [...history, user(text)]
    truth.push(`user: ${text}`)
    entries = request(entries, history, true)
    for (const [at, reply] of answers.entries()) {
      const id = `c${++calls}`
      entries = request(entries, history)
      if (sees(calls)) entries = answer(entries, reply, id)
      if (reply !== '') truth.push(`assistant: ${reply}`)
      const isLast = at === answers.length - 1
      const content = reply === '' ? null : `${reply} \n`
      history = [...history, { ...(isLast ? said('') : called(id)), content }, ...(isLast ? [] : [result(id)])]
    }
  }
  const known = linesOf(request(entries, history)).map((line) => line.trim())
  return { known, truth }
}

describe('a kept transcript of any conversation', () => {
  it('holds what was said, once and in order, wherever the history is compacted', () => {
    fc.assert(
      fc.property(turns, (conversation) => {
        const { known, truth } = play(conversation, () => true)
        expect(known).toEqual(truth)
      }),
      { numRuns: 300 },
    )
  })

  it('contains every message once and in order, even if Governor did not see some of the answers', () => {
    fc.assert(
      fc.property(turns, fc.func(fc.boolean()), (conversation, sees) => {
        const whole = conversation.map((turn) => ({ ...turn, leaves: undefined }))
        // The end of a conversation that is an answer looks like one that the client wrote for the model.
        const last = whole.reduce((sum, { answers }) => sum + answers.length, 0)
        const { known, truth } = play(whole, (call) => call === last || sees(call))
        expect(known).toEqual(truth)
      }),
      { numRuns: 300 },
    )
  })
})
