/** Replies with the newest error in a storm of them, which a provider gives that is overloaded or gone. */
import type { ErrorReply, StormReply } from '../../core/session/error-streak.ts'
import type { Api } from '../../dialect/dialect.ts'
import { decodedAtOnce } from '../../http/body.ts'
import { contentEncoding, headerOf, type RawHeaders } from '../../http/headers.ts'
import { reply } from '../../http/response.ts'
import type { Head } from '../../http/upstream.ts'
import type { Turn } from '../turn.ts'

/** The longest error body that is kept, in bytes. */
const MAX_BODY = 8_192
const NO_BODY = Buffer.alloc(0)
/** The longest wait that a provider may ask for, in milliseconds; a longer one is ignored. */
const MAX_WAIT_MS = 3_600_000

/** Returns the milliseconds that a provider asks to wait (RFC 9110, section 10.2.3). */
function waitIn(headers: RawHeaders, now: number): number | undefined {
  const exact = Number(headerOf(headers, 'retry-after-ms') ?? Number.NaN)
  const text = headerOf(headers, 'retry-after')?.trim() ?? ''
  // A date is one of the provider's clock.
  const there = Date.parse(headerOf(headers, 'date') ?? '') || now
  const stated = /^\d{1,9}$/.test(text) ? Number(text) * 1_000 : Date.parse(text) - there
  const wait = exact > 0 ? exact : stated
  return wait > 0 && wait <= MAX_WAIT_MS ? wait : undefined
}

/** Returns an error in the form that is kept; where its body cannot be kept, Governor writes one. */
export function errorReplyOf({ status, headers }: Head, whole: Buffer = NO_BODY, api: Api, now: number): ErrorReply {
  const coding = contentEncoding(headers)
  const plain = coding === 'identity' ? whole : decodedAtOnce(whole, coding, MAX_BODY)
  const waitMs = waitIn(headers, now)
  const kept = { status, ...(waitMs === undefined ? {} : { waitMs }) }
  if (plain && plain.length > 0 && plain.length <= MAX_BODY) {
    const contentType = headerOf(headers, 'content-type') ?? 'application/json'
    return { ...kept, contentType, body: plain.toString() }
  }
  const body = api.errorBody('provider_down', 'The provider does not answer.', 'upstream_unreachable')
  return { ...kept, contentType: 'application/json', body }
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
