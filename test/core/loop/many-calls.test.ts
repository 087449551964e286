import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import type { Conversation } from '../../../src/core/conversation/conversation.ts'
import { advance, EMPTY_TRANSCRIPT } from '../../../src/core/conversation/transcript.ts'
import { hashOf } from '../../../src/core/hash.ts'
import { blockCalls, mayBlock } from '../../../src/core/loop/escalation.ts'
import {
  afterNotice,
  INITIAL_LOOP_STATE,
  type LoopState,
  observeTranscript,
  recordCalls,
} from '../../../src/core/loop/loop-state.ts'
import { pendingCallsOf } from '../../../src/core/loop/tool-call.ts'
import { responses } from '../../../src/dialect/responses/index.ts'
import { registry } from '../transcript.ts'
import { type Api, conversationIn, type Made } from './histories.ts'
import { POLICY } from './loop-story.ts'

function observed(loopState: LoopState, conversation: Conversation, previousStep?: string): LoopState {
  const last = conversation.length - 1
  const state = advance(EMPTY_TRANSCRIPT, conversation, Math.max(0, last), registry)
  const step = previousStep === undefined ? undefined : hashOf(previousStep)
  return observeTranscript(loopState, { conversation, state, registry, previousStep: step }, POLICY)
}

const callsOf = (made: readonly Made[]) =>
  made.map(({ id = '', name, arguments: text }) => ({ id, name, arguments: text }))

/** Turns that make the same `count` calls; `resultOf` gives the result of a call in a turn. */
function turnsOf(count: number, length: number, resultOf: (call: number, turn: number) => string): Made[][] {
  return Array.from({ length }, (_, turn) =>
    Array.from({ length: count }, (_, call) => ({
      id: `c${turn}-${call}`,
      name: call % 3 === 0 ? 'read' : 'list',
      arguments: JSON.stringify({ path: `src/file${call}.ts` }),
      result: resultOf(call, turn),
    })),
  )
}

/** Requests of a conversation whose model gets every notice, the first with `shown` turns, each further one with one turn more. */
function follow(name: Api, turns: readonly (readonly Made[])[], shown: number): LoopState[] {
  const states: LoopState[] = []
  let loopState = INITIAL_LOOP_STATE
  for (let end = shown; end <= turns.length; end++) {
    loopState = observed(loopState, conversationIn(name, turns.slice(0, end)))
    loopState = afterNotice(loopState)
    states.push(loopState)
  }
  return states
}

const dialects = fc.constantFrom<Api>('chat', 'messages', 'responses')
const counts = fc.oneof(fc.integer({ min: 1, max: 70 }), fc.integer({ min: 71, max: 200 }))

describe('a response with any number of calls', () => {
  it('is found in a loop in every dialect, from the beginning of the run or after a restart', () => {
    fc.assert(
      fc.property(dialects, counts, fc.integer({ min: 1, max: 6 }), fc.boolean(), (name, count, shown, isVolatile) => {
        const result = (call: number, turn: number) =>
          isVolatile ? `the content of file ${call}, read at 12:00:0${turn % 10}` : `the content of file ${call}`
        const states = follow(name, turnsOf(count, shown + 5, result), shown)
        expect(states.some(({ finding }) => finding !== undefined)).toBe(true)
      }),
      { numRuns: 40 },
    )
  })

  it('is blocked as a whole if its calls and results were equal all the time', () => {
    fc.assert(
      fc.property(dialects, counts, (name, count) => {
        const turns = turnsOf(count, 10, (call) => `the content of file ${call}`)
        const { memory } =
          follow(name, turns, 1).find((state) => mayBlock(state.memory, POLICY, 0)) ?? INITIAL_LOOP_STATE
        const { blocked } = blockCalls(memory, callsOf(turns[0] ?? []), POLICY, 'next', false, 0)
        expect(blocked.every((block) => block !== undefined)).toBe(true)
      }),
      { numRuns: 20 },
    )
  })

  it('is no loop that may be blocked if one of its results is new each time', () => {
    fc.assert(
      fc.property(dialects, counts, fc.nat(), (name, count, at) => {
        const turns = turnsOf(count, 12, (call, turn) =>
          call === at % count ? `line ${'x'.repeat(turn)}` : `the content of file ${call}`,
        )
        for (const { memory } of follow(name, turns, 1)) expect(mayBlock(memory, POLICY, 0)).toBe(false)
      }),
      { numRuns: 30 },
    )
  })

  it('is found in a loop where the provider keeps the conversation, whichever way the client continues it', () => {
    const outputs = (made: readonly Made[]) =>
      made.map(({ id, result }) => ({ type: 'function_call_output', call_id: id, output: result }))
    fc.assert(
      fc.property(counts, fc.boolean(), (count, refersToItems) => {
        const turns = turnsOf(count, 6, (call) => `the content of file ${call}`)
        let loopState = INITIAL_LOOP_STATE
        const patterns: (string | undefined)[] = []
        for (const [at, made] of turns.entries()) {
          const calls = callsOf(made).map((call) => ({ ...call, item: `fc_${call.id}` }))
          loopState = recordCalls(loopState, pendingCallsOf(calls, POLICY))
          const references = turns.slice(0, at + 1).flatMap((turn) => {
            const items = turn.map(({ id }) => ({ type: 'item_reference', id: `fc_${id}` }))
            return [...items, ...outputs(turn)]
          })
          const body = refersToItems
            ? { model: 'm', input: [{ role: 'user', content: 'go' }, ...references] }
            : { model: 'm', input: outputs(made), previous_response_id: `resp_${at}` }
          const request = responses.read({ path: '', body: Buffer.from(JSON.stringify(body)) })
          if (!request) throw new Error('not a conversation')
          loopState = observed(loopState, request.conversation, refersToItems ? undefined : `resp_${at}`)
          patterns.push(loopState.finding?.pattern)
        }
        expect(patterns.some((pattern) => pattern !== undefined)).toBe(true)
      }),
      { numRuns: 30 },
    )
  })
})
