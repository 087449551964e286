/** Counts the errors in a row of each thread, and replies with the newest one in a storm of them. */
import { LRUCache } from 'lru-cache'
import { atMost } from '../../core/bounds/cache-bound.ts'
import { decideInStorm } from '../../core/decide.ts'
import { type ErrorReply, type ErrorStreak, enterStorm, type StormReply, withError } from '../../core/storm.ts'
import type { Api } from '../../dialect/dialect.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { reply } from '../../http/client.ts'
import { contentEncoding, headerOf } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import type { ResponseObserver } from '../../http/upstream-response.ts'
import { createFrameReader, dataOf } from '../../sse/frames.ts'
import { type SessionKey, sessionKey, type ValueKind } from '../../store/store.ts'
import { pause } from '../begin-exchange.ts'
import { changeValue, noteFault, unlessLost } from '../fault.ts'
import type { Services } from '../services.ts'
import { giveBackIteration, type Turn } from '../turn.ts'

/** Errors further apart than ten minutes do not belong to one storm. */
const STREAKS: ValueKind<ErrorStreak | undefined> = { name: 'error_streak', ttl: 600_000, empty: undefined }

const MAX_STREAKS = 10_000

/** Returns an empty memory, which forgets the streaks that were not used for longest. */
export function createKnownStreaks(): Services['streaks'] {
  return Object.assign(new LRUCache<SessionKey, true>(atMost(MAX_STREAKS)), { held: 0 })
}

/**
 * Returns where the errors in a row of a thread, upstream and model are counted; a body stands for a thread without an
 * id.
 */
function streakKeyOf({ request, found, counted, runState: { thread } }: Turn): SessionKey {
  const name = found.id === undefined ? counted.fingerprint : thread.id
  return sessionKey(found.tenant, `${name} ${request.upstream} ${request.model}`)
}

/** Has a request wait in a storm of errors, or sends it as the probe, which ends when its response closes. */
export async function holdInStorm(turn: Turn): Promise<Turn> {
  const { services, exchange, request, decision } = turn
  const { storm } = services.policies
  const key = storm.enabled && !request.observesOnly ? streakKeyOf(turn) : undefined
  if (key === undefined || !services.streaks.has(key)) return turn
  const stored = services.store.updateValue(STREAKS, key, (before) => {
    const result = enterStorm(before, storm, request.now)
    return { value: result.streak, result }
  })
  const { streak, reply } = await unlessLost(services.emit, stored, { streak: undefined })
  if (reply) return { ...turn, decision: decideInStorm(decision, reply) }
  if (streak?.probeUntil) {
    const { probeUntil } = streak
    const endProbe = (now?: ErrorStreak) => (now?.probeUntil === probeUntil ? { ...now, probeUntil: 0 } : now)
    exchange.client.onClose(() => void changeValue(services, STREAKS, key, endProbe))
  }
  return turn
}

/** Records whether a response is an answer, once that shows. `usage`: what else observes it. */
export function observeOutcome(turn: Turn, head: Head, usage: ResponseObserver | undefined) {
  if (head.status >= 400 || !turn.services.policies.storm.enabled) return usage
  let begun: Buffer[] = []
  let left = MAX_BODY
  return {
    take(chunk) {
      if (chunk && left >= 0) {
        left -= chunk.length
        begun.push(chunk)
        if (left < 0) {
          begun = []
          noteOutcome(turn, head)
        }
      }
      return usage?.take(chunk)
    },
    end(isWhole) {
      usage?.end(isWhole)
      if (left >= 0) noteOutcome(turn, head, begun.length === 1 ? begun[0] : Buffer.concat(begun))
    },
  } satisfies ResponseObserver
}

const ERROR_NAME = Buffer.from('"error"')
/** A member that only errors have, unless it is null. */
const ERROR = /"error"\s{0,8}:\s{0,8}[^\sn]/

/** Returns true if a whole response with a status of success is nothing but an error, which is no overflow. */
function isOnlyError({ dialect, state, services }: Turn, { headers }: Head, body: Buffer): boolean {
  // One with calls is an answer, which need not be decoded.
  if (state.overflow || state.relayed) return false
  try {
    const plain = decodedAtOnce(body, contentEncoding(headers), 8 * MAX_BODY) ?? body
    if (!plain.includes(ERROR_NAME) || !ERROR.test(plain.toString('latin1'))) return false
    if (/^\s*\{/.test(plain.toString('latin1', 0, 64))) {
      const answer = dialect.readAnswer(plain)
      return !answer?.text && !answer?.calls.length
    }
    const stream = dialect.openStream(false, false)
    const reader = createFrameReader()
    for (const frame of [...reader.push(plain), ...reader.end()]) if (dataOf(frame) !== undefined) stream.push(frame)
    return stream.hasFailed && !stream.hasText
  } catch (error) {
    noteFault(services.emit, error)
    return false
  }
}

/** Records a provider's success or error in the streak of its thread. `body`: the body, if it is whole. */
export function noteOutcome(turn: Turn, head: Head, body?: Buffer): void {
  const { services, exchange } = turn
  const { policies, streaks } = services
  const { storm } = policies
  // Others are about the request itself, and do not say that the provider is overloaded or gone.
  const isStormError =
    head.status === 429 || head.status >= 500 || (head.status < 400 && body && isOnlyError(turn, head, body))
  const mayChange = isStormError ? storm.enabled : head.status < 400 && streaks.size > 0
  const key = mayChange ? streakKeyOf(turn) : undefined
  if (key === undefined) return
  if (!isStormError) {
    if (streaks.delete(key)) void changeValue(services, STREAKS, key, () => undefined)
    return
  }
  const now = services.now()
  const error = errorReplyOf(head, body, exchange.route.api, now)
  streaks.set(key, true)
  void changeValue(services, STREAKS, key, (before) => withError(before, error, storm, now, turn.counted.fingerprint))
}

/** The longest error body that is kept, in bytes. */
const MAX_BODY = 8_192
/** The longest wait that a provider may ask for, in milliseconds; a longer one is ignored. */
const MAX_WAIT_MS = 3_600_000

/** Returns an error in the form that is kept; where its body cannot be kept, Governor writes one. */
function errorReplyOf({ status, headers }: Head, whole: Buffer | undefined, api: Api, now: number): ErrorReply {
  // The wait that the provider asks for (RFC 9110, section 10.2.3).
  const exact = Number(headerOf(headers, 'retry-after-ms') ?? Number.NaN)
  const text = headerOf(headers, 'retry-after')?.trim() ?? ''
  // A date is one of the provider's clock.
  const there = Date.parse(headerOf(headers, 'date') ?? '') || now
  const stated = /^\d{1,9}$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - there
  const wait = exact > 0 ? exact : stated
  const waitMs = wait > 0 && wait <= MAX_WAIT_MS ? wait : undefined
  const plain = whole && decodedAtOnce(whole, contentEncoding(headers), MAX_BODY)
  if (plain?.length && plain.length <= MAX_BODY) {
    const contentType = headerOf(headers, 'content-type') ?? 'application/json'
    return { status, waitMs, contentType, body: plain.toString() }
  }
  const body = api.errorBody('provider_down', 'The provider does not answer.', 'upstream_unreachable', status)
  return { status, waitMs, contentType: 'application/json', body }
}

/**
 * Milliseconds for which a reply is held: a client that repeats without a pause is slowed, and none gives up so soon.
 */
const HOLD_MS = 1_000
/** The most replies that are held at a time. */
const MAX_HELD = 1_000

/** Replies with the newest of many errors in a row, a second later, without asking the provider. */
export async function replyInStorm(turn: Turn, { error, retryAfter, errors }: StormReply): Promise<void> {
  const { services, exchange, governorHeaders } = turn
  const { streaks } = services
  void giveBackIteration(turn, error.status)
  if (streaks.held < MAX_HELD) {
    streaks.held++
    await pause(exchange, HOLD_MS)
    streaks.held--
  }
  if (exchange.client.isGone()) return
  const { status, contentType, body } = error
  services.emit({ kind: 'storm_answered', upstream: exchange.route.upstream.name, status })
  const headers = { ...governorHeaders, 'x-governor-storm': `errors=${errors}` }
  reply(exchange.client, status, contentType, body, headers, ['retry-after', String(retryAfter)])
}
