import fc from 'fast-check'
import { expect, it } from 'vitest'
import {
  type ErrorReply,
  type ErrorStreak,
  enterStorm,
  withError,
  withoutErrors,
} from '../../../src/core/session/error-streak.ts'

const POLICY = { enabled: true, errors: 20 }
const reply = (waitMs?: number): ErrorReply => ({
  status: 529,
  contentType: 'application/json',
  body: '{}',
  ...(waitMs === undefined ? {} : { waitMs }),
})

it('any request goes through after the stated time to wait, whatever errors came before', () => {
  fc.assert(
    fc.property(
      fc.array(fc.tuple(fc.nat({ max: 700_000 }), fc.option(fc.integer({ min: 1, max: 400_000 }))), {
        maxLength: 60,
      }),
      (errors) => {
        let now = 0
        let streaks: readonly ErrorStreak[] = []
        for (const [gap, wait] of errors) {
          now += gap
          streaks = withError(streaks, 'a', reply(wait ?? undefined), POLICY, now)
        }
        const entered = enterStorm(streaks, 'a', POLICY, now)
        if (!entered.reply) return
        now += entered.reply.retryAfter * 1_000
        expect(enterStorm(entered.streaks, 'a', POLICY, now).reply).toBeUndefined()
      },
    ),
  )
})

it('at most 4 error streaks are remembered, and a success removes its own', () => {
  fc.assert(
    fc.property(fc.array(fc.string(), { minLength: 1, maxLength: 40 }), (targets) => {
      let streaks: readonly ErrorStreak[] = []
      for (const [at, target] of targets.entries()) streaks = withError(streaks, target, reply(), POLICY, at * 1_000)
      expect(streaks.length).toBeLessThanOrEqual(4)
      const last = targets.at(-1) ?? ''
      expect(withoutErrors(streaks, last).some(({ target }) => target === last)).toBe(false)
    }),
  )
})

it('any jumps of the clock leave nobody waiting for more than a minute without a probe', () => {
  const jump = fc.integer({ min: -100_000_000, max: 100_000_000 })
  const gaps = fc.array(fc.integer({ min: 3_000, max: 6_000 }), { minLength: 21, maxLength: 40 })
  fc.assert(
    fc.property(gaps, jump, gaps, jump, (before, first, after, last) => {
      let now = 1_800_000_000_000
      let streaks: readonly ErrorStreak[] = []
      for (const gap of [...before, first, ...after]) {
        now += gap
        streaks = withError(streaks, 'a', reply(), POLICY, now)
      }
      now += last
      const entered = enterStorm(streaks, 'a', POLICY, now)
      if (entered.reply) expect(enterStorm(entered.streaks, 'a', POLICY, now + 60_000).reply).toBeUndefined()
    }),
  )
})
