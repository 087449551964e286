import { setImmediate as turn } from 'node:timers/promises'
import { describe, expect, it } from 'vitest'
import { createTick } from '../../src/http/tick.ts'

describe('a tick', () => {
  it('makes the calls of one turn in order, and then resumes all who wait for it', async () => {
    const tick = createTick()
    const done: string[] = []
    const waits = [1, 2].map(async (name) => {
      await tick.next()
      done.push(`waited ${name}`)
    })
    for (const name of [1, 2]) tick.later(() => done.push(`called ${name}`))
    expect(done).toEqual([])
    await Promise.all(waits)
    expect(done).toEqual(['called 1', 'called 2', 'waited 1', 'waited 2'])
  })

  it('calls back in the same turn where one of those who waited asks for it', async () => {
    const tick = createTick()
    const done: string[] = []
    const waits = [1, 2].map(async (name) => {
      await tick.next()
      await undefined
      tick.later(() => done.push(`called ${name}`))
      done.push(`waited ${name}`)
    })
    setImmediate(() => setImmediate(() => done.push('next turn')))
    await Promise.all(waits)
    await turn()
    await turn()
    expect(done).toEqual(['waited 1', 'waited 2', 'called 1', 'called 2', 'next turn'])
  })

  it('resumes in the next turn who waits while others are resumed', async () => {
    const tick = createTick()
    await tick.next()
    const first = tick.next()
    await first
    expect(tick.next()).not.toBe(first)
  })

  it('makes all other calls and resumes those who wait where one call throws', async () => {
    const tick = createTick()
    const done: string[] = []
    const thrown = new Promise((resolve) => process.once('uncaughtException', resolve))
    tick.later(() => done.push('before'))
    tick.later(() => {
      throw new Error('a fault')
    })
    tick.later(() => done.push('after'))
    await tick.next()
    expect(await thrown).toEqual(new Error('a fault'))
    await turn()
    expect(done).toEqual(['before', 'after'])
  })
})
