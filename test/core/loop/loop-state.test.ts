import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { TooMuchToRead } from '../../../src/core/bounds/work.ts'
import type { Conversation } from '../../../src/core/conversation/conversation.ts'
import { advance, assistantHash, EMPTY_TRANSCRIPT } from '../../../src/core/conversation/transcript.ts'
import {
  type LoopCall,
  type LoopFinding,
  mayBlock,
  NO_LOOP,
  observeStep,
  warningSent,
} from '../../../src/core/loop/escalation.ts'
import {
  afterNotice,
  INITIAL_LOOP_STATE,
  type LoopState,
  observeTranscript,
  skipTranscript,
} from '../../../src/core/loop/loop-state.ts'
import { isExempt, type LoopPolicy } from '../../../src/core/loop/patterns.ts'
import { signatureOf } from '../../../src/core/loop/tool-call.ts'
import { progressIn, textHashes } from '../../../src/core/loop/tool-result.ts'
import { conversationOf, type Message, registry, user } from '../transcript.ts'
import { POLICY } from './loop-story.ts'

interface Made {
  readonly tool: string
  readonly given: string
  /** Its arguments. */
  readonly asked?: string
}

/** A response that calls some tools, each with its result. */
function stepOf(calls: readonly Made[], at: number): Message[] {
  const named = calls.map((call, index) => ({ ...call, id: `${at}-${index}` }))
  return [
    {
      role: 'assistant',
      content: null,
      tool_calls: named.map(({ id, tool, asked = '{}' }) => ({
        id,
        type: 'function',
        function: { name: tool, arguments: asked },
      })),
    },
    ...named.map(({ id, given }) => ({ role: 'tool', tool_call_id: id, content: given })),
  ]
}

function takeFrom(
  loopState: LoopState,
  conversation: Conversation,
  policy: LoopPolicy,
  take: (...taken: Parameters<typeof observeTranscript>) => LoopState = observeTranscript,
  length = conversation.length - 1,
): LoopState {
  const state = advance(EMPTY_TRANSCRIPT, conversation, length, registry)
  for (const step of state.assistantMessages) assistantHash(step, conversation)
  return take(loopState, { conversation, state, registry, previousStep: undefined }, policy)
}

function take(loopState: LoopState, messages: readonly Message[], policy: LoopPolicy): LoopState {
  return takeFrom(loopState, conversationOf(messages), policy)
}

/** Returns the loops that are found if every result is masked at once. */
function foundAtOnce(steps: readonly (readonly Made[])[], policy: LoopPolicy) {
  let memory = NO_LOOP
  return steps.map((calls) => {
    const counted = calls
      .filter(({ tool }) => !isExempt(tool, policy))
      .map(({ tool, given }, at): LoopCall => {
        const signature = signatureOf({ name: tool, arguments: '{}' })
        const hashes = textHashes(given, policy.volatile)
        const { goesOn, isTerse } = progressIn({ callId: '', text: () => given })
        return { ...signature, ...hashes, at, isPoll: signature.isPoll || goesOn, isTerse }
      })
    const { memory: after, finding } = observeStep(memory, counted, policy)
    memory = finding ? warningSent(after, finding) : after
    return { finding: found(finding), refuses: mayBlock(memory, policy, 0) }
  })
}

const found = (finding: LoopFinding | undefined) =>
  finding && { pattern: finding.pattern, tools: finding.tools, warnings: finding.warnings }

const call = fc.record({
  tool: fc.constantFrom('a', 'b', 'process'),
  given: fc.constantFrom('ok in 3s', 'ok in 1.2s', 'still running', 'not yet ready'),
})
const policies = fc.record({
  mode: fc.constantFrom('warn' as const, 'enforce' as const),
  repetitionThreshold: fc.constantFrom(2, 3),
  sameCallAnyResult: fc.constantFrom(2, 4),
  maxWarningsBeforeBlock: fc.constantFrom(0, 1, 2),
  volatile: fc.constantFrom('none' as const, 'default' as const),
})

describe('the loop guard of a conversation', () => {
  it('reads the calls of an answer with their results: one at the end of a request changes nothing', () => {
    const steps = fc.array(fc.array(call, { minLength: 1, maxLength: 2 }), { minLength: 1, maxLength: 4 })
    fc.assert(
      fc.property(steps, (made) => {
        const [ending, ...others] = made.map(stepOf).reverse()
        const known = take(INITIAL_LOOP_STATE, [user('go'), ...others.reverse().flat()], POLICY)
        const conversation = conversationOf([user('go'), ...others.flat(), ...(ending?.slice(0, 1) ?? [])])
        for (const read of [observeTranscript, skipTranscript])
          expect(takeFrom(known, conversation, POLICY, read, conversation.length)).toEqual(
            takeFrom(known, conversation, POLICY, read),
          )
      }),
    )
  })

  it('finds the same loops as a guard that masks every result at once', () => {
    // At most as many messages as are read of an unknown transcript.
    const steps = fc.array(fc.array(call, { minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 6 })
    fc.assert(
      fc.property(steps, policies, (made, settings) => {
        const policy: LoopPolicy = { ...POLICY, ...settings }
        const expected = foundAtOnce(made, policy)
        let loopState = INITIAL_LOOP_STATE
        const messages = [user('go')]
        made.forEach((calls, at) => {
          messages.push(...stepOf(calls, at))
          loopState = take(loopState, messages, policy)
          loopState = afterNotice(loopState)
          const refuses = mayBlock(loopState.memory, policy, 0)
          expect({ finding: found(loopState.finding), refuses }).toEqual(expected[at])
        })
      }),
      { numRuns: 1_000 },
    )
  })

  it('blocks nothing while its notices reach nobody, and for any calls only after as many as are allowed', () => {
    const steps = fc.array(fc.tuple(call, fc.boolean()), { minLength: 1, maxLength: 14 })
    fc.assert(
      fc.property(steps, policies, (made, settings) => {
        const policy: LoopPolicy = { ...POLICY, ...settings, mode: 'enforce', maxWarningsBeforeBlock: 2 }
        const messages = [user('go')]
        let loopState = INITIAL_LOOP_STATE
        let told = 0
        for (const [at, [calls, isTold]] of made.entries()) {
          messages.push(...stepOf([calls], at))
          loopState = takeFrom(loopState, conversationOf(messages), policy)
          if (loopState.finding && isTold) {
            told++
            loopState = afterNotice(loopState)
          }
          if (told < 2) expect(mayBlock(loopState.memory, policy, 0)).toBe(false)
        }
      }),
      { numRuns: 1_000 },
    )
  })

  it('forgets what it only observed once it may speak', () => {
    const messages = [user('go')]
    let loopState = INITIAL_LOOP_STATE
    const observe: LoopPolicy = { ...POLICY, mode: 'observe' }
    for (let at = 0; at < 12; at++) {
      messages.push(...stepOf([{ tool: 'a', given: 'nothing to see' }], at))
      loopState = takeFrom(loopState, conversationOf(messages), observe)
    }
    expect(loopState.memory.loops).toHaveLength(1)
    const enforce: LoopPolicy = { ...POLICY, mode: 'enforce' }
    expect(mayBlock(takeFrom(loopState, conversationOf(messages), enforce).memory, enforce, 0)).toBe(false)
    const warnings: number[] = []
    for (let at = 12; at < 16; at++) {
      messages.push(...stepOf([{ tool: 'a', given: 'nothing to see' }], at))
      loopState = afterNotice(take(loopState, messages, enforce))
      if (loopState.finding) warnings.push(loopState.finding.warnings)
    }
    expect(warnings[0]).toBe(1)
  })
})

describe('a message in the role of a user', () => {
  const stuck = (at: number) => stepOf([{ tool: 'a', given: 'nothing to see' }], at)

  it('interrupts equal calls in a row, unless it has the same words as the message before', () => {
    const around = (between: string) => {
      const messages = [user('Go on.'), ...stuck(0), ...stuck(1), user(between), ...stuck(2)]
      return take(INITIAL_LOOP_STATE, messages, POLICY).finding?.pattern
    }
    expect(around('I have changed it, look again.')).toBeUndefined()
    expect(around('Go on.')).toBe('repetition')
  })

  it('is observed once, however many requests contain it', () => {
    const messages = [user('Go.'), ...stuck(0), ...stuck(1), user('I have changed it.')]
    let loopState = take(take(INITIAL_LOOP_STATE, messages, POLICY), messages, POLICY)
    messages.push(...stuck(2))
    loopState = take(loopState, messages, POLICY)
    expect(loopState.finding).toBeUndefined()
    messages.push(...stuck(3), ...stuck(4))
    expect(take(loopState, messages, POLICY).finding?.pattern).toBe('repetition')
  })
})

describe('an agent that empties a queue', () => {
  const uuidOf = (at: number) => `123e4567-e89b-42d3-a456-4266141740${String(at).padStart(2, '0')}`

  /** Two responses: one claims the next task, whose result contains only an id, and the other works on it. */
  const taskOf = (at: number): Message[] => [
    ...stepOf([{ tool: 'claim_next', given: `{"task_id": "${uuidOf(at)}"}` }], 2 * at),
    ...stepOf([{ tool: 'summarize', given: 'Summary written.', asked: `{"task": "${uuidOf(at)}"}` }], 2 * at + 1),
  ]

  it('gets one notice, and none of its calls is blocked', () => {
    let loopState = INITIAL_LOOP_STATE
    const messages = [user('Empty the queue.')]
    const findings: string[] = []
    for (let at = 0; at < 25; at++) {
      messages.push(...taskOf(at))
      // Each request contains one more response.
      for (const end of [messages.length - 2, messages.length]) {
        loopState = take(loopState, messages.slice(0, end), POLICY)
        if (loopState.finding) findings.push(loopState.finding.pattern)
        expect(mayBlock(loopState.memory, POLICY, 0)).toBe(false)
      }
    }
    expect(findings).toEqual(['repetition'])
  })
})

describe('a response with very many tool calls', () => {
  const before = [user('go'), ...stepOf([{ tool: 'a', given: '' }], 0)]
  const known = take(INITIAL_LOOP_STATE, before, POLICY)
  const messagesWith = (count: number) => {
    const calls = Array.from({ length: count }, (_, at) => ({ tool: `t${at}`, given: 'ok' }))
    return [...before, ...stepOf(calls, 1)]
  }

  it('takes work in proportion to their number', () => {
    const stepsOf = (count: number) => {
      const conversation = conversationOf(messagesWith(count))
      takeFrom(known, conversation, POLICY)
      return conversation.work?.steps ?? 0
    }
    expect(stepsOf(320)).toBeLessThan(17 * stepsOf(20))
  })

  it.each([0, 1, 4])(
    'is skipped with all before it: of %i answers the newest is the one that was read last',
    (count) => {
      const steps = Array.from({ length: count }, (_, at) => stepOf([{ tool: 'a', given: '' }], at))
      const conversation = conversationOf([user('go'), ...steps.flat()])
      const { newestIndex } = takeFrom(INITIAL_LOOP_STATE, conversation, POLICY, skipTranscript, conversation.length)
      expect(newestIndex).toBe(count === 0 ? -1 : conversation.length - 2)
    },
  )

  it('is skipped if it would take too much work, but later messages are read', () => {
    const messages = messagesWith(2_500)
    expect(() => takeFrom(known, conversationOf(messages), POLICY)).toThrow(TooMuchToRead)
    const after = takeFrom(known, conversationOf(messages), POLICY, skipTranscript)
    expect(after.memory).toEqual(known.memory)
    expect(after.assistantHashes).toHaveLength(1)
    const next = [...messages, ...stepOf([{ tool: 'b', given: 'new' }], 2)]
    const more = takeFrom(after, conversationOf(next), POLICY)
    expect(more.memory.history.window.at(-1)?.tool).toBe('b')
  })
})

describe('a history that stands at another place, with new ids of its calls', () => {
  const given = 'ok'
  const before = [
    user('go'),
    ...stepOf(
      [
        { tool: 'a', given },
        { tool: 'b', given },
      ],
      0,
    ),
  ]
  const known = take(INITIAL_LOOP_STATE, before, POLICY)
  /** The tools of the calls that are counted after the same place was read again, and one more step. */
  const counted = (again: readonly Made[]) => {
    const next = [user('go'), ...stepOf(again, 7), ...stepOf([{ tool: 'd', given }], 8)]
    return take(known, next, POLICY).memory.history.window.map(({ tool }) => tool)
  }

  it('goes on after the newest calls if the same calls stand there', () => {
    expect(
      counted([
        { tool: 'a', given },
        { tool: 'b', given },
      ]),
    ).toEqual(['a', 'b', 'd'])
  })

  it('is read anew if some of them are others', () => {
    expect(
      counted([
        { tool: 'a', given },
        { tool: 'c', given },
      ]),
    ).toContain('c')
  })
})
