import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { advance, EMPTY_TRANSCRIPT } from '../../../src/core/conversation/transcript.ts'
import { blockCalls, NO_LOOP, observeStep, warningSent } from '../../../src/core/loop/escalation.ts'
import { afterNotice, INITIAL_LOOP_STATE, observeTranscript } from '../../../src/core/loop/loop-state.ts'
import { callHash } from '../../../src/core/loop/tool-call.ts'
import { registry } from '../transcript.ts'
import { type Api, conversationIn } from './histories.ts'
import { POLICY, stepsOf, tell } from './loop-story.ts'

/** The number of the first response that has a blocked call; `undefined` if no response of the story has one. */
function blockedAt(story: string): number | undefined {
  let memory = NO_LOOP
  for (const [at, step] of stepsOf(story).entries()) {
    if (typeof step === 'string') continue
    const calls = step.map(({ tool }) => ({ name: tool, arguments: '' }))
    if (blockCalls(memory, calls, POLICY, String(at), false, 0).blocked.some((block) => block)) return at + 1
    const { memory: after, finding } = observeStep(memory, step, POLICY)
    memory = finding ? warningSent(after, finding) : after
  }
  return undefined
}

const call = fc
  .tuple(fc.constantFrom('a', 'b', 'c', 'd', 'edit!'), fc.constantFrom('1', '2', '3', '3~at-ten', '3~at-noon'))
  .map(([name, result]) => `${name}=${result}`)
const response = (maxLength: number) =>
  fc.uniqueArray(call, { minLength: 1, maxLength, selector: (text) => text[0] }).map((calls) => calls.join('+'))

describe('results that were seen before', () => {
  it('are nothing new: any cycle of responses that the window shows twice is warned about and then blocked', () => {
    const cycle = fc.oneof(
      fc.array(response(2), { minLength: 1, maxLength: 5 }),
      fc.array(response(5), { minLength: 1, maxLength: 3 }),
    )
    fc.assert(
      fc.property(cycle, (steps) => {
        const story = Array.from({ length: 40 }, (_, at) => steps[at % steps.length] ?? '')
        expect(blockedAt(story.join(' '))).toBeGreaterThan(6)
      }),
      { numRuns: 200 },
    )
  })

  it('are blocked at the eighth call if a call brings two of them in turn, in every dialect', () => {
    for (const api of ['chat', 'messages', 'responses'] satisfies Api[]) {
      let loopState = INITIAL_LOOP_STATE
      const turns = Array.from({ length: 8 }, (_, at) => [
        { id: `c${at}`, name: 'look', arguments: '{}', result: at % 2 ? 'the door is open' : 'the door is closed' },
      ])
      const blocks = turns.map((_, at) => {
        const conversation = conversationIn(api, turns.slice(0, at))
        const state = advance(EMPTY_TRANSCRIPT, conversation, Math.max(0, conversation.length - 1), registry)
        const transcript = { conversation, state, registry, previousStep: undefined }
        loopState = afterNotice(observeTranscript(loopState, transcript, POLICY))
        const [block] = blockCalls(loopState.memory, turns[at] ?? [], POLICY, 'next', false, 0).blocked
        return block?.pattern
      })
      expect(blocks).toEqual([...Array.from({ length: 7 }), 'ping_pong'])
    }
  })
})

describe('a call that reads a value that changes by itself', () => {
  it('is told about at growing intervals', () => {
    const degrees = Array.from({ length: 400 }, (_, at) => `heat=${Math.floor(at * at * Math.SQRT2) % 3}`)
    const { findings, found } = tell(degrees.join(' '))
    expect(found.slice(0, 4)).toEqual(['5:same_call', '15:cycle', '25:cycle', '45:cycle'])
    expect(findings.length).toBeLessThan(10)
    expect(findings.every(({ calls }) => calls.every((made) => made === callHash('heat', '')))).toBe(true)
  })
})
