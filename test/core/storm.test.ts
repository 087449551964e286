import fc from 'fast-check'
import { expect, it } from 'vitest'
import { type ErrorReply, type ErrorStreak, enterStorm, withError } from '../../src/core/storm.ts'

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
        let streak: ErrorStreak | undefined
        for (const [gap, wait] of errors) {
          now += gap
          streak = withError(streak, reply(wait ?? undefined), POLICY, now, 'b')
        }
        const entered = enterStorm(streak, POLICY, now)
        if (!entered.reply) return
        now += entered.reply.retryAfter * 1_000
        expect(enterStorm(entered.streak, POLICY, now).reply).toBeUndefined()
      },
    ),
  )
})

it('any jumps of the clock leave nobody waiting for more than a minute without a probe', () => {
  const jump = fc.integer({ min: -100_000_000, max: 100_000_000 })
  const gaps = fc.array(fc.integer({ min: 3_000, max: 6_000 }), { minLength: 21, maxLength: 40 })
  fc.assert(
    fc.property(gaps, jump, gaps, jump, (before, first, after, last) => {
      let now = 1_800_000_000_000
      let streak: ErrorStreak | undefined
      for (const gap of [...before, first, ...after]) {
        now += gap
        streak = withError(streak, reply(), POLICY, now, 'b')
      }
      now += last
      const entered = enterStorm(streak, POLICY, now)
      if (entered.reply) expect(enterStorm(entered.streak, POLICY, now + 60_000).reply).toBeUndefined()
    }),
  )
})
