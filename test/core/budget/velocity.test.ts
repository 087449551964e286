import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { isExhausted } from '../../../src/core/budget/meters.ts'
import {
  isReached,
  MAX_SLOWED_MS,
  mayGo,
  ratesOf,
  type Velocity,
  type Waiting,
  withWaiting,
} from '../../../src/core/budget/velocity.ts'
import type { Counts } from '../../../src/core/counters.ts'
import { EMPTY_RECORD, MINUTE_MS, withMinute } from '../../../src/core/operator/session-record.ts'
import { NEW_SESSION, type Session } from '../../../src/core/session/session.ts'

const NOON = Date.parse('2026-11-27T12:00:00Z')

const velocityOf = (limits: Partial<Velocity['limits']>, minutes: number): Velocity => ({
  limits: { iterations: 0, tokens: 0, cost: 0, ...limits },
  minutes,
  slows: false,
  isObserved: false,
})

/** A session after one more answer. */
function withAnswer({ record = EMPTY_RECORD, ...session }: Session, at: number, counts: Counts): Session {
  return { ...session, record: { ...record, minutes: withMinute(record.minutes, at, counts) } }
}

const schedule = fc.array(
  fc.record({ wait: fc.integer({ min: 0, max: 4 * MINUTE_MS }), tokens: fc.integer({ min: 0, max: 100 }) }),
  { maxLength: 80 },
)
const limits = fc.record({ max: fc.integer({ min: 1, max: 60 }), minutes: fc.integer({ min: 1, max: 60 }) })

describe('the rate of a session', () => {
  it('is 0 before the first answer', () => {
    expect(ratesOf(velocityOf({ tokens: 10 }, 1), NEW_SESSION, NOON)).toMatchObject([{ name: 'tokens', used: 0 }])
  })

  it('is at no time more than what was used in the time over which it is measured, in any schedule', () => {
    fc.assert(
      fc.property(schedule, limits, fc.nat(MINUTE_MS), (steps, { max, minutes }, offset) => {
        let session = NEW_SESSION
        let now = NOON + offset
        const all: { at: number; tokens: number }[] = []
        for (const { wait, tokens } of steps) {
          now += wait
          const really = all.filter(({ at }) => at > now - minutes * MINUTE_MS)
          const used = really.reduce((sum, one) => sum + one.tokens, 0)
          const [rate] = ratesOf(velocityOf({ tokens: max }, minutes), session, now)
          // Below the rate nothing is ended or slowed.
          if (used < max * minutes) expect(rate && isExhausted(rate)).toBe(false)
          session = withAnswer(session, now, { input: tokens })
          all.push({ at: now, tokens })
        }
      }),
    )
  })

  it('exceeds its limit, where requests pass below it alone, by one answer in any minutes of the clock', () => {
    fc.assert(
      fc.property(schedule, limits, fc.nat(MINUTE_MS), (steps, { max, minutes }, offset) => {
        let session = NEW_SESSION
        let now = NOON + offset
        const passed: { at: number; tokens: number }[] = []
        for (const { wait, tokens } of steps) {
          now += wait
          const rates = ratesOf(velocityOf({ tokens: max }, minutes), session, now)
          if (rates.some(isExhausted)) continue
          session = withAnswer(session, now, { input: tokens })
          passed.push({ at: now, tokens })
        }
        for (const { at: last } of passed) {
          const end = last - (last % MINUTE_MS) + MINUTE_MS
          const inside = passed.filter(({ at }) => at >= end - minutes * MINUTE_MS && at < end)
          const used = inside.reduce((sum, one) => sum + one.tokens, 0)
          const largest = Math.max(0, ...inside.map((one) => one.tokens))
          expect(used).toBeLessThan(max * minutes + Math.max(1, largest))
        }
      }),
    )
  })

  it('is below its limit when it says so, and not a millisecond before', () => {
    fc.assert(
      fc.property(schedule, limits, (steps, { max, minutes }) => {
        let session = NEW_SESSION
        let now = NOON
        for (const { wait, tokens } of steps) {
          now += wait
          session = withAnswer(session, now, { input: tokens })
          const velocity = velocityOf({ tokens: max }, minutes)
          const [rate] = ratesOf(velocity, session, now)
          if (!rate || !isReached(rate)) continue
          const { resetsAt } = rate.time
          expect(ratesOf(velocity, session, resetsAt).some(isReached)).toBe(false)
          expect(ratesOf(velocity, session, resetsAt - 1).some(isReached)).toBe(true)
        }
      }),
    )
  })

  it('reaches a limit in dollars to the cent', () => {
    let session = NEW_SESSION
    const velocity = velocityOf({ cost: 0.1 }, 3)
    for (let at = 0; at < 30; at++) {
      expect(ratesOf(velocity, session, NOON + at).some(isExhausted)).toBe(false)
      session = withAnswer(session, NOON + at, { cost: 0.01 })
    }
    expect(ratesOf(velocity, session, NOON + 30)).toMatchObject([{ name: 'cost', used: 0.1, max: 0.1 }])
    expect(ratesOf(velocity, session, NOON + 30).some(isExhausted)).toBe(true)
  })
})

/** Requests that come, responses that end, and rates that change, at times of a clock. */
const event = fc.record({
  wait: fc.integer({ min: 0, max: 9_000 }),
  does: fc.constantFrom('come', 'come', 'leave', 'end', 'fall', 'rise'),
  which: fc.nat(),
})

describe('requests that wait', () => {
  it('go on in their order, one at a time below the limit, none later than after 30 s, and leave nothing behind', () => {
    fc.assert(
      fc.property(fc.array(event, { maxLength: 120 }), (events) => {
        let queue: readonly Waiting[] = []
        let now = NOON
        let isBelow = false
        let waiting: Waiting[] = []
        let running: Waiting[] = []
        let came = 0
        const forget = (id: string) => {
          queue = queue.filter((one) => one.id !== id)
        }
        /** All that wait look at once, in any order: here the newest first. */
        const look = () => {
          for (const one of waiting.toReversed()) {
            queue = withWaiting(queue, one, now)
            if (!mayGo(queue, one, isBelow, now)) continue
            expect(now).toBeLessThanOrEqual(one.until)
            if (now < one.until) expect(running.every(({ until }) => until <= now)).toBe(true)
            // Only one whose own time is over as well has come before it.
            expect(waiting[0] === one || (waiting[0]?.until ?? 0) <= now).toBe(true)
            waiting = waiting.filter((other) => other !== one)
            running.push(one)
          }
          expect(new Set(queue.map(({ id }) => id)).size).toBe(queue.length)
        }
        const pass = (ms: number) => {
          const end = now + ms
          for (const { until } of [...waiting]) {
            if (until > end) break
            now = Math.max(now, until)
            look()
          }
          now = end
          look()
        }
        for (const { wait, does, which } of events) {
          pass(wait)
          const list = does === 'leave' ? waiting : running
          const one = list[which % Math.max(1, list.length)]
          if (does === 'come') {
            const next = { id: `${++came}`, until: now + MAX_SLOWED_MS }
            waiting.push(next)
            queue = withWaiting(queue, next, now)
          } else if (does === 'fall' || does === 'rise') isBelow = does === 'fall'
          else if (one) {
            forget(one.id)
            waiting = waiting.filter((other) => other !== one)
            running = running.filter((other) => other !== one)
          }
          look()
        }
        pass(MAX_SLOWED_MS)
        expect(waiting).toEqual([])
        for (const { id } of running) forget(id)
        expect(queue).toEqual([])
      }),
    )
  })

  it('are 256 at most; a later one waits for as long as it may', () => {
    let queue: readonly Waiting[] = []
    for (let at = 0; at < 300; at++) queue = withWaiting(queue, { id: String(at), until: 10 }, 0)
    expect(queue.map(({ id }) => id)).toEqual(Array.from({ length: 256 }, (_, at) => String(at)))
    const late = { id: '299', until: 10 }
    expect([mayGo(queue, late, true, 9), mayGo(queue, late, false, 10)]).toEqual([false, true])
  })
})
