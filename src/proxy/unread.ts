/** Requests that Governor can't read or judge: scopes of time count them too, and end them at their limits. */
import { once } from 'node:events'
import type { Readable } from 'node:stream'
import { limitsTime } from '../core/budget/policy.ts'
import type { Dialect } from '../dialect/dialect.ts'
import { EDGE_BYTES, outlineOf } from '../dialect/shared/outline.ts'
import type { UnreadBody } from '../http/body.ts'
import type { Exchange } from './begin-exchange.ts'
import { noteAside } from './evaluate.ts'
import { tenantOf } from './session/find-session.ts'
import { refuseAside } from './usage/charge.ts'

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
  const noted = noteAside(x, dialect, undefined, asked, isWhole ? body : undefined, tenant)
  if (!noted) return false
  x.aside = { ...noted, readAgain: outline }
  return refuseAside(x, x.aside, async () => {
    if (isWhole || client.body.readableEnded || client.isGone()) return
    // The client may read no answer before it has sent all.
    body.stream.resume()
    await Promise.race([once(client.body, 'end'), new Promise<void>((resolve) => client.onClose(resolve))])
  })
}
