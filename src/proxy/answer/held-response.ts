/** Makes one response for the client from one upstream response or several; calls are held until judged. */
import type { BufferedCalls } from '../../dialect/dialect.ts'
import { decoded, type Lease } from '../../http/body.ts'
import { contentEncoding } from '../../http/headers.ts'
import type { Head } from '../../http/upstream.ts'
import {
  chunksOf,
  isEventStream,
  plainBody,
  readUpTo,
  trailersOf,
  type UpstreamResponse,
} from '../../http/upstream-response.ts'
import type { Turn } from '../turn.ts'
import type { Answer } from './answer-response.ts'
import { type ClientStream, end, framesOf, rewritten, sendWhole, show } from './client-stream.ts'

/** Makes one response for the client from one upstream response or from several. */
export interface ResponseFilter {
  /** Reads a response; returns its calls, `undefined` if none can be blocked. @throws {UpstreamFailed} */
  take(response: UpstreamResponse): Promise<BufferedCalls | undefined>
  /** Gives the client the newest response without the calls at the `blocked` positions. */
  release(blocked: ReadonlySet<number>): Promise<void>
  /** Makes what came so far the beginning of an answer without calls. */
  become(answer: Answer): Promise<void>
}

/** Makes one stream from streams. */
export function streamFilter(
  { dialect, services, sent }: Turn,
  client: ClientStream,
  lease: Lease,
  first: UpstreamResponse,
): ResponseFilter {
  const calls = dialect.openFilter(sent.demands().hasFormat)
  const { head } = first
  client.head = head
  let responses = 0
  /** It is too large: the client gets it as it comes. */
  let passes = false
  /** It cannot be decoded: the client gets it as it is. */
  let isUnreadable = false
  return {
    async take(response) {
      const isFirst = responses++ === 0
      const isStream = await isEventStream(response)
      const plain = plainBody(response)
      isUnreadable ||= isFirst && !plain
      if (!plain || !isStream) {
        if (!isUnreadable) response.abort()
        return undefined
      }
      let length = 0
      try {
        for await (const { frames, bytes } of framesOf(plain)) {
          for (const frame of frames) await show(client, passes ? [frame.raw] : calls.push(frame), true)
          length += bytes
          if (passes || (length <= services.maxGuardedBody && lease.grow(bytes))) continue
          if (!isFirst) {
            calls.endResponse()
            return undefined
          }
          passes = true
          calls.endResponse()
          await show(client, calls.release(new Set()), true)
        }
      } catch (error) {
        // It broke off. What comes next is another response, and not the rest of this one.
        calls.endResponse()
        throw error
      }
      return passes ? undefined : calls.endResponse()
    },
    async release(blocked) {
      if (isUnreadable) return sendWhole(client, head, Buffer.alloc(0), chunksOf(first), first)
      const isUnchanged = responses === 1 && blocked.size === 0 && contentEncoding(head.headers) === 'identity'
      await end(client, passes ? [] : calls.release(blocked), isUnchanged ? trailersOf(first) : undefined)
    },
    async become(answer) {
      const [opening, stream] = calls.becomeAnswer(answer.isJson, answer.footer !== undefined)
      await show(client, opening, false)
      answer.stream = stream
    },
  }
}

/** Makes one whole body from whole bodies. */
export function bodyFilter({ dialect, services, sent }: Turn, client: ClientStream, lease: Lease): ResponseFilter {
  const isJson = sent.demands().hasFormat
  /** The bodies before the newest, without content coding. */
  const earlier: Buffer[] = []
  /** What the model said in each response that has text. */
  const texts: string[] = []
  /** `raw`: the bytes as they came; `rest`: what is too much to be held. */
  let newest:
    | { response: UpstreamResponse; head: Head; body: Buffer; raw: Buffer; rest?: AsyncIterable<Buffer> }
    | undefined
  return {
    async take(response) {
      const { head } = response
      const max = services.maxGuardedBody
      const { bytes: raw, rest } = await readUpTo(chunksOf(response), max, lease)
      if (rest) {
        if (newest) response.abort()
        newest ??= { response, head, raw, body: raw, rest }
        return undefined
      }
      const body = await decoded(raw, contentEncoding(head.headers), max, lease)
      const buffered = body && dialect.readAnswer(body)?.buffered
      // The run cannot continue from a response that cannot be read.
      if (newest && !buffered) return undefined
      if (newest) earlier.push(newest.body)
      newest = { response, head, raw, body: body ?? raw }
      if (buffered && buffered.text !== '') texts.push(buffered.text)
      return buffered
    },
    async release(blocked) {
      if (!newest) return
      const { head, raw, body, rest, response } = newest
      if (rest || (blocked.size === 0 && earlier.length === 0)) return sendWhole(client, head, raw, rest, response)
      const bytes = dialect.withoutCalls(body, blocked, earlier, isJson)
      await sendWhole(client, rewritten(head, bytes.length), bytes)
    },
    async become(answer) {
      answer.earlier = earlier
      answer.textBefore = isJson ? '' : texts.join('\n\n')
      const read = newest && dialect.readAnswer(newest.body)
      answer.whole = newest && read && { head: newest.head, body: newest.body, answer: read }
    },
  }
}
