import { describe, expect, it } from 'vitest'
import { countRequest } from '../../src/core/session/count-request.ts'
import { NEW_SESSION, type Session } from '../../src/core/session/session.ts'
import { noteAnswer } from '../../src/core/session/transitions.ts'
import { estimateTokens } from '../../src/core/usage.ts'
import { type Message, requestFacts, requestOf, steps, system, user } from './transcript.ts'

const TASK = [system('You are an agent.'), user('Fix the bug.')]
const call = { input: 100, output: 10, cachedInput: 40, cost: 0.25, estimated: false }

/** The session after a request, and what identifies the request there. */
function seen(session: Session, messages: readonly Message[], thread = '') {
  const facts = requestFacts(messages)
  const next = countRequest(session, requestOf(facts, { thread })).session
  return { session: next, request: { fingerprint: facts.fingerprint, thread } }
}

describe('the usage of a run', () => {
  it('adds up over its answers; the usage of the session adds up over all threads', () => {
    const one = seen(NEW_SESSION, TASK, 'main')
    const other = seen(one.session, TASK, 'helper')
    let session = noteAnswer(other.session, one.request, { usage: call, ids: [], requestBytes: 400 })
    session = noteAnswer(session, other.request, { usage: call, ids: [], requestBytes: 400 })
    const next = seen(session, [...TASK, ...steps('a', 1)], 'main')
    session = noteAnswer(next.session, next.request, { usage: call, ids: [], requestBytes: 400 })
    const countsOf = (name: string) => session.threads.find((thread) => thread.name === name)?.run.counts
    expect(countsOf('main')).toMatchObject({ input: 200, output: 20, cached_input: 80, cost: 0.5 })
    expect(countsOf('helper')).toMatchObject({ input: 100, output: 10, cached_input: 40, cost: 0.25 })
    expect(session.counts).toMatchObject({ runs: 2, input: 300, output: 30, cached_input: 120, cost: 0.75 })
  })

  it('begins at zero with a human message, while that of the session continues', () => {
    const one = seen(NEW_SESSION, TASK)
    const session = noteAnswer(one.session, one.request, { usage: call, ids: [], requestBytes: 400 })
    const next = seen(session, [...TASK, ...steps('a', 1), user('And the tests.')])
    expect(next.session.threads.at(-1)?.run.counts.input).toBeUndefined()
    expect(next.session.counts).toMatchObject({ runs: 2, input: 100 })
    const late = noteAnswer(next.session, one.request, { usage: call, ids: [], requestBytes: 400 })
    expect(late.threads.at(-1)?.run.counts.input).toBeUndefined()
    expect(late.counts.input).toBe(200)
  })
})

describe('a response that a client continues from', () => {
  it('identifies its thread, whatever the request shows', () => {
    const main = seen(NEW_SESSION, TASK)
    const other = seen(main.session, [system('You are a helper.'), user('Look it up.')])
    let session = noteAnswer(other.session, main.request, { usage: call, ids: ['resp_1'], requestBytes: 400 })
    session = noteAnswer(session, other.request, { usage: call, ids: ['resp_2'], requestBytes: 400 })
    const facts = {
      ...requestFacts([{ role: 'tool', tool_call_id: 'a', content: 'ok' }]),
      previous: 'resp_1',
    }
    const { result: runState, session: after } = countRequest(session, requestOf(facts))
    expect(runState.iteration).toBe(2)
    expect(after.threads.at(-1)?.responses).toEqual(['resp_1'])
  })

  it('must be one of the newest eight of its thread', () => {
    const { session, request } = seen(NEW_SESSION, TASK)
    const ids = Array.from({ length: 50 }, (_, at) => `resp_${at}`)
    const after = ids.reduce(
      (all, id) => noteAnswer(all, request, { usage: call, ids: [id], requestBytes: 400 }),
      session,
    )
    expect(after.threads[0]?.responses).toEqual(ids.slice(-8))
  })
})

describe('the number of tokens', () => {
  it('is estimated from characters', () => {
    expect([0, 1, 4, 4_000].map(estimateTokens)).toEqual([0, 1, 1, 1_000])
  })
})
