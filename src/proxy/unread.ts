/** Requests that Governor can't read or judge: scopes of time count them too, and end them at their limits. */
import { once } from 'node:events'
import type { Readable } from 'node:stream'
import { fill } from '../core/budget/budget-notices.ts'
import { type AnyLimitName, costLimit, isExhausted, type Meter } from '../core/budget/meters.ts'
import { limitsTime } from '../core/budget/policy.ts'
import { closedText } from '../core/decide.ts'
import { terminalOf } from '../core/terminal.ts'
import type { Dialect } from '../dialect/dialect.ts'
import { EDGE_BYTES, outlineOf } from '../dialect/shared/outline.ts'
import type { UnreadBody } from '../http/body.ts'
import { lacksPrice } from '../usage/catalogue.ts'
import { sendAnswer } from './answer/answer-response.ts'
import { type AsideRequest, type Exchange, emitFor, noteVerdict } from './begin-exchange.ts'
import { noteAside } from './evaluate.ts'
import { namesOf, tenantOf } from './session/find-session.ts'
import { keepPlace } from './session/keep-place.ts'
import { holdAgain, timeMeters } from './usage/charge.ts'
import { rateOfAside } from './waiting/slow-down.ts'

/** Keeps the first and the last bytes of a body that is read elsewhere; the result returns what there is so far. */
function watchEdges(body: Readable, chunks: readonly Buffer[], grows: (bytes: number) => void): () => string {
  let [first, last]: [Buffer, Buffer] = [Buffer.alloc(0), Buffer.alloc(0)]
  const take = (chunk: Buffer) => {
    if (first.length < EDGE_BYTES) first = Buffer.concat([first, chunk.subarray(0, EDGE_BYTES - first.length)])
    last = chunk.length < EDGE_BYTES ? Buffer.concat([last, chunk]).subarray(-EDGE_BYTES) : chunk.subarray(-EDGE_BYTES)
    grows(chunk.length)
  }
  for (const chunk of chunks) take(chunk)
  body.on('data', take)
  return () => `${first.toString('latin1')} ${last.toString('latin1')}`
}

/**
 * Answers a request that can't be read or judged with Governor's own text, if a limit of a scope of time is reached;
 * else its response will be counted. Limits for each model don't count it. Returns whether it was answered.
 */
export async function refuseUnjudged(x: Exchange, dialect: Dialect, body: Buffer | UnreadBody): Promise<boolean> {
  const { services, client, route, accessKey } = x
  if (x.aside) return refuseAside(x, x.aside)
  if (!limitsTime(services.policies.budget, accessKey?.scopes)) return false
  const isWhole = Buffer.isBuffer(body)
  let length = 0
  const grows = (bytes: number) => {
    length += bytes
    if (x.charge) x.charge.bytes = Math.max(x.charge.bytes, length)
  }
  const edges = isWhole ? () => body : watchEdges(client.body, body.chunks, grows)
  const outline = () => outlineOf(dialect, { path: route.asked, query: route.query }, edges())
  const asked = outline()
  if (!asked) return false
  const tenant = tenantOf(client.head.headers, route, services)
  const noted = noteAside(x, undefined, asked, isWhole ? body : undefined, tenant)
  if (!noted) return false
  x.aside = { ...noted, readAgain: outline }
  return refuseAside(x, x.aside, async () => {
    if (isWhole || client.body.readableEnded || client.isGone()) return
    // The client may read no answer before it has sent all.
    body.stream.resume()
    await Promise.race([once(client.body, 'end'), new Promise<void>((resolve) => client.onClose(resolve))])
  })
}

/**
 * Answers a request that is no step of a run with Governor's own text, if a limit of a scope of time is reached;
 * returns whether it did. `untilSent`: waits for the rest of its body.
 */
async function refuseAside(x: Exchange, aside: AsideRequest, untilSent?: () => Promise<void>): Promise<boolean> {
  const { services, client, charge } = x
  const { dialect } = x.route
  const { asked, found, policy } = aside
  if (!dialect || !(charge || policy.velocity)) return false
  const meters = async () => (charge ? (await timeMeters(x, charge)).enforced : [])
  const { texts, unknownPrice } = policy
  const { model } = asked.conversation
  const max = unknownPrice === 'refuse' && model !== '' ? costLimit(policy) : undefined
  const isUnpriced = max !== undefined && lacksPrice(services.catalogue, model, x.route.upstream)
  const unpriced: Meter<AnyLimitName> | undefined = isUnpriced ? { name: 'cost', used: 0, max } : undefined
  let meter: Meter<AnyLimitName> | undefined = (await meters()).find(isExhausted) ?? (await rateOfAside(x, aside))
  if (!meter && charge && x.slowedMs !== undefined) {
    // It held nothing while it waited.
    await holdAgain(x, charge, services.policies.observesOnly)
    meter = (await meters()).find(isExhausted)
  }
  meter ??= unpriced
  if (!meter || services.policies.observesOnly || client.isGone()) return false
  const names = namesOf(found)
  const terminal = terminalOf({ meter }, names.session ?? '', false)
  const text = fill(meter.time ? closedText(policy, meter) : texts.unpriced, meter)
  noteVerdict(x, 'stop')
  emitFor(x, { kind: 'stopped', reason: terminal.terminal_reason, by: 'fallback', ...names })
  await untilSent?.()
  const sent = aside.readAgain?.() ?? asked
  const id = await keepPlace(x, sent, found)
  const answer = { text, model: sent.conversation.model, terminal, id }
  const headers = { 'x-governor-verdict': 'stop', 'x-governor-session': names.session }
  sendAnswer({ exchange: x, dialect, sent }, answer, headers)
  return true
}
