import { describe, expect, it } from 'vitest'
import type { ToolCall } from '../../src/core/conversation/conversation.ts'
import { EMPTY_TRANSCRIPT } from '../../src/core/conversation/transcript.ts'
import { decide } from '../../src/core/decide.ts'
import { endsIfRefusedAgain, GUARDS, judgeCalls } from '../../src/core/guards.ts'
import { hashOf } from '../../src/core/hash.ts'
import type { LoopPolicy } from '../../src/core/loop/patterns.ts'
import { countRequest } from '../../src/core/session/count-request.ts'
import { factsOf } from '../../src/core/session/request-facts.ts'
import { NEW_SESSION, type Session } from '../../src/core/session/session.ts'
import { noticeReachedModel } from '../../src/core/session/transitions.ts'
import { POLICY, policyWith } from './loop/loop-story.ts'
import { BUDGET, conversationOf, type Message, registry, requestOf, steps, user } from './transcript.ts'

const AGAIN: ToolCall = { id: 'x', name: 'search', arguments: '{"q":"a"}' }
const NEW: ToolCall = { id: 'y', name: 'search', arguments: '{"q":"b"}' }

/** An agent that makes equal calls, whose model gets each notice; `next` counts its next request. */
function agent(loop: LoopPolicy = POLICY, budget = BUDGET) {
  let session: Session = NEW_SESSION
  let length = 1
  const pages = steps('s', 40).map((one) => (one['role'] === 'tool' ? { ...one, content: 'The same old page.' } : one))
  const messages: readonly Message[] = [user('Find it.'), ...pages]
  const next = () => {
    const sent = messages.slice(0, length)
    length += 2
    const conversation = conversationOf(sent)
    const facts = factsOf(EMPTY_TRANSCRIPT, conversation, hashOf(`${sent.length}`), registry)
    const request = requestOf(facts, { conversation, loop, budget })
    const counted = { fingerprint: request.facts.fingerprint, thread: '' }
    const { session: after, result: runState } = countRequest(session, request)
    session = noticeReachedModel(after, counted, true)
    const made = { request, runState, isAgain: false, now: 0 }
    const judge = (...calls: readonly ToolCall[]) => {
      const judged = judgeCalls(session, counted, calls, made)
      session = judged.session
      return judged.result
    }
    const blockNotice = () => session.threads[0]?.blockNotice
    return { request, runState, judge, blockNotice, notice: decide({ runState, policy: BUDGET })?.speech?.notice }
  }
  return {
    next,
    /** The request after six equal calls, two warnings ignored. */
    stuck() {
      for (let calls = 0; calls < 6; calls++) next()
      return next()
    },
  }
}

type Turn = ReturnType<ReturnType<typeof agent>['next']>

const mayBlock = ({ request, runState }: Turn) => GUARDS.some((guard) => guard.mayBlock(request, runState))
const ends = ({ request, runState }: Turn) => GUARDS.map((guard) => guard.endOf(request, runState)).find(Boolean)

describe('the calls of a response', () => {
  it('pass while nothing was repeated', () => {
    const turn = agent().next()
    expect(mayBlock(turn)).toBe(false)
    expect(turn.judge(AGAIN, NEW)).toEqual({ blocked: [undefined, undefined], faults: [] })
    expect(turn.blockNotice()).toBeUndefined()
  })

  it('are blocked one by one, with what the model reads in place of a result', () => {
    const turn = agent().stuck()
    expect(mayBlock(turn)).toBe(true)
    const { blocked, end, faults } = turn.judge(NEW, AGAIN)
    expect([blocked[0], end, faults]).toEqual([undefined, undefined, []])
    expect(blocked[1]).toMatchObject({
      guard: 'loop_guard',
      tool: 'search',
      text: expect.stringContaining("'search' was called 6 times"),
      fallback: expect.stringContaining("'search' was called 6 times"),
      loop: { pattern: 'repetition', count: 6 },
    })
  })

  it.each([
    { which: 'some', calls: [AGAIN, NEW], says: 1 },
    { which: 'two of three', calls: [AGAIN, NEW, AGAIN], says: 1 },
    { which: 'all', calls: [AGAIN], says: 0 },
    { which: 'none', calls: [NEW], says: 0 },
  ])('leave a notice for the next request, once for equal calls, if some but not all are blocked: $which', (row) => {
    const one = agent()
    one.stuck().judge(...row.calls)
    const notice = one.next().notice ?? ''
    expect(notice.split('[LOOP GUARD] Blocked: ').length - 1).toBe(row.says)
    expect(one.next().notice ?? '').not.toContain('[LOOP GUARD] Blocked: ')
  })

  it('end the run with the fifth response of which one was to be blocked, and not before', () => {
    const one = agent()
    let turn = one.stuck()
    for (let blocks = 1; blocks <= POLICY.maxBlocks; blocks++) {
      expect(ends(turn)).toBeUndefined()
      expect(turn.judge(AGAIN).end !== undefined).toBe(blocks === POLICY.maxBlocks)
      turn = one.next()
    }
    expect(ends(turn)).toMatchObject({
      guard: 'loop_guard',
      fallback: expect.stringMatching(/^\(Stopped: 'search' was called \d+ times/),
      loop: { pattern: 'repetition' },
    })
  })

  it.each([
    { name: 'the loop guard is disabled', loop: policyWith({ enabled: false }) },
    { name: 'it only warns', loop: policyWith({ mode: 'warn' }) },
    { name: 'it only observes', loop: policyWith({ mode: 'observe' }) },
    { name: 'their tool is exempt', loop: policyWith({ exempt_tools: ['search'] }) },
  ])('are never blocked where $name', ({ loop }) => {
    const turn = agent(loop).stuck()
    expect(mayBlock(turn)).toBe(false)
    expect(ends(turn)).toBeUndefined()
    expect(turn.judge(AGAIN).blocked).toEqual([undefined])
  })

  it('are never blocked where the loop guard is disabled, also where the budget follows loops', () => {
    const turn = agent(policyWith({ enabled: false }), { ...BUDGET, cautionWhen: 'stagnating' }).stuck()
    expect(turn.runState.thread.loopState).toBeDefined()
    expect([mayBlock(turn), ends(turn), turn.judge(AGAIN).blocked]).toEqual([false, undefined, [undefined]])
  })

  it('pass without a fault where nothing was observed before', () => {
    const { request, runState, ...turn } = agent(policyWith({ enabled: false })).next()
    const { loop } = agent().next().request
    const made = { request: { ...request, loop }, runState, isAgain: false, now: 0 }
    expect(turn.judge(AGAIN)).toEqual({ blocked: [undefined], faults: [] })
    for (const guard of GUARDS)
      expect(guard.judge([AGAIN], NEW_SESSION, runState.thread, made).blocked.every((one) => one === undefined)).toBe(
        true,
      )
  })

  it('end the run if they are made again although the model was asked twice, where the loop guard blocked them', () => {
    const block = { askText: '', fallback: '', tool: '', text: '' }
    expect(endsIfRefusedAgain({ ...block, guard: 'loop_guard' })).toBe(true)
    expect(endsIfRefusedAgain({ ...block, guard: 'max_agents' })).toBe(false)
  })

  it('pass where an operator lets the loop guard only warn, and are blocked where an operator lets it', () => {
    const isBlocked = (loop: LoopPolicy, loopMode: LoopPolicy['mode']) => {
      const turn = agent(loop).stuck()
      const runState = { ...turn.runState, loopMode }
      return GUARDS.some((guard) => guard.mayBlock(turn.request, runState))
    }
    expect(isBlocked(POLICY, 'warn')).toBe(false)
    expect(isBlocked(policyWith({ mode: 'warn' }), 'enforce')).toBe(true)
  })

  it('pass, and change nothing, where the session has forgotten the request', () => {
    const { request, runState } = agent().stuck()
    const counted = { fingerprint: 'another', thread: '' }
    const judged = judgeCalls(NEW_SESSION, counted, [AGAIN], { request, runState, isAgain: false, now: 0 })
    expect(judged).toEqual({ session: NEW_SESSION, result: { blocked: [], faults: [] } })
  })
})
