/** What can be known of a request whose body is too large to be read: its ends are enough for model and stream. */
import type { Dialect, DialectRequest } from '../dialect.ts'

const MODEL = /"model"\s{0,8}:\s{0,8}"([^"\\]{1,200})"/
/** A quote in a text has a backslash before it. */
const STREAM = /[{,]\s{0,80}"stream"\s{0,8}:\s{0,8}(true|false)/g

/** Bytes at each end of a body in which its model stands, and whether its client reads a stream. */
export const EDGE_BYTES = 65_536

/** Returns a request with nothing but what `edges` show of it: the first and last part of its body, or all of it. */
export function outlineOf(
  dialect: Dialect,
  place: { readonly path: string; readonly query: string },
  edges: string | Buffer,
): DialectRequest | undefined {
  const text = Buffer.isBuffer(edges)
    ? `${edges.toString('latin1', 0, EDGE_BYTES)} ${edges.subarray(-EDGE_BYTES).toString('latin1')}`
    : edges
  const model = MODEL.exec(text)?.[1] ?? ''
  const stream = [...text.matchAll(STREAM)].at(-1)?.[1] === 'true'
  const body = Buffer.from(JSON.stringify({ model, stream, messages: [], input: [], contents: [] }))
  return dialect.read({ ...place, body })
}
