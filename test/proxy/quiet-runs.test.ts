import { describe, expect, it } from 'vitest'
import { QUIET_MS } from '../../src/core/session/run.ts'
import { NEW_SESSION, type Run, type Session } from '../../src/core/session/session.ts'
import { agentNameOf } from '../../src/proxy/session/find-session.ts'
import { createQuietRuns } from '../../src/proxy/session/quiet-runs.ts'
import { createMemoryStore } from '../../src/store/memory.ts'
import { type SessionKey, type Store, sessionKey } from '../../src/store/store.ts'
import type { ProxyEvent } from '../../src/telemetry/event.ts'
import { runWith, threadWith } from '../core/transcript.ts'

const answeredAt = (at: number, iteration = 1): Run =>
  runWith({ startedAt: at, askedAt: at, counts: { iterations: iteration }, isAnswered: true })

const sessionOf = (...runs: readonly Run[]): Session => ({
  ...NEW_SESSION,
  threads: runs.map((run, at) => threadWith(run, { name: String(at), number: at + 1 })),
})

const keyOf = (at: number) => sessionKey('me', String(at))
const memory = () => createMemoryStore({ max: 100, ttl: 3_600_000, maxBytes: 10_000_000 })
const put = (store: Store, key: SessionKey, session: Session) =>
  store.update(key, () => ({ session, result: undefined }))

/** Quiet runs over a store, on a clock that goes on when it is told to. */
function start(store: Store) {
  let now = 1_000
  let waiting: { readonly at: number; readonly call: () => void }[] = []
  const events: ProxyEvent[] = []
  const quietRuns = createQuietRuns({
    store,
    emit: (event) => events.push(event),
    now: () => now,
    after(delay, call) {
      const timer = { at: now + delay, call }
      waiting.push(timer)
      return () => {
        waiting = waiting.filter((other) => other !== timer)
      }
    },
  })
  return {
    quietRuns,
    iterations: () => events.map((event) => (event.kind === 'run_ended' ? event.iterations : event.kind)),
    isWaiting: () => waiting.length > 0,
    /** Lets time go by; settles when all that was due is done. */
    async pass(ms: number) {
      now += ms
      const due = waiting.filter(({ at }) => at <= now)
      waiting = waiting.filter(({ at }) => at > now)
      for (const { call } of due) call()
      await new Promise((resolve) => setImmediate(resolve))
    },
  }
}

describe('runs that may end because nothing comes any more', () => {
  it('are reported after five minutes, each agent of a session once', async () => {
    const store = memory()
    const { quietRuns, iterations, pass } = start(store)
    await put(store, keyOf(1), sessionOf(answeredAt(1_000, 3), answeredAt(61_000, 5)))
    quietRuns.watch(keyOf(1))
    await pass(QUIET_MS - 1)
    expect(iterations()).toEqual([])
    await pass(1)
    expect(iterations()).toEqual([3])
    quietRuns.watch(keyOf(1))
    await pass(2 * QUIET_MS)
    expect(iterations()).toEqual([3, 5])
  })

  it('are forgotten with their session, which does not come back', async () => {
    const store = memory()
    const { quietRuns, iterations, pass, isWaiting } = start(store)
    quietRuns.watch(keyOf(1))
    await pass(QUIET_MS)
    expect(iterations()).toEqual([])
    expect(await store.get(keyOf(1))).toBeUndefined()
    expect(isWaiting()).toBe(false)
  })

  it('are not reported where the store fails, and those of other sessions are', async () => {
    const store = memory()
    await put(store, keyOf(1), sessionOf(answeredAt(1_000, 1)))
    await put(store, keyOf(2), sessionOf(answeredAt(1_000, 2)))
    const broken: Store = {
      ...store,
      get: (key) => (key === keyOf(1) ? Promise.reject(new Error('down')) : store.get(key)),
    }
    const { quietRuns, iterations, pass } = start(broken)
    quietRuns.watch(keyOf(1))
    quietRuns.watch(keyOf(2))
    await pass(QUIET_MS)
    expect(iterations()).toEqual([2])
  })

  it('wait in a bounded number', async () => {
    const looked: SessionKey[] = []
    const store = memory()
    const { quietRuns, pass } = start({
      ...store,
      async get(key) {
        looked.push(key)
        return undefined
      },
    })
    for (let at = 0; at <= 10_000; at++) quietRuns.watch(keyOf(at))
    await pass(QUIET_MS)
    await expect.poll(() => looked.length).toBe(10_000)
    expect(looked).not.toContain(keyOf(0))
    expect(looked).toContain(keyOf(10_000))
  })

  it('are not reported once Governor closes', async () => {
    const store = memory()
    const { quietRuns, iterations, pass, isWaiting } = start(store)
    await put(store, keyOf(1), sessionOf(answeredAt(1_000)))
    quietRuns.watch(keyOf(1))
    quietRuns.close()
    expect(isWaiting()).toBe(false)
    quietRuns.watch(keyOf(1))
    await pass(QUIET_MS)
    expect(iterations()).toEqual([])
  })
})

describe("the name of a client's program", () => {
  it.each([
    ['claude-cli/2.0.14 (external, cli)', 'claude-cli'],
    ['codex_cli_rs/0.40.0 (Debian 12.0.0; x86_64) xterm', 'codex_cli_rs'],
    ['OpenAI/JS 6.49.0', 'OpenAI'],
    ['node', 'node'],
    ['  curl/8.5.0', 'curl'],
    ['x'.repeat(10_000), 'x'.repeat(64)],
    ['<img onerror=alert(1)>', undefined],
    ['"quoted"/1', undefined],
    ['', undefined],
  ])('is the first product in the user agent %j: %j', (agent, name) => {
    expect(agentNameOf(['host', 'a', 'User-Agent', agent])).toBe(name)
  })

  it('is none without a user agent', () => {
    expect(agentNameOf(['host', 'a'])).toBeUndefined()
  })
})
