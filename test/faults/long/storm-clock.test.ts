/** A storm of errors in which the system clock is set, in the built program. */
import { expect, it, onTestFinished } from 'vitest'
import { callModel, START } from '../../support/agent.ts'
import { type Answer, startProvider } from '../../support/provider.ts'
import { startTampered } from '../tampered-process.ts'

const DAY = 86_400_000
const BUSY: Answer = { status: 529, body: { error: { message: 'Overloaded' } } }

it.each([DAY, -DAY])(
  'a clock that is set by %i ms in a storm of errors keeps nobody waiting for it',
  async (shift) => {
    let isBusy = true
    const provider = await startProvider(async () => {
      // A busy provider takes its time to say so: a storm is one after a minute.
      if (isBusy) await new Promise((resolve) => setTimeout(resolve, 500))
      return isBusy ? BUSY : { text: 'Here I am again.' }
    })
    onTestFinished(() => provider.close())
    const governor = await startTampered(provider.url, {})
    const ask = () => callModel(governor.url, START, { headers: { 'x-governor-session': 'one' } })
    let step = await ask()
    while (!step.headers.has('x-governor-storm')) step = await ask()
    await governor.setClock(shift)
    isBusy = false
    step = await ask()
    expect(Number(step.headers.get('retry-after') ?? 1)).toBeLessThanOrEqual(60)
    while (step.status !== 200) step = await ask()
    expect(step.message.content).toBe('Here I am again.')
    expect((await ask()).status).toBe(200)
  },
  300_000,
)
