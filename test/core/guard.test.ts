import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Conversation } from '../../src/core/conversation.ts'
import { type Guarded, guard, UNGUARDED } from '../../src/core/guard.ts'
import {
  type LoopCall,
  type LoopFinding,
  type LoopPolicy,
  loopCall,
  madeCall,
  mayRefuse,
  NO_LOOP,
  observeStep,
} from '../../src/core/loop-guard.ts'
import { hashOfStep, nothingRead, readOn } from '../../src/core/reading.ts'
import { POLICY } from './loop-story.ts'
import { conversationOf, type Message, registry, user } from './transcript.ts'

interface Made {
  readonly tool: string
  readonly given: string
}

/** A response that calls some tools, each with its result. */
function stepOf(calls: readonly Made[], at: number): Message[] {
  const named = calls.map((call, index) => ({ ...call, id: `${at}-${index}` }))
  return [
    {
      role: 'assistant',
      content: null,
      tool_calls: named.map(({ id, tool }) => ({
        id,
        type: 'function',
        function: { name: tool, arguments: '{}' },
      })),
    },
    ...named.map(({ id, given }) => ({ role: 'tool', tool_call_id: id, content: given })),
  ]
}

function takeFrom(
  guarded: Guarded,
  conversation: Conversation,
  policy: LoopPolicy,
  leftOut?: () => void,
): Guarded {
  const reading = readOn(nothingRead(conversation), conversation, conversation.length - 1, registry)
  for (const step of reading.assistants) hashOfStep(step, conversation)
  return guard(guarded, { conversation, reading, registry, goesOnFrom: undefined }, policy, leftOut)
}

function take(guarded: Guarded, messages: readonly Message[], policy: LoopPolicy): Guarded {
  return takeFrom(guarded, conversationOf(messages), policy)
}

/** What is found with every result looked at as it comes. */
function foundAtOnce(steps: readonly (readonly Made[])[], policy: LoopPolicy) {
  let memory = NO_LOOP
  return steps.map((calls) => {
    const read = calls.map(({ tool, given }, at) =>
      loopCall(String(at), madeCall({ name: tool, arguments: '{}' }, policy), given, policy),
    )
    const counted = read.filter((call): call is LoopCall => call !== undefined)
    const observed = observeStep(memory, counted, policy)
    memory = observed.memory
    return { finding: found(observed.finding), refuses: mayRefuse(memory, policy) }
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
  sameCallThreshold: fc.constantFrom(2, 4),
  maxWarningsBeforeBlock: fc.constantFrom(0, 1, 2),
  volatile: fc.constantFrom('none' as const, 'default' as const),
})

describe('the guard of a conversation', () => {
  it('finds what it would find if it looked at every result as it comes', () => {
    // No more messages than are looked at of a transcript that nothing is known of.
    const steps = fc.array(fc.array(call, { minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 6 })
    fc.assert(
      fc.property(steps, policies, fc.boolean(), (made, settings, isGrowing) => {
        const policy: LoopPolicy = { ...POLICY, ...settings }
        const expected = foundAtOnce(made, policy)
        let guarded = UNGUARDED
        const messages = [user('go')]
        made.forEach((calls, at) => {
          messages.push(...stepOf(calls, at))
          if (!isGrowing && at < made.length - 1) return
          guarded = take(guarded, messages, policy)
          const refuses = mayRefuse(guarded.memory, policy)
          expect({ finding: found(guarded.finding), refuses }).toEqual(expected[at])
        })
      }),
      { numRuns: 1_000 },
    )
  })
})

describe('a response that calls very many tools', () => {
  const before = [user('go'), ...stepOf([{ tool: 'a', given: '' }], 0)]
  const known = take(UNGUARDED, before, POLICY)
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

  it('is left out where that would be too much, and what comes after it is not', () => {
    let leftOut = 0
    const messages = messagesWith(1_000)
    const after = takeFrom(known, conversationOf(messages), POLICY, () => leftOut++)
    expect(leftOut).toBe(1)
    expect(after.memory).toEqual(known.memory)
    const next = [...messages, ...stepOf([{ tool: 'b', given: 'new' }], 2)]
    const more = takeFrom(after, conversationOf(next), POLICY, () => leftOut++)
    expect(leftOut).toBe(1)
    expect(more.memory.trail.window.at(-1)?.tool).toBe('b')
  })
})
