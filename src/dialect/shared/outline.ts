/** What can be known of a request whose body is too large to be read: its ends are enough for model and stream. */
import type { Dialect, DialectRequest } from '../dialect.ts'

const MODEL = /"model"\s{0,8}:\s{0,8}"([^"\\]{1,200})"/
/** A quote in a text has a backslash before it. */
const STREAM = /[{,]\s{0,80}"stream"\s{0,8}:\s{0,8}(true|false)/g

/** Returns a request with nothing but what `edges`, the first and the last part of its body, show of it. */
export function outlineOf(
  dialect: Dialect,
  place: { readonly path: string; readonly query: string },
  edges: string,
): DialectRequest | undefined {
  const model = MODEL.exec(edges)?.[1] ?? ''
  const stream = [...edges.matchAll(STREAM)].at(-1)?.[1] === 'true'
  const body = Buffer.from(JSON.stringify({ model, stream, messages: [], input: [], contents: [] }))
  return dialect.read({ ...place, body })
}
