/** The conversations that a new process answers for itself. */
import { expect, it, onTestFinished } from 'vitest'
import { checkConfig } from '../../src/config/load.ts'
import type { ProxyEvent } from '../../src/telemetry/event.ts'
import { warmUp } from '../../src/warm-up.ts'
import { startGovernor } from '../support/governor.ts'
import { describeWith } from '../support/programs.ts'
import { runaway, startProvider } from '../support/provider.ts'
import { startRedis } from '../support/redis.ts'

const config = checkConfig({}, 'test')
const { signal: draining } = new AbortController()

it('guards every request of every API, whole and streamed, without a fault', async () => {
  const events: ProxyEvent[] = []
  const answered = await warmUp(
    config,
    { now: Date.now, draining },
    () => false,
    (event) => events.push(event),
  )
  const ended = events.filter((event) => event.kind === 'request_ended')
  expect(ended.length).toBe(answered)
  expect(events.filter(({ kind }) => kind === 'answered').length).toBe(answered)
  for (const dialect of ['chat', 'messages', 'responses', 'gemini']) {
    const iterations = ended.filter((event) => event.dialect === dialect).map(({ iteration }) => iteration)
    expect(new Set(iterations), dialect).toEqual(new Set(Array.from({ length: 12 }, (_, at) => at + 1)))
  }
  expect(events.filter(({ kind }) => kind === 'failed_open')).toEqual([])
})

it('waits while real requests are under way, and ends with the process', async () => {
  let looks = 0
  const closing = new AbortController()
  const isBusy = () => {
    looks++
    if (looks === 3) closing.abort()
    return looks < 3
  }
  expect(await warmUp(config, { now: Date.now, draining: closing.signal }, isBusy)).toBe(0)
})

describeWith('redis-server', 'a Governor that has warmed up', () => {
  it('has counted, said, stored and sent nothing', async () => {
    const provider = await startProvider(runaway())
    onTestFinished(() => provider.close())
    const redis = await startRedis()
    const { governor, url, events, logs } = await startGovernor(provider.url, {
      store: 'redis',
      redis: { url: redis.url },
    })
    const counts = async () => {
      const text = await (await fetch(`${url}/metrics`)).text()
      return text.split('\n').filter((line) => line.startsWith('governor_') && !line.startsWith('governor_store_'))
    }
    const [before, said, logged, keys] = [await counts(), events.length, logs.length, await redis.command('dbsize')]
    await governor.warmUp()
    const isOfStore = ({ kind }: ProxyEvent) => kind === 'store_answered'
    expect(events.slice(said).filter((event) => !isOfStore(event))).toEqual([])
    expect(logs.length).toBe(logged)
    expect(await redis.command('dbsize')).toBe(keys)
    expect(await counts()).toEqual(before)
    expect(provider.requests).toEqual([])
  })
})
