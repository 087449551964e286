/** No blocked call reaches the client, whatever part of Governor throws afterwards. */
import { describe, expect, it, onTestFinished } from 'vitest'
import { DIALECTS as GUARDED } from '../../src/dialect/index.ts'
import { breakable } from '../support/breakable.ts'
import { startGovernor } from '../support/governor.ts'
import { whole } from '../support/reducers.ts'
import { type Agent, createAgent, keyOf, searcher, startModel } from '../support/shortened-agent.ts'
import { createStore } from '../support/stores.ts'
import { DIALECTS, type DialectName } from '../support/transcripts.ts'

/** One call of a function; `count`: its number among those of that name, from 1. */
interface Place {
  readonly name: string
  readonly count: number
}

/** How often functions were called, by name, and the call that throws. */
interface Calls {
  counts: Map<string, number>
  broken: Place | undefined
}

const faultIn = (calls: Calls) => (name: string) => {
  const count = (calls.counts.get(name) ?? 0) + 1
  calls.counts.set(name, count)
  const { broken } = calls
  return broken?.name === name && broken.count === count ? new Error(`a fault in ${name}`) : undefined
}

/** A Governor that can be broken, and an agent whose next call in a loop is blocked. */
async function startBlocked(dialect: DialectName, stream: boolean) {
  const calls: Calls = { counts: new Map(), broken: undefined }
  let next: Pick<Calls, 'broken'> | undefined
  // Only what runs after the provider's answer can be about a blocked call.
  const model = await startModel((request) => {
    if (next) Object.assign(calls, next, { counts: new Map() })
    next = undefined
    return searcher(request)
  })
  onTestFinished(() => model.close())
  const dialects = GUARDED.map((one) => breakable(one, faultIn(calls), one.api.upstream.name))
  const store = breakable({ ...createStore(1_000) }, faultIn(calls), 'store')
  // No warning before the block: an agent comes to its block in three requests.
  const config = { loop_guard: { max_warnings_before_block: 0 } }
  const running = await startGovernor(model.url, config, { dialects, store })
  const isBlocked = (from: number) => running.events.slice(from).some(({ kind }) => kind === 'call_blocked')
  const agentOf = (): Agent => {
    const key = keyOf({ loops: true, isStubborn: true })
    return createAgent({ url: running.url, dialect, stream, reducer: whole, session: 'session', key })
  }
  const first = agentOf()
  let steps = 0
  for (; !isBlocked(0); steps++) await first.step()
  return {
    ...running,
    /** Lets a new agent come to its first blocked call, with a fault in one call of a function; returns what it sees. */
    async lastStep(broken?: Place) {
      const agent = agentOf()
      for (let at = 1; at < steps; at++) await agent.step()
      const from = running.events.length
      next = { broken }
      const seen = await agent.step()
      calls.broken = undefined
      return { seen, counts: calls.counts, isBlocked: isBlocked(from) }
    },
  }
}

const CASES = DIALECTS.flatMap((dialect) => [true, false].map((stream) => ({ dialect, stream })))

describe('a fault after a call was blocked', () => {
  it.each(CASES)('brings that call to no client: $dialect, stream: $stream', async ({ dialect, stream }) => {
    const { lastStep } = await startBlocked(dialect, stream)
    const { counts } = await lastStep()
    const blocked: string[] = []
    // The first call of each function where answers come whole, the last one where they are streamed.
    for (const [name, last] of counts) {
      const { seen, isBlocked } = await lastStep({ name, count: stream ? last : 1 })
      expect(seen.status, name).toBe(200)
      if (!isBlocked) continue
      blocked.push(name)
      expect(seen.answer.calls, name).toEqual([])
    }
    expect(blocked.length).toBeGreaterThan(5)
  })
})
