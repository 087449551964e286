import { Counter, Histogram, Registry } from 'prom-client'
import { describe, expect, it } from 'vitest'
import { Spreads, Tally } from '../../src/telemetry/tally.ts'

const LABELS = [
  ['a', 'x'],
  ['b"\\', 'x'],
  ['a', 'y'],
  ['a', 'x'],
  ['', ''],
] as const

describe('what is counted here', () => {
  it('is told as prom-client would tell it, counters', async () => {
    const [own, theirs] = [new Registry(), new Registry()]
    const tally = new Tally(own, 'things_total', 'Things.', ['one', 'other'])
    const counter = new Counter({
      name: 'things_total',
      help: 'Things.',
      labelNames: ['one', 'other'],
      registers: [theirs],
    })
    expect(await own.metrics()).toBe(await theirs.metrics())
    for (const [at, [one, other]] of LABELS.entries()) {
      tally.add(at + 0.5, one, other)
      counter.inc({ one, other }, at + 0.5)
    }
    expect(await own.metrics()).toBe(await theirs.metrics())
    expect(await own.metrics()).toBe(await theirs.metrics())
  })

  it('is told as prom-client would tell it, a counter without labels', async () => {
    const registry = new Registry()
    const tally = new Tally(registry, 'things_total', 'Things.', [])
    expect(await registry.metrics()).toContain('\nthings_total 0\n')
    tally.add(2)
    expect(await registry.metrics()).toContain('\nthings_total 2\n')
  })

  it.each([[], ['one', 'other']])(
    'is told as prom-client would tell it, histograms',
    async (...labelNames) => {
      const [own, theirs] = [new Registry(), new Registry()]
      const buckets = [0.1, 1, 2.5]
      const spreads = new Spreads(own, 'seconds', 'Seconds.', buckets, labelNames)
      const histogram = new Histogram({
        name: 'seconds',
        help: 'Seconds.',
        buckets,
        labelNames,
        registers: [theirs],
      })
      expect(await own.metrics()).toBe(await theirs.metrics())
      for (const value of [0, 0.1, 0.100001, 1.7, 2.5, 9]) {
        for (const [one, other] of LABELS) {
          if (labelNames.length === 0) spreads.add(value)
          else spreads.add(value, one, other)
          if (labelNames.length === 0) histogram.observe(value)
          else histogram.observe({ one, other }, value)
        }
      }
      expect(await own.metrics()).toBe(await theirs.metrics())
    },
  )
})
