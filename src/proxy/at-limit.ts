/**
 * The runs that are at a limit, as this process knows them beside the store: after a fault of Governor's own the next
 * request of such a run gets its end, although nothing of it could be judged.
 */
import { createHash } from 'node:crypto'
import { LRUCache } from 'lru-cache'
import { atMost } from '../core/bounds/cache-bound.ts'
import { type Amounts, amountsBy, amountsOf, isExhausted, metersOf } from '../core/budget/meters.ts'
import { countsOf } from '../core/counters.ts'
import { type Limit, terminalOf } from '../core/terminal.ts'
import type { CallUsage } from '../core/usage.ts'
import type { Dialect } from '../dialect/dialect.ts'
import { outlineOf } from '../dialect/shared/outline.ts'
import { reply } from '../http/client.ts'
import { credentialsOf } from '../http/credentials.ts'
import { sendAnswer } from './answer/answer-response.ts'
import { type Exchange, emitFor, noteVerdict } from './begin-exchange.ts'
import type { KnownEnd, Services } from './services.ts'
import { idInHeaders, namesOf } from './session/find-session.ts'
import type { Turn } from './turn.ts'

const MAX_KNOWN = 1_000
/** Shorter ids are counted by their provider, and not drawn. */
const DRAWN_ID = 10

/** Creates the memory of ends of a process; it is empty. */
export const createKnownEnds = (): Services['knownEnds'] => new LRUCache<string, KnownEnd>(atMost(MAX_KNOWN))

/**
 * Returns a hash of a request's credential and its names of session and thread, and whether it names a session. The
 * core, which may be what fails, does not make it.
 */
function senderOf({ services, client, route }: Exchange) {
  const { headers } = client.head
  const { credentialPlaces, identity } = services
  const session = idInHeaders(headers, identity.headers)
  const thread = idInHeaders(headers, identity.threadHeaders)
  const text = [credentialsOf(headers, route.path, credentialPlaces), session, thread].join('\n')
  return { hash: createHash('sha256').update(text).digest('base64'), isNamed: session !== undefined }
}

/** Remembers that a run ends with its next request; without an `end`, that it goes on. `call`: an id in the request. */
function keepEnd({ services, exchange }: Turn, call: string | undefined, end: KnownEnd | undefined): void {
  const { hash, isNamed } = senderOf(exchange)
  const id = isNamed ? '' : (call ?? '')
  if (!isNamed && id.length < DRAWN_ID) return
  if (end) services.knownEnds.set(`${hash} ${id}`, end)
  else services.knownEnds.delete(`${hash} ${id}`)
}

function endAt({ names, request }: Turn, limit: Limit, text: string): KnownEnd {
  const { time, scope } = limit.meter
  const terminal = terminalOf(limit, names.session ?? '', false)
  const until = time && scope !== 'minute' ? time.resetsAt : Number.POSITIVE_INFINITY
  return { answer: { text, model: request.conversation.model, terminal }, until }
}

/** Remembers of a decision whether it ends the run. */
export function noteEnd(turn: Turn): void {
  const { decision, request, services } = turn
  if (decision.kind === 'replay' || (decision.kind !== 'stop' && services.knownEnds.size === 0)) return
  const newest = request.facts.transcript.assistantMessages.at(-1)
  const call = newest?.calls ? request.conversation.calls(newest.index)[0]?.id : undefined
  keepEnd(turn, call, decision.kind === 'stop' ? endAt(turn, decision.limit, decision.fallback) : undefined)
}

/** Remembers a limit of the run or the session that the next request will have reached, by what an answer used. */
export function noteUsed(turn: Turn, usage: CallUsage): void {
  const { runState, policy, decision, services, state } = turn
  const { callIds = [] } = state
  if (callIds.length === 0 || !policy.enabled || services.policies.observesOnly || decision.kind === 'stop') return
  const more = { ...amountsOf(countsOf(usage), 0), iterations: 1, tool_calls: callIds.length }
  const after = (used: Amounts) => amountsBy((name) => used[name] + more[name])
  const meters = metersOf(after(runState.used), policy.run)
  const meter = [...meters, ...metersOf(after(runState.usedBySession), policy.session, 'session')].find(isExhausted)
  if (meter) keepEnd(turn, callIds[0], endAt(turn, { meter }, policy.texts.fallback))
}

function knownEnd(x: Exchange, body: Buffer): KnownEnd | undefined {
  const { knownEnds, now } = x.services
  if (knownEnds.size === 0) return undefined
  const { hash } = senderOf(x)
  for (const [key, end] of knownEnds)
    if (key.startsWith(hash) && end.until > now() && body.includes(key.slice(hash.length + 1))) return end
  return undefined
}

/** @throws the fault, if the run of a request is known to be at a limit: it is not judged without what failed. */
export function throwAtLimit(x: Exchange, body: Buffer, fault: unknown): void {
  if (knownEnd(x, body)) throw fault
}

/**
 * Answers a request that a fault keeps from being judged, if its run is known to be at a limit. Returns whether it did.
 */
export function refuseAtLimit(x: Exchange, dialect: Dialect, body: Buffer): boolean {
  const { answer } = knownEnd(x, body) ?? {}
  if (!answer) return false
  noteVerdict(x, 'stop')
  emitFor(x, { kind: 'stopped', reason: answer.terminal.terminal_reason, by: 'fallback', ...namesOf() })
  try {
    const sent = outlineOf(dialect, { path: x.route.asked, query: x.route.query }, body)
    if (sent) {
      sendAnswer({ exchange: x, dialect, sent }, answer, { 'x-governor-verdict': 'stop' })
      return true
    }
  } catch {
    // What writes answers has failed too.
  }
  const message = 'The run is at a limit, and Governor cannot read this request.'
  const text = x.route.api.errorBody('overloaded', message, 'limit_reached', 503)
  reply(x.client, 503, 'application/json', text, {}, ['retry-after', '60'])
  return true
}
