import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
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
import { registry } from '../transcript.ts'
import { type Api, conversationIn, type Made } from './histories.ts'
import { POLICY } from './loop-story.ts'

type Turn = readonly Omit<Made, 'id'>[]

/** The verdicts of the loop guard about each request of a run whose model gets every notice and obeys none. */
function verdictsOf(turns: readonly Turn[], requestOf: (shown: readonly Turn[]) => ReturnType<typeof conversationIn>) {
  let loopState: LoopState = INITIAL_LOOP_STATE
  return turns.map((turn, at) => {
    const conversation = requestOf(turns.slice(0, at + 1))
    const state = advance(EMPTY_TRANSCRIPT, conversation, conversation.length - 1, registry)
    loopState = afterNotice(
      observeTranscript(loopState, { conversation, state, registry, previousStep: undefined }, POLICY),
    )
    const { finding, memory } = loopState
    const next = turns[at + 1] ?? turn
    return {
      finding: finding && [finding.pattern, finding.tools, finding.warnings, finding.at],
      mayBlock: mayBlock(memory, POLICY, 0),
      blocked: blockCalls(memory, next, POLICY, 'next', false, 0).blocked.map((block) => block?.pattern),
    }
  })
}

/** The ids of a call and of its result; `request` counts the requests. */
type Ids = (
  turn: number,
  call: number,
  made: Turn[number],
  request: number,
) => readonly [call: string | undefined, result: string | undefined]

const same = (id: string | undefined) => [id, id] as const
const IDS: Readonly<Record<string, Ids>> = {
  'the id of a tool': (_turn, _call, { name }) => same(name),
  'one id for all': () => same('call'),
  'one id in each response': (turn) => same(`call${turn}`),
  'empty ids': () => same(''),
  'no ids': () => same(undefined),
  'no id in a result': (turn, call) => [`c${turn}-${call}`, undefined],
  'no id in a call': (turn, call) => [undefined, `c${turn}-${call}`],
  'other ids in the results': (turn, call) => [`c${turn}-${call}`, `r${turn}-${call}`],
  'ids that end in the number of the request': (turn, call, _made, request) => same(`c${turn}-${call}-${request}`),
}

function shownWith(ids: Ids, api: Api, turns: readonly Turn[]) {
  return conversationIn(
    api,
    turns.map((made, turn) =>
      made.map((one, call) => {
        const [id, resultId] = ids(turn, call, one, turns.length)
        return { ...one, id, resultId }
      }),
    ),
  )
}

const made = fc.record({
  name: fc.constantFrom('read', 'list', 'edit'),
  arguments: fc.constantFrom('{"at":1}', '{"at":2}'),
  result: fc.constantFrom('a book of twenty chapters', 'a page about the sea', 'it is 12:00:01', 'it is 12:00:02'),
})
/** Whole steps come again, so that loops are found. */
const turns = fc
  .tuple(
    fc.array(fc.array(made, { minLength: 1, maxLength: 3 }), { minLength: 1, maxLength: 4 }),
    fc.array(fc.nat(), { maxLength: 4 }),
  )
  .map(([steps, order]) => [
    ...steps,
    ...steps,
    ...steps,
    ...steps,
    ...order.map((at) => steps[at % steps.length] ?? []),
  ])
const apis = fc.constantFrom<Api>('chat', 'messages', 'responses')
const distinct: Ids = (turn, call) => same(`c${turn}-${call}`)

describe('the ids of calls', () => {
  it('change no verdict, whether they are renamed, repeated or dropped, in any transcript and dialect', () => {
    let found = 0
    fc.assert(
      fc.property(turns, apis, fc.constantFrom(...Object.keys(IDS)), (steps, api, kind) => {
        const expected = verdictsOf(steps, (shown) => shownWith(distinct, api, shown))
        found += expected.filter(({ mayBlock: isBlocked }) => isBlocked).length
        const ids = IDS[kind]
        if (!ids) throw new Error(kind)
        expect(verdictsOf(steps, (shown) => shownWith(ids, api, shown))).toEqual(expected)
      }),
      { numRuns: 60 },
    )
    expect(found).toBeGreaterThan(10)
  })

  it('lead to their results in any order', () => {
    fc.assert(
      fc.property(turns, apis, (steps, api) => {
        const expected = verdictsOf(steps, (shown) => shownWith(distinct, api, shown))
        const reversed = (shown: readonly Turn[]) =>
          conversationIn(
            api,
            shown.map((step, turn) => step.map((one, call) => ({ ...one, id: `c${turn}-${call}` }))),
            (results) => [...results].reverse(),
          )
        expect(verdictsOf(steps, reversed)).toEqual(expected)
      }),
      { numRuns: 30 },
    )
  })
})

describe('the ids of calls whose conversation the provider keeps', () => {
  it('change no verdict if they are equal or empty', () => {
    fc.assert(
      fc.property(turns, fc.constantFrom('the id of a tool', 'one id for all', 'empty ids'), (steps, kind) => {
        const follow = (ids: Ids) => {
          let loopState = INITIAL_LOOP_STATE
          return steps.map((step, turn) => {
            const calls = step.map((one, call) => ({ ...one, id: ids(turn, call, one, turn)[0] ?? '' }))
            loopState = recordCalls(loopState, pendingCallsOf(calls, POLICY))
            const input = calls.map(({ id, result }) => ({ type: 'function_call_output', call_id: id, output: result }))
            const conversation = conversationIn('responses', [], undefined, input)
            const state = advance(EMPTY_TRANSCRIPT, conversation, conversation.length - 1, registry)
            const previousStep = hashOf(`step ${turn}`)
            loopState = observeTranscript(loopState, { conversation, state, registry, previousStep }, POLICY)
            loopState = afterNotice(loopState)
            const { finding, memory } = loopState
            return [finding?.pattern, finding?.warnings, mayBlock(memory, POLICY, 0)]
          })
        }
        expect(follow(IDS[kind] ?? distinct)).toEqual(follow(distinct))
      }),
      { numRuns: 40 },
    )
  })
})
