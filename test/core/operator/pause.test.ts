import { describe, expect, it } from 'vitest'
import {
  MAX_PAUSES,
  type Pause,
  pausedPart,
  pausedWhom,
  pausesIn,
  withPause,
} from '../../../src/core/operator/pause.ts'

const pauseOf = (session: string, more: Partial<Pause> = {}): Pause => ({ session, since: 1_000, ...more })

describe('the pauses', () => {
  it('are as many as are allowed: the oldest gives way', () => {
    let pauses: readonly Pause[] = []
    for (let at = 0; at <= MAX_PAUSES; at++) pauses = withPause(pauses, pauseOf(`s${at}`))
    expect(pauses).toHaveLength(MAX_PAUSES)
    expect([pauses[0]?.session, pauses.at(-1)?.session]).toEqual(['s1', `s${MAX_PAUSES}`])
  })

  it('hold one for each scope, and none that is over when another one begins', () => {
    const before = [pauseOf('a'), pauseOf('b', { until: 2_000 }), pauseOf('c', { until: 2_001 })]
    const after = withPause(before, pauseOf('a', { since: 2_000, reason: 'Lunch.' }))
    expect(after).toEqual([before[2], pauseOf('a', { since: 2_000, reason: 'Lunch.' })])
  })

  it.each([
    [{}, 'all agents'],
    [{ session: null, key: null, upstream: null }, 'all agents'],
    [{ session: 's' }, 'session s'],
    [{ key: 'k', upstream: 'u' }, 'key k, upstream u'],
  ])('of %j name %s', (scope, words) => {
    expect(pausedWhom({ session: null, key: null, upstream: null, ...scope })).toBe(words)
  })

  it('hold all agents or a part of them', () => {
    expect(pausedPart([], 0)).toBeUndefined()
    expect(pausedPart([pauseOf('a', { until: 2_000 })], 1_999)).toBe('part')
    expect(pausedPart([pauseOf('a', { until: 2_000 })], 2_000)).toBeUndefined()
    expect(pausedPart([pauseOf('a'), { since: 1_000 }], 1_999)).toBe('all')
  })

  it('are read from a stored value as far as it holds them, whoever wrote it', () => {
    expect(pausesIn({ pauses: [] })).toEqual([])
    expect(pausesIn({ pauses: [null, { session: 's', since: 'soon', until: null, hold: 1, more: true }] })).toEqual([
      { session: 's', since: 0, hold: false },
    ])
    for (const stored of [undefined, null, [], {}, { pauses: {} }]) expect(pausesIn(stored)).toBeUndefined()
  })
})
