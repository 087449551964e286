/** Gives a client one response, made of one response of the upstream or of several. */
import { once } from 'node:events'
import { setImmediate } from 'node:timers/promises'
import { type RawHeaders, responseHeaders, withoutBodyFields } from '../../http/headers.ts'
import { type GovernorHeaders, writeHead } from '../../http/response.ts'
import type { Head } from '../../http/upstream.ts'
import type { Exchange } from '../begin-exchange.ts'

/** A client's response while it is made. */
export interface ClientStream {
  /** What the client gets besides the upstream's headers; a change has no effect once `isShown`. */
  governorHeaders: GovernorHeaders
  /** The client has got the head: no other response can take the place of this one. */
  readonly isShown: boolean
  /** Sets the head; only the first counts. */
  begin(head: Head): void
  /** Adds chunks. They wait for the model's text: until then another response may take their place. */
  show(chunks: readonly Buffer[], isText: boolean): Promise<void>
  /** Forgets a head and chunks that the client has not got. */
  reset(): void
  /** Sends all that waits, and ends the response. `isUnchanged`: the upstream's own bytes, of its length. */
  end(chunks?: readonly Buffer[], isUnchanged?: boolean): Promise<void>
  /** Ends a response that broke off, without the headers that state an end of the run. */
  fail(chunks: readonly Buffer[], governorHeaders: GovernorHeaders): Promise<void>
  /** Sends a whole response: what was `read` of its body, then the rest as it comes. */
  send(head: Head, headers: RawHeaders, read: readonly Buffer[], rest?: AsyncIterable<Buffer>): Promise<void>
}

/** Bytes that wait for the first text, at most. */
const MAX_WAITING = 65_536

/** Opens the response of an exchange. */
export function openClientStream(
  { response }: Pick<Exchange, 'response'>,
  governorHeaders: GovernorHeaders,
): ClientStream {
  let head: Head | undefined
  let isShown = false
  let waiting: Buffer[] = []
  let length = 0
  const hold = (chunks: readonly Buffer[]) => {
    for (const chunk of chunks) {
      length += chunk.length
      waiting.push(chunk)
    }
  }
  const flush = async (headers?: RawHeaders) => {
    const chunks = waiting
    waiting = []
    if (head && !isShown) writeHead(response, head, headers ?? rewrittenHeaders(head), stream.governorHeaders)
    isShown ||= head !== undefined
    await write(response, chunks)
  }
  const stream: ClientStream = {
    governorHeaders,
    get isShown() {
      return isShown
    },
    begin(first) {
      head ??= first
    },
    async show(chunks, isText) {
      hold(chunks)
      const isDue = isText || isShown || length > MAX_WAITING
      if (head && isDue && waiting.length > 0) await flush()
    },
    reset() {
      head = undefined
      waiting = []
      length = 0
    },
    async end(chunks = [], isUnchanged = false) {
      hold(chunks)
      await flush(isUnchanged && head ? responseHeaders(head.headers) : undefined)
      response.end()
    },
    fail(chunks, headers) {
      stream.governorHeaders = headers
      return stream.end(chunks)
    },
    async send(whole, headers, read, rest) {
      writeHead(response, whole, headers, stream.governorHeaders)
      await write(response, read)
      if (rest) for await (const chunk of rest) await write(response, [chunk])
      response.end()
    },
  }
  return stream
}

/** Returns the headers for a rewritten body; `length`: its bytes, if it is whole. */
export function rewrittenHeaders(head: Head, length?: number): string[] {
  const headers = withoutBodyFields(responseHeaders(head.headers))
  return length === undefined ? headers : [...headers, 'content-length', String(length)]
}

/** Bytes that are written at once. */
const MAX_WRITE = 65_536

/** Joins chunks to larger ones: text that was held comes in as many small ones as the model wrote. */
function* joined(chunks: readonly Buffer[]): Generator<Buffer, void, undefined> {
  let from = 0
  let length = 0
  for (const [at, chunk] of chunks.entries()) {
    length += chunk.length
    if (length < MAX_WRITE && at + 1 < chunks.length) continue
    yield from === at ? chunk : Buffer.concat(chunks.slice(from, at + 1), length)
    from = at + 1
    length = 0
  }
}

/** Writes chunks to the client; waits while it reads slowly, and lets others go on between two large chunks. */
async function write(response: Exchange['response'], chunks: readonly Buffer[]): Promise<void> {
  for (const bytes of joined(chunks)) {
    if (bytes.length > 0 && !response.write(bytes) && !response.destroyed) {
      const waiting = new AbortController()
      const { signal } = waiting
      await Promise.race([once(response, 'drain', { signal }), once(response, 'close', { signal })])
      waiting.abort()
    }
    if (bytes.length >= MAX_WRITE) await setImmediate()
  }
}
