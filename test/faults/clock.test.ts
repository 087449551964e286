/** A system clock that is set while the built program runs. */
import { describe, expect, it, onTestFinished, vi } from 'vitest'
import { afterStep, callModel, START } from '../support/agent.ts'
import { type ChatMessage, runaway, type Script, startProvider } from '../support/provider.ts'
import { startTampered } from './tampered-process.ts'

const DAY = 86_400_000
const headers = { 'x-governor-session': 'one' }

async function start(config: Record<string, unknown>, script: Script = runaway()) {
  const provider = await startProvider(script)
  onTestFinished(() => provider.close())
  const governor = await startTampered(provider.url, config)
  let messages: ChatMessage[] = [...START]
  return {
    ...governor,
    provider,
    async step() {
      const step = await callModel(governor.url, messages, { headers })
      if (!step.governor) messages = afterStep(messages, step)
      return step
    },
    /** The same agent after it compacted its history: only the newest step is left. */
    compact() {
      messages = [...START, ...messages.slice(-2)]
    },
    async session() {
      const reply = await fetch(`${governor.url}/governor/sessions`)
      const { sessions } = (await reply.json()) as { sessions: Record<string, unknown>[] }
      expect(sessions).toHaveLength(1)
      return sessions[0] ?? {}
    },
  }
}

/** Asks until the process has noticed that time has passed. */
async function until<T>(look: () => Promise<T>, isIt: (found: T) => boolean): Promise<T> {
  return vi.waitFor(
    async () => {
      const found = await look()
      expect(isIt(found)).toBe(true)
      return found
    },
    { timeout: 20_000, interval: 100 },
  )
}

describe.each([
  ['a day forward', [DAY]],
  ['a day back', [-DAY]],
  ['forward and back', [DAY, -2 * DAY]],
])('a clock that is set %s', (_, shifts) => {
  it('neither ends a run early nor gives it more time', async () => {
    const { step, setClock, session } = await start({
      budget: { max_iterations: 0, run: { max_seconds: 3 } },
    })
    const began = performance.now()
    expect((await step()).governor).toBeUndefined()
    for (const shift of shifts) {
      await setClock(shift)
      const next = await step()
      // A machine that took so long for two requests has used the time indeed.
      if (performance.now() - began < 3_000) expect(next.governor).toBeUndefined()
    }
    const last = await until(step, (next) => next.governor !== undefined)
    expect(last.governor).toMatchObject({ terminal_reason: 'max_seconds', budget_max: 3 })
    expect(performance.now() - began).toBeGreaterThan(2_900)
    expect(last.governor?.['budget_used']).toBeGreaterThanOrEqual(3)
    expect(await session()).toMatchObject({ state: 'stopped' })
  })

  it('forgets no session, and keeps all that an operator may want to know of it', async () => {
    const { step, setClock, compact, session } = await start({ budget: { max_iterations: 50 } })
    for (let at = 0; at < 5; at++) await step()
    for (const shift of shifts) await setClock(shift)
    compact()
    expect((await step()).headers.get('x-governor-iteration')).toBe('6/50')
    expect(await session()).toMatchObject({ state: 'working', total_iterations: 6 })
  })
})

describe('a machine that sleeps', () => {
  it('uses up the time of a run', async () => {
    const { step, suspend } = await start({ budget: { max_iterations: 0, run: { max_seconds: 1_800 } } })
    expect((await step()).governor).toBeUndefined()
    await suspend(2_400_000)
    const { governor } = await until(step, (next) => next.governor !== undefined)
    expect(governor).toMatchObject({ terminal_reason: 'max_seconds' })
  })

  it('leaves a run within its time when it sleeps for less', async () => {
    const { step, suspend } = await start({ budget: { max_iterations: 6, run: { max_seconds: 1_800 } } })
    await step()
    await suspend(500_000)
    let last = await step()
    while (!last.governor) last = await step()
    expect(last.governor).toMatchObject({ terminal_reason: 'max_iterations', budget_used: 6 })
  })

  it('forgets sessions that were not used for their ttl', async () => {
    const { step, suspend, session, url } = await start({ sessions: { ttl: '1h' } })
    await step()
    // What an answer used is recorded after the client has it, and is a use.
    const { id } = await until(session, (one) => Number(one['tokens']) > 0)
    const status = async () => (await fetch(`${url}/governor/sessions/${id}`)).status
    expect(await status()).toBe(200)
    await suspend(7_200_000)
    await until(status, (found) => found === 404)
  })
})

it('a limit of a day belongs to the day that the clock shows once it is set, and no sum of a day is lost', async () => {
  const { url, setClock } = await start({ budget: { time_zone: 'UTC', day: { max_iterations: 2 } } }, () => ({
    text: 'It is 42.',
  }))
  let asked = 0
  const isAnswered = async () => {
    const question = { role: 'user', content: `Question ${++asked}` }
    return (await callModel(url, [question], { headers })).governor === undefined
  }
  const fourTimes = async () => [await isAnswered(), await isAnswered(), await isAnswered(), await isAnswered()]
  expect(await fourTimes()).toEqual([true, true, false, false])
  await setClock(DAY)
  expect(await fourTimes()).toEqual([true, true, false, false])
  await setClock(-DAY)
  expect(await fourTimes()).toEqual([false, false, false, false])
  await setClock(2 * DAY)
  expect(await fourTimes()).toEqual([true, true, false, false])
})
