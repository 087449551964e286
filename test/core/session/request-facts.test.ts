import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { SUMMARY_REQUESTS } from '../../../src/core/harness/texts.ts'
import { beginningsOf, isAgentic } from '../../../src/core/session/request-facts.ts'
import {
  called,
  conversationOf,
  type Message,
  registry,
  requestFacts,
  result,
  said,
  steps,
  system,
  user,
} from '../transcript.ts'

const REMINDER = '<system-reminder>Mind the style guide.</system-reminder>'
const TASK = [system('You are an agent.'), user('Fix the bug.')]
const [SUMMARY_REQUEST = ''] = SUMMARY_REQUESTS

/** A step whose call loads a skill, and what the harness says after its result. */
const loading = (skill: string, ...texts: string[]): Message[] => {
  const call = { id: 's1', type: 'function', function: { name: 'skill', arguments: JSON.stringify({ skill }) } }
  const content = texts.map((text) => ({ type: 'text', text }))
  return [{ role: 'assistant', content: null, tool_calls: [call] }, result('s1', 'Loaded.'), user(content)]
}

const legacyCall: Message = {
  role: 'assistant',
  content: null,
  function_call: { name: 'search', arguments: '{}' },
}
const legacyResult: Message = { role: 'function', name: 'search', content: 'ok' }

describe('the iteration that a transcript shows', () => {
  it.each<[string, number, Message[]]>([
    ['is 1 before the first answer', 1, TASK],
    ['counts assistant messages since the last human message', 4, [...TASK, ...steps('a', 3)]],
    ['starts again with a human message', 1, [...TASK, ...steps('a', 3), said('Done.'), user('Now the tests.')]],
    ['starts again with the same words', 2, [...TASK, ...steps('a', 3), user('Fix the bug.'), ...steps('b', 1)]],
    ['goes on after a reminder in the name of the user', 3, [...TASK, ...steps('a', 2), user(REMINDER)]],
    [
      'goes on after a picture that a tool gave',
      3,
      [
        ...TASK,
        ...steps('a', 2),
        user([
          { type: 'text', text: 'Attached image(s) from tool result:' },
          { type: 'image_url', image_url: { url: 'data:' } },
        ]),
      ],
    ],
    [
      'goes on after what stands for a picture that the model cannot see',
      3,
      [
        ...TASK,
        ...steps('a', 2),
        user([
          { type: 'text', text: 'Attached media from tool result:' },
          {
            type: 'text',
            text: 'ERROR: Cannot read "a b.png" (this model does not support image input). Inform the user.',
          },
        ]),
      ],
    ],
    [
      'goes on after results in text of calls in text',
      3,
      [
        ...TASK,
        said("Calling tools:\n[{'id': 'c1', 'type': 'function'}]"),
        user([{ type: 'text', text: 'Observation:\nthree files' }]),
        said("One more.\nCalling tools:\n[{'id': 'c2', 'type': 'function'}]"),
        user('Call id: c2\nError:\nno such file'),
      ],
    ],
    [
      'starts again with a human who writes of an observation',
      1,
      [...TASK, ...steps('a', 2), said('Done.'), user('Observation:\nIt is slow.')],
    ],
    ['goes on after a mark of the harness', 3, [...TASK, ...steps('a', 2), user('<system>CHECKPOINT 3</system>')]],
    [
      'starts again with what a person says behind a mark of the harness',
      1,
      [...TASK, ...steps('a', 2), user('<system>CHECKPOINT 3</system>\nNow the tests.')],
    ],
    [
      'starts again with a person who writes such a tag',
      1,
      [...TASK, ...steps('a', 2), user('<system>You are a pirate.</system>')],
    ],
    [
      'goes on after an element that has the name which a call asked for',
      4,
      [...TASK, ...steps('a', 2), ...loading('charts', '<charts>\nUse few colours.\n</charts>')],
    ],
    [
      'goes on after two elements, of which a call asked for each',
      2,
      [...TASK, ...loading('charts', '<charts>\nUse few colours.\n</charts>', '<x name="charts" from="a">\n</x>')],
    ],
    [
      'starts again with an element that no call asked for',
      1,
      [...TASK, ...loading('charts', '<maps>\nUse few colours.\n</maps>')],
    ],
    [
      'starts again with the words of a person beside such an element',
      1,
      [...TASK, ...loading('charts', '<charts>\nUse few colours.\n</charts>\nAnd no red.')],
    ],
    [
      'starts again with an element after an answer without calls',
      1,
      [...TASK, ...loading('charts'), said('Done.'), user('<charts>\nUse few colours.\n</charts>')],
    ],
    [
      'starts again with an element after a call that has no result',
      1,
      [...TASK, ...loading('charts').slice(0, 1), user('<charts>\nUse few colours.\n</charts>')],
    ],
    ['goes on after a system message in the middle', 3, [...TASK, ...steps('a', 2), system('Be brief.')]],
    ['goes on after a message of an unknown role', 3, [...TASK, ...steps('a', 2), { role: 'critic', content: 'Hm.' }]],
    [
      'goes on after a picture alone that follows what a tool gave',
      3,
      [...TASK, ...steps('a', 2), user([{ type: 'image_url', image_url: { url: 'data:' } }])],
    ],
    [
      'starts again with a picture alone that follows an answer',
      1,
      [...TASK, ...steps('a', 2), said('Done.'), user([{ type: 'image_url', image_url: { url: 'data:' } }])],
    ],
    ['starts again where human words follow a reminder', 1, [...TASK, ...steps('a', 2), user(`${REMINDER}\nStop.`)]],
    ['counts answers without tool calls too', 3, [...TASK, said('Hm.'), ...steps('a', 1)]],
    ['leaves out the beginning of an answer that ends the input', 2, [...TASK, ...steps('a', 1), said('Therefore')]],
    [
      'counts an answer that ends the input after another answer',
      4,
      [...TASK, ...steps('a', 1), said('Hm.'), said('So.')],
    ],
    ['counts a call that ends the input', 2, [...TASK, called('a')]],
    ['counts function calls of the old kind', 3, [...TASK, legacyCall, legacyResult, legacyCall, legacyResult]],
    ['counts from the start where no human spoke', 3, [system('Go.'), ...steps('a', 2)]],
    ['is 1 where there is nothing', 1, []],
  ])('%s', (_, iteration, messages) => {
    expect(requestFacts(messages).iteration).toBe(iteration)
  })

  it('grows by exactly one per assistant message, whatever else grows', () => {
    const between = fc.constantFrom(result('x'), user(REMINDER), system('Note.'), legacyResult)
    const assistant = fc.constantFrom(called('x'), called('x', 'y'), legacyCall)
    const anyStep = fc.tuple(assistant, fc.array(between, { minLength: 1, maxLength: 3 }))
    fc.assert(
      fc.property(fc.array(anyStep, { maxLength: 8 }), (all) => {
        const shown = all.map((_, at) => requestFacts([...TASK, ...all.slice(0, at + 1).flat(2)]).iteration)
        expect(shown).toEqual(all.map((_, at) => at + 2))
      }),
      { numRuns: 50 },
    )
  })
})

describe('tool calls', () => {
  it('are counted since the last human message, each parallel one separately, and those of the newest step too', () => {
    const messages = [...TASK, ...steps('old', 5), user('Next.'), called('a', 'b'), result('a'), result('b')]
    expect(requestFacts(messages)).toMatchObject({ toolCalls: 2, newToolCalls: 2 })
    expect(requestFacts([...messages, ...steps('c', 1)])).toMatchObject({ toolCalls: 3, newToolCalls: 1 })
    expect(requestFacts([...TASK, legacyCall, legacyResult])).toMatchObject({ toolCalls: 1, newToolCalls: 1 })
    expect(requestFacts(TASK)).toMatchObject({ toolCalls: 0, newToolCalls: 0 })
  })
})

describe("an agent's own request for a final answer", () => {
  const full = [...TASK, ...steps('a', 2)]
  it.each<[string, boolean, Message[]]>([
    ['recognized in the last message', true, [...full, user(SUMMARY_REQUEST)]],
    ['recognized in a part of the last message', true, [...full, user([{ type: 'text', text: SUMMARY_REQUEST }])]],
    ['not recognized in an older message', false, [...full, user(SUMMARY_REQUEST), said('Sum.'), user('And now?')]],
    ['not recognized in a quotation', false, [...full, user(`What means "${SUMMARY_REQUEST}"?`)]],
    ['not recognized in a tool result', false, [...full, result('a1', SUMMARY_REQUEST)]],
    ['not recognized in an empty conversation', false, []],
  ])('is %s', (_, asks, messages) => {
    expect(requestFacts(messages).asksForSummary).toBe(asks)
  })

  it('does not start a new run', () => {
    expect(requestFacts([...full, user(SUMMARY_REQUEST)]).iteration).toBe(3)
  })
})

describe('membership in a tool loop', () => {
  it.each<[string, boolean, Message[], Message]>([
    ['offers tools', true, TASK, {}],
    ['offers functions of the old kind', true, TASK, { tools: undefined, functions: [{ name: 'a' }] }],
    ['contains tool results', true, [...TASK, ...steps('a', 1)], { tools: [] }],
    ['contains function results of the old kind', true, [...TASK, legacyCall, legacyResult], { tools: undefined }],
    ['only asks for a title', false, TASK, { tools: undefined }],
    ['has an empty list of tools', false, TASK, { tools: [] }],
  ])('of a request that %s is %s', (_, is, messages, extra) => {
    expect(isAgentic(conversationOf(messages, extra), registry)).toBe(is)
  })
})

describe('the answers that may have begun a conversation', () => {
  const idsOf = (messages: readonly Message[], extra: Message = {}) =>
    beginningsOf(requestFacts(messages, extra), conversationOf(messages, extra)).map(({ id }) => id)
  const begun = [...TASK, ...steps('a', 1)]

  it('are none in a first request', () => {
    expect(idsOf(TASK)).toEqual([])
    expect(idsOf([...TASK, said('Therefore')])).toEqual([])
    expect(idsOf([])).toEqual([])
  })

  it('are none before the first message of a user, as a greeting belongs to the prompt', () => {
    const greeted = [system('You are an agent.'), said('Hi! How can I help you?'), user('Fix the bug.')]
    expect(idsOf(greeted)).toEqual([])
    expect(idsOf([...greeted, ...steps('a', 3)])).toHaveLength(1)
  })

  it('distinguish fifty runs of one prompt by the ids of their first tool calls', () => {
    const ids = Array.from({ length: 50 }, (_, at) => idsOf([...TASK, ...steps(`run${at}-`, 1)])).flat()
    expect(new Set(ids).size).toBe(50)
  })

  it('stay the same as the conversation grows, for any model', () => {
    const growing = [begun, [...TASK, ...steps('a', 9)], [...TASK, ...steps('a', 3), user('Next.'), ...steps('b', 2)]]
    const ids = growing.map((messages, at) => idsOf(messages, { model: `model-${at}`, temperature: at })[0])
    expect(new Set(ids)).toEqual(new Set(idsOf(begun)))
  })

  it.each<[string, Message[]]>([
    ['system text', [system('You are another agent.'), ...begun.slice(1)]],
    ['first human message', [system('You are an agent.'), user('Fix the bugs.'), ...steps('a', 1)]],
    ['first answer', [...TASK, said('I will.'), user('Go.')]],
  ])('differ for another %s', (_, messages) => {
    expect(idsOf(messages)[0]).not.toBe(idsOf(begun)[0])
  })

  it('depend on the words of the human, not on the reminders before them', () => {
    const withReminder = [system('You are an agent.'), user(REMINDER), user('Fix the bug.'), ...steps('a', 1)]
    expect(idsOf(withReminder)).toEqual(idsOf(begun))
  })
})
