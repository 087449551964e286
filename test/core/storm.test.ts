import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
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

/** A streak of errors to one body, each so many milliseconds after the one before; returns it with the newest time. */
function errors(count: number, gap: number, { policy = POLICY, wait, bodies = 1 }: ErrorsOptions = {}) {
  let streak: ErrorStreak | undefined
  for (let at = 0; at < count; at++) streak = withError(streak, reply(wait), policy, at * gap, `b${at % bodies}`)
  return { streak, now: (count - 1) * gap }
}
interface ErrorsOptions {
  readonly policy?: typeof POLICY
  readonly wait?: number
  readonly bodies?: number
}

/** What a request gets so many milliseconds after the newest error: seconds to wait, or `sent` if it goes through. */
const waitOf = ({ streak, now }: ReturnType<typeof errors>, ms = 0) =>
  enterStorm(streak, POLICY, now + ms).reply?.retryAfter ?? 'sent'

describe('a storm', () => {
  it.each([
    ['begins with the 20th error, a minute after the first', errors(20, 3_158), 5],
    ['does not begin with 19 errors', errors(19, 4_000), 'sent'],
    ['begins with exactly a minute', errors(21, 3_000), 5],
    ['does not begin a millisecond earlier', errors(20, 3_157), 'sent'],
    ['begins with 20 errors to one body in exactly two seconds', errors(20, 100), 5],
    ['does not begin with errors to one body that come more slowly', errors(20, 106), 'sent'],
    ['does not begin with quick errors to two bodies in turn', errors(38, 50, { bodies: 2 }), 'sent'],
    ['does not begin without errors', { streak: undefined, now: 0 }, 'sent'],
  ] as const)('%s', (_, streak, expected) => {
    expect(waitOf(streak)).toBe(expected)
  })

  it('begins as late after the clock was set back as it would have', () => {
    let streak: ErrorStreak | undefined = withError(undefined, reply(), POLICY, 3_600_000, 'b0')
    for (let at = 0; at <= 20; at++) streak = withError(streak, reply(), POLICY, at * 3_000, 'b0')
    expect([waitOf({ streak, now: 60_000 }), waitOf({ streak, now: 65_000 })]).toEqual([5, 'sent'])
  })

  it('does not begin because of quick errors from before the clock was set back, and keeps the times of 20', () => {
    let streak: ErrorStreak | undefined
    for (let at = 0; at < 19; at++) streak = withError(streak, reply(), POLICY, 3_600_000 + at * 100, 'b0')
    expect(waitOf({ streak: withError(streak, reply(), POLICY, 0, 'b0'), now: 0 })).toBe('sent')
    expect(errors(60, 10).streak?.repeated?.at).toHaveLength(20)
  })

  it('begins only where storms are enabled', () => {
    const { streak, now } = errors(20, 100)
    expect(enterStorm(streak, { ...POLICY, enabled: false }, now)).toEqual({ streak })
  })

  it('that one body caused goes on where another one gets errors more slowly', () => {
    const { streak, now } = errors(20, 100)
    const later = now + 30_000
    expect(waitOf({ streak: withError(streak, reply(), POLICY, later, 'other'), now: later })).toBe(10)
  })
})

describe('a request in a storm', () => {
  it('waits until five seconds have passed since the newest error, and then goes through as the probe', () => {
    const storm = errors(20, 100)
    expect([waitOf(storm, 4_001), waitOf(storm, 4_999), waitOf(storm, 5_000)]).toEqual([1, 1, 'sent'])
  })

  it.each([
    [0, 5],
    [1, 10],
    [2, 30],
    [3, 50],
    [4, 50],
  ])('waits longer after %i probes that failed: %i seconds', (failed, seconds) => {
    let { streak, now } = errors(20, 100)
    for (let at = 0; at < failed; at++) {
      now += 60_000
      streak = withError(streak, reply(), POLICY, now, 'b0')
    }
    expect(waitOf({ streak, now })).toBe(seconds)
  })

  it('gets the wait that the provider asks for, and may go through after 50 seconds of a longer one', () => {
    const storm = errors(20, 100, { wait: 120_000 })
    expect([waitOf(storm), waitOf(storm, 49_999), waitOf(storm, 50_000)]).toEqual([120, 71, 'sent'])
    expect(waitOf(errors(20, 100, { wait: 200 }), 199)).toBe(1)
  })

  it('waits while a probe is in flight, for at most a minute', () => {
    const { streak, now } = errors(20, 100)
    const sent = now + 5_000
    const probing = { streak: enterStorm(streak, POLICY, sent).streak, now: sent }
    expect([waitOf(probing), waitOf(probing, 59_999), waitOf(probing, 60_000)]).toEqual([5, 5, 'sent'])
  })

  it('gets the newest error, and how many there were', () => {
    const { streak, now } = errors(20, 100)
    expect(enterStorm(streak, POLICY, now).reply).toEqual({ error: reply(), retryAfter: 5, errors: 20 })
  })
})
