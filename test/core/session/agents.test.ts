import { describe, expect, it } from 'vitest'
import type { ToolCall } from '../../../src/core/conversation/conversation.ts'
import { judgeCalls } from '../../../src/core/guards.ts'
import { agentsIn } from '../../../src/core/session/agents.ts'
import { countRequest } from '../../../src/core/session/count-request.ts'
import { NEW_SESSION, type Session } from '../../../src/core/session/session.ts'
import { noteAnswer } from '../../../src/core/session/transitions.ts'
import { BUDGET, conversationOf, requestFacts, requestOf, user } from '../transcript.ts'

const SPAWN: ToolCall = { id: 's', name: 'task', arguments: '{"prompt":"Look."}' }
const TWO: ToolCall = { ...SPAWN, arguments: '{"tasks":["a","b"]}' }
const READ: ToolCall = { id: 'r', name: 'read', arguments: '{}' }

/** One session, whose tree of agents has these limits. */
function tree(agents: Partial<typeof BUDGET.agents>) {
  let session: Session = NEW_SESSION
  let texts: readonly string[] = []
  const budget = { ...BUDGET, agents: { ...BUDGET.agents, ...agents }, spawnTools: ['task'] }
  /** Counts a request of a thread, and judges the calls of its answer; returns why each is blocked. */
  const ask = (thread: string, now: number, calls: readonly ToolCall[] = [], parent?: string) => {
    const messages = [user(`Go, ${thread || 'main'}.`)]
    const facts = requestFacts(messages)
    const request = requestOf(facts, { conversation: conversationOf(messages), budget, thread, now, parent })
    const counted = { fingerprint: facts.fingerprint, thread }
    const { session: after, result: runState } = countRequest(session, request)
    const judged = judgeCalls(after, counted, calls, { request, runState, isAgain: false, now })
    session = judged.session
    texts = judged.result.blocked.flatMap((block) => block?.text ?? [])
    return judged.result.blocked.map((block) => block?.guard)
  }
  return {
    ask,
    /** What the model reads in place of the calls that were blocked last. */
    texts: () => texts,
    /** The notice that the next request of the main agent carries. */
    notice: () => session.threads.find(({ name }) => name === '')?.blockNotice?.text,
    /** The agent of a thread gives its answer, without a call. */
    answer(thread: string) {
      const { fingerprint } = requestFacts([user(`Go, ${thread}.`)])
      const usage = { input: 1, output: 1, estimated: false }
      const facts = { usage, ids: [], requestBytes: 1, callsNothing: true }
      session = noteAnswer(session, { fingerprint, thread }, facts)
    },
    count: (now: number) => agentsIn(session, now),
    /** The times that are remembered at which agents were started. */
    times: () => Object.keys(session.guards?.max_agents ?? {}).filter((key) => key.startsWith('at ')),
    depthOf: (thread: string) => session.threads.find(({ name }) => name === thread)?.depth,
  }
}

describe('the limits of a tree of agents', () => {
  it('block the call that would start one too many in all, also within one response and of several at once', () => {
    const one = tree({ total: 3 })
    expect(one.ask('', 0, [SPAWN, READ, TWO, SPAWN, READ])).toEqual([
      ...[undefined, undefined, undefined, 'max_agents', undefined],
    ])
    expect(one.count(0)).toEqual({ total: 3, running: 3 })
    expect(tree({ total: 1 }).ask('', 0, [TWO])).toEqual(['max_agents'])
  })

  it('tell the model why, and what to do; the next request says each reason once', () => {
    const one = tree({ total: 3 })
    one.ask('', 0, [TWO, TWO, SPAWN, SPAWN])
    const [two, three] = ['2 of 3', '3 of 3'].map(
      (used) =>
        `[GOVERNOR] This session already runs ${used} agents. Do not retry. Do this part yourself with your tools.`,
    )
    expect(one.texts()).toEqual([two, three])
    expect(one.notice()).toBe(`${two}\n\n${three}`)
    const waits = tree({ concurrent: 1 })
    waits.ask('', 0, [TWO])
    expect(waits.texts()).toEqual([expect.stringMatching(/already runs 0 of 1 agents.*, or wait for one to finish\.$/)])
    const deep = tree({ depth: 1 })
    deep.ask('', 0)
    deep.ask('a', 0, [SPAWN])
    expect(deep.texts()).toEqual([expect.stringMatching(/^\[GOVERNOR\] Agents may stand 1 deep/)])
  })

  it('take the first thread without a name for the main agent, also if its agents come before it', () => {
    const one = tree({ depth: 1 })
    one.ask('a', 0)
    expect(one.ask('', 0, [SPAWN])).toEqual([undefined])
    expect(one.depthOf('')).toBeUndefined()
  })

  it('count the agents that came before the one without a name', () => {
    const one = tree({ total: 9 })
    for (const thread of ['a', 'b', 'c', '']) one.ask(thread, 0)
    expect(one.count(0).total).toBe(2)
  })

  it('remember nothing of a response that starts no agent', () => {
    const one = tree({ total: 9 })
    one.ask('', 0, [READ])
    expect(one.times()).toEqual([])
  })

  it('block a call that would start one too many at once, until one of them is over or was not seen for a minute', () => {
    const one = tree({ concurrent: 2 })
    expect(one.ask('', 0, [SPAWN, SPAWN, SPAWN])).toEqual([undefined, undefined, 'max_concurrent_agents'])
    one.ask('a', 1_000)
    expect(one.count(1_000)).toEqual({ total: 2, running: 2 })
    expect(one.count(59_000).running).toBe(2)
    expect(one.count(62_000).running).toBe(1)
    one.answer('a')
    expect(one.count(62_000)).toEqual({ total: 2, running: 0 })
    expect(one.ask('b', 62_000, [TWO])).toEqual(['max_concurrent_agents'])
  })

  it('block each call of an agent that stands as deep as allowed', () => {
    const one = tree({ depth: 1 })
    expect(one.ask('', 0, [SPAWN])).toEqual([undefined])
    expect(one.ask('a', 0, [SPAWN, READ])).toEqual(['max_depth', undefined])
    one.ask('b', 0, [], 'a')
    expect([one.depthOf(''), one.depthOf('a'), one.depthOf('b')]).toEqual([undefined, 1, 2])
  })

  it('count an agent once that was started and then seen, and one that nobody was seen to start', () => {
    const one = tree({ total: 9 })
    one.ask('', 0, [SPAWN])
    one.ask('a', 0)
    expect(one.count(0).total).toBe(1)
    one.ask('b', 0)
    one.ask('c', 0)
    expect(one.count(0).total).toBe(3)
  })

  it('count the calls of a request that is sent again once', () => {
    const one = tree({ total: 9 })
    one.ask('', 0, [SPAWN])
    one.ask('', 10, [SPAWN])
    expect(one.count(10).total).toBe(1)
  })

  it('forget when agents were started a minute after that, not how many', () => {
    const one = tree({ total: 9 })
    one.ask('', 0, [SPAWN])
    expect(one.ask('a', 90_000, [SPAWN])).toEqual([undefined])
    expect(one.count(90_000).total).toBe(2)
    expect(one.times()).toHaveLength(1)
  })

  it('are none where they are 0', () => {
    expect(tree({}).ask('', 0, [SPAWN, TWO])).toEqual([undefined, undefined])
  })
})

describe('a main agent that is seen after its agents, as after a restart', () => {
  it('leaves what is remembered of them as it is', () => {
    const { ask, times, depthOf } = tree({ total: 9 })
    ask('a', 0, [SPAWN])
    expect(times()).toHaveLength(1)
    ask('', 1)
    expect(times()).toHaveLength(1)
    expect([depthOf('a'), depthOf('')]).toEqual([undefined, undefined])
  })
})
