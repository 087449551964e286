/** Makes one response for the client from one upstream response or several; calls are held until judged. */
import type { BufferedCalls, Dialect, ToolCallFilter } from '../../dialect/dialect.ts'
import type { Lease } from '../../http/body.ts'
import { decoded } from '../../http/body.ts'
import { contentEncoding, headerOf, isEventStream, responseHeaders } from '../../http/headers.ts'
import { chunksOf, plainBody, readUpTo, type UpstreamResponse } from '../../http/upstream-response.ts'
import { createFrameReader, type Frame } from '../../sse/frames.ts'
import type { Turn } from '../turn.ts'
import type { BegunAnswer } from './answer-response.ts'
import { type ClientStream, rewrittenHeaders } from './client-stream.ts'

/** The client's response while it is made. */
export interface FilteredResponse {
  readonly x: Turn
  readonly dialect: Dialect
  /** For what is held of responses. */
  readonly lease: Lease
  readonly client: ClientStream
}

/** Makes one response for the client from one upstream response or from several. */
export interface ResponseFilter {
  /** Reads a response; returns its calls, `undefined` if none can be blocked. @throws {UpstreamFailed} */
  take(response: UpstreamResponse): Promise<BufferedCalls | undefined>
  /** Gives the client the newest response without the calls at the `blocked` positions. */
  release(blocked: ReadonlySet<number>): Promise<void>
  /** Becomes the beginning of an answer without calls. `mayHaveFooter`: a footer may follow. */
  becomeAnswer(isJson: boolean, mayHaveFooter: boolean): Promise<BegunAnswer>
}

const NO_CALLS: ReadonlySet<number> = new Set()

/** A client's stream while it is made. Changed by the functions of this file alone. */
interface FilteredStream {
  readonly filtered: FilteredResponse
  readonly calls: ToolCallFilter
  /** The first response. */
  readonly first: UpstreamResponse
  /** How many responses came. */
  responses: number
  /** It is too large: the client gets it as it comes. */
  passes: boolean
  /** It cannot be decoded: the client gets it as it is. */
  isUnreadable: boolean
}

/** Makes one stream for the client from streams of the upstream. */
export function streamFilter(filtered: FilteredResponse, first: UpstreamResponse): ResponseFilter {
  const { client, dialect } = filtered
  const calls = dialect.openFilter()
  const stream = { filtered, calls, first, responses: 0, passes: false, isUnreadable: false }
  client.begin(first.head)
  return {
    take: (response) => takeStream(stream, response),
    async release(blocked) {
      const { head } = first
      if (stream.isUnreadable) return client.send(head, responseHeaders(head.headers), [], chunksOf(first))
      const isUnchanged = stream.responses === 1 && blocked.size === 0 && contentEncoding(head.headers) === 'identity'
      await client.end(stream.passes ? [] : calls.release(blocked), isUnchanged)
    },
    async becomeAnswer(isJson, mayHaveFooter) {
      const [opening, answer] = calls.becomeAnswer(isJson, mayHaveFooter)
      await client.show(opening, false)
      return { stream: answer }
    },
  }
}

async function takeStream(stream: FilteredStream, response: UpstreamResponse): Promise<BufferedCalls | undefined> {
  const isFirst = stream.responses++ === 0
  const plain = plainBody(response)
  if (!plain && isFirst) {
    stream.isUnreadable = true
    return undefined
  }
  if (plain && isEventStream(response.head.headers) && (await takeFrames(stream, plain, isFirst))) {
    return stream.passes ? undefined : stream.calls.endResponse()
  }
  response.abort()
  return undefined
}

/** Reads a stream to its end. Returns false if it is not the first and there is no room for it. */
async function takeFrames(stream: FilteredStream, plain: AsyncIterable<Buffer>, isFirst: boolean): Promise<boolean> {
  const { calls, filtered } = stream
  const { client, lease, x } = filtered
  const take = (frame: Frame) => client.show(stream.passes ? [frame.raw] : calls.push(frame), true)
  const reader = createFrameReader()
  let length = 0
  for await (const chunk of plain) {
    length += chunk.length
    for (const frame of reader.push(chunk)) await take(frame)
    const hasRoom = length <= x.services.maxGuardedBody
    if (stream.passes || (hasRoom && lease.grow(chunk.length))) continue
    if (!isFirst) return false
    stream.passes = true
    calls.endResponse()
    await client.show(calls.release(NO_CALLS), true)
  }
  for (const frame of reader.end()) await take(frame)
  return true
}

/** Makes one whole response for the client from whole responses of the upstream. */
export function bodyFilter({ x, dialect, lease, client }: FilteredResponse): ResponseFilter {
  /** The bodies before the newest, without content coding. */
  const earlier: Buffer[] = []
  /** What the model said in each response. */
  const texts: string[] = []
  /** `raw`: the bytes as they came; `rest`: what is too much to be held. */
  let newest: (Required<BegunAnswer>['whole'] & { raw: Buffer; rest?: AsyncIterable<Buffer> }) | undefined
  return {
    async take(response) {
      const { head } = response
      const max = x.services.maxGuardedBody
      const { bytes: raw, rest } = await readUpTo(chunksOf(response), max, lease)
      if (rest) {
        if (newest) response.abort()
        newest ??= { head, raw, body: raw, rest }
        return undefined
      }
      const body = await decoded(raw, headerOf(head.headers, 'content-encoding'), max, lease)
      const buffered = body && dialect.readAnswer(body)?.buffered
      // The run cannot continue from a response that cannot be read.
      if (newest && !buffered) return undefined
      if (newest) earlier.push(newest.body)
      newest = { head, raw, body: body ?? raw }
      if (buffered) texts.push(buffered.text)
      return buffered
    },
    async release(blocked) {
      if (!newest) return
      const { head, raw, body, rest } = newest
      if (rest || (blocked.size === 0 && earlier.length === 0))
        return client.send(head, responseHeaders(head.headers), [raw], rest)
      const bytes = dialect.withoutCalls(body, blocked, earlier)
      await client.send(head, rewrittenHeaders(head, bytes.length), [bytes])
    },
    async becomeAnswer() {
      const text = texts.filter((said) => said !== '').join('\n\n')
      return { earlier, text, ...(newest && { whole: newest }) }
    },
  }
}
