/** A client that names its session, and gives all calls of its history new ids with each request. */
import { describe, expect, it } from 'vitest'
import { startBeforeModel } from '../support/governor.ts'
import { whole } from '../support/reducers.ts'
import {
  type Agent,
  createAgent,
  human,
  keyOf,
  note,
  numberIn,
  runShortened,
  searcher,
  verdictsOf,
} from '../support/shortened-agent.ts'
import { DIALECTS, type Entry } from '../support/transcripts.ts'

let ids = 0

/** Returns a history with a new id for each call. */
function renewed(history: readonly Entry[]): readonly Entry[] {
  const names = new Map<string, string>()
  return history.map((entry) => {
    if (entry.kind === 'result') return { ...entry, id: names.get(entry.id) ?? entry.id }
    if (entry.kind !== 'answer') return entry
    for (const { id } of entry.calls) names.set(id, `own_${++ids}`)
    return { ...entry, calls: entry.calls.map((call) => ({ ...call, id: names.get(call.id) ?? call.id })) }
  })
}

describe.each(DIALECTS)('an agent over %s whose client gives all calls new ids with each request', (dialect) => {
  const agentOf = (url: string, loops: boolean, form?: typeof renewed): Agent => {
    const key = keyOf({ loops, isStubborn: true })
    return createAgent({ url, dialect, stream: true, reducer: whole, session: 'session', key, ...(form && { form }) })
  }

  it('is warned, blocked and ended in a loop like one whose ids stay', async () => {
    const { url } = await startBeforeModel({})
    const expected = verdictsOf(await runShortened(agentOf(url, true), 20))
    expect(expected.at(-1)).toContain('loop_guard')
    expect(verdictsOf(await runShortened(agentOf(url, true, renewed), 20))).toEqual(expected)
  })

  it('has what it repeats counted anew from what a human says, as one whose ids stay', async () => {
    const { url } = await startBeforeModel({})
    const play = async (form?: typeof renewed) => {
      const agent = agentOf(url, true, form)
      await runShortened(agent, 20)
      agent.say(human('Now do the other thing.'))
      return verdictsOf(await runShortened(agent, agent.seen.length + 20))
    }
    expect(await play(renewed)).toEqual(await play())
  })

  it('is counted and ended in a loop also if a message at the end of each request comes once', async () => {
    const { url } = await startBeforeModel({})
    const stated = (history: readonly Entry[]) => {
      const state = history.length > 2 ? [note(`Messages: ${history.length}.`)] : []
      return [...renewed(history), ...state]
    }
    const seen = await runShortened(agentOf(url, true, stated), 20)
    expect(verdictsOf(seen).at(-1)).toContain('loop_guard')
    const worked = agentOf(url, false, stated)
    for (let at = 0; at < 5; at++) await worked.step()
    // The first such message may be a human's.
    expect(worked.seen.map(numberIn)).toEqual([1, 1, 3, 4, 5])
  })

  it('is counted step by step, and anew from what a human says', async () => {
    const { url } = await startBeforeModel({})
    const agent = agentOf(url, false, renewed)
    for (let at = 0; at < 5; at++) await agent.step()
    agent.say(human('Now do the other thing.'))
    for (let at = 0; at < 3; at++) await agent.step()
    expect(agent.seen.map(numberIn)).toEqual([1, 2, 3, 4, 5, 1, 2, 3])
    expect(verdictsOf(agent.seen)).toEqual(Array(8).fill('allow'))
  })

  it('has a run of its own for each human message where its client names its thread, also with the same words', async () => {
    const { url } = await startBeforeModel({ budget: { max_iterations: 3 } })
    const headers = { 'thread-id': 'one' }
    const options = { url, dialect, stream: true, reducer: whole, session: 'session', headers, form: renewed }
    const agent = createAgent({ ...options, key: keyOf({}), task: 'Go on.' })
    for (let run = 0; run < 3; run++) {
      await runShortened(agent, agent.seen.length + 4)
      agent.say(human('Go on.'))
    }
    expect(agent.seen.map(({ iteration }) => iteration)).toEqual(Array(3).fill(['1/3', '2/3', '3/3', '3/3']).flat())
  })

  it('is counted as others are where its first request failed and was sent again', async () => {
    let failures = 3
    const { url } = await startBeforeModel({}, (request) =>
      failures-- > 0 ? { status: 503, body: { error: { message: 'busy' } } } : searcher(request),
    )
    const stated = (history: readonly Entry[]) =>
      history.length > 2 ? [...renewed(history), note(`Messages: ${history.length}.`)] : history
    const agent = agentOf(url, false, stated)
    expect((await agent.step()).status).toBe(503)
    while (failures > 0) await agent.step()
    for (let at = 0; at < 5; at++) await agent.step()
    expect(agent.seen.slice(-5).map(numberIn)).toEqual([1, 1, 3, 4, 5])
  })
})
