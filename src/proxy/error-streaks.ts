/** Counts the errors in a row of each thread, and replies with the newest one in a storm of them. */
import { LRUCache } from 'lru-cache'
import {
  type ErrorReply,
  type ErrorStreak,
  enterStorm,
  isStormError,
  type StormReply,
  withError,
} from '../core/storm.ts'
import type { Api } from '../dialect/dialect.ts'
import { decodedAtOnce } from '../http/body.ts'
import { contentEncoding, headerOf } from '../http/headers.ts'
import { reply } from '../http/response.ts'
import type { Head } from '../http/upstream.ts'
import type { SessionKey, ValueKind } from '../store/store.ts'
import { unlessLost } from './fault.ts'
import type { Services } from './services.ts'
import type { Turn } from './turn.ts'

/** Errors further apart than ten minutes do not belong to one storm. */
const STREAKS: ValueKind<ErrorStreak | undefined> = { name: 'error_streak', ttl: 600_000, empty: undefined }

const MAX_STREAKS = 10_000

/** Returns an empty memory, which forgets the streaks that were not used for longest. */
export function createKnownStreaks(): Services['streaks'] {
  return new LRUCache({ max: MAX_STREAKS })
}

/** Changes a streak for all processes, and returns the reply; `undefined` if the store fails. */
function changeStreak(
  { store, emit }: Services,
  key: SessionKey,
  by: (before: ErrorStreak | undefined) => { streak: ErrorStreak | undefined; reply?: StormReply | undefined },
): Promise<StormReply | undefined> {
  const stored = store.updateValue(STREAKS, key, (before) => {
    const { streak, reply } = by(before)
    return { value: streak, result: reply }
  })
  return unlessLost(emit, stored, undefined)
}

/** Returns the reply that a request gets in a storm of errors; `undefined` if it goes through. */
export function stormReplyFor(services: Services, streak: SessionKey, now: number): Promise<StormReply | undefined> {
  const { storm } = services.policies
  if (!storm.enabled || !services.streaks.has(streak)) return Promise.resolve(undefined)
  return changeStreak(services, streak, (before) => enterStorm(before, storm, now))
}

/** Records a provider's success or error in the streak of its thread. `body`: that of an error, if it is whole. */
export function noteOutcome(turn: Turn, head: Head, body?: Buffer): void {
  const { services, exchange, handle, streak } = turn
  const { storm } = services.policies
  if (!isStormError(head.status)) {
    void endProbe(turn, head.status < 400)
    // Without an id, no later request belongs to the thread.
  } else if (storm.enabled && handle.names.apiId !== undefined) {
    const now = services.now()
    const error = errorReplyOf(head, body, exchange.route.api, now)
    services.streaks.set(streak, true)
    void changeStreak(services, streak, (before) => ({ streak: withError(before, error, storm, now) }))
  }
}

/** Lets the next request through that would wait for the outcome of this one. `isSuccess`: the streak is over. */
export async function endProbe({ services, streak }: Turn, isSuccess: boolean): Promise<void> {
  if (!services.streaks.has(streak)) return
  if (isSuccess) services.streaks.delete(streak)
  await changeStreak(services, streak, (before) => ({
    streak: before && !isSuccess ? { ...before, probeUntil: 0 } : undefined,
  }))
}

/** The longest error body that is kept, in bytes. */
const MAX_BODY = 8_192
const NO_BODY = Buffer.alloc(0)
/** The longest wait that a provider may ask for, in milliseconds; a longer one is ignored. */
const MAX_WAIT_MS = 3_600_000

/** Returns an error in the form that is kept; where its body cannot be kept, Governor writes one. */
function errorReplyOf({ status, headers }: Head, whole: Buffer = NO_BODY, api: Api, now: number): ErrorReply {
  // The wait that the provider asks for (RFC 9110, section 10.2.3).
  const exact = Number(headerOf(headers, 'retry-after-ms') ?? Number.NaN)
  const text = headerOf(headers, 'retry-after')?.trim() ?? ''
  // A date is one of the provider's clock.
  const there = Date.parse(headerOf(headers, 'date') ?? '') || now
  const stated = /^\d{1,9}$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - there
  const wait = exact > 0 ? exact : stated
  const waitMs = wait > 0 && wait <= MAX_WAIT_MS ? wait : undefined
  const plain = decodedAtOnce(whole, contentEncoding(headers), MAX_BODY)
  if (plain && plain.length > 0 && plain.length <= MAX_BODY) {
    const contentType = headerOf(headers, 'content-type') ?? 'application/json'
    return { status, waitMs, contentType, body: plain.toString() }
  }
  const body = api.errorBody('provider_down', 'The provider does not answer.', 'upstream_unreachable')
  return { status, waitMs, contentType: 'application/json', body }
}

/** Replies with the newest of many errors in a row, without asking the provider. */
export function replyInStorm(
  { services, exchange, handle, governorHeaders }: Turn,
  { error, retryAfter, errors }: StormReply,
): void {
  void handle.releaseIteration()
  const { status, contentType, body } = error
  services.emit({ kind: 'storm_answered', upstream: exchange.route.upstream.name, status })
  const headers = { ...governorHeaders, 'x-governor-storm': `errors=${errors}` }
  reply(exchange.response, status, contentType, body, headers, ['retry-after', String(retryAfter)])
}
